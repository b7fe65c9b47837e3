"""Batches of loader(exact=False) are drawn by stale totals, and report the probabilities of these draws."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import per
import per.ray
import pytest
import stand_ins
from common import ENVS, ROWS, one_buffer, sharded_buffer, step_of, steps_of, writers_by_shard


def filled(**options):
    """A sharded buffer with ten live transitions in each lane, and alpha 1."""
    buffer = sharded_buffer(**{"alpha": 1.0, "normalize_weights": "none", **options})
    fill(buffer)
    return buffer


def fill(buffer):
    random = np.random.default_rng(1)
    steps = steps_of(random, ENVS, 10)
    buffer.extend(**{**steps, "observation": random.standard_normal((10, ENVS, 2)), "terminated": [[True] * ENVS] * 10})


def in_shards(buffer):
    """The buffers of the shards. Changes of them are unknown to the coordinator."""
    return [shard.object._buffer for shard in buffer._shards]


def change(buffer, random):
    """Changes the priority of each transition; the masses of shards differ by up to 100 times."""
    for shard in in_shards(buffer):
        size = 10.0 ** random.uniform(-1, 1)
        ids = shard.live_ids()
        shard.update_priorities(ids, priorities=(size * random.uniform(0.1, 1.0, ids.size)).astype(np.float32))


def totals(buffer):
    return np.array([shard.stats().total for shard in in_shards(buffer)])


def sample_ahead(buffer, choices=None):
    return buffer._batch(lambda: buffer._coordinator.object.sample_ahead("", 1, 64, None, choices or {}))


def drawn_late(buffer, random):
    """A batch, the totals that the coordinator knew when it was drawn, and the actual totals.

    All priorities have changed in between.
    """
    coordination = buffer._coordinator.object
    coordination._agree_on_scale()
    told = totals(buffer)
    change(buffer, random)
    choices = {"beta": 1.0, "normalize_weights": "none"}
    batch = sample_ahead(buffer, choices)
    return batch, told, totals(buffer)


def test_probabilities_are_those_of_stale_totals_and_of_what_shards_are_now(in_process):
    buffer = filled()
    random = np.random.default_rng(3)
    for _ in range(20):
        batch, told, now = drawn_late(buffer, random)
        shards = buffer.shard_of(batch.ids % ENVS)
        probabilities = told[shards] / told.sum() * batch.priorities / now[shards]
        np.testing.assert_allclose(batch.probabilities, probabilities, rtol=1e-6)
        np.testing.assert_allclose(batch.weights, 1 / (10 * ENVS * probabilities), rtol=1e-6)
    assert buffer.stats().samples == 20


def test_weighted_means_are_unbiased_however_stale_totals_are(in_process):
    """The mean of w f over draws is the mean of f over all transitions.

    700 batches, seed 5; fails for one seed in a million (5 standard errors). Weights that ignore that totals are stale
    miss the true mean by more than twice as much.
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
    """Live ids of the whole buffer, for each shard."""
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
            buffer.loader(8, exact=False, **{name: value})


def test_a_shard_whose_mass_is_gone_when_it_answers_has_another_batch_drawn(in_process):
    buffer = filled()
    coordination = buffer._coordinator.object
    coordination._agree_on_scale()
    for shard in in_shards(buffer)[1:]:
        shard.update_priorities(shard.live_ids(), priorities=np.zeros(20, np.float32))
    batch = sample_ahead(buffer)
    assert (buffer.shard_of(batch.ids % ENVS) == 0).all()


def test_batches_ahead_are_those_of_one_buffer_while_nothing_changes(in_process):
    buffer = filled(beta_steps=50)
    whole = one_buffer(alpha=1.0, normalize_weights="none", beta_steps=50)
    fill(whole)
    with buffer.loader(16, slots=4, exact=False) as batches:
        for _, batch in zip(range(10), batches, strict=False):
            expected = whole.sample(16)
            assert np.array_equal(batch.ids, expected.ids)
            assert np.array_equal(batch.weights, expected.weights)


