"""n-step returns and frame stacks: which windows are formed, and from which steps; expected values by hand.

Each case runs against the library and the naive model, so the values also check the model.
"""

from __future__ import annotations

import numpy as np
import per
import pytest
from replay_subjects import add, add_episode, check, make_each, refused

pytestmark = make_each


def test_return_over_n_steps_ends_with_the_episode_and_its_discount_with_the_number_of_steps(make):
    buffer = make(32, n_step=3, gamma=0.5)
    for first, end in ((0, "terminated"), (10, "truncated")):
        for k, reward in enumerate((1.0, 2.0, 4.0)):
            add(buffer, first + k, first + k + 1, reward=reward, end=end if k == 2 else None)
    rows = buffer.rows()
    assert sorted(rows) == [0, 1, 2, 4, 5, 6]
    check(rows[0], 0, 3, 1 + 2 / 2 + 4 / 4, 0, 3, True, False)
    check(rows[1], 1, 3, 2 + 4 / 2, 0, 2, True, False)
    check(rows[2], 2, 3, 4, 0, 1, True, False)
    check(rows[4], 10, 13, 3, 0.125, 3, False, True)
    check(rows[5], 11, 13, 4, 0.25, 2, False, True)
    check(rows[6], 12, 13, 4, 0.5, 1, False, True)


def test_window_that_reaches_the_write_head_waits_and_does_not_count_as_truncated(make):
    buffer = make(32, n_step=3)
    live = []
    for observation in range(4):
        add(buffer, observation, observation + 1)
        live.append(sorted(buffer.rows()))
    add(buffer, 4, 5, end="truncated")
    live.append(sorted(buffer.rows()))
    assert live == [[], [], [0], [0, 1], [0, 1, 2, 3, 4]]


def test_final_observation_that_a_simulator_lost_shortens_the_windows_of_a_truncated_end(make):
    buffer = make(32, n_step=3, gamma=0.5)
    for observation in range(4):
        add(buffer, observation, observation + 1, reward=1.0)
    ended = add(buffer, 4, 99, reward=1.0, end="truncated", next_mask=np.array([False]))
    first = add(buffer, 20, 21)
    rows = buffer.rows()
    assert (ended, first) == (4, 5)  # no row for a final observation
    assert sorted(rows) == [0, 1, 2, 3]
    check(rows[1], 1, 4, 1.75, 0.125, 3, False, False)
    check(rows[2], 2, 4, 1.5, 0.25, 2, False, False)
    check(rows[3], 3, 4, 1.0, 0.5, 1, False, False)


def test_terminated_end_without_final_observation_repeats_its_own(make):
    buffer = make(32, n_step=2, gamma=0.5)
    add(buffer, 0, 1, reward=1.0)
    ended = add(buffer, 1, 99, reward=1.0, end="terminated", next_mask=np.array([False]))
    assert add(buffer, 20, 21) == ended + 1
    rows = buffer.rows()
    assert sorted(rows) == [0, 1]
    check(rows[0], 0, 1, 1.5, 0, 2, True, False)
    check(rows[1], 1, 1, 1.0, 0, 1, True, False)


@pytest.mark.parametrize("rows", [5, 6, 7, 13])
@pytest.mark.parametrize("n_step", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 4, 9])
def test_no_window_joins_steps_from_both_sides_of_the_write_head(make, rows, n_step, length):
    buffer = make(2 * rows, n_envs=2, n_step=n_step, gamma=1.0)
    time = 0
    for _ in range(8):
        times = np.arange(time, time + length, dtype=np.float32)[:, None] + np.array([0, 1000], np.float32)
        flags = np.zeros((length, 2), bool)
        buffer.extend(
            observation=times,
            next_observation=times + 1,
            action=times.astype(np.int64),
            reward=np.ones((length, 2), np.float32),
            terminated=flags,
            truncated=flags,
        )
        time += length
        held = buffer.rows()
        assert len(held) == 2 * min(max(0, time - n_step + 1), rows - n_step)
        for id, row in held.items():
            assert row["observation"] == id // 2 + 1000 * (id % 2)
            assert row["next_observation"] == row["observation"] + n_step == row["observation"] + row["reward"]


