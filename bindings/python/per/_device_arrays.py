"""The libraries whose arrays a handle on CUDA returns: torch, CuPy, JAX.

Each allocates arrays on one device, recognises its own arrays, and names its current stream. The library converts its
own arrays on the device; arrays of other libraries must already have the required form.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from per import _arrays, _dlpack
from per._errors import InvalidArgument, OutOfMemory, Unsupported
from per._library import ffi
from per._streams import Queue, number_of


class Elements(NamedTuple):
    """An array that the library reads or writes: without gaps, the last axis fastest."""

    pointer: Any
    """void *"""
    shape: tuple[int, ...]
    dtype: str
    """name in per.h"""
    kept: object
    """keeps the memory alive"""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def elements_at(address: int, shape: tuple[int, ...], dtype: str, kept: object) -> Elements:
    return Elements(ffi.cast("void *", address), shape, dtype, kept)


class DeviceLibrary(Protocol):
    """The operations that device memory needs from an array library."""

    device: tuple[int, int]
    """DLPack device type and index"""

    def stream(self, stream: object) -> Queue:
        """The user's stream, or for None the library's current one."""

    def plan(self, shape: tuple[int, ...], dtype: str) -> Any:
        """What made() needs to make such an array. Kept for batches, whose arrays have the same shapes each time."""

    def made(self, plans: Iterable[Any], queue: Queue) -> list[Any]:
        """New arrays, uninitialised, one for each plan. Raises OutOfMemory."""

    def address(self, array: Any) -> int:
        """Address of an array from made()."""

    def owns(self, source: object) -> bool:
        """Whether it is an array of this library in the memory of a CUDA device."""

    def elements(self, array: Any, name: str) -> Elements | None:
        """Describes an own array; None if it is not contiguous. Raises InvalidArgument if it is on another device."""

    def converted(self, array: Any, dtype: str | None, queue: Queue) -> Any:
        """A contiguous copy of an own array, converted to `dtype` unless that is None."""

    def from_host(self, array: _arrays.Array, dtype: str, queue: Queue) -> Elements:
        """A copy of a numpy array on the device."""

    def wait(self, queue: Queue, producer: int) -> None:
        """Orders all work queued from now on after the work already queued on the producer's stream."""

    def view(self, memory: _dlpack.Memory) -> Any:
        """Memory of the device as an array of this library."""

    def finish(self, queue: Queue, kept: object) -> None:
        """Called after a call was queued, with the arrays that it uses."""


