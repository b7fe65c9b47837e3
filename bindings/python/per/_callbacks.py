"""Calls of the library that call Python back, and the end of the interpreter.

Once Python has taken its interpreter away, a thread that comes back from C for a callback crashes: cffi asks for the
lock by PyGILState_Ensure(), which makes a thread state of nothing. So at exit such calls of other threads fail at their
next callback, which frees the lock of the buffer, and do not return. The exit waits a little for them.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_WAIT_S = 2.0  # for a function of the user's that does not end

_inside: dict[int, int] = {}  # threads in such calls, and in how many each
_is_ending = False


def is_over() -> bool:
    """Whether a callback has to fail: the process ends, and this is another thread than the one that ends it."""
    return _is_ending and threading.current_thread() is not threading.main_thread()


@contextmanager
def allowed() -> Iterator[None]:
    """Around a call that may call Python back."""
    thread = threading.get_ident()
    _inside[thread] = _inside.get(thread, 0) + 1
    if is_over():
        _leave(thread)
    try:
        yield
    finally:
        _leave(thread)


def _leave(thread: int) -> None:
    """Does not come back once the process ends."""
    _inside[thread] = _inside.get(thread, 1) - 1
    if _inside[thread] == 0:
        del _inside[thread]
    while is_over():
        time.sleep(3600)


def _wait_for_others() -> None:
    global _is_ending
    _is_ending = True
    end = time.monotonic() + _LONGEST_WAIT_S
    while set(_inside) - {threading.get_ident()} and time.monotonic() < end:
        time.sleep(0.001)


atexit.register(_wait_for_others)
os.register_at_fork(after_in_child=_inside.clear)
