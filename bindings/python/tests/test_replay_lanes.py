"""The effects of a step on its lane: rows, ids, ends, cuts, resets, get and set; expected values by hand.

Each case runs against the library and the naive model, so the values also check the model.
"""

from __future__ import annotations

import numpy as np
import per
from replay_subjects import SCALAR, add, add_episode, check, make_each, refused

pytestmark = make_each


def test_truncation_keeps_its_true_final_observation_without_storing_observations_twice(make):
    buffer = make(16, gamma=0.5)
    ids = add_episode(buffer, 0, 3, end="truncated") + add_episode(buffer, 10, 1, end=None)
    assert ids == [0, 1, 2, 4]  # row 3 is the final observation's
    rows = buffer.rows()
    assert sorted(rows) == ids
    check(rows[1], 1, 2, 1, 0.5, 1, False, False)
    check(rows[2], 2, 3, 1, 0.5, 1, False, True)
    check(rows[4], 10, 11, 1, 0.5, 1, False, False)


def test_manual_reset_in_mid_episode_cuts_the_trajectory(make):
    buffer = make(16, gamma=0.5, n_step=2)
    add(buffer, 0, 1, reward=1.0)
    add(buffer, 1, 2, reward=1.0)
    assert add(buffer, 50, 51, reward=1.0) == 3  # row 2: the waiting observation is now a final one
    rows = buffer.rows()
    assert sorted(rows) == [0, 1]
    check(rows[1], 1, 2, 1.0, 0.5, 1, False, True)
    assert (buffer.stats()["cuts"], buffer.stats()["episodes"]) == (1, 1)


def test_gap_is_an_error_that_changes_nothing_where_that_was_asked_for(make):
    buffer = make(16, on_gap="error")
    add(buffer, 0, 1)
    with refused("InvalidArgument"):
        add(buffer, 50, 51)
    assert add(buffer, 1, 2) == 1
    assert (buffer.stats()["cuts"], buffer.stats()["added"]) == (0, 2)


def test_nan_is_an_error_that_changes_nothing_where_that_was_asked_for(make):
    buffer = make(16, on_nan="error")
    add(buffer, 0, 1)
    for observation, following, reward in ((np.nan, 2, 0.0), (1, np.nan, 0.0), (1, 2, np.nan)):
        with refused("InvalidArgument"):
            add(buffer, observation, following, reward=reward)
    assert add(buffer, 1, np.inf, reward=-np.inf) == 1
    assert (buffer.stats()["cuts"], buffer.stats()["added"]) == (0, 2)


def test_nan_that_is_masked_or_not_known_is_none(make):
    buffer = make(16, on_nan="error")
    add(buffer, 0, 1)
    assert add(buffer, np.nan, np.nan, reward=np.nan, mask=np.array([False])) == -1
    assert add(buffer, 1, np.nan, next_mask=np.array([False])) == 1


def test_gaps_are_seen_by_numbers(make):
    buffer = make(16)
    add(buffer, 0, np.nan)
    assert add(buffer, np.nan, 0.0) == 1
    assert add(buffer, -0.0, 5) == 2
    assert buffer.stats()["cuts"] == 0


def test_rows_at_most_but_one_are_live_and_the_newest_stay(make):
    buffer = make(5)
    live = []
    for observation in range(12):
        add(buffer, observation, observation + 1)
        live.append(sorted(buffer.rows()))
    assert live == [list(range(max(0, newest - 3), newest + 1)) for newest in range(12)]
    assert buffer.rows()[9]["observation"] == 9


def test_full_lane_is_an_error_where_nothing_may_be_overwritten(make):
    buffer = make(6, overwrite=False)
    for observation in range(5):
        add(buffer, observation, observation + 1)
    with refused("Full"):
        add(buffer, 5, 6)
    assert sorted(buffer.rows()) == [0, 1, 2, 3, 4]
    buffer.clear()
    assert add(buffer, 10, 11) >= 5


def test_cut_with_an_observation_waiting_makes_it_the_final_one(make):
    buffer = make(16, gamma=0.5)
    add(buffer, 0, 1)
    buffer.cut()
    buffer.cut()  # no effect without a running episode
    assert add(buffer, 1, 2) == 2  # the same observation, but a separate episode
    check(buffer.rows()[0], 0, 1, 0, 0.5, 1, False, True)
    assert (buffer.stats()["cuts"], buffer.stats()["episodes"]) == (1, 1)


