"""Coordination: what draws from shards that are actors, in an actor of its own, which all learners share."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray

import per
from per.coordinator import CoordinatedBatch, CoordinatorState, Law, Round
from per.ray.shard import Gone

Ids = npt.NDArray[np.int64]

MANIFEST = "coordinator.json"

# An id of the whole has the life of its shard above this many bits, so that no id is given twice: a shard that comes
# back from a checkpoint counts on from there, in its next life. In the first, 0, ids are those of one buffer.
LIFE_BITS = 48
_BELOW_LIFE = (1 << LIFE_BITS) - 1

_NONE = np.empty(0, np.int64)

# Options of draws whose law needs more than the total mass of each shard.
_NOT_AHEAD = {"scheme": "without_replacement", "prioritization": "uniform", "normalize_weights": "buffer_max"}

_LOST = (Gone, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, ray.exceptions.OutOfMemoryError)


def get(reference: Any, timeout: float | None = None) -> Any:
    """What ray.get() gives; errors of this package as the actor raised them."""
    try:
        return ray.get(reference, timeout=timeout)
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
        self._files: list[str] | None = None  # of the last checkpoint
        self._number = 0  # of that
        self._begun: dict[Any, deque[Any]] = {}  # batches ahead, by who asked for them
        self._losses = self._outlived = 0

    def _new_draws(self) -> per.Coordinator:
        return per.Coordinator(n_shards=len(self._shards), **self._options)

    # ------------------------------------------------------------ asking

    def _ask(self, question: str, given: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Asks shards, all at once. Those that do not answer are gone, and not in what is returned."""
        largest = self._draws.state().max_priority
        asked = {
            s: self._shards[s].ask.remote(int(self._lives[s]), largest, question, *each) for s, each in given.items()
        }
        return self._answers(asked, self._lives.copy())

    def _ask_all(self, question: str, *given: Any) -> dict[int, Any]:
        return self._ask(question, {s: given for s, law in enumerate(self._laws) if law is not None})

    def _ask_for_rows(self, question: str, given: Callable[[int, Law], tuple[Any, ...]]) -> dict[int, tuple[Any, Any]]:
        """Asks for rows, and does not wait: what they are called in the object store, and what will be the answer.

        All shards are asked, since what writers gave them waits for a question.
        """
        largest = self._draws.state().max_priority
        return {
            s: self._shards[s].ask_for_rows.remote(int(self._lives[s]), largest, question, *given(s, law))
            for s, law in enumerate(self._laws)
            if law is not None
        }

    def _answers(self, references: dict[int, Any], lives: Ids) -> dict[int, Any]:
        """What shards answer that are still in the lives in which they were asked."""
        answers, error = {}, None
        for s, reference in references.items():
            try:
                answer, law = get(reference, timeout=self._timeout)
            except _LOST:
                if self._lives[s] == lives[s]:
                    self._lose(s)
            except per.Error as refused:
                error = error or refused
            else:
                if self._lives[s] == lives[s]:
                    answers[s] = answer
                    self._tell(s, law)
        if error is not None:
            raise error
        return answers

    def _tell(self, s: int, law: Law | None) -> None:
        known = self._laws[s]
        if known is None or law is None or law.changes >= known.changes:
            self._laws[s] = law
            self._draws.tell(s, law)

    def _lose(self, s: int) -> None:
        self._losses += 1
        self._lives[s] += 1
        self._tell(s, None)
        self._open(s, cuts=True)

    def _open(self, s: int, cuts: bool) -> None:
        path = None if self._files is None else self._files[s]
        self._coming[s] = self._shards[s].open.remote(int(self._lives[s]), path, cuts)

    def _take_back(self) -> None:
        """Those that have come back, or are there for the first time."""
        for s, reference in list(self._coming.items()):
            if not ray.wait([reference], timeout=0)[0]:
                continue
            del self._coming[s]
            try:
                self._tell(s, get(reference))
            except (*_LOST, per.Error):  # it died again, or its file cannot be read now
                self._open(s, cuts=True)

    def _settle(self) -> None:
        asked = self._draws.settle()
        while asked is not None:
            self._ask_all("measure" if asked.todo == "measure" else "set_scale", asked.scale)
            asked = self._draws.settle()

    # ------------------------------------------------------------- calls

    def open(self, least: int, manifest: dict[str, Any] | None, directory: str) -> None:
        """Opens all shards, anew or from a checkpoint, and waits for so many of them."""
        if manifest is not None:
            self._number, self._lives = manifest["number"], np.array(manifest["lives"], np.int64)
            self._files = self._names(directory)
            self._draws.restore(CoordinatorState(**manifest["state"]))
        for s in range(len(self._shards)):
            self._draws.tell(s, None)
            self._open(s, cuts=False)
        if 0 < least < len(self._shards):
            ray.wait(list(self._coming.values()), num_returns=least)
        if least == len(self._shards):
            for reference in self._coming.values():
                get(reference)
        self._take_back()
        self._settle()

    def refresh(self) -> None:
        """Takes in what writers have given to the shards."""
        self._take_back()
        self._ask_all("law")
        self._settle()

    def add(self, is_extend: bool, parts: dict[int, dict[str, Any]]) -> dict[int, Ids]:
        """Adds steps of shards. Returns the ids of those that were added."""
        self._take_back()
        there = {s: (is_extend, steps) for s, steps in parts.items() if self._laws[s] is not None}
        answers = self._ask("add", there)
        self._settle()
        return {
            s: self._of_the_whole(self._draws.ids(s, ids.ravel()), s).reshape(ids.shape) for s, ids in answers.items()
        }

    def _of_the_whole(self, ids: Ids, shards: Any) -> Ids:
        return np.where(ids < 0, ids, ids | self._lives[shards] << LIFE_BITS)

    def update(self, ids: Ids, name: str, values: Any, axis: int) -> None:
        """Sets priorities. What was drawn in an earlier life of its shard is left out, and counted."""
        self._take_back()
        shards, of_shards = self._draws.locate(np.where(ids < 0, ids, ids & _BELOW_LIFE))
        is_there = np.array([law is not None for law in self._laws])
        is_known = (ids >= 0) & is_there[shards] & (ids >> LIFE_BITS == self._lives[shards])
        self._outlived += int(np.count_nonzero((ids >= 0) & ~is_known))
        places = self._places(np.where(is_known, shards, -1))
        given = {s: (of_shards[place], name, values.take(place, axis)) for s, place in places.items()}
        try:
            self._ask("update", given)
        finally:
            self._settle()

    def sample(self, batch_size: int, n_step: int | None, choices: dict[str, Any]) -> Drawn:
        """Draws a batch as one buffer would."""
        is_refreshed = False
        while True:
            self._take_back()
            try:
                self._settle()
                round = self._draws.draw(batch_size, **choices)
                if self._choice("scheme", choices) == "without_replacement":
                    return self._sample_distinct(round, n_step)
                return self._end(self._draws, self._begin(round, n_step, is_stale=False))
            except per.Empty:
                if is_refreshed:
                    raise
                self.refresh()  # what writers have given may be all that there is
                is_refreshed = True
            except _Changed:
                pass

    def sample_ahead(
        self, loader: str, ahead: int, batch_size: int, n_step: int | None, choices: dict[str, Any]
    ) -> Drawn:
        """The oldest of `ahead` batches that are on their way to this loader, and begins another one.

        Each is drawn by what is known when it begins. What the shards are when they answer goes into its probabilities.
        """
        for name, value in _NOT_AHEAD.items():
            if self._choice(name, choices) == value:
                raise per.Unsupported(f"{name} is {value!r}: shards that draw ahead do not know it of each other")
        if self._choice("uniform_fraction", choices):
            raise per.Unsupported("uniform_fraction is not 0: shards that draw ahead draw by priority only")
        begun = self._begun.setdefault(loader, deque())
        while len(begun) < ahead:
            self._take_back()
            self._settle()
            round = self._draws.draw(batch_size, **choices)
            begun.append((self._draws, self._begin(round, n_step, is_stale=True)))
            self._draws = self._after(self._draws.state(), is_scheduled=choices.get("beta") is None)
            self._settle()
        try:
            return self._end(*begun.popleft())
        except _Changed:
            return self.sample(batch_size, n_step, choices)

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

    def _choice(self, name: str, choices: dict[str, Any]) -> Any:
        """An option of a draw: that of the batch, or of the buffer."""
        return self._options.get(name) if choices.get(name) is None else choices[name]

    def _begin(self, round: Round, n_step: int | None, is_stale: bool) -> _Asked:
        """Asks for the transitions of a draw with replacement."""
        places = self._places(round.shards)
        return _Asked(
            round.shards,
            places,
            self._ask_for_rows("draw", lambda s, law: (round.units[places.get(s, _NONE)], n_step, law, is_stale)),
            self._lives.copy(),
        )

    def _end(self, draws: per.Coordinator, asked: _Asked) -> Drawn:
        answers = self._answers({s: answer for s, (_, answer) in asked.references.items()}, asked.lives)
        found = np.empty((2, asked.shards.size), np.int64)
        for s, place in asked.places.items():
            if answers.get(s) is None:
                raise _Changed
            found[:, place] = answers[s]
        draws.found(*found)
        return self._drawn(draws.finish(), asked)

    def _sample_distinct(self, round: Round | None, n_step: int | None) -> Drawn:
        while round is not None:
            places = self._places(round.shards)
            answers = self._ask("find", {s: (round.units[place], self._laws[s]) for s, place in places.items()})
            found = np.empty((3, round.units.size), np.int64)
            for s, place in places.items():
                if answers.get(s) is None:
                    raise _Changed
                found[:, place] = answers[s]
            round = self._draws.found(*found)
        batch = self._draws.finish()
        shards, of_shards = self._draws.locate(batch.ids)
        places = self._places(shards)
        references = self._ask_for_rows("windows", lambda s, law: (of_shards[places.get(s, _NONE)], n_step, law))
        asked = _Asked(shards, places, references, self._lives.copy())
        answers = self._answers({s: answer for s, (_, answer) in references.items()}, asked.lives)
        if any(answers.get(s) is None for s in places):
            raise _Changed
        return self._drawn(batch, asked)

    def _drawn(self, batch: CoordinatedBatch, asked: _Asked) -> Drawn:
        rows = [(place, asked.references[s][0]) for s, place in asked.places.items()]
        return Drawn(self._of_the_whole(batch.ids, asked.shards), batch.weights, batch.probabilities, rows)

    def _places(self, shards: Ids) -> dict[int, Ids]:
        """Where each shard is named; -1 is none."""
        order = np.argsort(shards, kind="stable")
        numbers, firsts = np.unique(shards[order], return_index=True)
        return {int(s): place for s, place in zip(numbers, np.split(order, firsts[1:]), strict=True) if s >= 0}

    def live(self) -> int:
        """Transitions that can be drawn."""
        return self._draws.state().live

    def stats(self) -> tuple[CoordinatorState, dict[int, tuple[per.Statistics, int]], int, int]:
        """What is known of the whole, the statistics of each shard that is there, losses and outlived updates."""
        self._take_back()
        answers = self._ask_all("stats")
        self._settle()
        return self._draws.state(), answers, self._losses, self._outlived

    # ------------------------------------------------------- checkpoints

    def _names(self, directory: str) -> list[str]:
        return [str(Path(directory) / f"shard-{s:05}.{self._number:09}.per") for s in range(len(self._shards))]

    def save(self, directory: str, manifest: dict[str, Any]) -> None:
        """Writes a checkpoint: files of all shards, then the one that names them, in place of that before."""
        self._take_back()
        gone = [s for s, law in enumerate(self._laws) if law is None]
        if gone:
            raise per.Busy(f"shard {gone[0]} is gone; a checkpoint is of all of them: save once it is back")
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        old = json.loads((target / MANIFEST).read_text())["number"] if (target / MANIFEST).exists() else 0
        before, self._number = (self._number, self._files), max(old, self._number) + 1
        try:
            self._settle()
            manifest = {
                **manifest,
                "number": self._number,
                "lives": self._lives.tolist(),
                "state": dataclasses.asdict(self._draws.state()),
            }
            names = self._names(directory)
            timeout, self._timeout = self._timeout, None
            try:
                answers = self._ask("save", {s: (name,) for s, name in enumerate(names)})
            finally:
                self._timeout = timeout
            if len(answers) < len(names):
                raise per.Busy("a shard died while it was saved; the checkpoint of before stays")
        except BaseException:
            self._number, self._files = before
            raise
        text = target / f"{MANIFEST}.{self._number:09}"
        with text.open("w") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        text.replace(target / MANIFEST)
        self._files = names
        for path in target.glob("shard-*.per"):
            if str(path) not in names:
                path.unlink(missing_ok=True)
        self._settle()
