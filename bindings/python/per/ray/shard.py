"""Shard: a buffer of some of the environments, in an actor of its own."""

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

# What of a batch is the coordinator's.
_OF_THE_WHOLE = ("ids", "weights", "probabilities")

# Calls of writers that wait at a shard before their writer sees to it that they are taken in, and most that wait at one
# that is not open.
MAX_WAITING = 64

# Steps of a channel that the coordinator is told of at a time, where it limits them.
_MAX_TOLD = 64


class Message(NamedTuple):
    """What comes with each question of the coordinator."""

    life: int
    max_priority: float
    """of all shards"""
    allowed: int | None
    """steps of writers that may be added once the question is answered; None: all"""
    memory: bytes
    """what the coordinator asks for if it has begun anew"""


class Told(NamedTuple):
    """What comes with each answer."""

    summary: ShardSummary
    added: int
    """steps that this process has added"""
    waiting: tuple[int, ...]
    """where the coordinator limits them, the steps of each call that waits, in the order in which they will be added;
    each step of a channel is a call, and the first ones are told"""


class Recalled(NamedTuple):
    """What a shard says to a coordinator that has begun anew."""

    memory: bytes
    life: int
    told: Told | None
    """None: it has no buffer yet"""


class Heard(NamedTuple):
    """What a writer hears of its calls."""

    start: str
    """of the process that answers: what waited in another one is lost"""
    number: int
    """of this call; 0: it does not wait"""
    taken: int
    """calls up to this number do not wait any more"""
    waiting: int
    is_limited: bool
    """whether what waits may have to wait for draws"""
    refused: int
    """calls of this writer, since it last heard"""
    refusal: str
    """why the first of them was"""


class _Written(NamedTuple):
    """A call of a writer that waits."""

    writer: str
    is_extend: bool
    steps: dict[str, Any]
    n_steps: int


@dataclasses.dataclass
class _Ring:
    """A channel of this shard, whose writers are processes of its node."""

    channel: per.Channel
    envs: tuple[int, ...]
    given: tuple[Any, ...]
    is_closing: bool = False
    """it ends once it is empty"""
    is_cut_off: bool = False
    """its writer has damaged it"""

    @property
    def n_waiting(self) -> int:
        return self.channel.stats().waiting


class Gone(Exception):
    """What a shard answers that has begun anew since the coordinator last heard of it: what it held is gone."""


