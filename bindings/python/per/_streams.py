"""The stream that a call on CUDA is queued on."""

from __future__ import annotations

from typing import Any, NamedTuple

from per._errors import InvalidArgument
from per._library import NULL, ffi


class Queue(NamedTuple):
    """The stream of a call: one that the caller chose, or the current one of the buffer's array library."""

    handle: Any = NULL
    """cudaStream_t"""
    is_chosen: bool = False

    @property
    def number(self) -> int:
        return int(ffi.cast("uintptr_t", self.handle))

    @property
    def dlpack_number(self) -> int:
        """DLPack's number of the stream: 1 for the legacy default stream, since 0 could mean the per-thread one."""
        return self.number or 1


# No stream, for buffers in host memory. Libraries that allocate use their current stream.
CURRENT = Queue()


def number_of(stream: object) -> int:
    """The cudaStream_t of a stream of torch, CuPy or cuda.core, or of a number.

    Raises InvalidArgument.
    """
    handle: Any = stream
    if hasattr(handle, "__cuda_stream__"):
        handle = handle.__cuda_stream__()[1]
    else:
        for attribute in ("cuda_stream", "ptr"):
            handle = getattr(handle, attribute, handle)
    if not isinstance(handle, int) or isinstance(handle, bool) or not 0 <= handle < 2**64:
        raise InvalidArgument(f"stream is {stream!r}; allowed: a stream of torch or CuPy, or a cudaStream_t")
    return handle


def producer_of(number: object, name: str) -> int | None:
    """The stream of the work that writes an array, in DLPack's numbers, which __cuda_array_interface__ shares.

    None: no wait is needed. Raises InvalidArgument for an ambiguous number.
    """
    if number is None or number == -1:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidArgument(f"{name} says stream {number!r}; allowed: None, -1, 1, 2 or a cudaStream_t")
    if number == 0:
        raise InvalidArgument(f"{name} says stream 0; allowed: 1 for the legacy default stream, 2 for the thread's")
    return 0 if number == 1 else number
