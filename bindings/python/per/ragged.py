"""Ragged: rows of any length, packed into one array."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, overload

import numpy as np
import numpy.typing as npt

from per import _arrays, _options
from per._errors import InvalidArgument, OutOfMemory, Unsupported, kind_of
from per.typing import Array, ArrayLike, IntArrayLike, IntLike


class Ragged(Generic[Array]):
    """Rows of any length, such as tokens, points or sets: the form of a field with max_length in batches.

    Row i is `values[offsets[i]:offsets[i + 1]]`, which `ragged[i]` returns without a copy. Attention over packed
    sequences takes `values` and `offsets` as they are. add(), extend() and set() take such objects, too:
    one row for each step.

    Parameters
    ----------
    values : Array
        [sum of lengths, shape]: the rows, one after the other.
    offsets : IntArrayLike
        int64[n + 1], ascending, the first 0: where each row begins, and where the last ends.
    shape : tuple[int, ...], optional
        The axes of rows, whose product is n. Default: (n,). For sequences they are (B, T).

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
    """int64[n + 1]; in JAX without 64-bit types int32"""
    shape: tuple[int, ...]
    """the axes of rows"""

    @overload
    def __init__(self, values: Array, offsets: IntArrayLike, shape: tuple[int, ...] | None = None) -> None: ...
    @overload
    def __init__(
        self: Ragged[npt.NDArray[Any]], values: ArrayLike, offsets: IntArrayLike, shape: tuple[int, ...] | None = None
    ) -> None: ...
    def __init__(self, values: Any, offsets: Any, shape: tuple[int, ...] | None = None) -> None:
        rows: Any = values if hasattr(values, "shape") else _arrays.as_array(values, "values")[0]
        if len(rows.shape) == 0:
            raise InvalidArgument(f"values is {kind_of(values)}; allowed: an array, whose first axis counts the values")
        ends = _offsets_like(rows, offsets)
        given = offsets.shape if hasattr(offsets, "shape") else np.shape(offsets)
        if len(given) != 1 or given[0] == 0:
            raise InvalidArgument(f"offsets has shape {list(given)}; allowed: [n + 1], for n rows")
        self.values, self.offsets = rows, ends
        n = int(ends.shape[0]) - 1
        self.shape = (n,) if shape is None else _axes(shape)
        if math.prod(self.shape) != n:
            raise InvalidArgument(f"offsets has {n + 1} entries; allowed: 1 more than rows, {math.prod(self.shape)}")
        host = _readable(ends)
        if host is not None:
            _check(host, int(rows.shape[0]))

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
            same shape, as jax.jit needs it. Call it before jit, not inside.
        value : float, default 0
            The value after the end of each row.

        Raises
        ------
        InvalidArgument
            A row is longer than `length`, or the elements of the rows cannot have this value.
        OutOfMemory
            The array is too large.
        """
        values: Any = self.values
        torch = sys.modules["torch"] if _is_torch(values) else None
        offsets: Any = np.asarray(self.offsets if torch is None else _to_host(self.offsets))
        _check(offsets, int(values.shape[0]))
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        _check_filler(value, values)
        length = longest if length is None else _options.whole("length", length)
        if length < longest:
            raise InvalidArgument(f"length is {length}; allowed: {longest} and more, the length of the longest row")
        padded = _full((lengths.size * length, *values.shape[1:]), value, values)
        places: Any = np.repeat(np.arange(lengths.size) * length - offsets[:-1], lengths) + np.arange(offsets[-1])
        if torch is not None:
            _as_signed(padded)[torch.from_numpy(places).to(values.device)] = _as_signed(values)
        elif isinstance(values, np.ndarray):
            padded[places] = values
        else:
            padded = padded.at[places].set(values)
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


def _check_filler(value: object, values: Any) -> None:
    """Raises InvalidArgument unless it is a number, and one that elements of these values can be."""
    number, dtype = _options.real("value", value), str(values.dtype).removeprefix("torch.")
    library = sys.modules["torch"] if _is_torch(values) else np
    if dtype == "bool":
        fits, allowed = number in (0, 1), "True and False"
    elif "float" in dtype:
        double: Any = np.float64(number) if library is np else library.tensor(number, dtype=library.float64)
        with np.errstate(over="ignore"):
            cast = double.astype(values.dtype) if library is np else double.to(values.dtype)
        fits, allowed = math.isfinite(cast) or not math.isfinite(number), f"numbers of {dtype}"
    else:
        try:
            whole = library.iinfo(values.dtype)
        except (TypeError, ValueError):  # no numbers
            return
        fits = number.is_integer() and whole.min <= number <= whole.max
        allowed = f"whole numbers from {whole.min} to {whole.max}"
    if not fits:
        raise InvalidArgument(f"value is {value}; allowed: {allowed}")


def _full(shape: tuple[int, ...], value: float, values: Any) -> Any:
    """An array of that shape in the library and with the dtype of `values`, full of one value. Raises OutOfMemory."""
    try:
        if _is_torch(values):
            return sys.modules["torch"].full(shape, value, dtype=values.dtype, device=values.device)
        library: Any = np if isinstance(values, np.ndarray) else importlib.import_module("jax.numpy")
        return library.full(shape, value, values.dtype)
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:  # the last two: of sizes beyond 64 bits
        raise OutOfMemory(f"out of memory: rows of shape {list(shape)}: {_arrays.first_line(error)}") from error


def _as_signed(tensor: Any) -> Any:
    """The same memory as signed numbers, since torch cannot index unsigned ones."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return tensor.view(getattr(sys.modules["torch"], dtype[1:])) if dtype.startswith("uint") else tensor


