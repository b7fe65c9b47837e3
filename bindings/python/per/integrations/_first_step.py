"""Buffers of frameworks whose fields the first step declares."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import per

_lock = threading.Lock()


def declared(owner: Any, name: str, declare: Callable[[], per.ReplayBuffer]) -> per.ReplayBuffer:
    """The buffer that is an attribute of an object, made by the first step.

    Threads that bring first steps at the same time get the same one.
    """
    if getattr(owner, name) is None:
        with _lock:
            if getattr(owner, name) is None:
                setattr(owner, name, declare())
    buffer: per.ReplayBuffer = getattr(owner, name)
    return buffer
