"""Checkpoints in binary file objects and in memory."""

from __future__ import annotations

import errno
import io
import operator
import os
from collections.abc import Callable
from typing import Any

from per import _callbacks, _library
from per._errors import CorruptFile, InvalidArgument, kind_of
from per._handle import created
from per._library import NULL, ffi, lib


def is_file(target: object, verb: str) -> bool:
    """Whether it is an object to "write" to or "read" from, not a path. Raises InvalidArgument for a text file."""
    if isinstance(target, io.TextIOBase):
        raise InvalidArgument(
            f"path is {target!r}, a file of text; allowed: a binary file, as open(.., '{verb[0]}b') gives"
        )
    if isinstance(target, io.IOBase):
        return True
    return not isinstance(target, (str, bytes, os.PathLike)) and callable(getattr(target, verb, None))


def save(handle: Any, file: Any, options: Any) -> None:
    """Writes a buffer to a file object, by per_save_options. Exceptions of the file object propagate."""

    def write(memory: Any) -> int:
        n = file.write(bytes(memory))
        if n is not None:
            return operator.index(n)
        if isinstance(file, io.RawIOBase):
            raise BlockingIOError(errno.EAGAIN, "the file takes nothing now, and does not wait")
        return len(memory)  # the file object returns no count

    call = _Call(write)
    options.write, options.context = _pass_bytes, call.context
    with _callbacks.allowed():
        status = lib.per_replay_save(handle, NULL, options)
    call.check(status)


def load(file: Any, options: Any) -> Any:
    """Reads a buffer from a file object and leaves it just behind. Exceptions of the file object propagate.

    Parameters
    ----------
    options
        A per_load_options.
    """

    def read(memory: Any) -> int:
        given = file.read(len(memory))
        if given is None:
            raise BlockingIOError(errno.EAGAIN, "the file gives nothing now, and does not wait")
        memory[: min(len(given), len(memory))] = given[: len(memory)]
        return len(given)

    call = _Call(read)
    options.read, options.context = _pass_bytes, call.context
    with _callbacks.allowed():
        return created(lib.per_replay_load, NULL, options, check=call.check)


class Memory:
    """A file object over memory, all of which must be read."""

    def __init__(self, data: Any) -> None:
        try:
            self._view = memoryview(data).cast("B")
        except TypeError as error:
            raise InvalidArgument(f"data is {kind_of(data)}; allowed: contiguous bytes") from error

    def read(self, size: int) -> memoryview:
        """The next bytes."""
        given, self._view = self._view[:size], self._view[size:]
        return given

    def check_end(self) -> None:
        """Raises CorruptFile if bytes remain."""
        if len(self._view) > 0:
            raise CorruptFile(f"the data goes on after its end, by {len(self._view)} bytes")


class _Call:
    """A library call with a Python callback, and the exception that the callback raised."""

    def __init__(self, answer: Callable[[Any], int]) -> None:
        self._answer = answer
        self.context = ffi.new_handle(self)
        self.error: BaseException | None = None

    def answer(self, memory: Any) -> int:
        """The number of bytes passed. A value that cannot be one is returned unchanged."""
        return max(-1, min(self._answer(memory), len(memory) + 1))

    def check(self, status: int) -> None:
        """Raises the callback's exception, or else the exception for the status."""
        if self.error is not None:
            raise self.error
        _library.check(status, {"write": "write()", "read": "read()"})


# cffi gives both functions the same type.
@ffi.callback("int64_t(void *, void *, int64_t)", error=-1, onerror=_callbacks.keep_error)  # type: ignore[untyped-decorator]
def _pass_bytes(context: Any, data: Any, size: int) -> int:
    if _callbacks.is_over():
        return -1
    return ffi.from_handle(context).answer(ffi.buffer(data, size))  # type: ignore[no-any-return]
