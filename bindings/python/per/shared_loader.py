"""SharedLoader and Reader: batches of one buffer for several processes, through shared memory."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy.typing as npt

from per import _exchange, _kinds, _library, _memory, _options, batch
from per._errors import InvalidArgument, about
from per._figures import SharedLoaderFigures
from per._handle import Handle, created, ended
from per._layout import layout_of
from per._library import NULL, check, ffi, lib
from per._waiting import waited
from per.field import Field, from_c
from per.loader import LoadedBatch, Source, loader_kind
from per.typing import Array, ArrayLike, Arrays, IntArrayLike

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class SharedLoaderStatistics(SharedLoaderFigures):
    """The result of SharedLoader.stats(). Counters count since creation.

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, device="cpu")
    >>> buffer.shared_loader(32, readers=2).stats().attached
    0
    """


# help(per.SharedLoaderStatistics) is to show the fields, too.
SharedLoaderStatistics.__doc__ = f"{inspect.getdoc(SharedLoaderStatistics)}".replace(
    "Examples\n", f"{inspect.getdoc(SharedLoaderFigures)}\n\nExamples\n", 1
)


class SharedLoader(Handle):
    """Batches of a buffer, drawn ahead for readers in other processes; from ReplayBuffer.shared_loader().

    Pass it to a process as an argument: with multiprocessing, spawned or forked, or to the ranks of
    torch.multiprocessing.spawn(). Only a path is sent. There, reader() attaches to it and is the only usable call;
    stats() belongs to the process that owns the buffer. That process may have a reader, too.

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, seed=5, device="cpu")
    >>> for t in range(10):
    ...     ids = buffer.add(observation=[t], reward=t, terminated=False, truncated=False, next_observation=[t + 1])
    >>> loader = buffer.shared_loader(32, readers=2)
    >>> with loader.reader() as batches:  # most often in another process
    ...     for step, batch in zip(range(4), batches):
    ...         batches.update_priorities(batch.ids, td_errors=batch.reward)
    ...     batches.flush()
    >>> loader.stats().updates
    4
    """

    _noun = "shared loader"
    _path: str

    def __init__(self, buffer: Any, check_open: Callable[[], object], options: Any) -> None:
        self._check_open = check_open
        self._handle = created(lib.per_shared_loader_create, buffer, options, parent=buffer)
        with self._closed_on_error():
            path_out = ffi.new("char **")
            check(lib.per_shared_loader_get_address(self._handle, path_out, NULL))
            self._path = ffi.string(path_out[0]).decode()

    @property
    def path(self) -> str:
        """The argument for Reader in any process of this user, while the loader is open."""
        return self._path

    @overload
    def reader(self, arrays: Literal["numpy"] = "numpy") -> Reader[npt.NDArray[Any]]: ...
    @overload
    def reader(self, arrays: Literal["torch"]) -> Reader[torch.Tensor]: ...
    @overload
    def reader(self, arrays: Arrays) -> Reader[Any]: ...
    def reader(self, arrays: Arrays = "numpy") -> Reader[Any]:
        """Attaches to the loader, from any process; see Reader. The reader keeps the loader open.

        Parameters
        ----------
        arrays : {"numpy", "torch", "jax", "cupy"}, default "numpy"
            "numpy" or "torch".
        """
        reader: Reader[Any] = Reader(self._path, arrays)
        reader._loader = self
        return reader

    def stats(self) -> SharedLoaderStatistics:
        """The loader's statistics."""
        get = lib.per_shared_loader_get_statistics
        statistics = _library.filled("per_shared_loader_statistics", get, self._open())
        return SharedLoaderStatistics(
            **{field.name: getattr(statistics, field.name) for field in dataclasses.fields(SharedLoaderStatistics)}
        )

    def close(self) -> None:
        """Applies the updates that readers sent, and ends the loader for them. The buffer may have another loader."""
        super().close()

    def _open(self) -> Any:
        if "_check_open" not in vars(self):
            raise InvalidArgument("the shared loader belongs to another process; allowed here: reader()")
        self._check_open()
        return super()._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_path, (self._path,)

    def __repr__(self) -> str:
        return f"per.SharedLoader({self._path!r})"


def _of_path(path: str) -> SharedLoader:
    """Rebuilds a pickled loader."""
    loader = SharedLoader.__new__(SharedLoader)
    loader._path = path
    return loader


