"""DLPack (https://dmlc.github.io/dlpack, version 1.3): reads tensors of any library, and offers memory to them."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, NamedTuple

from per import _arrays
from per._errors import InvalidArgument, kind_of

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

_KINDS = {"int": _INT, "uint": _UINT, "float": _FLOAT, "bfloat": _BFLOAT, "bool": _BOOL}


def _type_of(name: str) -> tuple[int, int]:
    """DLPack's code and bits of a dtype by its name in per.h."""
    kind = name.rstrip("0123456789")
    return _KINDS[kind], int(name[len(kind) :] or 8)


_TYPES: dict[str, tuple[int, int]] = {name: _type_of(name) for name in _arrays.DTYPES}
_NAMES = {kind: name for name, kind in _TYPES.items()}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor, and the base of DLManagedTensorVersioned below."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_IsValid.restype = ctypes.c_int
_api.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Tensor(NamedTuple):
    """The description of an array in a capsule."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    """name in per.h"""
    is_contiguous: bool
    capsule: object
    """keeps the memory alive"""


def read(source: Any, name: str, stream: int | None) -> Tensor:
    """The array of an object with __dlpack__, ready on the stream with this DLPack number; None: in host memory.

    Raises InvalidArgument naming the argument.
    """
    try:
        try:
            capsule = source.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # an object older than DLPack 1
            capsule = source.__dlpack__(stream=stream)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(
            f"{name} is {kind_of(source)} that cannot be read: {_arrays.first_line(error)}"
        ) from error
    address = id(capsule)
    if _api.PyCapsule_IsValid(address, b"dltensor_versioned"):
        pointer = _api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        tensor = _Versioned.from_address(pointer).tensor
    elif _api.PyCapsule_IsValid(address, b"dltensor"):
        tensor = _Managed.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor")).tensor
    else:
        raise InvalidArgument(f"{name} is {kind_of(source)} whose __dlpack__ gives no DLPack capsule")
    kind = _NAMES.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if kind is None:
        described = f"DLPack code {tensor.dtype.code}, {tensor.dtype.bits} bits, {tensor.dtype.lanes} lanes"
        raise InvalidArgument(f"{name} has dtype of {described}; allowed: {', '.join(_arrays.DTYPES)}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset, shape, kind, strides is None or is_contiguous(shape, strides), capsule
    )


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int = 1) -> bool:
    """Whether elements are stored without gaps, the last axis fastest."""
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length == 0:
            return True
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


class Memory:
    """Memory that other libraries import as their own arrays with from_dlpack(), without a copy.

    Imported arrays keep `owner` alive. Consumers order their work after the work that writes the memory.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    owner: object

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int], owner: object
    ) -> None:
        self.address, self.shape, self.dtype, self.device, self.owner = address, shape, dtype, device, owner

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_asked: object) -> object:
        ndim = len(self.shape)
        axes = (ctypes.c_int64 * max(ndim, 1))(*self.shape)
        strides = (ctypes.c_int64 * max(ndim, 1))()
        stride = 1
        for axis in reversed(range(ndim)):
            strides[axis] = stride
            stride *= self.shape[axis]
        managed = _Managed()
        managed.tensor.data = self.address
        managed.tensor.device = _Device(*self.device)
        managed.tensor.ndim = ndim
        managed.tensor.dtype = _DataType(*_TYPES[self.dtype], 1)
        managed.tensor.shape, managed.tensor.strides = axes, strides
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        managed.context = next(_numbers)
        _held[managed.context] = (managed, axes, strides, self.owner)
        return _api.PyCapsule_New(ctypes.addressof(managed), b"dltensor", ctypes.cast(_forget, ctypes.c_void_p))

    def __getitem__(self, rows: slice) -> Memory:
        """The first rows."""
        count = len(range(*rows.indices(self.shape[0])))
        if rows.start not in (None, 0) or rows.step not in (None, 1):
            raise InvalidArgument(f"rows are {rows}; allowed: the first ones")
        return Memory(self.address, (count, *self.shape[1:]), self.dtype, self.device, self.owner)


# The objects that capsules point to, by the number in their context, until the deleter is called.
_held: dict[int, object] = {}
_numbers = itertools.count(1)


# Works on a capsule that is being freed, to which no new reference may be made.
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _end(managed: int) -> None:
    """The deleter that the consumer of a tensor calls."""
    _held.pop(_Managed.from_address(managed).context, None)


def _end_of_capsule(capsule: int) -> None:
    """The destructor of a capsule. One that nobody consumed still has its first name."""
    if _api.PyCapsule_IsValid(capsule, b"dltensor"):
        _end(_pointer_of(capsule, b"dltensor"))


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_delete, _forget = _CALLBACK(_end), _CALLBACK(_end_of_capsule)

# Tensors may outlive this module at interpreter exit and still call these.
for _function in (_delete, _forget):
    _api.Py_IncRef(ctypes.py_object(_function))
