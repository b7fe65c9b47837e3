"""A ledger of answer groups, from request to use."""

from __future__ import annotations

import asyncio
import bisect
import concurrent.futures
import contextlib
import dataclasses
import importlib
import itertools
import json
import math
import operator
import os
import pickle
import secrets
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    SupportsFloat,
    TypedDict,
    TypeVar,
    overload,
)

import numpy as np
import numpy.typing as npt

from per import _arrays, _kinds, _options
from per._errors import Busy, CorruptFile, Error, InvalidArgument, Timeout, kind_of
from per._handle import constructor
from per._options import at_least
from per._waiting import seconds_of
from per.batch import Batch, map_arrays, read_only, refuse_method_names
from per.field import Field, to_c
from per.llm._database import COUNTS, IS_SEALED, IS_WHOLE, N_CLOSED, NOTE_CHANGES, RETIRE_STALE, SEAL, Database, about
from per.ragged import of_tree
from per.typing import Array, Array_co, ArrayLike, FloatLike, IntArrayLike, IntLike, Path, Unpack

Key = int | str | None
Indices = npt.NDArray[np.int64]

_OWN = {"version_first": Field((), "int64"), "version_last": Field((), "int64"), "reward": Field()}  # in each batch
_RESERVED = ("self", "group", "member", "version", "n_tokens", "observation", *_OWN)
_FROM_1, _FROM_0 = ("group_size", "capacity", "max_open", "per_version", "uses"), ("max_age", "ahead", "seed")
_ORDERS = {  # conditions and sort keys of the groups that can be drawn
    "issued": ("id < (SELECT coalesce(min(id), 1 << 62) FROM groups WHERE sealed IS NULL)", "id"),
    "sealed": ("TRUE", "sealed"),
    "priority": ("priority > 0", "id"),
}
_ONE = int(np.float64(1).view(np.int64))  # priorities are stored as their bits, which are ordered like them
_READY = [("id", "i8"), ("n_tokens", "i8"), ("first", "i8"), ("priority", "i8")]


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


if TYPE_CHECKING:
    import torch

    class _Options(TypedDict, total=False):
        max_open: IntLike | None
        per_version: IntLike | None
        ahead: IntLike
        max_age: IntLike | None
        uses: IntLike
        order: Literal["issued", "sealed", "priority"]
        half_life: FloatLike | None
        seed: IntLike
        path: Path | None
        fsync: bool

    @read_only
    class GroupBatch(Mapping[str, Any], Generic[Array_co]):
        """The batch of a lease: a per.Batch with other arrays. Fields but `tokens` are read by name."""

        tokens: Any
        reward: Array_co
        version_first: Array_co
        version_last: Array_co

        def __init__(self, arrays: dict[str, Any]) -> None: ...
        def __getitem__(self, name: str) -> Any: ...
        def __iter__(self) -> Iterator[str]: ...
        def __len__(self) -> int: ...
        def to(self, device: Any) -> GroupBatch[Array_co]: ...

else:
    GroupBatch = Batch

AnyGroups = TypeVar("AnyGroups", bound="Groups")


