"""Batches of a buffer of shards are those of one buffer, bit for bit."""

from __future__ import annotations

import numpy as np
import per
import per.ray
import pytest
from common import ENVS, ROWS, assert_goes_on_as_one, assert_same, one_buffer, sharded_buffer, step_of

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


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("law", [{}, {"n_step": 3}, {"sequence_length": 3, "burn_in": 1}], ids=str)
def test_rows_may_have_any_length(in_process, law, shards):
    fields = {
        "observation": per.Field((None, 2), "float32", max_length=5),
        "tokens": per.Field(None, "int16", max_length=40),
        "action": per.Field(),
    }
    options = {"n_envs": ENVS, "seed": 7, **law}
    whole = per.ReplayBuffer(ENVS * ROWS, fields, **options)
    sharded = per.ray.ReplayBuffer(ENVS * ROWS, fields, shards=shards, **options)
    random = np.random.default_rng(3)

    def rows(n_steps, make):
        return [[make(random.integers(0, 6)) for _ in range(ENVS)] for _ in range(n_steps)]

    def steps(n_steps):
        observations = rows(n_steps + 1, lambda n: random.normal(size=(n, 2)).astype("float32"))
        tokens = rows(n_steps, lambda n: random.integers(0, 99, 8 * n).astype("int16"))
        zeros = np.zeros((n_steps, ENVS))
        numbers = {"action": zeros, "reward": random.normal(size=zeros.shape), "terminated": zeros, "truncated": zeros}
        ends = {"observation": observations[:-1], "next_observation": observations[1:], "tokens": tokens}
        return ends | numbers

    def one(step):
        return {name: array[0] for name, array in step.items()}

    for round in range(20):
        run = steps(1 + round % 4)
        if round % 3 == 1:
            run["td_errors"] = random.normal(size=run["reward"].shape)
        if round % 4 == 0:
            ids = [buffer.add(**one(run)) for buffer in (whole, sharded)]
        else:
            ids = [buffer.extend(**run) for buffer in (whole, sharded)]
        assert np.array_equal(*ids)
        if whole.stats().live > 0:
            batches = whole.sample(16), sharded.sample(16)
            assert_same(*batches)
            errors = random.normal(size=16) if not law.get("sequence_length") else random.normal(size=(16, 4))
            for buffer in (whole, sharded):
                buffer.update_priorities(batches[0].ids, errors)
    writer = sharded.writer([0])
    alone = {name: [array[0][0]] for name, array in steps(1).items()}
    writer.add(**alone)
    writer.flush()
    whole.add(**alone, env_ids=[0])
    assert_same(whole.sample(16), sharded.sample(16))
    with pytest.raises(per.InvalidArgument, match="tokens: row 1 has 41 values: at most max_length, 40"):
        sharded.add(**one(steps(1)) | {"tokens": [[0] * (41 if env == 1 else 0) for env in range(ENVS)]})


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
