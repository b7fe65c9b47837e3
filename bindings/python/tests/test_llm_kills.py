"""The files of per.llm.Groups: a trainer that is killed (SIGKILL) at any system call goes on, and loses nothing."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import per
import per.llm
import pytest
from per.llm import _journal
from test_llm import Walk, holds_the_law

N_KILLS = 1000 if os.environ.get("PER_TEST_ALL") == "1" else 60
SIZE, PER_VERSION, AHEAD, VERSIONS = 3, 2, 1, 12
FIELDS = {"tokens": per.Field(None, "int32", max_length=40), "place": per.Field((), "int8")}


class Killer:
    """Replaces the os module of the journal: the process dies at a given call, before, after or amid it."""

    def __init__(self, calls_left, random):
        self.calls_left, self.random = calls_left, random

    def __getattr__(self, name):
        value = getattr(os, name)
        return (lambda *args: self.call(value, *args)) if name in self.CALLS else value

    CALLS = ("write", "fsync", "fdatasync", "replace", "link", "unlink", "ftruncate", "open", "fstat")

    def call(self, function, *args):
        self.calls_left -= 1
        if self.calls_left == 0:
            if function is os.write:
                descriptor, contents = args
                os.write(descriptor, contents[: self.random.integers(len(contents) + 1)])
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
        self.random, self.is_lazy = random, order == "issued"
        self.log = open(f"{path}.log", "a", buffering=1)  # noqa: SIM115
        if os.path.exists(path):
            self.groups = per.llm.Groups.load(path)
        else:
            self.groups = per.llm.Groups(SIZE, FIELDS, per_version=PER_VERSION, ahead=AHEAD, path=path, **options)
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
                self.groups.checkpoint()
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


def finish(path, order, seed, calls=None):
    random = np.random.default_rng(seed)
    if calls is not None:
        _journal.os = Killer(calls, random)
    Trainer(path, order, random).run()


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
        most = int(random.choice([10, 30, 100]))  # calls until a kill; sealing a group takes about five
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


@pytest.fixture
def path(tmp_path):
    """The file of a ledger, after a random walk of 150 calls."""
    walk = Walk(7, tmp_path)
    for step in range(150):
        walk.step()
        if step == 20:
            walk.groups.checkpoint()
    return walk.path


def ends_of(path):
    """The bytes at which records end."""
    journal, ends = _journal.Journal(path), []
    for _ in journal.records():
        ends.append(journal.next[1])
    journal.close()
    return ends


def test_a_file_cut_at_any_byte_has_what_was_written_before(path):
    contents, ends = path.read_bytes(), ends_of(path)
    sizes = [*range(ends[0], ends[0] + 60), *np.random.default_rng(2).integers(ends[0], len(contents), 200).tolist()]
    for size in [*sizes, *ends]:
        path.write_bytes(contents[:size])
        with per.llm.Groups.load(path) as groups:
            counts = groups.counts()
            assert holds_the_law(groups)
        whole = max(end for end in ends if end <= size)
        assert path.read_bytes()[:whole] == contents[:whole]
        assert per.llm.Groups.load(path).counts() == counts
    for size in (0, 10, ends[0] - 1):
        path.write_bytes(contents[:size])
        with pytest.raises(per.CorruptFile, match=f"{path}: record 0, at byte 0, is damaged"):
            per.llm.Groups.load(path)


def test_damage_amid_the_file_is_refused(path):
    contents = path.read_bytes()
    end = ends_of(path)[-2]  # the last record may be incomplete
    for place in [0, *np.random.default_rng(3).integers(0, end, 120).tolist()]:
        changed = bytearray(contents)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(per.CorruptFile, match=rf"{path}: record \d+, at byte \d+, is damaged"):
            per.llm.Groups.load(path)
    path.write_bytes(contents)
    per.llm.Groups.load(path)


def test_a_missing_record_is_refused(path):
    contents, ends = path.read_bytes(), ends_of(path)
    path.write_bytes(contents[: ends[0]] + contents[ends[1] :])
    with pytest.raises(per.CorruptFile, match=r"record 1 is missing; the next is 2"):
        per.llm.Groups.load(path)
    path.write_bytes(contents[: ends[1]] + contents[ends[0] : ends[1]])  # one of them twice
    with pytest.raises(per.CorruptFile, match=r"record 2 is missing; the next is 1"):
        per.llm.Groups.load(path)


def test_a_last_record_of_which_a_power_failure_left_a_part_is_cut_off(path):
    contents, ends = path.read_bytes(), ends_of(path)
    path.write_bytes(contents[: ends[-2]])
    counts = per.llm.Groups.load(path).counts()
    for place in range(ends[-2], ends[-1]):  # zeros up to there
        path.write_bytes(contents[: ends[-2]] + bytes(place + 1 - ends[-2]) + contents[place + 1 :])
        assert per.llm.Groups.load(path).counts() == counts


def test_zeros_at_the_end_which_a_power_failure_may_leave_are_cut_off(path):
    counts = per.llm.Groups.load(path).counts()
    with open(path, "ab") as file:
        file.write(bytes(5000))
    size = path.stat().st_size
    assert per.llm.Groups.load(path).counts() == counts and path.stat().st_size == size - 5000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_new_ledger_is_whole_or_not_there_and_does_not_begin_with_an_old_one(tmp_path):
    path = tmp_path / "ledger"
    is_whole, calls = False, 0
    while not is_whole:
        calls += 1
        with per.llm.Groups(1, capacity=2, path=path) as old:
            old.reserve(2)
        path.unlink()
        is_whole = in_a_child(lambda: created(path, calls))  # noqa: B023
        assert not path.exists() or per.llm.Groups.load(path).counts().issued == 0
        for more in range(1, 15 * path.exists()):
            in_a_child(lambda: checkpointed(path, more))  # noqa: B023
            assert per.llm.Groups.load(path).counts().issued == 0
        path.unlink(missing_ok=True)
    assert calls > 6


def created(path, calls):
    _journal.os = Killer(calls, np.random.default_rng(calls))
    per.llm.Groups(1, capacity=2, path=path)


def checkpointed(path, calls):
    groups = per.llm.Groups.load(path)
    _journal.os = Killer(calls, np.random.default_rng(calls))
    groups.checkpoint()


def test_the_file_stays_where_it_was_created(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with per.llm.Groups(1, capacity=8, path="ledger") as groups:
        groups.reserve(3)
        monkeypatch.chdir(tmp_path / "other")
        groups.checkpoint()
        groups.reserve(1)
    assert os.listdir() == [] and per.llm.Groups.load("../ledger").counts().issued == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_nothing_and_holds_no_lock(tmp_path):
    path = tmp_path / "ledger"
    groups = per.llm.Groups(1, capacity=8, path=path)

    def change():
        for call in (groups.reserve, groups.advance, groups.checkpoint):
            with pytest.raises(per.InvalidArgument, match="or open in the process from which this one was forked"):
                call()

    assert in_a_child(change)
    assert groups.reserve(1) == [0]
    end, begin = os.pipe()
    if (child := os.fork()) == 0:
        os.write(begin, b"x")
        signal.pause()  # lives longer than the ledger
    os.read(end, 1)
    groups.__exit__()
    try:
        assert per.llm.Groups.load(path).counts().issued == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_ledger_that_cannot_be_loaded_lets_its_file_go(path):
    contents = path.read_bytes()
    path.write_bytes(contents[:100])
    with pytest.raises(per.CorruptFile) as first:
        per.llm.Groups.load(path)
    path.write_bytes(contents)
    assert per.llm.Groups.load(path).counts().issued and first.tb


def test_a_record_of_another_program_is_refused_with_the_path(tmp_path):
    for contents in (b"", b"\0", _journal.packed({"options": {}}, {})):
        _journal.Journal(tmp_path / "ledger", contents).close()
        with pytest.raises(per.CorruptFile, match=f"{tmp_path}/ledger: record 0 is not one of per.llm.Groups"):
            per.llm.Groups.load(tmp_path / "ledger")
        (tmp_path / "ledger").unlink()


def test_fsync_is_kept_by_load(tmp_path, monkeypatch):
    per.llm.Groups(1, capacity=2, path=tmp_path / "ledger", fsync=True).__exit__()
    groups, synced = per.llm.Groups.load(tmp_path / "ledger"), []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    groups.reserve()
    assert len(synced) == 1


def test_a_path_belongs_to_one_ledger(tmp_path):
    groups = per.llm.Groups(2, capacity=4, path=tmp_path / "ledger")
    with pytest.raises(per.Busy, match="is in use by another ledger"):
        per.llm.Groups.load(tmp_path / "ledger")
    del groups
    with pytest.raises(FileExistsError):
        per.llm.Groups(2, capacity=4, path=tmp_path / "ledger")
    with pytest.raises(FileNotFoundError):
        per.llm.Groups.load(tmp_path / "none")
    assert per.llm.Groups.load(tmp_path / "ledger").counts().issued == 0


@pytest.mark.parametrize("fsync", [False, True])
def test_an_entry_that_cannot_be_written_is_an_error_that_changes_nothing(fsync, tmp_path, monkeypatch):
    groups = per.llm.Groups(1, {"tokens": FIELDS["tokens"]}, capacity=4, path=tmp_path / "ledger", fsync=fsync)
    groups.reserve(2)
    groups.close(0, 0, 1.0, tokens=[1])
    lease = groups.sample(1)
    size = (tmp_path / "ledger").stat().st_size
    before = groups.state_dict()["checkpoint"].tobytes(), groups.counts()

    class Full:
        def __getattr__(self, name):
            return self.fails if name == ("fdatasync" if fsync else "write") else getattr(os, name)

        def fails(self, descriptor, contents=b""):
            os.write(descriptor, contents[:7])
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_journal, "os", Full())
        for call in (
            groups.reserve,
            lambda: groups.close(1, 0, 1.0, tokens=[1, 2]),
            lambda: groups.ack(lease),
            groups.advance,
            lambda: groups.fail(1),
        ):
            with pytest.raises(per.IoError, match="No space left on device"):
                call()
            assert (tmp_path / "ledger").stat().st_size == size
            assert before[1] == groups.counts()
    assert groups.close(1, 0, 1.0, tokens=[1, 2])
    groups.ack(lease)
    counts = groups.counts()
    del groups
    groups = per.llm.Groups.load(tmp_path / "ledger")
    assert groups.counts() == counts
    assert groups.sample(1).batch.tokens[0, 0].tolist() == [1, 2]


def test_a_group_that_is_too_old_is_not_drawn_though_its_end_cannot_be_written(tmp_path, monkeypatch):
    groups = per.llm.Groups(1, capacity=4, max_age=1, path=tmp_path / "ledger")
    groups.reserve(2)
    groups.close(0, 0, 1.0)
    groups.advance()
    groups.close(1, 0, 1.0)
    append = _journal.Journal.append

    def is_full(journal, contents, fsync):
        if b"retire" in contents:
            raise per.IoError("No space left on device")
        append(journal, contents, fsync)

    with monkeypatch.context() as patch:
        patch.setattr(_journal.Journal, "append", is_full)
        assert groups.advance() == 2 and groups.counts().retired == 0
        assert groups.sample(1).groups.tolist() == [1]
    groups.release(groups.leases()[0])
    assert groups.counts().retired_by == {("stale", ""): 1}