def test_weighted_sums_are_of_the_rows_of_now_where_n_changes(in_process):
    """The mean of w f is the sum of f over the current rows of the shards, divided by the N that the coordinator knew.

    100 batches, seed 9; fails for one seed in a million (5 standard errors). The number of rows grows by half in
    between, so dividing by the current N would miss by a third.
    """
    means, truths = [], []
    for k in range(100):
        buffer = filled(seed=k)
        random = np.random.default_rng([9, k])
        told = len(buffer)
        for s, shard in enumerate(in_shards(buffer)):
            steps = steps_of(random, 2, 5)
            shard.extend(**{**steps, "reward": np.full((5, 2), 10.0 * (s + 1)), "terminated": [[True] * 2] * 5})
        change(buffer, random)
        batch = sample_ahead(buffer, {"beta": 1.0, "normalize_weights": "none"})
        means.append(np.mean(batch.weights * batch.reward))
        truths.append(sum(shard.get(shard.live_ids()).reward.sum() for shard in in_shards(buffer)) / told)
    errors = np.array(means) - np.array(truths)
    assert abs(errors.mean()) < 5 * errors.std() / np.sqrt(errors.size)
    assert abs(np.mean(means) - np.mean(truths) * told / len(buffer)) > 10 * errors.std() / np.sqrt(errors.size)


def test_a_shard_that_dies_with_batches_on_their_way_has_others_drawn(in_process):
    buffer = filled()
    coordination, shard = buffer._coordinator, buffer._shards[1]
    shard.hangs = True
    batches = [coordination.object.sample_ahead("a", 3, 32, None, {})]  # two more are in flight
    shard.hangs = False
    shard.die()
    batches += [coordination.object.sample_ahead("a", 3, 32, None, {}) for _ in range(4)]
    for batch in batches:
        assert set(batch.ids % ENVS // 2) == {0, 2, 3}
    assert buffer.stats().losses == 1


@pytest.mark.parametrize("exact", [True, False])
def test_a_draw_that_failed_ahead_is_made_again_when_its_turn_comes(in_process, exact):
    buffer, whole = sharded_buffer(alpha=1.0), one_buffer(alpha=1.0)
    batches = buffer.loader(16, slots=3, exact=exact)
    for _ in range(2):
        with pytest.raises(per.Empty):
            next(batches)
    fill(buffer)
    fill(whole)
    for _ in range(8):
        assert np.array_equal(next(batches).ids, whole.sample(16).ids)


@pytest.mark.parametrize("draw", ["sample", "exact", "ahead", "distinct", "len"])
def test_what_writers_have_given_is_taken_in_where_nothing_else_can_be_drawn(in_process, draw):
    buffer = sharded_buffer()
    if draw == "distinct":
        fill(buffer)  # 80 transitions
    for writer in writers_by_shard(buffer):
        for _ in range(5):
            writer.add(**{**step_of(0, 2), "observation": np.ones((2, 2)), "terminated": [1, 1]})
    batch = {
        "sample": lambda: buffer.sample(16),
        "exact": lambda: next(buffer.loader(16)),
        "ahead": lambda: next(buffer.loader(16, exact=False)),
        "distinct": lambda: buffer.sample(100, scheme="without_replacement"),
        "len": lambda: None,
    }[draw]()
    assert batch is None or len(batch.ids) in (16, 100)
    assert len(buffer) == 40 + 80 * (draw == "distinct")


def test_batches_of_a_loader_that_is_gone_are_let_go(in_process, monkeypatch):
    buffer = filled()
    coordination = buffer._coordinator.object
    seconds = 0.0
    monkeypatch.setattr(per.ray.coordination, "time", SimpleNamespace(monotonic=lambda: seconds))
    for _ in buffer.loader(8, exact=False):
        assert len(coordination._begun) == 1
        break
    gc.collect()
    assert coordination._begun == {}

    unused = buffer.loader(8, exact=False)
    with monkeypatch.context() as after_ray:
        after_ray.setattr(stand_ins.RAY, "is_initialized", lambda: False)
        del unused
        gc.collect()
    assert len(coordination._begun) == 1  # a call would start another Ray
    killed = buffer.loader(8, exact=False)
    seconds = 500.0
    used = buffer.loader(8, exact=False)
    seconds = 700.0
    next(used)
    assert list(coordination._begun) == [used._name]
    assert len(next(killed).ids) == 8  # the loader was not killed and starts again
