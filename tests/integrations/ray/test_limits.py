"""All shards share one rate limiter, which allows what one buffer with all environments allows."""

from __future__ import annotations

import math

import numpy as np
import per
import per.ray
import pytest
import stand_ins
from common import ENVS, LIMITS, assert_same, due, one_buffer, sharded_buffer, step_of, steps_of, writers_by_shard

TOLERANCE, LEAST = LIMITS["samples_tolerance"], LIMITS["min_size_to_sample"]


def result_of(call, *given, **named):
    """The result of the call, or its error."""
    try:
        return call(*given, **named)
    except per.Error as error:
        return type(error), str(error)


def assert_same_result(one, other):
    if isinstance(one, per.Batch):
        assert_same(one, other)
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize(
    ("limits", "dies"),
    [
        (LIMITS, False),
        (LIMITS, True),
        ({"min_size_to_sample": 50}, False),
        ({"samples_per_insert": 0.3, "samples_tolerance": 7}, False),
        ({}, False),
    ],
)
def test_calls_are_allowed_where_one_buffer_allows_them(in_process, limits, dies):
    """150 calls with different environments, steps and masks give the same results or the same error messages.

    With `dies` the coordinator dies before every fourth call on average.
    """
    one, sharded = one_buffer(**limits), sharded_buffer(**limits)
    random = np.random.default_rng(3)
    n_allowed = n_refused = 0
    for _ in range(150):
        if dies and random.random() < 0.25:
            sharded._coordinator.die()
        kind = random.integers(5)
        if kind == 0:
            steps = {**steps_of(random, ENVS), "mask": random.random(ENVS) < 0.5}
            results = [result_of(buffer.add, **steps) for buffer in (one, sharded)]
        elif kind == 1:
            k = int(random.choice([1, 2, 3, 9]))
            envs = random.permutation(ENVS)[: random.integers(1, ENVS + 1)]
            steps = {**steps_of(random, len(envs), k), "env_ids": envs}
            results = [result_of(buffer.extend, **steps) for buffer in (one, sharded)]
        elif kind == 2:
            size = int(random.choice([1, 8, 40, 91]))
            results = [result_of(buffer.sample, size) for buffer in (one, sharded)]
        elif kind == 3:
            n = int(random.integers(60))
            results = [result_of(buffer.wait_to_add, n, timeout=0) for buffer in (one, sharded)]
        else:
            n = int(random.integers(1, 95))
            results = [result_of(buffer.wait_to_sample, n, timeout=0) for buffer in (one, sharded)]
        assert_same_result(*results)
        is_refused = isinstance(results[0], tuple)
        n_refused, n_allowed = n_refused + is_refused, n_allowed + (not is_refused)
    assert n_allowed > 15
    assert n_refused > 1 or not limits


def test_steps_with_priorities_are_allowed_all_or_none(in_process):
    sharded = sharded_buffer(**LIMITS)
    random = np.random.default_rng(0)
    sharded.extend(**steps_of(random, ENVS, 10), priorities=np.ones((10, ENVS)))
    with pytest.raises(per.Busy, match=r"^steps of the call are 48: the rate limiter allows at most 3 "):
        sharded.extend(**steps_of(random, ENVS, 6), priorities=np.ones((6, ENVS)))
    assert sharded.stats().added == 10 * ENVS


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples_per_insert": 2.0},
        {"samples_per_insert": 20.0, "samples_tolerance": 100},
        {"samples_tolerance": 5},
        {"samples_per_insert": math.nan},
        {"samples_per_insert": "many"},
        {"min_size_to_sample": -1},
        {"min_size_to_sample": 999, "overwrite": False},
    ],
    ids=str,
)
def test_limits_are_refused_as_one_buffer_refuses_them(in_process, wrong):
    refused = result_of(lambda: one_buffer(**wrong))
    assert refused[0] is per.InvalidArgument
    assert result_of(lambda: sharded_buffer(**wrong)) == refused


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_steps_of_writers_wait_for_draws_and_all_of_them_come(in_process, ahead):
    """One buffer would, at every moment, have allowed the steps added and the transitions drawn so far."""
    sharded = sharded_buffer(**LIMITS)
    random = np.random.default_rng(ahead)
    writers = writers_by_shard(sharded)
    coordinator = sharded._coordinator.object
    written = drawn = 0
    rewards = []
    for _ in range(30):
        for s, writer in enumerate(writers):
            k = 1 + int(random.integers(3)) if s else 1  # the first shard gets fewer steps
            rewards.append(random.standard_normal((k, 2)).astype(np.float32))
            steps = {**steps_of(random, 2, k), "reward": rewards[-1]}
            writer.extend(**steps)
            written += 2 * k
        for _ in range(20):
            added = sum(shard.object._buffer.stats().added for shard in sharded._shards)
            if added == written:
                break
            assert due(added) - drawn <= TOLERANCE or added <= LEAST
            size = int(random.choice([1, 8, 40]))
            if ahead:
                result = result_of(coordinator.sample_ahead, "a", ahead, size, None, {})
            else:
                result = result_of(sharded.sample, size)
            drawn = coordinator._limits.drawn
            if type(result) is tuple:
                assert result[0] is per.Busy
            assert due(sum(shard.object._buffer.stats().added for shard in sharded._shards)) - drawn >= -TOLERANCE
        else:
            raise AssertionError("neither side goes on")
    for writer in writers:
        writer.flush(timeout=0)
    assert (len(rewards), written) == (120, sharded.stats().added)
    assert all((writer.lost, writer.refused) == (0, 0) for writer in writers)
    assert coordinator._limits.added == written


