"""Warnings of a buffer: steps that seem to be given wrongly, and numbers that are stored inexactly."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any

import numpy as np

from per import _arrays, _library
from per._errors import PerWarning
from per._handle import Handle
from per._library import lib
from per.statistics import Statistics

# Number of calls of add(), or steps of extend(), between checks of the statistics. The first checks come sooner.
_CALLS_BETWEEN_LOOKS = 256


def read_statistics(handle: Any) -> Statistics:
    """Reads the statistics of a buffer."""
    statistics = _library.filled("per_replay_statistics", lib.per_replay_get_statistics, handle)
    return Statistics(**{field.name: getattr(statistics, field.name) for field in dataclasses.fields(Statistics)})


class Diagnostics:
    """The warnings of a buffer, each issued once.

    Parameters
    ----------
    looks_by_itself : bool
        Whether add() and extend() check rewards and statistics. On CUDA that would synchronise with the device, so only
        stats() does it there.
    """

    def __init__(self, autoreset: str, looks_by_itself: bool) -> None:
        self._autoreset = autoreset
        self._looks_at_rewards = looks_by_itself
        self.looks_at_critics = True
        self.looks_at_lengths = True
        self._suspicions = [_suspicion_of_cuts, _suspicion_of_resets]
        self._calls = 0  # number of calls that added steps
        self._next_look = 1 if looks_by_itself else sys.maxsize  # the call at which the next check is due

    def look_at_steps(self, calls: int, reward: object, buffer: Handle) -> None:
        """Warns if the statistics show that steps are given wrongly, and of a whole reward that float32 would round.

        Reads the statistics seldom, as that is slow.
        """
        self._calls = n = self._calls + calls
        if n >= self._next_look and self._suspicions:
            self._next_look = min(1 << n.bit_length(), (n // _CALLS_BETWEEN_LOOKS + 1) * _CALLS_BETWEEN_LOOKS)
            self.look_at_statistics(read_statistics(buffer._open()), stacklevel=4)
        if self._looks_at_rewards and type(reward) is not float:
            rounded = _arrays.rounded_by_float32(reward)
            if rounded is not None:
                self._looks_at_rewards = False
                warnings.warn(
                    f"reward {rounded} is stored as {int(np.float32(rounded))}: rewards are float32, which cannot hold "
                    f"every whole number above 2^24",
                    PerWarning,
                    stacklevel=3,
                )

    def look_at_statistics(self, statistics: Statistics, stacklevel: int = 3) -> None:
        """Warns of each problem that the statistics suggest."""
        for suspicion in self._suspicions:
            message = suspicion(statistics, self._autoreset)
            if message is not None:
                self._suspicions = [other for other in self._suspicions if other is not suspicion]
                warnings.warn(message, PerWarning, stacklevel=stacklevel)

    def look_at_critics(self, ids: Any, td_errors: object) -> None:
        """Warns of as many critics as ids; of more than 16 the library makes an error.

        Looks at the first update only: a program gives all of them in the same way, and the look costs a tenth of one.
        """
        self.looks_at_critics = False
        shape = tuple(getattr(td_errors, "shape", ()))
        if len(shape) == 2 and shape[0] == shape[1] > 2 and np.shape(ids) != shape:
            n = shape[0]
            warnings.warn(
                f"td_errors has shape [{n}, {n}], which means {n} critics for {n} ids. If it came from [{n}, 1] minus "
                f"[{n}], which broadcasts to that shape, drop the axis of 1.",
                PerWarning,
                stacklevel=3,
            )

    def look_at_length(self, steps: int, n_envs: int, capacity: int) -> None:
        """Warns of a run of more steps than an environment has rows."""
        if self.looks_at_lengths and steps * n_envs > capacity:
            self.looks_at_lengths = False
            warnings.warn(
                f"extend() was given {steps} steps of an environment that has room for "
                f"{capacity // n_envs}: only the latest stay. A capacity for all is "
                f"ReplayBuffer.capacity_for({steps * n_envs}, ...)",
                PerWarning,
                stacklevel=3,
            )


def _suspicion_of_cuts(statistics: Statistics, autoreset: str) -> str | None:
    """The warning if most steps are cuts: their observations differ from those announced by the steps before."""
    if 2 * statistics.cuts <= statistics.added:
        return None
    return (
        f"{statistics.cuts} of {statistics.added} steps were cut off from the one before: their observation is not the "
        "next_observation of that step. Does the program continue with observation = next_observation? If each "
        "observation is written into the same array, copy it. If steps come from several environments, set n_envs. "
        "Does a wrapper change one of the two? If rows are in no order of time, use store_next_observation=True, with "
        "n_step=1."
    )


def _suspicion_of_resets(statistics: Statistics, autoreset: str) -> str | None:
    """The warning if environments reset after most episodes in another way than `autoreset` says."""
    ends = statistics.episodes - statistics.cuts
    if 2 * statistics.suspected_resets <= ends or statistics.suspected_resets < 3:
        return None
    if autoreset == "next_step":
        return (
            f"After {statistics.suspected_resets} of {ends} ends the step that was dropped for a reset (autoreset is "
            "'next_step') had a reward or was an end itself: the environment seems to have reset before it. Use "
            "autoreset='same_step' with add(..., info=info)."
        )
    return (
        f"After {statistics.suspected_resets} of {ends} ends the next step brought the final observation once more. "
        "Either the program does not continue with the observation from env.reset(): observation, info = env.reset(). "
        f"Or the environment resets itself, and in another way than autoreset={autoreset!r}: pass the mode that "
        "env.metadata['autoreset_mode'] names, which is autoreset='next_step', or autoreset='same_step' with add(..., "
        "info=info); ReplayBuffer.for_env() reads it. Ignore this if episodes do begin with the observation that ended "
        "the one before."
    )
