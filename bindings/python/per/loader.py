"""Loader: batches drawn ahead by a thread of the library."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic

from per import _kinds, _library, ragged
from per._errors import Busy, InvalidArgument
from per._handle import Handle, created, ended
from per._layout import Output
from per._library import check, ffi, lib
from per._memory import DeviceMemory, HostMemory
from per._waiting import seconds_of, waited
from per.batch import Batch
from per.typing import Array, Array_co, Arrays

_set = object.__setattr__  # Batch refuses plain assignment
_SLOT = ffi.typeof("int64_t[1]")


class LoadedBatch(Batch[Array_co]):
    """A batch in a slot of a loader. It holds the slot until it is released."""

    __slots__ = ("_slot", "_slots", "_source", "_stream")

    _source: Callable[[], Source[Any] | None]
    _stream: object
    _slot: Any
    _slots: Iterator[int]

    def __init__(self, source: Source[Any], stream: object) -> None:
        _set(self, "__dict__", {})
        _set(self, "_source", source._weak)
        _set(self, "_stream", stream)
        _set(self, "_slot", ffi.new(_SLOT, (-1,)))  # the library writes to it, before any signal handler can run
        self._hold()

    def _hold(self) -> None:
        _set(self, "_slots", filter((-1).__lt__, iter(self._slot)))  # yields the slot once, and -1 never

    def release(self) -> None:
        """Releases the slot: the batch has no arrays afterwards, and a later batch is drawn into their memory.

        Arrays taken from the batch earlier are then overwritten. Releasing again has no effect.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> with buffer.loader(4) as batches:
        ...     batch = batches.take()
        ...     batch.release()
        ...     len(batch)
        0
        """
        if self._slot[0] < 0:  # not drawn yet
            return
        arrays = self.__dict__
        _set(self, "__dict__", {})
        source = self._source()
        handle = None if source is None else source._handle
        if source is None or handle is None:
            return
        queues = source._queues(self._stream)
        # One call of C: a signal handler that raises cannot come between the slot and its release.
        status = next(map(source._release, (handle,), self._slots, *zip(queues)), lib.PER_OK)
        if status != lib.PER_OK:
            _set(self, "__dict__", arrays)
            self._hold()
        check(status)

    def _state(self) -> str:
        return super()._state() if self.__dict__ else "was released"


class Source(Handle, Generic[Array]):
    """A loader, or a reader of a shared loader: an endless iterator over batches in slots."""

    _release: ClassVar[Any]
    """function of the library that releases a slot"""
    _batch_size: int
    _outputs: Sequence[Output]
    _memory: HostMemory | DeviceMemory
    _nest: Callable[[dict[str, Any]], dict[str, Any]]

    def __init__(self) -> None:
        self._arrays: dict[int, dict[str, Any]] = {}  # by slot, created at its first use
        self._structs: list[Any] = []  # each a per_batch, of finished calls
        self._latest: LoadedBatch[Array] | None = None  # the batch last handed out by iteration
        self._weak = weakref.ref(self)  # for batches, which do not keep their loader alive

    def _queues(self, stream: object) -> tuple[Any, ...]:
        """The further arguments of the library's functions: a stream, for a loader."""
        raise NotImplementedError

    def _draw(self, drawn: Any, slot_out: Any, timeout: float | None, queues: tuple[Any, ...]) -> None:
        """Waits for a batch of the library."""
        raise NotImplementedError

    def _take(self, timeout: float | None, stream: object = None) -> LoadedBatch[Array]:
        taken: LoadedBatch[Array] = LoadedBatch(self, stream)
        try:
            self._fill(taken, timeout)
            return taken
        except BaseException:  # including Ctrl-C after the slot was acquired
            taken.release()
            raise

    def _fill(self, loaded: LoadedBatch[Array], timeout: float | None) -> None:
        queues, handle = self._queues(loaded._stream), self._open()
        try:
            drawn = self._structs.pop()
        except IndexError:
            drawn = _library.new("per_batch")
        self._draw(drawn, loaded._slot, timeout, queues)
        slot = int(loaded._slot[0])
        arrays = self._arrays.get(slot)
        if arrays is None:
            arrays = self._nest(views_of(drawn, self._batch_size, self._outputs, self._memory, handle))
            if are_fixed(self._outputs):
                arrays = self._arrays.setdefault(slot, arrays)
        self._structs.append(drawn)
        _set(loaded, "__dict__", dict(arrays))

    def __next__(self) -> LoadedBatch[Array]:
        if self._latest is not None:
            self._latest.release()
        # Known before it has a slot, which the next call releases, wherever a signal handler raises.
        self._latest = loaded = LoadedBatch(self, None)
        self._fill(loaded, None)
        if self._latest is not loaded:  # a signal handler or thread took batches while this call waited
            self._latest, other = loaded, self._latest
            if other is not None:
                other.release()
        return loaded

    def close(self) -> None:
        """Ends it. Batches that are out keep their arrays."""
        super().close()
        self._latest, self._arrays = None, {}


