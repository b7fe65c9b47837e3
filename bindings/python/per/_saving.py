"""Saves buffers, and loads them: files, folders of checkpoints, bytes, pickles and state dicts."""

from __future__ import annotations

import dataclasses
import importlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from per import _arrays, _files, _kinds, _library, _options
from per._errors import InvalidArgument, about, kind_of
from per._handle import constructor, created
from per._library import check, ffi, lib
from per._settings import Settings
from per._waiting import DIRECTORY_TIMEOUT, waited
from per.saving import Save
from per.typing import Array, Arrays, DeviceLike, IntLike, Path, SupportsRead, SupportsWrite

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from per.field import Field
    from per.replay import ReplayBuffer

    class NotASubclass(Protocol):
        """ReplayBuffer itself. The method of a subclass accepts only buffers of the subclass.

        A subclass declares its arrays, so what it loads is of its own type. That of ReplayBuffer follows the options.
        """

        def _accepts(self, buffer: ReplayBuffer[Any], /) -> None: ...


AnySaving = TypeVar("AnySaving", bound="Saving")


class Saving(Settings[Array]):
    """Calls that save and load a buffer."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _accepts(self, buffer: Self, /) -> None: ...

    @overload
    def save(
        self, path: Path | SupportsWrite, *, wait: Literal[True] = True, compression: IntLike | None = None
    ) -> None: ...
    @overload
    def save(self, path: Path, *, wait: Literal[False], compression: IntLike | None = None) -> Save: ...
    @overload
    def save(self, path: Path, *, wait: bool, compression: IntLike | None = None) -> Save | None: ...
    def save(self, path: Path | SupportsWrite, *, wait: bool = True, compression: IntLike | None = None) -> Save | None:
        """Writes the whole buffer to a file, from which a loaded one continues bit-identically.

        A path is replaced once the new file is complete; until then, and after an error, the earlier file stays. If
        path is a symbolic link, its target is replaced. A replaced file keeps its mode.

        A binary file object receives the same bytes through write(), from its current position; one file may hold
        several buffers and other data. The bytes are a snapshot: other threads that use the buffer wait for the end,
        and write() itself may use any buffer but this one (Busy). Its exceptions propagate; the bytes written until
        then are not a valid checkpoint.

        With wait=False a thread of the library writes the file. It gets the state at the time of this call, bit for
        bit, whatever is added, drawn or updated meanwhile. Save.wait() reports the result. Rows are copied on write; on
        CUDA this call copies the whole buffer to host memory. Closing the buffer, and interpreter exit, wait for the
        save to end.

        Parameters
        ----------
        path : Path or SupportsWrite
            Path of the file, or a binary file object.
        wait : bool, default True
            Wait until the file is on the disk. A file object is always written on the calling thread.
        compression : int, optional
            Compression of this file, 0 to 19 as in save_compression; None: save_compression.

        Raises
        ------
        IoError
            The file cannot be written.
        Busy
            wait is False, and another such save of this buffer is still running.
        InvalidArgument
            path contains a NUL, or is a file object and wait is False.
        CallbackError
            write() reports that it took no bytes, or more than it was given.

        Examples
        --------
        >>> import io, per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
        >>> file = io.BytesIO()
        >>> buffer.save(file)
        >>> file.getvalue() == bytes(buffer)
        True
        """
        wait = _options.flag("wait", wait)
        options = _options.save_options(compression)
        if _files.is_file(path, "write"):
            if not wait:
                raise InvalidArgument("path is a file object; allowed with wait=False: paths")
            _files.save(self._open(), path, options)
        elif wait:
            with about(path):
                given = _options.path(path, or_file=", or a binary file")
                check(lib.per_replay_save(self._open(), given, options))
        else:
            return Save(self._open(), path, options)
        return None

    def checkpoint(
        self,
        directory: Path,
        *,
        timeout: float | None = DIRECTORY_TIMEOUT,
        compression: IntLike | None = None,
    ) -> int:
        """Writes an incremental checkpoint to a directory: only what differs from the last checkpoint there.

        It writes rows that were added or set, priorities, and other changed state. The directory is created if missing;
        its parent must exist. It takes at most about twice the space of a file from save(). At any time, also after an
        error, a kill or a power failure, it holds either this checkpoint or the one before, complete; load() reads it.
        If the directory is the buffer's `storage`, rows stay in their file, and load() with the same `storage`
        continues from it. Other files in the directory stay.

        Calls for one directory are serialised, also across processes. Other threads may use the buffer while this call
        waits for its turn.

        Parameters
        ----------
        directory : Path
            Path of the directory.
        timeout : float or None, default DIRECTORY_TIMEOUT
            Seconds to wait for its turn; None: no limit.
        compression : int, optional
            Compression of the data written by this call, 0 to 19 as in save_compression; None: save_compression.

        Returns
        -------
        int
            Number of bytes written.

        Raises
        ------
        IoError
            The directory cannot be written.
        Timeout
            Its turn did not come in time.
        InvalidArgument
            The path contains a NUL.
        CorruptFile
            The manifest of the last checkpoint is damaged.
        Unsupported
            The last checkpoint was written by a newer version.

        Examples
        --------
        >>> import per, tempfile
        >>> buffer = per.ReplayBuffer(100_000, {"observation": per.Field(2)}, seed=3)
        >>> _ = buffer.extend(observation=[[0, 1]] * 50_000, reward=[1] * 50_000, terminated=[0] * 50_000,
        ...                   truncated=[0] * 50_000)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     first, second = buffer.checkpoint(directory), buffer.checkpoint(directory)
        ...     len(per.ReplayBuffer.load(directory)), second < first / 10
        (49999, True)
        """
        written_out = ffi.new("int64_t *")
        path = _options.path(directory, "directory")
        options = _options.save_options(compression)

        def checkpoint_once(timeout_ms: int) -> int:
            options.timeout_ms = timeout_ms
            return int(lib.per_replay_checkpoint(self._open(), path, options, written_out))

        with about(directory):
            waited(timeout, checkpoint_once)
        return int(written_out[0])

    @overload
    @classmethod
    def load(
        cls: type[NotASubclass],
        path: Path | SupportsRead,
        *,
        device: Literal["cpu"] = "cpu",
        arrays: Literal["numpy"] | None = None,
        max_heap_bytes: IntLike | None = None,
        storage: Path | None = None,
        storage_preallocated: bool = False,
        timeout: float | None = DIRECTORY_TIMEOUT,
    ) -> ReplayBuffer[npt.NDArray[Any]]: ...

    @overload
    @classmethod
    def load(
        cls: type[NotASubclass],
        path: Path | SupportsRead,
        *,
        device: DeviceLike = "cpu",
        arrays: Literal["torch"],
        max_heap_bytes: IntLike | None = None,
        storage: Path | None = None,
        storage_preallocated: bool = False,
        timeout: float | None = DIRECTORY_TIMEOUT,
    ) -> ReplayBuffer[torch.Tensor]: ...

    @overload
    @classmethod
    def load(
        cls: type[AnySaving],
        path: Path | SupportsRead,
        *,
        device: DeviceLike = "cpu",
        arrays: Arrays | None = None,
        max_heap_bytes: IntLike | None = None,
        storage: Path | None = None,
        storage_preallocated: bool = False,
        timeout: float | None = DIRECTORY_TIMEOUT,
    ) -> AnySaving: ...

    @constructor  # type: ignore[misc]  # a subclass returns its own type
    def load(
        cls: Any,
        path: Path | SupportsRead,
        *,
        device: DeviceLike = "cpu",
        arrays: Arrays | None = None,
        max_heap_bytes: IntLike | None = None,
        storage: Path | None = None,
        storage_preallocated: bool = False,
        timeout: float | None = DIRECTORY_TIMEOUT,
    ) -> ReplayBuffer:
        """Loads a buffer from a file of save() or a directory of checkpoint(), on the given device.

        With `storage`, its rows are in a file in that directory, as the class describes; not for file objects. While a
        checkpoint is being written to the directory, the call waits for at most `timeout` seconds; None: no limit.

        From a binary file object, read() is called for the bytes of one buffer, from the current position to their end.
        Its exceptions propagate.

        Parameters
        ----------
        path : Path or SupportsRead
            Path of a file or of a directory of checkpoint(), or a binary file object.
        device : DeviceLike, default "cpu"
            "cpu", "cuda" or "cuda:1".
        arrays : {"numpy", "torch", "jax", "cupy"}, optional
            The arrays of batches. None: numpy on the CPU and torch on CUDA.
        max_heap_bytes : int, optional
            Limit on the memory of compressed fields and rows of any length; see the class.
        storage : Path, optional
            A directory for the rows; see the class.
        storage_preallocated : bool, default False
            Allocate the disk space at once; see the class.
        timeout : float or None, default DIRECTORY_TIMEOUT
            Seconds to wait while a checkpoint is written to the directory. None: no limit.

        Raises
        ------
        IoError
            The file cannot be read.
        InvalidArgument
            path contains a NUL.
        CorruptFile
            The file was not written by save(), is damaged, or is truncated.
        Timeout
            The directory was still being written to when `timeout` expired.
        Busy
            Another buffer already uses the `storage` with the rows of the checkpoint.
        Unsupported
            The file was written by a newer version.
        CallbackError
            read() returned more than was requested.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     buffer.save(f"{folder}/replay.per")
        ...     again = per.ReplayBuffer.load(f"{folder}/replay.per")
        >>> bool((again.sample(8).ids == buffer.sample(8).ids).all())
        True
        """
        kind = _kinds.kind_of(arrays, str(device))
        options = _library.new("per_load_options")
        options.device, options.device_index = _options.device(device)
        _options.set_options(options, {"max_heap_bytes": max_heap_bytes})
        preallocated = _options.flag("storage_preallocated", storage_preallocated)
        if _files.is_file(path, "read"):
            for name, value, allowed in (("storage", storage, None), ("storage_preallocated", preallocated, False)):
                if value is not allowed:
                    raise InvalidArgument(f"{name} is {value!r}; allowed: {allowed}, as a file object is read")
            handle = _files.load(path, options)
        else:
            _options.set_options(options, {"storage_preallocated": preallocated})
            kept = _options.set_storage(options, storage)
            given = _options.path(path, or_file=", or a binary file")
            handle = None

            def load_once(timeout_ms: int) -> int:
                nonlocal handle
                options.timeout_ms = timeout_ms
                handle = created(lib.per_replay_load, given, options)
                return int(lib.PER_OK)

            with about(path, storage):
                waited(timeout, load_once)
            del kept
        buffer: ReplayBuffer = cls.__new__(cls)
        buffer._attach(handle, str(device), kind)
        return buffer

    def __bytes__(self) -> bytes:
        """The bytes that save() writes."""
        file = io.BytesIO()
        self.save(file)
        return file.getvalue()

    @overload
    @classmethod
    def from_bytes(
        cls: type[NotASubclass],
        data: object,
        *,
        device: Literal["cpu"] = "cpu",
        arrays: Literal["numpy"] | None = None,
    ) -> ReplayBuffer[npt.NDArray[Any]]: ...
    @overload
    @classmethod
    def from_bytes(
        cls: type[NotASubclass], data: object, *, device: DeviceLike = "cpu", arrays: Literal["torch"]
    ) -> ReplayBuffer[torch.Tensor]: ...
    @overload
    @classmethod
    def from_bytes(
        cls: type[AnySaving], data: object, *, device: DeviceLike = "cpu", arrays: Arrays | None = None
    ) -> AnySaving: ...
    @constructor  # type: ignore[misc]
    def from_bytes(cls: Any, data: object, *, device: DeviceLike = "cpu", arrays: Arrays | None = None) -> ReplayBuffer:
        """Loads a buffer from bytes(buffer), on the given device.

        Parameters
        ----------
        data : object
            Bytes, or any other contiguous memory.
        device : DeviceLike, default "cpu"
            "cpu", "cuda" or "cuda:1".
        arrays : {"numpy", "torch", "jax", "cupy"}, optional
            The arrays of batches. None: numpy on the CPU and torch on CUDA.

        Raises
        ------
        CorruptFile
            The data are not a saved buffer, are damaged, are truncated, or have extra bytes.
        InvalidArgument
        Unsupported
            As in load().

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
        >>> per.ReplayBuffer.from_bytes(bytes(buffer)).options == buffer.options
        True
        """
        buffer: ReplayBuffer = _from_checkpoint(cls, data, device, arrays)
        return buffer

    def _checkpoint(self) -> npt.NDArray[np.uint8]:
        """The bytes that save() writes, uint8[bytes]."""
        file = io.BytesIO()
        self.save(file)
        return np.frombuffer(file.getbuffer(), np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or copied buffer continues bit-identically, on the same device. It has no loaders and no epochs."""
        others = {name: value for name, value in vars(self).items() if name != "_handle"}
        place = self._device, self._kind, self._max_heap_bytes()
        return _from_checkpoint, (type(self), self._checkpoint(), *place), others or None

    def _max_heap_bytes(self) -> int | None:
        return int(self._describe().memory.max_heap_bytes) or None

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer as {"checkpoint": uint8[bytes]}: the bytes that save() writes, in host memory.

        The array is a tensor if the buffer returns tensors, so that torch.load() reads it with weights_only; else
        numpy's.

        Examples
        --------
        >>> import per
        >>> fields = {"observation": per.Field(2)}
        >>> buffer, other = per.ReplayBuffer(100, fields, seed=3), per.ReplayBuffer(50, fields)
        >>> other.load_state_dict(buffer.state_dict())
        >>> other.options == buffer.options
        True
        """
        checkpoint = self._checkpoint()
        return {
            "checkpoint": importlib.import_module("torch").from_numpy(checkpoint)
            if self._kind == "torch"
            else checkpoint
        }

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Replaces the contents and options by those of a state_dict(). Device, arrays and max_heap_bytes stay.

        No other thread may use the buffer meanwhile. Loaders, epochs and channels created before continue with the
        earlier contents: create new ones.

        Parameters
        ----------
        state_dict : Mapping[str, object]
            State of a buffer with the same n_envs and, but for their compression, the same fields.

        Raises
        ------
        InvalidArgument
        CorruptFile
        Unsupported
            The buffer is unchanged. After an interrupt, such as Ctrl-C, it may be closed.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> other = per.ReplayBuffer(50, buffer.fields)
        >>> other.load_state_dict(buffer.state_dict())
        >>> len(other), other.capacity
        (8, 100)
        """
        self._open()
        if not isinstance(state_dict, Mapping):
            raise InvalidArgument(f"state_dict is {kind_of(state_dict)}; allowed: what state_dict() returned")
        if set(state_dict) != {"checkpoint"}:
            given = ", ".join(map(repr, state_dict)) or "no entries"
            raise InvalidArgument(f"state_dict has {given}; allowed: 'checkpoint', as state_dict() returned it")
        array, _ = _arrays.as_array(state_dict["checkpoint"], "checkpoint")
        if array.dtype != np.uint8:
            raise InvalidArgument(f"checkpoint is of dtype {array.dtype}; allowed: uint8")
        data = np.ascontiguousarray(array)
        other = _from_checkpoint(Saving, data, self._device, self._kind, self._max_heap_bytes())
        compared: dict[str, tuple[object, object]] = {
            "fields": (_as_drawn(self.fields), _as_drawn(other.fields)),
            "n_envs": (self.n_envs, other.n_envs),
        }
        for name, (own, its) in compared.items():
            if own != its:
                raise InvalidArgument(f"checkpoint has {name} {its!r}; allowed: those of the buffer, {own!r}")
        with self._closed_on_error():  # an interrupt may leave it with attributes of both
            self._attach(other._handle, self._device, self._kind)


def _from_checkpoint(
    kind: Any, checkpoint: object, device: DeviceLike, arrays: Arrays | None, max_heap_bytes: int | None = None
) -> Any:
    """Loads a buffer from memory, for from_bytes() and pickle."""
    memory = _files.Memory(checkpoint)
    buffer = kind.load(memory, device=device, arrays=arrays, max_heap_bytes=max_heap_bytes)
    memory.check_end()
    return buffer


def _as_drawn(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The fields, all uncompressed: compression changes nothing in a batch."""
    return {name: dataclasses.replace(field, compression="none") for name, field in fields.items()}
