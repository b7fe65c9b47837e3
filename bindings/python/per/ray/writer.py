"""Steps: validates steps before they are sent. Writer: sends steps directly to a shard."""

from __future__ import annotations

import contextlib
import itertools
import math
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

import per
from per import _arrays, _options, final_observations, ragged
from per._errors import InvalidArgument
from per.ray.coordination import Drawn, get, once_allowed
from per.ray.limits import OPTIONS as LIMITS
from per.ray.limits import Limits
from per.ray.shard import MAX_WAITING, Heard
from per.typing import ArrayLike, IntArrayLike

Arrays = dict[str, npt.NDArray[Any]]
Ids = npt.NDArray[np.int64]

# Limit on a writer's calls in flight; under a rate limiter, also on its calls that wait at the shard.
_CALLS_SENT = 8

# Seconds between two polls of whether a shard has room, if it holds steps for many draws.
_LONGEST_PAUSE = 0.5


class Steps:
    """A small buffer with the options of the large one, which validates arrays and raises the errors for them."""

    def __init__(self, options: dict[str, Any], n_envs: int) -> None:
        small = {name: value for name, value in options.items() if name not in ("capacity", "device", "arrays")}
        small |= {"n_envs": n_envs, "overwrite": True, "on_gap": "cut"}
        transitions = 2 * max(_options.whole("n_envs", n_envs), 1)
        capacity = per.ReplayBuffer.capacity_for(transitions, **small)  # also validates the limits
        self._buffer = per.ReplayBuffer(capacity, **{n: value for n, value in small.items() if n not in LIMITS})
        self._buffer._diagnostics.looks_at_lengths = False  # of runs that the shards have room for

    @property
    def options(self) -> per.typing.AllOptions:
        """All options of the small buffer."""
        return self._buffer.options

    def look(self, is_extend: bool, steps: dict[str, Any]) -> tuple[Arrays, tuple[int, ...]]:
        """Steps as numpy arrays by full name, and the shape of their ids. Rows of any length are arrays of objects."""
        buffer, value_shapes = self._buffer, self._buffer._layout.value_shapes
        ids = buffer.extend(**steps) if is_extend else buffer.add(**steps)
        buffer.clear()
        given = {name: value for name, value in buffer._flat(steps).items() if value is not None and name != "stream"}
        info: Any = given.pop("info", None)
        if info is not None and (key := final_observations.key_in(info, buffer._autoreset)) is not None:
            flags = given.get("terminated"), given.get("truncated")
            given, known = final_observations.insert(key, info, given, None, buffer._inputs, *flags, value_shapes)
            given["next_mask"] = known
        rows = ids.shape if is_extend else ids.shape[-1:]  # lists of rows have no axis of one step
        return {
            name: _rows(value, name, rows, value_shapes[name]) if name in value_shapes else _as_numpy(value, name)
            for name, value in given.items()
        }, ids.shape

    def look_at_update(
        self, ids: IntArrayLike, td_errors: ArrayLike | None, priorities: ArrayLike | None
    ) -> tuple[Any, str, Any]:
        """The ids of an update, which of the two arguments was given, and its values.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from batches.
        td_errors : ArrayLike or None
            float32[n] of any sign.
        priorities : ArrayLike or None
            float32[n], >= 0, in place of td_errors.
        """
        whole = _arrays.as_ids(ids)
        nothing = np.minimum(whole, -1)
        self._buffer.update_priorities(nothing, td_errors, priorities=priorities)
        name = "priorities" if td_errors is None else "td_errors"
        values = _as_numpy(priorities if td_errors is None else td_errors, name)
        if name == "priorities" or self._buffer._steps == 0:  # otherwise [n, T] or [n_critics, n, T]
            values = values.reshape(-1 if values.size == whole.size else (len(values), -1))
        return whole.reshape(-1), name, values

    def look_at_draw(self, batch_size: int, choices: dict[str, Any]) -> None:
        """Raises the errors of a buffer for arguments of sample(), except Empty."""
        with contextlib.suppress(per.Empty):
            self._buffer.sample(batch_size, **choices)

    def batch(self, drawn: Drawn, rows: list[Arrays]) -> per.Batch:
        """A batch whose rows are copied once: from the object store to their places."""
        of_whole = {"ids": drawn.ids, "weights": drawn.weights, "probabilities": drawn.probabilities}
        arrays: Arrays = {}
        for output in self._buffer._layout.batch:
            array: Any = of_whole.get(output.name)
            if array is None:
                parts: list[tuple[Ids, Any]] = [
                    (place, part[output.name]) for (place, _), part in zip(drawn.rows, rows, strict=True)
                ]
                array = (_joined if output.value_shape is None else _joined_rows)(parts, len(drawn.ids))
            arrays[output.name] = array
        return self._buffer._new_batch(arrays)


