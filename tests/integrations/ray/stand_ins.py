"""A stand-in for Ray in one process, for tests that do not depend on processes: calls of actors run at once."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import ray


class Actor:
    """An actor of Ray. A call answers with the result of the method, or with the exception that it raised.

    Calls wait while the actor hangs. `before(name, given)` runs before each call and may raise an exception instead.
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
        """Dies and restarts, as with max_restarts."""
        self.object = self._make()

    @contextlib.contextmanager
    def raising(self, error):
        """Every call raises the error."""

        def fails(name, given):
            raise error

        before, self.before = self.before, fails
        yield
        self.before = before

    def die_when_asked(self, *questions):
        """Dies at the next call that asks one of these questions."""

        def dies(name, given):
            if name == "ask" and given[1] in questions:
                self.before = lambda name, given: None
                self.die()
                raise ray.exceptions.ActorDiedError

        self.before = dies


class Late:
    """An answer that comes once its actor no longer hangs."""

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
    waited=0.0,  # seconds spent waiting for actors that hang
    kill=lambda actor: None,
    is_initialized=lambda: True,
    exceptions=ray.exceptions,
    get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: NODE),
)
