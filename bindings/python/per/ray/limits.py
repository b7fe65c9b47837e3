"""Limits: the rate limiter of a sharded buffer, which is shared by all shards."""

from __future__ import annotations

import dataclasses
import math

import per
from per._errors import InvalidArgument

OPTIONS = ("samples_per_insert", "samples_tolerance", "min_size_to_sample")

# As in the library: larger numbers of due transitions are not distinguished.
_MAX_DUE = 2.0**62
_MAX_STEPS = 1 << 40


@dataclasses.dataclass
class Limits:
    """Counts the steps and draws of all shards, and decides what is allowed, by the formulas and terms of per.h.

    Attributes
    ----------
    samples_per_insert, samples_tolerance, min_size_to_sample
        As in per.ReplayBuffer.
    added : int
        Number of steps ever added.
    drawn : int
        Number of transitions drawn.
    """

    samples_per_insert: float = 0.0
    samples_tolerance: int = 0
    min_size_to_sample: int = 0
    added: int = 0
    drawn: int = 0

    @property
    def holds_adds(self) -> bool:
        """Whether adds may have to wait for draws."""
        return self.samples_per_insert > 0

    @property
    def most_steps(self) -> int:
        """The most steps in one call, beyond the first min_size_to_sample; 0: no limit."""
        return math.floor(self.samples_tolerance / self.samples_per_insert) if self.holds_adds else 0

    def allowed_steps(self, most: int = _MAX_STEPS) -> int:
        """Number of steps that may be added before the next draw, at most `most`."""
        if not self.holds_adds:
            return most
        least = 0
        while least < most:
            middle = most - (most - least) // 2
            if self._due(middle) - self.drawn <= self.samples_tolerance:
                least = middle
            else:
                most = middle - 1
        return least

    def check_add(self, n: int) -> None:
        """Raises Busy if n steps are not allowed yet, InvalidArgument if they never will be."""
        if n == 0 or not self.holds_adds:
            return
        missing = max(self._least() - self.added, 0)
        if missing > 0 and n > missing + self.most_steps:
            raise InvalidArgument(
                f"steps of the call are {n}: allowed are 0 .. {missing + self.most_steps}, {missing} up to "
                f"min_size_to_sample and those that samples_tolerance {self.samples_tolerance} with samples_per_insert "
                f"{self.samples_per_insert:g} allows beyond it"
            )
        if n > missing + self.most_steps:
            raise InvalidArgument(
                f"steps of the call are {n}: allowed by samples_tolerance {self.samples_tolerance} "
                f"with samples_per_insert {self.samples_per_insert:g} are 0 .. {self.most_steps}"
            )
        allowed = self.allowed_steps(n)
        if allowed < n:
            raise per.Busy(
                f"steps of the call are {n}: the rate limiter allows at most {allowed} before more transitions are "
                f"drawn ({self._limits()}); {self.added} steps are added, {self.drawn} transitions drawn. "
                "wait_to_add() waits for more draws"
            )

    def check_draw(self, n: int) -> None:
        """The same for a draw of n transitions."""
        if self.holds_adds and n > self.samples_tolerance:
            raise InvalidArgument(f"batch_size is {n}: allowed by samples_tolerance are 1 .. {self.samples_tolerance}")
        if self.min_size_to_sample == 0 and not self.holds_adds:
            return
        if self.added < self._least():
            raise per.Busy(
                f"batch_size is {n}: the rate limiter allows no draw before {self._least()} steps are added "
                f"(min_size_to_sample); {self.added} are so far. wait_to_sample() waits for them"
            )
        allowed = self._due(0) - self.drawn + self.samples_tolerance
        if self.holds_adds and n > allowed:
            raise per.Busy(
                f"batch_size is {n}: the rate limiter allows at most {allowed} before more steps are added "
                f"({self._limits()}); {self.added} steps are added, {self.drawn} transitions drawn. wait_to_sample() "
                "waits for more steps"
            )

    def stop(self) -> None:
        """Ends all limits."""
        self.samples_per_insert, self.samples_tolerance, self.min_size_to_sample = 0.0, 0, 0

    def _limits(self) -> str:
        return f"samples_per_insert {self.samples_per_insert:g}, samples_tolerance {self.samples_tolerance}"

    def _least(self) -> int:
        return max(self.min_size_to_sample, 1)

    def _due(self, n: int) -> int:
        """Number of transitions due once n more steps are added."""
        exact = self.samples_per_insert * float(self.added + n - self._least())
        return math.floor(min(max(exact, -_MAX_DUE), _MAX_DUE))
