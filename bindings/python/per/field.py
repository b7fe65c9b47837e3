"""Field: what a buffer stores of each transition."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from per import _arrays, _library, _options
from per._errors import InvalidArgument
from per._library import check, ffi, lib


@dataclasses.dataclass(frozen=True)
class Field:
    """A named array of a transition.

    Arguments:
        shape: of one transition; () for a number.
        dtype: "bool", "uint8" .. "int64", "float16", "bfloat16", "float32", "float64", or a dtype of numpy, torch or
            JAX.
        role: "observation" (the default for the name "observation" and names that begin with "observation."): observed
            before the step; batches then have next_x beside x, or in sequences n_step more of x. "plain" (the default
            of all others). "recurrent_state": in sequences given for the first step only.
        stack: frames given in a batch; by default the buffer's frame_stack for an observation, 1 for all others.

    >>> import numpy as np, per
    >>> per.Field(3, np.float32)
    Field(shape=(3,), dtype='float32', role=None, stack=None)
    """

    shape: tuple[int, ...]
    dtype: str
    role: str | None = None
    stack: int | None = None

    def __init__(
        self,
        shape: int | Iterable[int] = (),
        dtype: object = "float32",
        role: str | None = None,
        stack: int | None = None,
    ) -> None:
        try:
            sizes = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
        except TypeError as error:
            raise InvalidArgument(f"shape is {shape!r}; allowed: an int or a tuple of them") from error
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", _arrays.dtype_name(dtype))
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "stack", stack)
        c_field = ffi.new("per_field *")
        kept = _fill(c_field[0], self)
        check(lib.per_field_check(c_field))
        del kept


def to_c(fields: Mapping[str, Field]) -> tuple[Any, list[Any]]:
    """A per_field for each field, and what they point at."""
    if not isinstance(fields, Mapping):
        raise InvalidArgument(f"fields is a {type(fields).__name__}; allowed: a dict of names and per.Field")
    array = ffi.new("per_field[]", len(fields))
    kept: list[Any] = []
    for target, (name, field) in zip(array, fields.items(), strict=True):
        if not isinstance(name, str) or not isinstance(field, Field):
            raise InvalidArgument(f"fields has {name!r}: {field!r}; allowed: names and per.Field")
        kept += [ffi.new("char[]", name.encode()), _fill(target, field)]
        target.name = kept[-2]
    return array, kept


def _fill(target: Any, field: Field) -> Any:
    """Describes a field but for its name in a per_field; what that points at."""
    try:
        shape = ffi.new("int64_t[]", field.shape or (0,))
    except OverflowError as error:
        raise InvalidArgument(f"shape is {field.shape}; allowed: {_options.NUMBERS['int64_t']}") from error
    target.shape = shape
    target.ndim = len(field.shape)
    target.dtype = _arrays.DTYPES[field.dtype]
    if field.role is not None:
        target.role = _options.number("per_role", "role", field.role)
    if field.stack is not None:
        _options.set_field(ffi.addressof(target), "stack", "stack", field.stack)
    return shape


def from_c(array: Any, count: int) -> dict[str, Field]:
    """The fields that an array of per_field describes."""
    return {
        ffi.string(field.name).decode(): Field(
            tuple(field.shape[0 : field.ndim]) if field.ndim else (),
            _library.name_of("per_dtype", field.dtype),
            _library.name_of("per_role", field.role),
            field.stack,
        )
        for field in array[0:count]
    }
