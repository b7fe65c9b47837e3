"""RLlib's DQN on CartPole-v1, new API stack, with libper's prioritized episode buffer, or RLlib's own."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig

BUFFERS = {
    "libper": "per.integrations.rllib.PrioritizedEpisodeReplayBuffer",
    "rllib": "PrioritizedEpisodeReplayBuffer",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buffer", choices=list(BUFFERS), default="libper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--short", action="store_true", help="one iteration of 200 steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
    steps = 200 if arguments.short else 1000
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, rollout_fragment_length=4)
        .learners(num_learners=0)
        .reporting(min_sample_timesteps_per_iteration=steps)
        .training(
            replay_buffer_config={"type": BUFFERS[arguments.buffer], "capacity": 50_000, "alpha": 0.6, "beta": 0.4},
            n_step=3,
            lr=1e-3,
            num_steps_sampled_before_learning_starts=100,
        )
        .debugging(seed=arguments.seed)
    )
    algorithm = config.build_algo()
    for iteration in range(1 if arguments.short else arguments.iterations):
        result = algorithm.train()
        print(f"iteration {iteration + 1}: mean return {result['env_runners']['episode_return_mean']:.1f}", flush=True)
    buffer = algorithm.local_replay_buffer
    if arguments.buffer == "libper":
        priorities = [buffer._sum_segment[node] for *_, node in buffer._indices]
        print(f"priorities from {min(priorities):.3f} to {max(priorities):.3f}")
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
