"""A batch from RLlib's prioritized episode buffer, and from libper's.

.venvs/rllib/bin/python bench/integrations/rllib_steps.py
"""

from __future__ import annotations

import numpy as np
from interleaved import microseconds, print_table
from per.integrations import rllib as ours
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import replay_buffers

EPISODES, LENGTH = 100, 500


def episode(terminated: bool = True) -> SingleAgentEpisode:
    made = SingleAgentEpisode(
        observations=list(np.ones((LENGTH + 1, 17), np.float32)),
        actions=list(np.ones((LENGTH, 6), np.float32)),
        rewards=[1.0] * LENGTH,
        terminated=terminated,
        len_lookback_buffer=0,
    )
    made.to_numpy()
    return made


def main() -> None:
    buffers = {
        "RLlib": replay_buffers.PrioritizedEpisodeReplayBuffer(capacity=100_000, alpha=0.6),
        "libper": ours.PrioritizedEpisodeReplayBuffer(capacity=100_000, alpha=0.6),
    }
    for buffer in buffers.values():
        buffer.add([episode() for _ in range(EPISODES)])
    rows = {}
    for size in (32, 256):
        errors = np.random.default_rng(1).exponential(size=size)

        def train(buffer, size=size, errors=errors):
            buffer.sample(size, n_step=3, beta=0.4)
            buffer.update_priorities(errors)

        ways = {name: lambda buffer=buffer, train=train: train(buffer) for name, buffer in buffers.items()}
        rows[f"sample {size}, set priorities"] = microseconds(ways, seconds=8, round_seconds=0.002)
    print_table(f"microseconds, {EPISODES * LENGTH:,} steps", rows)


if __name__ == "__main__":
    main()
