"""Shard: a buffer of some of the environments, in its own actor."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections import deque
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray

import per
from per._errors import InvalidArgument
from per.coordinator import ShardSummary
from per.typing import WhenFull

Ids = npt.NDArray[np.int64]
Rows = dict[str, npt.NDArray[Any]]

# The arrays of a batch that the coordinator computes.
_OF_THE_WHOLE = ("ids", "weights", "probabilities")

# Calls that may wait at a shard before their writer asks for them to be added; also the most calls that may wait at a
# shard that is not open.
MAX_WAITING = 64

# The most steps of a channel reported to the coordinator at a time, if it limits them.
_MAX_TOLD = 64


class Message(NamedTuple):
    """The part of a message that accompanies each question of the coordinator."""

    life: int
    max_priority: float
    """largest of all shards"""
    version: int
    """of steps that are added from here on"""
    allowed: int | None
    """writers' steps that may be added after the question has been answered; None: all"""
    memory: bytes
    """state for a restarted coordinator, to be kept by the shard"""


class Told(NamedTuple):
    """The report that accompanies each answer."""

    summary: ShardSummary
    added: int
    """number of steps that this process has added"""
    waiting: tuple[int, ...]
    """if the coordinator limits them, the steps of each waiting call, in the order in which they will be added. Each
    step of a channel is a call, and only the first ones are reported"""


class Recalled(NamedTuple):
    """A shard's answer to a restarted coordinator."""

    memory: bytes
    life: int
    told: Told | None
    """None: the shard has no buffer yet"""


class Heard(NamedTuple):
    """The status of a writer's calls."""

    start: str
    """identifies the answering process: calls that waited in another one are lost"""
    number: int
    """number of this call; 0: it is not queued"""
    taken: int
    """calls up to this number are no longer waiting"""
    waiting: int
    is_limited: bool
    """whether waiting calls may have to wait for draws"""
    refused: int
    """number of this writer's calls refused since its last status"""
    refusal: str
    """the reason for the first of these"""


class _Written(NamedTuple):
    """A waiting call of a writer."""

    writer: str
    is_extend: bool
    steps: dict[str, Any]
    n_steps: int


@dataclasses.dataclass
class _Ring:
    """A channel of this shard, for writers on its node."""

    channel: per.Channel
    envs: tuple[int, ...]
    given: tuple[Any, ...]
    is_closing: bool = False
    """ends once it is empty"""
    is_cut_off: bool = False
    """its writer has damaged it"""

    @property
    def n_waiting(self) -> int:
        return self.channel.stats().waiting


class Gone(Exception):
    """The answer of a shard that has restarted since the coordinator's last contact: its contents are lost."""


