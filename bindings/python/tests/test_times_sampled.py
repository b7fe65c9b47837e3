"""Numbers of draws: the counts in batches, and the limit on the draws of a transition."""

from __future__ import annotations

import collections
import copy
import pathlib
import pickle
import struct
import sys

import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
from make_buffers import checkpoint_of
from read_buffer import sections

FIELDS = {"observation": per.Field(2), "goal": per.Field(2)}
ONCE = {"max_times_sampled": 1, "scheme": "without_replacement"}


def counting(**options):
    return per.ReplayBuffer(200, FIELDS, **{"keep_times_sampled": True, "seed": 3} | options)


def add(buffer, n=1):
    zeros = np.zeros((n, 2), np.float32)
    flags = np.zeros(n, bool)
    fields = {"observation": zeros, "next_observation": zeros, "goal": zeros}
    return buffer.extend(**fields, reward=flags, terminated=flags, truncated=flags)


class Counts:
    """The counts that batches must have, by id."""

    def __init__(self):
        self.of = collections.Counter()

    def draw(self, batch):
        ids = [int(id) for id in batch.ids]
        self.of.update(ids)
        self.check(batch)

    def check(self, batch):
        assert [int(n) for n in batch.times_sampled] == [self.of[int(id)] for id in batch.ids]


def test_batches_say_how_often_each_transition_was_drawn():
    buffer, counts = counting(), Counts()
    add(buffer, 20)
    for scheme in ("stratified", "independent", "systematic", "without_replacement"):
        counts.draw(buffer.sample(16, scheme=scheme))
    batch = buffer.sample(32)
    assert batch.times_sampled.dtype == np.int32 and batch.times_sampled.shape == (32,)
    counts.draw(batch)
    counts.draw(buffer.sample(32, out=batch))
    assert buffer.stats().samples == 6 and sum(counts.of.values()) == 4 * 16 + 2 * 32


def test_what_is_no_draw_counts_nothing_and_has_the_counts():
    buffer, counts = counting(), Counts()
    ids = add(buffer, 20)
    counts.draw(buffer.sample(50))
    for _ in range(2):
        counts.check(buffer.get_windows(ids))
        counts.check(buffer.get(ids))
        counts.check(buffer.get_units(range(-20, 0)).batch)
        for batch in buffer.epochs(2, 7):
            counts.check(batch)
    counts.draw(buffer.sample(50))


def test_a_buffer_that_does_not_count_has_no_such_array():
    buffer = counting(keep_times_sampled=False)
    add(buffer, 5)
    assert "times_sampled" not in buffer.sample(3) and "times_sampled" not in buffer.get([0])
    with pytest.raises(AttributeError):
        _ = buffer.sample(3).times_sampled


def test_sequences_are_counted_by_their_starts():
    buffer, counts = counting(sequence_length=3, burn_in=1), Counts()
    add(buffer, 40)
    batch = buffer.sample(8)
    assert batch.times_sampled.shape == (8,) and batch.reward.shape == (8, 4)
    counts.draw(batch)
    counts.draw(buffer.sample(30))
    once = counting(sequence_length=3, **ONCE)
    add(once, 40)
    live = len(once)
    assert sorted(once.sample(live).ids.tolist()) == list(range(0, 3 * live, 3)) and len(once) == 0


def test_updates_of_what_is_used_up_are_stale_also_while_it_waits_for_its_window():
    buffer = counting(**ONCE)
    add(buffer, 5)
    used = buffer.sample(3).ids
    buffer.n_step = 10  # no window is complete
    assert len(buffer) == 0
    buffer.update_priorities(range(5), priorities=[2.0, 3.0, 4.0, 5.0, 6.0])
    assert (buffer.stats().updates, buffer.stats().stale_updates) == (2, 3)
    buffer.n_step = 1
    left = sorted({0, 1, 2, 3, 4} - set(used.tolist()))
    assert buffer.live_ids().tolist() == left
    assert buffer.priorities(range(5)).tolist() == [2.0 + id if id in left else 0.0 for id in range(5)]