def _joined(parts: list[tuple[Ids, Any]], n: int) -> npt.NDArray[Any]:
    """An array of n rows, of which each part has those at its places."""
    array = np.empty((n, *parts[0][1].shape[1:]), parts[0][1].dtype)
    for place, part in parts:
        array[place] = part
    return array


def _joined_rows(parts: list[tuple[Ids, per.Ragged[Any]]], n: int) -> per.Ragged[Any]:
    """The same for rows of any length."""
    first = parts[0][1]
    ends = _joined([(place, np.add.accumulate(part.lengths.reshape(len(part), -1), 1)) for place, part in parts], n)
    before = np.concatenate([[0], np.cumsum(ends[:, -1])])
    offsets = np.concatenate([[0], (ends + before[:-1, None]).ravel()])
    values = np.empty((before[-1], *first.values.shape[1:]), first.values.dtype)
    for place, part in parts:
        for i, p in enumerate(place):
            values[before[p] : before[p + 1]] = part[i].values if len(part.shape) > 1 else part[i]
    return per.Ragged(values, offsets, (n, *first.shape[1:]))


def _rows(source: object, name: str, shape: tuple[int, ...], value_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Rows of any length as an array of objects of that shape, one a row."""
    values, offsets = ragged.packed(source, name, shape or (1,), value_shape)
    array, rows = _as_numpy(values, name), np.empty(offsets.size - 1, object)
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        rows[i] = array[begin:end]
    return rows.reshape(shape)


def n_bytes(array: npt.NDArray[Any]) -> int:
    """The bytes of an array as look() gives it."""
    return sum(map(n_bytes, array.flat)) if array.dtype == object else array.nbytes


def n_steps(arrays: Arrays, shape: tuple[int, ...]) -> int:
    """Number of steps in arrays whose ids have this shape, not counting masked ones."""
    mask = arrays.get("mask")
    if mask is None:
        return math.prod(shape)
    is_whole = np.size(mask) == math.prod(shape)  # perhaps with axes of 1
    return int(np.count_nonzero(mask if is_whole else np.broadcast_to(mask, shape)))


def _as_numpy(source: object, name: str) -> npt.NDArray[Any]:
    array, code = _arrays.as_array(source, name)
    return _arrays.as_float(source, name) if code == _arrays.BFLOAT16 else array


class Writer:
    """A handle that writes steps of some environments of one shard; from ReplayBuffer.writer().

    Steps go directly to the shard. Calls do not wait for it, except that only a few are in flight at a time. Refusals
    by the shard, and losses when it dies, are known some calls later, or after flush().

    Attributes
    ----------
    lost
        Calls not known to be in the buffer when their shard died or did not answer.
    refused
        Calls that the shard refused, for example because a lane was full.
    refusal
        The reason for the first refusal; "" if there was none.
    """

    def __init__(self, options: dict[str, Any], shard: Any, coordinator: Any, envs: Any) -> None:
        self._given = options, shard, coordinator, envs
        self._most_steps = Limits(**{name: options[name] for name in LIMITS}).most_steps
        self._shard, self._coordinator, self._envs = shard, coordinator, envs
        self._steps = Steps(options, len(envs))
        self._name, self._start = uuid.uuid4().hex, ""
        self._sent: deque[Any] = deque()
        self._waiting: deque[int] = deque()  # numbers of calls that the shard has, but has not yet added to the buffer
        self.lost = self.refused = 0
        self.refusal = ""

    def add(self, **steps: Any) -> None:
        """Writes one step of each environment, in the form of per.ReplayBuffer.add(); without env_ids."""
        self._write(False, steps)

    def extend(self, **steps: Any) -> None:
        """Writes K consecutive steps, in the form of per.ReplayBuffer.extend(); without env_ids."""
        self._write(True, steps)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything written is in the buffer, refused or lost.

        This may include waiting for draws that the rate limiter requires: they must come from another process or
        thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for draws; None: no limit.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        Busy
            Calls wait at a shard that is gone.
        """
        while self._sent:
            self._hear_of_oldest()
        once_allowed(lambda: self._take_in(0), timeout)
        if self._waiting:
            waiting = len(self._waiting)
            raise per.Busy(f"{waiting} calls wait at a shard that is gone, until it is back; stats().gone says why")

    def _write(self, is_extend: bool, steps: dict[str, Any]) -> None:
        if steps.get("env_ids") is not None:
            raise InvalidArgument("env_ids is given; a writer has those that it was made for")
        arrays, shape = self._steps.look(is_extend, steps)
        for part, part_shape in self._parts(is_extend, arrays, shape):
            given = {**part, "env_ids": self._envs}
            self._sent.append(self._shard.write.remote(self._name, is_extend, given, n_steps(part, part_shape)))
            while len(self._sent) > _CALLS_SENT:
                self._wait_for_room(self._hear_of_oldest())

    def _parts(
        self, is_extend: bool, arrays: Arrays, shape: tuple[int, ...]
    ) -> Iterator[tuple[Arrays, tuple[int, ...]]]:
        """Splits steps into calls that the rate limiter can allow."""
        if not is_extend or self._most_steps == 0:
            yield arrays, shape
            return
        most = max(self._most_steps // max(math.prod(shape[1:]), 1), 1)
        for first in range(0, shape[0], most):
            part = {name: array[first : first + most] if array.ndim else array for name, array in arrays.items()}
            yield part, (min(most, shape[0] - first), *shape[1:])

    def _wait_for_room(self, heard: Heard | None) -> None:
        """Makes the shard add waiting calls if there are many, and waits if draws have to come first."""
        if heard is None:
            return
        if heard.is_limited and len(self._waiting) > _CALLS_SENT:
            once_allowed(lambda: self._take_in(_CALLS_SENT), longest_pause=_LONGEST_PAUSE)
        elif not heard.is_limited and heard.number and heard.waiting >= MAX_WAITING:
            get(self._coordinator.refresh.remote())

    def _take_in(self, most: int) -> None:
        """Makes the shard add waiting calls. Raises Busy while more than `most` calls wait for draws."""
        get(self._coordinator.refresh.remote())
        with contextlib.suppress(ray.exceptions.RayError):
            heard = get(self._shard.hear.remote(self._name))
            self._hear(heard)
            if heard.is_limited and len(self._waiting) > most:
                raise per.Busy(f"{len(self._waiting)} calls wait for draws, which the rate limiter asks for")

    def _hear_of_oldest(self) -> Heard | None:
        try:
            heard: Heard = get(self._sent.popleft())
        except ray.exceptions.RayError:
            self.lost += 1
            return None
        self._hear(heard)
        return heard

    def _hear(self, heard: Heard) -> None:
        if heard.start != self._start:
            self._start, self.lost = heard.start, self.lost + len(self._waiting)
            self._waiting.clear()
        if heard.number:
            self._waiting.append(heard.number)
        while self._waiting and self._waiting[0] <= heard.taken:
            self._waiting.popleft()
        self.refused, self.refusal = self.refused + heard.refused, self.refusal or heard.refusal

    def __reduce__(self) -> tuple[Any, ...]:
        return Writer, self._given
