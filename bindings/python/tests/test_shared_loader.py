"""Shared loaders: batches for readers in other processes, which may be killed at any moment."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time

import numpy as np
import per
import pytest
from per import _kinds

FIELDS = {"observation": per.Field(2), "action": per.Field((), "int64")}
BATCH = 16


def filled(n: int = 200, **options: object) -> per.ReplayBuffer:
    buffer = per.ReplayBuffer(1000, FIELDS, seed=3, **options)
    add(buffer, 0, n)
    return buffer


def add(buffer: per.ReplayBuffer, first: int, end: int, who: int = 1) -> None:
    """Adds steps whose values all identify who added them and when."""
    when = np.arange(first, end)
    observation = np.stack([np.full_like(when, who), when], axis=-1)
    no = np.zeros(len(when), bool)
    buffer.extend(
        observation=observation,
        next_observation=observation + np.int64([0, 1]),
        action=np.full_like(when, who),
        reward=when,
        terminated=no,
        truncated=no,
    )


def check_rows(batch: per.Batch) -> None:
    who, when = np.asarray(batch.observation).T
    assert (np.asarray(batch.action) == who).all()
    assert (np.asarray(batch.reward) == when).all()
    assert (np.asarray(batch.next_observation) == np.stack([who, when + 1], axis=-1)).all()


def read_many(loader: per.SharedLoader, count: int, results: object) -> None:
    with loader.reader() as batches:
        got = [batch.ids.copy() for _, batch in zip(range(count), batches, strict=False)]
    results.put(np.stack(got))


def read_for_ever(loader: per.SharedLoader, done: object, wrong: object) -> None:
    reader = loader.reader()
    for batch in reader:
        try:
            check_rows(batch)
        except AssertionError:
            wrong.value = True
        reader.update_priorities(batch.ids, td_errors=batch.reward)
        done.value += 1


def write_for_ever(channel: per.Channel, who: int, done: object) -> None:
    writer = channel.writer()
    for t in range(10**9):
        observation = np.float32([who, t])
        writer.add(
            observation=observation,
            next_observation=observation + np.int64([0, 1]),
            action=who,
            reward=t,
            terminated=False,
            truncated=False,
        )
        done.value += 1
        if t % 16 == 0:
            time.sleep(0.0001)


def per_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "per" in name}


def same(batch: per.Batch, expected: per.Batch) -> bool:
    assert list(batch) == list(expected)
    return all(np.array_equal(np.asarray(batch[name]), np.asarray(expected[name])) for name in expected)


def test_a_reader_that_cannot_be_made_keeps_no_place(monkeypatch):
    def refuse(kind, layout):
        raise per.InvalidArgument("these arrays cannot be had")

    with filled().shared_loader(BATCH, readers=1) as loader:
        with monkeypatch.context() as patch, pytest.raises(per.InvalidArgument, match="cannot be had") as kept:
            patch.setattr(_kinds, "check_dtypes", refuse)
            loader.reader()
        assert kept.value.__traceback__ is not None  # it refers to the object that could not be created
        assert loader.stats().attached == 0
        with loader.reader() as batches:
            check_rows(next(batches))


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_one_reader_gets_what_a_loader_gives(arrays):
    if arrays == "torch":
        pytest.importorskip("torch")
    buffer, twin = filled(), filled()
    loader, expected = buffer.shared_loader(BATCH, readers=1, slots=3), twin.loader(BATCH)
    with loader.reader(arrays) as batches:
        for step, batch, other in zip(range(30), batches, expected, strict=False):
            assert same(batch, other)
            if step % 2:
                batches.update_priorities(batch.ids, td_errors=batch.reward)
                twin.update_priorities(other.ids, td_errors=other.reward)
            else:
                values = np.abs(np.asarray(batch.reward)) + step
                batches.update_priorities(batch.ids, priorities=values)
                twin.update_priorities(other.ids, priorities=values)
        batches.flush()
        assert batches.batch_size == BATCH
        assert list(batches.fields) == list(FIELDS)
    assert loader.stats().updates == 30
    assert buffer.stats().updates == twin.stats().updates


def test_sequences_are_those_of_the_buffer():
    options = {"sequence_length": 4, "burn_in": 2, "n_step": 3}
    buffer, twin = filled(**options), filled(**options)
    with buffer.shared_loader(BATCH, readers=1, n_step=2).reader() as batches:
        for _ in range(3):
            batch, expected = next(batches), twin.sample(BATCH, n_step=2)
            assert same(batch, expected)
        batches.update_priorities(batch.ids, td_errors=np.full((BATCH, 6), 3.0))
        batches.update_priorities(batch.ids, td_errors=np.full((2, BATCH, 4), 5.0))
        batches.flush()
        assert (buffer.priorities(batch.ids) > 5).all()
        with pytest.raises(
            per.InvalidArgument, match=r"td_errors has shape \[16, 5\]; allowed: \[16, 4\] or \[16, 6\]"
        ):
            batches.update_priorities(batch.ids, td_errors=np.zeros((BATCH, 5)))


def test_arrays_share_the_memory_and_nested_fields_are_nested():
    fields = {"observation.image": per.Field(3), "observation.speed": per.Field()}
    buffer = per.ReplayBuffer(100, fields, store_next_observation=True)
    given = {"image": np.ones((5, 3)), "speed": np.arange(5)}
    no = np.zeros(5, bool)
    buffer.extend(observation=given, next_observation=given, reward=np.zeros(5), terminated=no, truncated=no)
    loader = buffer.shared_loader(BATCH, readers=1)
    reader = loader.reader()
    first, second = reader.take(), reader.take()
    assert set(first.observation) == {"image", "speed"}
    with pytest.raises(per.Busy, match="no batch was there in time"):
        reader.take(timeout=0.05)
    speed = second.observation["speed"]
    addresses = {first.observation["speed"].ctypes.data, speed.ctypes.data}
    first.release()
    first.release()
    for _ in range(10):
        with_loader = reader.take()
        addresses.add(with_loader.observation["speed"].ctypes.data)
        with_loader.release()
    assert len(addresses) == 3  # one more than may be out
    speed[:] = 99  # it may be written to
    reader.close()
    reader.close()
    del reader, first, second
    assert speed.tolist() == [99] * BATCH or (speed < 5).all()  # memory stays while an array uses it
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        loader.stats()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_share_the_batches_of_one_loader(method):
    context, before, count = multiprocessing.get_context(method), per_files(), 40
    buffer, twin = filled(), filled()
    loader = buffer.shared_loader(BATCH, readers=2)
    queues = [context.SimpleQueue() for _ in range(2)]
    processes = [context.Process(target=read_many, args=(loader, count, queue)) for queue in queues]
    for process in processes:
        process.start()
    got = [queue.get() for queue in queues]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    places = [0, 0]
    for _ in range(2 * count):
        ids = twin.sample(BATCH).ids
        (owner,) = [r for r in range(2) if places[r] < count and np.array_equal(got[r][places[r]], ids)][:1]
        places[owner] += 1
    assert places == [count, count]
    assert (loader.stats().handed, loader.stats().readers) == (2 * count, 2)
    while loader.stats().out > 0:
        time.sleep(0.01)
    assert per_files() == before


def test_processes_that_are_killed_at_any_moment_harm_nobody():
    choices, context, before = random.Random(3), multiprocessing.get_context("fork"), per_files()
    done, wrong = [context.Value("q", 0, lock=False) for _ in range(3)], context.Value("b", False, lock=False)
    n_descriptors = len(os.listdir("/proc/self/fd"))
    buffer = per.ReplayBuffer(2000, FIELDS, n_envs=2)
    channel = buffer.channel([0], slots=64)
    for t in range(50):
        observation = np.float32([9, t])
        buffer.add(
            observation=observation[None],
            next_observation=observation[None] + np.int64([0, 1]),
            action=[9],
            reward=[t],
            terminated=[False],
            truncated=[False],
            env_ids=[1],
        )
    loader = buffer.shared_loader(BATCH, readers=2)

    def start(which: int, life: int) -> multiprocessing.Process:
        target, args = (
            (write_for_ever, (channel, life, done[0]))
            if which == 0
            else (
                read_for_ever,
                (loader, done[which], wrong),
            )
        )
        process = context.Process(target=target, args=args, daemon=True)
        process.start()
        return process

    processes = [start(which, 0) for which in range(3)]
    for life in range(1, 25):
        which = choices.randrange(3)
        time.sleep(choices.random() * 0.01)
        os.kill(processes[which].pid, signal.SIGKILL)
        processes[which].join()
        processes[which] = start(which, life)
        counts = [value.value for value in done]
        while any(value.value < count + 2 for value, count in zip(done, counts, strict=True)):
            assert all(process.is_alive() for process in processes)
            time.sleep(0.001)
        assert not wrong.value
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        process.close()
    while loader.stats().out > 0:
        time.sleep(0.01)
    assert loader.stats().refused == 0
    loader.close()
    channel.close()
    buffer.close()
    del processes
    assert per_files() == before
    assert len(os.listdir("/proc/self/fd")) <= n_descriptors


def test_each_end_refuses_what_is_wrong():
    buffer = filled()
    loader = buffer.shared_loader(BATCH, readers=1)
    with pytest.raises(per.Busy, match="has a loader already"):
        buffer.loader(BATCH)
    with pytest.raises(per.InvalidArgument, match=r"readers is 0: allowed are 1 \.\. 1024"):
        buffer.shared_loader(BATCH, readers=0)
    with pytest.raises(per.InvalidArgument, match="arrays is 'jax'"):
        loader.reader("jax")
    reader = per.Reader(loader.path)
    with pytest.raises(per.Busy, match="has 1 readers already"):
        loader.reader()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(reader)
    with pytest.raises(per.InvalidArgument, match="one of the two"):
        reader.update_priorities([0])
    with pytest.raises(per.InvalidArgument, match=r"td_errors\[1\] gives the priority nan"):
        reader.update_priorities([0, 1], td_errors=[1, np.nan])
    with pytest.raises(per.InvalidArgument, match="timeout is -1"):
        reader.take(timeout=-1)
    reader.update_priorities([10**6], priorities=[1])
    reader.flush(10)
    assert loader.stats().refused == 1
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.path == loader.path
    with pytest.raises(per.InvalidArgument, match="belongs to another process"):
        copy.stats()
    errors = []

    def wait() -> None:
        try:
            for _ in reader:
                reader.take()
        except per.InvalidArgument as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    loader.close()
    thread.join()
    assert errors == ["the shared loader was closed"]
    with pytest.raises(per.InvalidArgument, match="the shared loader is closed"):
        loader.stats()
    with pytest.raises(per.IoError, match="no shared loader that can be opened"):
        copy.reader()
    reader.close()
    with pytest.raises(per.InvalidArgument, match="the reader is closed"):
        reader.take()
    buffer.loader(BATCH).close()


def test_the_rate_limiter_makes_readers_wait():
    buffer = filled(0, samples_per_insert=1, samples_tolerance=32, min_size_to_sample=20)
    with buffer.shared_loader(BATCH, readers=1).reader() as batches:
        with pytest.raises(per.Busy):
            batches.take(timeout=0.05)
        thread = threading.Thread(target=lambda: [add(buffer, t, t + 1) for t in range(20)])
        thread.start()
        assert len(next(batches).ids) == BATCH
        thread.join()


def train(rank: int, loader: per.SharedLoader, rendezvous: str, results: object) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    with loader.reader(arrays="torch") as batches:
        for _, batch in zip(range(10), batches, strict=False):
            error = model(batch.observation)[:, 0] - batch.reward
            optimizer.zero_grad()
            (batch.weights * error**2).mean().backward()
            optimizer.step()
            batches.update_priorities(batch.ids, td_errors=error.detach())
        batches.flush()
    results.put([value.detach().numpy().tolist() for value in model.parameters()])
    torch.distributed.destroy_process_group()


def test_a_reader_that_waits_learns_that_the_buffer_is_closed():
    buffer = per.ReplayBuffer(100, {"observation": per.Field()}, samples_per_insert=1, samples_tolerance=4)
    kept = buffer.shared_loader(2, readers=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        batch = pool.submit(next, iter(kept.reader()))
        concurrent.futures.wait([batch], 0.1)
        assert not batch.done()
        buffer.close()
        with pytest.raises(per.InvalidArgument, match="the shared loader was closed"):
            batch.result(30)


def test_ranks_of_a_data_parallel_learner_share_a_buffer(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    context, buffer = multiprocessing.get_context("spawn"), filled()
    loader, results = buffer.shared_loader(BATCH, readers=2), context.SimpleQueue()
    processes = [
        context.Process(target=train, args=(rank, loader, str(tmp_path / "ranks"), results)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    models = [results.get() for _ in processes]
    for process in processes:
        process.join()
    assert models[0] == models[1]
    assert (loader.stats().handed, loader.stats().updates) == (20, 20)
