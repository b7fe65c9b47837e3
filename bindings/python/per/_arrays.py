"""Reads arrays of any library as numpy arrays, without a copy where possible.

This applies to both ways of passing arrays: per._bridge reads the common cases itself and hands all others to
`as_array`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from per import _library
from per._errors import InvalidArgument, OutOfMemory, kind_of
from per.typing import DTypeName

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]

DTYPES = _library.choices("per_dtype")
BFLOAT16 = DTYPES["bfloat16"]
UINT64 = DTYPES["uint64"]
_EXACT_IN_FLOAT32 = 2**24  # every whole number up to this magnitude is exact
NAMES = {code: name for name, code in DTYPES.items()}

# numpy has no bfloat16; its elements are passed as uint16 under the code BFLOAT16.
_CODES: dict[np.dtype[Any], int] = {np.dtype(name): code for name, code in DTYPES.items() if name != "bfloat16"}
_CODES_BY_NAME = DTYPES


def dtype_name(dtype: object) -> DTypeName:
    """The per.h name of a dtype of numpy, torch, jax or ml_dtypes, of a Python type, or of a dtype name.

    Raises InvalidArgument for a dtype that fields cannot have.
    """
    name = str(dtype).rpartition(".")[2] if type(dtype).__module__ == "torch" else dtype
    if not isinstance(name, str) or name not in DTYPES:
        try:
            name = None if dtype is None else np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = None
    if name not in DTYPES:
        raise InvalidArgument(f"dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    return cast(DTypeName, str(name))


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """numpy's dtype of that name; None for bfloat16 if ml_dtypes is not installed."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        dtype: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        return None
    return dtype


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An uninitialised array for the library to write to; empty for a negative batch_size, which the library refuses.

    Raises OutOfMemory.
    """
    axes = (max(shape, 0),) if isinstance(shape, int) else shape
    try:
        return np.empty(axes, dtype)
    except (MemoryError, ValueError) as error:
        raise _no_memory("an array", axes, dtype) from error


def _no_memory(what: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> OutOfMemory:
    """The error for an array that numpy cannot allocate: MemoryError, or ValueError if it exceeds the address space."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    size = f"{n_bytes} bytes" + f" ({n_bytes / 1e9:.1f} GB)" * (n_bytes >= 1e9)
    return OutOfMemory(f"out of memory: {size} were asked for, {what} of shape {list(shape)}")


def _as_type(array: Array, dtype: npt.DTypeLike, name: str) -> Array:
    try:
        return array.astype(dtype, copy=False)
    except (MemoryError, ValueError) as error:
        raise _no_memory(f"a copy of {name}", array.shape, dtype) from error


# The values that error messages give as allowed for these arguments, whose names no field can have.
_WHOLE = "whole numbers of up to 64 bits"
_ALLOWED = {
    **dict.fromkeys(("ids", "env_ids", "key", "units"), _WHOLE),
    **dict.fromkeys(("reward", "td_errors", "priorities"), "numbers"),
    **dict.fromkeys(("terminated", "truncated", "mask", "next_mask"), "flags, which are booleans, or 0 and 1"),
}


def as_array(source: object, name: str) -> tuple[Array, int]:
    """A C-contiguous numpy array with the elements of `source`, and their per_dtype.

    Contiguous arrays in host memory are not copied. Tensors that require grad are detached; arrays on another device
    are copied to the host. Python integers, which have no dtype, are read as unsigned if possible, so that a field of
    any dtype accepts them.

    Raises InvalidArgument naming the argument.
    """
    if isinstance(source, np.ndarray):
        if np.ma.is_masked(source):
            raise InvalidArgument(f"{name} is a masked array with masked elements; allowed: arrays without")
        array = source
    elif isinstance(source, (bool, int, float, list, tuple)):
        array = _from_python(source, name)
    elif is_tensor(source):
        return _from_torch(source, name)
    else:
        array = _from_protocol(source, name)
    code = _CODES.get(array.dtype)
    if code is None:
        native = array.dtype.newbyteorder("=")
        code = _CODES.get(native, _CODES_BY_NAME.get(native.name))
        if code is None:
            raise _no_such_dtype(name, {"U": "str", "S": "bytes"}.get(array.dtype.kind, array.dtype))
        array = array.view(np.uint16) if code == BFLOAT16 else _as_type(array, native, name)
    try:
        return np.require(np.asarray(array), requirements=["C", "A"]), code
    except (MemoryError, ValueError) as error:
        raise _no_memory(f"a copy of {name}", array.shape, array.dtype) from error