@pytest.mark.parametrize("n_step, stack", [(1, 1), (3, 1), (1, 4), (3, 4)])
def test_full_lane_has_live_all_but_its_head_its_ends_and_the_margins_of_windows(make, n_step, stack):
    rows, random = 16, np.random.default_rng(n_step + stack)
    buffer = make(rows, n_step=n_step, frame_stack=stack)
    ends, least = [], rows
    for step in range(200):
        end = (None, "terminated", "truncated")[random.choice(3, p=(0.8, 0.1, 0.1))]
        known = end is None or random.random() < 0.5
        newest = add(buffer, 2 * step, 2 * step + 2, end=end, next_mask=np.array([known]))
        ends += [newest] if end else []
        held = sum(row > newest - rows for row in ends)
        if newest >= rows:
            least = min(least, buffer.stats()["live"] - (rows - 1 - held - (n_step - 1) - (stack - 1)))
    assert least == 0


@pytest.mark.parametrize("n_step, stack", [(1, 1), (3, 1), (1, 3), (3, 4)])
def test_lane_needs_rows_for_its_window(make, n_step, stack):
    make(n_step + stack + 1, n_step=n_step, frame_stack=stack)
    with refused("InvalidArgument"):
        make(n_step + stack, n_step=n_step, frame_stack=stack)


def test_windows_over_stored_next_observations_end_at_flags_and_cuts(make):
    buffer = make(16, store_next_observation=True, n_step=2, gamma=0.5)
    add(buffer, 0, 1, reward=1.0)
    add(buffer, 1, 2, reward=1.0, end="truncated")
    add(buffer, 10, 11, reward=1.0)
    buffer.cut()
    add(buffer, 20, 21, reward=1.0)
    rows = buffer.rows()
    assert sorted(rows) == [0, 1, 2]
    check(rows[0], 0, 2, 1.5, 0.25, 2, False, True)
    check(rows[1], 1, 2, 1.0, 0.5, 1, False, True)
    check(rows[2], 10, 11, 1.0, 0.5, 1, False, True)


def test_stacked_frames_repeat_the_first_of_the_episode(make):
    buffer = make(16, frame_stack=3)
    add_episode(buffer, 0, 4, end="terminated")
    add_episode(buffer, 10, 1, end="truncated")
    rows = buffer.rows()
    stacks = {id: (list(row["observation"]), list(row["next_observation"])) for id, row in rows.items()}
    assert stacks == {
        0: ([0, 0, 0], [0, 0, 1]),
        1: ([0, 0, 1], [0, 1, 2]),
        2: ([0, 1, 2], [1, 2, 3]),
        3: ([1, 2, 3], [2, 3, 4]),
        5: ([10, 10, 10], [10, 10, 11]),
    }
    assert rows[2]["action"] == 2


def test_row_whose_older_frames_are_overwritten_is_not_live(make):
    buffer = make(6, frame_stack=3)
    add_episode(buffer, 0, 8, end=None)
    assert sorted(buffer.rows()) == [5, 6, 7]  # rows 3 and 4 are there, but not rows 1 and 2
    buffer.update_priorities([4], priorities=[9])
    assert buffer.stats()["stale_updates"] == 1


def test_row_whose_episode_starts_inside_its_stack_needs_no_older_frames(make):
    buffer = make(6, frame_stack=3)
    add_episode(buffer, 0, 1)
    add_episode(buffer, 10, 4, end=None)
    assert sorted(buffer.rows()) == [2, 3, 4, 5]
    add(buffer, 14, 15)
    assert sorted(buffer.rows()) == [2, 3, 4, 5, 6]
    add(buffer, 15, 16)  # overwrites row 2, where the episode starts
    assert sorted(buffer.rows()) == [5, 6, 7]


