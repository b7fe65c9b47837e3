"""Coordination: what draws from shards that are actors, in an actor of its own, which all learners share."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import ray

import per
from per.coordinator import CoordinatedBatch, CoordinatorState, Law, Round
from per.ray.shard import Gone

Ids = npt.NDArray[np.int64]
_T = TypeVar("_T")

MANIFEST = "coordinator.json"
VERSION = 1

# An id of the whole has the life of its shard above this many bits, so that no id is given twice: a shard that comes
# back from a checkpoint counts on from there, in its next life. In the first, 0, ids are those of one buffer.
LIFE_BITS = 48
_BELOW_LIFE = (1 << LIFE_BITS) - 1

_NONE = np.empty(0, np.int64)

# A loader that has asked for nothing for so many seconds may be of a process that was killed.
_FORGOTTEN_AFTER = 600.0


def get(reference: Any) -> Any:
    """What ray.get() gives; errors of this package as the actor raised them."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


class Drawn(NamedTuple):
    """A batch whose rows lie in the object store."""

    ids: Ids
    weights: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float32]
    rows: list[tuple[Ids, Any]]
    """of each shard that has some: their places in the batch, and what they are called in the store"""


class _Asked(NamedTuple):
    """A draw with replacement that is under way."""

    shards: Ids
    places: dict[int, Ids]
    """by shard"""
    references: dict[int, tuple[Any, Any]]
    """by shard: of the rows, and of their ids and masses"""
    lives: Ids


class _Changed(Exception):
    """A shard is not what it was when the draw began, or is gone: another draw is to be made."""


def _reason(error: Exception) -> str:
    """An error in one line; those of Ray have many."""
    return " ".join(str(error).split()) or type(error).__name__


def _places(shards: Ids) -> dict[int, Ids]:
    """Where each shard is named; -1 is none."""
    order = np.argsort(shards, kind="stable")
    numbers, firsts = np.unique(shards[order], return_index=True)
    return {int(s): place for s, place in zip(numbers, np.split(order, firsts)[1:], strict=True) if s >= 0}


def _all_of(places: dict[int, Ids], answers: dict[int, Any]) -> dict[int, Any]:
    """Answers, which all shards of a batch have to give."""
    if any(answers.get(s) is None for s in places):
        raise _Changed
    return answers


def _in_place(places: dict[int, Ids], found: dict[int, Ids]) -> Ids:
    """What shards found, one column a transition, in the order of the batch."""
    order = np.argsort(np.concatenate(list(places.values())))
    return np.concatenate([found[s] for s in places], axis=1)[:, order]


