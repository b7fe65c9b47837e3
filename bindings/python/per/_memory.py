"""The memory of the arrays in a handle's calls: host memory, or the memory of a CUDA device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from per import _arrays, _device_arrays, _dlpack, _kinds, _streams
from per._device_arrays import DeviceLibrary, Elements, elements_at
from per._errors import InvalidArgument, Unsupported
from per._layout import Output
from per._library import ffi
from per._streams import Queue


class HostMemory:
    """Memory of a handle on the CPU. Reads arrays of any library and returns arrays of `kind`."""

    device: tuple[int, int] = (_dlpack.CPU, 0)

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._wrap = _kinds.wrap_torch if kind == "torch" else _kinds.wrap_numpy

    def queue(self, stream: object) -> Queue:
        if stream is not None:
            raise InvalidArgument(f"stream is {stream!r}; allowed with device='cuda' only")
        return _streams.CURRENT

    def read(self, source: object, name: str, queue: Queue) -> Elements:
        """An array of any dtype, in place if possible.

        Raises InvalidArgument.
        """
        array, code = _arrays.as_array(source, name)
        return _host_elements(array, _arrays.NAMES[code])

    def read_here(self, source: object, name: str, queue: Queue) -> Elements:
        """The same as read()."""
        return self.read(source, name, queue)

    def read_numbers(self, source: object, name: str, dtype: str, queue: Queue) -> Elements:
        """Numbers of that dtype, converted if that loses nothing but precision. Raises InvalidArgument."""
        return _host_elements(_host_numbers(source, name, dtype), dtype)

    def new(self, shape: tuple[int, ...], dtype: str, queue: Queue) -> Any:
        """An uninitialised numpy array; bfloat16 as uint16. Raises OutOfMemory."""
        return _arrays.empty(*self.plan(shape, dtype))

    def plan(self, shape: tuple[int, ...], dtype: str) -> Any:
        """What made() needs to make such an array."""
        return shape, np.uint16 if dtype == "bfloat16" else dtype

    def made(self, plans: Iterable[Any], queue: Queue) -> list[Any]:
        """New arrays like those of new(), one for each plan."""
        return [_arrays.empty(*each) for each in plans]

    def pointer(self, array: Any) -> Any:
        """Pointer to an array from new() or made()."""
        return ffi.cast("void *", array.__array_interface__["data"][0])

    def write(self, array: object, name: str) -> Elements:
        """An array of the caller's to be written. Raises InvalidArgument if it cannot be."""
        elements, code = _arrays.as_writable(array, name)
        return _host_elements(elements, _arrays.NAMES[code])

    def wrap(self, output: Output, array: Any) -> Any:
        """An array from new() or made() as an array of `kind`."""
        return self._wrap(output, array)

    def view(self, output: Output, address: int, shape: tuple[int, ...], owner: object) -> Any:
        """Memory of the library as an array of `kind`, which keeps `owner` alive."""
        dtype = np.dtype("uint16" if output.dtype == "bfloat16" else output.dtype)
        return self._wrap(output, np.asarray(_HostView(address, shape, dtype, owner)))

    def finish(self, queue: Queue, *kept: object) -> None:
        pass


