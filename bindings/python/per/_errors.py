"""The exceptions of this package, one for each status of per.h and all of them a `per.Error`, and its warnings.

An exception has the name of its status: Empty for PER_ERROR_EMPTY. A status that names a place, not a problem, gets
Error appended: CudaError for PER_ERROR_CUDA. Each is also a subclass of the matching built-in exception.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterator
from typing import Any

from per._declarations import ffi

STATUS: dict[str, int] = dict(ffi.typeof("per_status").relements)


class Error(Exception):
    """Base of every error that libper reports.

    `status` is the per_status of per.h. The message names the argument, its value and what is allowed.

    Examples
    --------
    >>> import per
    >>> try:
    ...     per.SumTree(0)
    ... except per.Error as error:
    ...     error.status
    1
    """

    status: int = STATUS["PER_ERROR_INTERNAL"]


class InvalidArgument(Error, ValueError):
    """An argument or its contents are not allowed. Nothing was changed."""

    status: int = STATUS["PER_ERROR_INVALID_ARGUMENT"]


class OutOfMemory(Error, MemoryError):
    """Memory could not be allocated."""

    status: int = STATUS["PER_ERROR_OUT_OF_MEMORY"]


class Empty(Error, RuntimeError):
    """Nothing can be drawn."""

    status: int = STATUS["PER_ERROR_EMPTY"]


class Full(Error, RuntimeError):
    """A lane is full and the buffer was created with overwrite=False, or max_heap_bytes is used up."""

    status: int = STATUS["PER_ERROR_FULL"]


class Busy(Error, RuntimeError):
    """The object is in use, or not ready for this call. Waiting may help, except inside a callback that uses it."""

    status: int = STATUS["PER_ERROR_BUSY"]


class Timeout(Busy, TimeoutError):
    """The object was still in use, or not ready, when the `timeout` of a call expired."""


class Unsupported(Error, NotImplementedError):
    """An option, a device or a file format that this version does not support."""

    status: int = STATUS["PER_ERROR_UNSUPPORTED"]


class NoDevice(Error, RuntimeError):
    """No CUDA device is usable; the message says why."""

    status: int = STATUS["PER_ERROR_NO_DEVICE"]


class CudaError(Error, RuntimeError):
    """CUDA reported an error; the message has its name."""

    status: int = STATUS["PER_ERROR_CUDA"]


class IoError(Error, OSError):
    """A file could not be read or written.

    If the system gave a reason, it is also the matching built-in exception, such as FileNotFoundError or
    PermissionError, and has its `errno` and `strerror`. `filename` is the path passed to the call.

    Examples
    --------
    >>> import per
    >>> try:
    ...     per.ReplayBuffer.load("/none/at/all")
    ... except FileNotFoundError as error:
    ...     isinstance(error, per.IoError), error.errno, error.filename
    (True, 2, '/none/at/all')
    """

    status: int = STATUS["PER_ERROR_IO"]

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return io_error, (str(self), self.errno, self.filename)


def io_error(message: str, number: int | None, filename: Any = None) -> IoError:
    """The exception for an errno, or for a reason that is not the system's."""
    error = (IoError if number is None else _io_error_type(number))(message)
    if number is not None:
        error.errno, error.strerror = number, os.strerror(number)
    error.filename = filename
    return error


def _errno_of(message: str) -> int | None:
    """The errno of a message of the library, which then ends in the system's text, in the program's language."""
    return next((number for number in errno.errorcode if message.endswith(f": {os.strerror(number)}")), None)


@functools.cache
def _io_error_type(number: int) -> type[IoError]:
    """IoError, or its subclass that is also the built-in exception for an errno."""
    kind = type(OSError(number, ""))
    if kind is OSError:
        return IoError
    return type("IoError", (IoError, kind), {"__doc__": IoError.__doc__, "__module__": "per"})


@contextlib.contextmanager
def about(path: Any, storage: Any = None) -> Iterator[None]:
    """Adds the path passed to the call to file errors. Messages about the file of rows begin with "storage"."""
    try:
        yield
    except IoError as error:
        given = storage if str(error).startswith("storage ") else path
        error.filename = None if given is None else os.fspath(given)
        raise


class CorruptFile(Error, ValueError):
    """A file was not written by this library, or is damaged."""

    status: int = STATUS["PER_ERROR_CORRUPT_FILE"]


class CallbackError(Error, RuntimeError):
    """A callback passed to the library failed."""

    status: int = STATUS["PER_ERROR_CALLBACK"]


class InternalError(Error, RuntimeError):
    """A defect of the library. Please report the message."""

    status: int = STATUS["PER_ERROR_INTERNAL"]


BY_STATUS: dict[int, type[Error]] = {error.status: error for error in Error.__subclasses__()}


def of_status(status: int, message: str) -> Error:
    """The exception for a status."""
    kind = BY_STATUS.get(status, Error)
    return io_error(message, _errno_of(message)) if kind is IoError else kind(message)


def kind_of(value: object) -> str:
    """The type of a value in a message: "a list", "an int", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


class PerWarning(UserWarning):
    """Warns of a use that is allowed but hardly ever intended.

    Examples
    --------
    >>> import per, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", per.PerWarning)
    ...     per.ReplayBuffer(10, {"observation": per.Field()}, beta_final=0.5)
    Traceback (most recent call last):
    per.PerWarning: beta_final is 0.5, but beta_steps is 0: beta stays 0.4
    """


for _error in (Error, Timeout, PerWarning, *BY_STATUS.values()):
    _error.__module__ = "per"  # users import it from there, and tracebacks print this name
