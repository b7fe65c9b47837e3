"""Waits for the rate limiter of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from per import _options
from per._buffer import Buffer
from per._library import check, lib
from per._waiting import waited
from per.typing import Array, IntLike


class RateLimiter(Buffer[Array]):
    """Calls that wait until a buffer may be added to or drawn from."""

    __slots__ = ()

    def wait_to_add(self, count: IntLike | None = None, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows adding `count` steps. Other threads may use the buffer meanwhile.

        The limiter counts a, the steps added, without masked ones, and d, the transitions drawn by sample() and
        loaders, since the buffer was created or cleared. With r, e and m for samples_per_insert, samples_tolerance and
        min_size_to_sample (at least 1), it allows adding k steps if floor(r (a + k - m)) - d <= e, and drawing b
        transitions if a >= m and floor(r (a - m)) - d - b >= -e. With r = 0 only draws are limited, by a >= m.

        A call for more than e transitions, or for more than e / r steps beyond the first m, is an error. So either an
        add or a draw is always allowed. Choose m so large that a draw succeeds after m steps, and that a prefill by one
        extend() is within the first m steps.

        Channels wait without this call: their writers see a full ring. The add may still raise Busy if another thread
        adds first: then wait again.

        Parameters
        ----------
        count : int, optional
            Steps, over all environments; None: one of each.
        timeout : float, optional
            Seconds; None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        InvalidArgument
            That many steps are never allowed, or the buffer was closed.

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

    def wait_to_sample(self, batch_size: IntLike, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows drawing `batch_size` transitions: see wait_to_add().

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        timeout : float, optional
            Seconds; None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        InvalidArgument
            That many transitions are never allowed, or the buffer was closed.

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
        """Ends the limits of samples_per_insert and min_size_to_sample permanently, and wakes all waiters.

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
