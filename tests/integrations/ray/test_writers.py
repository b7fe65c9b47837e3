"""Writers send steps directly to a shard, which adds them after its next answer to the coordinator."""

from __future__ import annotations

import numpy as np
import per
import per.ray
import pytest
from common import ENVS, FIELDS, SHARDS, both, sharded_buffer, step_of, steps_of, writers_by_shard


def write(writers, steps):
    for s, writer in enumerate(writers):
        writer.add(**{name: array[2 * s : 2 * s + 2] for name, array in steps.items()})


def test_written_steps_are_taken_in_where_too_many_wait_or_nothing_else_is_there(in_process):
    _, sharded = both()
    writers = writers_by_shard(sharded)
    before = len(sharded)
    for seed in range(80):
        write(writers, step_of(seed))
    assert len(sharded) > before
    empty = sharded_buffer()
    write(writers_by_shard(empty), step_of(0))
    assert len(empty.sample(16).ids) == 16


def test_steps_that_a_full_lane_refuses_are_counted(in_process):
    buffer = per.ray.ReplayBuffer(2 * 4, FIELDS, n_envs=2, shards=2, overwrite=False)
    writer = buffer.writer([1])
    steps = {name: array[:, :1] for name, array in steps_of(np.random.default_rng(0), 1, 6).items()}
    writer.extend(**steps)
    writer.flush()
    assert (writer.refused, writer.lost, buffer.stats().refused_calls) == (1, 0, 1)
    assert "overwrite" in writer.refusal
    assert buffer.stats().refusal == writer.refusal
    with pytest.raises(per.Full):
        buffer.extend(**{name: np.repeat(array, 2, axis=1) for name, array in steps.items()})


def test_a_shard_that_dies_loses_what_waits_and_gives_no_id_twice(in_process, tmp_path):
    whole, sharded = both()
    writers = writers_by_shard(sharded)
    sharded.save(tmp_path)
    write(writers, step_of(3))
    sharded._shards[2].die()
    batch = sharded.sample(64)
    at_shard = batch.ids % ENVS // 2 == 2
    assert (batch.ids[at_shard] >> 48 == 1).all()
    assert (batch.ids[~at_shard] >> 48 == 0).all()
    stats = sharded.stats()
    assert (stats.losses, stats.shards, len(sharded)) == (1, SHARDS, len(whole) + ENVS - 2)
    of_first_life = batch.ids & (2**48 - 1)
    sharded.update_priorities(of_first_life, priorities=np.full(64, 1e6, np.float32))
    assert sharded.stats().outlived_updates == at_shard.sum()
    assert sharded.stats().updates == 64 - at_shard.sum()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_the_true_transitions_are_drawn_however_environments_reset(in_process, counting, mode):
    envs = counting.vector(mode, 4)
    fields = {"observation": per.Field(3), "action": per.Field((), "int64")}
    buffer = per.ray.ReplayBuffer(800, fields, n_envs=4, shards=2, autoreset=mode)
    names = "next_observation", "reward", "terminated", "truncated", "info"
    for seen, action, step in counting.steps(envs, 60):
        buffer.add(observation=seen, action=action, **dict(zip(names, step, strict=True)))
    batch = buffer.sample(1000)
    columns = batch.observation, batch.action, batch.reward, batch.next_observation, batch.terminated
    assert counting.drawn(*columns) == set(counting.transitions)
