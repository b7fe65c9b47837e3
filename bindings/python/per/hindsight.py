"""Hindsight: replaces goals of a batch's transitions by goals reached later."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from per import _arrays, _callbacks, _library, _options
from per._errors import InvalidArgument, kind_of
from per._layout import Layout
from per._library import ffi
from per.typing import FloatLike, GoalStrategy

Goals = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Hindsight(_options.Named):
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): `sample(256, hindsight=Hindsight(..))`.

    Of k + 1 transitions drawn, k on average get another goal, which was reached in the same episode. Their rewards,
    n-step returns and derived values are recomputed; the buffer does not change.

    Parameters
    ----------
    achieved : str
        The observation field with the goal that a state achieves: "observation.achieved_goal" of Gymnasium's goal
        environments.
    goal : str
        The field with the pursued goal, of the same shape and dtype: "observation.desired_goal". If it is an
        observation, next_goal is replaced by the same goal.
    reward : Callable[[Goals, Goals], object]
        Called once per batch with arrays achieved [n, shape], of the states after n steps, and goal [n, shape]. Returns
        the rewards, float32[n], or a tuple of the rewards and flags [n], which are True for steps that end in a
        terminal state. Without flags, the stored flags are used. With n-step returns, all steps of a window are among
        the n; the window ends at the first terminal one. The arrays are numpy's. Gymnasium's compute_reward() expects
        an info, which a buffer does not have: lambda achieved, goal: env.unwrapped.compute_reward(achieved, goal, {}).
    strategy : {"future", "final", "episode"}, default "future"
        States whose goals are used: "future", the one after the step or later ones; "final", the last of the episode;
        "episode", any of it. Only states in the buffer count; of a running episode, those added so far.
    k : float, default 4.0
        Ratio of achieved goals to pursued ones; inf: all transitions get another goal.

    Raises
    ------
    InvalidArgument
        An invalid strategy, k or function.

    Notes
    -----
    Transitions that ended in an unknown terminal state (next_mask) keep their goal. Random choices are the buffer's:
    the same seed and the same calls give the same goals.

    Examples
    --------
    >>> import numpy as np, per
    >>> fields = {"observation": per.Field((), "int32"), "goal": per.Field((), "int32")}
    >>> buffer = per.ReplayBuffer(100, fields, seed=3)
    >>> steps = np.arange(8)
    >>> ids = buffer.extend(observation=steps, goal=np.full(8, -1), reward=np.zeros(8), next_observation=steps + 1,
    ...                     terminated=np.zeros(8), truncated=steps == 7)
    >>> her = per.Hindsight("observation", "goal", lambda achieved, goal: achieved == goal, strategy="final", k=np.inf)
    >>> batch = buffer.sample(32, hindsight=her)
    >>> bool((batch.goal == 8).all()), bool((batch.reward == (batch.next_observation == 8)).all())
    (True, True)
    """

    achieved: str
    goal: str
    reward: Callable[[Goals, Goals], object]
    strategy: GoalStrategy = "future"
    k: FloatLike = 4.0

    def __post_init__(self) -> None:
        _options.number("per_goal_strategy", "hindsight.strategy", self.strategy)
        _fraction(self.k)
        _options.function("hindsight.reward", self.reward)
        _takes_goals(self.reward)