def loader_kind(arrays: object, device: str) -> Arrays:
    """The kind of arrays to hand out. Raises the errors of _kinds.kind_of(), and InvalidArgument for JAX."""
    kind = _kinds.kind_of(arrays, device)
    if kind == "jax":
        raise InvalidArgument(
            "arrays is 'jax', for which there is no loader: JAX reads memory later than it says, when a slot may have "
            "been written again. Use sample(), or another kind of arrays"
        )
    return kind


class Loader(Source[Array]):
    """An endless iterator over batches, from ReplayBuffer.loader().

    Requesting the next batch releases the one before. After a loop its last batch is still held: release it, continue
    with next(), or leave it, as one of the `slots` batches that may be held. take() leaves the release to the caller,
    and lets several threads take batches from one loader. A loader is closed by the garbage collector, or at the end of
    a `with` block.
    """

    _noun = "loader"
    _release = lib.per_loader_release
    _in_place_of_pickling = "Create one where its batches are used."

    def __init__(
        self,
        handle: Any,
        check_open: Callable[[], object],
        wait_to_sample: Callable[..., None],
        options: Any,
        outputs: Sequence[Output],
        memory: HostMemory | DeviceMemory,
        nest: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._batch_size = int(options.batch_size)
        self._slots = int(options.slots)
        self._check_open = check_open
        self._wait_to_sample = wait_to_sample
        self._outputs = outputs
        self._memory = memory
        self._nest = nest
        super().__init__()
        # Arrays keep the loader's memory alive, and the loader that of its buffer.
        self._handle = created(lib.per_loader_create, handle, options, parent=handle)
        self._thread = ended(self._handle, lib.per_loader_stop)

    def take(self, *, timeout: float | None = None, stream: object = None) -> LoadedBatch[Array]:
        """The next batch. It holds its slot until batch.release().

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait: for the draw, for the buffer's rate limiter, and, while `slots` batches are out, for a
            release; None: no limit. Ctrl-C interrupts the wait. Without a limit, a thread that itself holds all batches
            waits forever.
        stream : object, optional
            On CUDA, the stream of the work with the batch: work queued there from now on sees the batch, and work
            queued there before its release finishes before the slot is overwritten. None: the current one.

        Raises
        ------
        Timeout
            No batch came within `timeout`.
        Empty
            No transition is live. Other errors are those of sample().
        InvalidArgument
            The loader or the buffer was closed, or the caller is a forked child.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> with buffer.loader(4, slots=2) as batches:
        ...     first, second = batches.take(), batches.take()
        ...     print(first.size, second.size)
        ...     first.release()
        ...     second.release()
        4 4
        """
        return self._take(timeout, stream)

    def _queues(self, stream: object) -> tuple[Any, ...]:
        return (self._memory.queue(stream).handle,)

    def _draw(self, drawn: Any, slot_out: Any, timeout: float | None, queues: tuple[Any, ...]) -> None:
        end = time.monotonic() + seconds_of(timeout)
        left = timeout

        def next_batch(timeout_ms: int) -> int:
            return int(lib.per_loader_next(self._open(), timeout_ms, drawn, slot_out, *queues))

        while True:
            try:
                return waited(left, next_batch)
            except Busy:  # raised immediately while the rate limiter allows no draw
                left = None if timeout is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise
            self._wait_to_sample(left, check_open=self._open)
            left = None if timeout is None else max(end - time.monotonic(), 0.0)

    def __iter__(self) -> Loader[Array]:
        return self

    def close(self) -> None:
        """Ends the loader. Batches that are out keep their arrays; the buffer may then have another loader.

        Raises
        ------
        Busy
            The caller is the `write` of a file to which the buffer is being saved.
        """
        if self._handle is not None:
            status = lib.per_loader_stop(self._handle)
            if status == lib.PER_ERROR_BUSY:
                check(status)
        super().close()
        ffi.release(self._thread)

    def __repr__(self) -> str:
        state = "" if self._handle is not None else ", closed"
        return f"per.Loader(batch_size={self._batch_size}, slots={self._slots}{state})"

    def _open(self) -> Any:
        handle = super()._open()
        self._check_open()
        return handle


def views_of(
    batch: Any, batch_size: int, outputs: Sequence[Output], memory: HostMemory | DeviceMemory, owner: object
) -> dict[str, Any]:
    """The arrays of a slot, which share its memory and keep the owner alive."""

    def view(output: Output, pointer: Any, shape: tuple[int, ...]) -> Any:
        return memory.view(output, int(ffi.cast("uintptr_t", pointer)), shape, owner)

    arrays = {}
    for output in outputs:
        member = getattr(batch, output.member)
        pointer = member[output.field] if output.member in ("fields", "next_fields") else member
        shape = (batch_size, *output.shape)
        if output.value_shape is None:
            arrays[output.name] = view(output, pointer, shape)
            continue
        rows = ffi.cast("per_ragged *", pointer)
        values = view(output, rows.values, (int(rows.total), *output.value_shape))
        offsets = view(output._replace(dtype="int64"), rows.offsets, (math.prod(shape) + 1,))
        arrays[output.name] = ragged.of_tree(shape, (values, offsets))
    return arrays


def are_fixed(outputs: Sequence[Output]) -> bool:
    """Whether the arrays of a slot are the same for all batches: they are not with rows of any length."""
    return all(output.value_shape is None for output in outputs)
