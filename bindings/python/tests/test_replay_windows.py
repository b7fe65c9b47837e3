"""Windows at the write head, and frames that are given as stacks; expected values by hand.

Each case runs against the library and the naive model, so the values also check the model.
"""

from __future__ import annotations

import numpy as np
import per
import pytest
from replay_subjects import make_each

pytestmark = make_each


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