class Call:
    """Hindsight of one call: the data that the options of per.h point to, and any exception of `reward`."""

    def __init__(self, hindsight: Hindsight, layout: Layout) -> None:
        if not isinstance(hindsight, Hindsight):
            raise InvalidArgument(f"hindsight is {kind_of(hindsight)}; allowed: per.Hindsight")
        self._reward = hindsight.reward
        self.error: BaseException | None = None
        self._handle = ffi.new_handle(self)
        self.options: Any = _library.new("per_hindsight_options")
        for argument in ("achieved", "goal"):
            name = getattr(hindsight, argument)
            if name not in layout.fields:
                allowed = ", ".join(map(repr, layout.fields))
                raise InvalidArgument(f"hindsight.{argument} is {name!r}; allowed: {allowed}")
            setattr(self.options, f"{argument}_field", layout.fields.index(name))
        output = next(output for output in layout.rows if output.name == hindsight.achieved)
        # The bits of bfloat16 if numpy does not know that type.
        self._shape, self._dtype = output.shape, _arrays.numpy_dtype(output.dtype) or np.dtype(np.uint16)
        self.options.strategy = _options.number("per_goal_strategy", "hindsight.strategy", hindsight.strategy)
        self.options.fraction = _fraction(hindsight.k)
        self.options.reward = _answer
        self.options.context = self._handle

    def check(self, status: int) -> None:
        """Raises the exception of `reward`, or else the one for the status."""
        if self.error is not None:
            raise self.error
        _library.check(status, {"achieved_field": "hindsight.achieved", "goal_field": "hindsight.goal"})

    def answer(self, count: int, achieved: Any, goals: Any, rewards_out: Any, terminated_out: Any) -> int:
        """The callback of the library; 0 is success."""
        try:
            given = self._reward(self._copy(count, achieved), self._copy(count, goals))
            rewards, terminated = _parts(given)
            _write(rewards, "reward", ffi.buffer(rewards_out, 4 * count), np.float32)
            if terminated is not None:
                _write(terminated, "terminated", ffi.buffer(terminated_out, count), np.bool_)
        except BaseException as error:  # check() raises it again after C has returned
            self.error = error
            return 1
        return 0

    def _copy(self, count: int, memory: Any) -> Goals:
        size = count * math.prod(self._shape) * self._dtype.itemsize
        array = np.frombuffer(ffi.buffer(memory, size), np.uint8).copy()
        return array.view(self._dtype).reshape(count, *self._shape)


_MEMBERS = dict(ffi.typeof("per_hindsight_options").fields)


@ffi.callback(_MEMBERS["reward"].type.cname, error=1, onerror=_callbacks.keep_error)  # type: ignore[untyped-decorator]
def _answer(context: Any, count: int, achieved: Any, goals: Any, rewards_out: Any, terminated_out: Any) -> int:
    if _callbacks.is_over():
        return 1
    call: Call = ffi.from_handle(context)
    return call.answer(count, achieved, goals, rewards_out, terminated_out)


def _fraction(k: object) -> float:
    number = _options.real("hindsight.k", k)
    if not number >= 0:
        raise InvalidArgument(f"hindsight.k is {k!r}; allowed: >= 0")
    return number / (number + 1.0) if number != math.inf else 1.0


def _parts(given: object) -> tuple[object, object]:
    """The rewards, and the flags or None."""
    if not isinstance(given, tuple):
        return given, None
    if len(given) != 2:
        raise InvalidArgument(f"hindsight.reward gave a tuple of {len(given)}; allowed: rewards, or (rewards, flags)")
    return given


def _takes_goals(reward: Callable[..., object]) -> None:
    """Raises InvalidArgument for a function that cannot be called with only achieved and goal."""
    try:
        signature = inspect.signature(reward)
    except (TypeError, ValueError):
        return  # some C functions have no signature
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise InvalidArgument(
            f"hindsight.reward takes {signature}; allowed: (achieved, goal). For compute_reward() of a goal "
            "environment, pass lambda achieved, goal: env.unwrapped.compute_reward(achieved, goal, {})"
        ) from error


def _write(source: object, what: str, memory: Any, dtype: type[np.generic]) -> None:
    name = f"what hindsight.reward gave as {what}"
    array = _arrays.as_float(source, name)
    out = np.frombuffer(memory, dtype)
    if array.shape != out.shape:
        raise InvalidArgument(f"hindsight.reward gave {what} of shape {list(array.shape)}; allowed: [{out.size}]")
    if dtype is np.bool_:
        for i in np.flatnonzero((array != 0) & (array != 1)):
            raise InvalidArgument(f"hindsight.reward gave {what}[{i}] = {array[i]}; allowed: booleans, 0 and 1")
    elif np.isinf(array).any():  # as given, or beyond float32
        given = _arrays.as_float(source, name, np.float64)
        for i in np.flatnonzero(np.isinf(array) & np.isfinite(given)):
            largest = f"{np.finfo(np.float32).max:.8g}"
            allowed = f"-{largest} .. {largest} (float32)"
            raise InvalidArgument(f"hindsight.reward gave {what}[{i}] = {given[i]:g}; allowed: {allowed}")
    np.copyto(out, array, casting="unsafe")