class Shard:
    """A buffer that changes only on a question of the coordinator, and then returns its summary.

    Steps from writers and channels wait until the coordinator's next question has been answered. The coordinator
    therefore always knows the current summary, and one round of messages makes a batch.

    Parameters
    ----------
    options : dict[str, Any]
        Options of the buffer.
    is_limited : bool
        Whether writers wait for draws, until the coordinator sets it.
    """

    def __init__(self, options: dict[str, Any], is_limited: bool) -> None:
        self._options = options
        self._buffer: per.ReplayBuffer | None = None
        self._life = -1
        self._max_priority = 1.0  # of all shards, as last reported by the coordinator
        self._version = 0
        self._allowed: int | None = 0 if is_limited else None
        self._memory = b""
        self._start = uuid.uuid4().hex
        self._added = self._taken = 0
        self._waiting: deque[_Written] = deque()
        self._rings: list[_Ring] = []
        self._turn = 0  # whose call comes first if steps are limited: 0 is the writers, then the rings
        self._refused, self._refusal = 0, ""
        self._refusals: dict[str, tuple[int, str]] = {}  # by writer, until reported to it
        self._random = random.Random(options.get("seed"))

    def open(self, life: int, path: str | None, cuts: bool) -> Told:
        """Begins a life, from the checkpoint at a path or empty. A shard that still has its buffer keeps it.

        Parameters
        ----------
        life : int
            A number that no earlier life of this shard had; it is part of the shard's ids.
        cuts : bool
            Cut the running episodes, since other steps will follow.
        """
        if self._buffer is None:
            limit = self._options.get("max_heap_bytes")  # a file has none
            load = per.ReplayBuffer.load
            self._buffer = load(path, max_heap_bytes=limit) if path else per.ReplayBuffer(**self._options)
            self._version = self._buffer.version
            if cuts:
                self._buffer.cut()
        self._life = life
        return self._tell(self._buffer)

    def _tell(self, buffer: per.ReplayBuffer, measured_scale: int | None = None, measured_reference: int = 0) -> Told:
        waiting = () if self._allowed is None else tuple(n_steps for _, n_steps in self._in_turns())
        return Told(buffer.summarize(measured_scale, measured_reference), self._added, waiting)

    def recall(self) -> Recalled:
        """The state that the coordinator last sent, and that of this shard."""
        return Recalled(self._memory, self._life, None if self._buffer is None else self._tell(self._buffer))

    def write(self, writer: str, is_extend: bool, steps: dict[str, Any], count: int) -> Heard:
        """Queues `count` steps of a writer."""
        if self._buffer is None and len(self._waiting) >= MAX_WAITING:
            self._refuse(writer, f"{len(self._waiting)} calls wait at a shard that is gone")
            return self.hear(writer)
        self._waiting.append(_Written(writer, is_extend, steps, count))
        return self.hear(writer, self._taken + len(self._waiting))

    def hear(self, writer: str, number: int = 0) -> Heard:
        """The status of a writer's calls."""
        refused = self._refusals.pop(writer, (0, ""))
        is_limited = self._allowed is not None and self._buffer is not None
        return Heard(self._start, number, self._taken, len(self._waiting), is_limited, *refused)

    # Channels.

    def channel(self, envs: Ids, first_env: int, slots: int, when_full: WhenFull) -> tuple[str, str]:
        """Opens a channel of these environments, or returns an existing one: its path and its node.

        Parameters
        ----------
        envs : Ids
            Environments, as numbered in this shard.
        first_env : int
            The number in the whole of the shard's environment 0.
        """
        if self._buffer is None:
            raise per.Busy("it has no buffer yet")
        wanted, given = tuple(envs.tolist()), (slots, when_full)
        for ring in self._rings:
            if (ring.envs, ring.given, ring.is_closing) == (wanted, given, False):
                return ring.channel.path, self._node()
            for env in set(ring.envs) & set(wanted):
                if ring.is_closing:
                    raise per.Busy(f"environment {first_env + env} is in a channel that is being closed")
                envs_of_ring = [first_env + other for other in ring.envs]
                raise InvalidArgument(
                    f"environment {first_env + env} is in a channel of {envs_of_ring} with slots={ring.given[0]} and "
                    f"when_full={ring.given[1]!r}; allowed: just the same, or others once it is closed"
                )
        channel = self._buffer.channel(envs, slots=slots, when_full=when_full, moved_by="calls")
        self._rings.append(_Ring(channel, wanted, given))
        return channel.path, self._node()

    def _node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def _ring(self, path: str) -> _Ring:
        for ring in self._rings:
            if ring.channel.path == path:
                return ring
        raise InvalidArgument("the channel is not there any more: it was closed, or its shard has begun anew")

    def channel_stats(self, path: str) -> per.ChannelStatistics:
        """The statistics of a channel."""
        return self._ring(path).channel.stats()

    def close_channel(self, path: str) -> None:
        """Ends a channel once everything written to it is in the buffer."""
        self._ring(path).is_closing = True

    def _refuse(self, writer: str, reason: str) -> None:
        refused, first = self._refusals.get(writer, (0, reason))
        self._refusals[writer] = refused + 1, first
        self._refused, self._refusal = self._refused + 1, self._refusal or reason

    def ask(self, message: Message, question: str, *given: Any) -> tuple[Any, Told]:
        """The answer to a question of the coordinator, and the current summary."""
        buffer = self._of(message)
        if question == "measure":
            return None, self._tell(buffer, *given)
        answer = getattr(self, f"_{question}")(buffer, *given)
        if question not in ("set_scale", "find"):  # nothing may change between these
            self._take_in(buffer)
        return answer, self._tell(buffer)

    @ray.method(num_returns=2)
    def ask_for_rows(self, message: Message, question: str, *given: Any) -> tuple[Rows | None, tuple[Any, Told]]:
        """The same for rows, which stay in the object store until a learner fetches them."""
        buffer = self._of(message)
        rows, answer = getattr(self, f"_{question}")(buffer, *given)
        self._take_in(buffer)
        return rows, (answer, self._tell(buffer))

    def _of(self, message: Message) -> per.ReplayBuffer:
        if self._buffer is None or message.life != self._life:
            raise Gone
        _, self._max_priority, version, self._allowed, self._memory = message
        if version > self._version:  # set while this shard was gone
            self._set_version(self._buffer, version)
        return self._buffer

    def _take_in(self, buffer: per.ReplayBuffer) -> None:
        """Adds waiting steps, as far as allowed."""
        if self._allowed is None:
            while self._waiting:
                self._take_call(buffer)
            for ring in self._rings:
                self._take_steps(buffer, ring, None)
        else:
            self._take_in_turns(buffer, self._allowed)
        for ring in [ring for ring in self._rings if ring.is_cut_off or (ring.is_closing and ring.n_waiting == 0)]:
            self._refused += ring.channel.stats().refused
            self._rings.remove(ring)
            ring.channel.close()

    def _in_turns(self) -> list[tuple[int, int]]:
        """The waiting calls, in the order in which they are added if steps are limited: source, and number of steps.

        A step of all environments of a channel counts as a call; its mask may exclude some of the environments.
        """
        calls = [[call.n_steps for call in self._waiting]]
        calls += [[len(ring.envs)] * min(ring.n_waiting, _MAX_TOLD) for ring in self._rings]
        first = self._turn % len(calls)
        turns = [*range(first, len(calls)), *range(first)]
        rounds = zip_longest(*(calls[turn] for turn in turns))
        return [(turn, n) for each in rounds for turn, n in zip(turns, each, strict=True) if n is not None]

    def _take_in_turns(self, buffer: per.ReplayBuffer, allowed: int) -> None:
        """Adds the allowed number of steps. Smaller calls do not overtake the first one."""
        self._allowed = allowed
        for turn, n_steps in self._in_turns():
            fits = n_steps <= self._allowed
            if turn > 0:
                self._take_steps(buffer, self._rings[turn - 1], min(n_steps, self._allowed))
            elif fits:
                self._take_call(buffer)
            if not fits:
                self._turn = turn
                return
        for ring in self._rings:
            self._take_steps(buffer, ring, self._allowed)

    def _take_call(self, buffer: per.ReplayBuffer) -> None:
        """Adds the oldest waiting call of a writer."""
        writer, is_extend, steps, count = self._waiting.popleft()
        self._taken += 1
        try:
            self._add(buffer, is_extend, steps, count)
        except per.Error as error:  # a lane is full, or steps do not follow those before, for example
            self._refuse(writer, str(error))
        else:
            self._allowed = None if self._allowed is None else self._allowed - count

    def _take_steps(self, buffer: per.ReplayBuffer, ring: _Ring, most: int | None) -> None:
        """Moves steps of a channel. If no memory is left, the steps stay in the channel, and are moved another time."""
        if ring.n_waiting == 0:
            return
        buffer.raise_max_priority(self._max_priority)
        try:
            count = ring.channel.move(most)
        except per.Error as error:
            self._refusal = self._refusal or str(error)
            ring.is_cut_off = isinstance(error, per.CorruptFile)
            return
        self._added += count
        self._allowed = None if self._allowed is None else self._allowed - count

    # Questions.

    def _summary(self, buffer: per.ReplayBuffer) -> None:
        """Does nothing: the summary accompanies each answer."""

    def _set_scale(self, buffer: per.ReplayBuffer, scale: int, reference: int) -> None:
        buffer.set_scale(scale, reference)

    def _set_version(self, buffer: per.ReplayBuffer, version: int) -> None:
        buffer.set_version(version)
        self._version = version

    def _add(self, buffer: per.ReplayBuffer, is_extend: bool, steps: dict[str, Any], count: int) -> Ids:
        buffer.raise_max_priority(self._max_priority)
        steps = {name: rows.tolist() if _are_objects(rows) else rows for name, rows in steps.items()}
        ids = buffer.extend(**steps) if is_extend else buffer.add(**steps)
        self._added += count
        return ids

    def _update(self, buffer: per.ReplayBuffer, ids: Any, name: str, values: Any) -> None:
        buffer.update_priorities(ids, **{name: values})

    def _find(self, buffer: per.ReplayBuffer, units: Any, told: ShardSummary) -> Ids | None:
        """Ids, masses and first units, int64[3, n], for a round of a draw without replacement. None as in _draw()."""
        if buffer.summarize().changes != told.changes:
            return None
        batch, masses, first_units = buffer.get_units(units)
        return np.stack([batch.ids, masses, first_units])

    def _windows(
        self, buffer: per.ReplayBuffer, ids: Any, n_step: int | None, told: ShardSummary
    ) -> tuple[Rows | None, bool | None]:
        """Rows by id, and True. None as in _draw()."""
        if buffer.summarize().changes != told.changes:
            return None, None
        return self._rows(buffer, buffer.get_windows(ids, n_step=n_step)), True

    def _draw(
        self, buffer: per.ReplayBuffer, units: Any, n_step: int | None, told: ShardSummary, is_stale: bool
    ) -> Any:
        """Rows, and their ids and masses, int64[2, n], for units of the summary `told`; None if it is outdated.

        With is_stale the units are mapped from the total T_told of that summary to the current total T_now: unit u
        becomes the unit at a point drawn uniformly from u T_now / T_told to (u + 1) T_now / T_told. So a row of mass m
        is drawn with probability m / T_now, whatever has changed since. Its mass is returned as m T_told / T_now, which
        is that probability in units of T_told.
        """
        now = buffer.summarize()
        total, before = now.total_mass, told.total_mass
        is_carried = now.changes != told.changes and len(units) > 0
        if is_carried and (not is_stale or total == 0 or before == 0):
            return None, None
        if is_carried:
            units = np.array([(int(u) * total + self._random.randrange(total)) // before for u in units], np.int64)
        batch, masses, _ = buffer.get_units(units, n_step=n_step)
        if is_carried:
            masses = np.array([max(1, (int(m) * before + total // 2) // total) for m in masses], np.int64)
        return self._rows(buffer, batch), np.stack([batch.ids, masses])

    def _save(self, buffer: per.ReplayBuffer, path: str) -> None:
        buffer.save(path)

    def _stats(self, buffer: per.ReplayBuffer) -> tuple[per.Statistics, int, str]:
        refused = {ring.envs: ring.channel.stats().refused for ring in self._rings}
        for envs, count in refused.items():
            if count and not self._refusal:
                self._refusal = f"the buffer refused a step of the channel of environments {list(envs)} of the shard"
        return buffer.stats(), self._refused + sum(refused.values()), self._refusal

    def _rows(self, buffer: per.ReplayBuffer, batch: per.Batch) -> Rows | None:
        if len(batch.ids) == 0:
            return None
        return {name: array for name, array in buffer._arrays_of(batch).items() if name not in _OF_THE_WHOLE}


def _are_objects(rows: object) -> bool:
    """Whether they are rows of any length, as Steps.look() gives them."""
    return isinstance(rows, np.ndarray) and rows.dtype == object
