"""A ledger of answer groups, from request to use."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import importlib
import itertools
import math
import operator
import os
import secrets
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from per import _arrays, _options
from per._errors import Busy, CorruptFile, InvalidArgument, IoError, Timeout, kind_of
from per._handle import constructor
from per._waiting import seconds_of
from per.batch import Batch
from per.field import Field, to_c
from per.llm._journal import Arrays, Journal, packed, unpacked
from per.ragged import Ragged
from per.replay import ReplayBuffer
from per.typing import Array, ArrayLike, IntArrayLike, IntLike, Path

Order = Literal["issued", "sealed", "priority"]
Key = int | str | None
Indices = npt.NDArray[np.int64]

_FREE, _OPEN, _SEALED, _LEASED = range(4)
_COLUMNS = ("group", "state", "first", "sealed", "row", "n_tokens", "uses")
_SLOT = np.dtype([*((name, np.int64) for name in _COLUMNS), ("priority", np.float64)])
_LARGEST_REWARD = float(np.finfo(np.float32).max)
_NOT_BEGUN = np.iinfo(np.int64).max  # the first version of a group that has none yet
_OWN = ("group", "version_first", "version_last")  # fields of the buffer beside the user's
_RESERVED = (*_OWN, "member", "version", "n_tokens")
_COUNTERS = ("issued", "consumed", "sealed", "acknowledged", "version", "base")
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
_CHANGES = ("admit", "seal", "retire", "acknowledge", "prioritize")


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
        """
        shares: list[list[int]] = [[] for _ in range(_at_least("ranks", ranks, 1))]
        loads = [0] * len(shares)
        for place in np.argsort(-self.n_tokens, kind="stable").tolist():  # the largest first, to the lightest share
            rank = min(range(len(shares)), key=lambda rank: (loads[rank], len(shares[rank])))
            shares[rank].append(place)
            loads[rank] += int(self.n_tokens[place])
        return [np.array(sorted(share), np.int64) for share in shares]


