"""Framework buffers whose fields are declared by the first step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import per

_lock = threading.RLock()  # a signal handler may take it again


def declared(owner: Any, name: str, declare: Callable[[], per.ReplayBuffer]) -> per.ReplayBuffer:
    """The buffer in an attribute of an object, None at first, created at the first step.

    Threads that add first steps at the same time get the same buffer.
    """
    attributes = vars(owner)
    attributes.setdefault(name, None)  # which the class may have
    if attributes[name] is None:
        with _lock:
            if attributes[name] is None:
                made = declare()
                # A signal handler may have set it. Python runs none within this line, which makes no call.
                attributes[name] = made if attributes[name] is None else attributes[name]
    buffer: per.ReplayBuffer = attributes[name]
    return buffer
