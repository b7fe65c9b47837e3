"""A step of prioritized replay in tianshou: its own buffers, and libper's.

    .venvs/tianshou/bin/python bench/integrations/tianshou_steps.py

A training step draws a batch of 64 and sets its priorities; a step of environments is added by the vector buffer of 8.
"""

from __future__ import annotations

import numpy as np
from interleaved import microseconds, print_table
from per.integrations import tianshou as ours
from tianshou import data
from tianshou.data import Batch

ROWS = 1_000_000
N_ENVS = 8


def step(n_envs: int) -> Batch:
    done = np.zeros(n_envs, bool)
    observations = np.ones((n_envs, 17), np.float32)
    actions = np.zeros((n_envs, 6), np.float32)
    return Batch(
        obs=observations,
        act=actions,
        rew=np.ones(n_envs),
        terminated=done,
        truncated=done,
        done=done,
        obs_next=observations,
    )


def full(buffer: data.PrioritizedReplayBuffer) -> data.PrioritizedReplayBuffer:
    """A buffer with a million rows, without the minutes that adding them would take."""
    buffer.add(step(N_ENVS))
    for lane in buffer.buffers:
        lane._size = lane.maxsize
    buffer._lengths[:] = ROWS // N_ENVS
    for key in ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next"):
        buffer._meta[key][:] = 1  # so that the pages are there
    buffer.weight[np.arange(ROWS)] = np.random.default_rng(0).exponential(size=ROWS)
    return buffer


def main() -> None:
    buffers = {
        "tianshou": full(data.PrioritizedVectorReplayBuffer(ROWS, N_ENVS, alpha=0.6, beta=0.4)),
        "libper": full(ours.PrioritizedVectorReplayBuffer(ROWS, N_ENVS, alpha=0.6, beta=0.4)),
    }
    rows = {}
    for size in (64, 256, 1024):
        errors = np.random.default_rng(1).normal(size=size).astype(np.float32)

        def draw(buffer, size=size):
            return buffer.sample_indices(size)

        def train(buffer, size=size, errors=errors):
            _, indices = buffer.sample(size)
            buffer.update_weight(indices, errors)

        rows[f"draw {size} indices"] = {name: lambda b=b, f=draw: f(b) for name, b in buffers.items()}
        rows[f"sample {size}, set priorities"] = {name: lambda b=b, f=train: f(b) for name, b in buffers.items()}
    batch = step(N_ENVS)
    rows[f"add a step of {N_ENVS}"] = {name: lambda b=b: b.add(batch) for name, b in buffers.items()}
    taken = {name: microseconds(ways, seconds=5, round_seconds=0.002) for name, ways in rows.items()}
    print_table(f"microseconds, {ROWS:,} rows", taken)


if __name__ == "__main__":
    main()
