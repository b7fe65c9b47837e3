"""Waits for the rate limiter of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from per import _options
from per._buffer import Buffer
from per._library import check, lib
from per._waiting import waited
from per.typing import Array


class RateLimiter(Buffer[Array]):
    """The calls that wait until a buffer may be added to or drawn from."""

    __slots__ = ()

    def wait_to_add(self, count: int | None = None, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows to add so many steps. Other threads use the buffer meanwhile.

        It counts a steps that were added, without those masked, and d transitions that were drawn, by sample() and
        loaders, since the buffer was made or cleared. With r, e and m for samples_per_insert, samples_tolerance and
        min_size_to_sample, at least 1, it allows to add k steps if floor(r (a + k - m)) - d <= e, and to draw b
        transitions if a >= m and floor(r (a - m)) - d - b >= -e. With r = 0 only a >= m is asked for, of draws. Since
        no call may be for more than e transitions, or for more than e / r steps beyond the first m, one of the two is
        allowed at any time; choose m so large that a draw succeeds by then, and that a prefill by one extend() belongs
        to the first m steps. Channels wait by themselves: their writers see a full ring. The add may
        still be Busy if another thread adds before it: then wait again.

        Parameters
        ----------
        count : int, optional
            Steps, of all environments together; None: one of each.
        timeout : float, optional
            Seconds; None: for as long as it takes, or until Ctrl-C.

        Raises
        ------
        Timeout
            If it takes longer.
        InvalidArgument
            If so many are never allowed, and once the buffer is closed.

        Examples
        --------
        >>> import per
        >>> options = {"samples_per_insert": 4, "samples_tolerance": 64, "min_size_to_sample": 10}
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, **options)
        >>> for t in range(100):
        ...     try:
        ...         ids = buffer.add(observation=[t], reward=t, terminated=False, truncated=False,
        ...                          next_observation=[t + 1])
        ...     except per.Busy:
        ...         break
        >>> t
        26
        >>> batch = buffer.sample(32)
        >>> buffer.wait_to_add(8)
        """
        steps = self._n_envs if count is None else _options.whole("count", count)
        self._wait_for_rate(timeout, lib.per_replay_wait_to_add, steps)

    def wait_to_sample(self, batch_size: int, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows to draw so many transitions: see wait_to_add().

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        timeout : float, optional
            Seconds; None: for as long as it takes, or until Ctrl-C.

        Raises
        ------
        Timeout
            If it takes longer.
        InvalidArgument
            If so many are never allowed, and once the buffer is closed.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()}, min_size_to_sample=4)
        >>> try:
        ...     buffer.wait_to_sample(2, timeout=0.01)
        ... except TimeoutError:
        ...     print("no draw before 4 steps are added")
        no draw before 4 steps are added
        """
        size = _options.whole("batch_size", batch_size)
        self._wait_for_rate(timeout, lib.per_replay_wait_to_sample, size)

    def _wait_for_rate(
        self,
        timeout: float | None,
        wait: Callable[[Any, int, int], int],
        count: int,
        check_open: Callable[[], object] = lambda: None,
    ) -> None:
        def wait_once(timeout_ms: int) -> int:
            check_open()
            return wait(self._open(), count, timeout_ms)

        waited(timeout, wait_once)

    def stop_limiting(self) -> None:
        """Ends the limits of samples_per_insert and min_size_to_sample for good: whoever waits goes on.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()}, min_size_to_sample=4)
        >>> ids = buffer.add(observation=0, reward=1, terminated=True, truncated=False, next_observation=1)
        >>> buffer.stop_limiting()
        >>> len(buffer.sample(2).ids)
        2
        """
        check(lib.per_replay_stop_limiting(self._open()))
