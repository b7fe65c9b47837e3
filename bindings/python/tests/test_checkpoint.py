"""Buffers saved to files and loaded again, by path, file object, bytes and pickle."""

import copy
import gzip
import io
import math
import os
import pathlib
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

import cuda_switch
import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field(3, "float32"), "action": per.Field((), "int64")}
GOAL = {"goal": per.Field(3, default=np.zeros(3, np.float32))}
GOALS = per.Hindsight("observation", "goal", lambda achieved, goal: (achieved == goal).all(-1).astype(np.float32))


def walk(buffer, steps):
    for i in range(steps):
        buffer.add(
            observation=np.full(3, i), action=i, reward=float(i), terminated=i % 7 == 6, truncated=False,
            next_observation=np.full(3, -1 if i % 7 == 6 else i + 1),
        )  # fmt: skip


# Sequences and hindsight search whole episodes.
@pytest.mark.parametrize("options", [{}, {"sequence_length": 4, "burn_in": 1}], ids=["transitions", "sequences"])
@pytest.mark.parametrize("hindsight", [None, GOALS], ids=["as added", "hindsight"])
def test_loaded_buffer_goes_on_with_the_same_draws(tmp_path, options, hindsight):
    buffer = per.ReplayBuffer(100, FIELDS | GOAL, n_step=2, seed=3, beta_steps=10, **options)
    walk(buffer, 80)
    buffer.update_priorities(buffer.sample(32).ids, priorities=np.linspace(0, 3, 32, dtype=np.float32))
    path = tmp_path / "replay.per"
    buffer.save(path)
    loaded = per.ReplayBuffer.load(path)
    assert len(loaded) == len(buffer) and loaded.capacity == buffer.capacity
    for _ in range(3):
        expected, batch = (either.sample(64, hindsight=hindsight) for either in (buffer, loaded))
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])
        walk(buffer, 20)
        walk(loaded, 20)


def test_a_buffer_does_not_load_into_itself(tmp_path):
    buffer, path = filled(), tmp_path / "replay.per"
    buffer.save(path)
    for name, argument in (("load", path), ("from_bytes", bytes(buffer)), ("for_env", None), ("for_spaces", None)):
        with pytest.raises(AttributeError, match=rf"^ReplayBuffer\.{name}\(\) makes a new object, so it is called on"):
            getattr(buffer, name)(argument)


def test_save_in_the_background_writes_the_buffer_of_its_start(tmp_path):
    buffer, path = filled(), tmp_path / "replay.per"
    for _ in range(3):
        expected = bytes(buffer)
        save = buffer.save(path, wait=False)
        walk(buffer, 50)
        buffer.update_priorities(buffer.sample(32).ids, priorities=np.ones(32, np.float32))
        buffer.alpha = 0.3
        save.wait()
        assert save.done and save.progress == 1 and repr(save) == "per.Save(done)"
        assert path.read_bytes() == expected != bytes(buffer)
    assert buffer.save(path) is None and path.read_bytes() == bytes(buffer)


def test_save_that_fails_raises_from_every_wait_and_leaves_the_file_of_before(tmp_path):
    buffer, path = filled(), tmp_path / "replay.per"
    buffer.save(path)
    before = path.read_bytes()
    walk(buffer, 10)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        save = buffer.save(path, wait=False)
        for _ in range(2):
            with pytest.raises(per.IoError, match="File too large"):
                save.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert save.done and path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    buffer.save(path, wait=False).wait(60)
    assert path.read_bytes() == bytes(buffer)


def test_bad_arguments_of_saves_in_the_background_are_named(tmp_path):
    buffer = filled()
    with pytest.raises(per.InvalidArgument, match="path is a file object"):
        buffer.save(io.BytesIO(), wait=False)
    with pytest.raises(per.IoError):
        buffer.save(tmp_path / "missing" / "replay.per", wait=False)
    save = buffer.save(tmp_path / "replay.per", wait=False)
    for timeout in (-1, math.nan, "soon"):
        with pytest.raises(per.InvalidArgument, match="timeout is"):
            save.wait(timeout)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(save)
    save.wait()