def test_add_takes_stacks_of_frames_by_their_newest(make):
    fields = {"observation": per.Field((2,), "float32")}
    single, stacked = make(16, fields, frame_stack=3), make(16, fields, frame_stack=3)
    flags = {"reward": np.zeros(1, np.float32), "terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool)}
    for o in range(4):
        frame = np.array([[o, o + 50]], np.float32)
        older = np.full((1, 2, 2), 99, np.float32)
        single.add(observation=frame, next_observation=frame + 1, **flags)
        stacked.add(
            observation=np.concatenate([older, frame[:, None]], axis=1),
            next_observation=np.concatenate([older, frame[:, None] + 1], axis=1),
            **flags,
        )
    rows = single.rows()
    for id, row in stacked.rows().items():
        np.testing.assert_array_equal(row["observation"], rows[id]["observation"])
        np.testing.assert_array_equal(row["next_observation"], rows[id]["next_observation"])
    np.testing.assert_array_equal(rows[1]["observation"], [[0, 50], [0, 50], [1, 51]])


def test_stack_is_a_matter_of_each_field(make):
    fields = {
        "observation": per.Field((), "float32"),
        "goal": per.Field((), "int16", role="observation", stack=1),
        "action": per.Field((), "int64", stack=2),
    }
    buffer = make(16, fields, frame_stack=2)
    for o in range(3):
        add(buffer, o, o + 1, goal=np.array([o + 50], np.int16), next_goal=np.array([o + 51], np.int16))
    row = buffer.rows()[2]
    assert list(row["observation"]) == [1, 2] and list(row["next_observation"]) == [2, 3]
    assert row["goal"] == 52 and row["next_goal"] == 53
    assert list(row["action"]) == [1, 2]


@pytest.mark.parametrize("n_step", [3, 5])
@pytest.mark.parametrize("end_at", [1, 2])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_early_end_stops_the_sum_of_rewards(make, n_step, end_at, end):
    buffer = make(20, n_step=n_step, gamma=0.99)
    add_episode(buffer, 0, end_at + 1, end=end)
    add_episode(buffer, 10, 3, end="terminated")
    expected = {1: 1 + 0.99, 2: 1 + 0.99 + 0.99**2}[end_at]
    discount = 0 if end == "terminated" else 0.99 ** (end_at + 1)
    check(buffer.rows()[0], 0, end_at + 1, expected, discount, end_at + 1, end == "terminated", end == "truncated")


@pytest.mark.parametrize("n_step", [3, 5])
def test_whole_window_sums_n_rewards(make, n_step):
    buffer = make(20, n_step=n_step, gamma=0.99)
    add_episode(buffer, 0, 10, end=None)
    expected = sum(0.99**k for k in range(n_step))
    check(buffer.rows()[3], 3, 3 + n_step, expected, 0.99**n_step, n_step, False, False)


def test_episode_shorter_than_the_window_gives_all_its_steps_at_its_end(make):
    buffer = make(20, n_step=4, gamma=1.0)
    counts = []
    for o in range(3):
        add(buffer, o, o + 1, reward=1.0, end="truncated" if o == 2 else None)
        counts.append(buffer.stats()["live"])
    assert counts == [0, 0, 3]
    assert [buffer.rows()[id]["next_observation"] for id in range(3)] == [3, 3, 3]
    assert [buffer.rows()[id]["n_steps"] for id in range(3)] == [3, 2, 1]


def test_transitions_appear_one_by_one_and_all_that_are_left_at_the_end(make):
    buffer = make(30, n_step=3)
    live = []
    for o in range(6):
        add(buffer, o, o + 1, end="terminated" if o == 5 else None)
        live.append(buffer.stats()["live"])
    for o in range(10, 15):
        add(buffer, o, o + 1)
        live.append(buffer.stats()["live"])
    add(buffer, 30, 31)  # reset without a mark: the rest of the episode stays live, too
    live.append(buffer.stats()["live"])
    assert np.diff(live, prepend=0).tolist() == [0, 0, 1, 1, 1, 3, 0, 0, 1, 1, 1, 2]


def test_gamma_and_n_step_may_change_in_a_running_buffer(make):
    buffer = make(20, n_step=2, gamma=0.5)
    add_episode(buffer, 0, 3, end=None)
    assert sorted(buffer.rows()) == [0, 1]
    buffer.set_gamma(1.0)
    check(buffer.rows()[0], 0, 2, 2, 1, 2, False, False)
    buffer.set_n_step(3)
    assert sorted(buffer.rows()) == [0]
    check(buffer.rows()[0], 0, 3, 3, 1, 3, False, False)
    buffer.set_n_step(1)
    assert sorted(buffer.rows()) == [0, 1, 2]


def test_smaller_n_step_may_be_asked_for_with_a_batch(make):
    buffer = make(20, n_step=3, gamma=0.5)
    add_episode(buffer, 0, 3, end=None)
    check(buffer.rows(n_step=1)[0], 0, 1, 1, 0.5, 1, False, False)
    check(buffer.rows(n_step=2)[0], 0, 2, 1.5, 0.25, 2, False, False)
    with refused("InvalidArgument"):
        buffer.draw(1, n_step=4)
