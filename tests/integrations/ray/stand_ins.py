"""Ray in one process: actors whose calls are made when they are asked for, for what does not depend on processes."""

from __future__ import annotations

from types import SimpleNamespace

import ray


class Actor:
    """Calls answer with what the method returned, or the exception that it raised.

    While it hangs they wait. `before(name, given)` is called before each, and may raise an exception in its place.
    """

    hangs = False

    def __init__(self, make):
        self._make = make
        self.object = make()
        self.before = lambda name, given: None

    def __getattr__(self, name):
        def call(given):
            n = getattr(getattr(type(self.object), name), "__ray_num_returns__", 1)
            try:
                self.before(name, given)
                return getattr(self.object, name)(*given)
            except Exception as error:
                return error if n == 1 else (error,) * n

        def remote(*given):
            if not self.hangs:
                return call(given)
            late = Late(self, lambda: call(given))
            return late if name != "ask_for_rows" else (late, late)

        return SimpleNamespace(remote=remote)

    def die(self):
        """And begin anew, as with max_restarts."""
        self.object = self._make()


class Late:
    """An answer that comes when its actor does not hang any more."""

    def __init__(self, actor, call):
        self.actor, self.call = actor, call


def is_late(answer):
    return isinstance(answer, Late) and answer.actor.hangs


def get(answer):
    if isinstance(answer, list):
        return [get(each) for each in answer]
    if isinstance(answer, Late):
        answer = answer.call()
    if isinstance(answer, Exception):
        raise answer
    return answer


def wait(answers, num_returns=1, timeout=None):
    late = [answer for answer in answers if is_late(answer)]
    if late and timeout:
        RAY.waited += timeout
    return [answer for answer in answers if not is_late(answer)], late


def actor_class(kind):
    return SimpleNamespace(
        options=lambda **_: SimpleNamespace(remote=lambda *given: Actor(lambda: kind(*given))),
    )


NODE = ray.NodeID.from_random().hex()

RAY = SimpleNamespace(
    remote=actor_class,
    get=get,
    put=lambda value: value,
    wait=wait,
    waited=0.0,  # seconds, for those that hang
    kill=lambda actor: None,
    is_initialized=lambda: True,
    exceptions=ray.exceptions,
    get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: NODE),
)