FORGOTTEN = """
import sys, numpy as np, per
buffer = per.ReplayBuffer(200_000, {"observation": per.Field(8)}, device=sys.argv[3])
n = 150_000 if sys.argv[3] == "cpu" else 1000
flags = np.zeros(n, bool)
buffer.extend(observation=np.ones((n, 8)), reward=np.arange(n), terminated=flags, truncated=flags)
buffer.save(sys.argv[1])
buffer.save(sys.argv[2], wait=False)
if len(sys.argv) == 5:
    del buffer
"""


@pytest.mark.parametrize("deletes", [[], ["del"]], ids=["buffer is there", "buffer is gone"])
def test_interpreter_that_exits_ends_the_saves_that_run(tmp_path, deletes):
    paths = [tmp_path / "expected", tmp_path / "forgotten"]
    subprocess.run(
        [sys.executable, "-c", FORGOTTEN, *paths, "cuda" if cuda_switch.IS_CUDA else "cpu", *deletes],
        check=True,
        timeout=100,
    )
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_path_with_a_nul_is_refused_and_no_other_file_touched(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    cut = tmp_path / "replay"
    cut.write_bytes(b"mine")
    for path in (f"{cut}\0.per", type("Path", (), {"__fspath__": lambda self: f"{cut}\0.per"})()):
        for call in (buffer.save, per.ReplayBuffer.load):
            with pytest.raises(per.InvalidArgument, match=r"allowed: paths without a NUL$"):
                call(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["replay"] and cut.read_bytes() == b"mine"


def test_names_that_are_no_utf8_work(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    path = tmp_path / "replay\udcff.per"
    buffer.save(path)
    assert per.ReplayBuffer.load(path).capacity == 100


def filled(steps=80, **options):
    buffer = per.ReplayBuffer(100, FIELDS, **{"n_step": 2, "seed": 3, "beta_steps": 10, **options})
    walk(buffer, steps)
    return buffer


def same_from_here(buffer, other):
    """Whether both continue identically."""
    assert type(other) is type(buffer) and other is not buffer
    assert other.options == buffer.options and other.stats() == buffer.stats()
    for _ in range(2):
        expected, batch = buffer.sample(64), other.sample(64)
        for name in expected:
            assert type(batch[name]) is type(expected[name])
            np.testing.assert_array_equal(np.asarray(batch[name]), np.asarray(expected[name]))
        walk(buffer, 9)
        walk(other, 9)
    return True


class Chunks:
    """A file object that is not of io: it writes and reads at most `size` bytes at a time."""

    def __init__(self, size, content=b""):
        self.size, self.content = size, content

    def write(self, data):
        self.content += data[: self.size]
        return len(data[: self.size])

    def read(self, size):
        given, self.content = self.content[: min(size, self.size)], self.content[min(size, self.size) :]
        return given


def test_file_objects_get_the_bytes_of_a_file_and_give_them_back(tmp_path):
    buffer = filled()
    buffer.save(tmp_path / "path")
    content = (tmp_path / "path").read_bytes()
    with open(tmp_path / "raw", "w+b", buffering=0) as raw, tempfile.NamedTemporaryFile() as named:
        for file in (io.BytesIO(), raw, named):
            buffer.save(file)
            assert file.tell() == len(content)
            file.seek(0)
            assert file.read() == content
            file.seek(0)
            loaded = per.ReplayBuffer.load(file)
            assert file.tell() == len(content) and loaded.stats() == buffer.stats()
    with gzip.open(tmp_path / "zipped", "wb") as file:
        buffer.save(file)
    with gzip.open(tmp_path / "zipped", "rb") as file:
        assert per.ReplayBuffer.load(file).stats() == buffer.stats()
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive, archive.open("member", "w") as file:
        buffer.save(file)
    with zipfile.ZipFile(tmp_path / "archive") as archive, archive.open("member") as file:
        assert same_from_here(buffer, per.ReplayBuffer.load(file))


def test_file_may_hold_several_buffers_and_what_else():
    file, buffers = io.BytesIO(), [filled(n) for n in (0, 5, 80)]
    for buffer in buffers:
        file.write(b"mine")
        buffer.save(file)
    file.write(b"end")
    file.seek(0)
    for buffer in buffers:
        assert file.read(4) == b"mine"
        assert per.ReplayBuffer.load(file).stats() == buffer.stats()
    assert file.read() == b"end"


def test_write_and_read_may_take_less_than_they_are_given():
    buffer = filled()
    chunks = Chunks(7)
    buffer.save(chunks)
    assert chunks.content == bytes(buffer)
    assert same_from_here(buffer, per.ReplayBuffer.load(Chunks(5, chunks.content)))


def test_write_that_returns_none_has_taken_all_unless_it_is_a_raw_file():
    content = []
    buffer = filled()
    buffer.save(type("Log", (), {"write": lambda self, data: content.append(data)})())
    assert b"".join(content) == bytes(buffer)
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    with open(read, "rb", buffering=0) as source, open(write, "wb", buffering=0) as target:
        with pytest.raises(BlockingIOError):
            per.ReplayBuffer.load(source)
        with pytest.raises(BlockingIOError):
            while True:  # until the pipe is full
                buffer.save(target)


class Mine(BaseException):
    pass


def interrupt(*_):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell lack it
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def fail(*_):
    raise Mine


@pytest.mark.parametrize("act, error", [(fail, Mine), (interrupt, KeyboardInterrupt), (sys.exit, SystemExit)])
@pytest.mark.parametrize("good", [0, 1, 3])
def test_what_a_file_object_raises_passes_through_and_changes_nothing(act, error, good):
    buffer = filled()
    content, before = bytes(buffer), buffer.stats()
    calls = []

    class File(Chunks):
        def write(self, data):
            calls.append(1)
            return act() if len(calls) > good else super().write(data)

        def read(self, size):
            calls.append(1)
            return act() if len(calls) > good else super().read(size)

    for call in (lambda: buffer.save(File(100)), lambda: per.ReplayBuffer.load(File(100, content))):
        calls.clear()
        with pytest.raises(error):
            call()
        assert len(calls) == good + 1
    assert buffer.stats() == before and bytes(buffer) == content


def test_interrupt_before_the_file_object_is_called_passes_through():
    buffer = filled()

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_name == "_pass_bytes":
            raise KeyboardInterrupt

    for call in (lambda: buffer.save(io.BytesIO()), lambda: per.ReplayBuffer.load(io.BytesIO(bytes(buffer)))):
        sys.setprofile(profile)
        try:
            with pytest.raises(KeyboardInterrupt):
                call()
        finally:
            sys.setprofile(None)


@pytest.mark.parametrize(
    "file, error, words",
    [
        (type("File", (), {"write": lambda s, d: "1", "read": lambda s, n: 1})(), TypeError, "str|int"),
        (
            type("File", (), {"write": lambda s, d: 0, "read": lambda s, n: bytes(n + 1)})(),
            per.CallbackError,
            r"^(write\(\) returned 0: allowed are 1 \.\. \d+|read\(\) returned 9: allowed are 0 \.\. 8)$",
        ),
        (
            type("File", (), {"write": lambda s, d: 2**80, "read": lambda s, n: bytes(n + 1)})(),
            per.CallbackError,
            r"^(write|read)\(\) returned [1-9]",
        ),
    ],
)
def test_file_objects_that_do_not_keep_to_the_rules_are_errors(file, error, words):
    with pytest.raises(error, match=words):
        filled().save(file)
    with pytest.raises(error, match=words):
        per.ReplayBuffer.load(file)


def test_file_object_with_a_path_is_a_file_object(tmp_path):
    class File(io.BytesIO):
        def __fspath__(self):
            return str(tmp_path / "other")

    file, buffer = File(), filled()
    buffer.save(file)
    file.seek(0)
    assert per.ReplayBuffer.load(file).stats() == buffer.stats()
    assert not list(tmp_path.iterdir())


def test_what_is_neither_path_nor_file_is_refused():
    for call in (filled().save, per.ReplayBuffer.load):
        with pytest.raises(
            per.InvalidArgument, match=r"path is 3; allowed: str, bytes, os\.PathLike, or a binary file"
        ):
            call(3)


def test_files_of_text_are_refused(tmp_path):
    with open(tmp_path / "text", "w") as file, pytest.raises(per.InvalidArgument, match=r"a file of text; .*'wb'"):
        filled().save(file)
    assert (tmp_path / "text").read_bytes() == b""
    with open(tmp_path / "text") as file, pytest.raises(per.InvalidArgument, match=r"a file of text; .*'rb'"):
        per.ReplayBuffer.load(file)


def test_the_bytes_of_a_file_are_no_path_and_are_not_shown_whole():
    with pytest.raises(
        per.InvalidArgument, match=r"\.\.\.; allowed: paths without a NUL; from_bytes\(\) reads"
    ) as caught:
        per.ReplayBuffer.load(bytes(filled()))
    assert len(str(caught.value)) < 500


def test_buffer_that_is_being_saved_is_busy_for_its_file_and_others_are_not():
    buffer, other = filled(), filled()
    outcomes = []

    def write(data):
        for call in (lambda: buffer.sample(4), lambda: len(buffer), lambda: bytes(buffer), lambda: walk(buffer, 1)):
            with pytest.raises(per.Busy, match="the buffer is being saved"):
                call()
        outcomes.append(len(other.sample(4).ids))
        return len(data)

    before = bytes(buffer)
    buffer.save(type("File", (), {"write": lambda self, data: write(data)})())
    assert outcomes and set(outcomes) == {4} and bytes(buffer) == before


@pytest.mark.parametrize("ends", ["closed", "collected"])
def test_what_a_file_closes_is_closed_after_the_save(ends):
    buffer = filled()
    users = [buffer.channel(), buffer.loader(4), buffer.channel(moved_by="calls")]
    next(users[1])
    if ends == "closed":
        del users[1]  # a loader that hands out batches is in use
    writer, added = per.Writer(users[0].path), buffer.stats().added
    step = {name: np.zeros(3, np.float32) for name in ("observation", "next_observation")}
    step |= {"action": 0, "reward": 0.0, "terminated": True, "truncated": False}

    class File:
        def write(self, data):
            if users:
                writer.add(**step)
            while users:
                user = users.pop()
                if ends == "closed":
                    user.close()
            return len(data)

    buffer.save(File())
    assert buffer.stats().added == added + 1
    with pytest.raises(per.InvalidArgument, match="the channel was closed"):
        writer.add(**step)
    assert next(buffer.loader(4)).size == 4


def test_a_loader_is_not_closed_by_the_file_of_its_buffer():
    buffer = filled()
    loader = buffer.loader(4)

    class File:
        def write(self, data):
            with pytest.raises(per.Busy, match="the buffer is being saved"):
                loader.close()
            return len(data)

    buffer.save(File())
    assert next(loader).size == 4


def test_other_threads_wait_for_the_end_of_a_save(each_way):
    buffer = filled()
    before, added = bytes(buffer), buffer.stats().added
    file, begun, done = Chunks(100), threading.Event(), threading.Event()

    def add():
        begun.set()
        walk(buffer, 1)
        done.set()

    thread = threading.Thread(target=add)

    class File(Chunks):
        def write(self, data):
            if not begun.is_set():
                thread.start()
            begun.wait()
            assert not done.wait(0.001)
            return super().write(data)

    file = File(100)
    buffer.save(file)
    thread.join()
    assert file.content == before and buffer.stats().added == added + 1


@pytest.mark.parametrize("name", ["sample", "update", "state", "shares", "n_step", "epochs"])
def test_calls_in_which_other_threads_wait_for_a_saved_buffer_are_busy_for_its_file(name):
    buffer, other = filled(), filled()
    mixture = per.Mixture({"saved": (buffer, 1), "other": (other, 1)})
    batch = mixture.sample(4)
    calls = {
        "sample": lambda: mixture.sample(4),
        "update": lambda: mixture.update_priorities(batch, [1] * 4),
        "state": mixture.state_dict,
        "shares": lambda: setattr(mixture, "shares", {"saved": 1, "other": 2}),
        "n_step": lambda: setattr(buffer, "n_step", 2),
        "epochs": lambda: buffer.epochs(1, batch_size=4),
    }
    waiting = threading.Thread(target=calls["sample" if name == "state" else name], daemon=True)
    shares = []

    class File:
        def write(self, data):
            if waiting.ident is None:
                waiting.start()
                time.sleep(0.1)  # so that it most likely waits
            with pytest.raises(per.Busy, match="the buffer is being saved"):
                calls[name]()
            shares.append(mixture.shares)
            return len(data)

    saving = threading.Thread(target=buffer.save, args=(File(),), daemon=True)
    saving.start()
    saving.join(30)
    assert not saving.is_alive()
    waiting.join()
    assert shares[0] == {"saved": 0.5, "other": 0.5}


def test_a_closed_buffer_of_a_mixture_is_named_within_a_save_of_another():
    closed, saved = filled(), filled()
    mixture = per.Mixture({"closed": (closed, 1)})
    closed.close()

    class File:
        def write(self, data):
            with pytest.raises(per.InvalidArgument, match=r"^sources\['closed'\]: the buffer is closed$"):
                mixture.sample(4)
            return len(data)

    saved.save(File())


def test_bytes_make_the_same_buffer():
    buffer = filled()
    content = bytes(buffer)
    for data in (content, bytearray(content), memoryview(content), np.frombuffer(content, np.uint8)):
        assert per.ReplayBuffer.from_bytes(data).stats() == buffer.stats()
    assert same_from_here(buffer, per.ReplayBuffer.from_bytes(content))


def test_bytes_that_are_no_whole_buffer_are_refused():
    content = bytes(filled(5))
    for bad, words in (
        (b"", "not a file of libper"),
        (content[:-1], "it ends early"),
        (content + b"more", "goes on after its end, by 4 bytes"),
        (content[:200] + bytes([content[200] ^ 1]) + content[201:], "is damaged"),
    ):
        with pytest.raises(per.CorruptFile, match=words):
            per.ReplayBuffer.from_bytes(bad)
    for bad in ("text", 3, np.zeros((9, 9), np.uint8)[:, ::2]):
        with pytest.raises(per.InvalidArgument, match="allowed: contiguous bytes"):
            per.ReplayBuffer.from_bytes(bad)


class Named(per.ReplayBuffer):
    """A subclass with additional attributes."""

    def __init__(self, *args, name="", **kwargs):
        self.name = name
        super().__init__(*args, **kwargs)
        self._history = [name]


@pytest.mark.parametrize(
    "copied",
    [
        *(lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_pickled_and_copied_buffers_go_on_by_themselves(copied):
    buffer = filled()
    buffer.gamma = 0.5
    assert same_from_here(buffer, copied(buffer))
    named = Named(100, FIELDS, name="mine", arrays="torch")
    walk(named, 20)
    other = copied(named)
    assert (other.name, other._history) == ("mine", ["mine"])
    assert (other._history is named._history) == (copied is copy.copy)
    assert same_from_here(named, other)
    other.close()
    assert len(named) > 0
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        copied(other)


def test_buffers_are_part_of_what_torch_saves():
    torch = pytest.importorskip("torch")
    buffer = filled(arrays="torch")
    file = io.BytesIO()
    torch.save({"buffer": buffer, "state": buffer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    assert saved["buffer"].stats() == buffer.stats()
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert list(state) == ["checkpoint"] and state["checkpoint"].dtype == torch.uint8
    other = per.ReplayBuffer(10, FIELDS, arrays="torch")
    other.load_state_dict(state)
    assert same_from_here(buffer, other)


def test_state_dict_is_one_array_and_makes_a_buffer_what_it_was():
    buffer, other = filled(), Named(10, FIELDS, name="mine")
    state = buffer.state_dict()
    assert list(state) == ["checkpoint"] and bytes(np.asarray(state["checkpoint"])) == bytes(buffer)
    other.load_state_dict(state)
    assert other.name == "mine" and other.stats() == buffer.stats() and other.options == buffer.options
    walk(buffer, 9)
    walk(other, 9)
    np.testing.assert_array_equal(np.asarray(buffer.sample(64).ids), np.asarray(other.sample(64).ids))


def test_fields_whose_defaults_are_no_numbers_are_those_that_they_were():
    fields = {"observation": per.Field(), "pair": per.Field(2, default=(np.nan, 1)), "value": per.Field(default=np.nan)}
    buffer = per.ReplayBuffer(10, fields)
    loaded = per.ReplayBuffer.from_bytes(bytes(buffer))
    assert loaded.options == buffer.options and set(loaded.fields.values()) == set(buffer.fields.values())
    buffer.load_state_dict(loaded.state_dict())


def test_state_dict_that_does_not_fit_is_refused_and_changes_nothing():
    buffer = filled()
    before = bytes(buffer)
    good = np.frombuffer(before, np.uint8)
    two = per.ReplayBuffer(100, FIELDS, n_envs=2).state_dict()["checkpoint"]
    other = per.ReplayBuffer(100, {"observation": per.Field(2)}).state_dict()["checkpoint"]
    for state, error, words in (
        ({}, per.InvalidArgument, "state_dict has no entries; allowed: 'checkpoint'"),
        ({"checkpoint": good, "more": 1}, per.InvalidArgument, "state_dict has 'checkpoint', 'more'; allowed"),
        ({"checkpoint": good.astype(np.int64)}, per.InvalidArgument, "checkpoint is of dtype int64; allowed: uint8"),
        ({"checkpoint": good[:-1]}, per.CorruptFile, "it ends early"),
        ({"checkpoint": two}, per.InvalidArgument, "checkpoint has n_envs 2; allowed: those of the buffer, 1"),
        ({"checkpoint": other}, per.InvalidArgument, "checkpoint has fields "),
    ):
        with pytest.raises(error, match=words):
            buffer.load_state_dict(state)
        assert bytes(buffer) == before
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        buffer.load_state_dict({"checkpoint": good})


# tests/golden/buffer_of_high_ids.per: 40 steps of two environments, the lanes of which begin at row 2^53;
# the reward of a row is its id - 2^54. float64 has no odd numbers there.
@pytest.mark.parametrize("arrays", ["numpy", "torch", "jax"])
def test_ids_beyond_2_to_the_53_are_exact(arrays):
    path = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "buffer_of_high_ids.per"
    first = 2**54
    buffer = per.ReplayBuffer.load(path, arrays=arrays)
    live = np.asarray(buffer.live_ids())
    assert live.tolist() == [first + 50 + 2 * row + env for env in range(2) for row in range(15)]

    def whole(ids):
        ids = np.ascontiguousarray(ids)
        # JAX has no int64, and represents each as two halves.
        return ids.view(np.int64)[:, 0] if ids.ndim == 2 else ids

    batch = buffer.sample(256)
    ids = whole(batch.ids)
    assert ids.dtype == np.int64 and set(ids % 2) == {0, 1}
    assert (ids - first == np.asarray(batch.reward)).all()
    priorities = np.arange(1, len(live) + 1, dtype=np.float32)
    for given in (live, live.tolist()):
        buffer.update_priorities(given, priorities=priorities)
        np.testing.assert_array_equal(np.asarray(buffer.priorities(given)), priorities)
        assert (np.asarray(buffer.get(given).reward) == live - first).all()
    buffer.update_priorities(batch.ids, priorities=np.asarray(batch.reward))
    assert buffer.stats().stale_updates == 0
    following = np.array([80, 81])
    ids = buffer.add(observation=np.stack([following] * 2, 1), goal=np.zeros((2, 2)), value=[0, 0], advantage=[0, 0],
                     reward=following, terminated=[False] * 2, truncated=[False] * 2)  # fmt: skip
    assert whole(ids).tolist() == [first + 80, first + 81]
