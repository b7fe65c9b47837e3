"""Test cases of other libraries' buffers, in this library's terms; expected values by hand.

From stable-baselines3's n-step buffer, dqn_zoo's replay, Flashbax's trajectory and n-step buffers. Further ones are in
test_replay_windows.py (ends inside a window, windows at the write head), test_replay_priorities.py and
test_tree.py. Each case runs against the library and the naive model.
"""

from __future__ import annotations

import numpy as np
import pytest
from replay_subjects import add, add_episode, make_each

pytestmark = make_each


def extend(buffer, first, length, n_envs=1, offset=1000.0):
    """`length` steps of each environment e: observations first + t + offset * e, rewards 1."""
    steps = np.arange(first, first + length, dtype=np.float32)[:, None] + offset * np.arange(n_envs, dtype=np.float32)
    flags = np.zeros(steps.shape, bool)
    return buffer.extend(
        observation=steps,
        action=steps.astype(np.int64),
        reward=np.ones(steps.shape, np.float32),
        terminated=flags,
        truncated=flags,
        next_observation=steps + 1,
    )


@pytest.mark.parametrize("end", [None, "terminated", "truncated"])
def test_returns_over_one_step_are_the_steps_themselves(make, end):
    buffer = make(20, n_step=1, gamma=0.99)
    for id in add_episode(buffer, 0, 8, end=end, reward=2.5):
        row, plain = buffer.rows()[id], buffer.get(id)
        for name in ("observation", "next_observation", "action", "reward", "discount", "terminated", "truncated"):
            np.testing.assert_array_equal(row[name], plain[name], err_msg=name)


@pytest.mark.parametrize("n_step", [1, 2, 5, 10, 20])
def test_equal_rewards_sum_to_a_multiple_of_the_steps(make, n_step):
    buffer = make(2 * (n_step + 12), n_envs=2, n_step=n_step, gamma=1.0)
    extend(buffer, 0, n_step + 10, n_envs=2)
    rows = buffer.rows()
    assert len(rows) == 2 * 11
    assert {float(row["reward"]) for row in rows.values()} == {float(n_step)}


def test_live_ids_follow_each_other_and_are_the_newest(make):
    buffer = make(10)
    for t in range(31):
        add(buffer, t, t + 1)
        ids = sorted(buffer.rows())
        assert ids == list(range(t + 1 - len(ids), t + 1))
        assert len(ids) == min(t + 1, 9)  # one row holds the observation after the newest


@pytest.mark.parametrize("rows", [4, 5, 6, 7])
def test_run_as_long_as_the_lane_replaces_all_that_is_in_it(make, rows):
    buffer = make(rows)
    for first in (0, rows, 2 * rows):
        extend(buffer, first, rows)
        live = {id: float(row["observation"]) for id, row in buffer.rows().items()}
        assert live == {id: float(id) for id in range(first + 1, first + rows)}


@pytest.mark.parametrize("add_length", [4, 9, 13])
@pytest.mark.parametrize("n_step", [1, 3, 4, 9])
@pytest.mark.parametrize("rows", [13, 16, 26])
def test_no_window_goes_on_across_the_write_head(make, add_length, n_step, rows):
    buffer = make(2 * rows, n_envs=2, n_step=n_step, gamma=1.0)
    for i in range(8):
        extend(buffer, i * add_length, add_length, n_envs=2)
        last = (i + 1) * add_length  # the observation after the newest step
        for id, row in buffer.rows().items():
            observation = float(row["observation"]) - 1000 * (id % 2)
            assert row["n_steps"] == n_step and row["next_observation"] == row["observation"] + n_step
            assert last - rows < observation <= last - n_step


def test_probabilities_are_those_of_what_was_not_overwritten(make):
    """dqn_zoo: priorities 3, 2, 0, 4, of which the first is overwritten; exponent 0.8, a tenth uniform."""
    buffer = make(4, alpha=0.8, uniform_fraction=0.1, normalize_weights="none", scheme="independent")
    for t, p in enumerate((3.0, 2.0, 0.0, 4.0)):
        add(buffer, t, t + 1, priorities=np.array([p], np.float32))
    masses = {1: 2**0.8, 2: 0.0, 3: 4**0.8}
    expected = {id: 0.9 * mass / sum(masses.values()) + 0.1 / 3 for id, mass in masses.items()}
    ids, weights = buffer.draw(400, beta=1.0)  # w = 1 / (N P)
    assert set(ids) == {1, 2, 3}
    for id, weight in zip(ids, weights, strict=True):
        assert 1 / (3 * weight) == pytest.approx(expected[id], rel=1e-5)


def test_setting_priorities_changes_no_number_of_transitions(make):
    buffer = make(12)
    ids = add_episode(buffer, 0, 7, end=None)
    for priorities in ([1.0, 0.0, 3.0], [0.0, 0.0, 0.0], []):
        buffer.update_priorities(ids[: len(priorities)], priorities=priorities)
        assert buffer.stats()["live"] == 7 and sorted(buffer.rows()) == ids
    np.testing.assert_array_equal(buffer.priorities(ids), [0, 0, 0, 1, 1, 1, 1])