def _no_such_dtype(name: str, dtype: object) -> InvalidArgument:
    return InvalidArgument(f"{name} has dtype {dtype}; allowed: {_ALLOWED.get(name, ', '.join(DTYPES))}")


def _from_python(source: bool | int | float | list[Any] | tuple[Any, ...], name: str) -> Array:
    if ends_with_info(source):
        raise with_info(name)
    try:
        array = np.asarray(source)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        is_uneven = "inhomogeneous" in str(error)
        why = "its parts have different lengths" if is_uneven else first_line(error)
        raise InvalidArgument(f"{name} is {kind_of(source)} that is no array of numbers: {why}") from error
    if array.dtype == np.int64 and array.size and array.min() >= 0:
        return array.astype(np.uint64)
    if array.dtype == np.float64 and array.size and isinstance(source, (list, tuple)) and _are_ints(source):
        with contextlib.suppress(OverflowError):
            return np.array(source, np.uint64)  # some exceed int64, and numpy takes such a list for real numbers
    return array


def _are_ints(source: Iterable[object]) -> bool:
    return all(isinstance(each, int) for each in source)


def ends_with_info(source: object) -> bool:
    """Whether it is what Gymnasium's reset() or step() returns: a tuple that ends with the info."""
    return isinstance(source, tuple) and bool(source) and isinstance(source[-1], Mapping)


def with_info(name: str) -> InvalidArgument:
    """The error for such a tuple in the place of an observation."""
    return InvalidArgument(
        f"{name} is a tuple that ends with a dict, as reset() and step() of an environment return it; "
        "give its first element, the observation"
    )


def first_line(error: BaseException) -> str:
    """The first line of another library's exception, short enough for a one-line message."""
    return str(error).partition("\n")[0]


