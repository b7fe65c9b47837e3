"""Waits in C that Ctrl-C ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from per import _options
from per._errors import Busy, InvalidArgument, Timeout
from per._library import check, lib

# Slice of a wait in C, which cannot be interrupted.
_LONGEST_WAIT_S = 0.1

# Seconds that a call waits for a directory of checkpoints by default.
DIRECTORY_TIMEOUT: float = lib.PER_DIRECTORY_TIMEOUT_MS / 1000


def seconds_of(timeout: float | None) -> float:
    """How long may be waited; None: for as long as it takes."""
    seconds = math.inf if timeout is None else _options.real("timeout", timeout)
    if not seconds >= 0:
        raise InvalidArgument(f"timeout is {timeout}; allowed: None, or seconds >= 0")
    return seconds


def waited(timeout: float | None, call: Callable[[int], int]) -> None:
    """Calls a function of the library, which takes the milliseconds that it may wait, until it does not need more.

    Parameters
    ----------
    timeout : float or None
        Seconds; None: for as long as it takes.

    Raises
    ------
    Timeout
        If it takes longer.
    Busy
        At once if no wait would help; what `call` has as its status.
    """
    end = time.monotonic() + seconds_of(timeout)
    while True:
        begin = time.monotonic()
        left = max(end - begin, 0.0)
        timeout_ms = math.ceil(1000 * min(left, _LONGEST_WAIT_S))
        try:
            return check(call(timeout_ms))
        except Busy as error:
            # The library waits for all of that time if the wait may end. It gives up sooner only for a reason that
            # waiting does not change.
            if 1000 * (time.monotonic() - begin) < timeout_ms:
                raise
            if left <= _LONGEST_WAIT_S:
                raise Timeout(str(error)) from None
