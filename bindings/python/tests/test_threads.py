"""Threads and forks in Python: calls release the GIL, and closing waits for them."""

import importlib
import os
import subprocess
import sys
import threading
import time
import weakref

import cuda_switch
import numpy as np
import per
import pytest
from per import _pytrees

pytestmark = pytest.mark.usefixtures("each_way")

FIELDS = {"observation": per.Field(4), "action": per.Field((), "int64")}


def filled(rows, **options):
    buffer = per.ReplayBuffer(rows + 10, FIELDS, **options)
    flags = np.zeros(rows, bool)
    numbers = np.arange(rows)
    observation = np.repeat(numbers[:, None], 4, 1)
    buffer.extend(observation=observation, action=numbers, reward=numbers, terminated=flags, truncated=flags)
    return buffer


def run_all(*works):
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_n_step_may_change_while_another_thread_draws_sequences():
    buffer, n = filled(400, sequence_length=4, n_step=3), cuda_switch.rounds(500)
    ends = []

    def change():
        while not ends:
            buffer.n_step = 1
            buffer.n_step = 3

    def draw():
        try:
            for _ in range(n):
                batches = buffer.sample(8), buffer.get_windows([300, 304]), buffer.get_units([0]).batch
                assert {batch.observation.shape[1] for batch in batches} <= {5, 7}
        finally:
            ends.append(True)

    run_all(change, draw)


def test_threads_share_a_buffer():
    buffer, n = filled(1000), cuda_switch.rounds(300)

    def add():
        for t in range(n):
            buffer.add(observation=[t] * 4, action=t, reward=t, terminated=False, truncated=False)

    def learn():
        for _ in range(n):
            batch = buffer.sample(32)
            np.testing.assert_array_equal(batch.observation[:, 0], batch.action)
            np.testing.assert_array_equal(batch.reward, batch.action)
            buffer.update_priorities(batch.ids, batch.reward)

    run_all(add, learn, learn)
    stats = buffer.stats()
    assert (stats.samples, stats.cuts, stats.added) == (2 * n, 0, 1000 + n)


@pytest.fixture
def lock_is_kept():
    """Lets a thread release the GIL only explicitly."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", ["extend", "sample", "update_priorities"])
def test_other_threads_run_while_a_call_works(name, lock_is_kept):
    """This thread runs while another is between two marks with only a call between them, once in many calls."""
    n = 2_000 if cuda_switch.IS_CUDA else 200_000
    buffer = filled(n)
    ids, errors = np.arange(n - 1), np.ones(n - 1, np.float32)
    flags = np.zeros(n, bool)
    steps = {"observation": np.zeros((n, 4), np.float32), "action": np.arange(n), "reward": np.ones(n, np.float32)}
    calls = {
        "extend": lambda: buffer.extend(**steps, terminated=flags, truncated=flags),
        "sample": lambda: buffer.sample(n),
        "update_priorities": lambda: buffer.update_priorities(ids, errors),
    }
    calls[name]()  # fails here, if it does
    is_inside = is_seen = False

    def work():
        nonlocal is_inside
        for _ in range(1000):
            is_inside = True
            calls[name]()
            is_inside = False
            if is_seen:
                break

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive() and not is_seen:
        is_seen = is_inside
        time.sleep(0)
    thread.join()
    assert is_seen


def test_closing_a_buffer_in_use_waits_for_the_calls():
    for _ in range(20):
        buffer = filled(20_000)
        started = threading.Event()
        outcomes = []

        def sample(buffer=buffer, started=started, outcomes=outcomes):
            try:
                while True:
                    outcomes.append(buffer.sample(2048).ids.size)
                    started.set()
            except per.InvalidArgument as error:
                outcomes.append(str(error))

        thread = threading.Thread(target=sample)
        thread.start()
        started.wait()
        buffer.close()
        thread.join()
        assert outcomes[-1] == "the buffer is closed" and set(outcomes[:-1]) == {2048}


@pytest.mark.parametrize("place", ["_sequence_layout", "_new_exchange"])
def test_a_buffer_is_closed_also_for_a_call_that_first_needs_memory_of_another_shape(place, monkeypatch):
    """Closes the buffer within the call, as another thread may."""
    buffer = filled(100, sequence_length=4, n_step=3)
    make = getattr(buffer, place)

    def make_and_close(*given):
        made = make(*given)
        buffer.close()
        return made

    monkeypatch.setattr(buffer, place, make_and_close)
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        buffer.sample(8, n_step=1)


CALLS = {
    "add": "buffer.add(observation=row, reward=0, terminated=False, truncated=False)",
    "add of what Python reads": "buffer.add(observation=[1] * 500, reward=0, terminated=False, truncated=False)",
    "extend": "buffer.extend(observation=rows, reward=flags, terminated=flags, truncated=flags)",
    "sample": "buffer.sample(2000)",
    "sample into a batch": "buffer.sample(2000, out=batch)",
    "sample with hindsight": "buffer.sample(8, hindsight=per.Hindsight('observation', 'observation', reward))",
    "update": "buffer.update_priorities(batch.ids, batch.reward)",
    "update of what Python reads": "buffer.update_priorities(ids, ids)",
    "save": "buffer.save(Log())",
    "load": "per.ReplayBuffer.from_bytes(saved)",
    "error": "buffer.update_priorities([-7], [1.0])",
    "loader": "batches.take().release()",
    "loader whose slots are out": "batches.take()",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_interpreter_exits_while_daemon_threads_are_in_calls(call, each_way):
    program = f"""
