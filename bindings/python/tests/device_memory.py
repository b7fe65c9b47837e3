"""A device whose memory is host memory, for tests without a GPU: stand-ins for torch, JAX and their arrays."""

from __future__ import annotations

import contextlib
import types

import jax
import numpy as np
import torch
from per import _device_arrays, _dlpack, _memory, _streams


class TorchStandIn(_device_arrays.TorchArrays):
    """Counts tensors of the CPU as the device's; numpy arrays are in host memory."""

    streams_asked_for = 0

    def __init__(self, index):
        super().__init__(index)
        self.device = (_dlpack.CPU, 0)
        self.chosen = []
        self.waits = []

    def _device_of(self, index):
        return torch.device("cpu")

    def _current_stream(self):
        TorchStandIn.streams_asked_for += 1
        return 0

    def _on(self, queue):
        if queue.is_chosen:
            self.chosen.append(queue.number)
        return contextlib.nullcontext()

    def wait(self, queue, producer):
        self.waits.append((queue.number, producer))


class FakeCupy:
    """The parts of CuPy that the package uses, over host memory."""

    class ndarray(np.ndarray):
        device = types.SimpleNamespace(id=0)

        @property
        def data(self):
            return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])

    class Cuda:
        def __init__(self):
            self.log = []

        @contextlib.contextmanager
        def Device(self, index):
            assert index == 0
            yield

        def get_current_stream(self):
            return types.SimpleNamespace(ptr=0)

        def ExternalStream(self, number, index):
            assert index == 0
            return FakeCupy.Stream(number, self.log)

    class Stream:
        def __init__(self, number, log):
            self.number, self.log = number, log

        def __enter__(self):
            self.log.append(("on", self.number))

        def __exit__(self, *error):
            pass

        def record(self):
            return ("all before on", self.number)

        def wait_event(self, event):
            self.log.append(("waits", self.number, event))

    def __init__(self):
        self.cuda = self.Cuda()

    def empty(self, shape, dtype):
        return np.empty(shape, dtype).view(self.ndarray)

    def asarray(self, array):
        return np.array(array).view(self.ndarray)

    def ascontiguousarray(self, array, dtype=None):
        return np.ascontiguousarray(array, dtype).view(self.ndarray)

    def from_dlpack(self, memory):
        return np.from_dlpack(memory).view(self.ndarray)


class CupyStandIn(_device_arrays.CupyArrays):
    """CuPy arrays with the fake above as the module."""

    def __init__(self, index):
        super().__init__(index)
        self.device = (_dlpack.CPU, 0)

    @property
    def log(self):
        return self._cupy.cuda.log


class JaxStandIn(_device_arrays.JaxArrays):
    """JAX on the CPU."""

    def __init__(self, index):
        super().__init__(index)
        self.device = (_dlpack.CPU, 0)

    def _device_of(self, index):
        return jax.devices("cpu")[0]

    def _current_stream(self):
        return 0

    def _read(self, array, queue):
        return _dlpack.read(array.block_until_ready(), "memory", None)


class NumpyStandIn:
    """A library with numpy arrays, which the suite uses for buffers in host memory."""

    device = (_dlpack.CPU, 0)

    def __init__(self, index):
        if index != 0:
            raise ValueError("the simulated machine has one device")

    def stream(self, stream):
        return _streams.Queue() if stream is None else _streams.Queue(_memory.ffi.cast("void *", stream), True)

    def plan(self, shape, dtype):
        return shape, _memory._arrays.numpy_dtype(dtype) or np.uint16

    def made(self, plans, queue):
        return [_memory._arrays.empty(*each) for each in plans]

    def address(self, array):
        return array.__array_interface__["data"][0]

    def owns(self, source):
        return isinstance(source, np.ndarray)

    def elements(self, array, name):
        elements, code = _memory._arrays.as_array(array, name)
        if not array.flags.c_contiguous or elements.__array_interface__["data"] != array.__array_interface__["data"]:
            return None
        return _memory._host_elements(elements, _memory._arrays.NAMES[code])

    def converted(self, array, dtype, queue):
        native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        return native if dtype is None else native.astype(dtype)

    def from_host(self, array, dtype, queue):
        return _memory._host_elements(array.copy(), dtype)

    def wait(self, queue, producer):
        pass

    def view(self, memory):
        # As plain bits: the array interface cannot express bfloat16.
        dtype = _memory._arrays.numpy_dtype(memory.dtype)
        bits = np.dtype("uint16") if memory.dtype == "bfloat16" else dtype
        array = np.asarray(_memory._HostView(memory.address, memory.shape, bits, memory.owner))
        return array if dtype in (bits, None) else array.view(dtype)

    def finish(self, queue, kept):
        pass


class InterfaceArray:
    """An array on the device that offers only __cuda_array_interface__."""

    def __init__(self, array, stream=None):
        self.array, self.stream = array, stream

    @property
    def __cuda_array_interface__(self):
        described = dict(self.array.__array_interface__)
        kept = {name: described[name] for name in ("shape", "typestr", "data", "strides")}
        return kept | {"version": 3, "stream": self.stream}


class DlpackArray:
    """An array on the device that offers only DLPack, of version 1 or older. Records the requests that it gets."""

    def __init__(self, array, device=(_dlpack.CUDA, 0), version=1):
        self.array, self.device, self.version = array, device, version
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        self.asked.append(asked.pop("stream", "in host memory"))
        if self.version == 0 and asked:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**asked)