class Groups(Generic[Array]):
    """A ledger of groups: the G answers to one prompt, which a language model is trained on together.

    docs/llm.md has the states, pacing, orders of draws and checkpoints.

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

    _journal: Journal | None

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
                own[name] = _at_least(name, own[name], least)
        for name, choices in (("order", ("issued", "sealed", "priority")), ("arrays", ("numpy", "torch"))):
            if own[name] not in choices:
                raise InvalidArgument(f"{name} is {own[name]!r}; allowed: {', '.join(map(repr, choices))}")
        own["half_life"] = None if half_life is None else _options.real("half_life", half_life)
        if half_life is not None and not 0 < own["half_life"] < math.inf:
            raise InvalidArgument(f"half_life is {half_life}; allowed: finite numbers above 0")
        size, n_slots = own["group_size"], own["capacity"]
        to_c(fields or {})
        for name, field in (fields or {}).items():
            if name in _RESERVED or "." in name or name == "observation" or field.role not in (None, "plain"):
                raise InvalidArgument(
                    f"field {name} is an observation or state, has a dot, or is reserved; allowed: others"
                )
            if field.dtype == "bfloat16":
                raise InvalidArgument(f"field {name} is of bfloat16; allowed: dtypes of numpy, such as float16")
        whole, group = Field((), "int64"), Field((), "int64", role="observation")
        rows: ReplayBuffer[Any] = ReplayBuffer(
            (size + 2) * n_slots,  # each place for a group is a lane
            {"group": group, "version_first": whole, "version_last": whole, **(fields or {})},
            n_envs=n_slots,
            sequence_length=size,
            prioritization="uniform",
            arrays=arrays,
        )
        self._begin(own, rows)
        if path is not None:
            self._journal = Journal(os.fsdecode(_options.path(path)), self._contents())

    def _begin(self, own: dict[str, Any], rows: ReplayBuffer[Any]) -> None:
        """Sets up an empty ledger, in memory."""
        self._own, self._rows = own, rows
        self._fields = {name: field for name, field in rows.fields.items() if name not in _OWN}
        self._slots = np.zeros(own["capacity"], _SLOT)
        self._slot_of: dict[int, int] = {}
        self._names: dict[int, tuple[Key, str]] = {}  # key and tag
        self._members: dict[int, list[_Member]] = {}  # of open groups
        self._leases: dict[int, Lease[Array]] = {}
        self._retired: collections.Counter[tuple[str, str]] = collections.Counter()
        self._issued = self._consumed = self._sealed = self._acknowledged = self._version = self._base = 0
        self._next_lease = secrets.randbits(62)  # so that leases of before a restore are none of those after it
        self._journal, self._is_whole = None, True
        self._lock = threading.Condition()
        self._waiters: set[asyncio.Future[None]] = set()

    def reserve(self, k: IntLike | None = None, *, keys: Sequence[Key] | None = None, tag: str = "") -> list[int]:
        """Admits k groups for generation, 1 by default. Returns their ids, numbered from 0.

        Raises Busy if pacing, max_open or capacity do not allow that many yet: see room and wait().

        Parameters
        ----------
        keys : Sequence[Key], optional
            In place of k: an int or str for each group's prompt, which missing() and leases return.
        tag : str, default ""
            Counted with the reason if the group is retired, such as the name of a data set.
        """
        if keys is not None and (k is not None or isinstance(keys, str)):
            raise InvalidArgument(f"k is {k!r}, keys is {keys!r}; allowed: one of them, keys a list")
        names: list[Any] = [*keys] if keys is not None else [None] * (1 if k is None else _at_least("k", k, 0))
        for place, key in enumerate(names):
            with contextlib.suppress(TypeError):
                names[place] = operator.index(key)  # also of numpy
            if not isinstance(names[place], (int, str, type(None))):
                raise InvalidArgument(f"keys has {key!r}; allowed: int, str and None")
        if not isinstance(tag, str):
            raise InvalidArgument(f"tag is {tag!r}; allowed: str")
        self._allowed_room("k", len(names))
        with self._changing():
            if len(names) > self._room():
                raise Busy(f"k is {len(names)}; allowed at this moment: up to {self._room()} ({self._described()})")
            return self._admit(names, tag)

    def append(self, group: IntLike, member: IntLike, *, version: IntLike | None = None, **fields: ArrayLike) -> bool:
        """Adds a piece of an answer: rows of any length grow by it, other fields are replaced.

        Returns False if the group has been retired, and its generation may stop.

        Parameters
        ----------
        version : int, optional
            The policy that generated the piece. None: the current one.
        """
        with self._changing():
            found = self._given(group, member, version, fields)
            if found is not None:
                number, place, grown = found
                self._members[number][place] = grown
                self._note_first(number)
            return found is not None and found[0] in self._slot_of

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
        reward : float
            Reward of the answer.
        n_tokens : int, optional
            Its length for sample(tokens=...). None: that of the field `tokens`, 0 without one.
        """
        value = _options.real("reward", reward)
        if not abs(value) <= _LARGEST_REWARD:
            raise InvalidArgument(f"reward is {value}; allowed: finite numbers of float32")
        with self._changing():
            found = self._given(group, member, version, fields)
            if found is None:
                return False
            number, place, ended = found
            for name, field in self._fields.items():
                if name not in ended.pieces and field.default is None:
                    raise InvalidArgument(f"{name} is missing; needed to close a member: all fields without a default")
            ended.reward = value
            ended.n_tokens = (
                ended.length("tokens") if n_tokens is None else _at_least("n_tokens", n_tokens, 0, 2**31 - 1)
            )
            members = [*self._members[number]]
            members[place] = ended
            if all(each.reward is not None for each in members):
                versions = [each.first for each in members], [each.last for each in members]
                total = sum(each.n_tokens for each in members)
                self._seal(number, [each.reward for each in members], *versions, total, self._arrays_of(members))
                self._retire_stale()
            else:
                self._members[number] = members
                self._note_first(number)
            return number in self._slot_of and number not in self._members

    def fail(self, group: IntLike, reason: str = "failed") -> None:
        """Retires an open or sealed group, for a reason such as "failed", "filtered" or "aborted".

        One that was used before is consumed, not retired. Nothing happens if it has ended. A leased group is an error.
        """
        with self._changing():
            number = self._issued_id(group)
            if number in self._slot_of:
                if self._slots["state"][self._slot_of[number]] == _LEASED:
                    raise InvalidArgument(f"group is {number}, which is leased; allowed: open and sealed groups")
                self._retire([number], str(reason))

    def sample(self, groups: IntLike | None = None, *, tokens: IntLike | None = None) -> Lease[Array]:
        """Leases a number of groups to a learner, or whole groups until the next one would exceed a number of tokens.

        Raises Busy if too few groups are ready: see wait().
        """
        with self._changing():
            chosen, probabilities = self._choose(groups, tokens)
            if chosen is None:
                asked = f"groups is {groups}" if tokens is None else f"tokens is {tokens}"
                raise Busy(f"{asked}; too few groups are ready ({self._described()})")
            slots = self._slots[chosen]
            rows = self._rows.get_windows(slots["row"])
            batch: Batch[Array] = Batch({name: rows[name] for name in (*self._fields, "reward", *_OWN[1:])})
            keys = tuple(self._names[group][0] for group in slots["group"].tolist())
            facts = slots["group"].copy(), keys, self._version - slots["first"], slots["n_tokens"].copy()
            lease = Lease(self._next_lease, self._draw(), *facts, probabilities, batch)
            with self._whole():
                self._slots["state"][chosen] = _LEASED
                self._leases[lease.number] = dataclasses.replace(lease, batch=Batch({}))
                self._next_lease += 1
            return lease

    def ack(self, lease: Lease[Array], *, version: IntLike | None = None) -> None:
        """Ends a lease whose groups were used. With a version it also advances to that one, in the same step."""
        with self._changing():
            self._check_lease(lease)
            number = self._version if version is None else _at_least("version", version, self._version)
            self._acknowledge(lease.groups.tolist(), number, self._leases[lease.number].draw, lease.number)
            self._retire_stale()

    def release(self, lease: Lease[Array]) -> None:
        """Ends a lease whose groups were not used. They can be drawn again unless they are too old by now."""
        with self._changing():
            self._check_lease(lease)
            with self._whole():
                self._slots["state"][[self._slot_of[group] for group in lease.groups.tolist()]] = _SEALED
                del self._leases[lease.number]
            self._retire_stale()

    def leases(self) -> list[Lease[Array]]:
        """The leases that have not ended, without their batches: release() those of a learner that died."""
        with self._lock:
            return list(self._leases.values())

    def update_priorities(self, groups: IntArrayLike, priorities: ArrayLike) -> None:
        """Sets priorities, finite and >= 0, by id. Groups begin with 1; those that ended are ignored."""
        ids = _arrays.as_int64(groups, "groups").tolist()
        values = _arrays.as_float(priorities, "priorities", np.float64).reshape(-1)
        if len(ids) != len(values) or not (np.isfinite(values) & (values >= 0)).all():
            raise InvalidArgument(
                f"priorities is {values}; allowed: a finite number >= 0 for each of {len(ids)} groups"
            )
        with self._changing():
            self._prioritize([self._issued_id(group) for group in ids], values.tolist())

    def advance(self, version: IntLike | None = None) -> int:
        """Sets the version of the policy, by default to the next one, and retires groups that are too old for it."""
        with self._changing():
            number = self._version + 1 if version is None else _at_least("version", version, self._version)
            self._acknowledge([], number)
            self._retire_stale()
            return number

    @property
    def version(self) -> int:
        """The version of the policy, 0 at first."""
        return self._version

    @property
    def room(self) -> int:
        """Number of groups that reserve() allows at this moment."""
        with self._lock:
            return self._room()

    def missing(self) -> dict[int, Key]:
        """The open groups and their keys. After load() their answers must be generated from the beginning."""
        with self._lock:
            return {group: self._names[group][0] for group in self._members}

    def counts(self) -> Counts:
        """Numbers of groups by state."""
        with self._lock:
            _, n_open, sealed, leased = self._states()
            retired = dict(self._retired)
            return Counts(self._issued, n_open, sealed, leased, self._consumed, sum(retired.values()), retired)

    def __repr__(self) -> str:
        with self._lock:
            return f"per.llm.Groups({self._own['group_size']}, {self._described()})"

    async def wait(self, groups: IntLike | None = None, *, tokens: IntLike | None = None, room: IntLike = 0) -> None:
        """Waits until sample() with these arguments, and reserve() of `room` groups, would succeed."""
        while True:
            with self._lock:
                if self._is_ready(groups, tokens, room):
                    return
                future = asyncio.get_running_loop().create_future()
                self._waiters.add(future)
            await future

    def wait_blocking(
        self,
        groups: IntLike | None = None,
        *,
        tokens: IntLike | None = None,
        room: IntLike = 0,
        timeout: float | None = None,
    ) -> None:
        """Blocking version of wait(). Raises Timeout after `timeout` seconds."""
        seconds = min(seconds_of(timeout), threading.TIMEOUT_MAX)
        with self._lock:
            if not self._lock.wait_for(lambda: self._is_ready(groups, tokens, room), seconds):
                raise Timeout(f"timeout is {timeout}; not ready yet ({self._described()})")

    def checkpoint(self) -> None:
        """Shortens the file to the present state, and writes it to the disk. Safe to kill at any point."""
        with self._changing():
            if self._journal is None:
                raise InvalidArgument("path is None, as after load() of a state_dict(); needed: a path")
            self._journal.replace(self._contents())

    def state_dict(self) -> dict[str, Any]:
        """The whole ledger as {"checkpoint": uint8[bytes]}, a tensor if batches have tensors, for load()."""
        with self._changing():
            contents = np.frombuffer(self._contents(), np.uint8).copy()
            is_torch = self._own["arrays"] == "torch"
            return {"checkpoint": importlib.import_module("torch").from_numpy(contents) if is_torch else contents}

    def __enter__(self) -> Groups[Array]:
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file, so that another ledger can load it. Later changes are errors."""
        if self._journal is not None:
            self._journal.close()

    @constructor
    def load(cls: Any, source: Path | Mapping[str, Any]) -> Groups[Any]:
        """Continues from the file of a ledger, with all that happened before it ended, or from a state_dict().

        Leased groups are sealed again. Open ones are in missing(). A ledger loaded from a state_dict() writes no
        journal.

        Raises IoError, CorruptFile, or Busy if another ledger uses the path.
        """
        groups: Groups[Any] = cls.__new__(cls)
        if isinstance(source, Mapping):
            if set(source) != {"checkpoint"}:
                raise InvalidArgument(f"source has {', '.join(source)}; allowed: what state_dict() returned")
            groups._replay("source", [np.asarray(source["checkpoint"], np.uint8).tobytes()])
        else:
            name = os.fsdecode(_options.path(source, "source"))
            journal = Journal(name)
            try:
                groups._replay(name, journal.records())
            except BaseException:
                journal.close()
                raise
            groups._journal = journal
        with groups._changing():
            groups._retire_stale()
        return groups

    def _replay(self, name: str, records: Iterable[bytes]) -> None:
        for number, contents in enumerate(records):
            try:
                facts, arrays = unpacked(contents)
                if number == 0:
                    self._restore(facts, arrays)
                else:
                    change = _CHANGES[_CHANGES.index(facts.pop("change"))]
                    getattr(self, f"_{change}")(**facts, **({"arrays": arrays} if change == "seal" else {}))
            except (KeyError, TypeError, ValueError, IndexError, OverflowError, EOFError, struct.error) as error:
                raise CorruptFile(f"{name}: record {number} is not one of per.llm.Groups: {error}") from error

    def _contents(self) -> bytes:
        slots = self._slots.copy()
        slots["state"][slots["state"] == _LEASED] = _SEALED
        slots["first"][slots["state"] == _OPEN] = _NOT_BEGUN
        facts = {
            "options": self._own,
            "names": [[group, *name] for group, name in self._names.items()],
            "retired": [[*cause, count] for cause, count in self._retired.items()],
            "counters": [getattr(self, f"_{name}") for name in _COUNTERS],
        }
        return packed(facts, {"slots": slots, "rows": np.frombuffer(bytes(self._rows), np.uint8)})

    def _restore(self, facts: dict[str, Any], arrays: Arrays) -> None:
        rows: ReplayBuffer[Any] = ReplayBuffer.from_bytes(arrays["rows"], arrays=facts["options"]["arrays"])
        self._begin(facts["options"], rows)
        self._slots[:] = arrays["slots"]
        self._names = {group: (key, tag) for group, key, tag in facts["names"]}
        self._retired.update({(reason, tag): count for reason, tag, count in facts["retired"]})
        vars(self).update({f"_{name}": int(n) for name, n in zip(_COUNTERS, facts["counters"], strict=True)})
        used = np.flatnonzero(self._slots["state"] != _FREE)
        used = used[np.argsort(self._slots["group"][used])]
        self._slot_of = dict(zip(self._slots["group"][used].tolist(), used.tolist(), strict=True))
        is_open = (group for group, slot in self._slot_of.items() if self._slots["state"][slot] == _OPEN)
        self._members = {group: self._new_members() for group in is_open}

    # Changes of state, each of which is a record that load() repeats.

    @contextlib.contextmanager
    def _whole(self, change: str = "", arrays: Arrays | None = None, **facts: Any) -> Iterator[None]:
        """Writes the record of a change before it is made. If the change is interrupted, later ones are refused."""
        self._is_whole, journal = False, self._journal if change else None
        begin = None if journal is None else journal.next
        try:
            if journal is not None:
                journal.append(packed({"change": change, **facts}, arrays or {}), self._own["fsync"])
        except BaseException:
            self._is_whole = journal is None or journal.next == begin  # the record was undone
            raise
        yield
        self._is_whole = True

    def _admit(self, keys: list[Key], tag: str) -> list[int]:
        with self._whole("admit", keys=keys, tag=tag):
            groups = range(self._issued, self._issued + len(keys))
            free = np.flatnonzero(self._slots["state"] == _FREE)[: len(keys)].tolist()
            for group, key, slot in zip(groups, keys, free, strict=True):
                self._slots[slot] = (group, _OPEN, _NOT_BEGUN, 0, 0, 0, 0, 1.0)
                self._slot_of[group], self._names[group], self._members[group] = slot, (key, tag), self._new_members()
            self._issued += len(keys)
            return [*groups]

    def _seal(self, group: int, rewards: Any, firsts: Any, lasts: Any, n_tokens: int, arrays: Arrays) -> None:
        slot = self._slot_of[group]
        is_end = np.arange(self._own["group_size"])[:, None] == self._own["group_size"] - 1
        rows: dict[str, Any] = {
            name: arrays[name][:, None] if field.max_length is None else Ragged(arrays[name], arrays[f"{name}.ends"])
            for name, field in self._fields.items()
        }
        ids = self._rows.extend(  # no slot refers to these rows yet, so an error after this does no harm
            group=np.full(is_end.shape, group),
            version_first=np.reshape(firsts, (-1, 1)),
            version_last=np.reshape(lasts, (-1, 1)),
            reward=np.reshape(rewards, (-1, 1)),
            terminated=is_end,
            truncated=False,
            next_mask=~is_end,
            env_ids=[slot],
            **rows,
        )
        with self._whole("seal", arrays, group=group, rewards=rewards, firsts=firsts, lasts=lasts, n_tokens=n_tokens):
            known = (min(firsts), self._sealed, int(ids[0, 0]), n_tokens, 0, self._slots["priority"][slot])
            self._slots[slot] = (group, _SEALED, *known)
            del self._members[group]
            self._sealed += 1

    def _retire(self, groups: list[int], reason: str) -> None:
        with self._whole("retire", groups=groups, reason=reason):
            for group in groups:
                if self._slots["uses"][self._slot_of[group]] > 0:
                    self._consumed += 1
                else:
                    self._retired[reason, self._names[group][1]] += 1
                self._free(group)

    def _acknowledge(self, groups: list[int], version: int, draw: int = -1, lease: int = -1) -> None:
        with self._whole("acknowledge", groups=groups, version=version, draw=draw):
            self._version, self._base = version, self._base if self._issued else version
            self._acknowledged = max(self._acknowledged, draw + 1)
            for group in groups:
                slot = self._slot_of[group]
                self._slots["state"][slot] = _SEALED
                self._slots["uses"][slot] += 1
                if self._slots["uses"][slot] == self._own["uses"]:
                    self._consumed += 1
                    self._free(group)
            self._leases.pop(lease, None)

    def _prioritize(self, groups: list[int], priorities: list[float]) -> None:
        with self._whole("prioritize", groups=groups, priorities=priorities):
            for group, priority in zip(groups, priorities, strict=True):
                if group in self._slot_of:
                    self._slots["priority"][self._slot_of[group]] = priority

    def _free(self, group: int) -> None:
        self._slots["state"][self._slot_of.pop(group)] = _FREE
        self._members.pop(group, None)
        del self._names[group]

    # Rules, for callers that hold the lock.

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock during a change, and wakes all who wait for one."""
        with self._lock:
            if not self._is_whole:
                raise InvalidArgument("a change of the ledger was interrupted; allowed: load() of its file or a state")
            try:
                yield
            finally:
                if not self._is_whole:
                    self.__exit__()  # so that load() can be called
                self._lock.notify_all()
                for future in self._waiters:
                    with contextlib.suppress(RuntimeError):  # the loop of its task is closed
                        future.get_loop().call_soon_threadsafe(_wake, future)
                self._waiters.clear()

    def _new_members(self) -> list[_Member]:
        return [_Member() for _ in range(self._own["group_size"])]

    def _states(self) -> list[int]:
        """Numbers of places that are free, open, sealed and leased."""
        counts: list[int] = np.bincount(self._slots["state"], minlength=4).tolist()
        return counts

    def _described(self) -> str:
        _, n_open, sealed, leased = self._states()
        return f"version {self._version}, {n_open} groups open, {sealed} sealed, {leased} leased"

    def _room(self) -> int:
        """The k that reserve() allows. I - R are the groups that exist and those that were consumed."""
        free, n_open, sealed, leased = self._states()
        room = min(free, self._own["max_open"] - n_open)
        if self._own["per_version"] is not None:
            admitted = n_open + sealed + leased + self._consumed
            versions = self._version - self._base + 1 + self._own["ahead"]
            room = min(room, versions * self._own["per_version"] - admitted)
        return max(int(room), 0)

    def _allowed_room(self, argument: str, value: object) -> int:
        most = min(self._own["capacity"], self._own["max_open"])
        return _at_least(argument, value, 0, most, ", the smaller of capacity and max_open")

    def _is_stale(self) -> npt.NDArray[np.bool_]:
        """For each slot whether its group is too old."""
        stale: npt.NDArray[np.bool_] = self._slots["first"] < self._version - (self._own["max_age"] or 0)
        return stale & (self._own["max_age"] is not None)

    def _retire_stale(self) -> None:
        """Retires the groups that are too old, unless a learner has them. If writing fails, a later call does."""
        state = self._slots["state"]
        stale = self._slots["group"][((state == _OPEN) | (state == _SEALED)) & self._is_stale()]
        with contextlib.suppress(IoError):
            if stale.size:
                self._retire(np.sort(stale).tolist(), "stale")

    def _is_ready(self, groups: IntLike | None, tokens: IntLike | None, room: IntLike) -> bool:
        is_asked = groups is not None or tokens is not None
        can_sample = not is_asked or self._choose(groups, tokens)[0] is not None
        return self._room() >= self._allowed_room("room", room) and can_sample

    def _choose(self, groups: object, tokens: object) -> tuple[Indices | None, npt.NDArray[np.float64]]:
        """The slots that sample() would draw, None if too few groups are ready, and their P."""
        if (groups is None) == (tokens is None):
            raise InvalidArgument("sample needs groups or tokens, one of the two")
        slots, probabilities = self._in_order()
        if groups is not None:
            count = _at_least("groups", groups, 1, self._own["capacity"], ", the capacity")
        else:
            budget, ends = _at_least("tokens", tokens, 1), np.cumsum(self._slots["n_tokens"][slots])
            count = int(np.searchsorted(ends, budget, side="right"))
            if count == 0 and len(slots) > 0:
                group = self._slots["group"][slots[0]]
                raise InvalidArgument(f"tokens is {budget}; allowed: {ends[0]} and above, those of group {group}")
            n_open, _, n_leased = self._states()[1:]
            might_fit = count == len(slots) and (count == 0 or ends[-1] < budget)
            count += might_fit and bool(count == 0 or n_open or n_leased or self._room())  # unless none can come
        return (slots[:count] if count <= len(slots) else None), probabilities[:count]

    def _in_order(self) -> tuple[Indices, npt.NDArray[np.float64]]:
        """The slots of all groups that can be drawn, in the order in which they would be, and their P."""
        state, order = self._slots["state"], self._own["order"]
        is_wanted = (state == _SEALED) | ((state == _OPEN) & (order == "issued"))
        slots = np.flatnonzero(is_wanted & ~self._is_stale())
        if order != "priority":
            slots = slots[np.argsort(self._slots["group" if order == "issued" else "sealed"][slots])]
            n_ready = int((np.cumsum(state[slots] == _OPEN) == 0).sum())
            return slots[:n_ready], np.ones(n_ready)
        slots = slots[self._slots["priority"][slots] > 0]
        logs, firsts = np.log(self._slots["priority"][slots]), self._slots["first"][slots]
        if self._own["half_life"] is not None:
            with np.errstate(over="ignore"):
                logs += (firsts - firsts.max(initial=0)) / self._own["half_life"] * math.log(2)
        logs -= logs.max(initial=-math.inf)
        # The smallest of exponential variates, each divided by its weight, is the draw with P(i), and those that follow
        # are draws without replacement. The seed and the number of the draw determine the variates, so that a draw that
        # is made again, after a crash or a release, is the same.
        bits = np.random.PCG64([self._own["seed"], self._draw()]).random_raw(self._own["capacity"])[slots]
        ranks = np.argsort(np.log(-np.log(((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)) - logs)
        weights = np.exp(logs)
        return slots[ranks], (weights / weights.sum())[ranks]

    def _draw(self) -> int:
        """The least number of a draw that is neither acknowledged nor leased."""
        used = {lease.draw for lease in self._leases.values()}
        return next(draw for draw in itertools.count(self._acknowledged) if draw not in used)

    def _issued_id(self, group: object) -> int:
        number = _options.whole("group", group)
        if not 0 <= number < self._issued:
            raise InvalidArgument(f"group is {number}; allowed: ids that reserve() returned, below {self._issued}")
        return number

    def _given(
        self, group: object, member: object, version: object, fields: Mapping[str, object]
    ) -> tuple[int, int, _Member] | None:
        """The member with the arguments of append() or close(), which are checked; None if its group has ended."""
        number, place = self._issued_id(group), _at_least("member", member, 0, self._own["group_size"] - 1)
        at_version = self._version
        if version is not None:
            at_version = _at_least("version", version, 0, self._version, ", the current one")
        if number not in self._slot_of:
            return None
        if number not in self._members or self._members[number][place].reward is not None:
            raise InvalidArgument(f"member is {place}, which is closed in group {number}; allowed: open members")
        grown = self._members[number][place].grown(fields, self._fields)
        if fields or version is not None or grown.first is None:
            grown.first = at_version if grown.first is None else min(grown.first, at_version)
            grown.last = max(grown.last, at_version)
        return number, place, grown

    def _note_first(self, group: int) -> None:
        """Determines the age of an open group from its members."""
        firsts = [member.first for member in self._members[group] if member.first is not None]
        self._slots["first"][self._slot_of[group]] = min(firsts)
        self._retire_stale()

    def _arrays_of(self, members: Sequence[_Member]) -> dict[str, npt.NDArray[Any]]:
        """The values of all members by field; with the name "NAME.ends" the offsets of rows of any length."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, field in self._fields.items():
            if field.max_length is None:
                rows = [member.pieces.get(name, [np.asarray(field.default)])[0] for member in members]
                arrays[name] = np.stack([np.broadcast_to(row, field.value_shape) for row in rows]).astype(field.dtype)
            else:
                arrays[name] = np.concatenate([piece for member in members for piece in member.pieces[name]])
                arrays[f"{name}.ends"] = np.cumsum([0, *(member.length(name) for member in members)])
        return arrays

    def _check_lease(self, lease: Lease[Array]) -> None:
        if not isinstance(lease, Lease):
            raise InvalidArgument(f"lease is {kind_of(lease)}; allowed: a Lease that sample() returned")
        if lease.number not in self._leases or not np.array_equal(self._leases[lease.number].groups, lease.groups):
            raise InvalidArgument("lease has ended, or is of another ledger; allowed: those of leases()")


@dataclasses.dataclass
class _Member:
    """An answer: its values by field, in the pieces in which they came, and the versions that generated it."""

    pieces: dict[str, list[npt.NDArray[Any]]] = dataclasses.field(default_factory=dict)
    first: int | None = None
    last: int = 0
    reward: float | None = None
    n_tokens: int = 0

    def length(self, name: str) -> int:
        return sum(map(len, self.pieces.get(name, [])))

    def grown(self, values: Mapping[str, object], fields: Mapping[str, Field]) -> _Member:
        """A copy with more values, which are checked and copied."""
        pieces = dict(self.pieces)
        for name, value in values.items():
            if name not in fields:
                raise InvalidArgument(f"{name} is no field{_options.meant(name, fields)}; allowed: {', '.join(fields)}")
            field = fields[name]
            array, code = _arrays.as_array(value, name)
            array = _arrays.widened(array) if code == _arrays.BFLOAT16 else array
            is_ragged, dtype = field.max_length is not None, np.dtype(field.dtype)
            if array.ndim != len(field.shape) or array.shape[is_ragged:] != field.value_shape:
                raise InvalidArgument(f"{name} has shape {list(array.shape)}; allowed: {list(field.shape)}")
            cast = array.astype(dtype)
            can_cast = array.size == 0 or np.can_cast(array.dtype, dtype, "same_kind")
            if not can_cast or (dtype.kind in "iu" and (cast != array).any()):
                raise InvalidArgument(
                    f"{name} has dtype {array.dtype}; allowed: {dtype}, or numbers that it represents"
                )
            if is_ragged and self.length(name) + len(cast) > (field.max_length or 0):
                total = self.length(name) + len(cast)
                raise InvalidArgument(f"{name} has {total} values; allowed: up to {field.max_length}, its max_length")
            pieces[name] = [*pieces.get(name, []), cast] if is_ragged else [cast]
        return dataclasses.replace(self, pieces=pieces)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _at_least(argument: str, value: object, least: int, most: int | None = None, what: str = "") -> int:
    number = _options.whole(argument, value)
    if number < least or (most is not None and number > most):
        allowed = f"{least} and above" if most is None else f"{least} to {most}{what}"
        raise InvalidArgument(f"{argument} is {number}; allowed: {allowed}")
    return number
