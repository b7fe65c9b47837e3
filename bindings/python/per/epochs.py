"""Epochs over all live transitions of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from per.batch import Batch


class Epochs:
    """What ReplayBuffer.epochs() gives: an iterator over batches, until every epoch is over.

    Several threads may iterate over the same one; each batch is given to one of them.
    """

    def __init__(
        self, handle: Any, take: Callable[[], dict[str, Any] | None], new_batch: Callable[[dict[str, Any]], Batch]
    ) -> None:
        self._handle = handle  # the buffer's memory lives as long as the epochs
        self._take = take
        self._new_batch = new_batch

    def __iter__(self) -> Epochs:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises
        ------
        InvalidArgument
            If one of its transitions is not live any more, or the buffer was closed. On CUDA the ids of such
            transitions are -1, the epochs go on, and the buffer's synchronize() reports it.
        """
        arrays = self._take()
        if arrays is None:
            raise StopIteration
        return self._new_batch(arrays)

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.Epochs cannot be pickled: it is a handle of this process")
