"""Batches of loader(exact=False): drawn by stale totals, with the probabilities of how they really were drawn."""

from __future__ import annotations

import numpy as np
import per
import per.ray
import pytest
from common import FIELDS, ROWS, steps_of

ENVS, SHARDS = 8, 4


def filled(**options):
    """Ten transitions in each lane, all live, alpha 1."""
    given = {"n_envs": ENVS, "seed": 7, "alpha": 1.0, "normalize_weights": "none", **options}
    buffer = per.ray.ReplayBuffer(ENVS * ROWS, FIELDS, shards=SHARDS, **given)
    fill(buffer)
    return buffer


def fill(buffer):
    random = np.random.default_rng(1)
    for _ in range(10):
        steps = steps_of(random, ENVS)
        buffer.add(**{**steps, "observation": random.standard_normal((ENVS, 2)), "terminated": [True] * ENVS})


def in_shards(buffer):
    """The buffers, behind the back of the coordinator."""
    return [shard.object._buffer for shard in buffer._shards]


def change(buffer, random):
    """Gives each transition another priority, and shards masses that differ by up to 100 times."""
    for shard in in_shards(buffer):
        size = 10.0 ** random.uniform(-1, 1)
        ids = shard.live_ids()
        shard.update_priorities(ids, priorities=(size * random.uniform(0.1, 1.0, ids.size)).astype(np.float32))


def totals(buffer):
    return np.array([shard.stats().total for shard in in_shards(buffer)])


def drawn_late(buffer, random):
    """A batch, and the totals by which it was drawn and at which: every transition has another priority by then."""
    coordination = buffer._coordinator.object
    coordination._settle()
    told = totals(buffer)
    change(buffer, random)
    choices = {"beta": 1.0, "normalize_weights": "none"}
    batch = buffer._batch(lambda: buffer._coordinator.sample_ahead.remote("", 1, 64, None, choices))
    return batch, told, totals(buffer)


def test_probabilities_are_those_of_stale_totals_and_of_what_shards_are_now(in_process):
    buffer = filled()
    random = np.random.default_rng(3)
    for _ in range(20):
        batch, told, now = drawn_late(buffer, random)
        shards = buffer.shard_of(batch.ids)
        probabilities = told[shards] / told.sum() * batch.priorities / now[shards]
        np.testing.assert_allclose(batch.probabilities, probabilities, rtol=1e-6)
        np.testing.assert_allclose(batch.weights, 1 / (10 * ENVS * probabilities), rtol=1e-6)
    assert buffer.stats().samples == 20


def test_weighted_means_are_unbiased_however_stale_totals_are(in_process):
    """The mean of w f over draws is that of f over all transitions.

    700 batches, seed 5; it fails once in a million seeds (5 standard errors). Weights as if totals were not stale miss
    the truth by more than twice that.
    """
    buffer = filled()
    random = np.random.default_rng(5)
    value = np.random.default_rng(6).random(ENVS * ROWS) + 3.0 * (np.arange(ENVS * ROWS) % ENVS < 2)
    truth = np.mean([value[shard_ids].mean() for shard_ids in live_ids(buffer)])
    weighted, as_if_known = [], []
    for _ in range(700):
        batch, _, now = drawn_late(buffer, random)
        f = value[batch.ids]
        weighted.append(np.mean(batch.weights * f))
        as_if_known.append(np.mean(f * now.sum() / (10 * ENVS * batch.priorities)))
    errors = [np.std(each) / np.sqrt(len(each)) for each in (weighted, as_if_known)]
    assert abs(np.mean(weighted) - truth) < 5 * errors[0]
    assert abs(np.mean(as_if_known) - truth) > 10 * errors[1]


def live_ids(buffer):
    """By shard, of the whole."""
    return [buffer._whole.ids(s, shard.live_ids()) for s, shard in enumerate(in_shards(buffer))]


def test_what_shards_do_not_know_of_each_other_is_refused_by_name(in_process):
    buffer = filled()
    for name, value in {
        "scheme": "without_replacement",
        "prioritization": "uniform",
        "normalize_weights": "buffer_max",
        "uniform_fraction": 0.5,
    }.items():
        with pytest.raises(per.Unsupported, match=f"{name} is "):
            next(buffer.loader(8, exact=False, **{name: value}))


def test_a_shard_whose_mass_is_gone_when_it_answers_has_another_batch_drawn(in_process):
    buffer = filled()
    coordination = buffer._coordinator.object
    coordination._settle()
    for shard in in_shards(buffer)[1:]:
        shard.update_priorities(shard.live_ids(), priorities=np.zeros(20, np.float32))
    batch = buffer._batch(lambda: buffer._coordinator.sample_ahead.remote("", 1, 64, None, {}))
    assert (buffer.shard_of(batch.ids) == 0).all()


def test_batches_ahead_are_those_of_one_buffer_while_nothing_changes(in_process):
    buffer = filled(beta_steps=50)
    whole = per.ReplayBuffer(
        ENVS * ROWS, FIELDS, n_envs=ENVS, seed=7, alpha=1.0, normalize_weights="none", beta_steps=50
    )
    fill(whole)
    with buffer.loader(16, slots=4, exact=False) as batches:
        for _, batch in zip(range(10), batches, strict=False):
            expected = whole.sample(16)
            assert np.array_equal(batch.ids, expected.ids)
            assert np.array_equal(batch.weights, expected.weights)
