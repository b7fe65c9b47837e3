"""Chooses how arrays are passed: by per._bridge in C++, or by per._exchange in Python.

PER_BRIDGE=0 selects Python, as does a missing bridge for this interpreter. PER_BRIDGE=1 makes a missing bridge an
error.

Cost of a call beyond the C function, in us, on an Emerald Rapids machine (rows of 17 and 6 float32, batches of 256;
measured by bench/overhead.py):

                  numpy, bridge   torch, bridge   numpy, Python
    sample             0.4             7.2             52
    sample, out=       0.6             3.2            124
    update             0.1             0.6             18
    add                2.1             3.3             56

Each of the thirteen tensors of a batch costs torch 0.3 us; out= avoids them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import TYPE_CHECKING, Any

from per import _arrays, _exchange, _library, _memory
from per._layout import STEP_ARRAYS, Layout
from per._library import ffi, lib
from per.batch import Batch

if TYPE_CHECKING:
    from per import _bridge


def load() -> Any:
    """The bridge; None if it is disabled or missing.

    Raises ImportError if it was built for another per.h.
    """
    choice = os.environ.get("PER_BRIDGE", "")
    if choice not in ("", "0", "1"):
        raise ImportError(f"PER_BRIDGE is {choice!r}; allowed: 0 or 1")
    if choice == "0":
        return None
    if not _is_main_interpreter():  # pybind11's modules belong to the first interpreter that loads them
        if choice == "1":
            raise ImportError("PER_BRIDGE is 1 in a subinterpreter; allowed there: 0")
        return None
    try:
        module = importlib.import_module("per._bridge")
    except ModuleNotFoundError:
        if choice == "1":
            raise
        return None
    sizes = {struct: ffi.sizeof(struct) for struct in module.sizes}
    if module.sizes != sizes:
        raise ImportError(
            f"per._bridge was built for another per.h (sizes {module.sizes}, here {sizes}): build it again"
        )
    return module


def _is_main_interpreter() -> bool:
    own, main = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_Main
    own.restype = main.restype = ctypes.c_void_p
    return bool(own() == main())


bridge = load()

# The largest axis that per._bridge can represent. Buffers with a larger one use the exchange in Python, which reports
# that no memory is that large.
_LARGEST_AXIS = 2**63 - 1


def new_exchange(
    handle: Any, plain: _exchange.Exchange, layout: Layout, memory: _memory.HostMemory | _memory.DeviceMemory
) -> _exchange.Exchange | _bridge.Exchange:
    """The object that passes the arrays of a buffer or a writer: `plain`, or the bridge in front of it."""
    if bridge is None:
        return plain
    if any(size > _LARGEST_AXIS for output in layout.batch for size in output.shape) or layout.value_shapes:
        return plain
    tensor_type = importlib.import_module("torch").Tensor if memory.kind == "torch" else None
    is_on_device = isinstance(memory, _memory.DeviceMemory)
    # The bridge needs these functions for tensors (torch before 2.10 has none) and for all memory of a device.
    if (tensor_type is not None or is_on_device) and not hasattr(tensor_type, "__dlpack_c_exchange_api__"):
        return plain
    names = (
        "per_replay_add",
        "per_replay_sample",
        "per_mixture_sample",
        "per_replay_update_priorities",
        "per_mixture_update_priorities",
        "per_writer_add",
    )
    addresses = {name: _address(getattr(lib, name)) for name in names}
    made: _bridge.Exchange = bridge.Exchange(
        plain=plain,
        handle=handle,
        addresses={**addresses, "handle": _address(handle)},
        layout=_in_bytes(layout)
        | {
            "tensor_type": tensor_type,
            "is_on_device": is_on_device,
            "device": memory.device,
            "is_batch_type": plain.make_batch is Batch,
        },
        check=_library.check,
        as_array=_arrays.as_array,
        make_batch=plain.make_batch,
    )
    return made


def _in_bytes(layout: Layout) -> dict[str, Any]:
    """The bridge's form of a layout: initial bytes of its blocks, and offsets in them. See bridge/exchange.h."""
    count = len(layout.fields)
    steps, batch = _library.new("per_steps"), _library.new("per_batch")
    array_size, pointer_size = ffi.sizeof("per_array"), ffi.sizeof("void *")
    places: dict[str, int] = {}
    for first, names in ((0, layout.fields), (count, layout.next_fields)):
        for i, name in enumerate(names):
            if name is not None:
                places[name] = ffi.sizeof("per_steps") + (first + i) * array_size
    outputs = []
    for output in layout.batch:
        if output.member in ("fields", "next_fields"):
            index = output.field + (count if output.member == "next_fields" else 0)
            offset = ffi.sizeof("per_batch") + index * pointer_size
        else:
            offset = ffi.offsetof("per_batch", output.member)
        dtype = _arrays.numpy_dtype(output.dtype)
        outputs.append((output.name, output.shape, _arrays.DTYPES[output.dtype], dtype, offset))
    return {
        "n_fields": count,
        "n_envs": layout.n_envs,
        "sequence_steps": (layout.steps, layout.learned_steps),
        "steps": bytes(ffi.buffer(steps)) + bytes(2 * count * array_size),
        "batch": bytes(ffi.buffer(batch)) + bytes((2 * count + 1) * pointer_size),  # and that of a mixture's sources
        "step_arrays": [(name, ffi.offsetof("per_steps", name)) for name in STEP_ARRAYS],
        "places": places,
        "outputs": outputs,
    }


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
