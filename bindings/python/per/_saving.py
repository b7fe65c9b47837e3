"""Saves buffers, and loads them: files, folders of checkpoints, bytes, pickles and state dicts."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from per import _arrays, _files, _kinds, _library, _options
from per._errors import InvalidArgument, about
from per._handle import created
from per._library import check, ffi, lib
from per._settings import Settings
from per._waiting import DIRECTORY_TIMEOUT, waited
from per.saving import Save
from per.typing import Array, Arrays

AnySaving = TypeVar("AnySaving", bound="Saving")


class Saving(Settings[Array]):
    """The calls that save a buffer and load one."""

    __slots__ = ()

    @overload
    def save(
        self, path: str | os.PathLike[str] | BinaryIO, *, wait: Literal[True] = True, compression: int | None = None
    ) -> None: ...
    @overload
    def save(self, path: str | os.PathLike[str], *, wait: bool, compression: int | None = None) -> Save | None: ...
    def save(
        self, path: str | os.PathLike[str] | BinaryIO, *, wait: bool = True, compression: int | None = None
    ) -> Save | None:
        """Writes the whole buffer to a file, so that a loaded one continues bit for bit.

        Of a path the file takes its place once it is complete; until then, and after an error, what was there before
        stays. Where path is a symbolic link, the file that it leads to is replaced. The mode of a file that is replaced
        is kept.

        A binary file object gets the same bytes by its write(), from where it stands; several buffers, and what else,
        may go to one file. What is written is the buffer of one moment: other threads that use it wait for the end, and
        write() itself may use any buffer but this one (Busy). What it raises passes through, and what it took until
        then is no checkpoint.

        With wait=False a thread of the library writes the file, and gets what the buffer is now, bit for bit, whatever
        is added, drawn or updated meanwhile. Save.wait() says how it ended. Rows that change before they are written
        are copied first; on CUDA all of the buffer is copied to host memory by this call. Closing the buffer, and the
        end of the interpreter, wait for the end of the save.

        Parameters
        ----------
        path : str or os.PathLike[str] or BinaryIO
            Path of the file, or a binary file object.
        wait : bool, default True
            For the file to be on the disk. A file object takes its bytes on the thread of the call.
        compression : int, optional
            Of this file, 0 to 19 as save_compression; None: save_compression.

        Raises
        ------
        IoError
            The file cannot be written.
        Busy
            wait is False, and such a save of this buffer is still running.
        InvalidArgument
            path has a NUL in it, or is a file object though wait is False.
        CallbackError
            write() says that it took no bytes, or more than it was given.

        Examples
        --------
        >>> import io, per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
        >>> file = io.BytesIO()
        >>> buffer.save(file)
        >>> file.getvalue() == bytes(buffer)
        True
        """
        options = _options.save_options(compression)
        if _files.is_file(path, "write"):
            if not wait:
                raise InvalidArgument("path is a file object; allowed with wait=False: paths")
            _files.save(self._open(), path, options)
        elif wait:
            with about(path):
                check(lib.per_replay_save(self._open(), _options.path(path), options))
        else:
            return Save(self._open(), path, options)
        return None

    def checkpoint(
        self,
        directory: str | os.PathLike[str],
        *,
        timeout: float | None = DIRECTORY_TIMEOUT,
        compression: int | None = None,
    ) -> int:
        """Writes a checkpoint into a directory, and of it only what the last one there does not hold.

        That is rows that came since then or were set, priorities, and what else has changed. load() takes the
        directory. It is made if it is not there; the one above it must be there. It takes at most some two times what
        save() writes. At any time, also after an error, a kill or a power failure, it holds this checkpoint or the one
        before, whole. Where it is the buffer's `storage`, rows stay in their file, which load() with the same `storage`
        goes on from. Other files in it stay.

        Calls for one directory take turns, those of other processes too. Other threads may use the buffer while this
        call waits for its turn.

        Parameters
        ----------
        directory : str or os.PathLike[str]
            Path of the directory.
        timeout : float or None, default DIRECTORY_TIMEOUT
            Seconds until its turn; None: for as long as it takes.
        compression : int, optional
            Of what this call writes, 0 to 19 as save_compression; None: save_compression.

        Returns
        -------
        int
            The bytes that were written.

        Raises
        ------
        IoError
            The directory cannot be written.
        Timeout
            Its turn does not come in time.
        InvalidArgument
            It has a NUL in its name.
        CorruptFile
            The manifest of the last checkpoint is damaged.
        Unsupported
            It is of a newer version.

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

    @classmethod
    def load(
        cls: type[AnySaving],
        path: str | os.PathLike[str] | BinaryIO,
        *,
        device: str = "cpu",
        arrays: Arrays | None = None,
        storage: str | os.PathLike[str] | None = None,
        storage_preallocated: bool = False,
        timeout: float | None = DIRECTORY_TIMEOUT,
    ) -> AnySaving:
        """A buffer from a file that save() wrote, or a directory of checkpoint(), on the device asked for.

        With `storage` its rows lie in a file in that directory, as the class says; not for file objects. The call waits
        while a checkpoint is written to the directory, `timeout` seconds at most; None: for as long as it takes.

        Of a binary file object the bytes of one buffer are read, by its read(), from where it stands to where they end.
        What that raises passes through.

        Parameters
        ----------
        path : str or os.PathLike[str] or BinaryIO
            Path of a file or of a directory of checkpoint(), or a binary file object.
        device : str, default "cpu"
            "cpu", "cuda" or "cuda:1".
        arrays : {"numpy", "torch", "jax", "cupy"}, optional
            The arrays of batches. None: numpy's on the CPU and torch's on CUDA.
        storage : str or os.PathLike[str], optional
            A directory for the rows; see the class.
        storage_preallocated : bool, default False
            Take the room on the disk at once; see the class.
        timeout : float or None, default DIRECTORY_TIMEOUT
            Seconds to wait while a checkpoint is written to the directory. None: for as long as it takes.

        Raises
        ------
        IoError
            The file cannot be read.
        InvalidArgument
            path has a NUL in it.
        CorruptFile
            It is not one of save()'s, is damaged, or ends early.
        Busy
            The directory is written to for all that time; with the `storage` that rows of a checkpoint lie in, a buffer
            has them already.
        Unsupported
            It is of a newer version.
        CallbackError
            read() gave more than it was asked for.

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
        if _files.is_file(path, "read"):
            for name, value, allowed in (
                ("storage", storage, None),
                ("storage_preallocated", storage_preallocated, False),
            ):
                if value is not allowed:
                    raise InvalidArgument(f"{name} is {value!r}; allowed: {allowed}, as a file object is read")
            handle = _files.load(path, _options.device(device))
        else:
            options = _library.new("per_load_options")
            options.device, options.device_index = _options.device(device)
            _options.set_options(options, {"storage_preallocated": storage_preallocated})
            kept = _options.set_storage(options, storage)
            given = _options.path(path)
            handle = None

            def load_once(timeout_ms: int) -> int:
                nonlocal handle
                options.timeout_ms = timeout_ms
                handle = created(lib.per_replay_load, given, options)
                return int(lib.PER_OK)

            with about(path):
                waited(timeout, load_once)
            del kept
        buffer = cls.__new__(cls)
        buffer._attach(handle, str(device), kind)
        return buffer

    def __bytes__(self) -> bytes:
        """What save() writes."""
        file = io.BytesIO()
        self.save(file)
        return file.getvalue()

    @classmethod
    def from_bytes(
        cls: type[AnySaving], data: object, *, device: str = "cpu", arrays: Arrays | None = None
    ) -> AnySaving:
        """The buffer of bytes(buffer), on the device asked for.

        Parameters
        ----------
        data : object
            Bytes, or anything else of contiguous memory.
        device : str, default "cpu"
            "cpu", "cuda" or "cuda:1".
        arrays : {"numpy", "torch", "jax", "cupy"}, optional
            The arrays of batches. None: numpy's on the CPU and torch's on CUDA.

        Raises
        ------
        CorruptFile
            It is not of a buffer, is damaged, ends early, or goes on.
        InvalidArgument
        Unsupported
            As load().

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
        >>> per.ReplayBuffer.from_bytes(bytes(buffer)).options == buffer.options
        True
        """
        memory = _files.Memory(data)
        buffer = cls.load(memory, device=device, arrays=arrays)  # type: ignore[arg-type]
        memory.check_end()
        return buffer

    def _checkpoint(self) -> npt.NDArray[np.uint8]:
        """What save() writes, uint8[bytes]."""
        file = io.BytesIO()
        self.save(file)
        return np.frombuffer(file.getbuffer(), np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or copied buffer goes on bit for bit, on its own device. Loaders and epochs stay with this one."""
        others = {name: value for name, value in vars(self).items() if name != "_handle"}
        return _from_checkpoint, (type(self), self._checkpoint(), self._device, self._kind), others or None

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer as {"checkpoint": uint8[bytes]}: what save() writes, in host memory.

        The array is torch's if the buffer gives such, so that torch.load() reads it with weights_only, else numpy's.

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
        """Becomes the buffer of a state_dict(), with its options, on its own device and with its own kind of arrays.

        No other thread may use the buffer meanwhile. Loaders and epochs that were begun before go on with what it was.

        Parameters
        ----------
        state_dict : Mapping[str, object]
            Of a buffer with the same fields and n_envs.

        Raises
        ------
        InvalidArgument
        CorruptFile
        Unsupported
            Then the buffer is as it was.

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
        if set(state_dict) != {"checkpoint"}:
            given = ", ".join(map(repr, state_dict)) or "no entries"
            raise InvalidArgument(f"state_dict has {given}; allowed: 'checkpoint'")
        array, _ = _arrays.as_array(state_dict["checkpoint"], "checkpoint")
        if array.dtype != np.uint8:
            raise InvalidArgument(f"checkpoint is of dtype {array.dtype}; allowed: uint8")
        data = np.ascontiguousarray(array)
        other = Saving.from_bytes(data, device=self._device, arrays=self._kind)
        for name in ("fields", "n_envs"):
            own, given = getattr(self, name), getattr(other, name)
            if own != given:
                raise InvalidArgument(f"checkpoint has {name} {given!r}; allowed: those of the buffer, {own!r}")
        self._attach(other._handle, self._device, self._kind)


def _from_checkpoint(kind: type[AnySaving], checkpoint: object, device: str, arrays: Arrays) -> AnySaving:
    """What a pickled buffer calls."""
    return kind.from_bytes(checkpoint, device=device, arrays=arrays)
