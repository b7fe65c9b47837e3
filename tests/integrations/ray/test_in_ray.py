"""Shards, writers and learners are processes on several nodes, and each of them may die."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import per
import per.ray
import pytest
import ray
from common import ENVS, ROWS, assert_goes_on_as_one, assert_same, one_buffer, sharded_buffer, step_of, steps_of
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ON_NODES = {"resources": {"shard": 1}}
HALF = ENVS // 2


def made(**options):
    """A buffer of two shards, one on each node."""
    return sharded_buffer(**{"shards": 2, "actor_options": ON_NODES, **options})


def filled(buffer, n=10, seed=1):
    random = np.random.default_rng(seed)
    for _ in range(n):
        buffer.add(**steps_of(random, ENVS))
    return buffer


def wait_for(condition):
    """Polls for at least a minute. It counts polls, so that a pause of the machine is not a failure."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it has not come about")


def asked(actor, question):
    """The result of a function of the object in an actor."""
    return ray.get(actor.__ray_call__.remote(question))


def kill(buffer, s):
    """Kills a shard with signal 9."""
    os.kill(asked(buffer._shards[s], lambda _: os.getpid()), 9)


def is_running(pid):
    """False also if the process has ended and its parent has not waited for it.

    The first thread may end before the others; only the last one closes the files of the process.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def nodes_of(buffer):
    return [asked(shard, lambda _: ray.get_runtime_context().get_node_id()) for shard in buffer._shards]


@pytest.fixture
def buffer(cluster):
    buffer = made()
    yield buffer
    buffer.close()


def test_shards_on_several_nodes_draw_what_one_buffer_draws(buffer):
    whole = one_buffer()
    assert len(set(nodes_of(buffer))) == 2
    assert_goes_on_as_one(whole, buffer, np.random.default_rng(5), 20)
    steps = steps_of(np.random.default_rng(3), ENVS, 5)
    assert np.array_equal(whole.extend(**steps), buffer.extend(**steps))
    with whole.loader(16, slots=3) as ours, buffer.loader(16, slots=3) as theirs:
        for _, batch, drawn in zip(range(5), ours, theirs, strict=False):
            assert_same(batch, drawn)
            whole.update_priorities(batch.ids, batch.reward)
            buffer.update_priorities(drawn.ids, drawn.reward)


@ray.remote(num_cpus=0)
class Learner:
    """Draws from a buffer that other learners draw from, too."""

    def __init__(self, buffer):
        self.buffer = buffer

    def learn(self, n):
        ids = []
        for _ in range(n):
            batch = self.buffer.sample(16)
            self.buffer.update_priorities(batch.ids, batch.reward)
            ids.append(batch.ids)
        return np.concatenate(ids)


@ray.remote(num_cpus=0)
def act(writer, seed, n):
    """Writes episodes of 5 steps. A reward identifies the environment and the time."""
    for t in range(n):
        env = np.array([seed, seed + 1])
        writer.add(
            observation=np.zeros((2, 2)),
            action=[0, 0],
            reward=100.0 * env + t,
            terminated=[t % 5 == 4] * 2,
            truncated=[False] * 2,
            next_observation=np.zeros((2, 2)),
        )
    writer.flush()
    return writer.lost


def test_writers_and_learners_are_other_processes(buffer):
    n = 30
    lost = ray.get([act.remote(buffer.writer([env, env + 1]), env, n) for env in range(0, ENVS, 2)])
    assert lost == [0] * 4
    assert len(buffer) == ENVS * n
    learners = [Learner.remote(buffer) for _ in range(2)]
    drawn = np.concatenate(ray.get([learner.learn.remote(5) for learner in learners]))
    batch = buffer.sample(64)
    assert (batch.reward // 100 == batch.ids % ENVS).all()
    assert (np.concatenate([drawn, batch.ids]) // ENVS < ROWS).all()
    stats = buffer.stats()
    assert (stats.samples, stats.updates, stats.outlived_updates) == (11, 160, 0)
    with pytest.raises(per.InvalidArgument, match=r"env_ids are of shards \[0, 1\]"):
        buffer.writer([3, 4])


@ray.remote(num_cpus=0, max_restarts=0)
class Worker:
    """Writes through a channel."""

    def __init__(self, channel):
        self.channel, self.writer = channel, channel.writer()

    def write(self, steps):
        self.writer.add(**steps)

    def write_for_ever(self, steps):
        for t in range(10**9):
            self.writer.add(**{**steps, "reward": [float(t)], "terminated": [True]})

    def flush(self):
        self.writer.flush()

    def pid(self):
        return os.getpid()


def worker_of(channel):
    """An actor on the node of a channel."""
    there = NodeAffinitySchedulingStrategy(channel.node_id, soft=False)
    return Worker.options(scheduling_strategy=there).remote(channel)


def test_workers_on_the_nodes_of_shards_write_through_shared_memory(buffer):
    """There is a writer of Ray, too. Written steps are added after the next batch."""
    whole = filled(one_buffer())
    filled(buffer)
    runs = [[0, 1], [2, 3], [5, 4, 6, 7]]
    channels = [buffer.channel(envs) for envs in runs[1:]]
    assert [channel.node_id for channel in channels] == nodes_of(buffer)
    with pytest.raises(per.InvalidArgument, match="the channel is on node "):
        channels[0].writer()  # the driver is on another node
    workers, writer = [worker_of(channel) for channel in channels], buffer.writer(runs[0])
    ray.get([worker.pid.remote() for worker in workers])  # they are attached
    assert_same(whole.sample(16), buffer.sample(16))
    whole.cut([2, 3, 4, 5, 6, 7])
    random = np.random.default_rng(6)
    for _ in range(15):
        steps = steps_of(random, ENVS)
        of_run = [{name: array[envs] for name, array in steps.items()} for envs in runs]
        writer.add(**of_run[0])
        ray.get([worker.write.remote(part) for worker, part in zip(workers, of_run[1:], strict=True)])
        batch = whole.sample(32)
        assert_same(batch, buffer.sample(32))
        whole.add(**steps)
        for each in (whole, buffer):
            each.update_priorities(batch.ids, batch.reward)
    assert len(whole) == len(buffer)


def test_deaths_of_workers_and_of_their_shard(buffer):
    """Killing a worker harms nobody. After a shard is killed, the next call of its worker fails."""
    channel = buffer.channel([6], slots=16)
    killed = worker_of(channel)
    pid = ray.get(killed.pid.remote())
    steps = {name: array[:1] for name, array in step_of(0).items()}
    killed.write_for_ever.remote(steps)
    wait_for(lambda: buffer.stats().added > 100)  # the ring wraps around several times
    os.kill(pid, 9)
    wait_for(lambda: channel.stats().attached == 0)
    len(buffer)
    assert channel.stats().refused == channel.stats().waiting == 0
    rewards = np.unique(buffer.sample(256).reward)  # the strata are narrower than transitions, so each one is drawn
    assert rewards.size == len(buffer)
    assert (np.diff(rewards) == 1).all()
    assert rewards[-1] == channel.stats().added - 1

    worker = worker_of(channel)
    ray.get(worker.write.remote(steps))
    pid = asked(buffer._shards[1], lambda _: os.getpid())
    os.kill(pid, 9)
    wait_for(lambda: not is_running(pid))
    with pytest.raises(per.ray.ChannelEnded, match="the channel's process has ended"):
        ray.get(worker.write.remote(steps))
    again = buffer.channel([6], slots=16)  # waits until the shard is back
    worker = worker_of(again)
    ray.get(worker.write.remote({**steps, "terminated": [True]}))
    ray.get(worker.flush.remote())
    assert (len(buffer), buffer.stats().losses) == (1, 1)


def test_a_shard_that_dies_takes_its_mass_out_and_comes_back_from_its_checkpoint(buffer, tmp_path):
    random = np.random.default_rng(9)
    filled(buffer)
    buffer.add(**{**steps_of(random, ENVS), "terminated": [True] * ENVS})  # no running episode is left to be cut
    at_save = len(buffer)
    buffer.save(tmp_path)
    late = buffer.add(**steps_of(random, ENVS))[HALF:]  # after the checkpoint, in shard 1
    before = buffer.sample(64)
    kill(buffer, 1)
    batch = buffer.sample(64)
    is_gone = not (batch.ids % ENVS // HALF == 1).any()
    assert is_gone or (batch.ids[batch.ids % ENVS // HALF == 1] >> 48 == 1).all()
    assert buffer.stats().losses == 1
    wait_for(lambda: buffer.stats().shards == 2)
    assert len(buffer) == at_save + HALF

    # Shard 1 gives the same numbers to rows as it did after the checkpoint, but its ids contain the number of its life.
    again = buffer.add(**steps_of(random, ENVS))[HALF:]
    assert ((again & (2**48 - 1)) == late).all()
    assert (again >> 48 == 1).all()
    updates = buffer.stats().updates
    buffer.update_priorities(late, priorities=[1e9] * HALF)
    assert buffer.stats().outlived_updates == HALF
    assert buffer.stats().updates == updates
    assert (buffer.sample(64).priorities < 1e9).all()
    of_dead = before.ids % ENVS // HALF == 1
    buffer.update_priorities(before.ids, priorities=np.full(64, 0.5, np.float32))
    assert buffer.stats().outlived_updates == HALF + of_dead.sum()
    buffer.update_priorities(again, priorities=[1e9] * HALF)
    assert set(again) & set(buffer.sample(64).ids)


def test_batches_on_their_way_at_the_same_time_say_how_likely_they_were(buffer):
    """Each weight is 1 / (N P), so their expected mean is 1, whichever totals the coordinator knew.

    200 batches of 64; of priorities from 0.1 to 1 at alpha 1 a weight has a standard deviation below 2. Their mean is
    beyond 1 +- 5 * 2 / sqrt(200 * 64) once in a million runs, however Ray orders the calls.
    """
    random = np.random.default_rng(2)
    filled(buffer)
    weights = []
    with buffer.loader(64, slots=4, exact=False, beta=1.0, normalize_weights="none") as batches:
        for _, batch in zip(range(200), batches, strict=False):
            weights.append(batch.weights)
            buffer.update_priorities(batch.ids, priorities=random.uniform(0.1, 1.0, 64).astype(np.float32))
    assert abs(np.mean(weights) - 1) < 10 / np.sqrt(200 * 64)


def test_a_shard_that_was_never_saved_comes_back_empty(buffer):
    filled(buffer)
    writer, n = buffer.writer([0, 1]), 15
    steps = {name: array[:2] for name, array in step_of(0).items()}
    for call in range(n):
        if call == 3:
            kill(buffer, 0)
        writer.add(**steps)
    buffer.sample(16)
    wait_for(lambda: buffer.stats().shards == 2)
    writer.flush()
    assert asked(buffer._shards[0], lambda shard: shard._buffer.stats().added) == 2 * (n - writer.lost)
    assert 3 <= writer.lost <= n
    asked(buffer._shards[0], lambda shard: shard._buffer.clear())
    assert not (buffer.sample(256).ids % ENVS < HALF).any()
    filled(buffer, 3, seed=2)
    assert (buffer.sample(256).ids % ENVS < HALF).any()


def test_a_checkpoint_goes_on_bit_for_bit_after_the_death_of_its_driver(cluster, tmp_path):
    program = f"""
