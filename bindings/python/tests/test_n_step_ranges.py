"""n_step=(least, most): each transition's n is that of tests/golden/n_steps.csv."""

import pathlib

import numpy as np
import per
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "n_steps.csv"
FIELDS = {"observation": per.Field((), "float32")}


def filled(rows=80, **options):
    buffer = per.ReplayBuffer(rows + 100, FIELDS, **{"gamma": 0.5} | options)
    steps = np.arange(rows)
    buffer.extend(
        observation=steps,
        reward=steps % 5,
        terminated=np.zeros(rows),
        truncated=np.zeros(rows),
        next_observation=steps + 1,
    )
    return buffer


def test_n_steps_are_those_of_the_golden_table():
    lines = GOLDEN.read_text().splitlines()
    assert len(lines) == 6
    for line in lines:
        given, expected = (part.strip(",").split(",") for part in line.split("->"))
        seed, least, most, draws = map(int, given)
        buffer = filled(rows=120, seed=seed, n_step=most)
        for _ in range(draws):
            buffer.sample(5)
        assert buffer.sample(16, n_step=(least, most)).n_steps.tolist() == [int(word) for word in expected]


def test_windows_by_id_take_a_number_from_the_draws_with_a_range_only():
    buffer, ids = filled(n_step=5, seed=2), np.arange(32)
    fixed = buffer.get_windows(ids)
    assert buffer.stats().samples == 0 and (fixed.n_steps == 5).all()
    first, second = (buffer.get_windows(ids, n_step=(1, 5)).n_steps for _ in range(2))
    assert buffer.stats().samples == 2 and (first != second).any()
    assert set(first) == set(second) == {1, 2, 3, 4, 5}


def test_hindsight_draws_what_sample_would_but_for_its_goals():
    fields = FIELDS | {"goal": per.Field(())}
    buffer, twin = (per.ReplayBuffer(100, fields, n_step=3, seed=4) for _ in range(2))
    for each in (buffer, twin):
        each.extend(observation=np.arange(40), goal=np.full(40, -1), reward=np.zeros(40), terminated=np.zeros(40),
                    truncated=np.zeros(40), next_observation=np.arange(40) + 1)  # fmt: skip
    her = per.Hindsight("observation", "goal", lambda achieved, goal: np.ones(len(goal)), k=np.inf)
    batch, expected = buffer.sample(32, n_step=(1, 3), hindsight=her), twin.sample(32, n_step=(1, 3))
    np.testing.assert_array_equal(batch.n_steps, expected.n_steps)
    np.testing.assert_array_equal(batch.next_observation, expected.next_observation)
    np.testing.assert_allclose(batch.reward, (1 - 0.99**batch.n_steps) / (1 - 0.99), rtol=1e-5)


@pytest.mark.parametrize(
    ("n_step", "message"),
    [
        ((3, 2), r"n_step is \(3, 2\); allowed"),
        ((1, 6), r"n_step is 6: allowed are 1 \.\. 5"),
        ((0, 3), r"n_step is \(0, 3\); allowed: \(least, most\), from 1 to the buffer's n_step"),
        ((2, 0), r"n_step is \(2, 0\)"),
        ((1, 2, 3), r"n_step is \(1, 2, 3\)"),
        ((-1, 3), r"n_step\[0\] is -1"),
        ((1.5, 3), r"n_step\[0\] is 1\.5, a float; allowed: an int"),
    ],
)
def test_range_that_is_none_is_refused(n_step, message):
    buffer = filled(n_step=5)
    for call in (buffer.sample, buffer.loader):
        with pytest.raises(per.InvalidArgument, match=f"^{message}"):
            call(8, n_step=n_step)
    with pytest.raises(per.InvalidArgument, match=f"^{message}"):
        buffer.get_windows([0], n_step=n_step)
    assert buffer.stats().samples == 0