import threading
import numpy as np, per
buffer = per.ReplayBuffer(1000, {{"observation": per.Field(500)}})
row, rows, flags = np.ones(500), np.ones((900, 500)), np.zeros(900, bool)
buffer.extend(observation=rows, reward=flags, terminated=flags, truncated=flags)
batch = buffer.sample(2000)
ids = batch.ids.tolist()
batches = buffer.loader(2000) if "batches" in {call!r} else None
begun = threading.Semaphore(0)
def reward(achieved, goal):
    return np.array([sum(range(100)) for _ in goal])
saved = bytes(buffer)
class Log:
    def write(self, data):
        return len(data[:5000])
def work():
    while True:
        begun.release()
        try:
            {call}
        except per.InvalidArgument:
            pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
for _ in range(12 if {call!r} != "batches.take()" else 4):
    begun.acquire()
"""
    environment = os.environ | {"PER_BRIDGE": "0" if each_way == "plain" else "1"}
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")


class Stalled:
    """A file whose first write() blocks while its save holds the buffer's lock."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write(self, data):
        self.begun.set()
        self.go_on.wait(20)
        return len(data)


NESTED = {"observation.image": per.Field(4), "observation.speed": per.Field(), "action": per.Field((), "int64")}
# By name: a function of a buffer that returns arrays by name, and a call that uses them.
HOLDING = {
    "add": (lambda buffer: steps_of(1), lambda buffer, arrays: buffer.add(**arrays)),
    "extend": (lambda buffer: steps_of(5), lambda buffer, arrays: buffer.extend(**arrays)),
    "sample": (lambda buffer: batch_of(buffer), lambda buffer, arrays: buffer.sample(8, out=per.Batch(arrays))),
    "get_windows": (
        lambda buffer: batch_of(buffer),
        lambda buffer, arrays: buffer.get_windows(np.arange(8), out=per.Batch(arrays)),
    ),
}


def steps_of(n):
    flags = np.zeros(n, bool)
    rows = np.zeros((n, 4), np.float32)
    steps = {"observation": rows, "action": np.zeros(n, np.int64), "reward": np.zeros(n, np.float32)}
    return steps | {"terminated": flags, "truncated": flags.copy()}


def batch_of(buffer):
    """The arrays of a batch, held by this dict alone; a nested observation is a nested dict."""
    batch = buffer.sample(8)
    return {name: batch[name] for name in batch}


def leaves(arrays):
    return [leaf for value in arrays.values() for leaf in (leaves(value) if isinstance(value, dict) else [value])]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", [*HOLDING, "nested sample"])
