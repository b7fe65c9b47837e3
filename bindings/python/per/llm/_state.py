"""The state of a ledger at one moment, and the rules that follow from it: pacing, age and the order of draws."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from per import _arrays, _options
from per._errors import InvalidArgument
from per.field import Field
from per.llm._database import Row

Key = int | str | None
Indices = npt.NDArray[np.int64]

FREE, OPEN, SEALED, LEASED = range(4)
NOT_BEGUN = np.iinfo(np.int64).max  # the first version of a group that has none yet
_COLUMNS = ("id", "state", "first", "sealed", "n_tokens", "uses")  # row is an id in the buffer
_PLACE = np.dtype([*((name, np.int64) for name in _COLUMNS), ("priority", np.float64), ("row", np.int64)])
_NUMBERS = ("issued", "consumed", "sealed", "draws", "version", "base")


@dataclasses.dataclass
class Member:
    """An answer: the versions that generated it, and its values by field."""

    values: dict[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)
    """an array for each: [length, ...] if it has any length, otherwise [1, ...]; with a reward it is closed"""
    first: int | None = None
    last: int = 0
    n_tokens: int = 0

    def grown(self, given: Mapping[str, object], fields: Mapping[str, Field]) -> Member:
        """A copy with more values, which are checked and copied."""
        values = dict(self.values)
        for name, value in given.items():
            if name not in fields:
                raise InvalidArgument(f"{name} is no field{_options.meant(name, fields)}; allowed: {', '.join(fields)}")
            field, (array, code) = fields[name], _arrays.as_array(value, name)
            array = _arrays.widened(array) if code == _arrays.BFLOAT16 else array
            is_ragged, dtype = field.max_length is not None, np.dtype(field.dtype)
            if array.ndim != len(field.shape) or array.shape[is_ragged:] != field.value_shape:
                raise InvalidArgument(f"{name} has shape {list(array.shape)}; allowed: {list(field.shape)}")
            cast = array.astype(dtype)
            can_cast = array.size == 0 or np.can_cast(array.dtype, dtype, "same_kind")
            if not can_cast or (dtype.kind in "iu" and (cast != array).any()):
                allowed = f"{dtype}, or numbers that it represents"
                raise InvalidArgument(f"{name} has dtype {array.dtype}; allowed: {allowed}")
            values[name] = np.concatenate([values.get(name, cast[:0]), cast]) if is_ragged else cast[None]
            if field.max_length is not None and (n := len(values[name])) > field.max_length:
                raise InvalidArgument(f"{name} has {n} values; allowed: up to {field.max_length}, its max_length")
        return dataclasses.replace(self, values=values)

    def closed(self, reward: float, n_tokens: int | None, fields: Mapping[str, Field]) -> Member:
        """A copy with all values, for a buffer."""
        values = dict(self.values)
        for name, field in fields.items():
            if name not in values and field.default is None:
                raise InvalidArgument(f"{name} is missing; needed to close a member: all fields without a default")
            if name not in values:
                values[name] = np.broadcast_to(np.asarray(field.default, field.dtype), (1, *field.value_shape))
        count = len(values.get("tokens", ())) if n_tokens is None else n_tokens
        own = {"version_first": self.first, "version_last": self.last, "reward": reward}
        return dataclasses.replace(self, n_tokens=count, values=values | {name: np.array([own[name]]) for name in own})


@dataclasses.dataclass
class State:
    """The open, sealed and leased groups, and the counts of all others.

    Parameters
    ----------
    options : Mapping[str, Any]
        Those of per.llm.Groups.
    """

    options: Mapping[str, Any]
    places: npt.NDArray[Any] = dataclasses.field(init=False)
    """where groups are, or were: the place determines the variates of a group, and its lane in the buffer"""
    names: dict[int, tuple[Key, str]] = dataclasses.field(default_factory=dict)
    """key and tag of each group"""
    members: dict[int, list[Member]] = dataclasses.field(default_factory=dict)
    """of open groups"""
    leases: dict[int, Any] = dataclasses.field(default_factory=dict)
    """open leases by number, without batches"""
    retired: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    """by reason and tag"""
    numbers: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(_NUMBERS, 0))

    def __post_init__(self) -> None:
        self.places = np.zeros(self.options["capacity"], _PLACE)

    def copy(self) -> State:
        """A state that can be changed without changing this one, except for the lists of members."""
        state = State(self.options)
        vars(state).update({name: value.copy() for name, value in vars(self).items() if name != "options"})
        return state

    def place_of(self, group: int) -> int:
        """The place of a group that has not ended."""
        return int(np.flatnonzero((self.places["id"] == group) & (self.places["state"] != FREE))[0])

    def counts(self) -> list[int]:
        """Numbers of places that are free, open, sealed and leased."""
        counts: list[int] = np.bincount(self.places["state"], minlength=4).tolist()
        return counts

    def __str__(self) -> str:
        _, n_open, sealed, leased = self.counts()
        return f"version {self.numbers['version']}, {n_open} groups open, {sealed} sealed, {leased} leased"

    # The file.

    def rows_since(self, before: State, payload: Callable[[int], bytes]) -> Iterator[Row]:
        """The rows in which the file of this state differs from that of an earlier one."""
        if self.numbers != before.numbers:
            yield "facts", "numbers", [json.dumps(self.numbers)]
        for cause, n in self.retired.items() - before.retired.items():
            yield "retired", json.dumps(cause), [n]
        places, old = self._as_saved(), before._as_saved()
        is_changed = (places.view(np.int64) != old.view(np.int64)).reshape(len(places), -1).any(axis=1)
        for place in np.flatnonzero(is_changed).tolist():
            group, state, *others, row = places[place].item()
            if state == FREE:
                yield "groups", place, None
                yield "payloads", place, None
            else:
                yield "groups", place, [group, state, *others, *map(json.dumps, self.names[group])]
                if state == SEALED and old["state"][place] != SEALED:
                    yield "payloads", place, [payload(row)]

    def _as_saved(self) -> npt.NDArray[Any]:
        """The places without leases and unfinished answers, which end with the process."""
        places = self.places.copy()
        places["state"][places["state"] == LEASED] = SEALED
        places["first"][places["state"] == OPEN] = NOT_BEGUN
        return places

    # Changes.

    def admit(self, keys: list[Key], tag: str) -> list[int]:
        """Opens groups in the first places that are free. Returns their ids."""
        groups = list(range(self.numbers["issued"], self.numbers["issued"] + len(keys)))
        for group, key, place in zip(groups, keys, np.flatnonzero(self.places["state"] == FREE), strict=False):
            self.places[place] = (group, OPEN, NOT_BEGUN, 0, 0, 0, 1.0, 0)
            self.names[group] = (key, tag)
            self.members[group] = self.new_members()
        self.numbers["issued"] += len(keys)
        return groups

    def new_members(self) -> list[Member]:
        return [Member() for _ in range(self.options["group_size"])]

    def end(self, places: Iterable[int], reason: str | None = None) -> None:
        """Retires groups for a reason, or consumes them: those without a reason, and those that were used before."""
        for place in places:
            group = int(self.places["id"][place])
            self.places["state"][place] = FREE
            if reason is None or self.places["uses"][place] > 0:
                self.numbers["consumed"] += 1
            else:
                self.retired[reason, self.names[group][1]] += 1
            self.members.pop(group, None)
            del self.names[group]

    def retire_stale(self) -> None:
        """Retires the groups that are too old, unless a learner has them."""
        state, max_age = self.places["state"], self.options["max_age"]
        if max_age is not None:
            is_stale = self.places["first"] < self.numbers["version"] - max_age
            self.end(np.flatnonzero(is_stale & ((state == OPEN) | (state == SEALED))).tolist(), "stale")

    def advance(self, version: int) -> None:
        self.numbers["version"] = version
        if self.numbers["issued"] == 0:
            self.numbers["base"] = version
        self.retire_stale()

    # Rules.

    def room(self) -> int:
        """The k that reserve() allows. I - R are the groups that exist and those that were consumed."""
        free, *existing = self.counts()
        options = self.options
        room: int = min(free, options["max_open"] - existing[0])
        if options["per_version"] is not None:
            versions = self.numbers["version"] - self.numbers["base"] + 1 + options["ahead"]
            room = min(room, versions * options["per_version"] - sum(existing) - self.numbers["consumed"])
        return max(room, 0)

    def draw(self) -> int:
        """The least number of a draw that is neither acknowledged nor leased."""
        used = {lease.draw for lease in self.leases.values()}
        return next(draw for draw in itertools.count(self.numbers["draws"]) if draw not in used)

    def chosen(self, groups: object, tokens: object) -> tuple[Indices | None, npt.NDArray[np.float64]]:
        """The places that sample() would draw, None if too few groups are ready, and their P."""
        if (groups is None) == (tokens is None):
            raise InvalidArgument("sample needs groups or tokens, one of the two")
        places, probabilities = self._in_order()
        if groups is not None:
            count = at_least("groups", groups, 1, self.options["capacity"], ", the capacity")
        else:
            budget, ends = at_least("tokens", tokens, 1), np.cumsum(self.places["n_tokens"][places])
            count = int(np.searchsorted(ends, budget, side="right"))
            if count == 0 and len(places) > 0:
                group = self.places["id"][places[0]]
                raise InvalidArgument(f"tokens is {budget}; allowed: {ends[0]} and above, those of group {group}")
            _, n_open, _, leased = self.counts()
            might_fit = count == len(places) and (count == 0 or ends[-1] < budget)
            count += might_fit and bool(count == 0 or n_open or leased or self.room())  # unless none can come
        return (places[:count] if count <= len(places) else None), probabilities[:count]

    def _in_order(self) -> tuple[Indices, npt.NDArray[np.float64]]:
        """The places of all groups that can be drawn, in the order in which they would be, and their P."""
        state, order, half_life = self.places["state"], self.options["order"], self.options["half_life"]
        if order != "priority":
            places = np.flatnonzero((state == SEALED) | ((state == OPEN) & (order == "issued")))
            places = places[np.argsort(self.places["id" if order == "issued" else "sealed"][places])]
            n_ready = int((np.cumsum(state[places] == OPEN) == 0).sum())
            return places[:n_ready], np.ones(n_ready)
        places = np.flatnonzero((state == SEALED) & (self.places["priority"] > 0))
        logs, firsts = np.log(self.places["priority"][places]), self.places["first"][places]
        if half_life is not None:
            with np.errstate(over="ignore"):
                logs += (firsts - firsts.max(initial=0)) / half_life * math.log(2)
        logs -= logs.max(initial=-math.inf)
        # The smallest of exponential variates, each divided by its weight, is the draw with P(i), and those that follow
        # are draws without replacement. The seed and the number of the draw determine the variates, so that a draw that
        # is made again, after a crash or a release, is the same.
        bits = np.random.PCG64([self.options["seed"], self.draw()]).random_raw(len(state))[places]
        ranks = np.argsort(np.log(-np.log(((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)) - logs)
        weights = np.exp(logs)
        least = np.finfo(np.float64).tiny  # so that P.min() / P is a number
        return places[ranks], np.maximum(weights / weights.sum(), least)[ranks]


def at_least(argument: str, value: object, least: int, most: int | None = None, what: str = "") -> int:
    """A whole number of that range; `what` describes the largest one in the message."""
    number = _options.whole(argument, value)
    if number < least or (most is not None and number > most):
        allowed = f"{least} and above" if most is None else f"{least} to {most}{what}"
        raise InvalidArgument(f"{argument} is {number}; allowed: {allowed}")
    return number