class Shard:
    """A buffer that changes only where the coordinator asks it something, and then says what its summary is.

    What writers give it, or write to its channels, waits until the coordinator's next question has been answered. So
    the coordinator always knows the summary of now, and one round of messages makes a batch.

    Parameters
    ----------
    options : dict[str, Any]
        Of the buffer.
    is_limited : bool
        Whether writers wait for draws, as far as is known before the coordinator says so.
    """

    def __init__(self, options: dict[str, Any], is_limited: bool) -> None:
        self._options = options
        self._buffer: per.ReplayBuffer | None = None
        self._life = -1
        self._max_priority = 1.0  # of all shards, as the coordinator last said
        self._allowed: int | None = 0 if is_limited else None
        self._memory = b""
        self._start = uuid.uuid4().hex
        self._added = self._taken = 0
        self._waiting: deque[_Written] = deque()
        self._rings: list[_Ring] = []
        self._turn = 0  # whose call is first where steps are limited: 0 that of writers, then those of the rings
        self._refused, self._refusal = 0, ""
        self._refusals: dict[str, tuple[int, str]] = {}  # by writer, until it hears of them
        self._random = random.Random(options.get("seed"))

    def open(self, life: int, path: str | None, cuts: bool) -> Told:
        """Begins a life: with the checkpoint of a path, or empty. A shard that has its buffer yet keeps it.

        Parameters
        ----------
        life : int
            A number that no life of this shard had before; it is in the ids that the shard gives.
        cuts : bool
            Episodes that were running go on with other steps, not with the next ones.
        """
        if self._buffer is None:
            self._buffer = per.ReplayBuffer.load(path) if path else per.ReplayBuffer(**self._options)
            if cuts:
                self._buffer.cut()
        self._life = life
        return self._tell(self._buffer)

    def _tell(self, buffer: per.ReplayBuffer, measured_scale: int | None = None) -> Told:
        waiting = () if self._allowed is None else tuple(n_steps for _, n_steps in self._in_turns())
        return Told(buffer.summarize(measured_scale), self._added, waiting)

    def recall(self) -> Recalled:
        """What the coordinator last said of itself, and what this shard is."""
        return Recalled(self._memory, self._life, None if self._buffer is None else self._tell(self._buffer))

    def write(self, writer: str, is_extend: bool, steps: dict[str, Any], count: int) -> Heard:
        """Takes so many steps of a writer, for later."""
        if self._buffer is None and len(self._waiting) >= MAX_WAITING:
            self._refuse(writer, f"{len(self._waiting)} calls wait at a shard that is gone")
            return self.hear(writer)
        self._waiting.append(_Written(writer, is_extend, steps, count))
        return self.hear(writer, self._taken + len(self._waiting))

    def hear(self, writer: str, number: int = 0) -> Heard:
        """What became of its calls."""
        refused = self._refusals.pop(writer, (0, ""))
        is_limited = self._allowed is not None and self._buffer is not None
        return Heard(self._start, number, self._taken, len(self._waiting), is_limited, *refused)

    # Channels.

    def channel(self, envs: Ids, first_env: int, slots: int, when_full: WhenFull) -> tuple[str, str]:
        """The path of a channel of these environments, and the node where it can be opened. One that is there is taken.

        Parameters
        ----------
        envs : Ids
            Numbers of this shard.
        first_env : int
            What the first of them all is in the whole.
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
        """What a channel has done."""
        return self._ring(path).channel.stats()

    def close_channel(self, path: str) -> None:
        """Has it end once what was written there is in the buffer."""
        self._ring(path).is_closing = True

    def _refuse(self, writer: str, reason: str) -> None:
        refused, first = self._refusals.get(writer, (0, reason))
        self._refusals[writer] = refused + 1, first
        self._refused, self._refusal = self._refused + 1, self._refusal or reason

    def ask(self, message: Message, question: str, *given: Any) -> tuple[Any, Told]:
        """The answer to a question of the coordinator, and the summary of now."""
        buffer = self._of(message)
        if question == "measure":
            return None, self._tell(buffer, *given)
        answer = getattr(self, f"_{question}")(buffer, *given)
        if question not in ("set_scale", "find"):  # between which nothing may change
            self._take_in(buffer)
        return answer, self._tell(buffer)

    @ray.method(num_returns=2)
    def ask_for_rows(self, message: Message, question: str, *given: Any) -> tuple[Rows | None, tuple[Any, Told]]:
        """The same for rows, which stay in the object store until a learner takes them."""
        buffer = self._of(message)
        rows, answer = getattr(self, f"_{question}")(buffer, *given)
        self._take_in(buffer)
        return rows, (answer, self._tell(buffer))

    def _of(self, message: Message) -> per.ReplayBuffer:
        if self._buffer is None or message.life != self._life:
            raise Gone
        _, self._max_priority, self._allowed, self._memory = message
        return self._buffer

    def _take_in(self, buffer: per.ReplayBuffer) -> None:
        """Adds what waits, as far as its steps are allowed."""
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
        """What waits, in the order in which it is added where steps are limited: whose call it is, and how many steps.

        A step of all environments of a channel is a call, in which masks may leave some out.
        """
        calls = [[call.n_steps for call in self._waiting]]
        calls += [[len(ring.envs)] * min(ring.n_waiting, _MAX_TOLD) for ring in self._rings]
        first = self._turn % len(calls)
        turns = [*range(first, len(calls)), *range(first)]
        rounds = zip_longest(*(calls[turn] for turn in turns))
        return [(turn, n) for each in rounds for turn, n in zip(turns, each, strict=True) if n is not None]

    def _take_in_turns(self, buffer: per.ReplayBuffer, allowed: int) -> None:
        """Adds so many steps. What is first is not overtaken by calls for fewer."""
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
        """Adds the oldest call of a writer that waits."""
        writer, is_extend, steps, count = self._waiting.popleft()
        self._taken += 1
        try:
            self._add(buffer, is_extend, steps, count)
        except per.Error as error:  # as a lane is full, or steps do not follow those before
            self._refuse(writer, str(error))
        else:
            self._allowed = None if self._allowed is None else self._allowed - count

    def _take_steps(self, buffer: per.ReplayBuffer, ring: _Ring, most: int | None) -> None:
        """Moves steps of a channel. Those that there is no memory for stay there, and are tried again next time."""
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
        """Nothing but what comes with each answer."""

    def _set_scale(self, buffer: per.ReplayBuffer, scale: int) -> None:
        buffer.set_scale(scale)

    def _add(self, buffer: per.ReplayBuffer, is_extend: bool, steps: dict[str, Any], count: int) -> Ids:
        buffer.raise_max_priority(self._max_priority)
        ids = buffer.extend(**steps) if is_extend else buffer.add(**steps)
        self._added += count
        return ids

    def _update(self, buffer: per.ReplayBuffer, ids: Any, name: str, values: Any) -> None:
        buffer.update_priorities(ids, **{name: values})

    def _find(self, buffer: per.ReplayBuffer, units: Any, told: ShardSummary) -> Ids | None:
        """Ids, masses and first units, int64[3, n]: a round of a draw without replacement. None as for _draw()."""
        if buffer.summarize().changes != told.changes:
            return None
        batch, masses, first_units = buffer.get_units(units)
        return np.stack([batch.ids, masses, first_units])

    def _windows(
        self, buffer: per.ReplayBuffer, ids: Any, n_step: int | None, told: ShardSummary
    ) -> tuple[Rows | None, bool | None]:
        """Rows by id, and True. None as for _draw()."""
        if buffer.summarize().changes != told.changes:
            return None, None
        return self._rows(buffer, buffer.get_windows(ids, n_step=n_step)), True

    def _draw(
        self, buffer: per.ReplayBuffer, units: Any, n_step: int | None, told: ShardSummary, is_stale: bool
    ) -> Any:
        """Rows, and their ids and masses, int64[2, n], of units of the summary that was given; None if of another.

        With is_stale they are carried over to the summary of now: unit u of a total of T_told to a unit that is uniform
        among those of T_now which lie where u does, and the mass m of what owns it to m T_told / T_now. So whatever has
        happened since, a row is drawn with probability m / T_now, and says so in units of T_told.
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
