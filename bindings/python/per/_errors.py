"""The exceptions of this package: one for each status of per.h, all of them a `per.Error`."""

from __future__ import annotations

from per._declarations import ffi

STATUS: dict[str, int] = dict(ffi.typeof("per_status").relements)


class Error(Exception):
    """Base of every error that libper reports.

    `status` is the number of the per_status in per.h. The message names the argument, its value and what is allowed.

    >>> import per
    >>> try:
    ...     per.SumTree(0)
    ... except per.Error as error:
    ...     error.status
    1
    """

    status: int = STATUS["PER_ERROR_INTERNAL"]


class InvalidArgument(Error, ValueError):
    """An argument, or what it holds, is not allowed. Nothing was changed."""

    status = STATUS["PER_ERROR_INVALID_ARGUMENT"]


class OutOfMemory(Error, MemoryError):
    """The memory asked for cannot be had."""

    status = STATUS["PER_ERROR_OUT_OF_MEMORY"]


class Empty(Error, RuntimeError):
    """There is nothing to draw."""

    status = STATUS["PER_ERROR_EMPTY"]


class Full(Error, RuntimeError):
    """A lane is full and the buffer was created with overwrite=False."""

    status = STATUS["PER_ERROR_FULL"]


class Busy(Error, RuntimeError):
    """The object is in use by the callback that made this call."""

    status = STATUS["PER_ERROR_BUSY"]


class Unsupported(Error, NotImplementedError):
    """An option, a device or a file format that this version does not have."""

    status = STATUS["PER_ERROR_UNSUPPORTED"]


class NoDevice(Error, RuntimeError):
    """There is no usable CUDA device; the message says why."""

    status = STATUS["PER_ERROR_NO_DEVICE"]


class CudaError(Error, RuntimeError):
    """CUDA reported an error; the message has its name."""

    status = STATUS["PER_ERROR_CUDA"]


class IoError(Error, OSError):
    """A file could not be read or written."""

    status = STATUS["PER_ERROR_IO"]


class CorruptFile(Error, ValueError):
    """A file is not one of this library's, or is damaged."""

    status = STATUS["PER_ERROR_CORRUPT_FILE"]


class CallbackError(Error, RuntimeError):
    """A function given to the library failed."""

    status = STATUS["PER_ERROR_CALLBACK"]


class InternalError(Error, RuntimeError):
    """A defect of the library. Please report the message."""

    status = STATUS["PER_ERROR_INTERNAL"]


BY_STATUS: dict[int, type[Error]] = {error.status: error for error in Error.__subclasses__()}

for _error in (Error, *BY_STATUS.values()):
    _error.__module__ = "per"  # where users have it from, and what tracebacks call it
