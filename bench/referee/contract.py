"""The interface between checks and adapters of libraries, and the outcomes of a check.

An adapter is a `Library` that creates `Buffer`s. Whatever it does not override is not claimed: a check that needs it
ends with that outcome. Adapters use their library as its own documents say, and do not repair what it returns.

Steps are numbered: the observation of step t holds the number t, so that a check recognises transitions by their
content, whatever the library calls its indices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class NotClaimed(Exception):
    """The library does not claim the feature that the check needs."""


class CannotTry(Exception):
    """The check cannot be tried here: a package, a device or memory is missing."""


class Failed(Exception):
    """The promise does not hold. The message has at most ten lines that show it."""


def expect(holds: object, message: str) -> None:
    """Ends the check with `message` unless the promise holds."""
    if not holds:
        raise Failed(message)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a buffer. An adapter raises NotClaimed for a value other than the default that it cannot have."""

    capacity: int = 64
    batch_size: int = 32
    alpha: float = 0.6
    beta: float = 0.4
    beta_steps: int = 0  # batches until beta is 1; 0: beta stays
    n_envs: int = 1
    n_step: int = 1
    gamma: float = 0.5
    frame_stack: int = 1
    sequence_length: int = 0  # 0: transitions
    replacement: bool = True
    stratified: bool | None = None  # None: the library's default
    seed: int | None = None
    shape: tuple[int, ...] = (1,)  # of an observation
    dtype: str = "float32"  # of an observation
    autoreset: str = "disabled"  # of the environments, in Gymnasium's words
    goals: str = (
        ""  # "future", "final" or "episode": hindsight relabelling; a state's observation is the goal it achieves
    )


@dataclasses.dataclass
class Step:
    """One step of each environment: arrays [n_envs, ...]."""

    observation: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: Array | None
    priority: Array | None = None  # before alpha; None: the library's choice for new transitions
    info: dict[str, Any] | None = None  # Gymnasium's, for autoreset "same_step"
    goal: Array | None = None  # the pursued goal, [n_envs, *shape], with Options.goals


@dataclasses.dataclass
class Batch:
    """A drawn batch. Arrays that the library does not return are None."""

    observation: Array  # [B, *shape]; with frame_stack [B, frame_stack, *shape]; with sequences [B, T, *shape]
    action: Array | None
    reward: Array | None  # with n_step the discounted sum of the window
    next_observation: Array | None
    discount: Array | None  # the factor of the bootstrap value: gamma^n, 0 after a terminal state
    weights: Array | None
    handle: Any  # what update() of the library takes to name the transitions
    mask: Array | None = None  # bool [B, T] of sequences: False where a step is padding
    goal: Array | None = None  # [B, *shape], with Options.goals

    def steps(self) -> Array:
        """The numbers of the drawn steps, int64 [B]; of stacks and sequences those of the last step."""
        rows = np.asarray(self.observation, np.float64).reshape(len(self.observation), -1)
        return rows[:, -1].round().astype(np.int64)


class Buffer:
    """A buffer of a library. Each method is as the library's own documents show it."""

    def add(self, step: Step) -> Any:
        """Adds a step of each environment. Returns what names it for update(), if the library says."""
        raise NotClaimed("steps cannot be added one by one")

    def extend(self, steps: list[Step]) -> None:
        """Adds many steps; by default one by one."""
        for step in steps:
            self.add(step)

    def sample(self) -> Batch:
        """Draws a batch of options.batch_size."""
        raise NotClaimed("no batches")

    def update(self, handle: Any, priorities: Array) -> None:
        """Sets priorities, before alpha, of transitions named as in Batch.handle."""
        raise NotClaimed("no priorities")

    def set_all(self, priorities: Array) -> None:
        """Sets the priorities of all transitions, oldest first."""
        raise NotClaimed("priorities cannot be set by position")

    def select(self, handle: Any, chosen: Array) -> Any:
        """The part of a handle that names the chosen entries of a batch."""
        return np.asarray(handle)[chosen]

    def __len__(self) -> int:
        raise NotClaimed("no length")

    def save(self, path: str) -> None:
        raise NotClaimed("no checkpoint")

    def load(self, path: str) -> None:
        """Loads into this buffer, which was created with the same options."""
        raise NotClaimed("no checkpoint")

    def nbytes(self) -> int:
        """Bytes of the stored rows, where the library's arrays tell."""
        raise NotClaimed("its memory cannot be told from the process's")


class Library:
    """A library under test."""

    name = ""  # as people call it
    package = ""  # as pip calls it
    module = ""  # as Python imports it
    documents = ""  # URL of the documents that the adapter follows
    epsilon = 0.0  # what the library adds to each priority, where no option sets it to 0
    preloaded: tuple[str, ...] = ()  # imported before a process forks those that create buffers; (): `module`

    def create(self, options: Options) -> Buffer:
        raise NotImplementedError

    # Promises of the library's documents beyond the paper.
    threads = False  # threads may share a buffer
    atomic_saves = False  # a save that is cut off leaves the previous file
    holds_back = False  # the newest step of a running episode is drawn once the next one has come

    # Checks that the documents rule out, and their words, such as "not thread-safe". The runner does not try them.
    disclaims: ClassVar[Mapping[str, str]] = {}

    # Features that libper may lack; rows of the page.
    servers = False  # buffers in a server of their own, which clients reach over a network
    selectors = False  # several tables or selectors over the same rows
    gpu = False  # rows and priorities on a GPU
    windows = False
    macos = False
    pure_python = False


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    group: str  # law, trajectories, robustness, cost
    promise: str
    source: str
    run: Callable[[Library], str | None]  # returns a figure to show, or None


CHECKS: list[Check] = []


def check(group: str, source: str) -> Callable[[Callable[[Library], str | None]], Callable[[Library], str | None]]:
    """Registers a check. Its docstring is the promise, its source says who made it."""

    def register(run: Callable[[Library], str | None]) -> Callable[[Library], str | None]:
        promise = " ".join((run.__doc__ or "").split())
        CHECKS.append(Check(run.__name__, group, promise, source, run))
        return run

    return register


def goal_reward(achieved: Array, goal: Array) -> Array:
    """The reward of environments with goals, from [n, *shape] to [n]: 0 where the goal is achieved, otherwise -1."""
    same: Array = np.asarray(achieved) == np.asarray(goal)
    return np.where(same.reshape(len(same), -1).all(axis=1), np.float32(0), np.float32(-1))


def not_claimed(reason: str) -> NoReturn:
    raise NotClaimed(reason)