import ray, per.ray, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_in_ray import made, filled, step_of
ray.init(address={cluster.address!r}, log_to_driver=False)
buffer = filled(made())
batch = buffer.sample(16)
buffer.update_priorities(batch.ids, batch.reward)
buffer.save({str(tmp_path)!r})
buffer.add(**step_of(8))
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    whole = filled(one_buffer())
    batch = whole.sample(16)
    whole.update_priorities(batch.ids, batch.reward)
    buffer = per.ray.ReplayBuffer.load(tmp_path, actor_options=ON_NODES)
    assert_goes_on_as_one(whole, buffer, np.random.default_rng(4), 10)
    assert_goes_on_as_one(whole, buffer, np.random.default_rng(4), 1)
    buffer.close()


def test_a_buffer_whose_coordinator_died_is_loaded_again(buffer, tmp_path):
    whole = filled(one_buffer())
    filled(buffer).save(tmp_path)
    writer = buffer.writer([0])
    ray.kill(buffer._coordinator)
    for call in (lambda: buffer.sample(16), lambda: next(buffer.loader(16)), buffer.stats, writer.flush):
        with pytest.raises(ray.exceptions.RayActorError):
            call()
    loaded = per.ray.ReplayBuffer.load(tmp_path, actor_options=ON_NODES)
    assert_goes_on_as_one(whole, loaded, np.random.default_rng(4), 5)
    loaded.close()


