"""libper's Python package with the interface of peer_buffers.py, and per.h's functions without Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import transitions
from transitions import Arrays, RowShape

# The options of all buffers.
ALPHA = 0.6
BETA = 0.4
EPSILON = 1e-6


def flags_of(arrays: Arrays) -> Arrays:
    """A step for libper: done means terminated, and nothing is truncated."""
    given = dict(arrays)
    given["terminated"] = given.pop("done")
    given["truncated"] = np.zeros_like(given["terminated"])
    return given


class Libper:
    """per.ReplayBuffer, with fresh arrays for each batch."""

    package = "per"
    version_of = "libper"
    stores_observations_once = True

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import per

        fields = {
            "observation": per.Field(shape.observation, "float32"),
            "action": per.Field(shape.action, "float32"),
        }
        self.buffer = per.ReplayBuffer(
            transitions.rows_for(capacity), fields, alpha=ALPHA, beta=BETA, epsilon=EPSILON, seed=1
        )
        self.batch = batch
        self.drawn: Any = None

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        ids = self.buffer.extend(**flags_of(arrays))
        self.buffer.update_priorities(ids, priorities)

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = flags_of(step)
        self.priorities = priorities

    def add(self) -> None:
        self.buffer.add(**self.step)

    def prepare_run(self, run: Arrays) -> None:
        self.run = flags_of(run)

    def extend(self) -> None:
        self.buffer.extend(**self.run)

    def sample(self) -> None:
        self.drawn = self.buffer.sample(self.batch)

    def update(self) -> None:
        self.buffer.update_priorities(self.drawn.ids, self.priorities)

    def sampled(self) -> Arrays:
        return {name: self.drawn[name] for name in ("observation", "action", "reward", "next_observation", "weights")}


class LibperOut(Libper):
    """The same, reusing one batch."""

    def sample(self) -> None:
        if self.drawn is None:
            self.drawn = self.buffer.sample(self.batch)
        else:
            self.buffer.sample(self.batch, out=self.drawn)


class LibperCalls(Libper):
    """The functions of per.h alone, called with prepared pointers: the rest of Libper's time is Python."""

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        super().__init__(shape, capacity, batch)
        from per import _library

        self.lib, self.ffi, self.check = _library.lib, _library.ffi, _library.check
        self.handle = self.buffer._handle
        self.new = _library.new
        self.fields = self.next_fields = self.outputs = None

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        super().prepare(step, priorities)
        if self.drawn is None:
            super().sample()  # its arrays are reused
            self._point_to(self.drawn)
        self.written = self.new("per_priorities")
        self.written.count, self.written.ids = self.batch, self.outputs.ids
        self.written.td_errors = self.ffi.cast("float *", self.ffi.from_buffer(self.priorities))
        self.arrays = {name: np.ascontiguousarray(value) for name, value in self.step.items()}
        dtypes = {"terminated": self.lib.PER_BOOL, "truncated": self.lib.PER_BOOL}
        steps = self.new("per_steps")
        self.steps_fields = self.ffi.new("per_array[2]")
        self.steps_next_fields = self.ffi.new("per_array[2]")
        steps.fields, steps.next_fields = self.steps_fields, self.steps_next_fields
        targets = {
            "observation": self.steps_fields[0],
            "action": self.steps_fields[1],
            "next_observation": self.steps_next_fields[0],
            "reward": steps.reward,
            "terminated": steps.terminated,
            "truncated": steps.truncated,
        }
        for name, target in targets.items():
            target.data = self.ffi.cast("void *", self.arrays[name].ctypes.data)
            target.dtype = dtypes.get(name, self.lib.PER_FLOAT32)
        self.steps = steps

    def _point_to(self, drawn: Any) -> None:
        self.outputs = self.new("per_batch")
        pointer = self._pointer
        self.fields = self.ffi.new("void *[2]", [pointer(drawn["observation"]), pointer(drawn["action"])])
        self.next_fields = self.ffi.new("void *[2]", [pointer(drawn["next_observation"]), self.ffi.NULL])
        self.outputs.fields, self.outputs.next_fields = self.fields, self.next_fields
        for name in ("reward", "discount", "n_steps", "terminated", "truncated", "weights", "ids", "priorities"):
            setattr(self.outputs, name, pointer(drawn[name]))
        self.outputs.probabilities = pointer(drawn["probabilities"])

    def _pointer(self, array: npt.NDArray) -> Any:
        return self.ffi.cast("void *", array.ctypes.data)

    def add(self) -> None:
        self.check(self.lib.per_replay_add(self.handle, self.steps, self.ffi.NULL, self.ffi.NULL))

    extend = None

    def sample(self) -> None:
        self.check(self.lib.per_replay_sample(self.handle, self.ffi.NULL, self.batch, self.outputs, self.ffi.NULL))

    def update(self) -> None:
        self.check(self.lib.per_replay_update_priorities(self.handle, self.written, self.ffi.NULL))
