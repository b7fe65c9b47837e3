"""The same seed and the same calls give the same epochs from every language: tests/golden/epochs.csv."""

import pathlib

import numpy as np
import per

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "epochs.csv"


def filled(seed, n, draws):
    buffer = per.ReplayBuffer(50, {"observation": per.Field((), "int64")}, seed=seed)
    steps, flags = np.arange(n), np.zeros(n, bool)
    buffer.extend(observation=steps, reward=steps, terminated=flags, truncated=flags, next_observation=steps + 1)
    for _ in range(draws):
        buffer.sample(5)
    return buffer


def test_epochs_are_those_of_the_golden_table():
    lines = GOLDEN.read_text().splitlines()
    assert len(lines) == 12
    for line in lines:
        *given, expected = (part.strip(",") for part in line.split("->"))
        seed, n, draws, epoch = map(int, given[0].split(","))
        if epoch == 0:
            walk = filled(seed, n, draws).epochs(3, batch_size=4)
        ids = []
        while len(ids) < n:
            ids += next(walk).ids.tolist()
        assert ids == [int(word) for word in expected.split(",")]
