"""A ledger of answer groups, from request to use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import math
import operator
import os
import secrets
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from per import _arrays, _options
from per._errors import Busy, CorruptFile, Error, InvalidArgument, Timeout, kind_of
from per._handle import constructor
from per._waiting import seconds_of
from per.batch import Batch
from per.field import Field, to_c
from per.llm._database import Database, Row
from per.llm._state import LEASED, OPEN, SEALED, Indices, Key, Member, State, at_least
from per.ragged import Ragged
from per.replay import ReplayBuffer
from per.typing import Array, ArrayLike, IntArrayLike, IntLike, Path

Order = Literal["issued", "sealed", "priority"]

_LARGEST_REWARD = float(np.finfo(np.float32).max)
_OWN = ("version_first", "version_last", "reward")  # arrays of batches beside the user's
_RESERVED = ("group", "member", "version", "n_tokens", "observation", *_OWN)
_LEAST = {
    "group_size": 1,
    "capacity": 1,
    "max_open": 1,
    "per_version": 1,
    "max_age": 0,
    "ahead": 0,
    "uses": 1,
    "seed": 0,
}


class Counts(NamedTuple):
    """Numbers of groups: issued = consumed + retired + sealed + leased + open, at every moment."""

    issued: int
    open: int
    sealed: int
    leased: int
    consumed: int
    retired: int
    retired_by: dict[tuple[str, str], int]
    """by reason and tag"""


@dataclasses.dataclass(frozen=True, eq=False)
class Lease(Generic[Array]):
    """B groups that a learner has drawn, until it gives the lease to Groups.ack() or Groups.release()."""

    number: int
    draw: int
    """index of the draw, which with the seed determines the variates"""
    groups: Indices
    """int64[B], ids"""
    keys: tuple[Key, ...]
    ages: Indices
    """int64[B], versions since the oldest token of each group"""
    n_tokens: Indices
    """int64[B], of all members"""
    probabilities: npt.NDArray[np.float64]
    """float64[B], P of each group in a single draw, for weights (P.min() / P) ** beta; 1 unless drawn by priority"""
    batch: Batch[Array]
    """the fields, reward, version_first and version_last, each [B, G]"""

    def shares(self, ranks: IntLike) -> list[Indices]:
        """Divides the groups among ranks, about as many tokens for each, without splitting one.

        Returns the positions in the batch of the groups of each rank.

        Parameters
        ----------
        ranks : int
            Number of ranks.
        """
        shares: list[list[int]] = [[] for _ in range(at_least("ranks", ranks, 1))]
        loads = [0] * len(shares)
        for place in np.argsort(-self.n_tokens, kind="stable").tolist():  # the largest first, to the lightest share
            rank = min(range(len(shares)), key=lambda rank: (loads[rank], len(shares[rank])))
            shares[rank].append(place)
            loads[rank] += int(self.n_tokens[place])
        return [np.array(sorted(share), np.int64) for share in shares]


class Groups(Generic[Array]):
    """A ledger of groups: the G answers to one prompt, which a language model is trained on together.

    docs/llm.md has the states, pacing, orders of draws and files.

    Parameters
    ----------
    group_size : int
        G, the members of a group.
    fields : Mapping[str, Field], optional
        Arrays of each member, such as {"tokens": per.Field(None, "int32", max_length=4096)}. They lie in a
        per.ReplayBuffer, where a group is a sequence of G rows. None: payloads are kept elsewhere.
    capacity : int
        Groups that may be open, sealed or leased at the same time. No stored group is ever overwritten.
    max_open : int, optional
        Groups that may be open at the same time. None: capacity.
    per_version : int, optional
        Groups that learners use in each version. None: no pacing.
    ahead : int, default 0
        Versions by which generation may be ahead.
    max_age : int, optional
        Largest age at which a group is drawn. Older groups are retired, also while open. None: no limit.
    uses : int, default 1
        Draws until a group is consumed. One that was used becomes consumed, not retired, when it is too old.
    order : {"issued", "sealed", "priority"}, default "issued"
        The order of draws.
    half_life : float, optional
        Draws by priority are in proportion to priority 2^(-age / half_life). None: age does not matter.
    seed : int, default 0
        Seed of the draws.
    arrays : {"numpy", "torch"}, default "numpy"
        The arrays of batches.
    path : Path, optional
        File of the ledger, which must not exist; load() continues from one. None: nothing is written.
    fsync : bool, default False
        True: changes survive a power failure, not just the death of the process.

    Notes
    -----
    Several threads and tasks may use a ledger: each call is atomic, and an error changes nothing. Call ack() when the
    optimiser step is saved. After a crash, unacknowledged groups are available again, because their optimiser step was
    lost with them.

    Examples
    --------
    >>> import per, per.llm
    >>> groups = per.llm.Groups(2, {"tokens": per.Field(None, "int32", max_length=100)}, capacity=16, per_version=1)
    >>> (group,) = groups.reserve(keys=["What is 1 + 1?"])
    >>> groups.close(group, 0, reward=1.0, tokens=[2]), groups.close(group, 1, reward=0.0, tokens=[1, 1])
    (False, True)
    >>> lease = groups.sample(groups=1)
    >>> lease.batch.reward.tolist(), lease.batch.tokens.padded().tolist()
    ([[1.0, 0.0]], [[[2, 0], [1, 1]]])
    >>> groups.ack(lease)
    >>> groups.advance()
    1
    """

    _database: Database | None

    def __init__(
        self,
        group_size: IntLike,
        fields: Mapping[str, Field] | None = None,
        *,
        capacity: IntLike,
        max_open: IntLike | None = None,
        per_version: IntLike | None = None,
        ahead: IntLike = 0,
        max_age: IntLike | None = None,
        uses: IntLike = 1,
        order: Order = "issued",
        half_life: float | None = None,
        seed: IntLike = 0,
        arrays: Literal["numpy", "torch"] = "numpy",
        path: Path | None = None,
        fsync: bool = False,
    ) -> None:
        own: dict[str, Any] = {"group_size": group_size, "capacity": capacity, "per_version": per_version}
        own |= {"max_open": capacity if max_open is None else max_open, "max_age": max_age, "ahead": ahead}
        own |= {"uses": uses, "seed": seed, "order": order, "arrays": arrays, "fsync": _options.flag("fsync", fsync)}
        for name, least in _LEAST.items():
            if own[name] is not None or name not in ("per_version", "max_age"):
                own[name] = at_least(name, own[name], least)
        for name, choices in (("order", ("issued", "sealed", "priority")), ("arrays", ("numpy", "torch"))):
            if own[name] not in choices:
                raise InvalidArgument(f"{name} is {own[name]!r}; allowed: {', '.join(map(repr, choices))}")
        own["half_life"] = None if half_life is None else _options.real("half_life", half_life)
        if half_life is not None and not 0 < own["half_life"] < math.inf:
            raise InvalidArgument(f"half_life is {half_life}; allowed: finite numbers above 0")
        to_c(fields or {})
        for name, field in (fields or {}).items():
            if name in _RESERVED or field.role not in (None, "plain"):
                raise InvalidArgument(f"field {name} is an observation or state, or is reserved; allowed: others")
            if field.dtype == "bfloat16":
                raise InvalidArgument(f"field {name} is of bfloat16; allowed: dtypes of numpy, such as float16")
        self._begin(own, fields or {})
        if path is not None:
            self._database = Database(os.fsdecode(_options.path(path)), self._contents())

    def _begin(self, own: dict[str, Any], fields: Mapping[str, Field]) -> None:
        """Sets up an empty ledger, in memory."""
        self._own, self._state, self._database = own, State(own), None
        self._rows: ReplayBuffer[Any] = ReplayBuffer(
            (own["group_size"] + 2) * own["capacity"],  # a place is a lane
            {"group": Field((), "int8", role="observation"), **dict.fromkeys(_OWN[:2], Field((), "int64")), **fields},
            n_envs=own["capacity"],
            sequence_length=own["group_size"],
            prioritization="uniform",
            arrays=own["arrays"],
        )
        self._fields = {name: field for name, field in self._rows.fields.items() if name not in ("group", *_OWN)}
        self._ragged = {name for name, field in self._fields.items() if field.max_length is not None}
        self._next_lease = secrets.randbits(62)  # random, so that no lease is mistaken for one from before a restore
        self._is_whole = True
        self._process = os.getpid()
        self._lock = threading.Condition()
        self._waiters: set[asyncio.Future[None]] = set()

    def reserve(self, k: IntLike | None = None, *, keys: Sequence[Key] | None = None, tag: str = "") -> list[int]:
        """Admits groups for generation. Returns their ids, numbered from 0.

        Raises Busy if pacing, max_open or capacity do not allow that many yet: see room and wait().

        Parameters
        ----------
        k : int, optional
            Number of groups. None: 1, or that of the keys.
        keys : Sequence[Key], optional
            In place of k: an int or str for each group's prompt, which missing() and leases return.
        tag : str, default ""
            Counted with the reason if the group is retired, such as the name of a data set.
        """
        if keys is not None and (k is not None or isinstance(keys, str)):
            raise InvalidArgument(f"k is {k!r}, keys is {keys!r}; allowed: one of them, keys a list")
        names: list[Any] = [*keys] if keys is not None else [None] * (1 if k is None else at_least("k", k, 0))
        for place, key in enumerate(names):
            with contextlib.suppress(TypeError):
                names[place] = operator.index(key)  # also of numpy
            if not isinstance(names[place], (int, str, type(None))):
                raise InvalidArgument(f"keys has {key!r}; allowed: int, str and None")
        if not isinstance(tag, str):
            raise InvalidArgument(f"tag is {tag!r}; allowed: str")
        self._allowed_room("k", len(names))
        with self._changing() as state:
            if len(names) > state.room():
                raise Busy(f"k is {len(names)}; allowed at this moment: up to {state.room()} ({state})")
            return state.admit(names, tag)

    def append(self, group: IntLike, member: IntLike, *, version: IntLike | None = None, **fields: ArrayLike) -> bool:
        """Adds a piece of an answer: rows of any length grow by it, other fields are replaced.

        Returns False if the group has been retired, and its generation may stop.

        Parameters
        ----------
        group : int
            Id of the group.
        member : int
            Place of the answer in its group, 0 to G - 1.
        version : int, optional
            The policy that generated the piece. None: the current one.
        **fields : ArrayLike
            The values of the piece, by field.
        """
        with self._changing() as state:
            number, place, grown = self._given(state, group, member, version, fields)
            if grown is not None:
                self._put(state, number, place, grown)
            return number in state.names

    def close(
        self,
        group: IntLike,
        member: IntLike,
        reward: float,
        *,
        version: IntLike | None = None,
        n_tokens: IntLike | None = None,
        **fields: ArrayLike,
    ) -> bool:
        """Completes an answer, or adds a complete one. Completing the last member seals the group.

        Returns True if the group is sealed now; False while members are open, and if it was retired.

        Parameters
        ----------
        group : int
            Id of the group.
        member : int
            Place of the answer in its group, 0 to G - 1.
        reward : float
            Reward of the answer.
        version : int, optional
            The policy that generated the last piece. None: the current one.
        n_tokens : int, optional
            Length of the answer for sample(tokens=...). None: that of the field `tokens`, 0 without one.
        **fields : ArrayLike
            The last piece, or all values, by field.
        """
        value = _options.real("reward", reward)
        if not abs(value) <= _LARGEST_REWARD:
            raise InvalidArgument(f"reward is {value}; allowed: finite numbers of float32")
        with self._changing() as state:
            number, place, ended = self._given(state, group, member, version, fields)
            if ended is None:
                return False
            count = None if n_tokens is None else at_least("n_tokens", n_tokens, 0, 2**31 - 1)
            self._put(state, number, place, ended.closed(value, count, self._fields))
            return number in state.names and number not in state.members

    def fail(self, group: IntLike, reason: str = "failed") -> None:
        """Retires an open or sealed group. Nothing happens if it has ended. A leased group is an error.

        A group that was used before is consumed, not retired.

        Parameters
        ----------
        group : int
            Id of the group.
        reason : str, default "failed"
            Such as "failed", "filtered" or "aborted". counts() has the numbers by reason.
        """
        with self._changing() as state:
            number = self._issued_id(group)
            if number in state.names:
                place = state.place_of(number)
                if state.places["state"][place] == LEASED:
                    raise InvalidArgument(f"group is {number}, which is leased; allowed: open and sealed groups")
                state.end([place], str(reason))

    def sample(self, groups: IntLike | None = None, *, tokens: IntLike | None = None) -> Lease[Array]:
        """Leases groups to a learner. Give one of the two arguments.

        Raises Busy if too few groups are ready: see wait().

        Parameters
        ----------
        groups : int, optional
            Number of groups.
        tokens : int, optional
            Takes whole groups until the next one would exceed this number of tokens.
        """
        with self._changing() as state:
            chosen, probabilities = state.chosen(groups, tokens)
            if chosen is None:
                asked = f"groups is {groups}" if tokens is None else f"tokens is {tokens}"
                raise Busy(f"{asked}; too few groups are ready ({state})")
            places = state.places[chosen]
            rows = self._rows.get_windows(places["row"])
            batch: Batch[Array] = Batch({name: rows[name] for name in (*self._fields, *_OWN)})
            ids, n_tokens = places["id"].copy(), places["n_tokens"].copy()
            keys = tuple(state.names[group][0] for group in ids.tolist())
            ages = state.numbers["version"] - places["first"]
            for shared in (ids, n_tokens, ages, probabilities):  # with the ledger's copy of the lease
                shared.setflags(write=False)
            lease = Lease(self._next_lease, state.draw(), ids, keys, ages, n_tokens, probabilities, batch)
            state.places["state"][chosen] = LEASED
            state.leases[lease.number] = dataclasses.replace(lease, batch=Batch({}))
            self._next_lease += 1
            return lease

    def ack(self, lease: Lease[Array], *, version: IntLike | None = None) -> None:
        """Ends a lease whose groups were used.

        Parameters
        ----------
        lease : Lease
            What sample() returned.
        version : int, optional
            Also advances to this version, in the same step. None: the version stays.
        """
        with self._changing() as state:
            ended = self._end(state, lease)
            state.numbers["draws"] = max(state.numbers["draws"], ended.draw + 1)
            number = state.numbers["version"]
            for place in map(state.place_of, ended.groups.tolist()):
                state.places["uses"][place] += 1
                if state.places["uses"][place] == self._own["uses"]:
                    state.end([place])
            state.advance(number if version is None else at_least("version", version, number))

    def release(self, lease: Lease[Array]) -> None:
        """Ends a lease whose groups were not used. They can be drawn again unless they are too old by now.

        Parameters
        ----------
        lease : Lease
            What sample() returned.
        """
        with self._changing() as state:
            self._end(state, lease)
            state.retire_stale()

    def leases(self) -> list[Lease[Array]]:
        """The leases that have not ended, without their batches: release() those of a learner that died."""
        with self._lock:
            return list(self._state.leases.values())

    def update_priorities(self, groups: IntArrayLike, priorities: ArrayLike) -> None:
        """Sets the priorities of groups, which begin with 1. Groups that ended are ignored.

        Parameters
        ----------
        groups : IntArrayLike
            Their ids.
        priorities : ArrayLike
            A finite number >= 0 for each.
        """
        ids = _arrays.as_int64(groups, "groups").tolist()
        values = _arrays.as_float(priorities, "priorities", np.float64).reshape(-1)
        if len(ids) != len(values) or not (np.isfinite(values) & (values >= 0)).all():
            raise InvalidArgument(
                f"priorities is {values}; allowed: a finite number >= 0 for each of {len(ids)} groups"
            )
        with self._changing() as state:
            for number, priority in zip(map(self._issued_id, ids), values.tolist(), strict=True):
                if number in state.names:
                    state.places["priority"][state.place_of(number)] = priority

    def advance(self, version: IntLike | None = None) -> int:
        """Sets the version of the policy, retires groups that are too old for it, and returns it.

        Parameters
        ----------
        version : int, optional
            The current one or a later one. None: the next one.
        """
        with self._changing() as state:
            current = state.numbers["version"]
            state.advance(current + 1 if version is None else at_least("version", version, current))
            return state.numbers["version"]

    @property
    def version(self) -> int:
        """The version of the policy, 0 at first."""
        return self._state.numbers["version"]

    @property
    def room(self) -> int:
        """Number of groups that reserve() allows at this moment."""
        return self._state.room()

    def missing(self) -> dict[int, Key]:
        """The open groups and their keys. After load() their answers must be generated from the beginning."""
        state = self._state
        return {group: state.names[group][0] for group in state.members}

    def counts(self) -> Counts:
        """Numbers of groups by state."""
        state = self._state
        _, n_open, sealed, leased = state.counts()
        issued, consumed, retired = state.numbers["issued"], state.numbers["consumed"], dict(state.retired)
        return Counts(issued, n_open, sealed, leased, consumed, sum(retired.values()), retired)

    def __repr__(self) -> str:
        return f"per.llm.Groups({self._own['group_size']}, {self._state})"

    async def wait(self, groups: IntLike | None = None, *, tokens: IntLike | None = None, room: IntLike = 0) -> None:
        """Waits until sample() with these arguments, and reserve() of `room` groups, would succeed.

        Parameters
        ----------
        groups : int, optional
            Number of groups to sample.
        tokens : int, optional
            In place of groups: the number of tokens to sample. None for both: only `room` is waited for.
        room : int, default 0
            Number of groups to reserve.
        """
        while True:
            with self._locked():
                if self._is_ready(groups, tokens, room):
                    return
                future = asyncio.get_running_loop().create_future()
                self._waiters.add(future)
            try:
                await future
            finally:
                self._waiters.discard(future)

    def wait_blocking(
        self,
        groups: IntLike | None = None,
        *,
        tokens: IntLike | None = None,
        room: IntLike = 0,
        timeout: float | None = None,
    ) -> None:
        """Blocking version of wait(). Raises Timeout.

        Parameters
        ----------
        groups : int, optional
            Number of groups to sample.
        tokens : int, optional
            In place of groups: the number of tokens to sample. None for both: only `room` is waited for.
        room : int, default 0
            Number of groups to reserve.
        timeout : float, optional
            Seconds to wait. None: no limit.
        """
        seconds = min(seconds_of(timeout), threading.TIMEOUT_MAX)
        with self._locked():
            if not self._lock.wait_for(lambda: self._is_ready(groups, tokens, room), seconds):
                raise Timeout(f"timeout is {timeout}; not ready yet ({self._state})")

    def state_dict(self) -> dict[str, Any]:
        """The whole ledger as {"checkpoint": uint8[bytes of a file]}, for load(); a tensor if batches have tensors."""
        with self._locked(), tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/ledger"
            Database(path, self._contents()).close()
            contents = np.fromfile(path, np.uint8)
        is_torch = self._own["arrays"] == "torch"
        return {"checkpoint": importlib.import_module("torch").from_numpy(contents) if is_torch else contents}

    def __enter__(self) -> Groups[Array]:
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file, so that another ledger can load it. Later changes and waits are errors."""
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._wake_all()

    @constructor
    def load(cls: Any, source: Path | Mapping[str, Any]) -> Groups[Any]:
        """Continues from the file of a ledger, with all that happened before it ended, or from a state_dict().

        Leased groups are sealed again. Open ones are in missing(). A ledger loaded from a state_dict() writes no file.

        Raises IoError, CorruptFile, or Busy if another ledger uses the path.

        Parameters
        ----------
        source : Path or Mapping[str, Any]
            The path, or the state_dict().
        """
        if isinstance(source, Mapping):
            if set(source) != {"checkpoint"}:
                raise InvalidArgument(f"source has {', '.join(source)}; allowed: what state_dict() returned")
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/state_dict"
                np.asarray(source["checkpoint"], np.uint8).tofile(path)
                groups: Groups[Any] = cls.load(path)
                groups.__exit__()
            groups._database = None
            return groups
        groups = cls.__new__(cls)
        database = Database(os.fsdecode(_options.path(source, "source")))
        try:
            groups._restore(database)
            with groups._changing() as state:
                state.retire_stale()
        except BaseException:
            database.close()
            raise
        return groups

    # The file.

    def _contents(self) -> Iterator[Row]:
        """The rows of a file that holds this ledger."""
        fields = {name: dataclasses.asdict(field) for name, field in self._fields.items()}
        yield "facts", "options", [json.dumps(self._own)]
        yield "facts", "fields", [json.dumps(fields)]
        yield from self._state.rows_since(State(self._own, numbers={}), self._payload)

    def _restore(self, database: Database) -> None:
        """Sets up a ledger from a file. The checksums match, so a ledger wrote its values."""
        facts = {name: json.loads(value) for name, value in database.rows("facts")}
        if len(facts) < 3:
            raise CorruptFile(f"{database.path}: rows are missing, of facts: {', '.join(facts)}")
        self._begin(facts["options"], {name: Field(**field) for name, field in facts["fields"].items()})
        self._database, state, n_payloads = database, self._state, 0
        state.numbers = facts["numbers"]
        state.retired.update({tuple(json.loads(cause)): n for cause, n in database.rows("retired")})
        for place, *row, key, tag in sorted(database.rows("groups"), key=lambda row: row[1]):
            state.places[place] = (*row, 0)
            state.names[row[0]] = (json.loads(key), json.loads(tag))
            if row[1] == OPEN:
                state.members[row[0]] = state.new_members()
        for place, payload in database.rows("payloads"):
            file = io.BytesIO(payload)
            state.places["row"][place] = self._store(place, (np.load(file) for _ in itertools.count()))
            n_payloads += 1
        counts = self.counts()
        n_stored = counts.issued - counts.open - counts.consumed - counts.retired
        if not n_stored == counts.sealed == n_payloads:
            raise CorruptFile(f"{database.path}: rows are missing, of {n_payloads} payloads and {counts}")

    def _payload(self, row: int) -> bytes:
        """The arrays of a group in the buffer, one after the other in the format of numpy's files."""
        batch, file = self._rows.get_windows([row]), io.BytesIO()
        for name in (*_OWN, *self._fields):
            values = batch[name]
            for array in (values.values, values.offsets) if isinstance(values, Ragged) else (values[0],):
                np.save(file, np.asarray(array), allow_pickle=False)
        return file.getvalue()

    # Changes, for callers that hold the lock.

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock of a ledger that is whole, and not a copy in a forked child, where it might never be free."""
        if os.getpid() != self._process:
            raise InvalidArgument("the ledger belongs to the process from which this one was forked; allowed: load()")
        with self._lock:
            self._check_whole()
            yield

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise InvalidArgument("a change of the ledger was interrupted; allowed: load() of its file or a state")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        """Holds the lock while a copy of the state is changed, writes it, and wakes all who wait for a change."""
        with self._locked():
            state = self._state.copy()
            try:
                yield state
                if self._database is not None and (rows := [*state.rows_since(self._state, self._payload)]):
                    self._is_whole = False  # until the file and the memory have both changed, or neither
                    self._database.write(rows, self._own["fsync"])
                self._state = state
                self._is_whole = True
            except Error:
                self._is_whole = True
                raise
            finally:
                if not self._is_whole and self._database is not None:
                    self._database.close()  # so that load() can be called
                self._wake_all()

    def _wake_all(self) -> None:
        self._lock.notify_all()
        for future in list(self._waiters):
            with contextlib.suppress(RuntimeError):  # the loop of its task is closed
                future.get_loop().call_soon_threadsafe(_wake, future)
        self._waiters.clear()

    def _put(self, state: State, group: int, number: int, member: Member) -> None:
        """Replaces a member of an open group, and seals the group if that was the last one to be closed."""
        members = [member if i == number else each for i, each in enumerate(state.members[group])]
        state.members[group], place = members, state.place_of(group)
        it = state.places[place]
        it["first"] = min(each.first for each in members if each.first is not None)
        if all("reward" in each.values for each in members):
            arrays = []
            for name in (*_OWN, *self._fields):
                rows = [each.values[name] for each in members]
                arrays += [np.concatenate(rows), *([np.cumsum([0, *map(len, rows)])] * (name in self._ragged))]
            it["row"], it["state"], it["sealed"] = self._store(place, arrays), SEALED, state.numbers["sealed"]
            it["n_tokens"] = sum(each.n_tokens for each in members)
            state.numbers["sealed"] += 1
            del state.members[group]
        state.retire_stale()

    def _store(self, place: int, arrays: Iterable[npt.NDArray[Any]]) -> int:
        """Adds a group to the lane of its place. Returns the id of its first row, to which no state refers yet."""
        given, size = iter(arrays), self._own["group_size"]
        values: dict[str, Any] = {
            name: Ragged(next(given), next(given)) if name in self._ragged else next(given)[:, None]
            for name in (*_OWN, *self._fields)
        }
        is_end = np.arange(size)[:, None] == size - 1
        ends = {"terminated": is_end, "truncated": False, "next_mask": ~is_end}
        ids = self._rows.extend(group=np.zeros((size, 1), np.int8), env_ids=[place], **ends, **values)
        return int(ids[0, 0])

    def _end(self, state: State, lease: Lease[Array]) -> Lease[Array]:
        """Ends a lease, after which its groups are sealed. Returns the ledger's own copy."""
        if not isinstance(lease, Lease):
            raise InvalidArgument(f"lease is {kind_of(lease)}; allowed: a Lease that sample() returned")
        known: Lease[Array] | None = state.leases.pop(lease.number, None)
        if known is None or not np.array_equal(known.groups, lease.groups):
            raise InvalidArgument("lease has ended, or is of another ledger; allowed: those of leases()")
        for group in known.groups.tolist():
            state.places["state"][state.place_of(group)] = SEALED
        return known

    # Arguments.

    def _allowed_room(self, argument: str, value: object) -> int:
        most = min(self._own["capacity"], self._own["max_open"])
        return at_least(argument, value, 0, most, ", the smaller of capacity and max_open")

    def _is_ready(self, groups: IntLike | None, tokens: IntLike | None, room: IntLike) -> bool:
        self._check_whole()
        if self._database is not None:
            self._database.check_open()
        is_asked = groups is not None or tokens is not None
        can_sample = not is_asked or self._state.chosen(groups, tokens)[0] is not None
        return self._state.room() >= self._allowed_room("room", room) and can_sample

    def _issued_id(self, group: object) -> int:
        number, issued = _options.whole("group", group), self._state.numbers["issued"]
        if not 0 <= number < issued:
            raise InvalidArgument(f"group is {number}; allowed: ids that reserve() returned, below {issued}")
        return number

    def _given(
        self, state: State, group: object, member: object, version: object, fields: Mapping[str, object]
    ) -> tuple[int, int, Member | None]:
        """Group, place and member with the arguments of append() or close(). No member if the group has ended."""
        number, place = self._issued_id(group), at_least("member", member, 0, self._own["group_size"] - 1)
        at_version = current = state.numbers["version"]
        if version is not None:
            at_version = at_least("version", version, 0, current, ", the current one")
        if number not in state.names:
            return number, place, None
        if number not in state.members or "reward" in state.members[number][place].values:
            raise InvalidArgument(f"member is {place}, which is closed in group {number}; allowed: open members")
        grown = state.members[number][place].grown(fields, self._fields)
        if fields or version is not None or grown.first is None:
            grown.first = at_version if grown.first is None else min(grown.first, at_version)
            grown.last = max(grown.last, at_version)
        return number, place, grown


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