def test_a_coordinator_that_is_killed_goes_on_as_one_buffer(buffer):
    """Learners and writers wait until the coordinator is back."""
    whole = filled(one_buffer())
    filled(buffer)
    for seed in range(2):
        os.kill(asked(buffer._coordinator, lambda _: os.getpid()), 9)
        assert_same(whole.sample(16), buffer.sample(16))  # sample() is retried; add() would raise
        assert_goes_on_as_one(whole, buffer, np.random.default_rng(seed), 5)

    learning = [learner.learn.remote(20) for learner in (Learner.remote(buffer), Learner.remote(buffer))]
    acting = [act.remote(buffer.writer([env, env + 1]), env, 30) for env in range(0, ENVS, 2)]
    added, pid = buffer.stats().added, asked(buffer._coordinator, lambda _: os.getpid())
    os.kill(pid, 9)
    assert [len(ids) for ids in ray.get(learning)] == [20 * 16] * 2
    assert ray.get(acting) == [0] * 4
    assert asked(buffer._coordinator, lambda _: os.getpid()) != pid
    stats = buffer.stats()
    assert (stats.added >= added, stats.losses, stats.shards) == (True, 0, 2)


def test_actors_and_a_learner_stay_in_step_though_a_shard_dies(cluster):
    """Actors and learner run to the end, as fast as the rate limiter allows."""
    rate, tolerance, least = 2.0, 64, 50
    limits = {"samples_per_insert": rate, "samples_tolerance": tolerance, "min_size_to_sample": least}
    buffer = made(**limits)
    acting = [act.remote(buffer.writer([env, env + 1]), env, 60) for env in range(0, ENVS, 2)]
    drawn = refused = 0
    while len(ray.wait(acting, num_returns=len(acting), timeout=0)[0]) < len(acting):
        try:
            buffer.sample(16)
        except per.Busy:
            refused += 1
        else:
            drawn += 16
            if drawn == 160:
                kill(buffer, 0)
        added, counted = asked(buffer._coordinator, lambda at: (at._limits.added, at._limits.drawn))
        assert counted == drawn
        assert added <= least or -tolerance <= rate * (added - least) - drawn <= tolerance
    assert ray.get(acting[2:]) == [0, 0]
    assert drawn > 500
    with pytest.raises(per.Busy):  # all actors have finished
        for _ in range(100):
            buffer.sample(16)
    buffer.close()


