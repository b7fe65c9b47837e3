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

    CALLS = ("write", "fsync", "fdatasync", "replace", "link", "unlink", "ftruncate", "open")

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
def files(tmp_path):
    """The paths of a checkpoint and of its journal, after a random walk of 150 calls."""
    walk = Walk(7, tmp_path)
    for step in range(150):
        walk.step()
        if step == 20:
            walk.groups.checkpoint()
    return walk.path, walk.path.with_name(f"{walk.path.name}.journal")


def ends_of(journal):
    """The bytes at which the records of a journal begin, and the last one ends."""
    size, ends = journal.stat().st_size, [0]
    with open(journal, "rb") as file:
        while ends[-1] < size:
            ends.append(_journal._read(file, ends[-1], size)[1])
    return ends


def test_a_journal_cut_at_any_byte_has_what_was_written_before(files):
    path, journal = files
    contents, ends = journal.read_bytes(), ends_of(journal)
    for size in [*range(60), *np.random.default_rng(2).integers(0, len(contents), 200).tolist(), *ends]:
        journal.write_bytes(contents[:size])
        groups = per.llm.Groups.load(path)
        counts = groups.counts()
        assert holds_the_law(groups)
        del groups
        whole = max(end for end in ends if end <= size)
        assert journal.read_bytes()[:whole] == contents[:whole]
        assert per.llm.Groups.load(path).counts() == counts


def test_damage_amid_the_files_is_refused(files):
    path, journal = files
    most = {path: path.stat().st_size, journal: ends_of(journal)[-2]}  # the last record may be incomplete
    for damaged, end in most.items():
        contents = damaged.read_bytes()
        for place in [0, *np.random.default_rng(3).integers(0, end, 60).tolist()]:
            changed = bytearray(contents)
            changed[place] ^= 4
            damaged.write_bytes(changed)
            with pytest.raises(per.CorruptFile, match=str(damaged)):
                per.llm.Groups.load(path)
        damaged.write_bytes(contents)
    per.llm.Groups.load(path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(per.CorruptFile, match=str(path)):
        per.llm.Groups.load(path)


def test_a_missing_record_is_refused(files):
    path, journal = files
    journal.write_bytes(journal.read_bytes()[ends_of(journal)[1] :])
    with pytest.raises(per.CorruptFile, match=r"record \d+ is missing; the next is \d+"):
        per.llm.Groups.load(path)


def test_zeros_at_the_end_which_a_power_failure_may_leave_are_cut_off(files):
    path, journal = files
    counts = per.llm.Groups.load(path).counts()
    with open(journal, "ab") as file:
        file.write(bytes(5000))
    size = journal.stat().st_size
    assert per.llm.Groups.load(path).counts() == counts and journal.stat().st_size == size - 5000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_kill_amid_the_first_checkpoint_does_not_endanger_it_in_the_second(tmp_path):
    """The first one is created under two names, one of which the second one writes to."""
    path = tmp_path / "ledger"
    for calls in range(1, 12):
        path.unlink(missing_ok=True)
        is_whole = in_a_child(lambda: created(path, calls))  # noqa: B023
        for more in range(1, 8 * path.exists()):
            in_a_child(lambda: checkpointed(path, more))  # noqa: B023
            assert per.llm.Groups.load(path).counts().issued == 0
    assert is_whole


def created(path, calls):
    _journal.os = Killer(calls, np.random.default_rng(calls))
    per.llm.Groups(1, capacity=2, path=path)


def checkpointed(path, calls):
    _journal.os = Killer(calls, np.random.default_rng(calls))
    per.llm.Groups.load(path).checkpoint()


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
    size = (tmp_path / "ledger.journal").stat().st_size
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
            assert (tmp_path / "ledger.journal").stat().st_size == size
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

    def is_full(journal, number, contents):
        if b"retire" in contents:
            raise per.IoError("No space left on device")
        append(journal, number, contents)

    with monkeypatch.context() as patch:
        patch.setattr(_journal.Journal, "append", is_full)
        assert groups.advance() == 2 and groups.counts().retired == 0
        assert groups.sample(1).groups.tolist() == [1]
    groups.release(groups.leases()[0])
    assert groups.counts().retired_by == {("stale", ""): 1}
