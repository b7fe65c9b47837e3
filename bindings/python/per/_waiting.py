"""Waits that Ctrl-C interrupts, and locks that signal handlers and forked children can take."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from per import _options
from per._errors import Busy, InvalidArgument, Timeout
from per._library import check, lib

# Slice of a blocking wait, so that Ctrl-C is noticed.
_LONGEST_WAIT_S = 0.1

# Default timeout in seconds for a checkpoint directory.
DIRECTORY_TIMEOUT: float = lib.PER_DIRECTORY_TIMEOUT_MS / 1000


def seconds_of(timeout: float | None) -> float:
    """The longest wait in seconds; None: no limit."""
    seconds = math.inf if timeout is None else _options.real("timeout", timeout)
    if not seconds >= 0:
        raise InvalidArgument(f"timeout is {timeout}; allowed: None, or seconds >= 0")
    return seconds


def waited(timeout: float | None, call: Callable[[int], int]) -> None:
    """Calls a library function, which takes a timeout in milliseconds, until it succeeds.

    Parameters
    ----------
    timeout : float or None
        Seconds; None: no limit.

    Raises
    ------
    Timeout
        The wait exceeds `timeout`.
    Busy
        Immediately if waiting cannot help. Other statuses of `call` raise their own exceptions.
    """
    end = time.monotonic() + seconds_of(timeout)
    while True:
        begin = time.monotonic()
        left = max(end - begin, 0.0)
        timeout_ms = math.ceil(1000 * min(left, _LONGEST_WAIT_S))
        try:
            return check(call(timeout_ms))
        except Busy as error:
            # If waiting can help, the library waits for the whole slice. It returns earlier only for a reason that
            # waiting does not change.
            if 1000 * (time.monotonic() - begin) < timeout_ms:
                raise
            if left <= _LONGEST_WAIT_S:
                raise Timeout(str(error)) from None


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> Any:
    """A lock that a signal handler may take again, and that is free in a forked child.

    What it guards must be usable wherever an interrupt, or a fork by another thread, has ended a change.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # the threads that held them are in the parent


os.register_at_fork(after_in_child=_free_all)
