"""Signal handlers amid calls: an exception while handles are created leaks none, and calls in a handler end."""

import contextlib
import dis
import gc
import itertools
import linecache
import os
import pathlib
import random
import signal
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import cuda_switch
import numpy as np
import per
import pytest
from per import _pytrees, llm
from per._library import ffi, lib
from per.integrations import _first_step

PACKAGE = str(pathlib.Path(per.__file__).parent)
FIELDS = {"observation": per.Field(64)}
ROWS = 1_000 if cuda_switch.IS_CUDA else 200_000


def filled():
    buffer = per.ReplayBuffer(ROWS, FIELDS)
    zeros = np.zeros(ROWS - 1)
    observation = np.zeros((ROWS - 1, 64), np.float32)
    buffer.extend(observation=observation, reward=zeros, terminated=zeros, truncated=zeros)
    return buffer


def loading(tmp_path):
    per.ReplayBuffer(ROWS, FIELDS).save(tmp_path / "saved")

    def load():
        with contextlib.suppress(per.IoError):
            per.ReplayBuffer.load(tmp_path / "missing")  # so that a constructor fails, too
        return per.ReplayBuffer.load(tmp_path / "saved")

    return load


def loading_from_memory(tmp_path):
    data = bytes(per.ReplayBuffer(ROWS, FIELDS))
    return lambda: per.ReplayBuffer.from_bytes(data)


def saving(tmp_path):
    buffer = per.ReplayBuffer(10, FIELDS)

    def save():
        while True:
            try:
                return buffer.save(tmp_path / "saved", wait=False)
            except per.Busy:  # an interrupted one is still running
                time.sleep(0.001)

    return save


def of_buffer(make, prepare=lambda buffer: buffer):
    def making(tmp_path):
        prepared = prepare(filled())
        return lambda: make(prepared)

    return making


def attaching(attach):
    """A call that takes the only place there is, which an interrupted call may hold until its frames are collected."""

    def make(parent):
        for _ in range(20):
            with contextlib.suppress(per.Busy):
                return attach(parent)
            gc.collect()
        return attach(parent)

    return make


# By library function that creates a handle: a function that returns a call of it.
MAKERS = {
    "per_tree_create": lambda tmp_path: lambda: per.SumTree(2**20),
    "per_replay_create": lambda tmp_path: lambda: per.ReplayBuffer(ROWS, FIELDS),
    "per_replay_load": loading,
    "per_replay_load, from memory": loading_from_memory,
    "per_replay_save_start": saving,
    "per_epochs_create": of_buffer(lambda buffer: buffer.epochs(1, 64)),
    "per_loader_create": of_buffer(lambda buffer: buffer.loader(256, slots=8)),
    "per_coordinator_create": lambda tmp_path: lambda: per.Coordinator(2**18, 2**16, n_envs=2**16),
    "per_channel_create": of_buffer(lambda buffer: buffer.channel()),
    "per_writer_attach": of_buffer(attaching(lambda channel: channel.writer()), lambda buffer: buffer.channel()),
    "per_shared_loader_create": of_buffer(lambda buffer: buffer.shared_loader(256, readers=2)),
    "per_reader_attach": of_buffer(
        attaching(lambda loader: loader.reader()), lambda buffer: buffer.shared_loader(256, readers=1)
    ),
}
# The instructions at the begin and end of an except clause. Python handles no signal there. If a trace function raises
# there, the thread keeps an exception that counts as being handled, and that becomes the context of all later ones.
HANDLER_ENDS = {"PUSH_EXC_INFO", "COPY", "POP_EXCEPT"}
each_maker = pytest.mark.parametrize("name", MAKERS)


def test_every_function_that_creates_a_handle_is_tried():
    kinds = [ffi.typeof(getattr(lib, name)) for name in dir(lib) if name.endswith("_free")]
    cells = {ffi.getctype(kind.args[0], "*") for kind in kinds}
    functions = [(name, ffi.typeof(getattr(lib, name))) for name in dir(lib) if callable(getattr(lib, name))]
    creating = {name for name, kind in functions if kind.args and ffi.getctype(kind.args[-1]) in cells}
    assert creating == {name.partition(",")[0] for name in MAKERS}


class Leaks:
    """Looks for leaked handles. Most take megabytes of address space, or their parent's only place."""

    def __init__(self, make):
        self._make = make
        make()
        self._before = self._bytes()

    def check(self):
        gc.collect()
        self._make()
        assert self._bytes() - self._before < 200e6

    @staticmethod
    def _bytes():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def is_interrupted(make, point):
    """Calls it with an exception at that point of the package; False if it has no such point.

    A point is a line, and where handles are made each operation of Python.
    """
    passed = set()

    def trace(frame, event, argument):
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = file.endswith("_handle.py")
        line = linecache.getline(file, frame.f_lineno or 0).strip()
        # Python handles no signal between the body of a with statement and its exit, which is traced as the same line.
        is_point = event in ("line", "opcode") and not line.startswith("with ")
        if is_point and dis.opname[frame.f_code.co_code[frame.f_lasti]] not in HANDLER_ENDS:
            passed.add((frame.f_code, frame.f_lasti))
        if len(passed) > point:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        make()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(earlier)
    return False


