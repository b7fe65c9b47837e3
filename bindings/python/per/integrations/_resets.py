"""Detects how vector environments reset after an episode, for framework buffers that are not told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from per._errors import PerWarning


class SuspectedResets:
    """Warns if steps after ends look like reset steps (Gymnasium's AutoresetMode.NEXT_STEP).

    A reset step begins where the episode ended, has no reward and ends nothing. The core recognises it by the final
    observation. This class is for buffers that cannot tell a final observation from the first of the next episode.
    """

    def __init__(self) -> None:
        self._ends = self._suspects = 0
        self._is_warned = False
        self._ended: Any = None  # bool[n_envs], the environments whose latest step ended an episode
        self._announced: Any = None  # [n_envs, ...], the next observations of that step

    def look(self, observation: Any, next_observation: Any, reward: Any, ends: Any) -> None:
        """Looks at a step of every environment, and warns if enough steps look like resets.

        Parameters
        ----------
        observation, next_observation : Any
            [n_envs, ...].
        reward : Any
            [n_envs].
        ends : Any
            bool[n_envs], True for steps that end an episode; False where the final observation is known.
        """
        if self._ended is not None:
            rows = np.flatnonzero(self._ended)
            follows = np.reshape(np.asarray(observation)[rows] == self._announced[rows], (len(rows), -1)).all(1)
            self._ends += len(rows)
            self._suspects += int((follows & (np.asarray(reward)[rows] == 0) & ~ends[rows]).sum())
            self._warn()
        self._ended = np.array(ends) if ends.any() else None
        self._announced = np.array(next_observation) if ends.any() else None

    def _warn(self) -> None:
        if self._is_warned or self._suspects < 3 or 2 * self._suspects <= self._ends:
            return
        self._is_warned = True
        warnings.warn(
            f"After {self._suspects} of {self._ends} ends the next step began at the next observation that the end "
            "was given, and had no reward: the environments seem to reset in that step, as Gymnasium's vector "
            "environments do by default. Say what env.metadata['autoreset_mode'] names: autoreset='next_step'; or, "
            "if they reset in the step of the end, autoreset='same_step'.",
            PerWarning,
            stacklevel=5,
        )