def test_what_waits_is_as_much_as_one_buffer_would_not_allow_yet(in_process):
    one, sharded = one_buffer(**LIMITS), sharded_buffer(shards=1, **LIMITS)
    writer = sharded.writer(range(ENVS))
    random = np.random.default_rng(1)
    steps = [steps_of(random, ENVS) for _ in range(14)]
    for step in steps:
        writer.add(**step)
    with pytest.raises(per.Busy, match=r"^4 calls wait for draws"):
        writer.flush(timeout=0)
    for step in steps[:10]:
        one.add(**step)
    with pytest.raises(per.Busy):
        one.add(**steps[10])
    assert_same(one.sample(40), sharded.sample(40))
    for step in steps[10:13]:
        one.add(**step)
    with pytest.raises(per.Busy):
        one.add(**steps[13])
    with pytest.raises(per.Busy, match=r"^1 calls wait for draws"):
        writer.flush(timeout=0)
    assert_same(one.sample(8), sharded.sample(8))


def test_a_call_of_a_writer_may_be_for_more_steps_than_are_ever_allowed(in_process):
    sharded = sharded_buffer(**LIMITS)
    writer = sharded.writer([4, 5])
    writer.extend(**steps_of(np.random.default_rng(0), 2, 60))  # 120 steps, and 52 are the most
    for _ in range(10):
        result_of(sharded.sample, 40)
        result_of(writer.flush, timeout=0)
    writer.flush(timeout=0)
    assert sharded.stats().added == 120


def test_one_side_may_end(in_process):
    sharded = sharded_buffer(**LIMITS)
    writers = writers_by_shard(sharded)
    for writer in writers:
        for _ in range(16):
            writer.add(**steps_of(np.random.default_rng(0), 2))
    with pytest.raises(per.Busy):
        writers[0].flush(timeout=0)
    sharded.stop_limiting()
    for writer in writers:
        writer.flush(timeout=0)
    assert sharded.stats().added == 128
    sharded.sample(128)
    sharded.extend(**steps_of(np.random.default_rng(0), ENVS, 20))


def test_a_checkpoint_has_the_counts(in_process, tmp_path):
    one, sharded = one_buffer(**LIMITS), sharded_buffer(**LIMITS)
    random = np.random.default_rng(4)
    for _ in range(8):
        steps = steps_of(random, ENVS)
        one.add(**steps)
        sharded.add(**steps)
    for size in (50, 60):
        assert_same(one.sample(size), sharded.sample(size))
    sharded.save(tmp_path)
    loaded = per.ray.ReplayBuffer.load(tmp_path)
    for buffer in (one, loaded):
        with pytest.raises(
            per.Busy, match=r"allows at most 37 before more steps are added .*; 64 steps are added, 110"
        ):
            buffer.sample(38)
    sharded.stop_limiting()
    sharded.save(tmp_path)
    loaded = per.ray.ReplayBuffer.load(tmp_path)
    loaded.sample(200)


def test_a_shard_that_dies_keeps_its_count_and_nobody_waits_for_it(in_process):
    sharded = sharded_buffer(**LIMITS)
    writers = writers_by_shard(sharded)
    random = np.random.default_rng(5)
    for _ in range(5):
        for writer in writers:
            writer.extend(**steps_of(random, 2, 2))
    sharded.stats()
    coordinator = sharded._coordinator.object
    added = coordinator._limits.added
    sharded._shards[1].die()
    for _ in range(60):
        result_of(sharded.sample, 40)
        for s, writer in enumerate(writers):
            if len(writer._waiting) < 4:
                writer.extend(**steps_of(random, 2, 2))
            if s != 1:
                result_of(writer.flush, timeout=0)
    assert sharded.stats().losses == 1
    assert coordinator._limits.added > added + 200
    assert -TOLERANCE <= due(coordinator._limits.added) - coordinator._limits.drawn <= TOLERANCE


def test_a_loader_waits_until_draws_are_allowed(in_process, monkeypatch):
    sharded = sharded_buffer(**LIMITS)
    paused = []

    def pause(seconds):
        paused.append(seconds)
        sharded.add(**step_of(len(paused)))

    monkeypatch.setattr("per.ray.coordination.time.sleep", pause)
    for exact in (True, False):
        before = len(paused)
        with sharded.loader(32, slots=3, exact=exact) as batches:
            for _ in range(10):
                assert len(next(batches).ids) == 32
        assert len(paused) > before
    assert stand_ins.RAY.waited == 0
