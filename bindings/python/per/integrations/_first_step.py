"""Framework buffers whose fields are declared by the first step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import per

_lock = threading.Lock()


def declared(owner: Any, name: str, declare: Callable[[], per.ReplayBuffer]) -> per.ReplayBuffer:
    """The buffer in an attribute of an object, created at the first step.

    Threads that add first steps at the same time get the same buffer.
    """
    if getattr(owner, name) is None:
        with _lock:
            if getattr(owner, name) is None:
                setattr(owner, name, declare())
    buffer: per.ReplayBuffer = getattr(owner, name)
    return buffer