def is_tensor(source: object) -> bool:
    """Whether it is a torch.Tensor, or of a subclass."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _from_torch(source: Any, name: str) -> tuple[Array, int]:
    torch = sys.modules["torch"]
    dtype = str(source.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise _no_such_dtype(name, source.dtype)
    try:
        if source.layout != torch.strided or source.is_nested:
            raise TypeError(f"it is {'nested' if source.is_nested else source.layout}, not dense")
        tensor = source.detach().cpu().resolve_neg().contiguous()
        array: Array = (tensor.view(torch.int16).numpy().view(np.uint16)) if dtype == "bfloat16" else tensor.numpy()
        # For a tensor without memory, numpy allocates its own.
        if array.size and array.__array_interface__["data"][0] != tensor.data_ptr():
            raise TypeError("it has no memory")
    except (TypeError, RuntimeError, ValueError) as error:
        raise InvalidArgument(f"{name} is a tensor that cannot be read: {first_line(error)}") from error
    return np.require(array, requirements=["A"]), DTYPES[dtype]


def _from_protocol(source: Any, name: str) -> Array:
    if isinstance(source, Mapping):
        meant = f": give batch.{name}" if name in source else ""
        raise InvalidArgument(f"{name} is {kind_of(source)}; allowed: arrays, numbers and lists of them{meant}")
    if hasattr(source, "__cuda_array_interface__") and hasattr(source, "get"):
        source = source.get()  # CuPy's copy to the host
    if isinstance(source, bytes):
        source = memoryview(source)  # numpy would read bytes as a string
    try:
        if hasattr(source, "__dlpack__") and not hasattr(source, "__array__"):
            array: Array = np.from_dlpack(source)
        else:
            array = np.asarray(source)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise InvalidArgument(f"{name} is {kind_of(source)} that cannot be read: {first_line(error)}") from error
    if array.dtype == object:
        raise InvalidArgument(f"{name} is {kind_of(source)}; allowed: arrays, numbers and lists of them")
    return array


def as_writable(target: Any, name: str) -> tuple[Array, int]:
    """Like as_array(), for an array to be written: it is never copied.

    Raises InvalidArgument if it is not an array, is read-only, not contiguous or not in host memory.
    """
    array, code = as_array(target, name)
    if isinstance(target, np.ndarray):
        address = target.__array_interface__["data"][0]
    else:
        address = target.data_ptr() if hasattr(target, "data_ptr") else None
    is_same = array.size == 0 or address == array.__array_interface__["data"][0]  # empty tensors have no address
    if not is_same or not array.flags.writeable:
        raise InvalidArgument(f"{name} is {kind_of(target)}; allowed: contiguous and writable, in host memory")
    return array, code


def as_whole(source: object, name: str, dtype: type[np.integer[Any]]) -> Array:
    """Flattens whole numbers to int64 or uint64.

    Raises InvalidArgument for elements of another kind and for numbers that do not fit.
    """
    return _as_whole(*as_array(source, name), name, dtype)


def _as_whole(array: Array, code: int, name: str, dtype: type[np.integer[Any]]) -> Array:
    if array.size == 0:
        return np.zeros(0, dtype)
    if array.dtype.kind not in "iu" or code == BFLOAT16:
        raise InvalidArgument(f"{name} has dtype {NAMES[code]}; allowed: {_WHOLE}")
    if not np.can_cast(array.dtype, dtype):
        allowed = np.iinfo(dtype)
        for extreme in (int(array.min()), int(array.max())):
            if not allowed.min <= extreme <= allowed.max:
                raise InvalidArgument(f"{name} has {extreme}; allowed: {allowed.min} to {allowed.max}")
    return _as_type(array, dtype, name).reshape(-1)


def as_int64(source: object, name: str) -> Int64s:
    """Flattens whole numbers to int64."""
    return as_whole(source, name, np.int64)


def rounded_by_float32(source: object) -> int | None:
    """The first whole number of an array in host memory that float32 cannot represent; None if there is none."""
    dtype = getattr(source, "dtype", None)  # torch's or numpy's
    if isinstance(source, float) or getattr(dtype, "is_floating_point", getattr(dtype, "kind", None) == "f"):
        return None
    if isinstance(source, int) and abs(source) <= _EXACT_IN_FLOAT32:
        return None
    array, _ = as_array(source, "reward")
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4:
        return None
    large = array[(array > _EXACT_IN_FLOAT32) | (array < -_EXACT_IN_FLOAT32)]
    if large.size == 0:
        return None
    with np.errstate(invalid="ignore"):
        rounded = large[large.astype(np.float32).astype(large.dtype) != large]
    return int(rounded[0]) if rounded.size else None


def as_ids(source: object, name: str = "ids") -> Int64s:
    """Flattens ids. Pairs of uint32 [..., 2], as JAX holds ids without 64-bit types, are joined again."""
    array, code = as_array(source, name)
    if array.dtype == np.uint32 and array.ndim >= 2 and array.shape[-1] == 2:
        return array.view(np.int64).reshape(-1)
    return _as_whole(array, code, name, np.int64)


def widened(bits: Array) -> Array:
    """Elements of bfloat16, passed as uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def as_float(source: object, name: str, dtype: type[np.float32] | type[np.float64] = np.float32) -> Array:
    """Numbers as float32 (or float64) in their shape. Out-of-range values become inf, which the library refuses."""
    array, code = as_array(source, name)
    if code == BFLOAT16:
        array = widened(array)
    with np.errstate(over="ignore"):
        return _as_type(array, dtype, name)


def described(array: Any) -> str:
    """The dtype and shape of an array, such as float32[2, 3]."""
    return f"{str(array.dtype).removeprefix('torch.')}{list(array.shape)}"
