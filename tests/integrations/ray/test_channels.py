"""Channels add steps to a shard through shared memory, beside writers of Ray."""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np
import per
import per.ray
import pytest
import stand_ins
from common import ENVS, FIELDS, LIMITS, ROWS, assert_same, both, due, sharded_buffer, step_of, steps_of
from per.ray.shard import Message, Shard


def writers_of(sharded, slots=0):
    """Channels and writers of Ray in turn, one for each environment; the last two environments of a shard share one."""
    per_shard = ENVS // sharded.shards
    firsts = range(0, ENVS, per_shard)
    runs = [[env] for first in firsts for env in range(first, first + per_shard - 2)]
    runs += [[first + per_shard - 1, first + per_shard - 2] for first in firsts]
    return [
        (envs, sharded.channel(envs, slots=slots).writer() if i % 2 == 0 else sharded.writer(envs))
        for i, envs in enumerate(runs)
    ]


def write(writers, steps, axis=0):
    for envs, writer in writers:
        part = {name: array.take(envs, axis) for name, array in steps.items()}
        writer.extend(**part) if axis else writer.add(**part)


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("scheme", ["stratified", "without_replacement"])
def test_batches_are_those_of_one_buffer(in_process, shards, scheme):
    """Written steps are added after the next batch: with and without priorities, some masked, one and several a call.

    The priorities differ so much that a draw without replacement takes several rounds.
    """
    whole, sharded = both(shards, scheme=scheme, alpha=1.0)
    writers = writers_of(sharded)
    assert_same(whole.sample(50), sharded.sample(50))
    whole.cut([env for envs, writer in writers if isinstance(writer, per.ray.ChannelWriter) for env in envs])
    random = np.random.default_rng(2)
    for t in range(40):
        live = whole.live_ids()
        priorities = (10.0 ** random.uniform(-12, 0, live.size)).astype(np.float32)
        whole.update_priorities(live, priorities=priorities)
        sharded.update_priorities(live, priorities=priorities)
        k = None if t % 3 else 4
        steps = steps_of(random, ENVS, k)
        if t % 4 == 1:
            steps["mask"] = random.random(steps["reward"].shape) < 0.5
        if t % 4 == 2:
            steps["priorities"] = random.random(steps["reward"].shape)
        write(writers, steps, axis=0 if k is None else 1)
        assert_same(whole.sample(50), sharded.sample(50))
        if k is None:
            whole.add(**steps)
        else:
            for each in range(k):
                whole.add(**{name: array[each] for name, array in steps.items()})
    assert sharded.stats().added == whole.stats().added
    assert whole.stats().cuts == sharded.stats().cuts


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_batches_of_a_loader_are_those_of_one_buffer(in_process, shards):
    """Three batches are in flight. Written steps are added after the batch that is requested next."""
    whole, sharded = both(shards)
    writers = writers_of(sharded)
    random = np.random.default_rng(4)
    drawn = [whole.sample(16)]
    whole.cut([env for envs, writer in writers if isinstance(writer, per.ray.ChannelWriter) for env in envs])
    drawn += [whole.sample(16) for _ in range(2)]
    with sharded.loader(16, slots=3) as batches:
        for _ in range(30):
            steps = steps_of(random, ENVS)
            write(writers, steps)
            batch = next(batches)
            assert_same(drawn.pop(0), batch)
            drawn.append(whole.sample(16))
            whole.add(**steps)
            for buffer in (whole, sharded):
                buffer.update_priorities(batch.ids, batch.reward)


def test_a_writer_that_finds_the_ring_full_has_the_shard_take_steps_in(in_process):
    """There are no other calls of the buffer."""
    sharded = sharded_buffer(shards=2)
    writer = sharded.channel([1], slots=4).writer()
    for t in range(30):
        writer.add(**step_of(t, 1))
    writer.flush()
    assert sharded._shards[0].object._buffer.stats().added == 30
    writer.add(**step_of(0, 1))
    writer.cut()
    assert len(sharded) == 31
    assert sharded.stats().refused_calls == 0


def test_a_channel_is_given_again_and_ends_when_it_is_closed(in_process):
    sharded = sharded_buffer(shards=2)
    channel = sharded.channel([5, 4], slots=8)
    assert channel.path == sharded.channel([5, 4], slots=8).path != sharded.channel([6]).path
    writer = channel.writer()
    with pytest.raises(per.Busy, match="has a writer already"):
        channel.writer()
    for other in ({"env_ids": [4]}, {"env_ids": [4, 5], "slots": 8}, {"env_ids": [5, 4], "when_full": "drops"}):
        with pytest.raises(per.InvalidArgument, match=r"environment [45] is in a channel of \[5, 4\] with slots=8 and"):
            sharded.channel(**other)
    writer.add(**step_of(0, 2))
    assert (channel.stats().added, channel.stats().attached) == (0, os.getpid())
    channel.close()
    assert len(sharded) == 2
    for call in (writer.flush, lambda: writer.add(**step_of(0, 2)), channel.writer):
        with pytest.raises(per.ray.ChannelEnded):
            call()
    with pytest.raises(per.InvalidArgument, match="the channel is not there any more"):
        channel.stats()
    sharded.channel([4]).writer().add(**step_of(0, 1))
    assert len(sharded) == 3