@each_maker
def test_an_exception_at_any_point_of_a_constructor_loses_no_handle(name, tmp_path):
    make = MAKERS[name](tmp_path)
    leaks, point = Leaks(make), 0
    while is_interrupted(make, point):
        point += 1
    assert point > 20
    assert sys.exc_info() == (None, None, None)
    leaks.check()


def duration(make):
    begin = time.perf_counter()
    make()
    return time.perf_counter() - begin


@each_maker
def test_a_storm_of_signals_over_a_constructor_loses_no_handle(name, tmp_path, monkeypatch):
    # The hook of pytest keeps exceptions of callbacks of the collector, with all frames below them and their handles.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    make, randomness, interrupts = MAKERS[name](tmp_path), random.Random(1), 0
    leaks = Leaks(make)

    def interrupt(number, frame):
        """Raises only inside the package: a signal may arrive late."""
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                raise KeyboardInterrupt
            frame = frame.f_back

    longest = 1.2 * min(duration(make) for _ in range(3))
    earlier = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            signal.setitimer(signal.ITIMER_REAL, max(randomness.uniform(0, longest), 1e-6))
            try:
                make()
            except KeyboardInterrupt:
                interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if interrupts == 40:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # make() may have failed
        signal.signal(signal.SIGALRM, earlier)
    leaks.check()


@contextlib.contextmanager
def called_at_each_line(handler):
    """Calls it before each line of the package, where a signal handler might run. A call that waits forever fails."""

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            handler()  # untraced
        return trace

    def give_up(number, frame):
        raise TimeoutError

    earlier, earlier_trace = signal.signal(signal.SIGALRM, give_up), sys.gettrace()
    signal.alarm(60)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(earlier_trace)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)


