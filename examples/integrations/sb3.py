"""DQN of stable-baselines3 on CartPole, with prioritized replay: one line differs from a plain program.

    .venvs/sb3/bin/python examples/integrations/sb3.py [--short] [--seed S] [--uniform]

--uniform uses the DQN and the replay buffer of stable-baselines3.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import gymnasium
import stable_baselines3
import torch
from per.integrations import sb3
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.monitor import Monitor


class Progress(BaseCallback):
    """Prints the return of each evaluation."""

    def _on_step(self) -> bool:
        print(f"step {self.num_timesteps}: return {self.parent.last_mean_reward:.0f}", file=sys.stderr)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="2,000 steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--uniform", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    kind = stable_baselines3.DQN if arguments.uniform else sb3.DQN
    model = kind(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        train_freq=256,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        n_steps=3,
        seed=arguments.seed,
        device="cpu",
    )
    evaluation = EvalCallback(
        Monitor(gymnasium.make("CartPole-v1")),
        callback_on_new_best=StopTrainingOnRewardThreshold(300, verbose=0),
        callback_after_eval=Progress(),
        eval_freq=1024,
        n_eval_episodes=10,
        verbose=0,
    )
    model.learn(2_000 if arguments.short else 50_000, callback=evaluation)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "replay_buffer")
        model.save_replay_buffer(path)
        model.load_replay_buffer(path)
    print(f"{model.num_timesteps} steps: return {evaluation.best_mean_reward:.0f}")
    if not arguments.uniform:
        statistics = model.replay_buffer.replay.stats()
        print(f"{statistics.live} transitions, largest priority {statistics.max_priority:.2f}")


if __name__ == "__main__":
    main()
