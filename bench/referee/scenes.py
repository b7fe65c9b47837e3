"""Steps for the checks: numbered, so that what is drawn can be recognised."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from contract import Array, Buffer, CannotTry, Library, Options, Step


def step(
    t: int,
    options: Options,
    *,
    reward: float = 0.0,
    terminated: bool = False,
    truncated: bool = False,
    following: int | None = None,
    priority: float | None = None,
    env: int | None = None,
) -> Step:
    """Step number t of a single environment; its next observation is that of step t + 1, or `following`."""
    assert env is None and options.n_envs == 1
    frame = np.full((1, *options.shape), t, options.dtype)
    after = np.full((1, *options.shape), t + 1 if following is None else following, options.dtype)
    return Step(
        observation=frame,
        action=np.array([t % 4]),
        reward=np.array([reward], np.float32),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        next_observation=after,
        priority=None if priority is None else np.array([priority], np.float32),
    )


def episode(first: int, length: int, options: Options, *, end: str = "terminated", reward: float = 1.0) -> list[Step]:
    """An episode of steps first .. first + length - 1 that ends "terminated", "truncated", or not at all ("")."""
    return [
        step(
            first + k,
            options,
            reward=reward,
            terminated=end == "terminated" and k == length - 1,
            truncated=end == "truncated" and k == length - 1,
        )
        for k in range(length)
    ]


def filled(library: Library, options: Options, n: int, priorities: Iterable[float] | None = None) -> Buffer:
    """A buffer with steps 0 .. n - 1, each an episode of its own, with these priorities."""
    buffer = library.create(options)
    buffer.extend([step(t, options, reward=1.0, terminated=True) for t in range(n)])
    if priorities is not None:
        buffer.set_all(np.asarray(list(priorities), np.float64))
    return buffer


def drawn(buffer: Buffer, batches: int) -> Array:
    """The numbers of the steps of several batches, in one array."""
    return np.concatenate([buffer.sample().steps() for _ in range(batches)])


@dataclasses.dataclass(frozen=True)
class Episode:
    """Steps first .. final - 1 of an environment. `final` is the number of the final observation, which no step has."""

    env: int
    first: int
    final: int
    end: str  # "terminated", "truncated" or "both"

    def __str__(self) -> str:
        return f"{self.first} .. {self.final - 1} (then {self.end}, final observation {self.final})"


class World:
    """Environments that number their observations, and remember which episode each number belongs to.

    Environment e counts from 1000 e + 1, so 0 is no observation. An end has a final observation, whose number no step
    has. The reward of a step is its number; with goals it is -1, because the pursued goal, -1, is never achieved.
    Episodes take their lengths and ends from the given ones in turn; environment e begins with the e-th. Steps are
    reported as by Gymnasium's vector environments in the mode options.autoreset.
    """

    def __init__(
        self, options: Options, lengths: Sequence[int] = (10**6,), ends: Sequence[str] = ("terminated",)
    ) -> None:
        self.options = options
        self.lengths = lengths
        self.ends = ends
        self.begun = [0] * options.n_envs  # episodes
        self.episodes: dict[int, Episode] = {}  # by the number of an observation, final ones included
        self.now = [0] * options.n_envs  # the observation that each environment shows
        self.held = 0  # newest steps that the library may not draw yet
        self.steps: list[list[int]] = [[] for _ in range(options.n_envs)]  # without those that only reset
        for env in range(options.n_envs):
            self._begin(env, 1000 * env + 1)

    def _begin(self, env: int, first: int) -> None:
        k = env + self.begun[env]
        self.begun[env] += 1
        final = first + self.lengths[k % len(self.lengths)]
        self.episodes[first] = Episode(env, first, final, self.ends[k % len(self.ends)])
        self.now[env] = first

    def _observations(self, numbers: Sequence[int]) -> Array:
        return np.stack([np.full(self.options.shape, number, self.options.dtype) for number in numbers])

    def step(self) -> Step:
        """One step of each environment."""
        n, autoreset = self.options.n_envs, self.options.autoreset
        observed, after, finals = list(self.now), [0] * n, np.full(n, None, object)
        rewards, ends = [0.0] * n, [""] * n
        for env, number in enumerate(observed):
            episode = self.episodes[number]
            if number == episode.final:  # after an end with autoreset "next_step": the step only resets
                self._begin(env, number + 1)
                after[env] = self.now[env]
                continue
            self.steps[env].append(number)
            self.episodes[number + 1] = episode
            rewards[env] = -1 if self.options.goals else number
            after[env] = self.now[env] = number + 1
            if number + 1 == episode.final:
                ends[env] = episode.end
                if autoreset != "next_step":
                    self._begin(env, number + 2)
                if autoreset == "same_step":
                    after[env], finals[env] = self.now[env], self._observations([number + 1])[0]
        ended = np.array([end != "" for end in ends])
        return Step(
            observation=self._observations(observed),
            action=np.array([number % 4 for number in observed]),
            reward=np.array(rewards, np.float32),
            terminated=np.array([end in ("terminated", "both") for end in ends]),
            truncated=np.array([end in ("truncated", "both") for end in ends]),
            next_observation=self._observations(after),
            info={"final_obs": finals, "_final_obs": ended} if autoreset == "same_step" and ended.any() else {},
            goal=np.full((n, *self.options.shape), -1, self.options.dtype) if self.options.goals else None,
        )

    def play(self, buffer: Buffer, n: int) -> None:
        """Adds the next n steps of each environment."""
        buffer.extend([self.step() for _ in range(n)])


def resident() -> int:
    """Bytes of the process in memory, without what it has freed."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # of glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        raise CannotTry("the system has no /proc/self/statm") from None
