"""Steps: looks at what is given before it is sent. Writer: sends steps straight to a shard."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

import per
from per import _arrays, _options, final_observations
from per._errors import InvalidArgument
from per.ray.coordination import Drawn, get

Arrays = dict[str, npt.NDArray[Any]]

# Calls of a writer that are on their way, and calls that wait at a shard before their writer sees to it that they are
# taken in.
_CALLS_SENT = 8
_CALLS_WAITING = 64


class Steps:
    """A small buffer with the options of the large one: what is wrong with arrays is its error, in its words."""

    def __init__(self, options: dict[str, Any], n_envs: int) -> None:
        small = {name: value for name, value in options.items() if name not in ("capacity", "device", "arrays")}
        small |= {"n_envs": n_envs, "overwrite": True, "on_gap": "cut"}
        transitions = 2 * max(_options.whole("n_envs", n_envs), 1)
        self._buffer = per.ReplayBuffer(per.ReplayBuffer.capacity_for(transitions, **small), **small)

    @property
    def options(self) -> dict[str, Any]:
        """All options of the small buffer."""
        return self._buffer.options

    def look(self, is_extend: bool, steps: dict[str, Any]) -> tuple[Arrays, tuple[int, ...]]:
        """Steps as numpy arrays by full names, and the shape of their ids."""
        buffer = self._buffer
        ids = buffer.extend(**steps) if is_extend else buffer.add(**steps)
        given = {name: value for name, value in buffer._flat(steps).items() if value is not None and name != "stream"}
        info: Any = given.pop("info", None)
        if info is not None and (key := final_observations.key_in(info, buffer._autoreset)) is not None:
            flags = given.get("terminated"), given.get("truncated")
            given, known = final_observations.insert(key, info, given, None, buffer._inputs, *flags)
            given["next_mask"] = known
        return {name: _as_numpy(value, name) for name, value in given.items()}, ids.shape

    def look_at_update(self, ids: object, td_errors: object, priorities: object) -> tuple[Any, str, Any]:
        """Ids of an update, which of the two is given, and its values."""
        whole = _arrays.as_ids(ids)
        nothing = np.minimum(whole, -1)
        self._buffer.update_priorities(nothing, td_errors, priorities=priorities)
        name = "priorities" if td_errors is None else "td_errors"
        return whole, name, _as_numpy(priorities if td_errors is None else td_errors, name)

    def batch(self, drawn: Drawn, rows: list[Arrays]) -> per.Batch:
        """A batch, of rows that are copied once: from the object store to their places."""
        of_whole = {"ids": drawn.ids, "weights": drawn.weights, "probabilities": drawn.probabilities}
        arrays: Arrays = {}
        for output in self._buffer._layout.batch:
            array: Any = of_whole.get(output.name)
            if array is None:
                parts = [part[output.name] for part in rows]
                array = np.empty((len(drawn.ids), *parts[0].shape[1:]), parts[0].dtype)
                for (place, _), part in zip(drawn.rows, parts, strict=True):
                    array[place] = part
            arrays[output.name] = array
        return self._buffer._new_batch(arrays)


def _as_numpy(source: object, name: str) -> npt.NDArray[Any]:
    array, code = _arrays.as_array(source, name)
    return _arrays.as_float(source, name) if code == _arrays.BFLOAT16 else array


class Writer:
    """What ReplayBuffer.writer() gives: a handle of some environments of one shard.

    Steps go to the shard and nowhere else, and calls do not wait for it, but that few of them are on their way at a
    time. If the shard dies they are lost and counted, until it is back; `lost` says how many calls were.
    """

    def __init__(self, options: dict[str, Any], shard: Any, coordinator: Any, envs: Any) -> None:
        self._given = options, shard, coordinator, envs
        self._shard, self._coordinator, self._envs = shard, coordinator, envs
        self._steps = Steps(options, len(envs))
        self._sent: deque[Any] = deque()
        self.lost = 0

    def add(self, **steps: Any) -> None:
        """Writes one step of each environment, as per.ReplayBuffer.add() takes them; without env_ids."""
        self._write(False, steps)

    def extend(self, **steps: Any) -> None:
        """Writes K consecutive steps, as per.ReplayBuffer.extend() takes them; without env_ids."""
        self._write(True, steps)

    def flush(self) -> None:
        """Waits until all that was written is in the buffer, or lost."""
        while self._sent:
            self._wait()
        get(self._coordinator.refresh.remote())

    def _write(self, is_extend: bool, steps: dict[str, Any]) -> None:
        if steps.get("env_ids") is not None:
            raise InvalidArgument("env_ids is given; a writer has those that it was made for")
        arrays, _ = self._steps.look(is_extend, steps)
        self._sent.append(self._shard.write.remote(is_extend, {**arrays, "env_ids": self._envs}))
        while len(self._sent) > _CALLS_SENT:
            self._wait()

    def _wait(self) -> None:
        try:
            waiting = get(self._sent.popleft())
        except ray.exceptions.ActorUnavailableError:
            self.lost += 1
            return
        if waiting >= _CALLS_WAITING:
            get(self._coordinator.refresh.remote())

    def __reduce__(self) -> tuple[Any, ...]:
        return Writer, self._given