def _axes(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        raise InvalidArgument(f"shape is {shape!r}; allowed: a tuple of whole numbers")
    return tuple(_options.at_least(f"shape[{i}]", axis, 0) for i, axis in enumerate(shape))


def _offsets_like(values: Any, offsets: Any) -> Any:
    """Offsets as int64 in the array library of the values, or as they are if they are of that library."""
    if _is_torch(offsets) or not (isinstance(offsets, np.ndarray) or not hasattr(offsets, "shape")):
        dtype = str(offsets.dtype).removeprefix("torch.")
        if "int" not in dtype:
            raise InvalidArgument(f"offsets has dtype {dtype}; allowed: whole numbers of up to 64 bits")
        return offsets
    array = _arrays.as_int64(offsets, "offsets")
    return sys.modules["torch"].from_numpy(array).to(values.device) if _is_torch(values) else array


def _readable(offsets: Any) -> npt.NDArray[Any] | None:
    """The offsets if they can be read without waiting for a device: numpy's, and torch's in host memory."""
    if isinstance(offsets, np.ndarray):
        return offsets
    if not _is_torch(offsets) or offsets.device.type != "cpu" or sys.modules["torch"].compiler.is_compiling():
        return None
    try:
        array: npt.NDArray[Any] = offsets.detach().numpy()
    except (RuntimeError, TypeError):  # a placeholder
        return None
    return array


def _check(offsets: npt.NDArray[Any], n_values: int) -> None:
    """Raises InvalidArgument unless the rows are those of all values."""
    if offsets[0] != 0 or offsets[-1] != n_values:
        raise InvalidArgument(f"offsets begins with {offsets[0]} and ends with {offsets[-1]}; allowed: 0, {n_values}")
    if (offsets[1:] < offsets[:-1]).any():
        raise InvalidArgument("offsets falls; allowed: ascending numbers")


def mapped(ragged: Ragged[Any], function: Callable[[Any], Any]) -> Ragged[Any]:
    """The same rows with function(values) and function(offsets)."""
    return of_tree(ragged.shape, (function(ragged.values), function(ragged.offsets)))


def first_rows(ragged: Ragged[Any], n: int) -> Ragged[Any]:
    """The first n rows."""
    end = n * math.prod(ragged.shape[1:])
    arrays = ragged.values[: int(ragged.offsets[end])], ragged.offsets[: end + 1]
    return of_tree((n, *ragged.shape[1:]), arrays)


def of_tree(shape: tuple[int, ...], arrays: Iterable[Any]) -> Ragged[Any]:
    """Rows that need no check; the arrays may be the placeholders that JAX and torch use for them."""
    ragged: Ragged[Any] = Ragged.__new__(Ragged)
    ragged.values, ragged.offsets = arrays
    ragged.shape = shape
    return ragged


def _to_host(tensor: Any) -> Any:
    return tensor.cpu()


def _is_torch(array: object) -> bool:
    return "torch" in sys.modules and isinstance(array, sys.modules["torch"].Tensor)


def packed(
    source: Any, name: str, rows: tuple[int, ...], value_shape: tuple[int, ...]
) -> tuple[Any, npt.NDArray[np.int64]]:
    """The values of rows as an array that the memory of a handle can read, and their offsets.

    `source` is a Ragged; a list of rows; for a run of several environments, a list of such lists; an array in place of
    any list; or, for one row, that row alone. `rows` are the axes of the steps, [n] or [K, n]. Raises InvalidArgument.
    """
    n_rows = math.prod(rows)
    if isinstance(source, Ragged):
        offsets, n_values = _arrays.as_int64(source.offsets, f"{name}.offsets"), int(source.values.shape[0])
        if offsets.size > 0 and offsets[-1] != n_values:
            raise InvalidArgument(f"{name}.offsets ends with {offsets[-1]}; allowed: {n_values}, as there are values")
        if n_values == 0:
            return _no_values(value_shape), _checked(offsets, name, n_rows)
        return source.values, _checked(offsets, name, n_rows)
    found = rows_in(source, name, rows, len(value_shape))
    arrays = [_arrays.as_array(row, f"{name}[{i}]" if len(found) > 1 else name) for i, row in enumerate(found)]
    for i, (array, _) in enumerate(arrays):
        if array.ndim == 0:
            raise InvalidArgument(f"{name}[{i}] is a number; allowed: a row, which has an axis")
    offsets = np.zeros(len(found) + 1, np.int64)
    np.cumsum([len(array) if array.size else 0 for array, _ in arrays], out=offsets[1:])
    _checked(offsets, name, n_rows)
    return _joined(arrays, name, value_shape), offsets


def rows_in(source: Any, name: str, rows: tuple[int, ...], value_ndim: int) -> list[Any]:
    """The rows in nested lists or arrays. Where all rows are empty, the lengths of the lists decide."""
    if isinstance(source, Ragged):
        return list(source)
    depth = _ndim(source)
    is_list_of_nothing = isinstance(source, (list, tuple)) and depth > 1 and _is_empty(source)
    if math.prod(rows) == 1 and depth <= 1 + value_ndim and not is_list_of_nothing:
        return [source]
    outer = _list_of(source, name)
    if len(rows) == 2 and (depth > 2 + value_ndim or (is_list_of_nothing and _has_shape(outer, rows))):
        return [row for step in outer for row in _list_of(step, name)]
    return outer


def _has_shape(outer: list[Any], rows: tuple[int, ...]) -> bool:
    return len(outer) == rows[0] and all(len(each) == rows[1] for each in outer) and rows != (rows[0], 0)


def _is_empty(source: Any) -> bool:
    if isinstance(source, (list, tuple)):
        return all(map(_is_empty, source))
    return 0 in getattr(source, "shape", (1,))


def _no_values(value_shape: tuple[int, ...]) -> Any:
    return np.zeros((0, *value_shape), np.bool_)  # which fields of any dtype take


def _checked(offsets: npt.NDArray[np.int64], name: str, n_rows: int) -> npt.NDArray[np.int64]:
    if offsets.size != n_rows + 1:
        raise InvalidArgument(f"{name} has {offsets.size - 1} rows; allowed: {n_rows}, one for each step")
    return offsets


def _ndim(source: Any) -> int:
    """The axes of an array, or of nested lists at their deepest place."""
    if isinstance(source, (list, tuple)):
        is_deeper = any(isinstance(each, (list, tuple)) or getattr(each, "ndim", 0) for each in source)
        return 1 + (max(map(_ndim, source)) if is_deeper else 0)
    return getattr(source, "ndim", 0)


def _list_of(source: Any, name: str) -> list[Any]:
    try:
        return list(source)
    except TypeError:
        raise InvalidArgument(f"{name} is {kind_of(source)}; allowed: a list of rows, or a per.Ragged") from None


def _joined(arrays: Sequence[tuple[_arrays.Array, int]], name: str, value_shape: tuple[int, ...]) -> Any:
    """Rows as one array. Empty rows fit any others."""
    values = [_arrays.widened(array) if code == _arrays.BFLOAT16 else array for array, code in arrays if array.size > 0]
    if not values:
        return _no_values(value_shape)
    kinds = {array.dtype.kind for array in values}
    if kinds <= {"b", "i", "u"} and kinds >= {"i", "u"}:  # lists of Python's integers are unsigned
        values = [
            array.astype(np.int64) if array.dtype != np.uint64 or array.max() < 2**63 else array for array in values
        ]
    try:
        return values[0] if len(values) == 1 else np.concatenate(values)
    except ValueError as error:
        raise InvalidArgument(f"{name} has rows that differ in the shape of their values: {error}") from error