def test_a_call_holds_the_arrays_that_it_uses(name, kind):
    """While it waits for the buffer, another thread removes them from the dict that was passed."""
    if cuda_switch.IS_CUDA:
        pytest.skip("calls on a device do not use the arrays while they wait")
    is_nested, (arrays_of, call) = name.startswith("nested"), HOLDING[name.split()[-1]]
    fields = NESTED if is_nested else FIELDS
    buffer = per.ReplayBuffer(20, fields, arrays=kind)
    zeros = {field: np.zeros((10, *fields[field].shape), fields[field].dtype) for field in fields}
    buffer.extend(**zeros, reward=np.zeros(10), terminated=np.zeros(10), truncated=np.zeros(10))
    arrays, file = arrays_of(buffer), Stalled()
    if kind == "torch" and name in ("add", "extend"):
        arrays = {field: importlib.import_module("torch").from_numpy(array) for field, array in arrays.items()}
    watched = [weakref.ref(array) for array in leaves(arrays)]
    unused = [sys.getrefcount(ref()) for ref in watched]
    saving = threading.Thread(target=buffer.save, args=(file,))
    saving.start()
    assert file.begun.wait(20)
    calling = threading.Thread(target=call, args=(buffer, arrays))
    calling.start()
    end = time.monotonic() + 5
    while any(sys.getrefcount(ref()) <= count for ref, count in zip(watched, unused, strict=True)):
        if time.monotonic() > end:
            break
        time.sleep(0.001)
    for value in arrays.values():
        if isinstance(value, dict):
            value.clear()
    arrays.clear()
    are_held = [ref() is not None for ref in watched]
    file.go_on.set()
    saving.join()
    calling.join()
    assert all(are_held)


def test_error_message_is_that_of_the_own_thread():
    buffer = filled(100)
    another = filled(100) if cuda_switch.IS_CUDA else buffer  # there a buffer reports what any thread did

    def fail(argument, call, words):
        def work():
            for _ in range(cuda_switch.rounds(500)):
                with pytest.raises(per.InvalidArgument, match=words):
                    call(argument)

        return work

    run_all(
        fail([-7], lambda ids: buffer.priorities(ids), cuda_switch.said("-7", "1 ids")),
        fail(9, lambda n_step: buffer.sample(8, n_step=n_step), "n_step is 9"),
        fail([np.nan], lambda errors: another.update_priorities([0], errors), cuda_switch.said("nan", "1 priorities")),
    )


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_forked_child_has_its_own_copy():
    buffer, tree = filled(100, seed=9), per.SumTree(8)
    tree.update([3], [1.0])
    read, write = os.pipe()
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            buffer.stats()
            tree.sample(4)

    thread = threading.Thread(target=busy)
    thread.start()
    children = []
    for _ in range(10):
        child = os.fork()
        if child == 0:
            try:
                buffer.clear()
                tree.update([5], [2.0])
                os.write(write, b"%d %d;" % (len(buffer), int(tree.total)))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    os.close(write)
    with os.fdopen(read) as answers:
        assert answers.read() == "0 3;" * 10
    assert len(buffer) == 99 and tree.total == 1.0


def test_handles_are_freed_with_their_objects():
    def resident_pages():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1])

    def make():
        buffer = per.ReplayBuffer(50_000, {"observation": per.Field((100,))})  # 20 MB
        n = 1_000 if cuda_switch.IS_CUDA else 50_000
        flags = np.zeros(n, bool)
        buffer.extend(observation=np.ones((n, 100), np.float32), reward=flags, terminated=flags, truncated=flags)
        buffer.sample(n // 5)

    make()
    before = resident_pages()
    for _ in range(10):
        make()
    assert (resident_pages() - before) * os.sysconf("SC_PAGE_SIZE") < 60e6


def test_threads_that_first_need_something_at_the_same_time_share_it(monkeypatch):
    """Creation is delayed until all threads request it."""
    together = threading.Barrier(3)
    buffer = per.ReplayBuffer(100, FIELDS, sequence_length=4)
    make, registered, found = buffer._new_exchange, [], []

    def register_late():
        time.sleep(0.05)
        registered.append("torch")

    def make_late(*given):
        time.sleep(0.05)
        return make(*given)

    def need_both():
        together.wait()
        _pytrees.register()
        assert registered == ["torch"]
        found.append(buffer._exchange_for(3))

    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", object()))
    monkeypatch.setattr(_pytrees, "_registered", {"jax"})
    monkeypatch.setattr(_pytrees, "_register_with_torch", register_late)
    monkeypatch.setattr(buffer, "_new_exchange", make_late)
    run_all(*[need_both] * 3)
    assert len(set(map(id, found))) == 1
