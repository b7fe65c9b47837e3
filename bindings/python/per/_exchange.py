"""Passes arrays to the calls of a buffer and gives back those of a batch, in Python alone.

per._bridge.Exchange does the same in C++, faster, for arrays that it can read by itself, and leaves all else to this.
What both know of a buffer is its Layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from per import _arrays, _library, _options, hindsight
from per._errors import InvalidArgument
from per._layout import STEP_ARRAYS, Layout, Output
from per._library import NULL, check, ffi, lib


class Exchange:
    """The calls of a buffer that take or give many arrays."""

    def __init__(self, handle: Any, layout: Layout, wrap: Callable[[Output, _arrays.Array], Any]) -> None:
        self._handle = handle
        self._layout = layout
        self._wrap = wrap
        self._places = {name: ("fields", i) for i, name in enumerate(layout.fields)}
        self._places.update({name: ("next_fields", i) for i, name in enumerate(layout.next_fields) if name})

    def close(self) -> None:
        self._handle = None

    def handle(self) -> Any:
        handle = self._handle
        if handle is None:
            raise InvalidArgument("the buffer is closed")
        return handle

    def add(
        self, step_arrays: Sequence[object], fields: dict[str, object], env_ids: object, is_run: bool
    ) -> _arrays.Int64s:
        """per_replay_add(): one step, or with is_run as many as `terminated` has. Ids have the shape of terminated."""
        handle = self.handle()
        steps = _library.new("per_steps")
        kept: list[object] = []
        shapes: dict[str, tuple[int, ...]] = {}
        for name, source in zip(STEP_ARRAYS, step_arrays, strict=True):
            if source is not None:
                shapes[name] = _put(getattr(steps, name), source, name, kept)
        self._put_fields(steps, fields, kept)
        n = self._layout.n_envs
        if env_ids is not None:
            ids = _arrays.as_int64(env_ids, "env_ids")
            n = steps.n_envs = ids.size
            steps.env_ids = ffi.from_buffer("int64_t[]", ids)
            kept.append(ids)
        shape = shapes.get("terminated", ())
        if is_run:
            if not shape:
                raise InvalidArgument(
                    "terminated has no axis of time; allowed: [K, n_envs], or [K] for one environment"
                )
            steps.length = shape[0]
        rows = (steps.length, n) if is_run else (n,)
        ids_out = np.empty(shape if math.prod(shape) == steps.length * n else rows, np.int64)
        check(lib.per_replay_add(handle, steps, ffi.from_buffer("int64_t[]", ids_out), NULL))
        return ids_out

    def _put_fields(self, steps: Any, fields: dict[str, object], kept: list[object]) -> None:
        arrays = {"fields": ffi.new("per_array[]", len(self._layout.fields))}
        arrays["next_fields"] = ffi.new("per_array[]", len(self._layout.fields))
        has_next = False
        for name, source in fields.items():
            place = self._places.get(name)
            if place is None:
                raise self.unknown(name)
            if source is not None:
                has_next |= place[0] == "next_fields"
                _put(arrays[place[0]][place[1]], source, name, kept)
        steps.fields = arrays["fields"]
        steps.next_fields = arrays["next_fields"] if has_next else NULL
        kept.append(arrays)

    def unknown(self, name: str) -> InvalidArgument:
        """The error for a keyword that names no field."""
        return InvalidArgument(f"{name} is no field of this buffer; its fields: {', '.join(self._places)}")

    def sample(
        self, batch_size: int, options: int, out: dict[str, Any] | None, call: hindsight.Call | None = None
    ) -> dict[str, Any]:
        """per_replay_sample(): the arrays of the batch by name; those of `out` if it is given."""
        handle = self.handle()
        size = _options.whole("batch_size", batch_size)
        batch = _library.new("per_batch")
        arrays: dict[str, Any] = {}
        pointers = None
        if out is not None:
            arrays, pointers = out, self._reuse(out, size, batch)
        elif size > 0:
            arrays, pointers = self._new_arrays(size, batch, self._layout.batch)
        chosen = ffi.cast("per_sample_options *", options)
        if call is None:
            check(lib.per_replay_sample(handle, chosen, size, batch, NULL))
        else:
            call.check(lib.per_replay_sample_hindsight(handle, chosen, call.options, size, batch, NULL))
        del pointers
        return arrays

    def get(self, ids: _arrays.Int64s) -> dict[str, Any]:
        """per_replay_get(): the arrays of plain rows by name."""
        handle = self.handle()
        batch = _library.new("per_batch")
        arrays, pointers = self._new_arrays(ids.size, batch, self._layout.rows)
        check(lib.per_replay_get(handle, ids.size, ffi.from_buffer("int64_t[]", ids), batch, NULL))
        del pointers
        return arrays

    def epoch(self, walk: Any, size: int) -> dict[str, Any] | None:
        """per_epochs_next(): the arrays of a minibatch of up to `size`; None once the walk is over."""
        self.handle()
        batch, count = _library.new("per_batch"), ffi.new("int64_t *")
        arrays, pointers = self._new_arrays(size, batch, self._layout.batch)
        check(lib.per_epochs_next(walk, batch, count, NULL))
        del pointers
        if count[0] < size:
            arrays = {name: array[: count[0]] for name, array in arrays.items()}
        return arrays if count[0] else None

    def bootstraps(self) -> dict[str, Any] | None:
        """per_replay_bootstraps(): the arrays of those rows; None if there are none."""
        handle = self.handle()
        batch, count = _library.new("per_batch"), ffi.new("int64_t *")
        size = -1
        while count[0] > size:  # again where another thread added meanwhile
            size = int(count[0])
            arrays, pointers = self._new_arrays(size, batch, self._layout.windows)
            check(lib.per_replay_bootstraps(handle, size, batch, count, NULL))
            del pointers
        return {name: array[: count[0]] for name, array in arrays.items()} if count[0] else None

    def advantages(
        self, fields: Sequence[int], gae_lambda: float, ids: _arrays.Int64s, values: _arrays.Float32s
    ) -> None:
        """per_replay_advantages(); `fields`: the numbers of those of values, advantages and returns."""
        ids_in, values_in = ffi.from_buffer("int64_t[]", ids), ffi.from_buffer("float[]", values)
        check(lib.per_replay_advantages(self.handle(), *fields, gae_lambda, ids.size, ids_in, values_in, NULL))

    def set(self, ids: _arrays.Int64s, fields: dict[str, object]) -> None:
        """per_replay_set()."""
        handle = self.handle()
        kept: list[object] = []
        arrays = ffi.new("per_array[]", len(self._layout.fields))
        for name, source in fields.items():
            member, index = self._places.get(name, ("", 0))
            if member != "fields":
                raise self.unknown(name)
            if source is not None:
                _put(arrays[index], source, name, kept)
        check(lib.per_replay_set(handle, ids.size, ffi.from_buffer("int64_t[]", ids), arrays, NULL))

    def _new_arrays(self, size: int, batch: Any, outputs: Sequence[Output]) -> tuple[dict[str, Any], Any]:
        """New arrays by name, entered into per_batch; and what per_batch points at."""
        pointers = self._new_pointers(batch)
        arrays = {}
        for output in outputs:
            array = _arrays.empty((size, *output.shape), np.uint16 if output.dtype == "bfloat16" else output.dtype)
            _enter(batch, pointers, output, array)
            arrays[output.name] = self._wrap(output, array)
        return arrays, pointers

    def _reuse(self, out: dict[str, Any], size: int, batch: Any) -> Any:
        """Enters earlier arrays into per_batch; what per_batch points at."""
        pointers = self._new_pointers(batch)
        for output in self._layout.batch:
            array, code = _arrays.as_writable(out.get(output.name), f"out.{output.name}")
            shape = (size, *output.shape)
            if array.shape != shape or code != _arrays.DTYPES[output.dtype]:
                raise InvalidArgument(
                    f"out.{output.name} is {_library.name_of('per_dtype', code)}{list(array.shape)}; "
                    f"allowed: {output.dtype}{list(shape)}, as sample() of this buffer gave it"
                )
            _enter(batch, pointers, output, array)
        return pointers

    def _new_pointers(self, batch: Any) -> dict[str, Any]:
        pointers = {member: ffi.new("void *[]", len(self._layout.fields)) for member in ("fields", "next_fields")}
        batch.fields, batch.next_fields = pointers["fields"], pointers["next_fields"]
        return pointers

    def update(self, ids: object, values: object, are_priorities: bool) -> None:
        """per_replay_update_priorities(), or with are_priorities per_replay_set_priorities()."""
        handle = self.handle()
        id_array = _arrays.as_ids(ids)
        name = "priorities" if are_priorities else "td_errors"
        value = _arrays.as_float(values, name)
        count = id_array.size
        steps = 0 if are_priorities else self._layout.steps
        critics = _critics(value.shape, count, steps, are_priorities)
        if critics == 0:
            axes = f"{count}, {steps}" if steps else f"{count}"
            more = "" if are_priorities else f" or [n_critics, {axes}]"
            raise InvalidArgument(f"{name} has shape {list(value.shape)}; allowed: [{axes}]{more}, as ids has {count}")
        ids_in, values_in = ffi.from_buffer("int64_t[]", id_array), ffi.from_buffer("float[]", value)
        if are_priorities:
            check(lib.per_replay_set_priorities(handle, count, ids_in, values_in, NULL))
        else:
            check(lib.per_replay_update_priorities(handle, count, ids_in, critics, values_in, NULL))


def _critics(shape: tuple[int, ...], count: int, steps: int, are_priorities: bool) -> int:
    """How many critics values of that shape are of; 0: none, it does not fit `count` ids."""
    if steps and count:
        fits = shape[-2:] == (count, steps) and len(shape) in (2, 3)
        return int(fits) * (shape[0] if len(shape) == 3 else 1)
    size = math.prod(shape)
    if size == count:
        return 1
    has_critics = not are_priorities and len(shape) >= 2 and count > 0 and size == count * shape[0]
    return shape[0] if has_critics else 0


def _put(target: Any, source: object, name: str, kept: list[object]) -> tuple[int, ...]:
    """Lets a per_array describe `source`. What it points at is appended to `kept`."""
    array, code = _arrays.as_array(source, name)
    shape = ffi.new("int64_t[]", array.shape or (0,))
    pointer = ffi.from_buffer(array if array.size else _NOTHING)
    target.data, target.shape, target.ndim, target.dtype = pointer, shape, array.ndim, code
    kept += [array, shape, pointer]
    return array.shape


# What empty arrays point at: NULL would mean that they are not given.
_NOTHING = np.zeros(1)


def _enter(batch: Any, pointers: dict[str, Any], output: Output, array: _arrays.Array) -> None:
    """Lets per_batch point at an output's memory."""
    address = ffi.cast("void *", array.__array_interface__["data"][0])
    if output.member in pointers:
        pointers[output.member][output.field] = address
    else:
        setattr(batch, output.member, address)