@dataclasses.dataclass(frozen=True, eq=False)
class Lease(Generic[Array_co]):
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
    batch: GroupBatch[Array_co]
    """the fields, reward, version_first and version_last, each [B, G]"""

    def __post_init__(self) -> None:
        for array in (self.groups, self.ages, self.n_tokens, self.probabilities):
            array.setflags(write=False)

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

    docs/llm.md has the states, pacing, orders of draws and files. Several threads and tasks may use a ledger: each call
    is atomic, and an error changes nothing.

    Parameters
    ----------
    group_size : int
        G, the members of a group.
    fields : Mapping[str, Field], optional
        Arrays of each member, such as {"tokens": per.Field(None, "int32", max_length=4096)}. None: payloads are kept
        elsewhere.
    capacity : int
        Groups that may be open, sealed or leased at the same time.
    max_open : int, optional
        Groups that may be open at the same time. None: capacity.
    per_version : int, optional
        Groups that learners use in each version. None: no pacing.
    ahead : int, default 0
        Versions by which generation may be ahead.
    max_age : int, optional
        Largest age at which a group is drawn. Older groups are retired, also while open. None: no limit.
    uses : int, default 1
        Draws until a group is consumed. A group that was used is consumed, not retired, when it is too old.
    order : {"issued", "sealed", "priority"}, default "issued"
        The order of draws.
    half_life : float, optional
        Draws by priority are in proportion to priority 2^(-age / half_life). None: age does not matter.
    seed : int, default 0
        Seed of the draws.
    arrays : {"numpy", "torch"}, default "numpy"
        The arrays of batches.
    path : Path, optional
        File of the ledger, which must not exist; load() continues from one. None: memory only.
    fsync : bool, default False
        True: changes survive a power failure, not just the death of the process.

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
    >>> groups.ack(lease, version=1)
    """

    @overload
    def __init__(
        self: Groups[npt.NDArray[Any]],
        group_size: IntLike,
        fields: Mapping[str, Field] | None = None,
        *,
        capacity: IntLike,
        arrays: Literal["numpy"] = "numpy",
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Groups[torch.Tensor],
        group_size: IntLike,
        fields: Mapping[str, Field] | None = None,
        *,
        capacity: IntLike,
        arrays: Literal["torch"],
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Groups[Any],
        group_size: IntLike,
        fields: Mapping[str, Field] | None = None,
        *,
        capacity: IntLike,
        arrays: Literal["numpy", "torch"],
        **options: Unpack[_Options],
    ) -> None: ...
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
        order: Literal["issued", "sealed", "priority"] = "issued",
        half_life: FloatLike | None = None,
        seed: IntLike = 0,
        arrays: Literal["numpy", "torch"] = "numpy",
        path: Path | None = None,
        fsync: bool = False,
    ) -> None:
        own: dict[str, Any] = {"group_size": group_size, "capacity": capacity, "per_version": per_version}
        own |= {"max_open": capacity if max_open is None else max_open, "max_age": max_age, "ahead": ahead}
        own |= {"uses": uses, "order": order, "seed": seed}
        for name in _FROM_1 + _FROM_0:
            if own[name] is not None or name not in ("per_version", "max_age"):
                own[name] = at_least(name, own[name], least=int(name in _FROM_1))
        if order not in _ORDERS:
            raise InvalidArgument(f"order is {order!r}; allowed: {', '.join(map(repr, _ORDERS))}")
        own |= {"arrays": _kinds.kind_of(arrays, "cpu", ("numpy", "torch")), "fsync": _options.flag("fsync", fsync)}
        own["half_life"] = None if half_life is None else _options.real("half_life", half_life)
        if half_life is not None and not 0 < own["half_life"] < math.inf:
            raise InvalidArgument(f"half_life is {half_life}; allowed: finite numbers above 0")
        for name, is_idle, allowed in (
            ("ahead", own["ahead"] > 0 and per_version is None, "with per_version"),
            ("half_life", half_life is not None and order != "priority", "with order='priority'"),
            ("fsync", own["fsync"] and path is None, "with path"),
        ):
            if is_idle:
                raise InvalidArgument(f"{name} is given; allowed: {allowed}")
        fields = {} if fields is None else fields
        to_c(fields)
        refuse_method_names(fields)
        for name, field in fields.items():
            if name.split(".")[0] in _RESERVED or field.role not in (None, "plain") or field.stack not in (None, 1):
                raise InvalidArgument(f"field {name} is an observation or state, stacked or reserved; allowed: others")
            if field.compression != "none":
                raise InvalidArgument(f"field {name} is compressed; allowed: compression='none'")
            if field.dtype == "bfloat16":
                raise InvalidArgument(f"field {name} is of bfloat16; allowed: dtypes of numpy, such as float16")
        described = {name: dataclasses.asdict(field) for name, field in fields.items()}
        database = Database()
        database.sql("INSERT INTO ledger VALUES (?, ?, 0, 0, 0, 0, 0, NULL)", json.dumps(own), json.dumps(described))
        if path is not None:
            database.save(name := os.fsdecode(_options.path(path)))
            database = Database(name)
        self._begin(database)

    def _begin(self, database: Database) -> None:
        """Continues with the tables of a database, in which leased groups are sealed, and open ones have no answers."""
        self._database, self._sql, self._value = database, database.sql, database.value
        self._lock = threading.RLock()
        self._waiters: set[concurrent.futures.Future[None]] = set()
        try:
            facts = self._sql("SELECT options, fields FROM ledger") or [('{"group_size": 0}', "{}")]
            self._options, fields = map(json.loads, facts[0])
            n_values = self._options["group_size"] * (len(fields) + len(_OWN) + 1)  # of a sealed group
            if self._value(IS_WHOLE, n_values) != 1:
                raise CorruptFile(f"{database.path}: rows are missing")
            self._fields = {name: Field(**field) for name, field in fields.items()}
            of_row = {name: field.value_shape[field.max_length is None :] for name, field in self._fields.items()}
            self._n_bytes = {name: np.empty(of_row[name], self._fields[name].dtype).nbytes for name in of_row}
            self._sql(f"PRAGMA synchronous = {'FULL' if self._options['fsync'] else 'NORMAL'}")
            condition, self._sort_key = _ORDERS[self._options["order"]]
            ready = f"sealed IS NOT NULL AND id NOT IN (SELECT id FROM leased) AND {condition}"
            self._sql(f"CREATE TEMP VIEW ready AS SELECT * FROM groups WHERE {ready}")
            self._ready = np.empty(0, _READY)  # the rows of the view by id, but for those in `changed`
            if self._options["order"] == "priority":
                database.connection.executescript(NOTE_CHANGES)
            with self._changing():
                self._sql(RETIRE_STALE, self._options["max_age"])
        except BaseException:
            database.close()
            raise

    @overload
    def reserve(self, k: IntLike | None = None, *, tag: str = "") -> list[int]: ...
    @overload
    def reserve(self, *, keys: Sequence[Key] | None, tag: str = "") -> list[int]: ...
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
        if keys is not None and (k is not None or isinstance(keys, str) or not isinstance(keys, Iterable)):
            raise InvalidArgument(f"k is {k!r}, keys is {keys!r}; allowed: one of them, keys a list")
        names: list[Any] = [*keys] if keys is not None else [None] * (1 if k is None else at_least("k", k, 0))
        for place, key in enumerate(names):
            with contextlib.suppress(TypeError):
                names[place] = operator.index(key)  # also of numpy
            if not isinstance(names[place], (int, str, type(None))):
                raise InvalidArgument(f"keys has {key!r}; allowed: int, str and None")
            try:
                names[place] = json.dumps(names[place])
            except ValueError as error:
                raise InvalidArgument("keys has an int that Python does not print; allowed: fewer digits") from error
        if not isinstance(tag, str):
            raise InvalidArgument(f"tag is {tag!r}; allowed: str")
        self._allowed_room("k", len(names))
        with self._changing():
            if len(names) > (room := self.room):
                raise Busy(f"k is {len(names)}; allowed at this moment: up to {room} ({self})")
            first = self._value("SELECT issued FROM ledger")
            for group, key in enumerate(names, first):
                row = group, key, json.dumps(tag), _ONE
                self._sql("INSERT INTO groups VALUES (?, ?, ?, ?, 0, NULL, NULL, NULL, NULL)", *row)
            return list(range(first, first + len(names)))

    def append(self, group: IntLike, member: IntLike, *, version: IntLike | None = None, **fields: ArrayLike) -> bool:
        """Adds a piece of an answer: rows of any length grow by it, other fields are replaced.

        Returns False if the group has been retired, and its generation may stop.

        Parameters
        ----------
        group, member : int
            Id of the group, and place of the answer in it, 0 to G - 1.
        version : int, optional
            The policy that generated the piece. None: the current one.
        **fields : ArrayLike
            The values of the piece, by field.
        """
        with self._changing():
            return self._add(group, member, version, fields, {}) is not None

    def close(
        self,
        group: IntLike,
        member: IntLike,
        reward: SupportsFloat,
        *,
        version: IntLike | None = None,
        n_tokens: IntLike | None = None,
        **fields: ArrayLike,
    ) -> bool:
        """Completes an answer, or adds a complete one. Completing the last member seals the group.

        Returns True if the group is sealed now; False while members are open, and if it was retired.

        Parameters
        ----------
        group, member : int
            As for append().
        reward : SupportsFloat
            Reward of the answer.
        version : int, optional
            As for append().
        n_tokens : int, optional
            Length of the answer for sample(tokens=...). None: that of the field `tokens`, 0 without one.
        **fields : ArrayLike
            The last piece, or all values, by field.
        """
        number = _options.real("reward", reward)
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise InvalidArgument(f"reward is {number}; allowed: finite numbers of float32")
        own: dict[str, Any] = {"reward": np.float32(number).tobytes()}
        if n_tokens is not None:
            own["n_tokens"] = at_least("n_tokens", n_tokens, 0, 2**31 - 1)
        with self._changing():
            return bool(self._add(group, member, version, fields, own))

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
        with self._changing():
            number = self._issued(group)
            if self._sql("SELECT id FROM leased WHERE id = ?", number):
                raise InvalidArgument(f"group is {number}, which is leased; allowed: open and sealed groups")
            self._sql("INSERT INTO ended VALUES (?, ?)", number, json.dumps(str(reason)))

    @overload
    def sample(self, groups: IntLike) -> Lease[Array]: ...
    @overload
    def sample(self, *, tokens: IntLike) -> Lease[Array]: ...
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
        with self._changing():
            drawn = self._drawn(groups, tokens)
            if drawn is None:
                asked = f"groups is {groups}" if tokens is None else f"tokens is {tokens}"
                raise Busy(f"{asked}; too few groups are ready ({self})")
            ids, n_tokens, probabilities = zip(*drawn, strict=True)
            rows = [self._sql("SELECT key, version - first FROM groups, ledger WHERE id = ?", id)[0] for id in ids]
            lease: Lease[Array] = Lease(
                secrets.randbits(62),  # so that no lease is mistaken for one from before a restore
                self._draw(),
                np.array(ids),
                tuple(json.loads(key) for key, _ in rows),
                np.array([age for _, age in rows]),
                np.array(n_tokens),
                np.array(probabilities),
                self._batch(ids),
            )
            known = pickle.dumps(dataclasses.replace(lease, batch=GroupBatch({})))
            self._sql("INSERT INTO leases VALUES (?, ?)", lease.number, known)
            for group in ids:
                self._sql("INSERT INTO leased VALUES (?, ?)", group, lease.number)
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
        with self._changing():
            ended = self._taken_back(lease)
            self._sql("UPDATE ledger SET draws = max(draws, ?)", ended.draw + 1)
            for group in ended.groups.tolist():
                self._sql("UPDATE groups SET uses = uses + 1 WHERE id = ?", group)
                used_up = "INSERT INTO ended SELECT id, NULL FROM groups WHERE id = ? AND uses = ?"
                self._sql(used_up, group, self._options["uses"])
            self._advance(version, 0)

    def release(self, lease: Lease[Array]) -> None:
        """Ends a lease whose groups were not used. They can be drawn again unless they are too old by now.

        Parameters
        ----------
        lease : Lease
            What sample() returned.
        """
        with self._changing():
            self._taken_back(lease)
            self._sql(RETIRE_STALE, self._options["max_age"])

    def leases(self) -> list[Lease[Array]]:
        """The leases that have not ended, without their batches: release() those of a learner that died."""
        with self._locked():
            return [pickle.loads(lease) for (lease,) in self._sql("SELECT lease FROM leases ORDER BY rowid")]

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
            allowed = f"a finite number >= 0 for each of {len(ids)} groups"
            raise InvalidArgument(f"priorities is {values}; allowed: {allowed}")
        with self._changing():
            for group, priority in zip(ids, values.view(np.int64).tolist(), strict=True):
                self._sql("UPDATE groups SET priority = ? WHERE id = ?", priority, self._issued(group))

    def advance(self, version: IntLike | None = None) -> int:
        """Sets the version of the policy, retires groups that are too old for it, and returns it.

        Parameters
        ----------
        version : int, optional
            The current one or a later one. None: the next one.
        """
        with self._changing():
            return self._advance(version, 1)

    @property
    def version(self) -> int:
        """The version of the policy, 0 at first."""
        with self._locked():
            return int(self._value("SELECT version FROM ledger"))

    @property
    def room(self) -> int:
        """Number of groups that reserve() allows at this moment."""
        with self._locked():
            it, own, version = self.counts(), self._options, self._value("SELECT version - base FROM ledger")
        room: int = min(own["capacity"] - it.open - it.sealed - it.leased, own["max_open"] - it.open)
        if own["per_version"] is not None:
            room = min(room, (version + 1 + own["ahead"]) * own["per_version"] - it.issued + it.retired)
        return max(room, 0)

    def missing(self) -> dict[int, Key]:
        """The open groups and their keys. After load() their answers must be generated from the beginning."""
        with self._locked():
            rows = self._sql("SELECT id, key FROM groups WHERE sealed IS NULL ORDER BY id")
            return {group: json.loads(key) for group, key in rows}

    def counts(self) -> Counts:
        """Numbers of groups by state."""
        with self._locked():
            numbers, rows = self._sql(COUNTS)[0], self._sql("SELECT reason, tag, n FROM retired")
        retired = {(json.loads(reason), json.loads(tag)): n for reason, tag, n in rows}
        return Counts._make([*numbers, sum(retired.values()), retired])

    def __str__(self) -> str:
        try:
            with self._locked():
                it, version = self.counts(), self.version
        except Error as error:
            return str(error)
        return f"version {version}, {it.open} groups open, {it.sealed} sealed, {it.leased} leased"

    def __repr__(self) -> str:
        return f"per.llm.Groups({self._options['group_size']}, {self})"

    async def wait(self, groups: IntLike | None = None, *, tokens: IntLike | None = None, room: IntLike = 0) -> None:
        """Waits until sample() with these arguments, and reserve() of `room` groups, would succeed.

        Parameters
        ----------
        groups, tokens : int, optional
            As for sample(). None for both: only `room` is waited for.
        room : int, default 0
            Number of groups to reserve.
        """
        while (change := self._waiter(groups, tokens, room)) is not None:
            try:
                await asyncio.wrap_future(change)
            finally:
                self._waiters.discard(change)

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
        groups, tokens : int, optional
            As for wait().
        room : int, default 0
            As for wait().
        timeout : float, optional
            Seconds to wait. None: no limit.
        """
        end = time.monotonic() + seconds_of(timeout)
        while (change := self._waiter(groups, tokens, room)) is not None:
            try:
                if not concurrent.futures.wait(
                    [change], min(max(end - time.monotonic(), 0), threading.TIMEOUT_MAX)
                ).done:
                    raise Timeout(f"timeout is {timeout}; not ready yet ({self})")
            finally:
                self._waiters.discard(change)

    def state_dict(self) -> dict[str, Any]:
        """The whole ledger as {"checkpoint": uint8[bytes of a file]}, for load(); a tensor if batches have tensors."""
        with self._locked(is_alone=True), tempfile.TemporaryDirectory() as folder:
            self._database.save(path := f"{folder}/ledger")
            return {"checkpoint": self._as_array(np.fromfile(path, np.uint8))}

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.llm.Groups cannot be pickled or copied; allowed: load() of a state_dict(), and serve()")

    def __enter__(self) -> Groups[Array]:
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file, so that another ledger can load it. Later calls are errors."""
        with contextlib.suppress(InvalidArgument), self._locked(is_alone=True):  # unless it is closed already
            self._database.close()
            self._wake_all()

    @constructor
    def load(cls: type[AnyGroups], source: Path | Mapping[str, Any]) -> AnyGroups:
        """Continues from the file of a ledger, with all that happened before it ended, or from a state_dict().

        Leased groups are sealed again. Open ones are in missing(). A ledger loaded from a state_dict() writes no file.

        Raises IoError, CorruptFile, or Busy if another ledger uses the path.

        Parameters
        ----------
        source : Path or Mapping[str, Any]
            The path, or the state_dict().
        """
        groups = cls.__new__(cls)
        if not isinstance(source, Mapping):
            groups._begin(Database(os.fsdecode(_options.path(source, "source"))))
            return groups
        contents = _arrays.as_array(source["checkpoint"], "checkpoint")[0] if set(source) == {"checkpoint"} else None
        if contents is None or contents.dtype != np.uint8:
            raise InvalidArgument(f"source has {[*source]}; allowed: what state_dict() returned")
        with tempfile.TemporaryDirectory() as folder:
            contents.tofile(path := f"{folder}/state_dict")
            groups._begin(Database(path, is_copy=True))
        return groups

    # The lock.

    @contextlib.contextmanager
    def _locked(self, is_alone: bool = False) -> Iterator[None]:
        """Holds the lock of an open ledger. Raises Busy if is_alone and the call is within another one of the thread.

        A signal handler or destructor makes such calls.
        """
        self._database.check_open()  # the lock of a forked child might never be free
        is_within = self._lock._is_owned()  # type: ignore[attr-defined]
        if is_within and is_alone:
            raise Busy("a signal handler or destructor interrupted a call of the ledger; allowed: calls that only read")
        with self._lock, about(self._database.path):
            self._database.check_open()  # another thread may have closed it
            if not is_within and self._database.connection.in_transaction:
                self._sql("ROLLBACK")
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock for a transaction, and then wakes all who wait for a change.

        An error or an interrupt, at whatever line, leaves a transaction that the next call rolls back.
        """
        with self._locked(is_alone=True):
            try:
                self._sql("BEGIN IMMEDIATE")
                yield
                self._sql("COMMIT")
            finally:
                self._wake_all()

    def _waiter(
        self, groups: IntLike | None, tokens: IntLike | None, room: IntLike
    ) -> concurrent.futures.Future[None] | None:
        """A future that the next change completes; None if wait() is over."""
        with self._locked(is_alone=True):
            is_ready = self.room >= self._allowed_room("room", room)
            if groups is not None or tokens is not None:
                is_ready &= self._drawn(groups, tokens) is not None
            if is_ready:
                return None
            change: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._waiters.add(change)
            return change

    def _wake_all(self) -> None:
        for change in list(self._waiters):
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # a wait that was cancelled
                change.set_result(None)
        self._waiters.clear()

    # Changes, for callers that hold the lock.

    def _add(
        self, group: object, member: object, version: object, given: Mapping[str, object], ended: Mapping[str, Any]
    ) -> bool | None:
        """Adds values to an answer, which ends with a reward. Returns True if the group is sealed, None if it ended."""
        number, place = self._issued(group), at_least("member", member, 0, self._options["group_size"] - 1)
        at = current = self.version
        if version is not None:
            at = at_least("version", version, 0, current, ", the current one")
        is_sealed: bool | None = self._value(IS_SEALED, number)
        if is_sealed is None:
            return None
        of_member = "SELECT name, value FROM unfinished WHERE id = ? AND member = ?"
        values: dict[str, Any] = dict(self._sql(of_member, number, place))
        if is_sealed or "reward" in values:
            raise InvalidArgument(f"member is {place}, which is closed in group {number}; allowed: open members")
        if given or version is not None or not values:
            values["version_first"] = min(values.get("version_first", at), at)
            values["version_last"] = max(values.get("version_last", at), at)
        for name, value in given.items():
            values[name] = self._packed(name, value, values.get(name, b""))
        if ended:
            for name in [name for name in self._fields if name not in values]:
                if (field := self._fields[name]).default is None:
                    raise InvalidArgument(f"{name} is missing; needed to close a member: all fields without a default")
                values[name] = np.full(field.value_shape, field.default, field.dtype).tobytes()
            n_tokens = len(values["tokens"]) // self._n_bytes["tokens"] if "tokens" in self._fields else 0
            values |= {"n_tokens": n_tokens, **ended}
        for name, value in values.items():
            self._sql("REPLACE INTO unfinished VALUES (?, ?, ?, ?)", number, name, place, value)
        if self._value(N_CLOSED, number) == self._options["group_size"]:
            for statement in SEAL:
                self._sql(statement, number)
        self._sql(RETIRE_STALE, self._options["max_age"])
        is_sealed = self._value(IS_SEALED, number)
        return is_sealed

    def _packed(self, name: str, value: object, before: bytes) -> bytes:
        """The bytes of a field, after those of earlier pieces."""
        if name not in self._fields:
            hint = _options.meant(name, self._fields)
            raise InvalidArgument(f"{name} is no field{hint}; allowed: {', '.join(self._fields)}")
        field, (array, code) = self._fields[name], _arrays.as_array(value, name)
        array = _arrays.widened(array) if code == _arrays.BFLOAT16 else array
        with np.errstate(invalid="ignore"):
            is_ragged, cast = field.max_length is not None, array.astype(field.dtype)
        if array.ndim != len(field.shape) or array.shape[is_ragged:] != field.value_shape:
            raise InvalidArgument(f"{name} has shape {list(array.shape)}; allowed: {list(field.shape)}")
        are_whole = array.dtype.kind in "iu" and cast.dtype.kind in "iu"
        can_cast = array.size == 0 or are_whole or np.can_cast(array.dtype, cast.dtype, "same_kind")
        if not can_cast or (cast.dtype.kind in "iu" and (cast != array).any()):
            allowed = f"{cast.dtype}, or numbers that it represents"
            raise InvalidArgument(f"{name} has dtype {array.dtype}; allowed: {allowed}")
        packed = (before if is_ragged else b"") + cast.tobytes()
        if field.max_length is not None and (n := len(packed) // self._n_bytes[name]) > field.max_length:
            raise InvalidArgument(f"{name} has {n} values; allowed: up to {field.max_length}, its max_length")
        return packed

    def _advance(self, version: object, step: int) -> int:
        current = self.version
        number = at_least("version", current + step if version is None else version, current)
        self._sql("UPDATE ledger SET version = ?1, base = CASE issued WHEN 0 THEN ?1 ELSE base END", number)
        self._sql(RETIRE_STALE, self._options["max_age"])
        return number

    def _taken_back(self, lease: Lease[Array]) -> Lease[Array]:
        """Ends a lease, after which its groups are sealed. Returns the ledger's own copy."""
        if not isinstance(lease, Lease):
            raise InvalidArgument(f"lease is {kind_of(lease)}; allowed: a Lease that sample() returned")
        known = [it for it in self.leases() if it.number == lease.number and np.array_equal(it.groups, lease.groups)]
        if len(known) == 0:
            raise InvalidArgument("lease has ended, or is of another ledger; allowed: those of leases()")
        for table in ("leases", "leased"):
            self._sql(f"DELETE FROM {table} WHERE number = ?", lease.number)
        return known[0]

    # Rules, for callers that hold the lock.

    def _allowed_room(self, argument: str, value: object) -> int:
        most = min(self._options["capacity"], self._options["max_open"])
        return at_least(argument, value, 0, most, ", the smaller of capacity and max_open")

    def _issued(self, group: object) -> int:
        number, issued = _options.whole("group", group), self._value("SELECT issued FROM ledger")
        if not 0 <= number < issued:
            raise InvalidArgument(f"group is {number}; allowed: ids that reserve() returned, below {issued}")
        return number

    # Draws, for callers that hold the lock.

    def _draw(self) -> int:
        """The least number of a draw that is neither acknowledged nor leased."""
        used = {lease.draw for lease in self.leases()}
        return next(draw for draw in itertools.count(int(self._value("SELECT draws FROM ledger"))) if draw not in used)

    def _drawn(self, groups: object, tokens: object) -> list[tuple[int, int, float]] | None:
        """Id, tokens and P of the groups that sample() would draw, None if too few are ready."""
        if (groups is None) == (tokens is None):
            raise InvalidArgument("sample needs groups or tokens, one of the two")
        if groups is not None:
            count = at_least("groups", groups, 1, self._options["capacity"], ", the capacity")
            drawn = self._in_order(count)
            return drawn if len(drawn) == count else None
        budget, rows, counts = at_least("tokens", tokens, 1), self._in_order(), self.counts()
        ends = [*itertools.accumulate(n for _, n, _ in rows)]
        count = bisect.bisect_right(ends, budget)
        if count == 0 and len(rows) > 0:
            raise InvalidArgument(f"tokens is {budget}; allowed: {ends[0]} and above, those of group {rows[0][0]}")
        might_fit = count == len(rows) and (count == 0 or ends[-1] < budget)
        can_come = count == 0 or counts.open or counts.leased or self.room
        return None if might_fit and can_come else rows[:count]

    def _in_order(self, most: int | None = None) -> list[tuple[int, int, float]]:
        """Id, tokens and P of the groups that can be drawn, in the order in which they would be."""
        if self._options["order"] != "priority":
            in_order = f"SELECT id, n_tokens, 1.0 FROM ready ORDER BY {self._sort_key} LIMIT ?"
            return self._sql(in_order, -1 if most is None else most)
        self._read_changed()
        rows = self._ready
        logs = np.log(rows["priority"].view(np.float64))
        if (half_life := self._options["half_life"]) is not None:
            with np.errstate(over="ignore"):
                logs += (rows["first"] - rows["first"].max(initial=0)) / half_life * math.log(2)
        logs -= logs.max(initial=-math.inf)
        # The smallest of exponential variates, each divided by its weight, is the draw with P(i), and those that follow
        # are draws without replacement. The seed, the number of the draw and the id determine a variate, so that a draw
        # that is made again, after a crash or a release, is the same.
        variates = _uniform(np.random.PCG64([self._options["seed"], self._draw()]).random_raw(), rows["id"])
        ranks = np.argsort(np.log(-np.log(variates)) - logs)[:most]
        weights = np.exp(logs)
        least = np.finfo(np.float64).tiny  # so that P.min() / P is a number
        chances = np.maximum(weights / weights.sum(), least)[ranks]
        drawn = rows[ranks]
        return [*zip(drawn["id"].tolist(), drawn["n_tokens"].tolist(), chances.tolist(), strict=True)]

    def _read_changed(self) -> None:
        """Updates self._ready, for callers that have not changed a group in this transaction.

        A rollback brings back the rows of `changed`, so that the next draw reads them again.
        """
        if changed := self._sql("SELECT id FROM changed"):
            columns = "SELECT id, n_tokens, first, priority FROM ready"
            rows = np.array(self._sql(f"{columns} WHERE id IN (SELECT id FROM changed) ORDER BY id"), _READY)
            same = self._ready[~np.isin(self._ready["id"], changed)]
            self._ready = np.insert(same, np.searchsorted(same["id"], rows["id"]), rows)
            self._sql("DELETE FROM changed")

    def _batch(self, groups: Sequence[int]) -> Any:
        columns: dict[str, list[Any]] = {}
        for group in groups:
            for name, value in self._sql("SELECT name, value FROM answers WHERE id = ? ORDER BY name, member", group):
                columns.setdefault(name, []).append(value)
        shape = len(groups), self._options["group_size"]
        arrays: dict[str, Any] = {}
        for name, field in (self._fields | {"reward": _OWN["reward"]}).items():
            values: Any = np.frombuffer(bytearray().join(columns[name]), field.dtype)
            if field.max_length is not None:
                offsets = np.cumsum([0, *map(len, columns[name])]) // self._n_bytes[name]
                arrays[name] = of_tree(shape, (values.reshape(-1, *field.value_shape), offsets))
            else:
                arrays[name] = values.reshape(*shape, *field.value_shape)
        for name in ("version_first", "version_last"):
            arrays[name] = np.array(columns[name]).reshape(shape)
        return GroupBatch({name: map_arrays(value, self._as_array) for name, value in arrays.items()})

    def _as_array(self, array: npt.NDArray[Any]) -> Any:
        return importlib.import_module("torch").from_numpy(array) if self._options["arrays"] == "torch" else array


def _uniform(start: int, ids: Indices) -> npt.NDArray[np.float64]:
    """A number between 0 and 1 for each id, by SplitMix64 from a random start."""
    bits = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