def test_a_handler_may_use_a_mixture_amid_its_calls():
    mixture = per.Mixture({"a": (filled(), 1), "b": (filled(), 1)})
    batch, shares = mixture.sample(4), []

    def handler():
        assert mixture.sample(2).size == 2
        shares.append(mixture.state_dict()["shares"])
        mixture.update_priorities(batch, priorities=[1] * 4)

    with called_at_each_line(handler):
        mixture.sample(4)
        mixture.shares = {"a": 3, "b": 9}
        mixture.update_priorities(batch, priorities=[2] * 4)
    before, after = {"a": 0.5, "b": 0.5}, {"a": 0.25, "b": 0.75}
    assert shares.count(before) + shares.count(after) == len(shares) > 20
    assert shares[0] == before
    assert shares[-1] == after


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_child_may_use_what_another_thread_used_when_it_was_forked():
    mixture = per.Mixture({"a": (filled(), 1), "b": (filled(), 1)})
    prompts, sequences = llm.Prompts(range(9)), per.ReplayBuffer(400, FIELDS, sequence_length=4, n_step=1)
    sequences.extend(**steps_of(300, 1))
    is_over = threading.Event()

    def use():
        mixture.sample(4)
        mixture.shares = {"a": 3, "b": 9}
        prompts.update([2], [0.5])
        sequences.n_step = 3

    def use_for_long():
        while not is_over.is_set():
            use()

    thread = threading.Thread(target=use_for_long)
    thread.start()
    try:
        for _ in range(50):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                use()
                os._exit(0 if sequences.sample(2).observation.shape[1] == 7 and mixture.sample(4).size == 4 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        is_over.set()
        thread.join()


def test_a_handler_may_add_the_first_step_amid_the_first_step():
    class Owner:
        buffer = None

    def declared(owner):
        return _first_step.declared(owner, "buffer", lambda: per.ReplayBuffer(10, FIELDS))

    def is_handled_at(point):
        owner, seen, lines = Owner(), [], itertools.count()
        with called_at_each_line(lambda: seen.append(declared(owner)) if next(lines) == point else None):
            buffer = declared(owner)
        assert all(each is buffer is owner.buffer for each in seen)
        return len(seen) == 1

    points = itertools.takewhile(is_handled_at, itertools.count())
    assert sum(1 for _ in points) > 20


def test_a_handler_may_create_a_buffer_amid_the_registration_of_batches(monkeypatch):
    calls = []
    monkeypatch.setattr(_pytrees, "_registered", set())
    for library in ("jax", "torch"):
        monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
        monkeypatch.setattr(_pytrees, f"_register_with_{library}", lambda library=library: calls.append(library))
    with called_at_each_line(_pytrees.register):
        _pytrees.register()
    assert sorted(calls) == ["jax", "torch"]


def each_interruption(make, is_same=True):
    """Calls it with an interrupt at each point, and yields after each. `is_same`: each call has the same points."""
    point = 0
    while is_interrupted(make, point):
        yield point
        point += 1
    assert point > 3
    if is_same:
        assert not any(is_interrupted(make, point + k) for k in range(1, 20)), "an interrupt was swallowed"


def steps_of(n, value):
    end = np.zeros(n)
    return {"observation": np.full((n, 64), value, np.float32), "reward": end, "terminated": end, "truncated": end}


def test_an_interrupted_change_of_n_step_leaves_draws_and_epochs_whole():
    buffer = per.ReplayBuffer(400, FIELDS, sequence_length=4, n_step=1)
    buffer.extend(**steps_of(300, 1))
    values = itertools.cycle([30, 1])
    for _ in each_interruption(lambda: setattr(buffer, "n_step", next(values))):
        shapes = {batch.observation.shape[1:] for batch in buffer.epochs(1, 16)}
        assert shapes == {buffer.sample(2).observation.shape[1:]} == {(4 + buffer.n_step, 64)}


def steps_added(buffer):
    """How many it has, if it is whole; None if it is closed."""
    try:
        before = buffer.stats().added
    except per.InvalidArgument:
        for call in (lambda: buffer.extend(**steps_of(1, 3)), lambda: buffer.sample(1), buffer.state_dict):
            with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
                call()
        return None
    buffer.extend(**steps_of(1, 3))
    assert buffer.stats().added == before + 1
    return before


def test_an_interrupted_load_leaves_the_buffer_whole_or_closed():
    other = per.ReplayBuffer(100, FIELDS)
    other.extend(**steps_of(60, 2))
    state, buffers, added = other.state_dict(), [per.ReplayBuffer(100, FIELDS)], []
    for _ in each_interruption(lambda: buffers[-1].load_state_dict(state)):
        added.append(steps_added(buffers[-1]))
        buffers.append(per.ReplayBuffer(100, FIELDS))
    assert added[0] == 0
    assert None in added
    assert set(added) <= {0, 60, None}


def batches_of(kind, buffer):
    if kind == "loader":
        return buffer.loader(4, slots=3)
    return buffer.shared_loader(4, readers=1, slots=3).reader()


def has_all_slots(batches):
    held = [batches.take(timeout=5) for _ in range(3)]
    for batch in held:
        batch.release()
    return True


@pytest.mark.parametrize("kind", ["loader", "reader"])
def test_a_handler_may_take_batches_amid_the_next_one(kind):
    batches = batches_of(kind, filled())

    def handler():
        batch = next(batches)
        assert batch.size == 4
        batch.release()

    for _ in range(3):
        with called_at_each_line(handler):
            batch = next(batches)  # which the handler's call releases, if that comes last
        batch.release()
        assert has_all_slots(batches)


def test_threads_that_wait_for_the_next_batch_lose_no_slot():
    buffer = per.ReplayBuffer(ROWS, FIELDS, min_size_to_sample=9)
    batches, taken = buffer.loader(4, slots=3), []
    threads = [threading.Thread(target=lambda: taken.append(next(batches))) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # both wait
    buffer.extend(**steps_of(20, 1))
    for thread in threads:
        thread.join(20)
    assert len(taken) == 2
    for batch in taken:
        batch.release()
    assert has_all_slots(batches)


@pytest.mark.parametrize("kind", ["loader", "reader"])
def test_no_interrupt_loses_a_slot(kind):
    batches, taken = batches_of(kind, filled()), []
    for _ in each_interruption(lambda: taken.append(batches.take(timeout=5)), is_same=False):
        assert taken == []
        assert has_all_slots(batches)
    for _ in each_interruption(lambda: taken[-1].release()):
        taken[-1].release()
        assert has_all_slots(batches)
        taken.append(batches.take(timeout=5))
    for _ in each_interruption(lambda: next(batches), is_same=False):
        assert next(batches).size == 4
    next(batches).release()
    assert has_all_slots(batches)


def test_an_interrupt_of_a_reward_function_is_raised():
    buffer = per.ReplayBuffer(100, {"observation": per.Field(64), "goal": per.Field(64)})
    buffer.extend(goal=np.ones((60, 64), np.float32), **steps_of(60, 2))
    hindsight = per.Hindsight("observation", "goal", lambda achieved, goal: np.full(len(goal), 5, np.float32))
    for _ in each_interruption(lambda: buffer.sample(4, hindsight=hindsight)):
        assert buffer.sample(2).size == 2


def test_threads_start_saves_of_different_buffers(tmp_path):
    def work(i):
        buffer = per.ReplayBuffer(10, FIELDS)
        for _ in range(100):
            buffer.save(tmp_path / str(i), wait=False).wait()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [None] * 4


@pytest.mark.parametrize("call", [llm.Prompts.state_dict, lambda prompts: prompts.sample(4)])
def test_prompts_keep_their_masses_through_an_interrupt(call):
    prompts = llm.Prompts(range(9), seed=3)
    rates = np.linspace(0, 1, 9, dtype=np.float32)
    prompts.update(range(9), rates)
    expected = (rates * (1 - rates) + np.float32(0.01)).tolist()
    for _ in each_interruption(lambda: call(prompts)):
        assert prompts.rates(range(9)).tolist() == rates.tolist()
        assert prompts._tree.priorities(range(9)).tolist() == pytest.approx(expected)
        assert sorted(prompts.sample(9)) == list(range(9))