def test_what_is_wrong_is_an_error(in_process, monkeypatch):
    sharded = sharded_buffer(shards=2)
    for wrong, message in (
        ({"env_ids": [3, 4]}, r"^env_ids are of shards \[0, 1\]"),
        ({"env_ids": [8]}, r"^env_ids\[0\] is 8: allowed are 0 \.\. 7$"),
        ({"env_ids": [1, 1]}, r"^env_ids\[1\] is 1: given twice$"),
        ({"env_ids": [0], "slots": 1}, r"^slots is 1: allowed are 0, and 2"),
        ({"env_ids": [0], "slots": "many"}, "^slots is 'many'"),
        ({"env_ids": [0], "when_full": "bursts"}, "^when_full is 'bursts'"),
        ({"env_ids": [0], "timeout": -1}, "^timeout is -1"),
    ):
        with pytest.raises(per.InvalidArgument, match=message):
            sharded.channel(**wrong)
    channel = sharded.channel([0])
    with channel.writer() as writer:
        with pytest.raises(per.InvalidArgument, match="action has") as error:
            writer.add(**{**step_of(0, 1), "action": np.zeros(1)})
        assert not isinstance(error.value, per.ray.ChannelEnded)
        with pytest.raises(per.InvalidArgument, match="timeout is -1"):
            writer.flush(-1)
    with pytest.raises(per.InvalidArgument, match="the writer is closed"):
        writer.flush()
    there = stand_ins.NODE
    monkeypatch.setattr(stand_ins, "NODE", "elsewhere")
    with pytest.raises(per.InvalidArgument, match=f"on node {there}, where its shard is, and .* on node elsewhere"):
        channel.writer()


def test_steps_that_the_buffer_refuses_are_counted(in_process):
    sharded = sharded_buffer(shards=2, overwrite=False)
    channel = sharded.channel([2])
    with channel.writer() as writer:
        for t in range(ROWS + 3):
            writer.add(**step_of(t, 1))
        writer.flush()
    stats = sharded.stats()
    assert channel.stats().refused == stats.refused_calls == ROWS + 3 - stats.added > 0
    assert stats.refusal == "the buffer refused a step of the channel of environments [2] of the shard"
    channel.close()
    assert sharded.stats().refused_calls == stats.refused_calls


def test_a_writer_that_damages_its_memory_is_cut_off_and_harms_nobody(in_process):
    sharded = sharded_buffer(shards=2)
    other = sharded.channel([1]).writer()
    channel = sharded.channel([0])
    writer = channel.writer()
    sharded.stats()
    path = channel.path.partition("#")[0]
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find((1).to_bytes(8, "little"), 64)  # the number of written slots: the cut is in the first one
        assert at % 64 == 0
        memory[at + 4] = 1
    other.add(**step_of(0, 1))
    assert len(sharded) == 1
    assert "its writer was cut off" in sharded.stats().refusal
    with pytest.raises(per.ray.ChannelEnded):
        writer.flush()
    sharded.channel([0]).writer()


def test_a_shard_that_dies_takes_its_channels_with_it(in_process, tmp_path):
    whole, sharded = both(4)
    sharded.save(tmp_path)
    channel, of_other = sharded.channel([4, 5]), sharded.channel([0])
    writer = channel.writer()
    writer.add(**step_of(0, 2))
    sharded._shards[2].die()
    for call in (lambda: writer.add(**step_of(0, 2)), writer.flush, channel.writer):
        with pytest.raises(per.ray.ChannelEnded):
            call()
    again = sharded.channel([4, 5])  # finds that the shard has died
    assert again.path != channel.path
    assert sharded.stats().losses == 1
    assert of_other.path == sharded.channel([0]).path
    with again.writer() as writer:
        writer.add(**step_of(0, 2))
    assert len(sharded) == len(whole) + 2
    is_dead = sharded._shards[0].raising(stand_ins.RAY.exceptions.RayActorError())
    with is_dead, pytest.raises(per.Busy, match=r"^shard 0 has no channel to give: "):
        sharded.channel([1], timeout=0)


def test_channels_go_on_though_the_coordinator_dies(in_process):
    whole, sharded = both(2)
    writers = writers_of(sharded)
    sharded.sample(16)
    whole.sample(16)
    whole.cut([env for envs, writer in writers if isinstance(writer, per.ray.ChannelWriter) for env in envs])
    random = np.random.default_rng(3)
    for t in range(20):
        steps = steps_of(random, ENVS)
        write(writers, steps)
        if t % 3 == 0:
            sharded._coordinator.die()
        assert_same(whole.sample(16), sharded.sample(16))
        whole.add(**steps)


