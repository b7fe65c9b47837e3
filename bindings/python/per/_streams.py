"""The stream that a call on CUDA is queued on."""

from __future__ import annotations

from typing import Any, NamedTuple

from per._errors import InvalidArgument
from per._library import NULL, ffi


class Queue(NamedTuple):
    """Where a call is queued: a stream that the caller chose, or the current one of the buffer's arrays."""

    handle: Any = NULL
    """cudaStream_t"""
    is_chosen: bool = False

    @property
    def number(self) -> int:
        return int(ffi.cast("uintptr_t", self.handle))

    @property
    def dlpack_number(self) -> int:
        """DLPack calls the legacy default stream 1, as 0 could be it or the one of the thread."""
        return self.number or 1


# The stream that is none, of a buffer in host memory; for a library that allocates, the one it works on.
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
    """The stream that an array's writer works on, by DLPack's numbers, which __cuda_array_interface__ shares.

    None: nothing has to be waited for. Raises InvalidArgument for a number that says nothing.
    """
    if number is None or number == -1:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidArgument(f"{name} says stream {number!r}; allowed: None, -1, 1, 2 or a cudaStream_t")
    if number == 0:
        raise InvalidArgument(f"{name} says stream 0; allowed: 1 for the legacy default stream, 2 for the thread's")
    return 0 if number == 1 else number