def test_an_actor_that_waits_for_draws_goes_on_once_nothing_is_limited(cluster):
    buffer = made(samples_per_insert=1.0, samples_tolerance=16)
    acting = act.remote(buffer.writer([0, 1]), 0, 60)
    wait_for(lambda: asked(buffer._shards[0], lambda shard: len(shard._waiting)) > 8)
    buffer.stop_limiting()
    assert ray.get(acting) == 0
    assert buffer.stats().added == 120
    buffer.close()


def test_nodes_that_join_have_room_for_shards_and_one_that_dies_takes_its_own(cluster, tmp_path):
    def node_for(shards):
        return cluster.add_node(num_cpus=1, resources={"late": shards}, object_store_memory=80 * 2**20)

    buffer = made(least_shards=0, timeout=5, actor_options={"resources": {"late": 1}})
    assert buffer.add(**step_of(0)).tolist() == [-1] * ENVS
    with pytest.raises(per.Empty):
        buffer.sample(16)
    with pytest.raises(per.Busy, match="shard 0 is gone"):
        buffer.save(tmp_path)

    node = node_for(2)
    wait_for(lambda: buffer.stats().shards == 2)
    filled(buffer)
    buffer.save(tmp_path)
    at_save = len(buffer)

    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: buffer.stats().shards == 0)
    with pytest.raises(per.Empty):
        buffer.sample(16)
    node = node_for(1)
    wait_for(lambda: buffer.stats().shards == 1)
    assert len(buffer) == at_save / 2
    assert len(set(buffer.sample(64).ids % ENVS // HALF)) == 1
    assert buffer.stats().losses == 2
    buffer.close()
    cluster.remove_node(node, allow_graceful=False)