def with_count(content, count):
    """A checkpoint in which each row has that count."""
    contents = sections(content)
    return checkpoint_of(contents | {"times sampled": struct.pack("<i", count) * (len(contents["times sampled"]) // 4)})


def test_the_largest_count_stays():
    buffer, most = counting(), 2**31 - 1
    add(buffer, 5)
    buffer = per.ReplayBuffer.from_bytes(with_count(bytes(buffer), most - 1))
    drawn = set()
    for _ in range(3):
        batch = buffer.sample(4)
        drawn |= set(batch.ids.tolist())
        assert (batch.times_sampled == most).all()
        assert buffer.get(range(5)).times_sampled.tolist() == [most - (id not in drawn) for id in range(5)]


@pytest.mark.parametrize("options", [{}, {"max_times_sampled": 3, "scheme": "without_replacement"}])
def test_checkpoints_have_the_counts(tmp_path, options):
    buffer, counts = counting(**options), Counts()
    add(buffer, 30)
    for _ in range(5):
        counts.draw(buffer.sample(11))
    buffer.save(tmp_path / "buffer.per")
    buffer.checkpoint(tmp_path / "folder")
    save = buffer.save(tmp_path / "later.per", wait=False)
    others = [per.ReplayBuffer.load(tmp_path / name) for name in ("buffer.per", "folder")]
    others += [copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    counts_then, live_then = copy.deepcopy(counts), buffer.live_ids().tolist()
    for _ in range(3):
        counts.draw(buffer.sample(5))
    save.wait()
    for other in [*others, per.ReplayBuffer.load(tmp_path / "later.per")]:
        assert other.options["keep_times_sampled"] and other.live_ids().tolist() == live_then
        again = copy.deepcopy(counts_then)
        for _ in range(3):
            again.draw(other.sample(5))
        assert again.of == counts.of
        if not IS_CUDA:
            assert bytes(other) == bytes(buffer)


def test_what_a_loader_draws_ahead_is_counted_when_it_is_drawn():
    buffer = counting(**ONCE)
    add(buffer, 64)
    loader = buffer.loader(8, slots=3)
    seen = next(loader).ids.tolist()
    assert (loader.take().times_sampled == 1).all()
    loader.close()
    drawn = buffer.stats().samples
    assert drawn > 2 and len(buffer) == 64 - 8 * drawn and len(seen) == 8


@pytest.mark.skipif(IS_CUDA, reason="batches are shared in host memory")
def test_readers_of_a_shared_loader_have_the_counts():
    buffer = counting(**ONCE)
    add(buffer, 64)
    seen = []
    with buffer.shared_loader(8, readers=1) as loader, loader.reader() as batches:
        for _, batch in zip(range(3), batches, strict=False):
            assert (batch.times_sampled == 1).all()
            seen += batch.ids.tolist()
    assert len(set(seen)) == 24 and len(buffer) == 64 - 8 * buffer.stats().samples


def test_draws_of_a_rate_limiter_end_when_all_is_used():
    buffer = counting(**ONCE, samples_per_insert=1.0, samples_tolerance=64, min_size_to_sample=8)
    add(buffer, 16)
    for _ in range(2):
        buffer.wait_to_sample(8)
        buffer.sample(8)
    with pytest.raises(per.Empty):
        buffer.sample(8)
        buffer.synchronize()
    add(buffer, 8)
    assert (buffer.sample(8).times_sampled == 1).all()


def test_hindsight_counts_as_draws_do():
    def reward(achieved, goal):
        return np.zeros(len(achieved), np.float32)

    buffer, counts = counting(), Counts()
    add(buffer, 20)
    hindsight = per.Hindsight("observation", "goal", reward)
    counts.draw(buffer.sample(16, hindsight=hindsight))
    counts.check(buffer.get_windows(range(20), hindsight=hindsight))


@pytest.mark.skipif(IS_CUDA, reason="the arrays of a device are its own")
@pytest.mark.parametrize("arrays", ["torch", "jax"])
def test_counts_are_whole_numbers_of_each_library(arrays):
    pytest.importorskip(arrays)
    buffer = counting(arrays=arrays)
    add(buffer, 20)
    batch = buffer.sample(16)
    assert str(batch.times_sampled.dtype).endswith("int32") and bool((batch.times_sampled > 0).all())
