"""Waits in C that Ctrl-C ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from per import _options
from per._errors import Busy, InvalidArgument
from per._library import check

# Of a wait in C, which cannot be interrupted.
_LONGEST_WAIT_S = 0.1


def seconds_of(timeout: float | None) -> float:
    """How long may be waited; None: for as long as it takes."""
    seconds = math.inf if timeout is None else _options.real("timeout", timeout)
    if not seconds >= 0:
        raise InvalidArgument(f"timeout is {timeout}; allowed: None, or seconds >= 0")
    return seconds


def waited(timeout: float | None, call: Callable[[int], int]) -> None:
    """Calls a function of the library, which takes the milliseconds that it may wait, until it does not need more.

    Arguments:
        timeout: seconds; None: for as long as it takes.

    Raises:
        Busy if it takes longer; what `call` has as its status.
    """
    end = time.monotonic() + seconds_of(timeout)
    while True:
        left = max(end - time.monotonic(), 0.0)
        try:
            return check(call(math.ceil(1000 * min(left, _LONGEST_WAIT_S))))
        except Busy:
            if left <= _LONGEST_WAIT_S:
                raise
