"""per.llm: the ledger of groups against a naive model, its draws, its errors, and how it waits."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import importlib.metadata
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import per
import per.llm
import pytest
from naive_groups import NaiveGroups

FIELDS = {
    "tokens": per.Field(None, "int32", max_length=64),
    "logprobs": per.Field((None, 2), "float32", max_length=64),
    "length": per.Field((), "int16", default=-1),
}


def ledger(group_size=2, fields=FIELDS, **options):
    return per.llm.Groups(group_size, fields, **{"capacity": 16} | options)


def close_all(groups, ids, group_size=2, **given):
    for group, member in itertools.product(ids, range(group_size)):
        tokens = [group, member]
        groups.close(group, member, reward=group, tokens=tokens, logprobs=np.zeros((2, 2)), **given)


def contents_of(groups, temporary=("unfinished", "leases")):
    """All that a ledger knows: its tables as SQL, and the rows that end with the process."""
    with groups._locked():
        connection = groups._database.connection
        return [*connection.iterdump(), *(connection.execute(f"SELECT * FROM {it}").fetchall() for it in temporary)]


def holds_the_law(groups):
    counts = groups.counts()
    stored = counts.sealed + counts.leased
    return counts.issued == counts.consumed + counts.retired + stored + len(groups.missing())


# ---- the naive model


class Walk:
    """Random calls of a ledger and of its model, whose answers are compared after each."""

    def __init__(self, seed, tmp_path=None):
        self.random = random = np.random.default_rng(seed)
        self.path = None if tmp_path is None else tmp_path / f"{seed}"
        size, per_version, ahead = (int(n) for n in (random.integers(1, 4), random.integers(1, 5), random.integers(4)))
        options = {
            "capacity": int(random.integers(4, 24)),
            "max_open": int(random.integers(2, 12)),
            "per_version": per_version,
            "ahead": ahead,
            "max_age": int(random.integers(ahead, ahead + 3)),
            "uses": int(random.integers(1, 4)),
            "order": str(random.choice(["issued", "sealed"])),
        }
        self.naive = NaiveGroups(size, **options)
        self.groups = per.llm.Groups(size, path=self.path, **options)
        self.leases = []

    def step(self):
        calls = [self.reserve, self.append, self.close, self.close, self.close, self.sample, self.sample_tokens]
        calls += [self.end_lease, self.end_lease, self.fail, self.advance]
        weights = np.array([3, 3, 6, 6, 6, 3, 1, 2, 2, 0.3, 1])
        calls[self.random.choice(len(calls), p=weights / weights.sum())]()
        counts = self.groups.counts()._asdict()
        assert counts == self.naive.counts()
        assert self.groups.room == self.naive.room() and self.groups.version == self.naive.version
        assert list(self.groups.missing()) == [it.id for it in self.naive.having("open")]
        assert holds_the_law(self.groups)

    def reserve(self):
        k = int(self.random.integers(5))
        tag = str(self.random.choice(["math", "code"]))
        if self.naive.allows(k):
            assert self.groups.reserve(k, tag=tag) == self.naive.reserve(k, tag)
        else:
            with pytest.raises((per.Busy, per.InvalidArgument)):
                self.groups.reserve(k, tag=tag)

    def member(self):
        """A random member that is open, or one of a group that ended."""
        ended = self.naive.having("retired", "consumed")[-3:]
        places = [(it, m) for it in self.naive.having("open") for m in range(self.naive.group_size)]
        places = [(it, m) for it, m in places if m not in it.tokens] + [(it, 0) for it in ended]
        return places[self.random.integers(len(places))] if places else None

    def version(self):
        return int(self.random.integers(max(0, self.naive.version - 2), self.naive.version + 1))

    def append(self):
        if chosen := self.member():
            it, member = chosen
            version = self.version()
            assert self.groups.append(it.id, member, version=version) == self.naive.append(it.id, member, version)

    def close(self):
        if chosen := self.member():
            it, member = chosen
            n = int(self.random.integers(1, 9))
            version = self.version() if self.random.random() < 0.5 else None
            closed = self.groups.close(it.id, member, reward=n, n_tokens=n, version=version)
            assert closed == self.naive.close(it.id, member, n, version)

    def leased(self, ids, draw):
        if ids is None or ids == "too small":
            with pytest.raises(per.Busy if ids is None else per.InvalidArgument):
                draw()
            return
        lease = draw()
        assert lease.groups.tolist() == ids
        assert lease.ages.tolist() == [self.naive.age(self.naive.groups[id]) for id in ids]
        assert (lease.ages <= self.naive.max_age).all()
        rewards = [[self.naive.groups[id].tokens[m] for m in range(self.naive.group_size)] for id in ids]
        assert lease.batch.reward.tolist() == rewards and lease.n_tokens.tolist() == [sum(row) for row in rewards]
        self.leases.append(lease)

    def sample(self):
        n = int(self.random.integers(1, 4))
        self.leased(self.naive.sample(n), lambda: self.groups.sample(n))

    def sample_tokens(self):
        budget = int(self.random.integers(5, 50))
        self.leased(self.naive.sample_tokens(budget), lambda: self.groups.sample(tokens=budget))

    def end_lease(self):
        if self.leases:
            lease = self.leases.pop(self.random.integers(len(self.leases)))
            chance = self.random.random()
            if chance < 0.2:
                self.groups.ack(lease, version=self.naive.version + 1)
                self.naive.version += 1
                self.naive.ack(lease.groups.tolist())
            else:
                end = "ack" if chance < 0.7 else "release"
                getattr(self.groups, end)(lease)
                getattr(self.naive, end)(lease.groups.tolist())

    def fail(self):
        if self.naive.groups:
            group = int(self.random.integers(max(0, len(self.naive.groups) - 10), len(self.naive.groups)))
            if self.naive.groups[group].state == "leased":
                with pytest.raises(per.InvalidArgument, match="is leased"):
                    self.groups.fail(group, "filtered")
            else:
                self.groups.fail(group, "filtered")
                self.naive.fail(group, "filtered")

    def advance(self):
        assert self.groups.advance() == self.naive.version + 1
        self.naive.advance()

    def restore(self):
        """The process ends, and another one loads: from its files, or from a state dict."""
        if self.path is None:
            self.groups = per.llm.Groups.load(self.groups.state_dict())
        else:
            del self.groups
            self.groups = per.llm.Groups.load(self.path)
        self.naive.restored()
        self.leases.clear()


def test_ten_thousand_random_events_are_those_of_the_naive_model():
    seen = collections.Counter()
    for seed in range(20):
        walk = Walk(seed)
        for _ in range(500):
            walk.step()
        seen.update({name: count for name, count in walk.groups.counts()._asdict().items() if name != "retired_by"})
        seen.update(reason for reason, _ in walk.groups.counts().retired_by)
    assert min(seen[name] for name in ("consumed", "retired", "stale", "filtered")) > 10, seen


def test_restored_ledgers_go_on_as_the_naive_model_says(tmp_path):
    for seed in range(12):
        walk = Walk(seed, tmp_path if seed % 2 else None)
        for step in range(300):
            walk.step()
            if step % 30 == 29:
                walk.restore()


def test_each_group_is_used_at_an_age_of_at_most_ahead_and_none_is_dropped():
    """Generation ends in random order, and is slow: versions pass while groups are open."""
    random = np.random.default_rng(4)
    for per_version, ahead in ((1, 0), (3, 0), (2, 1), (3, 4)):
        groups = per.llm.Groups(2, capacity=100, per_version=per_version, ahead=ahead, max_age=ahead)
        used = []
        for _ in range(40):
            while True:
                if groups.room:
                    for group in groups.reserve(groups.room):
                        groups.append(group, 0)
                try:
                    lease = groups.sample(per_version)
                    break
                except per.Busy:
                    close_all_of(groups, int(random.choice(list(groups.missing()))))
            assert (lease.ages >= 0).all() and (lease.ages <= ahead).all()
            used += lease.groups.tolist()
            groups.ack(lease)
            groups.advance()
        assert used == [*range(40 * per_version)] and groups.counts().retired == 0


def close_all_of(groups, group):
    for member in range(2):
        groups.close(group, member, reward=0.0)


def test_a_restored_ledger_allows_no_burst():
    groups = per.llm.Groups(1, capacity=100, per_version=4, ahead=2)
    for _ in range(10):
        for group in groups.reserve(groups.room):
            groups.close(group, 0, reward=0.0)
        groups.ack(groups.sample(4))
        groups.advance()
    groups.reserve(groups.room - 1)
    restored = per.llm.Groups.load(groups.state_dict())
    assert restored.room == groups.room == 1


def interrupted(prepare, call, n_lines, path):
    """Interrupts a call at its n-th line. Returns whether it was, and the counts in memory and of the file."""
    groups = per.llm.Groups(2, capacity=8, max_age=5, path=path)
    given, left = prepare(groups), n_lines

    def trace(frame, event, _):
        nonlocal left
        if "per/llm" not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    with contextlib.suppress(KeyboardInterrupt):
        sys.settrace(trace)
        call(groups, given)
    sys.settrace(None)
    groups.advance()
    assert holds_the_law(groups) and len(groups.leases()) == (groups.counts().leased > 0)
    groups.reserve(1)
    counts = groups.counts()
    groups.__exit__()
    with per.llm.Groups.load(path) as restored:
        assert holds_the_law(restored)
        restored_counts = restored.counts()
    path.unlink()
    return left <= 0, counts, restored_counts


def some_sealed(groups):
    groups.reserve(4)
    for group, member in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]:
        groups.close(group, member, 1.0)


def some_leased(groups):
    some_sealed(groups)
    return groups.sample(2)


@pytest.mark.parametrize(
    "prepare, call",
    [
        (some_sealed, lambda groups, _: groups.reserve(2)),
        (some_sealed, lambda groups, _: groups.close(2, 1, 1.0)),
        (some_sealed, lambda groups, _: groups.fail(2)),
        (some_sealed, lambda groups, _: groups.advance()),
        (some_sealed, lambda groups, _: groups.sample(2)),
        (some_leased, lambda groups, lease: groups.ack(lease, version=1)),
        (some_leased, lambda groups, lease: groups.release(lease)),
    ],
)
def test_an_interrupt_at_any_line_leaves_a_change_whole_or_undone(prepare, call, tmp_path):
    for n_lines in itertools.count(1):
        # In a thread, which keeps the exception that a trace function raises at the end of an except clause.
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            run = executor.submit(interrupted, prepare, call, n_lines, tmp_path / "ledger")
        is_interrupted, counts, restored = run.result()
        assert restored == counts._replace(sealed=counts.sealed + counts.leased, leased=0), n_lines
        if not is_interrupted:
            break
    assert n_lines > 10


def test_pacing_begins_at_the_version_of_the_first_group():
    groups = per.llm.Groups(1, capacity=100, per_version=4, ahead=1)
    groups.advance(1000)
    assert groups.room == 8
    groups.reserve(4)
    groups.advance()
    assert groups.room == per.llm.Groups.load(groups.state_dict()).room == 8


def staleness_manager():
    """The class of AReaL, from its file alone: the package imports all that a trainer needs."""
    try:
        (file,) = (it for it in importlib.metadata.files("areal") if it.name == "staleness_manager.py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("AReaL is not installed: pip install --no-deps areal==1.0.4")
    stat = dataclasses.make_dataclass(
        "RolloutStat", [(name, int, 0) for name in ("accepted", "enqueued", "rejected", "running")]
    )
    module = types.ModuleType("staleness_manager")
    modules = {"areal": types.ModuleType("areal"), "areal.api": types.ModuleType("areal.api")}
    modules["areal.api"].RolloutStat = stat
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in modules.items():
            patch.setitem(sys.modules, name, stand_in)
        exec(compile(file.read_text(), str(file), "exec"), vars(module))
    return module.StalenessManager


def test_pacing_is_that_of_areal():
    """AReaL counts accepted groups, so the two rules agree as long as only open groups are retired."""
    manager_class = staleness_manager()
    random = np.random.default_rng(3)
    for _ in range(20):
        limit, per_version, ahead = (
            int(n) for n in (random.integers(1, 20), random.integers(1, 6), random.integers(4))
        )
        groups = per.llm.Groups(1, capacity=1000, max_open=limit, per_version=per_version, ahead=ahead)
        manager = manager_class(
            type("Version", (), {"get_version": lambda self, groups=groups: groups.version})(),
            max_concurrent_rollouts=limit,
            consumer_batch_size=per_version,
            max_staleness=ahead,
        )
        for _ in range(500):
            assert groups.room == max(manager.get_capacity(), 0)
            event = random.integers(8)
            if event < 3 and groups.room:
                groups.reserve()
                manager.on_rollout_enqueued()
                manager.on_rollout_submitted()
            elif event < 6 and groups.missing():
                group = int(random.choice(list(groups.missing())))
                if random.random() < 0.8:
                    groups.close(group, 0, reward=0.0)
                    manager.on_rollout_accepted()
                else:
                    groups.fail(group)
                    manager.on_rollout_rejected()
            elif event == 6 and groups.counts().issued:
                groups.advance()
            elif event == 7 and groups.counts().sealed:
                try:
                    groups.ack(groups.sample(1))
                except per.Busy:
                    assert min(groups.missing()) < groups.counts().issued


# ---- payloads


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_batches_have_what_members_were_given(arrays):
    if arrays == "torch":
        pytest.importorskip("torch")
    random = np.random.default_rng(5)
    groups = ledger(group_size=3, arrays=arrays, capacity=5, order="sealed")
    given = {}
    for _ in range(60):
        while groups.room:
            groups.reserve(1)
        for group in list(groups.missing()):
            rows = [random.integers(0, 99, random.integers(0, 20)) for _ in range(3)]
            for member in random.permutation(3).tolist():
                cut = random.integers(len(rows[member]) + 1)
                logprobs = np.stack([rows[member], -rows[member]], axis=1) / 8
                groups.append(group, member, tokens=rows[member][:cut], logprobs=logprobs[:cut])
                if member == 1:
                    groups.append(group, member, length=7)
                groups.close(group, member, reward=member, tokens=rows[member][cut:], logprobs=logprobs[cut:])
            given[group] = rows
        lease = groups.sample(int(random.integers(1, 4)))
        batch = lease.batch
        assert type(batch.reward).__module__.startswith(arrays)
        for i, group in enumerate(lease.groups.tolist()):
            assert [batch.tokens[i, m].tolist() for m in range(3)] == [row.tolist() for row in given[group]]
            expected = np.concatenate(given[group]) / 8
            values = np.concatenate([np.asarray(batch.logprobs[i, m]) for m in range(3)])
            assert (values == np.stack([expected, -expected], axis=1)).all()
            assert batch.length[i].tolist() == [-1, 7, -1] and batch.reward[i].tolist() == [0, 1, 2]
        assert lease.n_tokens.tolist() == [sum(map(len, given[group])) for group in lease.groups.tolist()]
        (groups.ack if random.random() < 0.7 else groups.release)(lease)


def test_versions_of_a_member_are_those_of_its_first_and_last_piece():
    groups = ledger(group_size=2, max_age=5)
    groups.reserve()
    groups.advance(1)
    groups.append(0, 0, tokens=[1])
    groups.advance(3)
    groups.append(0, 0, tokens=[2], logprobs=np.zeros((2, 2)))
    groups.append(0, 0, tokens=[4], version=2)
    groups.close(0, 1, reward=1, version=1, tokens=[3], logprobs=np.zeros((1, 2)))
    groups.advance(4)
    groups.close(0, 0, reward=1)  # nothing was generated since
    lease = groups.sample(1)
    assert lease.batch.version_first.tolist() == [[1, 1]] and lease.batch.version_last.tolist() == [[3, 1]]
    assert lease.ages.tolist() == [3]


def test_tokens_of_a_fixed_number_are_counted():
    groups = per.llm.Groups(2, {"tokens": per.Field((3, 2), "int32")}, capacity=1)
    groups.reserve()
    for member in range(2):
        groups.close(0, member, 0.0, tokens=np.zeros((3, 2)).astype(int))
    assert groups.sample(tokens=6).n_tokens.tolist() == [6]


def test_a_group_ages_from_its_oldest_token():
    groups = ledger(group_size=2, max_age=2, order="sealed")
    first, second = groups.reserve(2)
    groups.append(first, 1, tokens=[1])
    groups.advance(2)
    groups.append(second, 0, tokens=[1])
    assert groups.append(first, 0, tokens=[1])
    groups.advance(3)
    assert not groups.append(first, 0, tokens=[1]) and list(groups.missing()) == [second]
    assert groups.counts().retired_by == {("stale", ""): 1}


# ---- draws by priority


def test_draws_follow_priority_and_age():
    """Seeds 0 to 3999; chi-squared with 3 degrees of freedom exceeds 16.3 by chance once in 1000 times."""
    groups = per.llm.Groups(1, capacity=4, order="priority", half_life=2.0)
    for version in (0, 1, 2, 4):
        groups.advance(version)
        (group,) = groups.reserve()
        groups.close(group, 0, reward=0.0)
    groups.update_priorities([0, 1, 2, 3], [4.0, 1.0, 2.0, 1.0])
    weights = np.array([4, 1, 2, 1]) * 2.0 ** (-np.array([4, 3, 2, 0]) / 2)
    state, firsts, seconds = groups.state_dict(), [], collections.Counter()
    groups = per.llm.Groups.load(state)
    for seed in range(4000):
        groups._options["seed"] = seed
        lease = groups.sample(2)
        np.testing.assert_allclose(lease.probabilities, (weights / weights.sum())[lease.groups])
        firsts.append(lease.groups[0])
        seconds[tuple(lease.groups.tolist())] += 1
        groups.release(lease)
    expected = 4000 * weights / weights.sum()
    assert (((np.bincount(firsts, minlength=4) - expected) ** 2) / expected).sum() < 16.3
    after_0 = np.array([seconds[0, i] for i in (1, 2, 3)])
    expected = after_0.sum() * weights[1:] / weights[1:].sum()
    assert (((after_0 - expected) ** 2) / expected).sum() < 16.3


def test_a_draw_that_is_made_again_is_the_same_and_the_next_one_is_not():
    groups = ledger(order="priority", seed=3, capacity=12, uses=9)
    groups.reserve(12)
    close_all(groups, range(12))
    lease = groups.sample(5)
    groups.release(lease)
    again = groups.sample(5)
    restored = per.llm.Groups.load(groups.state_dict()).sample(5)
    assert lease.groups.tolist() == again.groups.tolist() == restored.groups.tolist()
    groups.ack(again)
    assert groups.sample(5).groups.tolist() != lease.groups.tolist()


def test_draws_by_priority_are_those_of_a_restored_ledger_whatever_happened_before(monkeypatch):
    random, seen = np.random.default_rng(9), collections.Counter()
    groups = per.llm.Groups(1, capacity=40, order="priority", half_life=3.0, max_age=4, uses=2, seed=1)

    def interrupted(ids):
        raise KeyboardInterrupt

    for step in range(80):
        groups.reserve(groups.room)
        for group in groups.missing():
            if random.random() < 0.7:
                groups.close(group, 0, 0.0, n_tokens=random.integers(9))
        recent = groups.counts().issued - random.integers(1, 41, 10)
        groups.update_priorities(recent, random.exponential(size=10) * random.integers(0, 2, 10))
        groups.fail(int(recent[0]))
        with contextlib.suppress(per.Timeout):
            groups.wait_blocking(int(random.integers(1, 20)), timeout=0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(groups, "_batch", interrupted)
            groups.sample(1)
        with contextlib.suppress(per.Busy):
            while step % 5 == 0:
                groups.sample(1)
        drawn = [group for lease in groups.leases() for group in lease.groups.tolist()]
        assert len(set(drawn)) == len(drawn)
        for lease in groups.leases():
            groups.release(lease)
        restored = per.llm.Groups.load(groups.state_dict())
        lease, other = (it.sample(int(random.integers(1, 4))) for it in (groups, restored))
        n = min(len(lease.groups), len(other.groups))
        assert lease.groups[:n].tolist() == other.groups[:n].tolist()
        assert lease.probabilities[:n].tolist() == other.probabilities[:n].tolist()
        with pytest.raises(per.InvalidArgument, match="version is -1"):
            groups.ack(lease, version=-1)
        end = str(random.choice(["release", "ack"]))
        getattr(groups, end)(lease)
        seen[end] += 1
        if random.random() < 0.3:
            groups.advance()
    assert min(seen.values()) > 20 and groups.counts().retired_by.keys() == {("failed", ""), ("stale", "")}


@pytest.mark.long
def test_draws_follow_priorities_while_other_leases_are_open():
    """Seeds 0 to 1999; chi-squared with 1 degree of freedom exceeds 10.8 by chance once in 1000 times."""
    new, expected = 0, 2000 * 2 / 4
    for seed in range(2000):
        groups = per.llm.Groups(1, capacity=8, order="priority", seed=seed)
        for group in groups.reserve(4):
            groups.close(group, 0, 0.0)
        open_leases = [groups.sample(1), groups.sample(1)]
        for group in groups.reserve(2):
            groups.close(group, 0, 0.0)
        new += groups.sample(1).groups[0] >= 4
        assert len(groups.leases()) == len(open_leases) + 1
    assert 2 * (new - expected) ** 2 / expected < 10.8, new


def test_draws_have_numbers_that_no_open_or_acknowledged_one_has():
    groups = per.llm.Groups(1, capacity=8, order="priority")
    for group in groups.reserve(8):
        groups.close(group, 0, 0.0)
    first, second = groups.sample(1), groups.sample(1)
    groups.release(first)
    again = groups.sample(1)
    assert (first.draw, second.draw, again.draw) == (0, 1, 0) and again.groups.tolist() == first.groups.tolist()
    groups.ack(second)
    assert per.llm.Groups.load(groups.state_dict()).sample(1).draw == groups.sample(1).draw == 2


@pytest.mark.filterwarnings("error")
def test_extreme_priorities_and_ages_can_be_drawn():
    groups = per.llm.Groups(1, capacity=6, order="priority", half_life=5e-324)
    for group in groups.reserve(3):
        groups.close(group, 0, 0.0)
    groups.advance(10**6)
    for group in groups.reserve(3):
        groups.close(group, 0, 0.0)
    groups.update_priorities(range(6), [5e-324, 1.0, 1.0, 1.7e308, 1.7e308, 5e-324])
    lease = groups.sample(6)
    assert sorted(lease.groups.tolist()[:3]) == [3, 4, 5] and sorted(lease.groups.tolist()) == [*range(6)]
    np.testing.assert_allclose(lease.probabilities, [0.5, 0.5, 0, 0, 0, 0], atol=1e-9)
    assert np.isfinite((lease.probabilities.min() / lease.probabilities) ** 0.5).all()


def test_groups_of_priority_0_are_not_drawn():
    groups = ledger(order="priority")
    groups.reserve(4)
    groups.update_priorities([1, 3], [0.0, 0.0])
    close_all(groups, range(4))
    assert sorted(groups.sample(2).groups.tolist()) == [0, 2]
    with pytest.raises(per.Busy):
        groups.sample(1)


def test_shares_are_even_by_tokens_and_split_no_group():
    groups = per.llm.Groups(1, capacity=40)
    random = np.random.default_rng(6)
    for group in groups.reserve(40):
        groups.close(group, 0, reward=0.0, n_tokens=random.integers(1, 100))
    lease = groups.sample(40)
    shares = lease.shares(4)
    assert sorted(np.concatenate(shares).tolist()) == [*range(40)]
    totals = [int(lease.n_tokens[share].sum()) for share in shares]
    assert max(totals) - min(totals) <= 20, totals


def test_shares_of_groups_without_tokens_are_even():
    groups = per.llm.Groups(1, capacity=8)
    for group in groups.reserve(8):
        groups.close(group, 0, reward=0.0)
    assert [len(share) for share in groups.sample(8).shares(4)] == [2, 2, 2, 2]


def test_a_budget_of_tokens_takes_what_there_is_if_nothing_more_can_come():
    groups = per.llm.Groups(1, capacity=4, order="sealed")
    groups.reserve(4)
    for group in (0, 1, 2):
        groups.close(group, 0, reward=0.0, n_tokens=10)
    with pytest.raises(per.Busy):
        groups.sample(tokens=100)  # group 3 might fit
    groups.close(3, 0, reward=0.0, n_tokens=10)
    groups.wait_blocking(tokens=100, timeout=20)
    assert groups.sample(tokens=100).groups.tolist() == [0, 1, 2, 3]


# ---- errors


def test_keys_are_also_integers_of_numpy():
    groups = per.llm.Groups(1, capacity=40)
    groups.reserve(keys=per.llm.Prompts(np.arange(5)).sample(5))
    groups.reserve(keys=np.arange(3))
    assert sorted(per.llm.Groups.load(groups.state_dict()).missing().values()) == [0, 0, 1, 1, 2, 2, 3, 4]


ROW = {"tokens": [1], "logprobs": [[0.0, 0.0]]}
BAD = [
    (lambda groups: groups.reserve(-1), r"k is -1; allowed: 0 and above"),
    (lambda groups: groups.reserve(17), r"k is 17; allowed: 0 to 16, the smaller of capacity"),
    (lambda groups: groups.reserve(keys=[2.5]), r"keys has 2.5; allowed: int, str and None"),
    (lambda groups: groups.reserve(keys=[10**5000]), r"keys has an int that Python does not print"),
    (lambda groups: groups.append(9, 0), r"group is 9; allowed: ids that reserve\(\) returned, below 3"),
    (lambda groups: groups.append(0, 2), r"member is 2; allowed: 0 to 1"),
    (lambda groups: groups.append(0, 0, version=1), r"version is 1; allowed: 0 to 0, the current one"),
    (lambda groups: groups.append(0, 0, token=[1]), r"token is no field; did you mean tokens\?; allowed: tokens, log"),
    (lambda groups: groups.append(0, 0, tokens=[1.5]), r"tokens has dtype float64; allowed: int32"),
    (lambda groups: groups.append(0, 0, tokens=[2**31]), r"tokens has dtype uint64; allowed: int32, or numbers"),
    (lambda groups: groups.append(0, 0, tokens=[[1]]), r"tokens has shape \[1, 1\]; allowed: \[None\]"),
    (lambda groups: groups.append(0, 0, logprobs=[[1.0]]), r"logprobs has shape \[1, 1\]; allowed: \[None, 2\]"),
    (lambda groups: groups.append(0, 0, tokens=range(65)), r"tokens has 65 values; allowed: up to 64, its max_length"),
    (lambda groups: groups.append(0, 1, tokens=range(64)), r"tokens has 65 values; allowed: up to 64, its max_length"),
    (lambda groups: groups.close(0, 0, float("nan")), r"reward is nan; allowed: finite numbers of float32"),
    (lambda groups: groups.close(0, 0, 1e300), r"reward is 1e\+300; allowed: finite numbers of float32"),
    (
        lambda groups: groups.close(0, 0, 1.0, n_tokens=2**31, **ROW),
        r"n_tokens is 2147483648; allowed: 0 to 2147483647",
    ),
    (lambda groups: groups.append(0, 0, tokens=np.array([np.nan])), r"tokens has dtype float64; allowed: int32"),
    (lambda groups: groups.reserve(keys=5), r"k is None, keys is 5; allowed: one of them, keys a list"),
    (lambda groups: groups.reserve(keys="text"), r"k is None, keys is 'text'; allowed: one of them, keys a list"),
    (lambda groups: groups.reserve(5, keys=["a"]), r"k is 5, keys is \['a'\]; allowed: one of them"),
    (lambda groups: groups.wait_blocking(room=17), r"room is 17; allowed: 0 to 16, the smaller of capacity"),
    (lambda groups: groups.wait_blocking(room="x"), r"room is 'x', a str; allowed: an int"),
    (lambda groups: groups.close(0, 0, 1.0), r"tokens is missing; needed to close a member"),
    (lambda groups: groups.close(1, 0, 1.0), r"member is 0, which is closed in group 1; allowed: open members"),
    (lambda groups: groups.append(2, 0), r"member is 0, which is closed in group 2; allowed: open members"),
    (lambda groups: groups.fail(3), r"group is 3; allowed: ids"),
    (lambda groups: groups.sample(), r"sample needs groups or tokens, one of the two"),
    (lambda groups: groups.sample(17), r"groups is 17; allowed: 1 to 16, the capacity"),
    (lambda groups: groups.ack(3), r"lease is an int; allowed: a Lease"),
    (lambda groups: groups.update_priorities([0], [-1]), r"priorities is \[-1.\]; allowed: a finite number >= 0"),
    (lambda groups: groups.update_priorities([5], [1]), r"group is 5; allowed: ids"),
    (lambda groups: groups.advance(-1), r"version is -1; allowed: 0 and above"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call, text", BAD)
def test_a_bad_argument_is_named_with_its_value_and_changes_nothing(call, text):
    groups = ledger()
    groups.reserve(3)
    groups.append(0, 1, tokens=[5])
    groups.close(1, 0, 1.0, tokens=[1], logprobs=[[0.0, 0.0]])
    close_all(groups, [2])
    before = contents_of(groups)
    with pytest.raises(per.InvalidArgument, match=text):
        call(groups)
    assert before == contents_of(groups)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"capacity": 0}, r"capacity is 0; allowed: 1 and above"),
        ({"order": "oldest"}, r"order is 'oldest'; allowed: 'issued', 'sealed', 'priority'"),
        ({"half_life": 0.0}, r"half_life is 0.0; allowed: finite numbers above 0"),
        ({"half_life": 2.0}, r"half_life is given; allowed: with order='priority'"),
        ({"ahead": 1}, r"ahead is given; allowed: with per_version"),
        ({"fsync": True}, r"fsync is given; allowed: with path"),
        ({"fields": {"x": per.Field(9, compression="delta")}}, r"field x is compressed; allowed: compression='none'"),
        ({"arrays": "jax"}, r"arrays is 'jax'; allowed in host memory: 'numpy', 'torch'"),
        ({"fields": {"version": per.Field()}}, r"field version is an observation or state, stacked or reserved"),
        ({"fields": {"observation": per.Field()}}, r"field observation is an observation"),
        ({"fields": {"x": per.Field((), "bfloat16")}}, r"field x is of bfloat16; allowed: dtypes of numpy"),
        ({"fields": {"reward": per.Field()}}, r"reward"),
        ({"fields": {"self": per.Field()}}, r"field self is an observation or state, stacked or reserved"),
    ],
)
def test_an_option_that_is_not_allowed_is_named(options, text):
    with pytest.raises(per.InvalidArgument, match=text):
        ledger(**options)


@pytest.mark.parametrize(
    "state, kind, text",
    [
        ({}, per.InvalidArgument, r"source has \[\]; allowed: what state_dict\(\) returned"),
        ({"checkpoint": [1, 2]}, per.InvalidArgument, r"source has \['checkpoint'\]; allowed: what state_dict"),
        ({"checkpoint": "text"}, per.InvalidArgument, r"checkpoint has dtype str"),
        ({"checkpoint": None}, per.InvalidArgument, r"checkpoint is None"),
        ({"checkpoint": np.zeros(5000, np.uint8)}, per.CorruptFile, r"^the ledger: file is not a database"),
    ],
)
def test_a_state_that_cannot_be_loaded_is_named(state, kind, text):
    with pytest.raises(kind, match=text):
        per.llm.Groups.load(state)


@pytest.mark.parametrize("error", [TimeoutError("mine"), OSError(5, "mine"), OverflowError("mine")])
def test_an_error_of_a_signal_handler_or_an_array_stays_what_it_is(error):
    groups = ledger()
    groups.reserve()

    class Tokens:
        def __array__(self, *given, **named):
            raise error

    before = contents_of(groups)
    with pytest.raises(type(error)) as raised:
        groups.append(0, 0, tokens=Tokens())
    assert raised.value is error and before == contents_of(groups)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ledger_is_not_copied(call):
    """Two objects would share a database, and each know only its own waiters and changes."""
    groups = ledger()
    with pytest.raises(TypeError, match=r"cannot be pickled or copied; allowed: load\(\) of a state_dict"):
        call(groups)
    assert groups.reserve(2) == [0, 1]


def test_a_lease_ends_once():
    groups = ledger()
    groups.reserve(2)
    close_all(groups, range(2))
    lease, other = groups.sample(1), groups.sample(1)
    groups.ack(lease)
    for call in (groups.ack, groups.release):
        with pytest.raises(per.InvalidArgument, match="lease has ended"):
            call(lease)
    assert [each.groups.tolist() for each in groups.leases()] == [other.groups.tolist()]
    groups.release(groups.leases()[0])
    assert groups.counts().sealed == 1


def test_a_lease_cannot_be_changed():
    groups = ledger()
    groups.reserve(3)
    close_all(groups, range(3))
    lease = groups.sample(2)
    for array in (lease.groups, lease.ages, lease.n_tokens, lease.probabilities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    other = dataclasses.replace(lease, groups=np.array([0, 2]))
    with pytest.raises(per.InvalidArgument, match="is of another ledger"):
        groups.ack(other)
    groups.ack(lease)
    assert groups.counts().consumed == 2 and groups.leases() == []


def test_a_lease_of_before_a_restore_does_not_end_one_of_after():
    groups = ledger(order="priority", capacity=4)
    groups.reserve(4)
    close_all(groups, range(4))
    old = groups.sample(1)
    restored = per.llm.Groups.load(groups.state_dict())
    lease = restored.sample(1)
    assert lease.groups.tolist() == old.groups.tolist()
    with pytest.raises(per.InvalidArgument, match="has ended"):
        restored.ack(old)
    restored.ack(lease)


# ---- waiting and threads


def test_tasks_wait_for_groups_and_for_room():
    async def train():
        groups = per.llm.Groups(2, capacity=4, per_version=2)
        used = []

        async def generate():
            for _ in range(10):
                await groups.wait(room=1)
                (group,) = groups.reserve()
                for member in range(2):
                    await asyncio.sleep(0)
                    groups.close(group, member, reward=0.0)

        task = asyncio.create_task(generate())
        for _ in range(5):
            await groups.wait(2)
            lease = groups.sample(2)
            used.extend(lease.groups.tolist())
            groups.ack(lease)
            groups.advance()
        await task
        return used

    assert asyncio.run(asyncio.wait_for(train(), 20)) == [*range(10)]


def test_a_task_that_is_cancelled_does_not_disturb_others():
    async def two():
        groups = per.llm.Groups(1, capacity=4)
        first, second = asyncio.create_task(groups.wait(1)), asyncio.create_task(groups.wait(1))
        await asyncio.sleep(0)
        first.cancel()
        (group,) = groups.reserve()
        threading.Thread(target=groups.close, args=(group, 0, 1.0)).start()
        await asyncio.wait_for(second, 20)
        assert first.cancelled()

    asyncio.run(two())


def test_a_cancelled_wait_leaves_nothing_behind():
    groups = per.llm.Groups(1, capacity=4)

    async def waits():
        for _ in range(20):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(groups.wait(1), 0.001)

    asyncio.run(waits())
    assert len(groups._waiters) == 0


def test_a_wait_for_a_ledger_that_is_closed_is_an_error(tmp_path):
    groups = per.llm.Groups(1, capacity=4, path=tmp_path / "ledger")

    async def waits():
        task = asyncio.create_task(groups.wait(1))
        await asyncio.sleep(0)
        groups.__exit__()
        await asyncio.wait_for(task, 20)

    with pytest.raises(per.InvalidArgument, match="is closed"):
        asyncio.run(waits())


@pytest.mark.parametrize("name", ["ledger", None])
def test_a_closed_ledger_refuses_calls(name, tmp_path):
    with per.llm.Groups(1, capacity=4, path=name and tmp_path / name) as groups:
        groups.reserve()
    for call in (groups.reserve, groups.counts, groups.missing, groups.state_dict, lambda: groups.room):
        with pytest.raises(per.InvalidArgument, match=r"is closed; allowed: load\(\)"):
            call()
    groups.__exit__()
    assert "is closed" in repr(groups)


def test_a_call_within_a_call_reads_and_cannot_change():
    """As that of a signal handler, which runs between two lines of a call."""
    groups = ledger(group_size=1)
    groups.reserve()

    class Tokens:
        def __array__(self, *given, **named):
            assert groups.counts().open == 1 and groups.room == 15
            for call in (groups.reserve, groups.state_dict, groups.__exit__, groups.wait_blocking):
                with pytest.raises(per.Busy, match="interrupted a call of the ledger"):
                    call()
            return np.array([7], np.int32)

    assert groups.close(0, 0, 1.0, tokens=Tokens(), logprobs=np.zeros((1, 2)))
    assert groups.sample(1).batch.tokens.values.tolist() == [7] and groups.counts().issued == 1


def test_a_ledger_is_closed_between_the_changes_of_other_threads(tmp_path):
    def change(groups):
        while True:
            groups.reserve(1)
            groups.advance()

    for run in range(20):
        groups = per.llm.Groups(1, capacity=1024, max_age=0, path=tmp_path / f"{run}")
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            changing = executor.submit(change, groups)
            with groups:
                time.sleep(0.002 * run)
            with pytest.raises(per.InvalidArgument, match="is closed"):
                changing.result(20)


def test_threads_share_a_ledger():
    groups = ledger(per_version=4, ahead=1, capacity=16)
    used, n_versions = [], 30

    def generate():
        while True:
            try:
                groups.wait_blocking(room=1, timeout=20)
                (group,) = groups.reserve()
            except per.Timeout:
                raise
            except per.Busy:
                continue
            if group >= 4 * n_versions:
                return
            close_all(groups, [group])

    threads = [threading.Thread(target=generate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(n_versions):
        groups.wait_blocking(4, timeout=20)
        lease = groups.sample(4)
        assert (lease.batch.tokens.values.reshape(-1, 2)[::2, 0] == lease.groups).all()
        used += lease.groups.tolist()
        groups.ack(lease)
        groups.advance()
    groups.advance(10**6)  # room for the threads to end
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert used == [*range(4 * n_versions)]


def test_a_wait_ends_with_the_error_of_a_signal_handler_whatever_it_is():
    class Mine(TimeoutError):
        pass

    def handler(*_):
        raise Mine

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Mine):
            per.llm.Groups(2, capacity=4).wait_blocking(1, timeout=30)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_wait_ends_after_its_timeout():
    with pytest.raises(per.Timeout, match=r"timeout is 0.05; not ready yet \(version 0, 0 groups open"):
        ledger().wait_blocking(1, timeout=0.05)


# ---- prompts


def test_prompts_are_drawn_in_proportion_to_the_variance_of_their_rewards():
    """Seed 2; chi-squared with 5 degrees of freedom exceeds 20.5 by chance once in 1000 times."""
    rates = np.array([0.0, 0.1, 0.5, 0.75, 0.9, 1.0])
    prompts = per.llm.Prompts([*"abcdef"], epsilon=0.02, seed=2)
    prompts.update([*"abcdef"], rates)
    expected = rates * (1 - rates) + 0.02
    expected *= 6000 / expected.sum()
    drawn = collections.Counter(prompts.sample(1)[0] for _ in range(6000))
    assert (((np.array([drawn[key] for key in "abcdef"]) - expected) ** 2) / expected).sum() < 20.5


def test_prompts_of_a_draw_differ_and_all_of_them_can_be_drawn():
    prompts = per.llm.Prompts(range(50), epsilon=1e-6)
    prompts.update(range(50), [0.0] * 49 + [0.5])
    assert sorted(prompts.sample(50)) == [*range(50)] and prompts.sample(1) == [49]


def test_an_interrupted_draw_of_prompts_takes_none_away(monkeypatch):
    prompts, masses = per.llm.Prompts(range(9)), per.llm.Prompts(range(9))._tree.mass
    update = per.SumTree.update

    def interrupted(tree, indices, priorities):
        update(tree, indices, priorities)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(per.SumTree, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prompts.sample(4)
    assert prompts._tree.mass == masses and prompts.sample(4) == per.llm.Prompts(range(9)).sample(4)


def test_a_call_within_a_call_of_prompts_is_refused_and_does_not_wait():
    prompts = per.llm.Prompts(["a", "b"])

    class Keys(list):
        def __iter__(self):
            for call in (prompts.state_dict, lambda: prompts.sample(1), lambda: prompts.rates(["a"])):
                with pytest.raises(per.Busy, match="interrupted a call of the prompts"):
                    call()
            return super().__iter__()

    prompts.update(Keys("a"), [1.0])
    assert prompts.rates(["a", "b"]).tolist() == [1.0, 0.5]


def test_restored_prompts_are_drawn_as_the_saved_ones():
    random = np.random.default_rng(8)
    for epsilon in (1e-6, 0.01, 1):
        prompts, other = per.llm.Prompts(range(700), epsilon=epsilon, seed=4), per.llm.Prompts(["another"])
        for _ in range(20):
            keys = random.integers(0, 700, random.integers(1, 700)).tolist()
            prompts.update(keys, random.choice([0.0, 1.0, 0.5], len(keys), p=[0.45, 0.45, 0.1]))
            other.load_state_dict(prompts.state_dict())
            assert prompts._tree.mass == other._tree.mass
            for _ in range(3):
                drawn = prompts.sample(300)
                assert drawn == other.sample(300)
                prompts.update(drawn, np.ones(300))
                other.update(drawn, np.ones(300))
        assert (prompts.rates(range(700)) == other.rates(range(700))).all()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda prompts: per.llm.Prompts([]), r"keys has 0 prompts"),
        (lambda prompts: per.llm.Prompts([1, 2, 1]), r"keys has 3 prompts, 1 of them repeated"),
        (lambda prompts: per.llm.Prompts("abc"), r"keys is a str; allowed: ints or strings, each a prompt"),
        (lambda prompts: per.llm.Prompts([1.5, 2.5]), r"keys is a list; allowed: ints or strings, each a prompt"),
        (lambda prompts: per.llm.Prompts(None), r"keys is None; allowed: ints or strings, each a prompt"),
        (lambda prompts: prompts.update([["a"]], [1.0]), r"keys is \[\['a'\]\]; allowed: a list of prompts"),
        (lambda prompts: prompts.rates(None), r"keys is None; allowed: a list of prompts"),
        (lambda prompts: per.llm.Prompts([1], epsilon=0), r"epsilon is 0"),
        (lambda prompts: per.llm.Prompts([1], epsilon=1e-50), r"epsilon is 1e-50"),
        (lambda prompts: prompts.sample(4), r"k is 4; allowed: 0 to 3"),
        (lambda prompts: prompts.update(["d"], [1.0]), r"keys has 'd'; allowed: the prompts that were given"),
        (lambda prompts: prompts.update(["a", "b"], [1.0]), r"rates is \[1.\]; allowed: 0 to 1, for each of 2 keys"),
        (lambda prompts: prompts.update(["a", "b"], [1.0, 1.1]), r"rates is \[1.  1.1\]; allowed: 0 to 1"),
        (lambda prompts: prompts.update(["a", "b"], [1.0, np.nan]), r"rates is .*nan"),
        (lambda prompts: prompts.load_state_dict({"keys": [1]}), r"state_dict is a dict; allowed: what state_dict"),
        (lambda prompts: prompts.load_state_dict(prompts.state_dict() | {"draws": -1}), r"draws is -1; allowed: 0 and"),
    ],
)
def test_bad_arguments_of_prompts_change_nothing(call, text):
    prompts = per.llm.Prompts(["a", "b", "c"])
    with pytest.raises(per.InvalidArgument, match=text):
        call(prompts)
    assert prompts.rates(["a", "b", "c"]).tolist() == [0.5, 0.5, 0.5]


# ---- other processes


def generate_from_afar(address, n):
    groups = per.llm.connect(address)
    for _ in range(n):
        while True:
            try:
                groups.wait_blocking(room=1, timeout=20)
                (group,) = groups.reserve(keys=["afar"])
                break
            except per.Timeout:
                raise
            except per.Busy:
                continue
        for member in range(2):
            groups.close(group, member, 0.5, tokens=[group, member], logprobs=np.zeros((2, 2)), length=3)


def test_processes_share_a_ledger():
    groups = ledger(per_version=2, ahead=1)
    address = per.llm.serve(groups)
    processes = [multiprocessing.Process(target=generate_from_afar, args=(address, 6)) for _ in range(2)]
    for process in processes:
        process.start()
    learner = per.llm.connect(address)
    used = []
    for version in range(6):
        asyncio.run(asyncio.wait_for(learner.wait(2), 20))
        lease = learner.sample(2)
        assert lease.batch.tokens.values.reshape(2, 2, 2)[:, :, 0].tolist() == [[group] * 2 for group in lease.groups]
        assert lease.keys == ("afar", "afar") and learner.version == version
        used += lease.groups.tolist()
        learner.ack(lease)
        assert learner.advance() == groups.version
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    assert used == [*range(12)] and learner.counts() == groups.counts() and learner.room == groups.room
    with pytest.raises(per.Busy, match="too few groups are ready"):
        learner.sample(1)
    with pytest.raises(AttributeError, match="_options"):
        _ = learner._options


def wait_for_a_moment(address):
    async def wait():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(per.llm.connect(address).wait(1), 0.1)

    asyncio.run(wait())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "uint64"])
def test_whole_numbers_of_any_dtype_are_taken_if_the_field_represents_them(dtype):
    groups = per.llm.Groups(1, {"tokens": per.Field(None, dtype, max_length=9)}, capacity=4)
    (group,) = groups.reserve()
    for refused in (np.array([-(2**40)]), np.array([2.0]), np.array([2**63], np.uint64) if dtype != "uint64" else [-1]):
        with pytest.raises(per.InvalidArgument, match=r"^tokens has dtype"):
            groups.append(group, 0, tokens=refused)
    groups.close(group, 0, 1.0, tokens=np.array([1, 255]) if dtype != "int16" else np.array([1, 255], np.uint32))
    assert groups.sample(1).batch.tokens.values.tolist() == [1, 255]


# A program started with its own key cannot use the descriptors that multiprocessing shares with child processes.
CLIENT = """
import sys, torch, per.llm
groups = per.llm.connect(sys.argv[1], authkey=b"secret")
assert groups
(group,) = groups.reserve()
groups.close(group, 0, torch.tensor(1.0), tokens=torch.tensor([1, 2], dtype=torch.int32))
lease = groups.sample(1)
assert isinstance(lease.batch.tokens.values, torch.Tensor) and lease.batch.tokens.values.tolist() == [1, 2]
groups.ack(lease)
"""


def test_tensors_go_to_other_programs():
    pytest.importorskip("torch")
    groups = per.llm.Groups(1, {"tokens": per.Field(None, "int32", max_length=9)}, capacity=4, arrays="torch")
    address = per.llm.serve(groups, authkey=b"secret")
    subprocess.run([sys.executable, "-c", CLIENT, address], check=True, timeout=120)
    assert groups.counts().consumed == 1
    assert bool(per.llm.connect(address, authkey=b"secret"))


def test_a_handler_counts_each_group_once_amid_any_call():
    groups = per.llm.Groups(1, capacity=9)
    counts = []

    def add_up(statement):
        """Amid a call, between two statements of SQL."""
        it = groups.counts()
        counts.append(it)
        assert it.issued == it.consumed + it.retired + it.sealed + it.leased + it.open

    sql = groups._sql

    def looked_at(statement, *values):
        if "count(" not in statement and "FROM retired" not in statement:
            add_up(statement)
        return sql(statement, *values)

    groups._sql = looked_at
    for _ in range(3):
        ids = groups.reserve(3)
        groups.fail(ids[0])
        groups.close(ids[1], 0, 1.0)
        groups.close(ids[2], 0, 1.0)
        groups.release(groups.sample(2))
        groups.ack(groups.sample(2))
    assert len(set(map(str, counts))) > 20
    assert groups.counts()[:5] == (9, 0, 0, 0, 6)


def test_a_wait_of_another_process_that_is_cancelled_does_not_keep_it():
    groups = per.llm.Groups(1, capacity=1)
    process = multiprocessing.Process(target=wait_for_a_moment, args=(per.llm.serve(groups),))
    process.start()
    process.join(20)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_state_dict_goes_through_torch_save(arrays, tmp_path):
    torch = pytest.importorskip("torch")
    groups = per.llm.Groups(1, capacity=4, arrays=arrays)
    groups.reserve(2)
    torch.save({"groups": groups.state_dict()}, tmp_path / "model")
    state = torch.load(tmp_path / "model", weights_only=arrays == "torch")
    assert per.llm.Groups.load(state["groups"]).counts() == groups.counts()


class Interrupt(Exception):
    pass


def interrupt(*_):
    raise Interrupt


def test_an_interrupted_call_of_another_process_leaves_its_answer_to_no_other():
    groups = per.llm.Groups(2, capacity=8)
    client = per.llm.connect(per.llm.serve(groups))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupt):
            client.wait_blocking(1, timeout=30)
        signal.signal(signal.SIGALRM, lambda *_: seen.append(client.version))
        seen = []
        for n in range(300):
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + n))
            assert client.room == 8 and client.counts().issued == 0, n
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert {*seen} == {0}


def test_a_forked_child_gets_the_answers_to_its_own_calls():
    client = per.llm.connect(per.llm.serve(per.llm.Groups(2, capacity=8)))
    assert client.room == 8
    child = os.fork()
    calls = [client.version if child == 0 else client.room for _ in range(300)]
    if child == 0:
        os._exit(0 if {*calls} == {0} else 1)
    assert os.waitpid(child, 0)[1] == 0 and {*calls} == {8}


def serve_until_killed(address, fork):
    address.put(per.llm.serve(per.llm.Groups(2, capacity=8)))
    fork.wait()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    address.put(child.pid)
    child.join()


def test_clients_of_a_process_that_is_killed_learn_of_it_though_a_child_of_its_lives():
    context = multiprocessing.get_context("fork")
    address, fork = context.Queue(), context.Event()
    process = context.Process(target=serve_until_killed, args=(address, fork))
    process.start()
    where = address.get(timeout=20)
    client = per.llm.connect(where)
    fork.set()
    child = address.get(timeout=20)
    threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL)).start()
    try:
        with pytest.raises(ConnectionResetError, match="the process that serves this object has ended"):
            client.wait_blocking(1, timeout=25)
        with pytest.raises(OSError):
            per.llm.connect(where)
    finally:
        os.kill(child, signal.SIGKILL)
        process.join()


def test_processes_share_prompts():
    prompts = per.llm.Prompts(["a", "b"])
    other = per.llm.connect(per.llm.serve(prompts))
    other.update(["a"], [1.0])
    assert prompts.rates(["a"]) == 1 and sorted(other.sample(2)) == ["a", "b"] and len(other) == 2
    with pytest.raises(per.InvalidArgument, match="served is an int"):
        per.llm.serve(3)
