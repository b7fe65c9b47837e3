"""SumTree: priorities, and draws of indices in proportion to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, overload

import numpy.typing as npt

from per import _kinds, _library, _memory, _options
from per._device_arrays import Elements
from per._errors import InvalidArgument
from per._handle import Store, created
from per._library import NULL, check, lib
from per.typing import (
    ArrayLike,
    Arrays,
    DeviceLike,
    FloatLike,
    IntArrayLike,
    IntLike,
    NamedTuple,
    ReadOnly,
    Scheme,
    TreeArray,
)

if TYPE_CHECKING:
    import torch


class TreeOptions(TypedDict):
    """The value of every option of a tree: SumTree.options."""

    capacity: ReadOnly[int]
    device: ReadOnly[str]
    seed: ReadOnly[int]
    arrays: ReadOnly[Arrays]


class Draw(NamedTuple, Generic[TreeArray]):
    """The result of SumTree.sample(): three arrays of the batch's length."""

    indices: TreeArray
    """int64[batch_size]"""
    priorities: TreeArray
    """float32[batch_size], the p of each index"""
    weights: TreeArray
    """float32[batch_size], importance-sampling weights"""


class Mass(NamedTuple):
    """The integers that draws are based on: a leaf of priority p weighs ceil(p * 2^scale)."""

    total: int
    scale: int


