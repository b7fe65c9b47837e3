"""The same seed and the same calls give the same goals from every language: tests/golden/hindsight.csv."""

import pathlib

import numpy as np
import per

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "hindsight.csv"


def filled(seed, n, step):
    fields = {"observation": per.Field((), "int64"), "goal": per.Field((), "int64")}
    buffer = per.ReplayBuffer(60, fields, seed=seed)
    steps = np.arange(n)
    buffer.extend(
        observation=steps,
        goal=np.full(n, -1),
        reward=steps,
        terminated=np.zeros(n),
        truncated=steps == n - 1,
        next_observation=steps + 1,
        priorities=(steps == step).astype(np.float32),
    )
    return buffer


def test_goals_are_those_of_the_golden_table():
    lines = GOLDEN.read_text().splitlines()
    assert len(lines) == 6
    for line in lines:
        given, expected = (part.strip(",").split(",") for part in line.split("->"))
        strategy, (seed, n, step, draws, k) = given[1], map(int, given[:1] + given[2:])
        buffer = filled(seed, n, step)
        for _ in range(draws):
            buffer.sample(5)
        hindsight = per.Hindsight(
            "observation", "goal", lambda achieved, goal: achieved == goal, strategy=strategy, k=k
        )
        batch = buffer.sample(16, hindsight=hindsight)
        assert batch.ids.tolist() == [step] * 16
        assert batch.goal.tolist() == [int(word) for word in expected]
        relabelled = batch.goal != -1
        assert batch.reward.tolist() == np.where(relabelled, batch.goal == step + 1, step).tolist()
