"""skrl's DQN on CartPole-v1 with libper's prioritized memory, or with skrl's random memory.

Weights enter the loss and TD errors become priorities: the DQN of `per.integrations.skrl` differs from skrl's in
nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import gymnasium
import skrl.agents.torch.dqn
import torch
from per.integrations.skrl import DQN, PrioritizedMemory
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed


class Network(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space, device):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        DeterministicMixin.__init__(self)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        )

    def compute(self, inputs, role):
        return self.layers(inputs["observations"]), {}


def train(library: str, seed: int, timesteps: int, n_envs: int = 2):
    """The agent after training, and the returns of its latest 50 episodes."""
    set_seed(seed)
    # With Gymnasium's default the reset step would be stored as a step from an end to a first observation.
    at_once = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    environments = gymnasium.make_vec("CartPole-v1", n_envs, vectorization_mode="sync", vector_kwargs=at_once)
    recorded = gymnasium.wrappers.vector.RecordEpisodeStatistics(environments, buffer_length=50)
    env = wrap_env(recorded)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    models = {name: Network(**spaces) for name in ("q_network", "target_q_network")}
    size: dict[str, Any] = {"memory_size": 20_000 // n_envs, "num_envs": n_envs, "device": "cpu"}
    if library == "libper":
        memory = PrioritizedMemory(**size, alpha=0.6, beta=0.6, autoreset="same_step", seed=seed)
        kind = DQN
    else:
        memory = RandomMemory(**size, replacement=True)
        kind = skrl.agents.torch.dqn.DQN
    settings = {
        "batch_size": 64,
        "discount_factor": 0.98,
        "learning_rate": 5e-4,
        "learning_starts": 250,
        "random_timesteps": 250,
        "target_update_interval": 100,
        "polyak": 1.0,
        "exploration_scheduler": lambda timestep, _: max(0.05, 1.0 - timestep / 2500),
        "experiment": {"write_interval": 0, "checkpoint_interval": 0, "directory": tempfile.mkdtemp()},
    }
    agent = kind(models=models, memory=memory, cfg=settings, **spaces)
    SequentialTrainer(
        env=env,
        agents=agent,
        cfg={"timesteps": timesteps, "headless": True, "close_environment_at_exit": False},
    ).train()
    return agent, list(recorded.return_queue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", choices=["libper", "skrl"], default="libper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timesteps", type=int, default=15_000)
    parser.add_argument("--short", action="store_true", help="400 steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    agent, returns = train(arguments.memory, arguments.seed, 400 if arguments.short else arguments.timesteps)
    print(
        f"mean return of the latest {len(returns)} episodes with {arguments.memory}: {sum(returns) / len(returns):.1f}"
    )
    if arguments.memory == "libper":
        priorities = agent.memory.tree.priorities()
        print(f"priorities from {priorities[priorities > 0].min():.3f} to {priorities.max():.3f}")


if __name__ == "__main__":
    main()
