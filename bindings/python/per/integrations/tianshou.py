"""Prioritized replay buffers for tianshou: its own classes, with libper's sum tree.

tianshou manages rows, priorities, exponents and weights as in its own buffers; a `per.SumTree` finds the transitions.
Sums are exact, draws are stratified (Schaul et al. 2016, arXiv:1511.05952, section 3.3), and NaN priorities are
errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tianshou import data

import per

__all__ = ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer", "SegmentTree"]

_SMALLEST, _LARGEST = 2.0**-149, np.finfo(np.float32).max  # of float32


class SegmentTree(data.SegmentTree):
    """The segment tree of a tianshou buffer, `buffer.weight`, as a `per.SumTree`: p^alpha of each row.

    Leaves are read from a float64 array, as in tianshou; draws use them as float32, in which a leaf above 0 is at least
    2^-149.

    Parameters
    ----------
    size : int
        Number of leaves. Initially all are 0.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._leaves = np.zeros(size)
        self._tree = per.SumTree(size)

    def __getitem__(self, index: Any) -> Any:
        return self._leaves[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Sets leaves. For duplicate indices the last one wins. A value that is no float32 >= 0 is an error.

        Raises
        ------
        InvalidArgument
        """
        index = np.asarray(index)
        if index.size > 0 and index.dtype.kind not in "iu":
            raise per.InvalidArgument(f"index has dtype {index.dtype}; allowed: integers")
        index, values = index.astype(np.int64), np.full(index.shape, value, np.float64)
        if (is_large := (values > _LARGEST) & (values < np.inf)).any():
            i = int(np.flatnonzero(is_large)[0])
            allowed = f"up to {_LARGEST}, the largest float32"
            raise per.InvalidArgument(f"priorities[{i}] is {values.flat[i]}; allowed: {allowed}")
        in_tree = np.where(values > 0, np.maximum(values, _SMALLEST), values).astype(np.float32)
        self._tree.update(index.ravel(), in_tree.ravel())
        self._leaves[index] = values

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """The sum of the leaves, or of those in [start, end); end may count from the end."""
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
    """The parts of tianshou's prioritized buffers that differ with libper's SegmentTree."""

    weight: Any
    maxsize: int
    _random_state: np.random.RandomState

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.weight = SegmentTree(self.maxsize)
        if "random_seed" in options:  # tianshou's vector buffers drop it
            self._random_state = np.random.RandomState(options["random_seed"])

    def sample_indices(self, batch_size: int | None) -> npt.NDArray[np.int64]:
        """Draws row i from the i-th of batch_size equal parts of the sum; for 0, returns all rows in order of time.

        The random numbers are the buffer's own (`random_seed`), whose state is saved with it.
        """
        if batch_size is None or batch_size <= 0 or len(self) == 0:  # type: ignore[arg-type]
            return super().sample_indices(batch_size)  # type: ignore[misc,no-any-return]
        total = self.weight.reduce()
        prefix_sums = (np.arange(batch_size) + self._random_state.random_sample(batch_size)) * (total / batch_size)
        # The last one may have been rounded up to the sum itself.
        return self.weight.get_prefix_sum_idx(np.minimum(prefix_sums, np.nextafter(total, 0.0)))  # type: ignore[no-any-return]

    def reset(self, keep_statistics: bool = False) -> None:
        """Empties the buffer. Unlike in tianshou's own buffers, earlier rows are no longer drawn."""
        super().reset(keep_statistics)  # type: ignore[misc]
        self.weight.reset()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Also accepts states saved by tianshou's own buffers."""
        super().__setstate__(state)  # type: ignore[misc]
        if not isinstance(self.weight, SegmentTree):
            self.weight = _tree_of(self.weight[np.arange(self.maxsize)])


class PrioritizedReplayBuffer(_OverSumTree, data.PrioritizedReplayBuffer):
    """tianshou.data.PrioritizedReplayBuffer with libper's sum tree and the same arguments.

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
    """tianshou.data.PrioritizedVectorReplayBuffer with libper's sum tree and the same arguments."""
