"""SumTree: priorities, and draws of indices in proportion to them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from per import _library, _memory, _options
from per._errors import InvalidArgument
from per._library import NULL, check, ffi, lib


class Draw(NamedTuple):
    """What SumTree.sample() returns: three arrays of the batch's length."""

    indices: npt.NDArray[np.int64]
    """int64[batch_size]"""
    priorities: npt.NDArray[np.float32]
    """float32[batch_size], the p of each index"""
    weights: npt.NDArray[np.float32]
    """float32[batch_size], importance-sampling weights"""


class Mass(NamedTuple):
    """The whole numbers that draws are made of: a leaf of priority p weighs ceil(p * 2^scale)."""

    total: int
    scale: int


class SumTree:
    """Priorities of `capacity` leaves; indices are drawn with probability P(i) = p_i / sum_k p_k.

    Equation 1 and section 3.3 of Schaul et al. 2016 (arXiv:1511.05952), without the exponent. Priorities are float32;
    sums are exact, whatever the history of updates. Setting a priority and drawing an index cost O(log capacity).

    Arguments:
        capacity: number of leaves, 1 to 2^40. All priorities are 0 at first.
        device: "cpu", "cuda", "cuda:1", ...
        seed: of the draws, 0 to 2^64 - 1. The same seed and the same calls give the same indices, from every language.
        arrays: what is returned: "numpy" on the CPU; on CUDA "torch" (the default there) or "cupy".

    On CUDA, calls take arrays of the device - anything with __cuda_array_interface__: tensors of torch, arrays of CuPy,
    JAX - of exactly the dtypes named, and copy others there. They queue their work on `stream` (a stream of torch or
    CuPy, or a cudaStream_t; by default the current one of `arrays`) and return at once. What is wrong with entries is
    known on the device only: they are skipped, and synchronize() reports them.

    Raises:
        InvalidArgument, OutOfMemory, NoDevice, Unsupported.

    >>> import numpy as np, per
    >>> tree = per.SumTree(4, seed=1)
    >>> tree.update([0, 1, 3], [1.0, 2.0, 5.0])
    >>> tree.total
    8.0
    >>> tree.find([0.5, 1.0, 7.9])
    array([0, 1, 3])
    >>> sorted(set(tree.sample(64).indices.tolist()))
    [0, 1, 3]

    A tree may be used by several threads. It closes itself, and earlier at the end of a `with` block.
    """

    def __init__(self, capacity: int, *, device: str = "cpu", seed: int = 0, arrays: str | None = None) -> None:
        self._handle: Any = None
        options = _library.new("per_tree_options")
        options.device, options.device_index = _options.device(device)
        _options.set_options(options, {"capacity": capacity, "seed": seed})
        handle_out = ffi.new("per_tree **")
        check(lib.per_tree_create(options, handle_out))
        # A call in flight holds a reference of its own, so that close() in another thread frees nothing under it.
        self._handle = ffi.gc(handle_out[0], lib.per_tree_free)
        self._memory = _memory.memory_of(options.device, options.device_index, arrays)
        self._capacity = capacity
        self._device = device

    def update(self, indices: object, priorities: object, *, stream: object = None) -> None:
        """Sets priorities; of equal indices the last one wins.

        Arguments:
            indices: int64[n], 0 to capacity - 1.
            priorities: float32[n], finite, >= 0.

        Raises:
            InvalidArgument for any bad entry; then nothing is changed.
        """
        index = self._memory.read(indices, "indices", np.int64)
        priority = self._memory.read(priorities, "priorities", np.float32)
        size, size_of_priorities = self._memory.size(index), self._memory.size(priority)
        if size != size_of_priorities:
            raise InvalidArgument(f"priorities has {size_of_priorities} entries, indices {size}; allowed: as many")
        pointers = self._int64(index), self._float32(priority)
        check(lib.per_update(self._open(), size, *pointers, self._memory.stream(stream)))

    def sample(self, batch_size: int, *, beta: float = 0.0, scheme: str = "stratified", stream: object = None) -> Draw:
        """Draws indices, and their importance-sampling weights w_i = (min_j P(j) / P(i))^beta, j over the batch.

        Section 3.4 of the paper, normalised by the batch's maximum. Without replacement P is the inclusion probability.

        Arguments:
            batch_size: 1 to 2^24.
            beta: >= 0; 0 gives weights 1.
            scheme: "stratified" (draw i from the i-th of batch_size equal parts of the total), "independent",
                "systematic", "without_replacement" (needs batch_size leaves of positive priority).

        Raises:
            Empty if all priorities are 0; InvalidArgument. A call that fails is no draw. On CUDA indices are
            then -1 and weights 0, which synchronize() reports.
        """
        number = _options.number("per_scheme", "scheme", scheme)
        size = _options.whole("batch_size", batch_size)
        draw = Draw(*(self._memory.empty(size, dtype) for dtype in (np.int64, np.float32, np.float32)))
        outputs = self._int64(draw.indices), self._float32(draw.priorities), self._float32(draw.weights)
        exponent = _options.real("beta", beta)
        check(lib.per_sample(self._open(), size, number, exponent, *outputs, self._memory.stream(stream)))
        return draw

    def find(self, prefix_sums: object, *, stream: object = None) -> npt.NDArray[np.int64]:
        """The index i with p_0 + .. + p_(i-1) <= s < p_0 + .. + p_i for each prefix sum s.

        Arguments:
            prefix_sums: float64[n], 0 <= s < total, in units of priority.

        Returns:
            int64[n].

        Raises:
            Empty if all priorities are 0; InvalidArgument.
        """
        sums = self._memory.read(prefix_sums, "prefix_sums", np.float64)
        size = self._memory.size(sums)
        indices: npt.NDArray[np.int64] = self._memory.empty(size, np.int64)
        pointers = self._memory.pointer(sums, "double"), self._int64(indices)
        check(lib.per_tree_find(self._open(), size, *pointers, self._memory.stream(stream)))
        return indices

    def find_mass(self, units: object, *, stream: object = None) -> npt.NDArray[np.int64]:
        """The index that each unit of mass belongs to: m_0 + .. + m_(i-1) <= u < m_0 + .. + m_i.

        Arguments:
            units: uint64[n], 0 to mass.total - 1.

        Returns:
            int64[n].

        Raises:
            Empty if all priorities are 0; InvalidArgument.
        """
        unit = self._memory.read(units, "units", np.uint64)
        size = self._memory.size(unit)
        indices: npt.NDArray[np.int64] = self._memory.empty(size, np.int64)
        pointers = self._memory.pointer(unit, "uint64_t"), self._int64(indices)
        check(lib.per_tree_find_mass(self._open(), size, *pointers, self._memory.stream(stream)))
        return indices

    def priorities(self, indices: object = None, *, stream: object = None) -> npt.NDArray[np.float32]:
        """Reads priorities: float32[n] at the given indices, int64[n]; without them float32[capacity].

        Raises:
            InvalidArgument.
        """
        index = NULL
        size = self._capacity
        if indices is not None:
            read = self._memory.read(indices, "indices", np.int64)
            index, size = self._int64(read), self._memory.size(read)
        priority: npt.NDArray[np.float32] = self._memory.empty(size, np.float32)
        pointer = self._float32(priority)
        check(lib.per_tree_priorities(self._open(), size, index, pointer, self._memory.stream(stream)))
        return priority

    def reset(self, *, stream: object = None) -> None:
        """Sets all priorities to 0. The random state stays."""
        check(lib.per_tree_reset(self._open(), self._memory.stream(stream)))

    def synchronize(self, *, stream: object = None) -> None:
        """Waits for what this tree queued on the stream, and reports once what went wrong on the device.

        Does nothing on the CPU.

        Raises:
            InvalidArgument with the number of entries that were skipped; Empty; CudaError.
        """
        check(lib.per_tree_synchronize(self._open(), self._memory.stream(stream)))

    @property
    def total(self) -> float:
        """Sum of the priorities, each rounded up to a whole multiple of 2^-scale. Synchronises."""
        total = ffi.new("double *")
        check(lib.per_tree_total(self._open(), total))
        return float(total[0])

    @property
    def mass(self) -> Mass:
        """Total mass and scale. Both may change with the next update. Synchronises."""
        total, scale = ffi.new("uint64_t *"), ffi.new("int32_t *")
        check(lib.per_tree_mass(self._open(), total, scale))
        return Mass(int(total[0]), int(scale[0]))

    @property
    def capacity(self) -> int:
        """Number of leaves."""
        return self._capacity

    def __len__(self) -> int:
        return self._capacity

    def close(self) -> None:
        """Frees the tree. Every later call but close() is an error."""
        self._handle = None

    def __enter__(self) -> SumTree:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"total={self.total:g}" if self._handle is not None else "closed"
        return f"per.SumTree({self._capacity}, device={self._device!r}, {state})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.SumTree cannot be pickled: it is a handle of this process. Pickle tree.priorities()")

    def _open(self) -> Any:
        handle = self._handle
        if handle is None:
            raise InvalidArgument("the tree is closed")
        return handle

    def _int64(self, array: Any) -> Any:
        return self._memory.pointer(array, "int64_t")

    def _float32(self, array: Any) -> Any:
        return self._memory.pointer(array, "float")
