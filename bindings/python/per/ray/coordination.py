"""Coordination: an actor, shared by all learners, that draws from the shards' actors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import ray

import per
from per._errors import io_error
from per._waiting import seconds_of
from per.coordinator import CoordinatedBatch, CoordinatorState, Round, ShardSummary
from per.ray.limits import Limits
from per.ray.shard import Gone, Message, Recalled, Told

Ids = npt.NDArray[np.int64]
_T = TypeVar("_T")

MANIFEST = "coordinator.json"
VERSION = 1

# The bits of an id from this one up hold the shard's life: 0 at first, and larger after each restart. A shard restored
# from a checkpoint counts on from there, so that without its life it would give ids a second time. In life 0, ids are
# those of one buffer.
LIFE_BITS = 48
_BELOW_LIFE = (1 << LIFE_BITS) - 1

_NONE = np.empty(0, np.int64)

# A loader idle for this many seconds may belong to a process that was killed.
_FORGOTTEN_AFTER = 600.0


def get(reference: Any) -> Any:
    """Returns the result of ray.get(). Errors of this package are raised as the actor raised them."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def once_allowed(call: Callable[[], _T], timeout: float | None = None, longest_pause: float = 0.05) -> _T:
    """Repeats a call while it raises Busy: the rate limiter does not signal when it allows more."""
    end = time.monotonic() + seconds_of(timeout)
    pause = 0.001
    while True:
        try:
            return call()
        except per.Busy as error:
            left = end - time.monotonic()
            if left <= 0:
                raise per.Timeout(str(error)) from None
        time.sleep(min(pause, left))
        pause = min(2 * pause, longest_pause)


class Drawn(NamedTuple):
    """A batch whose rows are in the object store."""

    ids: Ids
    weights: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float32]
    rows: list[tuple[Ids, Any]]
    """for each shard with rows: their places in the batch, and their reference in the store"""


@dataclasses.dataclass
class _Asked:
    """A pending request for rows to the shards."""

    shards: Ids
    places: dict[int, Ids]
    """by shard"""
    references: dict[int, tuple[Any, Any]]
    """by shard: references of the rows, and of their ids and masses"""
    lives: Ids
    allowed: int
    """steps of writers that the shards may add after they have answered"""
    answers: dict[int, Any] | Exception | None = None
    """None: not received yet"""


class _Memory(NamedTuple):
    """The state that a restarted coordinator needs beside that of the shards. The shards store it."""

    number: int
    """larger than that of the previous message"""
    state: CoordinatorState
    limits: Limits
    added: Ids
    """by shard: number of steps known to have been added"""
    lives: Ids
    directory: str
    saves: int
    losses: int
    outlived: int


class _Changed(Exception):
    """A shard has changed since the draw began, or is gone: the draw must be repeated."""


def _reason(error: Exception) -> str:
    """An error in one line; Ray's errors have many."""
    return " ".join(str(error).split()) or type(error).__name__


def _places(shards: Ids) -> dict[int, Ids]:
    """The places of each shard; -1 stands for no shard."""
    order = np.argsort(shards, kind="stable")
    numbers, firsts = np.unique(shards[order], return_index=True)
    return {int(s): place for s, place in zip(numbers, np.split(order, firsts)[1:], strict=True) if s >= 0}


def _all_of(places: dict[int, Ids], answers: dict[int, Any]) -> dict[int, Any]:
    """The answers, of which every shard of a batch must have given one."""
    if any(answers.get(s) is None for s in places):
        raise _Changed
    return answers


def _in_place(places: dict[int, Ids], found: dict[int, Ids]) -> Ids:
    """The results of the shards, one column per transition, in the order of the batch."""
    order = np.argsort(np.concatenate(list(places.values())))
    return np.concatenate([found[s] for s in places], axis=1)[:, order]


