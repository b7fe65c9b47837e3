"""The array libraries of batches: numpy, torch, JAX or CuPy."""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np

from per import _arrays, _dlpack
from per._errors import InvalidArgument, Unsupported
from per._layout import Layout, Output
from per.typing import Arrays

ON_HOST = ("numpy", "torch", "jax")
ON_DEVICE = ("torch", "cupy", "jax")


def kind_of(kind: object, device: str, on_host: tuple[str, ...] | None = None) -> Arrays:
    """The kind to use: the requested one, or for None the default of the device. Its library must be installed.

    Raises InvalidArgument, and Unsupported with the reason why the import failed.
    """
    is_host = device.partition(":")[0] == "cpu"
    allowed = (on_host or ON_HOST) if is_host else ON_DEVICE
    if kind is None:
        kind = allowed[0]
    if not isinstance(kind, str) or kind not in allowed:
        where = "in host memory" if is_host else "on a CUDA device"
        raise InvalidArgument(f"arrays is {kind!r}; allowed {where}: {', '.join(map(repr, allowed))}")
    try:
        importlib.import_module(kind)
    except ImportError as error:
        raise Unsupported(f"arrays is {kind!r}, which cannot be imported: {error}") from error
    return cast(Arrays, kind)


def check_dtypes(kind: str, layout: Layout) -> None:
    """Raises InvalidArgument for a field whose dtype this kind of array does not support."""
    for output in layout.batch:
        if output.member not in ("fields", "next_fields"):
            continue
        if kind == "numpy" and output.dtype == "bfloat16" and _arrays.numpy_dtype("bfloat16") is None:
            raise InvalidArgument(
                f"field {output.name} has dtype bfloat16, which numpy has not: install ml_dtypes or use arrays='torch'"
            )
        if kind == "cupy" and output.dtype == "bfloat16":
            raise InvalidArgument(
                f"field {output.name} has dtype bfloat16, which CuPy has not: declare another, or use arrays='torch'"
            )
        if kind == "jax" and output.dtype in ("int64", "uint64", "float64") and not jax_has_64_bits():
            raise InvalidArgument(
                f"field {output.name} has dtype {output.dtype}, which JAX would cut to 32 bits: "
                "declare a 32-bit dtype, or set jax_enable_x64"
            )


def wrap_numpy(output: Output, array: _arrays.Array) -> Any:
    """The memory of an output as an array of its dtype."""
    return array.view(_arrays.numpy_dtype("bfloat16")) if output.dtype == "bfloat16" else array


def wrap_torch(output: Output, array: _arrays.Array) -> Any:
    """The memory of an output as a tensor that shares it."""
    torch = importlib.import_module("torch")
    if output.dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def given(array: Any) -> Any:
    """The result of a call in the form that users get. Device memory of JAX becomes a JAX array."""
    return to_jax(array) if isinstance(array, _dlpack.Memory) else array


def jax_has_64_bits() -> bool:
    """Whether int64 and float64 are enabled in JAX."""
    return bool(importlib.import_module("jax").config.jax_enable_x64)


def to_jax(array: _arrays.Array | _dlpack.Memory) -> Any:
    """A JAX array with these elements. Without 64-bit types int64 becomes pairs of uint32, the low half first."""
    if isinstance(array, _dlpack.Memory):
        if array.dtype == "int64" and not jax_has_64_bits():
            pairs = (*(array.shape or (1,)), 2)  # a single id keeps an axis, or it would be read as two
            array = _dlpack.Memory(array.address, pairs, "uint32", array.device, array.owner)
        return importlib.import_module("jax").dlpack.from_dlpack(array)
    if array.dtype == np.int64 and not jax_has_64_bits():
        array = array.view(np.uint32).reshape(*array.shape, 2)
    return importlib.import_module("jax.numpy").asarray(array)
