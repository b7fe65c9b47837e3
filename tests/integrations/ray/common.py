"""Steps, and the comparison of a buffer of shards with one buffer."""

from __future__ import annotations

import numpy as np
import per
import per.ray

FIELDS = {"observation": per.Field(2, "float32"), "action": per.Field((), "int64")}
ROWS = 40


def steps_of(random, n_envs, k=None):
    """Observations that follow each other, one episode of ten ending."""
    shape = (n_envs,) if k is None else (k, n_envs)
    ends = random.random(shape) < 0.1
    return {
        "observation": np.zeros((*shape, 2), np.float32),
        "action": random.integers(9, size=shape),
        "reward": random.standard_normal(shape),
        "terminated": ends,
        "truncated": ends & False,
        "next_observation": np.where(ends[..., None], random.standard_normal((*shape, 2)), 0).astype(np.float32),
    }


def assert_same(whole, batch):
    assert list(whole) == list(batch)
    for name in whole:
        assert whole[name].dtype == batch[name].dtype, name
        assert np.array_equal(whole[name], batch[name]), name


def assert_goes_on_as_one(whole, sharded, random, n_calls, batch_size=16, **choices):
    """Makes the same calls of both: adding, drawing, and setting priorities over orders of magnitude."""
    n_envs = whole.n_envs
    size, n_drawn = 1.0, 0  # of TD errors, over orders of magnitude, so that the scale has to follow
    for _ in range(n_calls):
        steps = steps_of(random, n_envs)
        assert np.array_equal(whole.add(**steps), sharded.add(**steps))
        if len(whole) < 2 * batch_size:
            continue
        batch = whole.sample(batch_size, **choices)
        drawn = sharded.sample(batch_size, **choices)
        assert_same(batch, drawn)
        n_drawn += 1
        size = min(max(size * 10.0 ** random.integers(-3, 4), 1e-12), 1e12)
        errors = random.standard_normal(batch.reward.shape).astype(np.float32) ** 3 * np.float32(size)
        errors[random.random(batch_size) < 0.1] = 0.0
        whole.update_priorities(batch.ids, errors)
        sharded.update_priorities(drawn.ids, errors)
    assert n_drawn > 0
