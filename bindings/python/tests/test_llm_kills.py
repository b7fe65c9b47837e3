"""The files of per.llm.Groups: a trainer that is killed (SIGKILL) at any system call goes on, and loses nothing."""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import errno
import functools
import gc
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import per
import per.llm
import pytest
from test_llm import Walk, contents_of, holds_the_law

IS_LONG = os.environ.get("PER_TEST_ALL") == "1"
N_KILLS = 1000 if IS_LONG else 60
SIZE, PER_VERSION, AHEAD, VERSIONS = 3, 2, 1, 12
FIELDS = {"tokens": per.Field(None, "int32", max_length=40), "place": per.Field((), "int8")}


class Vfs(ctypes.Structure):
    """sqlite3_vfs of sqlite3.h, whose xSetSystemCall() replaces the functions that SQLite calls."""

    _fields_ = (
        ("numbers", ctypes.c_int * 3),
        ("pointers", ctypes.c_void_p * 16),  # pNext, zName, pAppData, and calls up to xCurrentTimeInt64
        ("set_call", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)),
        ("get_call", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)),
    )


INT, TEXT, POINTER, SIZE_T, OFFSET = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
CALLS = {
    "open": (INT, TEXT, INT, INT),
    "write": (ctypes.c_ssize_t, INT, POINTER, SIZE_T),
    "pwrite": (ctypes.c_ssize_t, INT, POINTER, SIZE_T, OFFSET),
    "pwrite64": (ctypes.c_ssize_t, INT, POINTER, SIZE_T, OFFSET),
    "ftruncate": (INT, INT, OFFSET),
    "unlink": (INT, TEXT),
}
_sqlite3_vfs_find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
_sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)


@contextlib.contextmanager
def calls_of_files(around):
    """Has around(name, function, *arguments) called in place of each call that changes a file, of SQLite and of os."""
    vfs = _sqlite3_vfs_find(None)
    kept = []
    for name, types in CALLS.items():
        kind = ctypes.CFUNCTYPE(*types, use_errno=True)
        if address := vfs.contents.get_call(vfs, name.encode()):
            kept.append(kind(functools.partial(around, name, kind(address))))
            vfs.contents.set_call(vfs, name.encode(), ctypes.cast(kept[-1], ctypes.c_void_p))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "link", "unlink"):
            patch.setattr(os, name, functools.partial(around, name, getattr(os, name)))
        try:
            yield
        finally:
            vfs.contents.set_call(vfs, None, None)  # all as they were


class Killer:
    """Kills the process at the n-th call: before, after or amid it."""

    def __init__(self, calls_left, random):
        self.calls_left, self.random, self.seen = calls_left, random, set()

    def __call__(self, name, function, *args):
        self.calls_left -= 1
        self.seen.add(name)
        if self.calls_left == 0:
            if "write" in name:
                descriptor, contents, size, *offset = args
                function(descriptor, contents, int(self.random.integers(size + 1)), *offset)
            elif self.random.random() < 0.5:
                function(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)


def tokens_of(group, member):
    """An answer, which the ids determine."""
    return np.random.default_rng([group, member]).integers(0, 9, 1 + (7 * group + member) % 13).astype(np.int32)


def fails(group):
    return group % 7 == 3