class SumTree(Store, Generic[TreeArray]):
    """Priorities of `capacity` leaves; indices are drawn with probability P(i) = p_i / sum_k p_k.

    Equation 1 and section 3.3 of Schaul et al. 2016 (arXiv:1511.05952), without the exponent. Priorities are float32;
    sums are exact after any sequence of updates. Setting a priority and drawing an index cost O(log capacity).

    Parameters
    ----------
    capacity : int
        Number of leaves, 1 to 2^40. Initially all priorities are 0.
    device : DeviceLike, default "cpu"
        "cpu", "cuda" or "cuda:1".
    seed : int, default 0
        Seed of the draws, 0 to 2^64 - 1. The same seed and the same calls give the same indices, from every language.
    arrays : {"numpy", "torch", "jax", "cupy"}, optional
        Arrays of results: "numpy" on the CPU; on CUDA "torch" (the default there), "cupy" or "jax".

    Raises
    ------
    InvalidArgument
    OutOfMemory
    NoDevice
    Unsupported

    Notes
    -----
    On CUDA, calls read arrays on that device in place: anything with __dlpack__ or __cuda_array_interface__, such as
    tensors of torch and arrays of CuPy and JAX. Other arrays are copied there. Arrays of the library `arrays` are
    converted on the device if they are not contiguous or have another dtype; arrays of other libraries must be
    contiguous and of exactly the dtypes named. Calls queue their work on `stream` and return immediately. A stream is
    one of torch or CuPy, or a cudaStream_t; the default is the current one of `arrays`, and with JAX it cannot be
    chosen. Invalid entries are detected on the device only: they are skipped, and synchronize() reports them.

    A tree may be used by several threads. It is closed by the garbage collector, or at the end of a `with` block.

    Examples
    --------
    >>> import numpy as np, per
    >>> tree = per.SumTree(4, seed=1)
    >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
    >>> tree.total
    8.0
    >>> tree.find([0.5, 1.0, 7.9])
    array([0, 1, 3])
    >>> sorted(set(tree.sample(64).indices.tolist()))
    [0, 1, 3]
    """

    _noun = "tree"
    _in_place_of_pickling = "Pickle tree.priorities()."
    _synchronize = lib.per_tree_synchronize

    @overload
    def __init__(
        self: SumTree[npt.NDArray[Any]],
        capacity: IntLike,
        *,
        device: Literal["cpu"] = "cpu",
        seed: IntLike = 0,
        arrays: Literal["numpy"] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: SumTree[torch.Tensor],
        capacity: IntLike,
        *,
        device: DeviceLike,
        seed: IntLike = 0,
        arrays: Literal["torch"],
    ) -> None: ...
    @overload
    def __init__(
        self: SumTree[Any],
        capacity: IntLike,
        *,
        device: DeviceLike = "cpu",
        seed: IntLike = 0,
        arrays: Arrays | None = None,
    ) -> None: ...
    def __init__(
        self, capacity: IntLike, *, device: DeviceLike = "cpu", seed: IntLike = 0, arrays: Arrays | None = None
    ) -> None:
        options = _library.new("per_tree_options")
        options.device, options.device_index = _options.device(device)
        kind = _kinds.kind_of(arrays, str(device), on_host=("numpy",))
        _options.set_options(options, {"capacity": capacity, "seed": seed})
        self._handle = created(lib.per_tree_create, options)
        self._memory = _memory.memory_of(options.device, options.device_index, kind)
        self._capacity = int(options.capacity)
        self._device = str(device)
        self._options: TreeOptions = {
            "capacity": self._capacity,
            "device": self._device,
            "seed": int(options.seed),
            "arrays": kind,
        }

    def update(self, indices: IntArrayLike, priorities: ArrayLike, *, stream: object = None) -> None:
        """Sets priorities. For duplicate indices the last one wins.

        Parameters
        ----------
        indices : IntArrayLike
            int64[n], 0 to capacity - 1.
        priorities : ArrayLike
            float32[n], finite, >= 0.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Raises
        ------
        InvalidArgument
            An entry is invalid; nothing is changed. On CUDA invalid entries are skipped, the others take effect, and
            synchronize() reports them.

        Examples
        --------
        >>> import per
        >>> tree = per.SumTree(4, seed=1)
        >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
        >>> tree.priorities().tolist()
        [1.0, 2.0, 0.0, 5.0]
        """
        queue = self._memory.queue(stream)
        index = self._memory.read_numbers(indices, "indices", "int64", queue)
        priority = self._memory.read_numbers(priorities, "priorities", "float32", queue)
        if index.size != priority.size:
            raise InvalidArgument(f"priorities has {priority.size} entries, indices {index.size}; allowed: as many")
        check(lib.per_update(self._open(), index.size, index.pointer, priority.pointer, queue.handle))
        self._memory.finish(queue, index, priority)

    def sample(
        self, batch_size: IntLike, *, beta: FloatLike = 0.0, scheme: Scheme = "stratified", stream: object = None
    ) -> Draw[TreeArray]:
        """Draws indices, and their importance-sampling weights w_i = (min_j P(j) / P(i))^beta, j over the batch.

        Section 3.4 of the paper, normalised by the batch's maximum. Without replacement P is the inclusion probability.

        A call that fails does not count as a draw. On CUDA, if too few priorities are positive, indices are -1 and
        weights 0, and synchronize() reports it.

        Parameters
        ----------
        batch_size : int
            1 to 2^24.
        beta : float, default 0.0
            >= 0; 0 gives weights 1.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, default "stratified"
            "stratified" (draw i from the i-th of batch_size equal parts of the total), "independent", "systematic",
            "without_replacement" (needs batch_size leaves of positive priority).
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Raises
        ------
        Empty
            All priorities are 0.
        InvalidArgument

        Examples
        --------
        >>> import per
        >>> tree = per.SumTree(4, seed=1)
        >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
        >>> draw = tree.sample(64, beta=1.0)
        >>> sorted(set(draw.indices.tolist())), float(draw.weights.max())
        ([0, 1, 3], 1.0)
        """
        number = _options.number("per_scheme", "scheme", scheme)
        size = _options.whole("batch_size", batch_size)
        exponent = _options.real("beta", beta)
        queue = self._memory.queue(stream)
        arrays = [
            self._memory.new((_options.rows_of(size),), dtype, queue) for dtype in ("int64", "float32", "float32")
        ]
        outputs = map(self._memory.pointer, arrays)
        check(lib.per_sample(self._open(), size, number, exponent, *outputs, queue.handle))
        self._memory.finish(queue, *arrays)
        return Draw(*map(_kinds.given, arrays))

    def find(self, prefix_sums: ArrayLike, *, stream: object = None) -> TreeArray:
        """The index i with p_0 + .. + p_(i-1) <= s < p_0 + .. + p_i for each prefix sum s.

        Parameters
        ----------
        prefix_sums : ArrayLike
            float64[n], 0 <= s < total, in units of priority.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Returns
        -------
        TreeArray
            int64[n].

        Raises
        ------
        Empty
            All priorities are 0.
        InvalidArgument

        Examples
        --------
        >>> import per
        >>> tree = per.SumTree(4, seed=1)
        >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
        >>> tree.find([0.5, 1.0, 7.9]).tolist()
        [0, 1, 3]
        """
        return self._find(lib.per_tree_find, prefix_sums, "prefix_sums", "float64", stream)

    def find_mass(self, units: IntArrayLike, *, stream: object = None) -> TreeArray:
        """The index that each unit of mass belongs to: m_0 + .. + m_(i-1) <= u < m_0 + .. + m_i.

        Parameters
        ----------
        units : IntArrayLike
            uint64[n], 0 to mass.total - 1.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Returns
        -------
        TreeArray
            int64[n].

        Raises
        ------
        Empty
            All priorities are 0.
        InvalidArgument

        Examples
        --------
        >>> import per
        >>> tree = per.SumTree(4, seed=1)
        >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
        >>> tree.find_mass([0, tree.mass.total - 1]).tolist()
        [0, 3]
        """
        return self._find(lib.per_tree_find_mass, units, "units", "uint64", stream)

    def _find(self, function: Any, source: object, name: str, dtype: str, stream: object) -> TreeArray:
        queue = self._memory.queue(stream)
        entries = self._memory.read_numbers(source, name, dtype, queue)
        return self._each(function, entries, "int64", queue)  # type: ignore[no-any-return]

    def priorities(self, indices: IntArrayLike | None = None, *, stream: object = None) -> TreeArray:
        """Reads priorities: float32[n] at the given indices, int64[n]; without them float32[capacity].

        Parameters
        ----------
        indices : IntArrayLike, optional
            int64[n], 0 to capacity - 1.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Raises
        ------
        InvalidArgument

        Examples
        --------
        >>> import per
        >>> tree = per.SumTree(4, seed=1)
        >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
        >>> tree.priorities([3, 2]).tolist()
        [5.0, 0.0]
        """
        queue = self._memory.queue(stream)
        if indices is None:
            entries = Elements(NULL, (self._capacity,), "int64", None)
        else:
            entries = self._memory.read_numbers(indices, "indices", "int64", queue)
        return self._each(lib.per_tree_get_priorities, entries, "float32", queue)  # type: ignore[no-any-return]

    def reset(self, *, stream: object = None) -> None:
        """Sets all priorities to 0. The random state is kept.

        Parameters
        ----------
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Examples
        --------
        >>> import per
        >>> tree = per.SumTree(4, seed=1)
        >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
        >>> tree.reset()
        >>> tree.total
        0.0
        """
        check(lib.per_tree_reset(self._open(), self._memory.queue(stream).handle))

    @property
    def total(self) -> float:
        """Sum of the priorities, each rounded up to a whole multiple of 2^-scale. Synchronises."""
        return float(self._describe().total)

    @property
    def mass(self) -> Mass:
        """Total mass and scale. Both may change with the next update. Synchronises."""
        described = self._describe()
        return Mass(int(described.total_mass), int(described.scale))

    def _describe(self) -> Any:
        return _library.filled("per_tree_description", lib.per_tree_describe, self._open())

    @property
    def options(self) -> TreeOptions:
        """Every option by name: `per.SumTree(**tree.options)` creates a tree like this one with all priorities 0."""
        return self._options.copy()

    @property
    def capacity(self) -> int:
        """Number of leaves."""
        return self._capacity

    def __len__(self) -> int:
        return self._capacity

    def __repr__(self) -> str:
        state = f"total={self.total:g}" if self._handle is not None else "closed"
        return f"per.SumTree({self._capacity}, device={self._device!r}, {state})"
