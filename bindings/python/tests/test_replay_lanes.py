"""Ends, cuts and reset steps of a lane that tests/c does not have; expected values by hand.

Each case runs against the library and the naive model, so the values also check the model.
"""

from __future__ import annotations

import numpy as np
from replay_subjects import add, check, make_each, refused

pytestmark = make_each


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


def test_end_needs_its_final_observation_or_word_that_there_is_none(make):
    buffer = make(16)
    for end in ("terminated", "truncated"):
        with refused("InvalidArgument"):
            add(buffer, 0, end=end)
        with refused("InvalidArgument"):
            add(buffer, 0, end=end, next_mask=np.array([True]))
    assert add(buffer, 0, end="terminated", next_mask=np.array([False])) == 0


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