class Trainer:
    """Generates, learns and advances, until all versions are done; goes on from the files if there are any.

    What is learned follows from the ids, so that batches must not depend on kills.
    """

    def __init__(self, path, order, random):
        options = {"max_age": AHEAD, "uses": 1, "order": order, "seed": 5, "capacity": 9}
        self.path, self.random, self.is_lazy = path, random, order == "issued"
        self.log = open(f"{path}.log", "a", buffering=1)  # noqa: SIM115
        if not os.path.exists(path):
            per.llm.Groups(SIZE, FIELDS, per_version=PER_VERSION, ahead=AHEAD, path=path, **options).__exit__()
        self.load()

    def load(self):
        self.groups = per.llm.Groups.load(self.path)
        self.given = {group: set() for group in self.groups.missing()}

    def run(self):
        while self.groups.version < VERSIONS:
            if self.groups.counts().consumed == (self.groups.version + 1) * PER_VERSION:
                self.groups.advance()
                continue
            self.generate()
            try:
                lease = self.groups.sample(PER_VERSION)
            except per.Busy:
                continue
            self.learn(lease)
            assert holds_the_law(self.groups)

    def generate(self):
        """Members are given in random order and in pieces. With the order "issued" some groups stay open."""
        while self.groups.room:
            for group in self.groups.reserve(self.groups.room):
                self.given[group] = set()
        members = [(group, member) for group in self.groups.missing() for member in range(SIZE)]
        if self.random.random() < 0.5:  # otherwise group by group, so that some are sealed even between frequent kills
            members = self.random.permutation(members).reshape(-1, 2).tolist()
        for group, member in members:
            if group not in self.groups.missing() or member in self.given[group]:
                continue
            if self.is_lazy and self.random.random() < 0.3:
                continue
            if fails(group):
                self.groups.fail(group)
                self.groups.room and self.generate()
                continue
            tokens = tokens_of(group, member)
            cut = self.random.integers(len(tokens) + 1)
            if not self.given[group]:
                self.groups.update_priorities([group], [1 + group % 5])
            self.groups.append(group, member, tokens=tokens[:cut])
            self.groups.close(group, member, reward=group + member / 8, tokens=tokens[cut:], place=member)
            self.given[group].add(member)
            if self.random.random() < 0.05:
                self.groups.__exit__()
                self.load()
                return self.generate()  # again what the open groups had
        assert holds_the_law(self.groups)

    def learn(self, lease):
        batch = lease.batch
        for i, group in enumerate(lease.groups.tolist()):
            for member in range(SIZE):
                assert batch.tokens[i, member].tolist() == tokens_of(group, member).tolist()
            assert batch.place[i].tolist() == [*range(SIZE)]
            assert batch.reward[i].tolist() == [group + member / 8 for member in range(SIZE)]
        assert (lease.ages >= 0).all() and (lease.ages <= AHEAD).all()
        if self.random.random() < 0.2:
            self.groups.release(lease)
            again = self.groups.sample(PER_VERSION)
            assert again.groups.tolist() == lease.groups.tolist()
            lease = again
        self.log.write(json.dumps(lease.groups.tolist()) + "\n")
        if self.is_lazy:
            self.groups.ack(lease)  # run() advances
        else:
            self.groups.ack(lease, version=self.groups.version + 1)


def batches_of(path):
    """The batches that were learned. A kill between the log and ack() repeats the last one."""
    with open(f"{path}.log") as log:
        lines = [json.loads(line) for line in log]
    return [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]


