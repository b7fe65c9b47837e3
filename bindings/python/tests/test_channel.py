"""Channels: steps from other processes, which may be killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import time

import gymnasium
import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field(2), "action": per.Field((), "int64")}


def new_buffer(capacity: int = 1000, n_envs: int = 1, **options: object) -> per.ReplayBuffer:
    return per.ReplayBuffer(capacity, FIELDS, n_envs=n_envs, **options)


def write(writer: per.Writer, who: int, t: int, **options: object) -> None:
    """Writes a step of the channel's only environment. All its values identify the writer and the time."""
    writer.add(
        observation=[who, t],
        action=who,
        reward=t,
        terminated=False,
        truncated=False,
        next_observation=[who, t + 1],
        **options,
    )


def write_many(channel: per.Channel, who: int, count: int) -> None:
    with channel.writer() as writer:
        for t in range(count):
            write(writer, who, t)


def write_for_ever(channel: per.Channel, who: int, done: object) -> None:
    writer = channel.writer()
    for t in range(10**9):
        write(writer, who, t)
        done.value = t + 1


def rows_of(buffer: per.ReplayBuffer, env: int) -> tuple[np.ndarray, np.ndarray]:
    """Writer and time of an environment's live rows, in order. The other values of a row must agree."""
    ids = buffer.live_ids()
    batch = buffer.get(ids[ids % buffer.n_envs == env])
    observation = np.asarray(batch.observation)
    who, when = observation[:, 0].astype(int), observation[:, 1].astype(int)
    assert (np.asarray(batch.action) == who).all()
    assert (np.asarray(batch.reward) == when).all()
    assert (np.asarray(batch.next_observation) == np.stack([who, when + 1], axis=-1)).all()
    return who, when


