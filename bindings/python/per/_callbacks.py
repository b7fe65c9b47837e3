"""Library calls that call Python back: locks, and interpreter shutdown.

After finalisation, a thread that returns from C to run a callback crashes: cffi acquires the GIL with
PyGILState_Ensure(), which needs a live interpreter. Therefore, at exit, such a call in another thread fails at its next
callback, so that it releases the buffer's lock, and then never returns to its caller. The exit waits briefly until all
of them have failed.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from per._errors import InvalidArgument
from per._library import ffi

_LONGEST_WAIT_S = 2.0  # for a user callback that does not end

_inside: dict[int, int] = {}  # nesting depth of such calls, by thread
_is_ending = False


def is_over() -> bool:
    """Whether a callback has to fail: the process is exiting, and this is not the main thread."""
    return _is_ending and threading.current_thread() is not threading.main_thread()


@contextmanager
def allowed() -> Iterator[None]:
    """Context of a call that may call Python back."""
    thread = threading.get_ident()
    _inside[thread] = _inside.get(thread, 0) + 1
    if is_over():
        _leave(thread)
    try:
        yield
    finally:
        _leave(thread)


@contextmanager
def held(lock: Any, buffers: Iterable[Any]) -> Iterator[None]:
    """Holds a lock under which threads wait for those buffers.

    Inside a call of one of them, such a thread would wait for this one: Busy is raised.
    """
    if threading.get_ident() in _inside:
        for buffer in buffers:
            with suppress(InvalidArgument):  # a closed one is the call's concern
                buffer._describe()
    with lock:
        yield


def _leave(thread: int) -> None:
    """Ends a call. Never returns once the process is exiting."""
    _inside[thread] = _inside.get(thread, 1) - 1
    if _inside.get(thread, 0) == 0:  # without an entry, a signal handler has been here
        _inside.pop(thread, None)
    while is_over():
        time.sleep(3600)


def keep_error(kind: object, error: BaseException, traceback: Any) -> None:
    """Stores an exception that cannot pass through C, including one of a signal that arrives before any other code.

    It is the `onerror` of callbacks whose argument `context` is a handle of an object with an attribute `error`.
    """
    ffi.from_handle(traceback.tb_frame.f_locals["context"]).error = error


def _wait_for_others() -> None:
    global _is_ending
    _is_ending = True
    end = time.monotonic() + _LONGEST_WAIT_S
    while set(_inside) - {threading.get_ident()} and time.monotonic() < end:
        time.sleep(0.001)


atexit.register(_wait_for_others)
os.register_at_fork(after_in_child=_inside.clear)