@pytest.mark.parametrize("shards", [1, 4])
def test_the_rate_limiter_holds_channels_and_writers_of_ray_and_both_get_their_turns(in_process, shards):
    """One buffer would, at every moment, have allowed the steps added and transitions drawn. All steps are added."""
    sharded = sharded_buffer(shards=shards, **LIMITS)
    writers = writers_of(sharded, slots=8)
    coordinator = sharded._coordinator.object
    random = np.random.default_rng(shards)
    tolerance = LIMITS["samples_tolerance"]
    written = dict.fromkeys(range(len(writers)), 0)
    n_waits = 0
    for _ in range(60):
        for w, (envs, writer) in enumerate(writers):
            steps = steps_of(random, len(envs))
            if isinstance(writer, per.ray.ChannelWriter):
                try:
                    writer.add(**steps, timeout=0)
                except per.Busy:
                    n_waits += 1
                    continue
            elif len(writer._waiting) >= 8:
                n_waits += 1
                continue
            else:
                writer.add(**steps)
            written[w] += len(envs)
        with contextlib.suppress(per.Busy):
            sharded.sample(int(random.integers(1, 10)))
        added = sum(shard.object._buffer.stats().added for shard in sharded._shards)
        assert coordinator._limits.added == added
        drawn = coordinator._limits.drawn
        assert added <= LIMITS["min_size_to_sample"] or -tolerance <= due(added) - drawn <= tolerance
    assert n_waits > 20
    assert min(written.values()) > 0.5 * max(written.values()) / 2  # some have two environments
    for _ in range(200):
        try:
            sharded.sample(40)
        except per.Busy:
            break
    sharded.stop_limiting()
    for _, writer in writers:
        writer.flush(timeout=0)
    assert sharded.stats().added == sum(written.values())


def limited_shard(*envs):
    """A shard of four environments, a writer for each of `envs`, and a function that allows more steps."""
    shard = Shard({"capacity": 4 * ROWS, "fields": FIELDS, "n_envs": 4}, True)
    shard.open(0, None, False)
    paths = [shard.channel(np.array([env]), 0, 0, "waits")[0] for env in envs]

    def added_of(allowed):
        """Allows `allowed` steps. Returns the number of added steps of each environment, and the calls that wait."""
        _, told = shard.ask(Message(0, 1.0, 0, allowed, b""), "summary")
        live = shard._buffer.live_ids()
        return np.bincount(live % 4, minlength=4).tolist(), told.waiting

    return shard, [per.Writer(path) for path in paths], added_of


def running_step(n_envs=1):
    return {**step_of(0, n_envs), "terminated": [False] * n_envs}


def test_channels_and_the_calls_of_writers_take_turns(in_process):
    """One step is allowed at a time, while many steps wait in each channel and many calls of a writer."""
    shard, writers, added_of = limited_shard(1, 2)
    for _ in range(20):
        shard.write("one", False, {**running_step(), "env_ids": [0]}, 1)
        for writer in writers:
            writer.add(**running_step())
    for round in range(1, 8):
        for _ in range(3):
            added, waiting = added_of(1)
        assert added == [round, round, round, 0]
        assert len(waiting) == 3 * (20 - round)


def test_a_call_of_many_steps_is_not_overtaken_by_a_channel(in_process):
    shard, (writer,), added_of = limited_shard(3)
    for _ in range(9):
        writer.add(**running_step())
    shard.write("one", False, {**running_step(3), "env_ids": [0, 1, 2]}, 3)
    assert added_of(0) == ([0, 0, 0, 0], (3, *[1] * 10))  # 9 steps and a cut, which counts as a step while it waits
    for _ in range(3):
        assert added_of(2)[0] == [0, 0, 0, 0]
    assert added_of(4)[0] == [1, 1, 1, 1]


def test_a_channel_that_is_closed_ends_once_its_steps_are_allowed(in_process):
    sharded = sharded_buffer(shards=2, **LIMITS)
    sharded.extend(**steps_of(np.random.default_rng(0), ENVS, 10))
    channel = sharded.channel([0, 1], slots=64)
    writer = channel.writer()
    for t in range(40):
        writer.add(**step_of(t, 2))
    channel.close()
    waiting = channel.stats().waiting
    assert 0 < waiting <= 40
    with pytest.raises(per.Busy, match=r"environment 1 is in a channel that is being closed$"):
        sharded.channel([1], timeout=0)
    while sharded.stats().added < 160:
        sharded.sample(20)
    with pytest.raises(per.ray.ChannelEnded):
        writer.flush()
    assert sharded.channel([1]).path != channel.path
