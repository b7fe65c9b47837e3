"""Loads the custom calls by which programs that JAX compiled use replay buffers (xla/handlers.cpp), and queues them."""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any

import jax
import numpy as np

from per import _library
from per._errors import InvalidArgument
from per._library import ffi

# What keeps calls in the order of the program. The handlers know its first two numbers; the others are per.jax's.
TICKET = jax.ShapeDtypeStruct((4,), np.int32)


def load() -> Any:
    """The library of the custom calls, registered with JAX, and with the functions of libper in it."""
    path = pathlib.Path(__file__).with_name("libper_xla.so")
    if not path.exists():
        raise ImportError(
            f"per.jax needs {path}, which this build of libper lacks: XLA's headers, a part of jaxlib, were not there "
            "when it was built. Install a wheel of libper; or install jaxlib, then libper with --no-build-isolation"
        )
    library: Any = ctypes.CDLL(str(path))
    library.per_xla_open.argtypes, library.per_xla_open.restype = [ctypes.c_void_p], ctypes.c_int64
    library.per_xla_close.argtypes, library.per_xla_close.restype = [ctypes.c_int64], None
    find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
    library.per_xla_load(find(lambda name: _address(getattr(_library.lib, name.decode()))))
    for name in ("init", "add", "sample", "set_priorities"):
        for platform in ("cpu", "CUDA"):
            handler = jax.ffi.pycapsule(getattr(library, f"per_xla_{name}_{platform.lower()}"))
            jax.ffi.register_ffi_target(f"per_xla_{name}", handler, platform=platform)
    return library


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


_calls = load()


def open(handle: Any) -> int:
    """Gives a buffer of the library, which nothing was done to yet, to the custom calls; their number of it."""
    number: int = _calls.per_xla_open(_address(handle))
    _library.check(max(-number, 0))
    ffi.gc(handle, None)
    return number


def close(number: int) -> None:
    """Frees a buffer, once no call is inside of it. One that is not there is left alone."""
    _calls.per_xla_close(number)


def call(name: str, number: int, ticket: Any, results: list[Any], operands: Any, unused: Any) -> list[Any]:
    """Queues a custom call: the next ticket, and its other results.

    Arguments:
        unused: further values that the call does not get, but that vmap must not be over.
    """
    operands = jax.lax.stop_gradient(operands)
    ticket = _refuse_vmap(ticket, (operands, unused))
    # The ticket that goes out lies where the one that came in lay: on CUDA no handler could write it.
    queue = jax.ffi.ffi_call(f"per_xla_{name}", [TICKET, *results], has_side_effect=True, input_output_aliases={0: 0})
    return list(queue(ticket, *operands, buffer=np.int64(number)))


@jax.custom_batching.custom_vmap
def _refuse_vmap(ticket: Any, others: Any) -> Any:
    return ticket


@_refuse_vmap.def_vmap
def _(axis_size: int, are_batched: Any, *arguments: Any) -> Any:
    raise InvalidArgument(
        f"vmap over {axis_size} would need as many buffers of libper, and a state names one, in place. For several "
        "environments give add_batch_size; for several agents make a buffer each, and do not vmap"
    )
