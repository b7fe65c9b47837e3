"""Minari's datasets: batches from disk and from a buffer, import and export.

.venvs/minari/bin/python bench/integrations/minari_steps.py
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time

import minari
import numpy as np
from gymnasium import spaces
from interleaved import microseconds, print_table
from minari.data_collector import EpisodeBuffer
from per.integrations.minari import create_dataset, episodes, new_buffer

EPISODES, LENGTH, BATCH = 200, 1000, 256


def main() -> None:
    os.environ["MINARI_DATASETS_PATH"] = tempfile.mkdtemp()
    random = np.random.default_rng(0)
    given = {
        "observation_space": spaces.Box(-np.inf, np.inf, (17,), np.float64),
        "action_space": spaces.Box(-1, 1, (6,), np.float32),
    }
    buffers = [
        EpisodeBuffer(
            observations=random.normal(size=(LENGTH + 1, 17)),
            actions=random.random((LENGTH, 6), np.float32),
            rewards=random.normal(size=LENGTH),
            terminations=np.zeros(LENGTH, bool),
            truncations=np.arange(LENGTH) == LENGTH - 1,
        )
        for _ in range(EPISODES)
    ]
    dataset = minari.create_dataset_from_buffers("test/in-v0", buffers, **given)
    dataset.set_seed(0)
    buffer = new_buffer(dataset)

    def from_disk() -> dict[str, np.ndarray]:
        """One transition of each of the episodes drawn: Minari draws whole episodes."""
        drawn = [dataset.sample_episodes(1)[0] for _ in range(BATCH)]
        rows = random.integers(LENGTH, size=BATCH)
        pairs = list(zip(drawn, rows, strict=True))
        return {
            "observation": np.stack([episode.observations[row] for episode, row in pairs]),
            "next_observation": np.stack([episode.observations[row + 1] for episode, row in pairs]),
            "action": np.stack([episode.actions[row] for episode, row in pairs]),
            "reward": np.stack([episode.rewards[row] for episode, row in pairs]),
        }

    row = microseconds({"Minari, from disk": from_disk, "libper": lambda: buffer.sample(BATCH)}, round_seconds=0.002)
    print_table("microseconds", {f"a batch of {BATCH} transitions": row})
    print("\n| microseconds a step | |\n|---|---|")
    numbers = itertools.count()
    for name, work in (
        ("read by Minari alone", lambda: list(dataset.iterate_episodes())),
        ("read into a buffer, capacity given", lambda: new_buffer(dataset, EPISODES * (LENGTH + 1))),
        ("read into a buffer, capacity found", lambda: new_buffer(dataset)),
        ("a buffer's episodes", lambda: list(episodes(buffer))),
        ("a buffer written", lambda: create_dataset(f"test/out{next(numbers)}-v0", buffer, **given)),
    ):
        taken = []
        for _ in range(3):
            begin = time.perf_counter()
            work()
            taken.append((time.perf_counter() - begin) / (EPISODES * LENGTH) * 1e6)
        print(f"| {name} | {sorted(taken)[1]:.2f} |")


if __name__ == "__main__":
    main()