class Reader(Source[Array]):
    """An endless iterator over batches of a shared loader; from SharedLoader.reader().

    Batches are used where they were drawn, without a copy. Requesting the next one releases the one before, as does
    batch.release(); later batches overwrite the memory, so copy what must last longer. Each batch goes to one reader.
    take() leaves the release to the caller.

    Parameters
    ----------
    path : str
        The path of a shared loader.
    arrays : {"numpy", "torch", "jax", "cupy"}, default "numpy"
        "numpy" or "torch": the arrays of batches.

    Raises
    ------
    Busy
        The loader already has its maximum number of readers.
    InvalidArgument
        The loader is closed.
    IoError
        The loader no longer exists.

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, seed=5, device="cpu")
    >>> ids = buffer.add(observation=[7], reward=1, terminated=True, truncated=False, next_observation=[8])
    >>> loader = buffer.shared_loader(2, readers=1)
    >>> reader = per.Reader(loader.path)
    >>> next(reader).observation.tolist()
    [[7.0], [7.0]]
    """

    _noun = "reader"
    _release = lib.per_reader_release
    _in_place_of_pickling = "Pass the shared loader on, and take its reader() there."
    _loader: SharedLoader | None = None

    @overload
    def __init__(self: Reader[npt.NDArray[Any]], path: str, arrays: Literal["numpy"] = "numpy") -> None: ...
    @overload
    def __init__(self: Reader[torch.Tensor], path: str, arrays: Literal["torch"]) -> None: ...
    @overload
    def __init__(self: Reader[Any], path: str, arrays: Arrays) -> None: ...
    def __init__(self, path: str, arrays: Arrays = "numpy") -> None:
        kind = loader_kind(arrays, "cpu")
        self._memory = _memory.HostMemory(kind)
        super().__init__()
        # Arrays keep the memory alive.
        with about(path):
            self._handle = created(lib.per_reader_attach, _options.path(path), -1)
        self._place = ended(self._handle, lib.per_reader_stop)
        with self._closed_on_error():
            self._describe(kind)

    def _describe(self, kind: Any) -> None:
        options, size_out = _library.new("per_replay_options"), ffi.new("int64_t *")
        check(lib.per_reader_describe(self._handle, options, size_out))
        self._batch_size = int(size_out[0])
        self._fields = from_c(options)
        has_sequences = options.sequence_length > 0
        steps = int(options.burn_in + options.sequence_length) if has_sequences else 0
        counts = bool(options.keep_times_sampled)
        self._layout = layout_of(
            self._fields, int(options.n_envs), steps, int(options.sequence_length), int(options.n_step), counts
        )
        _kinds.check_dtypes(kind, self._layout)
        self._outputs = self._layout.batch
        structure = batch.structure_of([output.name for output in self._outputs])
        self._nest = functools.partial(batch.nested, structure)

    @property
    def batch_size(self) -> int:
        """Transitions, or sequences, in a batch."""
        return self._batch_size

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the buffer."""
        return dict(self._fields)

    def take(self, *, timeout: float | None = None) -> LoadedBatch[Array]:
        """The next batch. It holds its slot until batch.release().

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait: for the draw, for the buffer's rate limiter, and, while this reader holds its maximum
            number of batches, for a release; None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            No batch came within `timeout`. The next call gets it.
        Empty
            No transition is live. Other errors are those of sample().
        InvalidArgument
            Also if the loader was closed or its process has ended.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()}, device="cpu")
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> loader = buffer.shared_loader(4, readers=1)
        >>> reader = loader.reader()
        >>> batch = reader.take(timeout=60)
        >>> batch.size
        4
        >>> batch.release()
        """
        return self._take(timeout)

    def _queues(self, stream: object) -> tuple[Any, ...]:
        return ()

    def _draw(self, drawn: Any, slot_out: Any, timeout: float | None, queues: tuple[Any, ...]) -> None:
        waited(timeout, lambda timeout_ms: lib.per_reader_next(self._open(), timeout_ms, drawn, slot_out))

    def __iter__(self) -> Reader[Array]:
        return self

    @overload
    def update_priorities(self, ids: IntArrayLike, td_errors: ArrayLike, *, timeout: float | None = None) -> None: ...

    @overload
    def update_priorities(
        self,
        ids: IntArrayLike,
        td_errors: ArrayLike | None = None,
        *,
        priorities: ArrayLike | None,
        timeout: float | None = None,
    ) -> None: ...

    def update_priorities(
        self,
        ids: IntArrayLike,
        td_errors: ArrayLike | None = None,
        *,
        priorities: ArrayLike | None = None,
        timeout: float | None = None,
    ) -> None:
        """Sends TD errors or priorities back, in the form of ReplayBuffer.update_priorities(), from host memory.

        They are applied a little later. Invalid ids, and invalid TD errors of sequences, are only detected by the
        buffer, which then refuses the call and counts it (SharedLoader.stats().refused).

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from batches.
        td_errors : ArrayLike, optional
            float32[n] of any sign.
        priorities : ArrayLike, optional
            float32[n], >= 0, in place of td_errors.
        timeout : float, optional
            Seconds to wait for room, which is scarce only while many calls are not applied yet; None: no limit. Ctrl-C
            interrupts the wait.

        Raises
        ------
        Timeout
            There was no room within `timeout`.
        InvalidArgument
            Nothing was sent.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()}, device="cpu")
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> loader = buffer.shared_loader(4, readers=1)
        >>> reader = loader.reader()
        >>> reader.update_priorities([0, 1], [2.0, 3.0])
        >>> reader.flush()
        >>> buffer.priorities([0, 1]).round(3).tolist()
        [2.0, 3.0]
        """
        handle = self._open()
        if (priorities is None) == (td_errors is None):
            raise InvalidArgument("update_priorities needs td_errors or priorities, one of the two")
        values = td_errors if priorities is None else priorities
        queue = self._memory.queue(None)
        given = _exchange.read_update(self._memory, self._layout, ids, values, priorities is not None, queue)
        waited(timeout, lambda timeout_ms: lib.per_reader_update_priorities(handle, given.priorities, timeout_ms))

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything this reader sent has been applied to the buffer or refused.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait. None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        InvalidArgument
            The loader was closed.
        """
        handle = self._open()
        waited(timeout, lambda timeout_ms: lib.per_reader_flush(handle, timeout_ms))

    def close(self) -> None:
        """Releases all batches and makes room for another reader. Later batches overwrite their arrays."""
        super().close()
        self._loader = None
        ffi.release(self._place)

    def __repr__(self) -> str:
        state = "" if self._handle is not None else ", closed"
        return f"per.Reader({', '.join(self._fields)}, batch_size={self._batch_size}{state})"