class TorchArrays:
    """Tensors of torch on one CUDA device. Its allocator separates the memory of different streams."""

    def __init__(self, index: int) -> None:
        torch: Any = importlib.import_module("torch")
        self._torch = torch
        self._device = self._device_of(index)
        self.device = (_dlpack.CUDA, index)
        self._dtypes = {name: getattr(torch, name) for name in _arrays.DTYPES if hasattr(torch, name)}
        self._names = {dtype: name for name, dtype in self._dtypes.items()}
        self._tensor, self._strided = torch.Tensor, torch.strided
        # New tensors take their dtype and device from these empty ones: torch.empty() with both takes twice as long.
        self._like = {name: torch.empty(0, dtype=dtype, device=self._device) for name, dtype in self._dtypes.items()}
        # torch.cuda.current_stream() takes 7 us, as it makes an object. torch.compile() calls this function, too.
        self._number_of_stream = getattr(torch._C, "_cuda_getCurrentRawStream", self._stream_of_object)

    def _device_of(self, index: int) -> Any:
        if not self._torch.cuda.is_available():
            raise Unsupported(f"arrays is 'torch', but torch {self._torch.__version__} finds no CUDA device")
        return self._torch.device("cuda", index)

    def _current_stream(self) -> int:
        return int(self._number_of_stream(self._device.index))

    def _stream_of_object(self, index: int) -> int:
        return int(self._torch.cuda.current_stream(index).cuda_stream)

    def _on(self, queue: Queue) -> Any:
        """Context in which torch allocates and works on that stream."""
        if not queue.is_chosen:
            return contextlib.nullcontext()
        cuda = self._torch.cuda
        return cuda.stream(cuda.ExternalStream(queue.number, self._device))

    def stream(self, stream: object) -> Queue:
        if stream is None:
            return Queue(ffi.cast("void *", self._current_stream()))
        return Queue(ffi.cast("void *", number_of(stream)), True)

    def plan(self, shape: tuple[int, ...], dtype: str) -> Any:
        return functools.partial(self._like[dtype].new_empty, *(shape or [()]))

    def made(self, plans: Iterable[Any], queue: Queue) -> list[Any]:
        try:
            if not queue.is_chosen:
                return [make() for make in plans]
            with self._on(queue):
                return [make() for make in plans]
        except RuntimeError as error:
            raise OutOfMemory(f"no memory for arrays on the device: {error}") from error

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def owns(self, source: object) -> bool:
        if not isinstance(source, self._tensor):
            return False
        device = source.device  # compared as a whole first: its type is text, which takes longer
        return bool(device == self._device or device.type == self._device.type)

    def elements(self, array: Any, name: str) -> Elements | None:
        if array.device != self._device:
            raise InvalidArgument(f"{name} is on {array.device}; allowed: {self._device}, the device of this handle")
        dtype = self._names.get(array.dtype)
        if dtype is None or array.layout is not self._strided or array.is_nested:
            raise InvalidArgument(
                f"{name} has dtype {array.dtype}, {array.layout}; allowed: dense tensors of {', '.join(_arrays.DTYPES)}"
            )
        try:
            if not array.is_contiguous() or array.is_neg():
                return None
            address = array.data_ptr()
        except RuntimeError as error:
            raise InvalidArgument(f"{name} is a tensor that cannot be read: {_arrays.first_line(error)}") from error
        if address == 0 and array.numel() > 0:
            raise InvalidArgument(f"{name} is a tensor that cannot be read: it has no memory")
        return elements_at(address, array.shape, dtype, array)

    def converted(self, array: Any, dtype: str | None, queue: Queue) -> Any:
        with self._on(queue), self._torch.no_grad():
            array = array.detach().resolve_neg()
            return (array if dtype is None else array.to(self._dtypes[dtype])).contiguous()

    def from_host(self, array: _arrays.Array, dtype: str, queue: Queue) -> Elements:
        array = np.require(array, requirements=["C", "W"])
        with self._on(queue):
            if dtype == "bfloat16":
                tensor = self._torch.from_numpy(array.view(np.int16)).to(self._device).view(self._torch.bfloat16)
            else:
                tensor = self._torch.from_numpy(array).to(self._device)
        return elements_at(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor)

    def wait(self, queue: Queue, producer: int) -> None:
        if producer != queue.number:
            streams = [self._torch.cuda.ExternalStream(number, self._device) for number in (queue.number, producer)]
            streams[0].wait_stream(streams[1])

    def view(self, memory: _dlpack.Memory) -> Any:
        return self._torch.from_dlpack(memory)

    def finish(self, queue: Queue, kept: object) -> None:
        pass


class CupyArrays:
    """Arrays of CuPy on one CUDA device. Its pool separates the memory of different streams."""

    def __init__(self, index: int) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._index = index
        self.device = (_dlpack.CUDA, index)

    @contextlib.contextmanager
    def _on(self, queue: Queue) -> Any:
        cuda = self._cupy.cuda
        with cuda.Device(self._index), contextlib.ExitStack() as stack:
            if queue.is_chosen:
                stack.enter_context(cuda.ExternalStream(queue.number, self._index))
            yield

    def stream(self, stream: object) -> Queue:
        if stream is None:
            with self._cupy.cuda.Device(self._index):
                return Queue(ffi.cast("void *", int(self._cupy.cuda.get_current_stream().ptr)))
        return Queue(ffi.cast("void *", number_of(stream)), True)

    def plan(self, shape: tuple[int, ...], dtype: str) -> Any:
        return shape, dtype

    def made(self, plans: Iterable[Any], queue: Queue) -> list[Any]:
        try:
            with self._on(queue):
                return [self._cupy.empty(*each) for each in plans]
        except (MemoryError, ValueError) as error:  # cupy.cuda.memory.OutOfMemoryError is a MemoryError
            raise OutOfMemory(f"no memory for arrays on the device: {error}") from error

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def owns(self, source: object) -> bool:
        return isinstance(source, self._cupy.ndarray)

    def elements(self, array: Any, name: str) -> Elements | None:
        if array.device.id != self._index:
            raise InvalidArgument(f"{name} is on cuda:{array.device.id}; allowed: cuda:{self._index}, the device here")
        if array.dtype.name not in _arrays.DTYPES:
            raise InvalidArgument(f"{name} has dtype {array.dtype}; allowed: {', '.join(_arrays.DTYPES)}")
        if not array.flags.c_contiguous:
            return None
        return elements_at(self.address(array), tuple(array.shape), array.dtype.name, array)

    def converted(self, array: Any, dtype: str | None, queue: Queue) -> Any:
        with self._on(queue):
            return self._cupy.ascontiguousarray(array, dtype)

    def from_host(self, array: _arrays.Array, dtype: str, queue: Queue) -> Elements:
        with self._on(queue):
            copy = self._cupy.asarray(array)
        return elements_at(self.address(copy), tuple(copy.shape), dtype, copy)

    def wait(self, queue: Queue, producer: int) -> None:
        if producer != queue.number:
            cuda = self._cupy.cuda
            with cuda.Device(self._index):
                event = cuda.ExternalStream(producer, self._index).record()
                cuda.ExternalStream(queue.number, self._index).wait_event(event)

    def view(self, memory: _dlpack.Memory) -> Any:
        return self._cupy.from_dlpack(memory)

    def finish(self, queue: Queue, kept: object) -> None:
        pass


