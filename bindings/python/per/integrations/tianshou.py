"""Prioritized replay buffers for tianshou: its own classes, over libper's sum tree.

tianshou keeps the rows, priorities, exponents and weights as it does with its own buffers; what finds the transitions
is a `per.SumTree`. Sums are exact, draws are stratified (Schaul et al. 2016, arXiv:1511.05952, section 3.3), and a
priority that is NaN is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tianshou import data

import per

__all__ = ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer", "SegmentTree"]


class SegmentTree(data.SegmentTree):
    """The segment tree of a tianshou buffer, `buffer.weight`, over a `per.SumTree`: p^alpha of each row.

    Leaves are read from an array of float64, as tianshou's are; draws are made of them as float32.

    Parameters
    ----------
    size : int
        Number of leaves. All are 0 at first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._leaves = np.zeros(size)
        self._tree = per.SumTree(size)

    def __getitem__(self, index: Any) -> Any:
        return self._leaves[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Sets leaves, and of equal indices the last. A value that is NaN, infinite or negative changes nothing.

        Raises
        ------
        InvalidArgument
        """
        index = np.asarray(index, np.int64)
        self._tree.update(index.ravel(), np.full(index.shape, value, np.float32).ravel())
        self._leaves[index] = value

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """The sum of the leaves, or of those from start to before end, which may count from the end."""
        if start == 0 and end is None:
            return self._tree.total
        return float(np.sum(self._leaves[start:end]))

    def get_prefix_sum_idx(self, value: Any) -> Any:
        """The leaf that each prefix sum falls into, 0 <= value < reduce(): never one of priority 0."""
        found = self._tree.find(np.ravel(value)).reshape(np.shape(value))
        return found if found.ndim else int(found)

    def reset(self) -> None:
        """Sets all leaves to 0."""
        self._tree.reset()
        self._leaves[:] = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _tree_of, (self._leaves,)


def _tree_of(leaves: npt.NDArray[np.float64]) -> SegmentTree:
    tree = SegmentTree(len(leaves))
    tree[np.arange(len(leaves))] = leaves
    return tree


class _OverSumTree:
    """What a prioritized buffer of tianshou does in another way over a SegmentTree of libper."""

    weight: Any
    maxsize: int
    _random_state: np.random.RandomState

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.weight = SegmentTree(self.maxsize)
        if "random_seed" in options:  # which tianshou's vector buffers drop
            self._random_state = np.random.RandomState(options["random_seed"])

    def sample_indices(self, batch_size: int | None) -> npt.NDArray[np.int64]:
        """Draws row i from the i-th of batch_size equal parts of the sum; all rows in order of time for 0.

        The random numbers are those of the buffer (`random_seed`), which are saved with it.
        """
        if batch_size is None or batch_size <= 0 or len(self) == 0:  # type: ignore[arg-type]
            return super().sample_indices(batch_size)  # type: ignore[misc,no-any-return]
        total = self.weight.reduce()
        prefix_sums = (np.arange(batch_size) + self._random_state.random_sample(batch_size)) * (total / batch_size)
        # The last one may have been rounded up to the sum itself.
        return self.weight.get_prefix_sum_idx(np.minimum(prefix_sums, np.nextafter(total, 0.0)))  # type: ignore[no-any-return]

    def reset(self, keep_statistics: bool = False) -> None:
        """Empties the buffer. The rows it had are not drawn any more, which tianshou's own buffers do."""
        super().reset(keep_statistics)  # type: ignore[misc]
        self.weight.reset()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Also takes what a buffer of tianshou's own saved."""
        super().__setstate__(state)  # type: ignore[misc]
        if not isinstance(self.weight, SegmentTree):
            self.weight = _tree_of(self.weight[np.arange(self.maxsize)])


class PrioritizedReplayBuffer(_OverSumTree, data.PrioritizedReplayBuffer):
    """tianshou.data.PrioritizedReplayBuffer over libper's sum tree, with the same arguments.

    Examples
    --------
    >>> import numpy as np
    >>> from tianshou.data import Batch
    >>> from per.integrations.tianshou import PrioritizedReplayBuffer
    >>> buffer = PrioritizedReplayBuffer(100, alpha=0.6, beta=0.4, random_seed=7)
    >>> for t in range(10):
    ...     done = t == 9
    ...     step = dict(obs=t, act=0, rew=1.0, terminated=done, truncated=False, done=done, obs_next=t + 1)
    ...     _ = buffer.add(Batch(step))
    >>> batch, indices = buffer.sample(64)
    >>> buffer.update_weight(indices, np.where(batch.obs == 9, 5.0, 0.0))
    >>> batch, indices = buffer.sample(64)
    >>> set(indices.tolist())
    {9}
    """


class PrioritizedVectorReplayBuffer(_OverSumTree, data.PrioritizedVectorReplayBuffer):
    """tianshou.data.PrioritizedVectorReplayBuffer over libper's sum tree, with the same arguments."""
