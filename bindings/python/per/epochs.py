"""Epochs over all live transitions of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn

from per.batch import Batch
from per.typing import Array


class Epochs(Generic[Array]):
    """An iterator over batches from ReplayBuffer.epochs(), until every epoch is over.

    Several threads may share it; each batch is delivered to one of them.
    """

    def __init__(
        self,
        handle: Any,
        take: Callable[[], dict[str, Any] | None],
        new_batch: Callable[[dict[str, Any]], Batch[Array]],
    ) -> None:
        self._handle = handle  # the epochs keep the buffer's memory alive
        self._take = take
        self._new_batch = new_batch

    def __iter__(self) -> Epochs[Array]:
        return self

    def __next__(self) -> Batch[Array]:
        """The next batch.

        Raises
        ------
        InvalidArgument
            A transition of the batch is no longer live, or the buffer was closed. On CUDA the ids of such transitions
            are -1, the epochs continue, and the buffer's synchronize() reports it.
        """
        arrays = self._take()
        if arrays is None:
            raise StopIteration
        return self._new_batch(arrays)

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.Epochs cannot be pickled: it is a handle of this process")
