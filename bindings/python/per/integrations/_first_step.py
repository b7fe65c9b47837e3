"""Framework buffers whose fields are declared by the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import per
from per._waiting import new_lock

_lock = new_lock()


def declared(
    owner: Any,
    name: str,
    declare: Callable[[], per.ReplayBuffer],
    use: Callable[[per.ReplayBuffer], Any] = lambda buffer: buffer,
) -> Any:
    """Calls use() with the buffer in an attribute of an object, and returns the result.

    The attribute is None at first. The first step creates the buffer, which is kept once use() has added the step: one
    that is refused declares nothing. Threads that add first steps at the same time get the same buffer.
    """
    attributes = vars(owner)
    attributes.setdefault(name, None)  # which the class may have
    if attributes[name] is None:
        with _lock:
            if attributes[name] is None:
                made = declare()
                result = use(made)
                # A signal handler may have set it. Python runs none within this line, which makes no call.
                attributes[name] = made if attributes[name] is None else attributes[name]
                if attributes[name] is made:
                    return result
    return use(attributes[name])
