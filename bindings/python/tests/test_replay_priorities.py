"""Priorities that are not allowed. The case runs against the library and the naive model."""

from __future__ import annotations

import numpy as np
from cuda_switch import IS_CUDA
from replay_subjects import LibraryReplay, add_episode, make_each, refused

pytestmark = make_each


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
