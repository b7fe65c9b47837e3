"""Arrays of a tree's calls: numpy's in host memory, or those of torch or CuPy in the memory of a CUDA device."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import numpy as np

from per import _arrays
from per._errors import InvalidArgument, Unsupported
from per._library import NULL, ffi


class HostMemory:
    """What a tree on the CPU reads and writes."""

    def read(self, source: object, name: str, dtype: type) -> Any:
        """The numbers as numpy array [n] of `dtype`, converted where that loses nothing but precision.

        Raises InvalidArgument.
        """
        if np.issubdtype(dtype, np.floating):
            return np.ascontiguousarray(_arrays.as_float(source, name, dtype).reshape(-1))
        return _arrays.as_whole(source, name, dtype)

    def empty(self, size: int, dtype: type) -> Any:
        return _arrays.empty(size, dtype)

    def size(self, array: Any) -> int:
        return int(array.size)

    def pointer(self, array: Any, c_type: str) -> Any:
        return ffi.from_buffer(f"{c_type}[]", array)

    def stream(self, stream: object) -> Any:
        if stream is not None:
            raise InvalidArgument(f"stream is {stream!r}; allowed with device='cuda' only")
        return NULL


class TorchArrays:
    """Tensors of torch on one CUDA device."""

    def __init__(self, index: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._device = f"cuda:{index}"
        self._index = index

    def empty(self, size: int, dtype: type) -> Any:
        return self._torch.empty(size, dtype=getattr(self._torch, np.dtype(dtype).name), device=self._device)

    def from_host(self, array: _arrays.Array) -> Any:
        return self._torch.from_numpy(array).to(self._device)

    def current_stream(self) -> int:
        return int(self._torch.cuda.current_stream(self._index).cuda_stream)


class CupyArrays:
    """Arrays of CuPy on one CUDA device."""

    def __init__(self, index: int) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._index = index

    def empty(self, size: int, dtype: type) -> Any:
        with self._cupy.cuda.Device(self._index):
            return self._cupy.empty(size, dtype)

    def from_host(self, array: _arrays.Array) -> Any:
        with self._cupy.cuda.Device(self._index):
            return self._cupy.asarray(array)

    def current_stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)


class DeviceMemory:
    """What a tree on CUDA reads and writes: arrays with __cuda_array_interface__, in place and in stream order."""

    LIBRARIES: ClassVar[dict[str, Any]] = {"torch": TorchArrays, "cupy": CupyArrays}

    def __init__(self, kind: object, index: int) -> None:
        kind = "torch" if kind is None else kind
        if not isinstance(kind, str) or kind not in self.LIBRARIES:
            raise InvalidArgument(f"arrays is {kind!r}; allowed on CUDA: {', '.join(map(repr, self.LIBRARIES))}")
        try:
            self._library = self.LIBRARIES[kind](index)
        except ImportError as error:
            raise Unsupported(f"arrays is {kind!r}, which cannot be imported: {error}") from error

    def read(self, source: Any, name: str, dtype: type) -> Any:
        """An array of the device as it is; anything else is copied there.

        Raises InvalidArgument for one of the device that has another dtype or is not contiguous.
        """
        if _interface_of(source) is None:
            source = self._library.from_host(HOST.read(source, name, dtype))
        _check(_interface_of(source), name, dtype)
        return source

    def empty(self, size: int, dtype: type) -> Any:
        return self._library.empty(max(size, 0), dtype)

    def size(self, array: Any) -> int:
        return int(np.prod(_interface_of(array)["shape"], dtype=np.int64))

    def pointer(self, array: Any, c_type: str) -> Any:
        return ffi.cast(f"{c_type} *", _interface_of(array)["data"][0])

    def stream(self, stream: object) -> Any:
        """The cudaStream_t of a stream of torch or CuPy, or of a number; by default the library's current one."""
        if stream is None:
            stream = self._library.current_stream()
        for attribute in ("cuda_stream", "ptr"):
            stream = getattr(stream, attribute, stream)
        if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
            raise InvalidArgument(f"stream is {stream!r}; allowed: a stream of torch or CuPy, or a cudaStream_t")
        return ffi.cast("void *", stream)


HOST = HostMemory()


def _interface_of(array: Any) -> Any:
    """None for arrays that do not lie on a device."""
    # A tensor that requires gradients refuses to describe itself.
    described = array.detach() if getattr(array, "requires_grad", False) else array
    return getattr(described, "__cuda_array_interface__", None)


def _check(interface: Any, name: str, dtype: type) -> None:
    given, wanted = np.dtype(interface["typestr"]), np.dtype(dtype)
    if given != wanted:
        raise InvalidArgument(f"{name} has dtype {given} on the device; allowed there: {wanted}")
    strides, expected = interface.get("strides"), wanted.itemsize
    if strides is not None:
        for length, stride in zip(reversed(interface["shape"]), reversed(strides), strict=True):
            if length > 1 and stride != expected:
                raise InvalidArgument(f"{name} is not contiguous; allowed on the device: contiguous arrays")
            expected *= length


def memory_of(device: int, index: int, kind: object) -> HostMemory | DeviceMemory:
    """For the per_device and index of a tree.

    Raises InvalidArgument for a kind of arrays that cannot be there, Unsupported for one that is not installed.
    """
    if device != 0:
        return DeviceMemory(kind, index)
    if kind not in (None, "numpy"):
        raise InvalidArgument(f"arrays is {kind!r}; allowed on the CPU: 'numpy'")
    return HOST
