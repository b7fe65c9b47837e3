"""Priorities, their maximum, weights and the schedule of beta; expected values by hand.

Each case runs against the library and the naive model, so the values also check the model.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuda_switch import IS_CUDA
from replay_subjects import LibraryReplay, add, add_episode, make_each, refused

pytestmark = make_each


def test_late_update_of_an_overwritten_transition_touches_nothing(make):
    buffer = make(4, alpha=1.0)
    old = add(buffer, 0, 1)
    for observation in range(1, 6):
        add(buffer, observation, observation + 1)
    before = buffer.priorities([3, 4, 5])
    buffer.update_priorities([old, 5], priorities=[77.0, 2.0])
    np.testing.assert_array_equal(before, [1, 1, 1])
    np.testing.assert_array_equal(buffer.priorities([3, 4, 5]), [1, 1, 2])
    assert buffer.stats()["stale_updates"] == 1
    assert buffer.stats()["max_priority"] == 2


def test_largest_priority_now_forgets_an_outlier_and_the_largest_ever_does_not(make):
    for kind, expected in (("ever", 50), ("now", 3)):
        buffer = make(8, max_priority=kind)
        add_episode(buffer, 0, 3, end=None)
        buffer.update_priorities([0, 1, 2], priorities=[1, 50, 2])
        buffer.update_priorities([1], priorities=[3])
        new = add(buffer, 3, 4)
        assert buffer.priorities([new]) == [expected]
        assert buffer.stats()["max_priority"] == expected


def test_largest_priority_now_goes_with_the_transition_that_had_it(make):
    buffer = make(4, max_priority="now")
    add_episode(buffer, 0, 3, end=None)
    buffer.update_priorities([0, 1, 2], priorities=[50, 2, 3])
    took = add(buffer, 3, 4)  # while it overwrites row 0
    assert buffer.priorities([took]) == [50]
    buffer.update_priorities([took], priorities=[1])
    assert buffer.stats()["max_priority"] == 3
    add(buffer, 4, 5, priorities=np.array([0.5], np.float32))
    add(buffer, 5, 6, priorities=np.array([0.5], np.float32))
    assert buffer.stats()["max_priority"] == 1


def takes_the_others(buffer):
    """Whether invalid entries are skipped and reported, as CUDA does where the CPU refuses the call."""
    return IS_CUDA and isinstance(buffer, LibraryReplay)


def test_nan_is_refused_and_changes_nothing(make):
    buffer = make(8)
    ids = add_episode(buffer, 0, 3, end=None)
    for bad in (np.nan, np.inf, -np.inf):
        with refused("InvalidArgument"):
            buffer.update_priorities(ids, td_errors=[5, 6, bad])
    for bad in (np.nan, np.inf, -1.0):
        with refused("InvalidArgument"):
            buffer.update_priorities(ids, priorities=[5, 6, bad])
    skips = takes_the_others(buffer)
    np.testing.assert_array_equal(buffer.priorities(ids), [5, 6, 1] if skips else [1, 1, 1])
    assert buffer.stats()["rejected_updates"] == (6 if skips else 0)


def test_nan_is_skipped_and_counted_where_that_was_asked_for(make):
    buffer = make(8, on_invalid="skip", epsilon=0.0)
    ids = add_episode(buffer, 0, 3, end=None)
    buffer.update_priorities(ids, td_errors=[-5, np.nan, np.inf])
    np.testing.assert_array_equal(buffer.priorities(ids), [5, 1, 1])
    assert buffer.stats()["rejected_updates"] == 2


def test_weights_are_divided_by_the_maximum_of_the_batch_or_of_the_buffer_or_by_nothing(make):
    # P = (1/8, 7/8) and one live transition of priority 0: N = 3. With beta = 1, w = 1 / (N P).
    raw = {0: 8 / 3, 1: 8 / 21}
    for kind in ("batch_max", "buffer_max", "none"):
        buffer = make(8, alpha=1.0, beta=1.0, normalize_weights=kind)
        ids = add_episode(buffer, 0, 3, end=None)
        buffer.update_priorities(ids, priorities=[1, 7, 0])
        for batch_size in (1, 2, 64):
            drawn, weights = buffer.draw(batch_size)
            divisor = {"batch_max": max(raw[id] for id in drawn), "buffer_max": raw[0], "none": 1}[kind]
            np.testing.assert_allclose(weights, [raw[id] / divisor for id in drawn], rtol=1e-6)


def test_beta_goes_linearly_to_its_end_by_calls_of_sample(make):
    buffer = make(8, beta=0.5, beta_final=1.0, beta_steps=4)
    with refused("Empty"):
        buffer.draw(1)
    add_episode(buffer, 0, 3, end=None)
    betas = []
    for _ in range(6):
        betas.append(buffer.stats()["beta"])
        buffer.draw(2)
        buffer.draw(2, beta=0.9)
    assert betas == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 1.0])
    assert (buffer.stats()["samples"], buffer.stats()["beta_step"]) == (12, 6)


def test_setting_beta_stops_its_schedule(make):
    buffer = make(8, beta=0.5, beta_steps=4)
    add_episode(buffer, 0, 3, end=None)
    buffer.draw(2)
    buffer.set_beta(0.7)
    buffer.draw(2)
    assert buffer.stats()["beta"] == pytest.approx(0.7)


def test_given_priority_raises_the_maximum_for_later_calls_only(make):
    buffer = make(16, epsilon=0.5)
    waiting = add(buffer, 0)
    with_priority = add(buffer, 1, 2, priorities=np.array([7.0], np.float32))
    later = add(buffer, 2, 3)
    by_error = add(buffer, 3, 4, td_errors=np.array([-2.0], np.float32))
    np.testing.assert_array_equal(buffer.priorities([waiting, with_priority, later, by_error]), [1, 7, 7, 2.5])


def test_priority_set_before_a_transition_is_live_is_remembered(make):
    buffer = make(16, n_step=3)
    given = add(buffer, 0, 1, priorities=np.array([0.25], np.float32))
    updated = add(buffer, 1, 2)
    buffer.update_priorities([updated], priorities=[0.5])
    np.testing.assert_array_equal(buffer.priorities([given, updated]), [0, 0])
    for observation in (2, 3):
        add(buffer, observation, observation + 1)
    np.testing.assert_array_equal(buffer.priorities([given, updated]), [0.25, 0.5])
    assert buffer.stats()["stale_updates"] == 0


def test_updates_of_what_can_never_be_drawn_are_counted_and_raise_no_maximum(make):
    buffer = make(16)
    add(buffer, 0, 1, end="truncated")
    lost = add(buffer, 5, 6, end="truncated", next_mask=np.array([False]))
    final = 1
    buffer.update_priorities([final, lost, -1, -1], priorities=[9, 9, 9, 9])
    assert buffer.stats()["stale_updates"] == 4
    assert buffer.stats()["max_priority"] == 1
    assert sorted(buffer.rows()) == [0]


def test_ids_that_were_never_issued_are_an_error_and_change_nothing(make):
    buffer = make(16)
    add(buffer, 0, 1)  # the observation 1 waits in row 1, whose id nobody has
    for bad in (1, 2, 10**12, -2):
        with refused("InvalidArgument"):
            buffer.update_priorities([0, bad], priorities=[5, 5])
        with refused("InvalidArgument"):
            buffer.priorities([bad])
    np.testing.assert_array_equal(buffer.priorities([0]), [5] if takes_the_others(buffer) else [1])


def test_last_of_equal_ids_wins(make):
    buffer = make(16)
    ids = add_episode(buffer, 0, 3, end=None)
    buffer.update_priorities([ids[0], ids[1], ids[0]], priorities=[5, 3, 2])
    np.testing.assert_array_equal(buffer.priorities(ids), [2, 3, 1])


def test_several_critics_count_by_the_mean_of_their_absolute_errors(make):
    buffer = make(16, epsilon=0.5)
    ids = add_episode(buffer, 0, 2, end=None)
    buffer.update_priorities(ids, td_errors=np.array([[1, -2], [-3, -6]], np.float32))
    np.testing.assert_array_equal(buffer.priorities(ids), [2.5, 4.5])


def test_several_critics_count_by_the_largest_of_their_absolute_errors_if_asked(make):
    buffer = make(16, epsilon=0.5, critics="max")
    ids = add_episode(buffer, 0, 2, end=None)
    buffer.update_priorities(ids, td_errors=np.array([[1, -7], [-3, 6]], np.float32))
    np.testing.assert_array_equal(buffer.priorities(ids), [3.5, 7.5])
    with refused("InvalidArgument"):  # one that is not finite is not hidden by a larger one
        buffer.update_priorities(ids, td_errors=np.array([[np.nan, 1], [3, 1]], np.float32))
    np.testing.assert_array_equal(buffer.priorities(ids), [3.5, 1.5] if takes_the_others(buffer) else [3.5, 7.5])


def test_largest_priority_now_is_one_where_nothing_is_live(make):
    buffer = make(16, max_priority="now")
    ids = add_episode(buffer, 0, 2, end=None)
    buffer.update_priorities(ids, priorities=[0.25, 0.125])
    assert buffer.stats()["max_priority"] == 0.25
    buffer.clear()
    assert buffer.stats()["max_priority"] == 1


def test_total_is_the_sum_of_priorities_to_the_power_of_alpha(make):
    buffer = make(16, alpha=0.5)
    ids = add_episode(buffer, 0, 3, end=None)
    buffer.update_priorities(ids, priorities=[4, 9, 0])
    assert buffer.stats()["total"] == pytest.approx(5)
    buffer.set_alpha(2.0)
    assert buffer.stats()["total"] == pytest.approx(97)
    buffer.set_alpha(0.0)
    assert buffer.stats()["total"] == pytest.approx(3)  # p^0 = 1, for p = 0 too
    buffer.set_alpha(0.5)
    assert buffer.stats()["total"] == pytest.approx(5)
    np.testing.assert_array_equal(buffer.priorities(ids), [4, 9, 0])


def test_all_zero_priorities_are_drawn_uniformly_with_weights_of_one(make):
    buffer = make(16, beta=1.0)
    ids = add_episode(buffer, 0, 4, end=None)
    buffer.update_priorities(ids, priorities=[0, 0, 0, 0])
    assert buffer.stats()["live"] == 4
    drawn, weights = buffer.draw(64)
    assert set(drawn) == set(ids)
    np.testing.assert_array_equal(weights, np.ones(64))


def test_live_transition_of_priority_zero_counts_but_is_not_drawn(make):
    buffer = make(16, alpha=1.0, beta=1.0, normalize_weights="none")
    ids = add_episode(buffer, 0, 2, end=None)
    buffer.update_priorities(ids, priorities=[0, 3])
    drawn, weights = buffer.draw(64)
    assert set(drawn) == {ids[1]}
    np.testing.assert_allclose(weights, 0.5)  # 1 / (N P) with N = 2, P = 1
    buffer.set_alpha(0.0)
    assert set(buffer.draw(64)[0]) == set(ids)


def test_uniform_fraction_reaches_transitions_of_priority_zero(make):
    buffer = make(8, alpha=1.0, beta=1.0, uniform_fraction=0.5, normalize_weights="none")
    ids = add_episode(buffer, 0, 2, end=None)
    buffer.update_priorities(ids, priorities=[0, 3])
    drawn, weights = buffer.draw(64)  # P = (1/4, 3/4), N = 2
    assert set(drawn) == set(ids)
    np.testing.assert_allclose(weights, [{ids[0]: 2, ids[1]: 2 / 3}[id] for id in drawn], rtol=1e-6)