class JaxArrays:
    """Memory of JAX on one CUDA device, which batches present as JAX arrays.

    JAX has no current stream for callers to queue on. It has one for external work: arrays that JAX exports are ready
    on that stream, and JAX uses an imported array after the work queued there. All calls are queued on that stream, so
    neither JAX nor the host waits longer than necessary.
    """

    def __init__(self, index: int) -> None:
        self._jax: Any = importlib.import_module("jax")
        self._device = self._device_of(index)
        self.device = (_dlpack.CUDA, index)
        # Objects in use by calls, each with an array that becomes ready when the call is done.
        self._used: collections.deque[tuple[Any, object]] = collections.deque()

    def _device_of(self, index: int) -> Any:
        try:
            devices = {device.local_hardware_id: device for device in self._jax.devices("cuda")}
        except RuntimeError as error:
            raise Unsupported(f"arrays is 'jax', but JAX finds no CUDA device: {error}") from error
        if index not in devices:
            raise Unsupported(f"arrays is 'jax', but JAX has of the CUDA devices only {sorted(devices)}, not {index}")
        return devices[index]

    def _current_stream(self) -> int:
        return int(self._device.get_stream_for_external_ready_events())

    def _read(self, array: Any, queue: Queue) -> _dlpack.Tensor:
        """Reads an array of JAX once it is ready."""
        return _dlpack.read(array, "memory", queue.dlpack_number)

    def stream(self, stream: object) -> Queue:
        if stream is not None:
            raise InvalidArgument(f"stream is {stream!r}; not allowed with arrays='jax', which has a stream of its own")
        return Queue(ffi.cast("void *", self._current_stream()))

    def plan(self, shape: tuple[int, ...], dtype: str) -> Any:
        return shape, dtype

    def made(self, plans: Iterable[Any], queue: Queue) -> list[Any]:
        return [self._new(shape, dtype, queue) for shape, dtype in plans]

    def _new(self, shape: tuple[int, ...], dtype: str, queue: Queue) -> _dlpack.Memory:
        # JAX treats its arrays as constant. This one may be written all the same, since nothing else refers to it.
        try:
            size = max(math.prod(shape) * _size_of(dtype), 1)
            owner = self._jax.numpy.zeros(size, np.uint8, device=self._device)
            tensor = self._read(owner, queue)
        except (RuntimeError, ValueError, OverflowError) as error:
            raise OutOfMemory(f"no memory for an array of shape {list(shape)}: {error}") from error
        return _dlpack.Memory(tensor.address, shape, dtype, self.device, (owner, tensor.capsule))

    def address(self, array: _dlpack.Memory) -> int:
        return array.address

    def owns(self, source: object) -> bool:
        return isinstance(source, _dlpack.Memory)

    def elements(self, array: _dlpack.Memory, name: str) -> Elements | None:
        return elements_at(array.address, array.shape, array.dtype, array)

    def converted(self, array: Any, dtype: str | None, queue: Queue) -> Any:
        raise InvalidArgument(f"an array of {array.dtype} is not converted to {dtype}")

    def from_host(self, array: _arrays.Array, dtype: str, queue: Queue) -> Elements:
        # Copied as bytes, since JAX would truncate 64-bit types to 32 bits.
        bytes_of = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        copy = self._jax.device_put(bytes_of, self._device)
        tensor = self._read(copy, queue)
        return elements_at(tensor.address, array.shape, dtype, (copy, tensor.capsule))

    def wait(self, queue: Queue, producer: int) -> None:
        raise InvalidArgument(
            "an array with __cuda_array_interface__ names a stream to wait for; with arrays='jax' give it by DLPack"
        )

    def view(self, memory: _dlpack.Memory) -> _dlpack.Memory:
        return memory

    def finish(self, queue: Queue, kept: object) -> None:
        while self._used and self._used[0][0].is_ready():
            self._used.popleft()
        marker = self._new((1,), "uint8", queue)
        self._used.append((self._jax.dlpack.from_dlpack(marker), kept))


def _size_of(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


LIBRARIES: dict[str, Any] = {"torch": TorchArrays, "cupy": CupyArrays, "jax": JaxArrays}