def shared_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_bring_their_steps_in_order(method):
    context, before = multiprocessing.get_context(method), shared_files()
    buffer = new_buffer(n_envs=3)
    channels = [buffer.channel([env], slots=16) for env in (0, 2)]
    processes = [
        context.Process(target=write_many, args=(channel, who, 100)) for who, channel in enumerate(channels, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for channel in channels:
        channel.flush()
        assert channel.stats().attached == 0
    for who, env in ((1, 0), (2, 2)):
        writers, when = rows_of(buffer, env)
        assert (writers == who).all()
        assert when.tolist() == list(range(100))
    assert shared_files() - before == set() or method == "spawn"  # with spawn, multiprocessing has semaphores there
    assert not any("per-channel" in name for name in shared_files())


class WritingEnv(gymnasium.Env):
    """Writes its steps to the channel itself."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self, channel: per.Channel, who: int) -> None:
        self.writer, self.who, self.t = channel.writer(), who, 0

    def reset(self, *, seed=None, options=None):
        return np.float32([self.who, self.t]), {}

    def step(self, action):
        write(self.writer, self.who, self.t)
        self.t += 1
        return np.float32([self.who, self.t]), float(self.t), False, False, {}

    def close(self):
        self.writer.close()


def test_workers_of_a_vector_environment_write_by_themselves():
    buffer = new_buffer(n_envs=2)
    channels = [buffer.channel([env]) for env in range(2)]
    envs = gymnasium.vector.AsyncVectorEnv(
        [lambda env=env: WritingEnv(channels[env], env + 5) for env in range(2)], shared_memory=False
    )
    envs.reset()
    for _ in range(20):
        envs.step(np.zeros(2, int))
    envs.close()
    for env, channel in enumerate(channels):
        channel.flush(10)
        writers, when = rows_of(buffer, env)
        assert set(writers) == {env + 5}
        assert when.tolist() == list(range(20))


def test_writers_that_are_killed_at_any_moment_harm_nobody():
    choices, context, before = random.Random(3), multiprocessing.get_context("fork"), shared_files()
    buffer = new_buffer(100_000, n_envs=2)
    channel, other = buffer.channel([0], slots=32), buffer.channel([1])
    bystander, lives = other.writer(), []
    for life in range(12):
        done = context.Value("q", 0, lock=False)
        process = context.Process(target=write_for_ever, args=(channel, life, done))
        process.start()
        while done.value == 0:
            time.sleep(0.001)
        write(bystander, 77, life)
        if life > 0:
            buffer.sample(16)
        time.sleep(choices.random() * 0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        lives.append(done.value)
    channel.flush(10)
    other.flush(10)
    writers, when = rows_of(buffer, 0)
    for life, count in enumerate(lives):
        mine = when[writers == life].tolist()
        assert mine == list(range(len(mine)))
        assert len(mine) in (count, count + 1)
    assert (np.diff(writers) >= 0).all()
    assert rows_of(buffer, 1)[1].tolist() == list(range(12))
    assert channel.stats().writers == 12
    assert buffer.stats().cuts == 11
    assert shared_files() == before


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("flags", [False, np.zeros((5, 2), bool)], ids=["one_flag", "flags"])
def test_one_call_gives_several_steps_of_some_environments(flags):
    buffer, twin = new_buffer(n_envs=4, seed=1), new_buffer(n_envs=4, seed=1)
    with buffer.channel([3, 1, 0], slots=8).writer() as writer:
        assert writer.n_envs == 3
        assert list(writer.fields) == list(FIELDS)
        steps = {
            "observation": np.arange(20).reshape(5, 2, 2),
            "action": np.int8([[0, 1]] * 5),
            "reward": np.arange(10).reshape(5, 2),
            "terminated": flags,
            "truncated": flags,
            "mask": [[True, t != 3] for t in range(5)],
        }
        step = {"observation": np.float32([[40, 41]]), "action": np.int8([7]), "reward": np.float32([3])}
        step["next_observation"] = step["observation"]
        writer.extend(**steps, env_ids=[2, 0])
        writer.cut([2])
        writer.add(**step, terminated=np.array([True]), truncated=np.array([False]), env_ids=np.array([1]))
        writer.flush()
    twin.extend(**steps, env_ids=[0, 3])
    twin.cut([0])
    twin.add(**step, terminated=np.array([True]), truncated=np.array([False]), env_ids=np.array([1]))
    assert len(buffer) == len(twin) > 0
    assert buffer.stats().cuts == twin.stats().cuts == 1
    mine, theirs = buffer.get(buffer.live_ids()), twin.get(twin.live_ids())
    assert np.array_equal(mine.observation, theirs.observation)


@pytest.mark.usefixtures("each_way")
def test_a_full_ring_makes_its_writer_wait_or_drops():
    buffer = new_buffer()
    waits, drops = buffer.channel(slots=4), buffer.channel(slots=4, when_full="drops")
    writers = waits.writer(), drops.writer()
    for channel in (waits, drops):
        channel.flush()

    class File:
        """A file during whose writing all calls on the buffer wait, including the channels' calls."""

        def write(self, data):
            if not full:
                for t in range(4):
                    for writer in writers:
                        write(writer, 1, t)
                begin = time.monotonic()
                with pytest.raises(per.Busy, match="no room for 1 more"):
                    write(writers[0], 1, 4, timeout=0.05)
                assert time.monotonic() - begin >= 0.05
                write(writers[1], 1, 4)
                with pytest.raises(per.Busy, match="not in the buffer yet"):
                    writers[0].flush(0)
                full.append(True)
            return len(data)

    full = []
    buffer.save(File())
    waits.flush()
    drops.flush()
    assert full
    assert (waits.stats().added, waits.stats().dropped) == (4, 0)
    assert (drops.stats().added, drops.stats().dropped) == (4, 1)
    with pytest.raises(per.InvalidArgument, match="timeout is -1"):
        writers[0].flush(-1)


@pytest.mark.usefixtures("each_way")
def test_steps_come_in_by_calls_and_not_by_themselves():
    buffer = new_buffer()
    channel = buffer.channel(slots=8, moved_by="calls")
    writer = channel.writer()
    for t in range(7):
        write(writer, 1, t)
    with pytest.raises(per.Busy, match="no room for 1 more"):
        write(writer, 1, 7, timeout=0.02)
    with pytest.raises(per.Busy, match="not in the buffer yet"):
        writer.flush(0)
    assert (len(buffer), channel.move(2), len(buffer), channel.move(0), channel.move()) == (0, 2, 2, 0, 5)
    write(writer, 1, 7)
    channel.flush()
    assert rows_of(buffer, 0)[1].tolist() == list(range(8))
    for wrong in (-1, 2**63, 1.5, "all"):
        with pytest.raises(per.InvalidArgument, match=r"^max_steps is "):
            channel.move(wrong)
    with pytest.raises(per.InvalidArgument, match="channel has a thread that moves its steps"):
        buffer.channel().move()
    with pytest.raises(per.InvalidArgument, match="belongs to another process"):
        pickle.loads(pickle.dumps(channel)).move()
    write(writer, 1, 8)
    channel.close()
    assert len(buffer) == 8
    with pytest.raises(per.InvalidArgument, match="the channel was closed"):
        write(writer, 1, 9)


@pytest.mark.usefixtures("each_way")
def test_each_end_refuses_what_is_wrong():
    buffer = new_buffer(n_envs=2)
    channel = buffer.channel()
    with pytest.raises(per.InvalidArgument, match=r'field "action" is int32\(\): in the buffer it is int64\(\)'):
        per.Writer(channel.path, {**FIELDS, "action": per.Field((), "int32")})
    writer = per.Writer(channel.path, FIELDS)
    with pytest.raises(per.Busy, match="has a writer already"):
        channel.writer()
    with pytest.raises(per.InvalidArgument, match=r"observation has shape \(2, 3\)"):
        writer.add(observation=np.zeros((2, 3)), action=[0, 0], reward=0, terminated=False, truncated=False)
    with pytest.raises(per.InvalidArgument, match="speed is no field"):
        writer.add(speed=1)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(writer)
    copy = pickle.loads(pickle.dumps(channel))
    assert copy.path == channel.path
    with pytest.raises(per.InvalidArgument, match="belongs to another process"):
        copy.flush()
    channel.close()
    with pytest.raises(per.InvalidArgument, match="the channel was closed"):
        writer.flush()
    with pytest.raises(per.InvalidArgument, match="the channel is closed"):
        channel.stats()
    with pytest.raises(per.IoError, match="no channel that can be opened"):
        copy.writer()
    writer.close()
    kept = buffer.channel()
    other = kept.writer()
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="the channel was closed"):
        other.flush()
    with pytest.raises(per.InvalidArgument, match="the writer is closed"):
        writer.cut()


def test_final_observations_of_a_vector_environment_are_found():
    buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, n_envs=2, autoreset="same_step")
    with buffer.channel().writer() as writer:
        final = np.empty(2, object)
        final[1] = np.float32([8])
        writer.add(
            observation=np.float32([[1], [2]]),
            reward=[0, 0],
            terminated=[False, True],
            truncated=[False, False],
            next_observation=np.float32([[2], [0]]),
            info={"final_obs": final, "_final_obs": np.array([False, True])},
        )
        writer.flush()
    batch = buffer.get(buffer.live_ids())
    assert batch.next_observation[:, 0].tolist() == [2.0, 8.0]


def test_a_loader_draws_while_steps_come():
    buffer = new_buffer(10_000)
    channel = buffer.channel()
    write_many(channel, 1, 10)
    channel.flush()
    with buffer.loader(32) as batches:
        process = multiprocessing.get_context("fork").Process(target=write_many, args=(channel, 2, 500))
        process.start()
        for _, batch in zip(range(50), batches, strict=False):
            observation = np.asarray(batch.observation)
            assert np.array_equal(np.asarray(batch.reward), observation[:, 1])
            buffer.update_priorities(batch.ids, td_errors=batch.reward)
        process.join()
    channel.flush()
    assert channel.stats().added == 510
