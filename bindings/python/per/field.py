"""Field: an array that a buffer stores of each transition."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from per import _arrays, _library, _options
from per._errors import InvalidArgument, kind_of
from per._library import check, ffi, lib
from per.typing import ArrayLike, Compression, DTypeLike, DTypeName, IntLike, Padding, Role


@dataclasses.dataclass(frozen=True, repr=False)
class Field(_options.Named):
    """A named array of a transition.

    Parameters
    ----------
    shape : int or Iterable[int], default ()
        Shape for one transition; () for a number. With max_length the first axis is None: rows of any length.
    dtype : DTypeLike, default "float32"
        "bool", "uint8" .. "int64", "float16", "bfloat16", "float32", "float64", or a dtype of numpy, torch or JAX.
    role : {"plain", "observation", "recurrent_state"}, optional
        "observation" (the default for "observation" and names that begin with "observation."): observed before the
        step. Batches then also have next_x beside x; sequences of T steps have T + n_step values of x. "plain" (the
        default for all other names). "recurrent_state": sequences have only that of their first step.
    stack : int, optional
        Frames per observation in a batch. Default: the buffer's frame_stack for observations, else 1.
    default : ArrayLike, optional
        Value for steps added without the field, such as advantages, which are computed later: an array of that shape,
        or a number for all its elements. It is cast like arrays of steps. None: every step must give the field;
        observations have no default.
    padding : {"repeat", "zero"}, optional
        Fills the frames of a stack before the first step of an episode: "repeat" (the default) with that step's frame,
        "zero" with zeros.
    compression : {"none", "delta"}, default "none"
        Storage of frames: "none" (the default) as they are; "delta" as the difference from a recent frame, which takes
        a fifth of the memory or less for game screens. Batches are bit-identical. On the CPU only.
    max_length : int, optional
        With a first axis of None: the largest length on that axis, such as tokens of an answer. Memory follows what is
        stored. Steps are given as a list of rows or a per.Ragged, and batches have a per.Ragged. On the CPU only, and
        not with stack, compression or default.

    Examples
    --------
    >>> import numpy as np, per
    >>> per.Field(3, np.float32, default=0.0)
    Field(shape=(3,), dtype='float32', role=None, stack=None, default=0.0, padding=None, compression='none')
    >>> tokens = per.Field(None, "int32", max_length=4096)
    """

    shape: tuple[int | None, ...]
    dtype: DTypeName
    role: Role | None = None
    stack: int | None = None
    default: Any = None
    padding: Padding | None = None
    compression: Compression = "none"
    max_length: int | None = dataclasses.field(default=None, repr=False)

    def __init__(
        self,
        shape: IntLike | Iterable[IntLike | None] | None = (),
        dtype: DTypeLike = "float32",
        role: Role | None = None,
        stack: IntLike | None = None,
        default: ArrayLike | None = None,
        padding: Padding | None = None,
        compression: Compression = "none",
        max_length: IntLike | None = None,
    ) -> None:
        axes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        is_ragged = axes[:1] == (None,)
        try:
            sizes = tuple(map(operator.index, axes[1:] if is_ragged else axes))
        except TypeError as error:
            first = "; the first one may be None" if None in axes else ""
            raise InvalidArgument(f"shape is {shape!r}; allowed: an int or a tuple of them{first}") from error
        if is_ragged != (max_length is not None):
            needed = "max_length, as its first axis is None" if is_ragged else "None as its first axis, with max_length"
            raise InvalidArgument(f"shape is {shape!r}, max_length is {max_length!r}; needed: {needed}")
        object.__setattr__(self, "shape", (None, *sizes) if is_ragged else sizes)
        object.__setattr__(self, "max_length", None if max_length is None else _options.whole("max_length", max_length))
        object.__setattr__(self, "dtype", _arrays.dtype_name(dtype))
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "stack", None if stack is None else _options.whole("stack", stack))
        object.__setattr__(self, "default", None if default is None else _plain(default, sizes))
        object.__setattr__(self, "padding", padding)
        object.__setattr__(self, "compression", compression)
        c_field = ffi.new("per_field *")
        kept = _fill(c_field[0], self)
        check(lib.per_field_check(c_field, ffi.sizeof("per_field")))
        del kept

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape without an axis of any length."""
        return tuple(size for size in self.shape if size is not None)

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.repr}
        if self.max_length is not None:
            shown["max_length"] = self.max_length
        return f"Field({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _plain(default: object, shape: tuple[int, ...]) -> Any:
    """A default as Python numbers in nested tuples; as one number if it has that shape and all elements are equal."""
    elements, code = _arrays.as_array(default, "default")
    if code == _arrays.BFLOAT16:
        elements = _arrays.widened(elements)
    if elements.shape == shape and elements.tobytes() == elements.ravel()[:1].tobytes() * elements.size:
        return _tuples(elements.ravel()[0].item())
    return _tuples(elements.tolist())


