"""Steps, buffers of the same options in one piece and in shards, and their comparison."""

from __future__ import annotations

import math

import numpy as np
import per
import per.ray

FIELDS = {"observation": per.Field(2, "float32"), "action": per.Field((), "int64")}
ROWS, ENVS, SHARDS = 40, 8, 4
LIMITS = {"samples_per_insert": 1.7, "samples_tolerance": 90, "min_size_to_sample": 30}


def one_buffer(**options):
    options = {"n_envs": ENVS, "seed": 7, **options}
    return per.ReplayBuffer(options["n_envs"] * ROWS, FIELDS, **options)


def sharded_buffer(**options):
    options = {"n_envs": ENVS, "seed": 7, "shards": SHARDS, **options}
    return per.ray.ReplayBuffer(options["n_envs"] * ROWS, FIELDS, **options)


def both(shards=SHARDS, **options):
    """One buffer and a sharded one with the same steps."""
    whole, sharded = one_buffer(**options), sharded_buffer(shards=shards, **options)
    steps = steps_of(np.random.default_rng(1), ENVS, 15)
    assert np.array_equal(whole.extend(**steps), sharded.extend(**steps))
    return whole, sharded


def due(added):
    """The number of draws that LIMITS require after this number of steps."""
    return math.floor(LIMITS["samples_per_insert"] * (added - LIMITS["min_size_to_sample"]))


def writers_by_shard(buffer):
    return [buffer.writer([2 * s, 2 * s + 1]) for s in range(SHARDS)]


def steps_of(random, n_envs, k=None):
    """Steps with observations that follow each other. An episode ends with probability 0.1."""
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


def step_of(seed, n_envs=ENVS):
    return steps_of(np.random.default_rng(seed), n_envs)


def assert_same(whole, batch):
    assert list(whole) == list(batch)
    for name in whole:
        expected, found = whole[name], batch[name]
        if isinstance(expected, per.Ragged):
            assert expected.shape == found.shape and np.array_equal(expected.offsets, found.offsets), name
            expected, found = expected.values, found.values
        assert expected.dtype == found.dtype, name
        assert np.array_equal(expected, found), name


def assert_goes_on_as_one(whole, sharded, random, n_calls, batch_size=16, **choices):
    """Makes the same calls of both: adds, draws, and updates of priorities."""
    n_envs = whole.n_envs
    size, n_drawn = 1.0, 0  # the size of TD errors changes by orders of magnitude, so that the tree changes its scale
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