class _HostView:
    """Memory in the form that numpy reads: arrays made from it keep the owner alive."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> None:
        self._owner = owner
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}


class DeviceMemory:
    """Memory of a handle on CUDA: that of its device, used in stream order and without waiting.

    Arrays on the device are read in place. Arrays of the handle's own array library are converted on the device where
    necessary; all others must be contiguous and have the required dtype. Arrays in host memory are copied.
    """

    def __init__(self, kind: str, library: DeviceLibrary) -> None:
        self.kind = kind
        self.library = library
        self.device: tuple[int, int] = library.device

    def queue(self, stream: object) -> Queue:
        return self.library.stream(stream)

    def read(self, source: object, name: str, queue: Queue) -> Elements:
        """An array of any dtype in place, on the device or in host memory, for calls that take both."""
        return self._on_device(source, name, None, queue) or HOST.read(source, name, queue)

    def read_here(self, source: object, name: str, queue: Queue) -> Elements:
        """An array of any dtype, copied to the device if necessary."""
        found = self._on_device(source, name, None, queue)
        if found is None:
            array, code = _arrays.as_array(source, name)
            found = self.library.from_host(array, _arrays.NAMES[code], queue)
        return found

    def read_numbers(self, source: object, name: str, dtype: str, queue: Queue) -> Elements:
        """Numbers of that dtype, copied to the device if necessary."""
        found = self._on_device(source, name, dtype, queue)
        if found is None:
            array = _arrays.as_ids(source, name) if dtype == "int64" else _host_numbers(source, name, dtype)
            found = self.library.from_host(array, dtype, queue)
        elif dtype == "int64" and _are_pairs(found):
            found = found._replace(shape=found.shape[:-1], dtype=dtype)
        if found.dtype != dtype:
            raise InvalidArgument(f"{name} has dtype {found.dtype} on the device; allowed there: {dtype}")
        return found

    def new(self, shape: tuple[int, ...], dtype: str, queue: Queue) -> Any:
        return self.library.made([self.library.plan(shape, dtype)], queue)[0]

    def plan(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.library.plan(shape, dtype)

    def made(self, plans: Iterable[Any], queue: Queue) -> list[Any]:
        return self.library.made(plans, queue)

    def pointer(self, array: Any) -> Any:
        return ffi.cast("void *", self.library.address(array))

    def write(self, array: object, name: str) -> Elements:
        elements = self.library.elements(array, name) if self.library.owns(array) else None
        if elements is None:
            kind = type(array).__name__
            raise InvalidArgument(f"{name} is a {kind}; allowed: contiguous {self.kind} arrays on the device")
        return elements

    def wrap(self, output: Output, array: Any) -> Any:
        return array

    def view(self, output: Output, address: int, shape: tuple[int, ...], owner: object) -> Any:
        return self.library.view(_dlpack.Memory(address, shape, output.dtype, self.device, owner))

    def finish(self, queue: Queue, *kept: object) -> None:
        self.library.finish(queue, kept)

    def _on_device(self, source: Any, name: str, dtype: str | None, queue: Queue) -> Elements | None:
        """An array on the device; None if it is in host memory. Own arrays are converted to `dtype` if possible."""
        if self.library.owns(source):
            elements = self.library.elements(source, name)
            if elements is None:
                elements = self.library.elements(self.library.converted(source, None, queue), name)
            if elements is not None and dtype is not None and elements.dtype != dtype and _fits(elements.dtype, dtype):
                elements = self.library.elements(self.library.converted(elements.kept, dtype, queue), name)
            return elements
        if hasattr(source, "__dlpack_device__"):
            return self._from_dlpack(source, name, queue)
        interface = getattr(source, "__cuda_array_interface__", None)
        return None if interface is None else self._from_interface(source, interface, name, queue)

    def _from_dlpack(self, source: Any, name: str, queue: Queue) -> Elements | None:
        try:
            kind, index = map(int, source.__dlpack_device__())
        except (BufferError, TypeError, ValueError, RuntimeError):
            return None  # unreadable for everyone, as reading it from host memory will report
        if kind not in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
            return None
        if index != self.device[1]:
            raise InvalidArgument(f"{name} is on cuda:{index}; allowed: cuda:{self.device[1]}, the device here")
        if _arrays.is_tensor(source):
            source = source.detach().resolve_neg()  # DLPack does not express lazy negation
        tensor = _dlpack.read(source, name, queue.dlpack_number)
        _require_contiguous(tensor.is_contiguous, name)
        return elements_at(tensor.address, tensor.shape, tensor.dtype, (source, tensor.capsule))

    def _from_interface(self, source: Any, interface: Any, name: str, queue: Queue) -> Elements:
        # The interface does not name the device.
        dtype = np.dtype(interface["typestr"])
        if dtype.name not in _arrays.DTYPES or not dtype.isnative:
            raise InvalidArgument(f"{name} has dtype {dtype}; allowed: {', '.join(_arrays.DTYPES)}")
        shape, strides = tuple(interface["shape"]), interface.get("strides")
        _require_contiguous(strides is None or _dlpack.is_contiguous(shape, strides, dtype.itemsize), name)
        producer = _streams.producer_of(interface.get("stream"), name)
        if producer is not None:
            self.library.wait(queue, producer)
        return elements_at(interface["data"][0] or 0, shape, dtype.name, source)


HOST = HostMemory("numpy")


def _host_elements(array: _arrays.Array, dtype: str) -> Elements:
    return Elements(ffi.cast("void *", array.__array_interface__["data"][0]), array.shape, dtype, array)


def _host_numbers(source: object, name: str, dtype: str) -> _arrays.Array:
    if dtype == "float32" or dtype == "float64":
        return _arrays.as_float(source, name, np.float32 if dtype == "float32" else np.float64)
    if name == "ids":
        return _arrays.as_ids(source)
    return _arrays.as_whole(source, name, _WHOLE[dtype])


_WHOLE: dict[str, type[np.integer[Any]]] = {"int32": np.int32, "int64": np.int64, "uint64": np.uint64}


def _are_pairs(elements: Elements) -> bool:
    """Whether these are int64 as JAX holds them without 64-bit types: pairs of uint32."""
    return elements.dtype == "uint32" and len(elements.shape) >= 2 and elements.shape[-1] == 2


def _fits(given: str, wanted: str) -> bool:
    """Whether the dtypes may be converted: any numbers to floating point, integers to integers."""
    return wanted.startswith("float") or given.lstrip("u").startswith("int")


def _require_contiguous(is_contiguous: bool, name: str) -> None:
    if not is_contiguous:
        raise InvalidArgument(f"{name} is not contiguous; allowed on the device: contiguous arrays")


def memory_of(device: int, index: int, kind: str) -> HostMemory | DeviceMemory:
    """The memory for the per_device and index of a handle, and a kind of arrays from _kinds.kind_of().

    Raises Unsupported if that array library cannot be imported, or cannot use the device.
    """
    try:
        return HostMemory(kind) if device == 0 else DeviceMemory(kind, _device_arrays.LIBRARIES[kind](index))
    except ImportError as error:
        raise Unsupported(f"arrays is {kind!r}, which cannot be imported: {error}") from error