def in_a_child(function):
    """Runs a function in a forked child. Returns whether it ended; False if it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), "an assertion failed in the child: see its output"
    return status == 0


def finish(path, order, seed, calls=-1):
    random = np.random.default_rng(seed)
    with calls_of_files(killer := Killer(calls, random)):
        Trainer(path, order, random).run()
    is_whole = calls < 0  # a run after the last kill may find nothing left to do
    assert not is_whole or killer.seen & {"write", "pwrite", "pwrite64"}, "SQLite's calls were not replaced"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("order", ["issued", "priority"])
def test_a_trainer_that_is_killed_learns_each_group_once_in_the_same_batches(order, tmp_path):
    assert in_a_child(lambda: finish(tmp_path / "whole", order, seed=0))
    whole = batches_of(tmp_path / "whole")
    learned = sum(whole, [])  # noqa: RUF017
    assert len(whole) == VERSIONS and len(set(learned)) == len(learned) and not any(map(fails, learned))
    if order == "issued":
        assert learned == [group for group in range(learned[-1] + 1) if not fails(group)]
    random = np.random.default_rng(1)
    kills = run = 0
    while kills < N_KILLS // 2:
        path, run = tmp_path / f"{run}", run + 1
        most = int(random.choice([60, 150, 400]))  # calls until a kill; a new file takes 30, sealing a group 10
        calls = int(random.integers(1, most + 1))
        while not in_a_child(lambda: finish(path, order, kills + 10, calls)):  # noqa: B023
            calls = int(random.integers(1, most + 1))
            kills += 1
        assert batches_of(path) == whole
        groups = per.llm.Groups.load(path)
        assert holds_the_law(groups) and groups.counts().consumed == len(learned)
        retired = groups.counts().retired_by
        failed = [group for group in range(groups.counts().issued) if fails(group) and group not in groups.missing()]
        assert retired["failed", ""] == len(failed) and (order == "priority" or len(retired) == 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_new_ledger_is_whole_or_not_there(tmp_path):
    path, calls = tmp_path / "ledger", 0
    while not in_a_child(lambda: created(path, calls)):  # noqa: B023
        if path.exists():
            with per.llm.Groups.load(path) as groups:
                assert groups.counts().issued == 0 and groups.reserve(2) == [0, 1]
            path.unlink()
        calls += 1
    assert calls > 20  # most of them are SQLite's


def created(path, calls):
    with calls_of_files(Killer(calls + 1, np.random.default_rng(calls))):
        per.llm.Groups(1, capacity=2, path=path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_new_ledger_does_not_begin_with_the_log_of_a_deleted_one(tmp_path):
    path = tmp_path / "ledger"

    def killed():
        groups = per.llm.Groups(1, capacity=2, path=path)
        groups.reserve(2)
        os.kill(os.getpid(), signal.SIGKILL)

    assert not in_a_child(killed)
    path.unlink()
    with pytest.raises(FileExistsError, match=f"{path}-wal: File exists"):
        per.llm.Groups(1, capacity=2, path=path)
    os.unlink(f"{path}-wal")
    assert per.llm.Groups(1, capacity=2, path=path).counts().issued == 0


def test_of_ledgers_that_are_created_at_once_one_has_the_path(tmp_path, monkeypatch):
    path, link = tmp_path / "ledger", os.link

    def slower(part, name):
        monkeypatch.undo()
        per.llm.Groups(2, capacity=4, path=path).__exit__()
        link(part, name)

    monkeypatch.setattr(os, "link", slower)
    with pytest.raises(FileExistsError):
        per.llm.Groups(1, capacity=2, path=path)
    assert os.listdir(tmp_path) == ["ledger"] and per.llm.Groups.load(path).counts().issued == 0


# ---- damage


@pytest.fixture
def path(tmp_path):
    """The file of a ledger that was closed, after a random walk of 150 calls."""
    walk = Walk(7, tmp_path)
    for _ in range(150):
        walk.step()
    walk.groups.__exit__()
    return walk.path


def test_a_file_with_damage_is_refused_or_read_as_it_was(path):
    """Bytes that no row uses do not matter."""
    whole = path.read_bytes()
    with per.llm.Groups.load(path) as groups:
        contents = contents_of(groups)
    random = np.random.default_rng(3)

    def is_refused(changed):
        path.write_bytes(changed)
        try:
            with per.llm.Groups.load(path) as groups:
                assert contents_of(groups) == contents
        except per.CorruptFile as error:
            assert str(error).startswith(f"{path}")
            return True
        return False

    pages = range(0, len(whole), 4096)
    assert all(is_refused(whole[:page]) for page in pages)
    assert sum(is_refused(whole[:page] + bytes(4096) + whole[page + 4096 :]) for page in pages) > 4
    swapped = (whole[: at + 8] + whole[at + 10 : at + 12] + whole[at + 8 : at + 10] + whole[at + 12 :] for at in pages)
    assert sum(map(is_refused, swapped)) > 2  # rows in another order would be read, but not found later
    places = range(len(whole)) if IS_LONG else [*range(100), *random.integers(0, len(whole), 200).tolist()]
    changes = (whole[:at] + bytes([whole[at] ^ int(random.integers(1, 256))]) + whole[at + 1 :] for at in places)
    assert sum(map(is_refused, changes)) > len(places) // 20


def test_a_file_without_a_row_is_refused(path):
    whole = path.read_bytes()
    for table in ("ledger", "groups", "answers", "retired"):
        path.write_bytes(whole)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            keys = [key for key, *_ in connection.execute(f"SELECT * FROM {table}")]
            key = next(iter(connection.execute(f"PRAGMA table_info({table})")))[1]
            connection.execute(f"DELETE FROM {table} WHERE {key} = ?", (keys[0],))
            connection.commit()
        with pytest.raises(per.CorruptFile, match=f"{path}: rows are missing"):
            per.llm.Groups.load(path)


def test_a_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "ledger"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE facts (name, value, checksum)")
    with pytest.raises(per.CorruptFile, match=f"{path} is not a file of per.llm.Groups"):
        per.llm.Groups.load(path)
    for contents in (b"", b"0", bytes(5000)):
        path.write_bytes(contents)
        with pytest.raises(per.CorruptFile, match=f"{path}"):
            per.llm.Groups.load(path)


def test_no_checksum_depends_on_the_text_of_a_real(tmp_path):
    """SQLite 3.40 writes 1 / 3 as 3.33333333333333314829e-01, and 3.51 with one digit less."""
    groups = per.llm.Groups(2, {"x": per.Field(), "tokens": FIELDS["tokens"]}, capacity=8, path=tmp_path / "ledger")
    groups.reserve(3)
    for group, member in np.ndindex(2, 2):
        groups.close(group, member, 1 / 3, x=1 / 3, tokens=[1])
    groups.update_priorities([0, 1, 2], [1 / 3, 1e300, 5e-324])
    groups.fail(1)
    for table in ("ledger", "groups", "answers", "retired"):
        rows = groups._database.sql(f"SELECT * FROM {table}")
        assert rows and not any(isinstance(value, float) for row in rows for value in row)
    assert (groups.sample(1).batch.reward == np.float32(1 / 3)).all()


def test_a_log_that_is_cut_or_damaged_gives_an_earlier_state(tmp_path):
    """As after a power failure without fsync."""
    walk, states = Walk(7, tmp_path), []
    for _ in range(60):
        walk.step()
        states.append(contents_of(per.llm.Groups.load(walk.groups.state_dict())))
    file, log = walk.path.read_bytes(), (tmp_path / "7-wal").read_bytes()
    walk.groups.__exit__()
    random, found = np.random.default_rng(2), []
    for place in np.sort(random.integers(0, len(log), 60)).tolist():
        changed = bytearray(log)
        changed[place] ^= int(random.integers(1, 256))
        for contents in (log[:place], log[:place] + bytes(5000), changed):
            walk.path.write_bytes(file)
            (tmp_path / "7-wal").write_bytes(contents)
            with per.llm.Groups.load(walk.path) as groups:
                found.append(states.index(contents_of(groups)))
    assert found == sorted(found) and len(set(found)) > 8


def test_a_ledger_that_cannot_be_loaded_lets_its_file_go(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:5000])
    with pytest.raises(per.CorruptFile) as first:
        per.llm.Groups.load(path)
    path.write_bytes(whole)
    assert per.llm.Groups.load(path).counts().issued and first.tb


# ---- paths, processes, errors of the system


def test_the_file_stays_where_it_was_created(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with per.llm.Groups(1, capacity=8, path="ledger") as groups:
        groups.reserve(3)
        monkeypatch.chdir(tmp_path / "other")
        groups.reserve(1)
    assert os.listdir() == [] and per.llm.Groups.load("../ledger").counts().issued == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_nothing_and_holds_no_lock(tmp_path):
    path = tmp_path / "ledger"
    groups = per.llm.Groups(1, capacity=8, path=path)
    groups.reserve(1)

    def change():
        nonlocal groups
        for call in (groups.reserve, groups.advance, groups.counts):
            with pytest.raises(per.InvalidArgument, match="the process from which this one was forked"):
                call()
        groups.__exit__()
        del groups
        gc.collect()

    assert in_a_child(change)
    assert os.path.exists(f"{path}-wal") and groups.reserve(1) == [1]
    end, begin = os.pipe()
    if (child := os.fork()) == 0:
        os.write(begin, b"x")
        signal.pause()  # lives longer than the ledger
    os.read(end, 1)
    groups.__exit__()
    try:
        assert per.llm.Groups.load(path).counts().issued == 2
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["ledger", None])
def test_a_child_that_was_forked_during_a_change_is_refused_and_does_not_wait(name, tmp_path):
    groups = per.llm.Groups(1, capacity=8, path=name and tmp_path / name)
    is_held, is_done = threading.Event(), threading.Event()

    def hold():
        with groups._lock:
            is_held.set()
            is_done.wait()

    def change():
        signal.alarm(20)
        for call in (groups.reserve, groups.state_dict, lambda: groups.wait_blocking(room=1)):
            with pytest.raises(per.InvalidArgument, match="the process from which this one was forked"):
                call()
        groups.__exit__()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        assert in_a_child(change)
    finally:
        is_done.set()
        thread.join()


def test_a_copy_of_the_file_lets_no_other_ledger_in(tmp_path):
    path = tmp_path / "ledger"
    groups = per.llm.Groups(1, capacity=8, path=path)
    shutil.copy(path, tmp_path / "copy")  # closes a descriptor of the file, and so gives up SQLite's locks
    program = f"import per.llm; per.llm.Groups.load({str(path)!r})"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert other.returncode == 1 and "is in use by another ledger" in other.stderr
    assert groups.reserve(2) == [0, 1]


def test_a_path_belongs_to_one_ledger(tmp_path):
    path = tmp_path / "a?b%20 #1"
    groups = per.llm.Groups(2, capacity=4, path=path)
    with pytest.raises(per.Busy, match="is in use by another ledger"):
        per.llm.Groups.load(path)
    assert in_a_child(lambda: is_busy(path))
    del groups
    with pytest.raises(FileExistsError) as error:
        per.llm.Groups(2, capacity=4, path=path)
    assert error.value.errno == errno.EEXIST and error.value.filename == str(path)
    with per.llm.Groups.load(path) as groups:
        assert groups.counts().issued == 0
    assert os.listdir(tmp_path) == [path.name]


def is_busy(path):
    with pytest.raises(per.Busy):
        per.llm.Groups.load(path)


@pytest.mark.parametrize(
    "name, kind", [("none", FileNotFoundError), ("", IsADirectoryError), ("file/ledger", NotADirectoryError)]
)
def test_a_path_that_cannot_be_opened_is_an_error_of_the_system(name, kind, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(kind) as error:
        per.llm.Groups.load(tmp_path / name)
    assert isinstance(error.value, per.IoError) and error.value.filename == str(tmp_path / name)
    with pytest.raises(OSError):
        per.llm.Groups(1, capacity=1, path=tmp_path / name / "none" / "ledger")


def test_a_file_that_sqlite_cannot_open_is_an_error_of_the_system(path):
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 50, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        os.close(taken.pop())  # for the lock
        with pytest.raises(per.IoError) as error:
            per.llm.Groups.load(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)
    assert error.value.errno == errno.EMFILE


def test_a_folder_in_which_sqlite_cannot_write_is_an_error_of_the_system(path, monkeypatch):
    def refused(name, function, *args):
        if name == "open" and os.fsencode(args[0]).endswith((b"-wal", b"-journal")):
            ctypes.set_errno(errno.EACCES)
            return -1
        return function(*args)

    monkeypatch.setattr(os, "access", lambda name, mode: name != str(path.parent))  # also for root
    with calls_of_files(refused), pytest.raises(PermissionError) as error:
        per.llm.Groups.load(path)
    assert isinstance(error.value, per.IoError) and error.value.filename == str(path)


def test_fsync_is_kept_by_load(tmp_path):
    per.llm.Groups(1, capacity=2, path=tmp_path / "ledger", fsync=True).__exit__()
    groups = per.llm.Groups.load(tmp_path / "ledger")
    groups.reserve()
    assert groups._database.connection.execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_change_that_cannot_be_written_is_an_error_that_changes_nothing(fsync, number, tmp_path):
    groups = per.llm.Groups(
        1, {"tokens": FIELDS["tokens"]}, capacity=4, max_age=1, path=tmp_path / "ledger", fsync=fsync
    )
    groups.reserve(2)
    groups.close(0, 0, 1.0, tokens=[1])
    lease = groups.sample(1)
    before = contents_of(groups), groups.counts()

    def is_full(name, function, *args):
        if name == "unlink":
            return function(*args)
        if "write" in name and args[2] > 100:
            function(args[0], args[1], 7, *args[3:])
        ctypes.set_errno(number)
        return -1

    with calls_of_files(is_full):
        for call in (
            groups.reserve,
            lambda: groups.close(1, 0, 1.0, tokens=[1, 2]),
            lambda: groups.ack(lease),
            groups.advance,
            lambda: groups.fail(1),
        ):
            with pytest.raises(per.IoError, match=os.strerror(number)) as error:
                call()
            assert error.value.errno == number and error.value.filename == str(tmp_path / "ledger")
            assert before == (contents_of(groups), groups.counts())
    assert groups.close(1, 0, 1.0, tokens=[1, 2])
    groups.ack(lease)
    counts = groups.counts()
    groups.__exit__()
    groups = per.llm.Groups.load(tmp_path / "ledger")
    assert groups.counts() == counts
    assert groups.sample(1).batch.tokens[0, 0].tolist() == [1, 2]


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.10 cannot set the limit")
def test_an_answer_that_sqlite_does_not_take_changes_nothing(tmp_path):
    groups = per.llm.Groups(1, {"tokens": per.Field(None, "int32", max_length=1000)}, capacity=4, path=tmp_path / "a")
    groups.reserve()
    groups.append(0, 0, tokens=[1])
    before = contents_of(groups)
    limit = groups._database.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 3000)
    with pytest.raises(per.InvalidArgument, match="too big; allowed for a key or a field of an answer: up to 1 GB"):
        groups.close(0, 0, 1.0, tokens=[2] * 999)
    groups._database.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
    assert before == contents_of(groups)
    assert groups.close(0, 0, 1.0, tokens=[2] * 999) and len(groups.sample(1).batch.tokens[0, 0]) == 1000


def test_the_file_of_a_ledger_in_use_does_not_grow(tmp_path):
    groups = per.llm.Groups(1, {"tokens": per.Field(None, "int32", max_length=1000)}, capacity=4, path=tmp_path / "a")
    for _ in range(1000):
        (group,) = groups.reserve()
        groups.close(group, 0, 1.0, tokens=[1] * 1000)
        groups.ack(groups.sample(1))
    groups.__exit__()
    assert (tmp_path / "a").stat().st_size < 100_000
    assert per.llm.Groups.load(tmp_path / "a").counts().consumed == 1000
