"""Loader: batches of a buffer of shards that are drawn ahead."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import per
from per._errors import InvalidArgument


class Loader:
    """What ReplayBuffer.loader() gives: an iterator over batches without an end. It may be used in a `with` block."""

    def __init__(
        self, coordinator: Any, batch: Callable[[Callable[[], Any]], per.Batch], slots: int, exact: bool, asked: Any
    ) -> None:
        self._coordinator, self._batch = coordinator, batch
        self._name = uuid.uuid4().hex
        self._call = (coordinator.sample, *asked) if exact else (coordinator.sample_ahead, self._name, slots, *asked)
        # A coordinator that draws ahead keeps batches on their way by itself: one call begins them all.
        self._asked: deque[Any] | None = deque(self._draw() for _ in range(slots if exact else 1))

    def _draw(self) -> Any:
        call, *given = self._call
        return call.remote(*given)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> per.Batch:
        asked = self._asked
        if asked is None:
            raise InvalidArgument("the loader is closed")
        asked.append(self._draw())
        oldest = [asked.popleft()]
        return self._batch(lambda: oldest.pop() if oldest else self._draw())

    def close(self) -> None:
        """Forgets the batches that were drawn ahead."""
        if self._asked is not None:
            self._asked = None
            self._coordinator.end_ahead.remote(self._name)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
