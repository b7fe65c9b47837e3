"""SAC of stable-baselines3 on MountainCarContinuous, with demonstrations of a simple rule in half of each batch.

    .venvs/sb3/bin/python examples/integrations/sb3_demonstrations.py [--short] [--seed S] [--demonstrations HOW]

--demonstrations added puts them into the buffer of the agent's own steps instead; none does without.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from per.integrations.sb3 import SAC, PrioritizedReplayBuffer

TASK = "MountainCarContinuous-v0"  # The reward is 100 at the goal; before, actions cost a little.


def demonstrate(buffer: PrioritizedReplayBuffer, episodes: int = 10) -> None:
    """Adds episodes of a demonstrator who pushes the way the car moves already."""
    env = gymnasium.make(TASK)
    for i in range(episodes):
        observation, _ = env.reset(seed=1000 + i)
        done = False
        while not done:
            action = np.array([1.0 if observation[1] > 0 else -1.0], np.float32)
            next_observation, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            infos = [{"TimeLimit.truncated": truncated}]
            buffer.add(observation[None], next_observation[None], action[None], np.array([reward]), [done], infos)
            observation = next_observation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="500 steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--demonstrations", choices=["mixed", "added", "none"], default="mixed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    model = SAC(
        "MlpPolicy",
        TASK,
        learning_rate=1e-3,
        n_steps=5,
        batch_size=64,
        buffer_size=50_000,
        policy_kwargs={"net_arch": [64, 64]},
        seed=arguments.seed,
        device="cpu",
    )
    if arguments.demonstrations == "mixed":
        demonstrations = PrioritizedReplayBuffer(5_000, model.observation_space, model.action_space, n_steps=5)
        demonstrate(demonstrations)
        model.replay_buffer.mix(demonstrations)  # half of each batch
    elif arguments.demonstrations == "added":
        demonstrate(model.replay_buffer)
    model.learn(500 if arguments.short else 4_000)

    returns = [episode["r"] for episode in model.ep_info_buffer]
    ends = np.cumsum([episode["l"] for episode in model.ep_info_buffer])
    goals = np.array(returns) > 0
    first = f", the first after {ends[goals.argmax()]} steps" if goals.any() else ""
    print(f"{goals.sum()} of {len(goals)} episodes reached the goal{first}")
    print(f"return of the last 5 episodes: {np.mean(returns[-5:]):.1f}")


if __name__ == "__main__":
    main()
