"""Loader: batches of a sharded buffer, drawn ahead."""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import ray

import per
from per._errors import InvalidArgument
from per.ray.coordination import Drawn, get, once_allowed


class Loader:
    """An endless iterator over batches, from ReplayBuffer.loader(). It may be used in a `with` block."""

    def __init__(
        self,
        coordinator: Any,
        batch: Callable[[Callable[[], Drawn]], per.Batch],
        slots: int,
        exact: bool,
        asked: tuple[Any, ...],
    ) -> None:
        self._coordinator, self._batch = coordinator, batch
        self._name = uuid.uuid4().hex
        self._call = (coordinator.sample, *asked) if exact else (coordinator.sample_ahead, self._name, slots, *asked)
        # With exact=False the coordinator keeps batches in flight itself: one call begins them all.
        self._slots = slots if exact else 1
        self._asked: deque[Any] | None = deque()
        self._fill(self._asked)

    def _draw(self) -> Any:
        call, *given = self._call
        return call.remote(*given)

    def _fill(self, asked: deque[Any]) -> None:
        while len(asked) < self._slots:
            asked.append(self._draw())

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> per.Batch:
        asked = self._asked
        if asked is None:
            raise InvalidArgument("the loader is closed")
        return self._batch(lambda: self._oldest(asked))

    def _oldest(self, asked: deque[Any]) -> Drawn:
        """The oldest pending batch. If it could not be drawn ahead, it is drawn now.

        Waits until the rate limiter allows it.
        """
        try:
            while asked:
                with contextlib.suppress(per.Error):
                    drawn: Drawn = get(asked.popleft())
                    return drawn
            return once_allowed(lambda: get(self._draw()))
        finally:
            self._fill(asked)

    def close(self) -> None:
        """Drops the batches that were drawn ahead."""
        if self._asked is not None:
            self._asked = None
            self._coordinator.end_ahead.remote(self._name)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # all of it may be gone already
            if ray.is_initialized():  # otherwise a call would start another Ray instance
                self.close()
