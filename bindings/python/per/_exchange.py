"""Passes arrays to the calls of a buffer and returns those of a batch, in pure Python.

per._bridge.Exchange does the same in C++, faster, for the arrays that it can read, and leaves the rest to this module.
Both know a buffer by its Layout, and by the Memory of its arrays.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from per import _arrays, _callbacks, _kinds, _library, _options, hindsight, ragged, spaces
from per._device_arrays import Elements
from per._errors import InvalidArgument
from per._layout import STEP_ARRAYS, Layout, Output
from per._library import NULL, check, ffi, lib
from per._memory import DeviceMemory, HostMemory
from per._streams import CURRENT, Queue
from per.batch import Batch
from per.typing import IntLike


class Exchange:
    """Calls of a buffer or a writer that take or return many arrays."""

    def __init__(
        self,
        handle: Any,
        layout: Layout,
        memory: HostMemory | DeviceMemory,
        make_batch: Callable[[dict[str, Any]], Batch[Any]] = Batch,
    ) -> None:
        self.make_batch = make_batch
        self._handle = handle
        self._layout = layout
        self._memory = memory
        self._planned: tuple[int, Any, dict[str, Any]] = (-1, None, {})  # size, outputs and plans of the last arrays
        self._mean_lengths: dict[str, float] = {}  # of the rows of the last batch
        self._places = {name: ("fields", i) for i, name in enumerate(layout.fields)}
        self._places.update({name: ("next_fields", i) for i, name in enumerate(layout.next_fields) if name})

    def close(self) -> None:
        self._handle = None

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The arrays of a drawn batch."""
        return self._layout.batch

    def handle(self) -> Any:
        handle = self._handle
        if handle is None:
            raise InvalidArgument("the buffer is closed")
        return handle

    def add(
        self, step_arrays: Sequence[object], fields: Mapping[str, object], env_ids: object, is_run: bool, stream: object
    ) -> Any:
        """per_replay_add(): one step, or with is_run one per row of `terminated`. Ids have the shape of terminated."""
        handle, queue = self.handle(), self._memory.queue(stream)
        steps, shape, kept = self._steps(step_arrays, fields, env_ids, is_run, queue)
        ids_out = self._memory.new(shape, "int64", queue)
        check(lib.per_replay_add(handle, steps, self._memory.pointer(ids_out), queue.handle))
        self._memory.finish(queue, kept, ids_out)
        return _kinds.given(ids_out)

    def write(
        self,
        step_arrays: Sequence[object],
        fields: Mapping[str, object],
        env_ids: object,
        is_run: bool,
        timeout_ms: int,
    ) -> int:
        """Returns the result of per_writer_add(), for an exchange whose handle is a per_writer."""
        handle = self.handle()
        steps, _, kept = self._steps(step_arrays, fields, env_ids, is_run, self._memory.queue(None))
        status: int = lib.per_writer_add(handle, steps, timeout_ms)
        del kept
        return status

    def _steps(
        self, step_arrays: Sequence[object], fields: Mapping[str, object], env_ids: object, is_run: bool, queue: Queue
    ) -> tuple[Any, tuple[int, ...], list[object]]:
        """per_steps of those arrays, the shape of the ids, and objects to keep alive during the call."""
        steps = _library.new("per_steps")
        kept: list[object] = []
        read = {
            name: self._memory.read(source, name, queue)
            for name, source in zip(STEP_ARRAYS, step_arrays, strict=True)
            if source is not None
        }
        self._put_fields(steps, fields, kept, queue)
        n = self._layout.n_envs
        if env_ids is not None:
            ids = _arrays.as_int64(env_ids, "env_ids")
            n = steps.n_envs = ids.size
            steps.env_ids = ffi.from_buffer("int64_t[]", ids)
            kept.append(ids)
        shapes = {name: elements.shape for name, elements in read.items() if elements.shape}
        shape = next((shapes[name] for name in ("terminated", "truncated", "reward") if name in shapes), ())
        if is_run:
            if not shape:
                raise InvalidArgument(
                    "reward, terminated and truncated have no axis of time; "
                    "allowed for one of them: [K, n_envs], or [K] for one environment"
                )
            steps.length = shape[0]
        rows = (int(steps.length), n) if is_run else (n,)
        self._put_ragged(steps, fields, rows, kept, queue)
        for name, elements in read.items():
            _put(getattr(steps, name), _for_each(elements, rows), kept)
        return steps, shape if math.prod(shape) == math.prod(rows) else rows, kept

    def _put_fields(self, steps: Any, fields: Mapping[str, object], kept: list[object], queue: Queue) -> None:
        arrays = {"fields": ffi.new("per_array[]", len(self._layout.fields))}
        arrays["next_fields"] = ffi.new("per_array[]", len(self._layout.fields))
        has_next = False
        for name, source in fields.items():
            place = self._places.get(name)
            if place is None:
                raise self.unknown(name)
            if source is not None:
                has_next |= place[0] == "next_fields"
                if name not in self._layout.value_shapes:
                    _put(arrays[place[0]][place[1]], self._memory.read(source, name, queue), kept)
        steps.fields = arrays["fields"]
        steps.next_fields = arrays["next_fields"] if has_next else NULL
        kept.append(arrays)

    def _put_ragged(
        self, steps: Any, fields: Mapping[str, object], rows: tuple[int, ...], kept: list[object], queue: Queue
    ) -> None:
        """Enters the fields with rows of any length into per_steps."""
        for name in self._layout.value_shapes:
            if fields.get(name) is not None:
                member, index = self._places[name]
                self._put_rows(getattr(steps, member)[index], fields[name], name, rows, kept, queue)

    def _put_rows(
        self, target: Any, source: object, name: str, rows: tuple[int, ...], kept: list[object], queue: Queue
    ) -> None:
        """Lets a per_array describe rows of any length."""
        values, offsets = ragged.packed(source, name, rows, self._layout.value_shapes[name])
        _put(target, self._memory.read(values, name, queue), kept)
        target.offsets = ffi.from_buffer("int64_t[]", offsets)
        kept.append(offsets)

    def unknown(self, name: str) -> InvalidArgument:
        """The error for a keyword that names no field."""
        tops = (spaces.steps_of(each)[0] for each in self._places)
        hint = _options.meant(name, [*self._places, *tops, *STEP_ARRAYS, "env_ids", "info"])
        return InvalidArgument(f"{name} is no field of this buffer; its fields: {', '.join(self._places)}{hint}")

    def _not_set(self, name: str) -> InvalidArgument:
        """The error for a keyword of set() that names no field."""
        others = zip(self._layout.fields, self._layout.next_fields, strict=True)
        settable = [field for field, next_field in others if next_field is None]
        allowed = f"allowed: {', '.join(settable)}" if settable else "this buffer has only observations"
        if name in ("priorities", "td_errors"):
            return InvalidArgument(f"{name} cannot be set; update_priorities() takes them")
        if name in STEP_ARRAYS or name in self._places:
            return InvalidArgument(f"{name} cannot be set; {allowed}")
        return InvalidArgument(f"{name} is no field of this buffer; {allowed}{_options.meant(name, settable)}")

    def sample(
        self,
        batch_size: IntLike,
        options: int,
        out: dict[str, Any] | None,
        stream: object,
        call: hindsight.Call | None = None,
        key: object = None,
    ) -> Any:
        """per_replay_sample(): a batch, or the arrays of `out` if given.

        Parameters
        ----------
        options : int
            Address of a per_sample_options, into which `call` and `key` are entered. 0 is allowed only without them.
        """
        handle, queue = self.handle(), self._memory.queue(stream)
        size = _options.whole("batch_size", batch_size)
        batch = _library.new("per_batch")
        arrays, pointers = self._drawn_arrays(_options.rows_of(size), batch, out, queue)
        chosen = ffi.cast("per_sample_options *", options)
        numbers = None
        if key is not None:
            numbers = self._memory.read_numbers(key, "key", "uint64", queue)
            if numbers.shape != (2,):
                raise InvalidArgument(f"key has shape {list(numbers.shape)}; allowed: [2]")
            chosen.key = ffi.cast("uint64_t *", numbers.pointer)
        if call is not None:
            chosen.hindsight = call.options

        def sample() -> int:
            status: int = lib.per_replay_sample(handle, chosen, size, batch, queue.handle)
            return status

        self._draw(sample, call, arrays, pointers)
        self._memory.finish(queue, arrays, numbers)
        return self.make_batch(arrays) if out is None else arrays

    def _draw(
        self, draw: Callable[[], int], call: hindsight.Call | None, arrays: dict[str, Any], pointers: dict[str, Any]
    ) -> None:
        """Makes a call that fills those arrays; again with more room, if rows of any length need it."""
        rows = pointers.get("ragged", ())
        while True:
            with _callbacks.allowed() if call is not None else contextlib.nullcontext():
                status = draw()
            if status != lib.PER_ERROR_FULL or sum(each.make_room() for each in rows) == 0:
                break
        check(status) if call is None else call.check(status)
        for each in rows:
            arrays[each.output.name] = each.taken()

    def sample_mixture(
        self,
        sources: int,
        n_sources: int,
        has_times_sampled: bool,
        batch_size: IntLike,
        options: int,
        out: dict[str, Any] | None,
        stream: object,
    ) -> dict[str, Any]:
        """per_mixture_sample() of buffers with this layout: `sources` and the arrays of the batch by name.

        Parameters
        ----------
        sources : int
            Address of n_sources per_source.
        has_times_sampled : bool
            Whether all buffers count draws.
        options : int
            Address of a per_sample_options, or 0.
        """
        queue = self._memory.queue(stream)
        size = _options.whole("batch_size", batch_size)
        batch = _library.new("per_batch")
        outputs = [each for each in self.outputs if has_times_sampled or each.name != "times_sampled"]
        arrays, pointers = self._drawn_arrays(_options.rows_of(size), batch, out, queue, [*outputs, SOURCES])
        chosen = ffi.cast("per_source *", sources), n_sources, ffi.cast("per_sample_options *", options)
        sources_out = ffi.cast("int32_t *", pointers["sources"][0])
        wanted = *chosen, size, batch, sources_out, queue.handle
        self._draw(lambda: lib.per_mixture_sample(*wanted), None, arrays, pointers)
        self._memory.finish(queue, arrays)
        del pointers
        return arrays

    def update_mixture(
        self,
        sources: int,
        n_sources: int,
        ids: object,
        source_of: object,
        values: object,
        are_priorities: bool,
        stream: object,
    ) -> None:
        """per_mixture_update_priorities() for the sources of sample_mixture()."""
        queue = self._memory.queue(stream)
        given = read_update(self._memory, self._layout, ids, values, are_priorities, queue)
        of_ids = self._memory.read_numbers(source_of, "sources", "int32", queue)
        if of_ids.size != given.priorities.count:
            shape = list(of_ids.shape)
            raise InvalidArgument(f"sources has shape {shape}; allowed: [{given.priorities.count}], as ids has")
        chosen = ffi.cast("per_source *", sources), n_sources
        pointer = ffi.cast("int32_t *", of_ids.pointer)
        check(lib.per_mixture_update_priorities(*chosen, given.priorities, pointer, queue.handle))
        self._memory.finish(queue, of_ids, *given.kept)

    def get_windows(
        self,
        ids: object,
        on_invalid: int,
        options: Any,
        out: dict[str, Any] | None,
        stream: object,
        call: hindsight.Call | None,
    ) -> dict[str, Any]:
        """per_replay_get_windows(): the arrays of the batch by name; those of `out` if given."""
        handle, queue = self.handle(), self._memory.queue(stream)
        id_array = self._memory.read_numbers(ids, "ids", "int64", queue)
        batch = _library.new("per_batch")
        arrays, pointers = self._drawn_arrays(_options.rows_of(id_array.size), batch, out, queue)
        wanted = on_invalid, id_array.size, id_array.pointer, batch, queue.handle
        if call is not None:
            options.hindsight = call.options
        self._draw(lambda: lib.per_replay_get_windows(handle, options, *wanted), call, arrays, pointers)
        self._memory.finish(queue, id_array, arrays)
        return arrays

    def get_units(self, units: object, options: Any, stream: object) -> tuple[dict[str, Any], Any, Any]:
        """per_replay_get_units(): the arrays of the batch by name, the masses and the first units."""
        handle, queue = self.handle(), self._memory.queue(stream)
        unit_array = self._memory.read_numbers(units, "units", "int64", queue)
        batch = _library.new("per_batch")
        arrays, pointers = self._drawn_arrays(_options.rows_of(unit_array.size), batch, None, queue)
        # Both are below 2^62, so signed and unsigned bits agree; not every array library has uint64.
        numbers = [self._memory.new((unit_array.size,), "int64", queue) for _ in range(2)]
        outputs = [ffi.cast("uint64_t *", self._memory.pointer(array)) for array in numbers]
        wanted = unit_array.size, unit_array.pointer, batch, *outputs, queue.handle
        self._draw(lambda: lib.per_replay_get_units(handle, options, *wanted), None, arrays, pointers)
        self._memory.finish(queue, unit_array, arrays, *numbers)
        return arrays, *map(_kinds.given, numbers)

    def stream_number(self, stream: object) -> int:
        return self._memory.queue(stream).number

    # The bridge calls these for buffers on a device whose library is torch. Without an explicit stream, torch allocates
    # for its current one, so that stream need not be known here.

    def new_ids(self, shape: tuple[int, ...], stream: object) -> Any:
        """The array for the ids that add() writes."""
        return self._memory.new(shape, "int64", CURRENT if stream is None else self._memory.queue(stream))

    def new_batch(self, size: int, stream: object) -> dict[str, Any]:
        """The arrays of a batch, uninitialised."""
        queue = CURRENT if stream is None else self._memory.queue(stream)
        return self._made(_options.rows_of(size), self._layout.batch, queue)

    def get(self, ids: object, outputs: Sequence[Output], stream: object) -> dict[str, Any]:
        """per_replay_get(): the requested arrays of plain rows by name."""
        handle, queue = self.handle(), self._memory.queue(stream)
        batch = _library.new("per_batch")
        id_array = self._memory.read_numbers(ids, "ids", "int64", queue)
        arrays, pointers = self._new_arrays(id_array.size, batch, outputs, queue)
        wanted = handle, id_array.size, id_array.pointer, batch, queue.handle
        self._draw(lambda: lib.per_replay_get(*wanted), None, arrays, pointers)
        self._memory.finish(queue, id_array, arrays)
        return arrays

    def epoch(self, epochs: Any, size: int, stream: object) -> dict[str, Any] | None:
        """per_epochs_next(): the arrays of a minibatch of up to `size`; None once the last epoch is over."""
        self.handle()
        queue = self._memory.queue(stream)
        batch, count = _library.new("per_batch"), ffi.new("int64_t *")
        arrays, pointers = self._new_arrays(size, batch, self._layout.batch, queue)
        self._draw(lambda: lib.per_epochs_next(epochs, batch, count, queue.handle), None, arrays, pointers)
        self._memory.finish(queue, arrays)
        if count[0] < size:
            arrays = _first(arrays, int(count[0]))
        return arrays if count[0] else None

    def bootstraps(self, stream: object) -> dict[str, Any] | None:
        """per_replay_get_bootstraps(): the arrays of those rows; None without such rows."""
        handle, queue = self.handle(), self._memory.queue(stream)
        batch, count = _library.new("per_batch"), ffi.new("int64_t *")
        size = -1
        while count[0] > size:  # retry if another thread added meanwhile
            size = int(count[0])
            arrays, pointers = self._new_arrays(size, batch, self._layout.windows, queue)
            wanted = handle, size, batch, count, queue.handle
            self._draw(partial(lib.per_replay_get_bootstraps, *wanted), None, arrays, pointers)
        self._memory.finish(queue, arrays)
        return _first(arrays, int(count[0])) if count[0] else None

    def advantages(self, fields: Sequence[int], gae_lambda: float, ids: object, values: object, stream: object) -> None:
        """per_replay_compute_advantages(); `fields`: the field numbers of values, advantages and returns.

        Raises InvalidArgument unless there are as many values as ids.
        """
        handle, queue = self.handle(), self._memory.queue(stream)
        id_array = self._memory.read_numbers(ids, "ids", "int64", queue)
        value = self._memory.read_numbers(values, "bootstrap", "float32", queue)
        if value.size != id_array.size:
            raise InvalidArgument(f"bootstrap gave shape {list(value.shape)}; allowed: [{id_array.size}]")
        arrays = id_array.pointer, value.pointer
        check(
            lib.per_replay_compute_advantages(handle, *fields, gae_lambda, value.size, *arrays, queue.handle),
            _ADVANTAGE_WORDS,
        )
        self._memory.finish(queue, id_array, value)

    def set(self, ids: object, fields: Mapping[str, object], stream: object) -> None:
        """per_replay_set()."""
        handle, queue = self.handle(), self._memory.queue(stream)
        id_array = self._memory.read_numbers(ids, "ids", "int64", queue)
        kept: list[object] = []
        arrays = ffi.new("per_array[]", len(self._layout.fields))
        for name, source in fields.items():
            member, index = self._places.get(name, ("", 0))
            if member != "fields":
                raise self._not_set(name)
            if source is not None and name in self._layout.value_shapes:
                self._put_rows(arrays[index], source, name, (id_array.size,), kept, queue)
            elif source is not None:
                _put(arrays[index], self._memory.read_here(source, name, queue), kept)
        check(lib.per_replay_set(handle, id_array.size, id_array.pointer, arrays, queue.handle))
        self._memory.finish(queue, id_array, kept)

    def _drawn_arrays(
        self,
        size: int,
        batch: Any,
        out: dict[str, Any] | None,
        queue: Queue,
        outputs: Sequence[Output] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays of a drawn batch, those of `out` if given, and the objects that per_batch points to."""
        wanted = self._layout.batch if outputs is None else outputs
        if out is not None:
            return out, self._reuse(out, size, batch, wanted)
        return self._new_arrays(size, batch, wanted, queue)

    def _new_arrays(
        self, size: int, batch: Any, outputs: Sequence[Output], queue: Queue
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """New arrays by name, entered into per_batch, and the objects that per_batch points to."""
        pointers = self._new_pointers(batch)
        made = self._made(size, outputs, queue)
        arrays: dict[str, Any] = {}
        for output in outputs:
            arrays[output.name] = None
            if output.value_shape is not None:
                rows = _RowsOut(output, size, self._memory, self._mean_lengths)
                pointers.setdefault("ragged", []).append(rows)
                _enter(batch, pointers, output, rows.struct)
                continue
            array = made[output.name]
            _enter(batch, pointers, output, self._memory.pointer(array))
            arrays[output.name] = self._memory.wrap(output, array)
        return arrays, pointers

    def _made(self, size: int, outputs: Sequence[Output], queue: Queue) -> dict[str, Any]:
        """New arrays of the memory by name."""
        planned_size, planned, plans = self._planned
        if planned_size != size or planned is not outputs:
            plans = {
                output.name: self._memory.plan((size, *output.shape), output.dtype)
                for output in outputs
                if output.value_shape is None
            }
            self._planned = size, outputs, plans
        return dict(zip(plans, self._memory.made(plans.values(), queue), strict=True))

    def _reuse(self, out: dict[str, Any], size: int, batch: Any, outputs: Sequence[Output]) -> dict[str, Any]:
        """Enters the arrays of an earlier batch into per_batch. Returns the objects that it points to."""
        for name in self._layout.value_shapes:
            raise InvalidArgument(f"out is given; not allowed with rows of any length, which {name} has")
        pointers = self._new_pointers(batch)
        for output in outputs:
            elements = self._memory.write(out.get(output.name), f"out.{output.name}")
            shape = (size, *output.shape)
            if elements.shape != shape or elements.dtype != output.dtype:
                raise InvalidArgument(
                    f"out.{output.name} is {elements.dtype}{list(elements.shape)}; "
                    f"allowed: {output.dtype}{list(shape)}, as sample() of this buffer gave it"
                )
            _enter(batch, pointers, output, elements.pointer)
            pointers[f"kept {output.name}"] = elements.kept
        return pointers

    def _new_pointers(self, batch: Any) -> dict[str, Any]:
        pointers = {member: ffi.new("void *[]", len(self._layout.fields)) for member in ("fields", "next_fields")}
        batch.fields, batch.next_fields = pointers["fields"], pointers["next_fields"]
        pointers["sources"] = ffi.new("void *[]", 1)
        return pointers

    def update(self, ids: object, values: object, are_priorities: bool, stream: object) -> None:
        """per_replay_update_priorities(), by TD errors, or by priorities with are_priorities."""
        handle, queue = self.handle(), self._memory.queue(stream)
        given = read_update(self._memory, self._layout, ids, values, are_priorities, queue)
        check(lib.per_replay_update_priorities(handle, given.priorities, queue.handle))
        self._memory.finish(queue, *given.kept)


class _RowsOut:
    """Room for the rows of any length of a batch."""

    def __init__(
        self, output: Output, size: int, memory: HostMemory | DeviceMemory, mean_lengths: dict[str, float]
    ) -> None:
        self.output, self._memory, self._mean_lengths = output, memory, mean_lengths
        self.struct = ffi.new("per_ragged *")
        self._n_rows = size * math.prod(output.shape)
        self._offsets = memory.new((self._n_rows + 1,), "int64", CURRENT)
        self._offsets[:1] = 0  # in a batch of nothing the library writes nothing
        self.struct.offsets = ffi.cast("int64_t *", memory.pointer(self._offsets))
        self._size = size
        # A little more than the last batch needed mostly suffices.
        self._allocate(int(self._n_rows * mean_lengths.get(output.name, 0.0) * 1.25))

    def _allocate(self, capacity: int) -> None:
        value_shape = self.output.value_shape
        assert value_shape is not None
        self._values = self._memory.new((capacity, *value_shape), self.output.dtype, CURRENT)
        self.struct.values = self._memory.pointer(self._values) if capacity > 0 else ffi.cast("void *", _NOTHING)
        self.struct.capacity = capacity

    def make_room(self) -> bool:
        """Makes room for the rows of the last call. Returns False if there was enough."""
        if self.struct.total <= self.struct.capacity:
            return False
        self._allocate(int(self.struct.total))
        return True

    def taken(self) -> ragged.Ragged[Any]:
        """The rows of the batch that has been written."""
        total = int(self.struct.total)
        self._mean_lengths[self.output.name] = total / max(self._n_rows, 1)
        values, offsets = self._memory.wrap(self.output, self._values[:total]), self._offsets
        if self._memory.kind == "jax" and not _kinds.jax_has_64_bits():
            offsets = offsets.astype(np.int32)
        offsets = self._memory.wrap(self.output._replace(dtype="int64"), offsets)
        return ragged.of_tree((self._size, *self.output.shape), (values, offsets))


def _first(arrays: dict[str, Any], n: int) -> dict[str, Any]:
    """The first n rows of each array."""
    return {
        name: ragged.first_rows(array, n) if isinstance(array, ragged.Ragged) else array[:n]
        for name, array in arrays.items()
    }


# The array of a mixture's batch that names the source of each row.
SOURCES = Output("sources", (), "int32", "sources", 0)


class Update(NamedTuple):
    """The arguments of a call that sets priorities."""

    priorities: Any
    """a per_priorities"""
    kept: tuple[Elements, ...]
    """the arrays that `priorities` points to"""


_PRIORITIES = ffi.typeof("per_priorities *")


def read_update(memory: Any, layout: Layout, ids: object, values: object, are_priorities: bool, queue: Queue) -> Update:
    """Reads ids and values. Raises InvalidArgument for shapes that do not fit each other."""
    id_array = memory.read_numbers(ids, "ids", "int64", queue)
    name = "priorities" if are_priorities else "td_errors"
    value = memory.read_numbers(values, name, "float32", queue)
    count, kept = id_array.size, (id_array, value)
    steps = [] if are_priorities or count == 0 else sorted({layout.steps, layout.learned_steps} - {0})
    critics = _critics(value.shape, count, steps, are_priorities)
    if critics == 0:
        axes = [f"{count}, {n}" for n in steps] or [f"{count}"]
        axes += [] if are_priorities else [f"n_critics, {each}" for each in axes]
        allowed = " or ".join(f"[{each}]" for each in axes)
        raise InvalidArgument(f"{name} has shape {list(value.shape)}; allowed: {allowed}, as ids has {count}")
    priorities = ffi.new(_PRIORITIES)
    priorities.struct_size = ffi.sizeof(_PRIORITIES.item)
    priorities.count, priorities.ids, priorities.n_critics = count, id_array.pointer, critics
    if are_priorities:
        priorities.priorities = value.pointer
    else:
        priorities.td_errors = value.pointer
    if steps:
        priorities.n_steps = value.shape[-1]
    return Update(priorities, kept)


# Python names of the arguments of per_replay_compute_advantages().
_ADVANTAGE_WORDS = {
    "value_field": "value",
    "advantage_field": "advantage",
    "return_field": "returns",
    "lambda": "gae_lambda",
    "bootstrap_values": "bootstrap's values",
    "count": "the number of bootstrap's values",
}


def _critics(shape: tuple[int, ...], count: int, steps: Sequence[int], are_priorities: bool) -> int:
    """The number of critics for values of that shape; 0 if it does not fit `count` ids, or these steps of each."""
    if steps:
        fits = len(shape) in (2, 3) and shape[-2] == count and shape[-1] in steps
        return int(fits) * (shape[0] if len(shape) == 3 else 1)
    size = math.prod(shape)
    if size == count:
        return 1
    has_critics = not are_priorities and len(shape) >= 2 and count > 0 and size == count * shape[0]
    return shape[0] if has_critics else 0


def _for_each(elements: Elements, rows: tuple[int, ...]) -> Elements:
    """A scalar on the host broadcast to the rows, as numpy does it; anything else unchanged."""
    if elements.shape or math.prod(rows) == 1 or not isinstance(elements.kept, np.ndarray):
        return elements
    array = np.full(rows, elements.kept)
    return Elements(ffi.from_buffer(array), rows, elements.dtype, array)


def _put(target: Any, elements: Elements, kept: list[object]) -> None:
    """Lets a per_array describe `elements`. The objects that it points to are appended to `kept`."""
    shape = ffi.new(_SHAPE, elements.shape or (0,))
    target.data = _NOTHING if 0 in elements.shape else elements.pointer
    target.shape, target.ndim, target.dtype = shape, len(elements.shape), _arrays.DTYPES[elements.dtype]
    kept += [elements.kept, shape]


# The target of empty arrays: NULL would mean that they are not given.
_NOTHING = ffi.new("uint64_t *")
_SHAPE = ffi.typeof("int64_t[]")


def _enter(batch: Any, pointers: dict[str, Any], output: Output, pointer: Any) -> None:
    """Points per_batch at an output's memory."""
    if output.member in pointers:
        pointers[output.member][output.field] = pointer
    else:
        setattr(batch, output.member, pointer)