def test_cut_with_nothing_waiting_leaves_the_final_observation_unknown(make):
    buffer = make(16, gamma=0.5, n_step=2)
    for observation in (0, 1, 2):
        add(buffer, observation, reward=1.0)
    assert sorted(buffer.rows()) == [0]
    buffer.cut()
    assert add(buffer, 50) == 3
    rows = buffer.rows()
    assert sorted(rows) == [0, 1]
    check(rows[0], 0, 2, 1.5, 0.25, 2, False, False)
    check(rows[1], 1, 2, 1.0, 0.5, 1, False, False)
    assert buffer.stats()["cuts"] == 1


def test_cut_names_its_environments(make):
    buffer = make(32, n_envs=3)
    both = {"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool), "reward": np.zeros(3, np.float32)}
    zeros = np.zeros(3, np.float32)
    buffer.add(observation=zeros, action=zeros.astype(np.int64), next_observation=zeros, **both)
    buffer.cut([0, 2])
    ids = buffer.add(observation=zeros, action=zeros.astype(np.int64), next_observation=zeros, **both)
    np.testing.assert_array_equal(ids, [6, 4, 8])


def test_step_is_live_from_the_next_one_on_where_its_next_observation_was_left_out(make):
    buffer = make(16)
    add(buffer, 0)
    assert sorted(buffer.rows()) == []
    add(buffer, 1)
    assert sorted(buffer.rows()) == [0]
    check(buffer.rows()[0], 0, 1, 0, 0.99, 1, False, False)


def test_end_needs_its_final_observation_or_word_that_there_is_none(make):
    buffer = make(16)
    for end in ("terminated", "truncated"):
        with refused("InvalidArgument"):
            add(buffer, 0, end=end)
        with refused("InvalidArgument"):
            add(buffer, 0, end=end, next_mask=np.array([True]))
    assert add(buffer, 0, end="terminated", next_mask=np.array([False])) == 0


def test_step_flagged_both_ways_is_terminated(make):
    buffer = make(16)
    add(buffer, 0, 1, end="both")
    check(buffer.rows()[0], 0, 1, 0, 0, 1, True, False)


def test_reset_step_of_the_next_step_mode_is_dropped(make):
    buffer = make(16, autoreset="next_step")
    add(buffer, 0, 1, end="truncated")
    assert add(buffer, 1, 10) == -1
    assert add(buffer, 10, 11) == 2
    assert add(buffer, 11, 12, end="terminated") == 3
    assert add(buffer, 20, 21) == 5  # not the final observation: an episode begins
    assert (buffer.stats()["added"], buffer.stats()["dropped"], buffer.stats()["episodes"]) == (4, 1, 2)


def test_reset_step_is_dropped_once(make):
    buffer = make(16, autoreset="next_step")
    add(buffer, 0, 1, end="truncated")
    assert add(buffer, 1, 1) == -1
    assert add(buffer, 1, 2) == 2


def test_reset_step_is_known_across_clear_and_cut(make):
    for between in ("clear", "cut"):
        buffer = make(16, autoreset="next_step")
        add(buffer, 0, 1, end="truncated")
        getattr(buffer, between)()
        assert add(buffer, 1, 10) == -1
        assert add(buffer, 10, 11) == 2
        assert buffer.stats()["cuts"] == 0


def test_reset_step_is_known_after_clearing_saving_and_loading(make, tmp_path):
    buffer = make(4, autoreset="next_step")
    for observation in range(4):
        add(buffer, observation, observation + 1)
    add(buffer, 4, 5, end="truncated")
    buffer.clear()
    buffer = buffer.reloaded(tmp_path / "replay.per")
    assert add(buffer, 5, 10) == -1
    assert add(buffer, 10, 11) == 6


def test_final_observation_that_begins_an_episode_is_suspect_unless_the_reset_step_is_known(make):
    for mode, step, suspected in (
        ("disabled", 2, 1),
        ("same_step", 2, 1),
        ("next_step", -1, 0),
    ):
        buffer = make(16, autoreset=mode)
        add(buffer, 0, 1, end="truncated", next_mask=np.array([True]))
        assert add(buffer, 1, 10) == step
        add(buffer, 10, 11)
        assert buffer.stats()["suspected_resets"] == suspected
        assert buffer.stats()["dropped"] == 1 - suspected


def test_reset_step_with_a_reward_or_an_end_is_suspect(make):
    for more in ({"reward": 1.0}, {"reward": -1.0}, {"end": "terminated"}, {"end": "truncated"}):
        buffer = make(16, autoreset="next_step")
        add(buffer, 0, 1, end="truncated")
        assert add(buffer, 1, 10, **more) == -1
        assert (buffer.stats()["suspected_resets"], buffer.stats()["dropped"]) == (1, 1)


def test_only_the_first_step_after_an_end_with_a_known_final_observation_is_suspect(make):
    buffer = make(16)
    add(buffer, 0, 1, end="truncated", next_mask=np.array([False]))
    add(buffer, 1, 2)  # what was not known cannot come again
    add(buffer, 2, 3, end="terminated")
    add(buffer, 10, 3)
    add(buffer, 3, 3)
    buffer.cut()
    add(buffer, 3, 4)  # a cut by hand says that what follows is another episode
    add(buffer, 4, -1.0, end="terminated")
    add(buffer, 1.0, 1)  # another observation
    assert buffer.stats()["suspected_resets"] == 0


def test_suspect_is_known_after_clearing_saving_and_loading(make, tmp_path):
    buffer = make(4)
    add(buffer, 0, 1, end="terminated")
    add(buffer, 1, 2)
    add(buffer, 2, 3, end="truncated")
    buffer.clear()
    buffer = buffer.reloaded(tmp_path / "replay.per")
    assert buffer.stats()["suspected_resets"] == 1
    add(buffer, 3, 4)
    assert buffer.stats()["suspected_resets"] == 2


def test_step_after_a_cut_is_no_reset_step(make):
    buffer = make(16, autoreset="next_step")
    add(buffer, 0, 1)
    buffer.cut()
    assert add(buffer, 1, 2) == 2


def test_reset_step_is_not_dropped_where_environments_do_not_reset_by_themselves(make):
    buffer = make(16)
    add(buffer, 0, 1, end="truncated")
    assert add(buffer, 1, 10) == 2


def test_same_step_mode_asks_which_observation_came_with_an_end(make):
    buffer = make(16, autoreset="same_step")
    add(buffer, 0, 1)
    with refused("InvalidArgument"):
        add(buffer, 1, 50, end="truncated")
    add(buffer, 1, 2, end="truncated", next_mask=np.array([True]))
    add(buffer, 50, 51, end="truncated", next_mask=np.array([False]))
    rows = buffer.rows()
    assert sorted(rows) == [0, 1]
    check(rows[1], 1, 2, 0, 0.99, 1, False, True)


def test_masked_step_adds_nothing_and_its_trajectory_goes_on(make):
    buffer = make(16, n_envs=2)
    flags = np.zeros(2, bool)

    def step(observation, mask):
        observation = np.array(observation, np.float32)
        return list(
            buffer.add(
                observation=observation,
                next_observation=observation + 1,
                action=np.zeros(2, np.int64),
                reward=np.zeros(2, np.float32),
                terminated=flags,
                truncated=flags,
                mask=np.array(mask),
            )
        )

    assert step([0, 10], [True, True]) == [0, 1]
    assert step([1, np.nan], [True, False]) == [2, -1]
    assert step([2, 11], [True, True]) == [4, 3]
    assert buffer.stats()["cuts"] == 0
    assert buffer.rows()[1]["next_observation"] == 11


def test_environments_may_come_in_any_order_and_by_some(make):
    buffer = make(32, n_envs=3)

    def step(env_ids, observation):
        n = len(env_ids)
        observation = np.array(observation, np.float32)
        return list(
            buffer.add(
                observation=observation,
                next_observation=observation + 1,
                action=np.arange(n),
                reward=np.zeros(n, np.float32),
                terminated=np.zeros(n, bool),
                truncated=np.zeros(n, bool),
                env_ids=env_ids,
            )
        )

    assert step([2, 0], [20, 0]) == [2, 0]
    assert step([1], [10]) == [1]
    assert step([0, 2, 1], [1, 21, 11]) == [3, 5, 4]
    assert buffer.stats()["cuts"] == 0
    for bad in ([0, 0], [3], [-1]):
        with refused("InvalidArgument"):
            step(bad, [0] * len(bad))


def test_clear_empties_the_lanes_and_keeps_the_rest(make):
    buffer = make(16, beta_steps=10)
    ids = add_episode(buffer, 0, 3, end=None)
    buffer.update_priorities(ids, priorities=[4, 1, 1])
    buffer.draw(2)
    buffer.clear()
    with refused("Empty"):
        buffer.draw(2)
    buffer.update_priorities(ids, priorities=[9, 9, 9])
    new = add(buffer, 50, 51)
    assert new >= 3
    assert sorted(buffer.rows()) == [new]
    stats = buffer.stats()
    assert (stats["cuts"], stats["episodes"], stats["added"], stats["stale_updates"]) == (0, 0, 4, 3)
    assert (stats["max_priority"], stats["beta_step"]) == (4, 1)


def test_stored_next_observations_need_no_order_and_every_row(make):
    buffer = make(4, store_next_observation=True)
    for observation in (0, 10, 5, 7):
        add(buffer, observation, observation + 100)
    rows = buffer.rows()
    assert sorted(rows) == [0, 1, 2, 3]
    check(rows[1], 10, 110, 0, 0.99, 1, False, False)
    assert add(buffer, 8, 108, end="truncated") == 4
    assert add(buffer, 9, 109) == 5
    assert sorted(buffer.rows()) == [2, 3, 4, 5]
    check(buffer.rows()[4], 8, 108, 0, 0.99, 1, False, True)
    assert buffer.stats()["cuts"] == 0
    with refused("InvalidArgument"):
        add(buffer, 3)


def test_extend_does_what_single_adds_do(make):
    options = {"n_envs": 2, "gamma": 0.5, "n_step": 2}
    observation = np.arange(14, dtype=np.float32).reshape(7, 2)
    following = observation + 2
    end = np.zeros((7, 2), bool)
    end[2, 0] = end[4, 1] = True
    mask = np.ones((7, 2), bool)
    mask[5, 0] = False
    steps = {
        "observation": observation,
        "next_observation": following,
        "action": observation.astype(np.int64),
        "reward": observation,
        "terminated": end,
        "truncated": np.zeros((7, 2), bool),
        "mask": mask,
    }
    whole, single = make(12, **options), make(12, **options)
    ids = whole.extend(**steps)
    assert ids.shape == (7, 2)
    np.testing.assert_array_equal(
        ids, np.stack([single.add(**{name: array[k] for name, array in steps.items()}) for k in range(7)])
    )
    assert whole.rows().keys() == single.rows().keys()
    assert whole.stats() == single.stats() | {name: whole.stats()[name] for name in ("samples", "beta_step")}


def test_extend_of_more_steps_than_rows_keeps_the_newest(make):
    buffer = make(5)
    observation = np.arange(12, dtype=np.float32)[:, None]
    ids = buffer.extend(
        observation=observation,
        next_observation=observation + 1,
        action=observation.astype(np.int64),
        reward=observation,
        terminated=np.zeros((12, 1), bool),
        truncated=np.zeros((12, 1), bool),
    )
    np.testing.assert_array_equal(ids[:, 0], np.arange(12))
    assert sorted(buffer.rows()) == [8, 9, 10, 11]


def test_error_in_a_later_step_adds_none_of_them(make):
    buffer = make(16, on_gap="error")
    observation = np.array([[0], [1], [50]], np.float32)
    with refused("InvalidArgument"):
        buffer.extend(
            observation=observation,
            next_observation=observation + 1,
            action=observation.astype(np.int64),
            reward=observation,
            terminated=np.zeros((3, 1), bool),
            truncated=np.zeros((3, 1), bool),
        )
    assert buffer.stats()["added"] == 0
    assert add(buffer, 0, 1) == 0


def test_get_gives_plain_rows(make):
    buffer = make(16, n_step=3, gamma=0.5)
    add(buffer, 0, 1, reward=1.0)
    add(buffer, 1, 2, reward=2.0, end="truncated")
    add(buffer, 5, 6, reward=3.0, end="terminated", next_mask=np.array([False]))
    check(buffer.get(0), 0, 1, 1, 0.5, 1, False, False)
    check(buffer.get(1), 1, 2, 2, 0.5, 1, False, True)
    check(buffer.get(3), 5, 5, 3, 0, 1, True, False)
    for bad in (2, 4, 17):  # a final observation's, not issued yet, far from it
        with refused("InvalidArgument"):
            buffer.get(bad)


def test_get_of_an_overwritten_row_is_an_error(make):
    buffer = make(4)
    add_episode(buffer, 0, 4, end=None)
    with refused("InvalidArgument"):
        buffer.get(0)
    check(buffer.get(1), 1, 2, 1, 0.99, 1, False, False)


def test_set_writes_fields_back_and_counts_what_came_too_late(make):
    fields = {**SCALAR, "advantage": per.Field((2,), "float64")}
    buffer = make(4, fields)
    for observation in range(5):
        add(buffer, observation, observation + 1, advantage=np.zeros((1, 2)))
    values = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float64)
    buffer.set([0, 3, -1, 3], advantage=values)
    np.testing.assert_array_equal(buffer.get(3)["advantage"], [7, 8])
    np.testing.assert_array_equal(buffer.get(2)["advantage"], [0, 0])
    assert buffer.get(3)["action"] == 3
    assert buffer.stats()["stale_updates"] == 2
    for wrong in ({"ids": [9], "advantage": values[:1]}, {"ids": [3], "observation": np.zeros(1, np.float32)}):
        with refused("InvalidArgument"):
            buffer.set(**wrong)