def _tuples(values: Any) -> Any:
    """Lists as tuples, and each NaN as the same object, so that equal fields compare equal."""
    if isinstance(values, list):
        return tuple(map(_tuples, values))
    return values if values == values else math.nan


def to_c(fields: Mapping[str, Field]) -> tuple[Any, list[Any]]:
    """A per_field for each field, and the objects that they point to."""
    if not isinstance(fields, Mapping):
        order = ", after the capacity" if isinstance(fields, int) else ""
        raise InvalidArgument(
            f"fields is {kind_of(fields)}; allowed: a dict of names and per.Field, "
            f"such as {{'observation': per.Field(4)}}{order}"
        )
    array = ffi.new("per_field[]", len(fields))
    kept: list[Any] = []
    for target, (name, field) in zip(array, fields.items(), strict=True):
        if not isinstance(name, str) or not isinstance(field, Field):
            meant = f", such as per.Field({field!r})" if isinstance(field, (int, str, tuple)) else ""
            raise InvalidArgument(f"fields has {name!r}: {field!r}; allowed: names and per.Field{meant}")
        try:
            text = name.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"name of a field is {name!r}; allowed: what can be written in UTF-8") from error
        if b"\0" in text:  # C would end the name there
            raise InvalidArgument(f"name of a field is {name!r}; allowed: names without control characters")
        kept += [ffi.new("char[]", text), _fill(target, field)]
        target.name = kept[-2]
    return array, kept


def set_fields(options: Any, fields: Mapping[str, Field]) -> list[Any]:
    """Sets the fields of an options struct. The returned objects must outlive the options."""
    c_fields, kept = to_c(fields)
    options.fields, options.n_fields, options.field_size = c_fields, len(c_fields), ffi.sizeof("per_field")
    return [c_fields, *kept]


def _fill(target: Any, field: Field) -> Any:
    """Describes a field, except its name, in a per_field. Returns the object that it points to."""
    try:
        shape = ffi.new("int64_t[]", field.value_shape or (0,))
    except OverflowError as error:
        raise InvalidArgument(f"shape is {field.shape}; allowed: {_options.NUMBERS['int64_t']}") from error
    target.shape = shape
    target.ndim = len(field.value_shape)
    target.dtype = _arrays.DTYPES[field.dtype]
    if field.role is not None:
        target.role = _options.number("per_role", "role", field.role)
    _options.set_options(ffi.addressof(target), {"stack": field.stack})
    if field.max_length is not None:
        if field.max_length == 0:
            raise InvalidArgument("max_length is 0; allowed: 1 and above")
        _options.set_field(ffi.addressof(target), "max_length", "max_length", field.max_length)
    if field.padding is not None:
        target.padding = _options.number("per_padding", "padding", field.padding)
    target.compression = _options.number("per_compression", "compression", field.compression)
    if field.default is None:
        return shape
    elements, code = _arrays.as_array(field.default, "default")
    data, axes = ffi.from_buffer(elements), ffi.new("int64_t[]", elements.shape or (0,))
    target.default_value = default = ffi.new("per_array *", (data, axes, elements.ndim, code))
    return shape, data, axes, default


def _default_from_c(field: Any, shape: tuple[int, ...]) -> Any:
    if field.default_value == ffi.NULL:
        return None
    name = _library.name_of("per_dtype", field.dtype)
    dtype = np.dtype("uint16" if name == "bfloat16" else name)
    data = ffi.buffer(field.default_value.data, math.prod(shape) * dtype.itemsize)
    elements = np.frombuffer(data, dtype).reshape(shape)
    return _arrays.widened(elements) if name == "bfloat16" else elements


def from_c(options: Any) -> dict[str, Field]:
    """The fields of described options, which the library owns: they are field_size bytes apart."""
    fields, size = {}, int(options.field_size)
    for i in range(options.n_fields):
        field = ffi.new("per_field *")
        at = ffi.cast("char *", options.fields) + i * size
        ffi.memmove(field, at, min(size, ffi.sizeof("per_field")))
        fields[ffi.string(field.name).decode()] = _field_from_c(field)
    return fields


def _field_from_c(field: Any) -> Field:
    shape = tuple(field.shape[0 : field.ndim]) if field.ndim else ()
    max_length = int(field.max_length)
    return Field(
        (None, *shape) if max_length else shape,
        _library.name_of("per_dtype", field.dtype),
        _library.name_of("per_role", field.role),
        field.stack,
        _default_from_c(field, shape),
        _library.name_of("per_padding", field.padding),
        _library.name_of("per_compression", field.compression),
        max_length or None,
    )
