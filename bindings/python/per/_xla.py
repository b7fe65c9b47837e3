"""Loads and queues the custom calls through which programs compiled by JAX use replay buffers (xla/handlers.cpp)."""

from __future__ import annotations

import ctypes
import io
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from per import _files, _library
from per._errors import InvalidArgument
from per._handle import owned, owner_of
from per._library import ffi

# The value that orders calls in a program. The handlers use its first two numbers, per.jax the others.
TICKET = jax.ShapeDtypeStruct((4,), np.int32)


def load() -> Any:
    """The library of the custom calls, registered with JAX and linked to the functions of libper."""
    path = pathlib.Path(__file__).with_name("libper_xla.so")
    if not path.exists():
        raise ImportError(
            f"per.jax needs {path}, which this build of libper lacks: XLA's headers, a part of jaxlib, were not there "
            "when it was built. Install a wheel of libper; or install jaxlib, then libper with --no-build-isolation"
        )
    library: Any = ctypes.CDLL(str(path))
    library.per_xla_open.argtypes, library.per_xla_open.restype = [ctypes.c_void_p] * 3, ctypes.c_int32
    library.per_xla_find.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    library.per_xla_find.restype = ctypes.c_void_p
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


def open(handle: Any, ticket: np.ndarray[Any, Any] | None = None) -> Any:
    """Registers a buffer with the custom calls. Returns a cell with its number; the cell closes it when collected.

    Parameters
    ----------
    ticket : ndarray[Any, Any], optional
        The ticket of a buffer from a checkpoint. It becomes a current one.
    """
    number_out = owned(ffi.new("int64_t *"), _calls.per_xla_close)
    generation_out = None if ticket is None else ticket.ctypes.data
    _library.check(_calls.per_xla_open(_address(owner_of(handle)), generation_out, _address(number_out)))
    if ticket is not None:
        ticket[1] = 0
    return number_out


def checkpoint(number: int, ticket: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The saved form of a buffer, uint8[bytes]. No program may use the buffer meanwhile."""
    found = _calls.per_xla_find(number, ticket.ctypes.data)
    if not found:
        raise InvalidArgument("this state is of the past: use the one that add() or set_priorities() returned")
    file = io.BytesIO()
    _files.save(ffi.cast("per_replay *", found), file, _library.new("per_save_options"))
    return np.frombuffer(file.getbuffer(), np.uint8)


def numbers_of(key: Any) -> Any:
    """A key as libper's two 64-bit numbers, each with the lower half first: a seed and a draw number."""
    is_typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = jax.random.key_data(key) if is_typed else jnp.asarray(key)
    if words.dtype != np.uint32 or words.shape not in ((2,), (4,)):
        given = f"{key.dtype if is_typed else words.dtype}{list(jnp.shape(key))}"
        raise InvalidArgument(f"key is {given}; allowed: one key of jax.random, whose data are uint32[2] or uint32[4]")
    return jnp.concatenate([words.reshape(-1, 2)[:, ::-1].reshape(-1), jnp.zeros(4 - words.size, np.uint32)])


def call(name: str, number: int, ticket: Any, results: list[Any], operands: Any, unused: Any = ()) -> list[Any]:
    """Queues a custom call: the next ticket, and its other results.

    Parameters
    ----------
    unused : Any, default ()
        Further values that are not passed to the call, but that vmap must not be applied over.
    """
    operands = jax.lax.stop_gradient(operands)
    ticket = _refuse_vmap(ticket, (operands, unused))
    # The output ticket aliases the input ticket: on CUDA no handler could write it.
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
