"""Batches of a buffer of shards are those of one buffer, bit for bit."""

from __future__ import annotations

import numpy as np
import per
import pytest
from common import assert_goes_on_as_one, assert_same, one_buffer, sharded_buffer, step_of

LAWS = [
    {},
    {"scheme": "independent", "n_step": 3},
    {"scheme": "systematic", "normalize_weights": "buffer_max"},
    {"scheme": "without_replacement"},
    {"scheme": "without_replacement", "prioritization": "uniform"},
    {"uniform_fraction": 0.3, "normalize_weights": "none", "beta_steps": 50},
    {"prioritization": "uniform"},
    {"sequence_length": 3, "burn_in": 1},
    {"half_life": 0.7},
    {"half_life": 0.4, "max_age": 9, "scheme": "without_replacement"},
]


@pytest.mark.parametrize("shards", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: "-".join(map(str, law.values())) or "defaults")
def test_shards_draw_what_one_buffer_draws(in_process, law, shards):
    n_envs = max(shards, 9)
    whole = one_buffer(n_envs=n_envs, **law)
    sharded = sharded_buffer(n_envs=n_envs, shards=shards, **law)
    assert_goes_on_as_one(whole, sharded, np.random.default_rng(5), 60 if shards < 64 else 15)
    ours, theirs = sharded.stats(), whole.stats()
    for name in ("live", "added", "episodes", "stale_updates", "updates", "samples", "beta_step", "beta"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.max_priority == theirs.max_priority
    assert ours.shards == shards


def test_ages_are_versions_in_all_shards(in_process):
    fresh = {"half_life": 0.7, "age": "versions", "max_age": 20}
    whole, sharded = one_buffer(**fresh), sharded_buffer(**fresh)
    for t in range(60):
        for buffer in (whole, sharded):
            buffer.set_version(t * 2)
        assert np.array_equal(whole.add(**step_of(t)), sharded.add(**step_of(t)))
        if t > 3:
            assert_same(whole.sample(16), sharded.sample(16))
    with pytest.raises(per.InvalidArgument, match=r"^shard 0: version is 3: allowed are 118 \.\. 2147483647"):
        sharded.set_version(3)
    assert_same(whole.sample(16), sharded.sample(16))
    with pytest.raises(per.InvalidArgument, match="shard 0: version is 1: only a buffer whose age is"):
        sharded_buffer().set_version(1)