class Coordination:
    """Makes the shards perform all operations of one buffer. Its calls are serialised.

    Parameters
    ----------
    shards : list[Any]
        Handles of actors.
    options : dict[str, Any]
        Capacity, n_envs and the options that determine draws.
    timeout : float or None
        Seconds that a shard has to answer.
    """

    def __init__(self, shards: list[Any], options: dict[str, Any], timeout: float | None) -> None:
        self._shards, self._options, self._timeout = shards, options, timeout
        self._draws = self._new_draws()
        self._summaries: list[ShardSummary | None] = [None] * len(shards)  # None: the shard is gone
        self._lives = np.zeros(len(shards), np.int64)
        self._coming: dict[int, Any] = {}  # pending open() calls of absent shards
        self._reasons: dict[int, str] = {}  # why they are absent
        self._directory, self._saves = "", 0  # of the last checkpoint: its directory and number
        self._begun: dict[str, tuple[float, deque[Any]]] = {}  # by loader: its last request, and its batches ahead
        self._losses = self._outlived = 0
        self._version = 0  # the latest of any shard
        self._limits = Limits()
        self._added = np.zeros(len(shards), np.int64)  # by shard: number of steps known to have been added
        self._waiting: list[tuple[int, ...]] = [()] * len(shards)  # by shard: steps of the calls waiting there
        self._turn = 0  # the shard whose waiting calls come first
        self._adding = 0  # steps of the add in progress
        self._is_open = False
        self._memories = 0
        self._choices: dict[str, Any] | None = None  # options of the draw in progress

    def _new_draws(self, state: CoordinatorState | None = None) -> per.Coordinator:
        return per.Coordinator(n_shards=len(self._shards), state=state, **self._options)

    # ------------------------------------------------------------ asking

    def _send(self, question: str, given: dict[int, tuple[Any, ...]], call: str = "ask") -> tuple[dict[int, Any], int]:
        """Sends a question to shards without waiting. Returns the futures, and the steps that the shards may add."""
        allowed = self._allowed(sorted(given))
        largest = self._draws.state().max_priority
        memory = self._memory()
        messages = {s: Message(int(self._lives[s]), largest, self._version, allowed[s], memory) for s in given}
        references = {
            s: getattr(self._shards[s], call).remote(messages[s], question, *each) for s, each in given.items()
        }
        return references, sum(filter(None, allowed.values()))

    def _memory(self) -> bytes:
        """The state after the draw in progress. If that draw is never finished, its number is skipped."""
        self._memories += 1
        state = self._draws.state() if self._choices is None else self._after(self._choices)
        memory = _Memory(
            number=self._memories,
            state=state,
            limits=self._limits,
            added=self._added,
            lives=self._lives,
            directory=self._directory,
            saves=self._saves,
            losses=self._losses,
            outlived=self._outlived,
        )
        return pickle.dumps(memory)

    def _allowed(self, shards: list[int]) -> dict[int, int | None]:
        """The number of writers' steps that the rate limiter allows each shard to add once it has answered."""
        if not self._limits.holds_adds:
            return dict.fromkeys(shards)
        on_their_way = sum(
            asked.allowed for _, ahead in self._begun.values() for _, asked in ahead if asked.answers is None
        )
        left = max(self._limits.allowed_steps() - on_their_way - self._adding, 0)
        turns = deque((s, deque(self._waiting[s])) for s in sorted(shards, key=lambda s: (s < self._turn, s)))
        allowed = dict.fromkeys(shards, 0)
        while turns:
            s, calls = turns.popleft()
            if not calls:
                continue
            if calls[0] > left:  # later calls do not overtake it, and it comes first after the next draw
                self._turn = s
                return {**allowed}
            left -= calls[0]
            allowed[s] += calls.popleft()
            turns.append((s, calls))
        return {s: steps + left // len(shards) for s, steps in allowed.items()}

    def _ask(self, question: str, given: dict[int, tuple[Any, ...]], is_limited: bool = True) -> dict[int, Any]:
        """Asks shards, all at once. Those that do not answer count as gone and are missing from the result."""
        return self._answers(self._send(question, given)[0], self._lives.copy(), is_limited)

    def _of_all(self, given: Callable[[int, ShardSummary], tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
        return {s: given(s, summary) for s, summary in enumerate(self._summaries) if summary is not None}

    def _ask_all(self, question: str, *given: Any) -> dict[int, Any]:
        return self._ask(question, self._of_all(lambda s, summary: given))

    def _answers(self, references: dict[int, Any], lives: Ids, is_limited: bool = True) -> dict[int, Any]:
        """The answers of the shards that are still in the lives in which they were asked, all within one timeout."""
        answers, refused = {}, None
        timeout = self._timeout if is_limited else None
        asked = {s: reference for s, reference in references.items() if self._lives[s] == lives[s]}
        late = ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout)[1] if asked else []
        for s, reference in asked.items():
            try:
                if reference in late:
                    raise ray.exceptions.GetTimeoutError(f"no answer within {timeout} s")
                answer, told = get(reference)
            except (Gone, ray.exceptions.RayError) as error:
                self._lose(s, error)
            except Exception as error:  # raised after the other shards' summaries have been reported
                error.args = (f"shard {s}: {error}",)
                refused = refused or error
            else:
                answers[s] = answer
                self._take(s, told)
        if refused is not None:
            raise refused
        return answers

    def _take(self, s: int, told: Told, is_first: bool = False) -> None:
        """Takes a shard's report. Its first answer may come from a new process, which has added fewer steps."""
        if is_first and told.added < self._added[s]:
            self._added[s] = 0
        if told.added >= self._added[s]:
            self._limits.added += told.added - int(self._added[s])
            self._added[s], self._waiting[s] = told.added, told.waiting
        self._version = max(self._version, told.summary.version)
        self._tell(s, told.summary)

    def _tell(self, s: int, summary: ShardSummary | None) -> None:
        known = self._summaries[s]
        if known is None or summary is None or summary.changes >= known.changes:
            self._summaries[s] = summary
            self._draws.report(s, summary)

    def _lose(self, s: int, error: Exception) -> None:
        self._losses += 1
        self._lives[s] += 1
        self._tell(s, None)
        self._waiting[s] = ()
        self._open(s, _reason(error), cuts=True)

    def _open(self, s: int, reason: str, cuts: bool) -> None:
        path = self._names(self._directory, self._saves)[s] if self._saves else None
        self._coming[s] = self._shards[s].open.remote(int(self._lives[s]), path, cuts)
        self._reasons[s] = reason

    def _begin_call(self, raises: bool = False) -> None:
        """Uses shards that have returned or are new from now on, and drops the batches of loaders no longer in use."""
        if not self._is_open:
            self._recall()
        for s, reference in list(self._coming.items()):
            if not ray.wait([reference], timeout=0)[0]:
                continue
            try:
                self._take(s, get(reference), is_first=True)
                del self._coming[s], self._reasons[s]
            except Exception as error:  # it died again, or its file cannot be read now
                self._open(s, _reason(error), cuts=True)
                if raises:
                    raise
        oldest = time.monotonic() - _FORGOTTEN_AFTER
        self._begun = {loader: ahead for loader, ahead in self._begun.items() if ahead[0] > oldest}

    def _agree_on_scale(self) -> None:
        summaries = enumerate(self._summaries)
        behind: dict[int, tuple[Any, ...]] = {
            s: () for s, known in summaries if known and known.version < self._version
        }
        if behind:
            self._ask("summary", behind)  # the message has the version
        asked = self._draws.agree_on_scale()
        while asked is not None:
            self._ask_all("measure" if asked.todo == "measure" else "set_scale", asked.scale, asked.reference)
            asked = self._draws.agree_on_scale()

    def _recall(self) -> None:
        """Continues after a restart of the coordinator's process, from the state that it last sent to the shards.

        Shards that answer stay in their lives. Those that do not are lost, and begin their next life.
        """
        references = {s: shard.recall.remote() for s, shard in enumerate(self._shards)}
        late = ray.wait(list(references.values()), num_returns=len(references), timeout=self._timeout)[1]
        recalled: dict[int, Recalled] = {}
        for s, reference in references.items():
            with contextlib.suppress(ray.exceptions.RayError):
                if reference not in late:
                    recalled[s] = get(reference)
        memories: list[_Memory] = [pickle.loads(each.memory) for each in recalled.values() if each.memory]
        if not memories:
            raise per.Error("the coordinator has died, and no shard knows of it; what was saved can be loaded")
        last = max(memories, key=lambda memory: memory.number)
        self._draws = self._new_draws(last.state)
        self._memories, self._limits, self._added, self._lives = last.number, last.limits, last.added, last.lives
        self._directory, self._saves = last.directory, last.saves
        self._losses, self._outlived = last.losses, last.outlived
        self._is_open = True
        for s in range(len(self._shards)):
            known = recalled.get(s)
            if known is None or known.told is None:
                self._lose(s, per.Error("it was not there when the coordinator began anew"))
            elif known.life < self._lives[s]:
                self._tell(s, None)
                self._open(s, "it was gone when the coordinator began anew", cuts=True)
            else:
                self._lives[s] = known.life
                self._take(s, known.told, is_first=True)
        self._agree_on_scale()

    def _hear_of_begun(self) -> None:
        """Waits for the answers to draws ahead, if the number of added steps must be known."""
        if self._limits.holds_adds:
            for _, ahead in self._begun.values():
                for _, asked in ahead:
                    self._hear(asked)

    @contextlib.contextmanager
    def _counted(self, batch_size: int, is_again: bool = False) -> Iterator[None]:
        """Context of a draw that the rate limiter allows. It counts unless it fails; a repeated draw counted before."""
        count = 0 if is_again else int(batch_size)
        if count:
            self._limits.check_draw(count)
        self._limits.drawn += count
        try:
            yield
        except BaseException:
            self._limits.drawn -= count
            raise
        finally:
            self._choices = None

    # ------------------------------------------------------------- calls

    def open(self, least: int, manifest: dict[str, Any] | None, directory: str, limits: dict[str, Any]) -> None:
        """Opens all shards, empty or from a checkpoint, and waits for `least` of them. A failed shard is an error."""
        self._is_open, self._limits = True, Limits(**limits)
        if manifest is not None:
            self._saves, self._lives = manifest["number"], np.array(manifest["lives"], np.int64)
            self._directory = directory
            self._draws = self._new_draws(CoordinatorState(**manifest["state"]))
        for s in range(len(self._shards)):
            self._draws.report(s, None)
            self._open(s, "it has not been placed yet", cuts=False)
        self._begin_call(raises=True)
        while len(self._shards) - len(self._coming) < least:
            ray.wait(list(self._coming.values()))
            self._begin_call(raises=True)
        self._agree_on_scale()
        self._ask_all("summary")  # gives the shards the coordinator's state

    def refresh(self) -> None:
        """Adds steps that writers gave to the shards, as far as the rate limiter allows."""
        self._begin_call()
        self._hear_of_begun()
        self._ask_all("summary")
        self._agree_on_scale()

    @ray.method(max_task_retries=0)
    def add(self, is_extend: bool, calls: list[dict[int, tuple[dict[str, Any], int]]]) -> list[dict[int, Ids]]:
        """Adds steps of shards, call by call. Returns the ids of the steps added.

        Parameters
        ----------
        calls : list[dict[int, tuple[dict[str, Any], int]]]
            For each call, by shard, its steps and their number.
        """
        self._begin_call()
        self._hear_of_begun()
        self._adding = sum(count for call in calls for _, count in call.values())
        self._limits.check_add(self._adding)
        try:
            return [self._add(is_extend, call) for call in calls]
        finally:
            self._adding = 0

    def _add(self, is_extend: bool, call: dict[int, tuple[dict[str, Any], int]]) -> dict[int, Ids]:
        there = {s: (is_extend, *steps) for s, steps in call.items() if self._summaries[s] is not None}
        answers = self._ask("add", there)
        self._adding -= sum(count for _, count in call.values())
        added = {
            s: self._of_the_whole(self._draws.ids(s, ids.ravel()), s).reshape(ids.shape) for s, ids in answers.items()
        }
        self._agree_on_scale()  # during this a shard may be lost, and begin its next life
        return added

    def check_add(self, count: int) -> None:
        """Raises Busy if this many steps are not allowed yet."""
        self._begin_call()
        self._hear_of_begun()
        self._limits.check_add(count)

    def check_draw(self, batch_size: int) -> None:
        """The same for a draw."""
        self._with_what_waits(lambda: self._limits.check_draw(batch_size))

    def stop_limiting(self) -> None:
        """Ends all limits."""
        self._begin_call()
        self._limits.stop()
        self.refresh()

    def set_version(self, version: int) -> None:
        """Sets the version of steps that are added from here on."""
        self._begin_call()
        try:
            self._ask_all("set_version", version)
        finally:
            self._agree_on_scale()

    def _of_the_whole(self, ids: Ids, shards: Any) -> Ids:
        return np.where(ids < 0, ids, ids | self._lives[shards] << LIFE_BITS)

    def update(self, ids: Ids, name: str, values: Any, axis: int) -> None:
        """Sets priorities. Transitions of an earlier life of their shard are skipped and counted."""
        self._begin_call()
        shards, of_shards = self._draws.locate(np.where(ids < 0, ids, ids & _BELOW_LIFE))
        is_there = np.array([summary is not None for summary in self._summaries])
        is_known = (ids >= 0) & is_there[shards] & (ids >> LIFE_BITS == self._lives[shards])
        self._outlived += int(np.count_nonzero((ids >= 0) & ~is_known))
        places = _places(np.where(is_known, shards, -1))
        given = {s: (of_shards[place], name, values.take(place, axis)) for s, place in places.items()}
        try:
            self._ask("update", given)
        finally:
            self._agree_on_scale()

    def _with_what_waits(self, draw: Callable[[], _T]) -> _T:
        """Draws. If that fails, adds the steps that wait at the shards, which may be the only ones, and draws again."""
        self._begin_call()
        try:
            return draw()
        except (per.Empty, per.Busy, per.InvalidArgument):
            self.refresh()
            return draw()

    def sample(self, batch_size: int, n_step: int | None, choices: dict[str, Any]) -> Drawn:
        """Draws a batch as one buffer would."""
        return self._with_what_waits(lambda: self._sample(batch_size, n_step, choices))

    def _sample(self, batch_size: int, n_step: int | None, choices: dict[str, Any], is_again: bool = False) -> Drawn:
        scheme = choices.get("scheme") or self._options["scheme"]
        with self._counted(batch_size, is_again):
            while True:
                self._begin_call()
                self._agree_on_scale()
                round, self._choices = self._draws.draw(batch_size, **choices), choices
                try:
                    if scheme == "without_replacement":
                        return self._sample_distinct(round, n_step)
                    return self._end(self._draws, self._begin(round, n_step, is_stale=False))
                except _Changed:
                    pass

    def sample_ahead(
        self, loader: str, ahead: int, batch_size: int, n_step: int | None, choices: dict[str, Any]
    ) -> Drawn:
        """Returns the oldest of this loader's `ahead` pending batches, and begins another one.

        Each is drawn from the state known when it begins. The shards' state when they answer enters its probabilities.
        """
        begun = self._begun.get(loader, (0.0, deque[Any]()))[1]
        self._begun[loader] = time.monotonic(), begun
        try:
            while len(begun) < ahead:
                begun.append(self._with_what_waits(lambda: self._begin_ahead(batch_size, n_step, choices)))
        except per.Busy:  # no more batches are allowed yet; those already begun were
            if not begun:
                raise
        try:
            return self._end(*begun.popleft())
        except _Changed:
            return self._with_what_waits(lambda: self._sample(batch_size, n_step, choices, is_again=True))

    def _begin_ahead(
        self, batch_size: int, n_step: int | None, choices: dict[str, Any]
    ) -> tuple[per.Coordinator, _Asked]:
        self._agree_on_scale()
        with self._counted(batch_size):
            draws = self._draws
            round, self._choices = draws.draw(batch_size, **choices), choices
            after = self._new_draws(self._after(choices))
            asked = self._begin(round, n_step, is_stale=True)
        for s, summary in enumerate(self._summaries):
            after.report(s, summary)
        self._draws = after  # for later batches; this one keeps the coordinator that drew it
        self._agree_on_scale()
        return draws, asked

    def _after(self, choices: dict[str, Any]) -> CoordinatorState:
        """The state of the coordinator after another draw."""
        state = self._draws.state()
        is_scheduled = choices.get("beta") is None
        return dataclasses.replace(state, samples=state.samples + 1, beta_step=state.beta_step + int(is_scheduled))

    @ray.method(max_task_retries=0)
    def end_ahead(self, loader: str) -> None:
        """Forgets a loader that was closed."""
        self._begun.pop(loader, None)

    def _begin(self, round: Round, n_step: int | None, is_stale: bool) -> _Asked:
        """Requests the transitions of a draw with replacement."""
        return self._ask_for_rows(
            "draw", round.shards, lambda place, summary: (round.units[place], n_step, summary, is_stale)
        )

    def _ask_for_rows(
        self, question: str, shards: Ids, given: Callable[[Ids, ShardSummary], tuple[Any, ...]]
    ) -> _Asked:
        """Requests the rows of a batch, without waiting.

        All shards are asked, since steps from writers are only added after a question.
        """
        places = _places(shards)
        questions = self._of_all(lambda s, summary: given(places.get(s, _NONE), summary))
        references, allowed = self._send(question, questions, "ask_for_rows")
        return _Asked(shards, places, references, self._lives.copy(), allowed)

    def _hear(self, asked: _Asked) -> dict[int, Any] | Exception:
        """The answers to a request, or the error that one of them is."""
        if asked.answers is None:
            try:
                references = {s: answer for s, (_, answer) in asked.references.items()}
                asked.answers = self._answers(references, asked.lives)
            except Exception as error:
                asked.answers = error
        return asked.answers

    def _arrived(self, asked: _Asked) -> dict[int, Any]:
        """The answers to a request, if every shard asked for rows has given one."""
        answers = self._hear(asked)
        if isinstance(answers, Exception):
            raise answers
        # Answers from a shard's earlier life are lost.
        return _all_of(asked.places, {s: answer for s, answer in answers.items() if self._lives[s] == asked.lives[s]})

    def _end(self, draws: per.Coordinator, asked: _Asked) -> Drawn:
        draws.submit(*_in_place(asked.places, self._arrived(asked)))
        return self._drawn(draws.finish(), asked)

    def _sample_distinct(self, round: Round | None, n_step: int | None) -> Drawn:
        while round is not None:
            places = _places(round.shards)
            found = self._ask("find", {s: (round.units[place], self._summaries[s]) for s, place in places.items()})
            round = self._draws.submit(*_in_place(places, _all_of(places, found)))
        batch, self._choices = self._draws.finish(), None
        shards, of_shards = self._draws.locate(batch.ids)
        asked = self._ask_for_rows("windows", shards, lambda place, summary: (of_shards[place], n_step, summary))
        self._arrived(asked)
        return self._drawn(batch, asked)

    def _drawn(self, batch: CoordinatedBatch, asked: _Asked) -> Drawn:
        rows = [(place, asked.references[s][0]) for s, place in asked.places.items()]
        return Drawn(self._of_the_whole(batch.ids, asked.shards), batch.weights, batch.probabilities, rows)

    def live(self) -> int:
        """Number of transitions that can be drawn, including those that writers have given."""
        self.refresh()
        return self._draws.state().live

    def stats(self) -> tuple[CoordinatorState, dict[int, tuple[per.Statistics, int, str]], dict[str, Any]]:
        """The state of the whole, the statistics of each present shard, and those of this coordination."""
        self._begin_call()
        answers = self._ask_all("stats")
        self._agree_on_scale()
        known = {"losses": self._losses, "outlived_updates": self._outlived, "gone": dict(self._reasons)}
        return self._draws.state(), answers, known

    # ------------------------------------------------------- checkpoints

    def _names(self, directory: str, number: int) -> list[str]:
        return [str(Path(directory) / f"shard-{s:05}.{number:09}.per") for s in range(len(self._shards))]

    def save(self, directory: str, manifest: dict[str, Any]) -> None:
        """Writes a checkpoint: files of all shards, then the manifest, which replaces the previous one."""
        self._begin_call()
        self._agree_on_scale()
        if self._reasons:
            s, reason = next(iter(self._reasons.items()))
            raise per.Busy(f"shard {s} is gone; a checkpoint is of all of them: save once it is back ({reason})")
        target = Path(directory)
        try:
            target.mkdir(parents=True, exist_ok=True)
            # Files of an incomplete save keep their number.
            there = [path.stem.rpartition(".")[2] for path in target.glob("shard-*.*.per")]
            number = max([self._saves, *(int(digits) for digits in there if digits.isdecimal())]) + 1
            names = self._names(directory, number)
            lives, state = self._lives.tolist(), dataclasses.asdict(self._draws.state())
            known = {"number": number, "lives": lives, "state": state, "limits": dataclasses.asdict(self._limits)}
            text = json.dumps({**manifest, "version": VERSION, **known})
            if len(self._ask("save", {s: (name,) for s, name in enumerate(names)}, is_limited=False)) < len(names):
                raise per.Busy("a shard died while it was saved; the checkpoint before this one stays")
            self._replace(target / MANIFEST, text)
            self._directory, self._saves = directory, number
            self._ask_all("summary")  # lets a restarted coordinator know of the checkpoint
            for path in target.glob("shard-*.per"):
                if str(path) not in names:
                    path.unlink(missing_ok=True)
        except per.Error:
            raise
        except OSError as error:
            raise io_error(f"{error.filename or directory}: {error.strerror}", error.errno, directory) from None
        self._agree_on_scale()

    def _replace(self, path: Path, text: str) -> None:
        """Replaces a file atomically. The new file is on the disk on return."""
        new = path.with_suffix(".new")
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
