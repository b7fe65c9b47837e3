"""Ragged: rows of any length, packed into one array."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from per import _arrays
from per._errors import InvalidArgument, Unsupported, kind_of
from per.typing import Array, IntLike


class Ragged(Generic[Array]):
    """Rows of any length, such as tokens, points or sets: the form of a field with max_length in batches.

    Row i is `values[offsets[i]:offsets[i + 1]]`, which `ragged[i]` returns without a copy. Attention over packed
    sequences takes `values` and `offsets` as they are. add(), extend() and set() accept such objects, too, for each row
    a step.

    Parameters
    ----------
    values : Array
        [sum of lengths, shape]: the rows, one after the other.
    offsets : IntArrayLike
        int64[n + 1], ascending, the first 0: where each row begins, and where the last ends.
    shape : tuple[int, ...], optional
        The axes of rows, whose product is n. Default: (n,). Of sequences they are (B, T).

    Examples
    --------
    >>> import numpy as np, per
    >>> ragged = per.Ragged(np.array([5, 7, 1, 2, 3]), [0, 2, 2, 5])
    >>> ragged[0].tolist(), ragged.lengths.tolist(), len(ragged)
    ([5, 7], [2, 0, 3], 3)
    >>> ragged.padded().tolist()
    [[5, 7, 0], [0, 0, 0], [1, 2, 3]]
    """

    __slots__ = ("offsets", "shape", "values")

    values: Array
    """[sum of lengths, shape]"""
    offsets: Array
    """int64[n + 1]; in JAX int32"""
    shape: tuple[int, ...]
    """the axes of rows"""

    def __init__(self, values: Any, offsets: Any, shape: tuple[int, ...] | None = None) -> None:
        self.values = values
        ends: Any = _arrays.as_int64(offsets, "offsets") if isinstance(offsets, (list, tuple)) else offsets
        self.offsets = ends
        n = int(ends.shape[0]) - 1
        self.shape = (n,) if shape is None else shape
        if n < 0 or math.prod(self.shape) != n:
            raise InvalidArgument(f"offsets has {n + 1} entries; allowed: 1 more than rows, {math.prod(self.shape)}")

    @property
    def lengths(self) -> Array:
        """The number of values of each row, int64 of `shape`."""
        offsets: Any = self.offsets
        lengths: Array = (offsets[1:] - offsets[:-1]).reshape(self.shape)
        return lengths

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, place: Any) -> Any:
        """A row [length, shape]; rows of a sequence are ragged[i, t], and ragged[i] is all of them, as a Ragged."""
        places = place if isinstance(place, tuple) else (place,)
        if len(places) > len(self.shape) or not all(isinstance(each, (int, np.integer)) for each in places):
            raise InvalidArgument(f"index is {place!r}; allowed: up to {len(self.shape)} whole numbers")
        for each, size in zip(places, self.shape, strict=False):
            if not -size <= each < size:
                raise IndexError(f"index is {place!r}; allowed for shape {self.shape}: {-size} to {size - 1}")
        inner = self.shape[len(places) :]
        within = [each % size for each, size in zip(places, self.shape, strict=False)]
        n = math.prod(inner)
        first = n * int(np.ravel_multi_index(within, self.shape[: len(places)]))
        values: Any = self.values
        offsets: Any = self.offsets
        begin, end = int(offsets[first]), int(offsets[first + n])
        if not inner:
            return values[begin:end]
        return Ragged(values[begin:end], offsets[first : first + n + 1] - offsets[first], inner)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def padded(self, length: IntLike | None = None, value: float = 0) -> Array:
        """All rows in one array, [*shape, length, shape of a value], with `value` after their ends.

        Parameters
        ----------
        length : int, optional
            At least the length of the longest row. Default: that length. The field's max_length gives every batch the
            same shape, as jax.jit needs it.
        value : float, default 0
            What fills the rest.

        Raises
        ------
        InvalidArgument
            A row is longer than `length`.
        """
        values: Any = self.values
        torch = sys.modules["torch"] if _is_torch(values) else None
        offsets: Any = np.asarray(self.offsets if torch is None else _to_host(self.offsets))
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        length = longest if length is None else int(length)
        if length < longest:
            raise InvalidArgument(f"length is {length}; allowed: {longest} and more, the length of the longest row")
        places: Any = np.repeat(np.arange(lengths.size) * length - offsets[:-1], lengths) + np.arange(offsets[-1])
        rows = (lengths.size * length, *values.shape[1:])
        padded: Any
        if torch is not None:
            padded = torch.full(rows, value, dtype=values.dtype, device=values.device)
            padded[torch.from_numpy(places).to(values.device)] = values
        elif isinstance(values, np.ndarray):
            padded = np.full(rows, value, values.dtype)
            padded[places] = values
        else:
            numpy_of_jax: Any = importlib.import_module("jax.numpy")
            padded = numpy_of_jax.full(rows, value, values.dtype).at[places].set(values)
        filled: Array = padded.reshape((*self.shape, length, *values.shape[1:]))
        return filled

    def nested(self) -> Any:
        """The rows as a nested tensor of torch with the layout torch.jagged, which shares the values.

        Raises
        ------
        Unsupported
            The values are not torch's.
        """
        if not _is_torch(self.values):
            raise Unsupported(f"nested() of {kind_of(self.values)}; allowed: arrays='torch'")
        return sys.modules["torch"].nested.nested_tensor_from_jagged(self.values, self.offsets)

    def __reduce__(self) -> tuple[type[Ragged[Any]], tuple[Any, Any, tuple[int, ...]]]:
        return Ragged, (self.values, self.offsets, self.shape)

    def __repr__(self) -> str:
        return f"per.Ragged({_arrays.described(self.values)}, shape={self.shape})"


def mapped(ragged: Ragged[Any], function: Callable[[Any], Any]) -> Ragged[Any]:
    """The same rows with function(values) and function(offsets)."""
    return Ragged(function(ragged.values), function(ragged.offsets), ragged.shape)


def first_rows(ragged: Ragged[Any], n: int) -> Ragged[Any]:
    """The first n rows."""
    end = n * math.prod(ragged.shape[1:])
    return Ragged(ragged.values[: int(ragged.offsets[end])], ragged.offsets[: end + 1], (n, *ragged.shape[1:]))


def of_tree(shape: tuple[int, ...], arrays: Iterable[Any]) -> Ragged[Any]:
    """Rows whose arrays may be the placeholders that JAX and torch use for them, which have no shape."""
    ragged: Ragged[Any] = Ragged.__new__(Ragged)
    ragged.values, ragged.offsets = arrays
    ragged.shape = shape
    return ragged


def _to_host(tensor: Any) -> Any:
    return tensor.cpu()


def _is_torch(array: object) -> bool:
    return "torch" in sys.modules and isinstance(array, sys.modules["torch"].Tensor)


def packed(source: Any, name: str, n_rows: int, value_shape: tuple[int, ...]) -> tuple[Any, npt.NDArray[np.int64]]:
    """The values of rows as an array that the memory of a handle can read, and their offsets.

    `source` is a Ragged, a list of rows, of lists of rows (a run of several environments), or arrays in their place; if
    n_rows is 1, also that row alone. Raises InvalidArgument.
    """
    if isinstance(source, Ragged):
        offsets = _arrays.as_int64(source.offsets, f"{name}.offsets")
        return source.values, _checked(offsets, name, n_rows)
    ndim, value_ndim = _ndim(source), len(value_shape)
    if n_rows == 1 and ndim <= 1 + value_ndim:
        rows = [source]
    elif ndim <= 2 + value_ndim:
        rows = _list_of(source, name)
    else:
        rows = [row for step in _list_of(source, name) for row in _list_of(step, name)]
    arrays = [_arrays.as_array(row, f"{name}[{i}]" if len(rows) > 1 else name) for i, row in enumerate(rows)]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(array) if array.ndim else 0 for array, _ in arrays], out=offsets[1:])
    _checked(offsets, name, n_rows)
    return _joined(arrays, name, value_shape), offsets


def _checked(offsets: npt.NDArray[np.int64], name: str, n_rows: int) -> npt.NDArray[np.int64]:
    if offsets.size != n_rows + 1:
        raise InvalidArgument(f"{name} has {offsets.size - 1} rows; allowed: {n_rows}, one for each step")
    return offsets


def _ndim(source: Any) -> int:
    """The axes of an array, or of nested lists at their deepest place."""
    if isinstance(source, (list, tuple)):
        return 1 + max(map(_ndim, source), default=0)
    return getattr(source, "ndim", 0)


def _list_of(source: Any, name: str) -> list[Any]:
    try:
        return list(source)
    except TypeError:
        raise InvalidArgument(f"{name} is {kind_of(source)}; allowed: a list of rows, or a per.Ragged") from None


def _joined(arrays: Sequence[tuple[_arrays.Array, int]], name: str, value_shape: tuple[int, ...]) -> Any:
    """Rows as one array. Empty rows fit any others."""
    full = [(array, code) for array, code in arrays if array.size > 0]
    if not full:
        return np.zeros((0, *value_shape), np.bool_)  # which fields of any dtype take
    values = [_arrays.widened(array) if code == _arrays.BFLOAT16 else array for array, code in full]
    try:
        if {array.dtype.kind for array in values} == {"i", "u"}:  # lists of Python's integers are unsigned
            values = [array.astype(np.int64) if array.max() < 2**63 else array for array in values]
        return values[0] if len(values) == 1 else np.concatenate(values)
    except ValueError as error:
        raise InvalidArgument(f"{name} has rows that differ in the shape of their values: {error}") from error