class Coordination:
    """Asks the shards for all that a buffer does. Its calls come one after the other.

    Arguments:
        shards: handles of actors.
        options: capacity, n_envs and what the law of draws needs.
        timeout: seconds that a shard has for an answer.
    """

    def __init__(self, shards: list[Any], options: dict[str, Any], timeout: float | None) -> None:
        self._shards, self._options, self._timeout = shards, options, timeout
        self._draws = self._new_draws()
        self._laws: list[Law | None] = [None] * len(shards)  # None: it is gone
        self._lives = np.zeros(len(shards), np.int64)
        self._coming: dict[int, Any] = {}  # what opens those that are gone
        self._reasons: dict[int, str] = {}  # why they are
        self._files: list[str] | None = None  # of the last checkpoint
        self._number = 0  # of that
        self._begun: dict[str, tuple[float, deque[Any]]] = {}  # by loader: when it last asked, and its batches ahead
        self._losses = self._outlived = 0

    def _new_draws(self) -> per.Coordinator:
        return per.Coordinator(n_shards=len(self._shards), **self._options)

    # ------------------------------------------------------------ asking

    def _send(self, question: str, given: dict[int, tuple[Any, ...]], call: str = "ask") -> dict[int, Any]:
        """Asks shards, and does not wait: what will be their answers."""
        largest = self._draws.state().max_priority
        return {
            s: getattr(self._shards[s], call).remote(int(self._lives[s]), largest, question, *each)
            for s, each in given.items()
        }

    def _ask(self, question: str, given: dict[int, tuple[Any, ...]], is_limited: bool = True) -> dict[int, Any]:
        """Asks shards, all at once. Those that do not answer are gone, and not in what is returned."""
        return self._answers(self._send(question, given), self._lives.copy(), is_limited)

    def _of_all(self, given: Callable[[int, Law], tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
        return {s: given(s, law) for s, law in enumerate(self._laws) if law is not None}

    def _ask_all(self, question: str, *given: Any) -> dict[int, Any]:
        return self._ask(question, self._of_all(lambda s, law: given))

    def _answers(self, references: dict[int, Any], lives: Ids, is_limited: bool = True) -> dict[int, Any]:
        """What shards answer that are still in the lives in which they were asked, all within one timeout."""
        answers, refused = {}, None
        timeout = self._timeout if is_limited else None
        asked = {s: reference for s, reference in references.items() if self._lives[s] == lives[s]}
        late = ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout)[1] if asked else []
        for s, reference in asked.items():
            try:
                if reference in late:
                    raise ray.exceptions.GetTimeoutError(f"no answer within {timeout} s")
                answer, law = get(reference)
            except (Gone, ray.exceptions.RayError) as error:
                self._lose(s, error)
            except Exception as error:  # the laws of the others are told first
                error.args = (f"shard {s}: {error}",)
                refused = refused or error
            else:
                answers[s] = answer
                self._tell(s, law)
        if refused is not None:
            raise refused
        return answers

    def _tell(self, s: int, law: Law | None) -> None:
        known = self._laws[s]
        if known is None or law is None or law.changes >= known.changes:
            self._laws[s] = law
            self._draws.tell(s, law)

    def _lose(self, s: int, error: Exception) -> None:
        self._losses += 1
        self._lives[s] += 1
        self._tell(s, None)
        self._open(s, _reason(error), cuts=True)

    def _open(self, s: int, reason: str, cuts: bool) -> None:
        path = None if self._files is None else self._files[s]
        self._coming[s] = self._shards[s].open.remote(int(self._lives[s]), path, cuts)
        self._reasons[s] = reason

    def _begin_call(self, raises: bool = False) -> None:
        """Takes in shards that have come back, or are there for the first time; lets go what nobody asks for."""
        for s, reference in list(self._coming.items()):
            if not ray.wait([reference], timeout=0)[0]:
                continue
            try:
                self._tell(s, get(reference))
                del self._coming[s], self._reasons[s]
            except Exception as error:  # it died again, or its file cannot be read now
                self._open(s, _reason(error), cuts=True)
                if raises:
                    raise
        oldest = time.monotonic() - _FORGOTTEN_AFTER
        self._begun = {loader: ahead for loader, ahead in self._begun.items() if ahead[0] > oldest}

    def _settle(self) -> None:
        asked = self._draws.settle()
        while asked is not None:
            self._ask_all("measure" if asked.todo == "measure" else "set_scale", asked.scale)
            asked = self._draws.settle()

    # ------------------------------------------------------------- calls

    def open(self, least: int, manifest: dict[str, Any] | None, directory: str) -> None:
        """Opens all shards, anew or from a checkpoint, and waits for so many of them. One that cannot is an error."""
        if manifest is not None:
            self._number, self._lives = manifest["number"], np.array(manifest["lives"], np.int64)
            self._files = self._names(directory, self._number)
            self._draws.restore(CoordinatorState(**manifest["state"]))
        for s in range(len(self._shards)):
            self._draws.tell(s, None)
            self._open(s, "it has not been placed yet", cuts=False)
        self._begin_call(raises=True)
        while len(self._shards) - len(self._coming) < least:
            ray.wait(list(self._coming.values()))
            self._begin_call(raises=True)
        self._settle()

    def refresh(self) -> None:
        """Takes in what writers have given to the shards."""
        self._begin_call()
        self._ask_all("law")
        self._settle()

    def add(self, is_extend: bool, parts: dict[int, dict[str, Any]]) -> dict[int, Ids]:
        """Adds steps of shards. Returns the ids of those that were added."""
        self._begin_call()
        there = {s: (is_extend, steps) for s, steps in parts.items() if self._laws[s] is not None}
        answers = self._ask("add", there)
        added = {
            s: self._of_the_whole(self._draws.ids(s, ids.ravel()), s).reshape(ids.shape) for s, ids in answers.items()
        }
        self._settle()  # in which a shard may be lost, and begin its next life
        return added

    def _of_the_whole(self, ids: Ids, shards: Any) -> Ids:
        return np.where(ids < 0, ids, ids | self._lives[shards] << LIFE_BITS)

    def update(self, ids: Ids, name: str, values: Any, axis: int) -> None:
        """Sets priorities. What was drawn in an earlier life of its shard is left out, and counted."""
        self._begin_call()
        shards, of_shards = self._draws.locate(np.where(ids < 0, ids, ids & _BELOW_LIFE))
        is_there = np.array([law is not None for law in self._laws])
        is_known = (ids >= 0) & is_there[shards] & (ids >> LIFE_BITS == self._lives[shards])
        self._outlived += int(np.count_nonzero((ids >= 0) & ~is_known))
        places = _places(np.where(is_known, shards, -1))
        given = {s: (of_shards[place], name, values.take(place, axis)) for s, place in places.items()}
        try:
            self._ask("update", given)
        finally:
            self._settle()

    def _with_what_waits(self, draw: Callable[[], _T]) -> _T:
        """What draws, and if it cannot, once more with what writers have given, which may be all that there is."""
        try:
            return draw()
        except (per.Empty, per.InvalidArgument):
            self.refresh()
            return draw()

    def sample(self, batch_size: int, n_step: int | None, choices: dict[str, Any]) -> Drawn:
        """Draws a batch as one buffer would."""
        return self._with_what_waits(lambda: self._sample(batch_size, n_step, choices))

    def _sample(self, batch_size: int, n_step: int | None, choices: dict[str, Any]) -> Drawn:
        scheme = choices.get("scheme") or self._options["scheme"]
        while True:
            self._begin_call()
            self._settle()
            round = self._draws.draw(batch_size, **choices)
            try:
                if scheme == "without_replacement":
                    return self._sample_distinct(round, n_step)
                return self._end(self._draws, self._begin(round, n_step, is_stale=False))
            except _Changed:
                pass

    def sample_ahead(
        self, loader: str, ahead: int, batch_size: int, n_step: int | None, choices: dict[str, Any]
    ) -> Drawn:
        """The oldest of `ahead` batches that are on their way to this loader, and begins another one.

        Each is drawn by what is known when it begins. What the shards are when they answer goes into its probabilities.
        """
        begun = self._begun.get(loader, (0.0, deque[Any]()))[1]
        self._begun[loader] = time.monotonic(), begun
        while len(begun) < ahead:
            begun.append(self._with_what_waits(lambda: self._begin_ahead(batch_size, n_step, choices)))
        try:
            return self._end(*begun.popleft())
        except _Changed:
            return self.sample(batch_size, n_step, choices)

    def _begin_ahead(
        self, batch_size: int, n_step: int | None, choices: dict[str, Any]
    ) -> tuple[per.Coordinator, _Asked]:
        self._begin_call()
        self._settle()
        round = self._draws.draw(batch_size, **choices)
        draws, asked = self._draws, self._begin(round, n_step, is_stale=True)
        self._draws = self._after(draws.state(), is_scheduled=choices.get("beta") is None)
        self._settle()
        return draws, asked

    def _after(self, state: CoordinatorState, is_scheduled: bool) -> per.Coordinator:
        """A coordinator for the batches after one that is under way, which keeps the one that has drawn it."""
        draws = self._new_draws()
        draws.restore(
            dataclasses.replace(state, samples=state.samples + 1, beta_step=state.beta_step + int(is_scheduled))
        )
        for s, law in enumerate(self._laws):
            draws.tell(s, law)
        return draws

    def end_ahead(self, loader: str) -> None:
        """The loader is closed."""
        self._begun.pop(loader, None)

    def _begin(self, round: Round, n_step: int | None, is_stale: bool) -> _Asked:
        """Asks for the transitions of a draw with replacement."""
        return self._ask_for_rows("draw", round.shards, lambda place, law: (round.units[place], n_step, law, is_stale))

    def _ask_for_rows(self, question: str, shards: Ids, given: Callable[[Ids, Law], tuple[Any, ...]]) -> _Asked:
        """Asks for the rows of a batch, and does not wait.

        All shards are asked, since what writers gave them waits for a question.
        """
        places = _places(shards)
        questions = self._of_all(lambda s, law: given(places.get(s, _NONE), law))
        return _Asked(shards, places, self._send(question, questions, "ask_for_rows"), self._lives.copy())

    def _arrived(self, asked: _Asked) -> dict[int, Any]:
        """The answers to that, if all that were asked for rows have them."""
        return _all_of(asked.places, self._answers({s: law for s, (_, law) in asked.references.items()}, asked.lives))

    def _end(self, draws: per.Coordinator, asked: _Asked) -> Drawn:
        draws.found(*_in_place(asked.places, self._arrived(asked)))
        return self._drawn(draws.finish(), asked)

    def _sample_distinct(self, round: Round | None, n_step: int | None) -> Drawn:
        while round is not None:
            places = _places(round.shards)
            found = self._ask("find", {s: (round.units[place], self._laws[s]) for s, place in places.items()})
            round = self._draws.found(*_in_place(places, _all_of(places, found)))
        batch = self._draws.finish()
        shards, of_shards = self._draws.locate(batch.ids)
        asked = self._ask_for_rows("windows", shards, lambda place, law: (of_shards[place], n_step, law))
        self._arrived(asked)
        return self._drawn(batch, asked)

    def _drawn(self, batch: CoordinatedBatch, asked: _Asked) -> Drawn:
        rows = [(place, asked.references[s][0]) for s, place in asked.places.items()]
        return Drawn(self._of_the_whole(batch.ids, asked.shards), batch.weights, batch.probabilities, rows)

    def live(self) -> int:
        """Transitions that can be drawn, with what writers have given."""
        self.refresh()
        return self._draws.state().live

    def stats(self) -> tuple[CoordinatorState, dict[int, tuple[per.Statistics, int, str]], dict[str, Any]]:
        """What is known of the whole, what each shard that is there says, and what this coordination knows."""
        self._begin_call()
        answers = self._ask_all("stats")
        self._settle()
        known = {"losses": self._losses, "outlived_updates": self._outlived, "gone": dict(self._reasons)}
        return self._draws.state(), answers, known

    # ------------------------------------------------------- checkpoints

    def _names(self, directory: str, number: int) -> list[str]:
        return [str(Path(directory) / f"shard-{s:05}.{number:09}.per") for s in range(len(self._shards))]

    def save(self, directory: str, manifest: dict[str, Any]) -> None:
        """Writes a checkpoint: files of all shards, then the one that names them, in place of that before."""
        self._begin_call()
        self._settle()
        if self._reasons:
            s, reason = next(iter(self._reasons.items()))
            raise per.Busy(f"shard {s} is gone; a checkpoint is of all of them: save once it is back ({reason})")
        target = Path(directory)
        try:
            target.mkdir(parents=True, exist_ok=True)
            # Files of a save that was not completed keep their number.
            there = [path.stem.rpartition(".")[2] for path in target.glob("shard-*.*.per")]
            number = max([self._number, *(int(digits) for digits in there if digits.isdecimal())]) + 1
            names = self._names(directory, number)
            lives, state = self._lives.tolist(), dataclasses.asdict(self._draws.state())
            text = json.dumps({**manifest, "version": VERSION, "number": number, "lives": lives, "state": state})
            if len(self._ask("save", {s: (name,) for s, name in enumerate(names)}, is_limited=False)) < len(names):
                raise per.Busy("a shard died while it was saved; the checkpoint before this one stays")
            self._replace(target / MANIFEST, text)
            self._number, self._files = number, names
            for path in target.glob("shard-*.per"):
                if str(path) not in names:
                    path.unlink(missing_ok=True)
        except per.Error:
            raise
        except OSError as error:
            raise per.IoError(f"{error.filename or directory}: {error.strerror}") from None
        self._settle()

    def _replace(self, path: Path, text: str) -> None:
        """Replaces a file by another one, which is on disk when this returns."""
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
