"""What a buffer takes and gives: the arrays of its calls and where they go in the structs of per.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from per._library import ffi
from per.field import Field

# The arrays of per_steps that are no fields, in its order.
STEP_ARRAYS: tuple[str, ...] = tuple(
    name for name, field in ffi.typeof("per_steps").fields if field.type == ffi.typeof("per_array")
)

# The arrays of per_batch that rows which were not drawn do not have.
NUMBERS_OF_DRAWS = ("weights", "probabilities")

_DTYPES_OF_POINTERS = {"float *": "float32", "int32_t *": "int32", "int64_t *": "int64", "uint8_t *": "bool"}


class Output(NamedTuple):
    """An array of a batch."""

    name: str
    shape: tuple[int, ...]
    """of one transition"""
    dtype: str
    member: str
    """of per_batch"""
    field: int
    """its number, where the member has one pointer for each"""


class Layout(NamedTuple):
    """The names and arrays of a buffer."""

    fields: tuple[str, ...]
    next_fields: tuple[str | None, ...]
    """by field; None for those that are no observations"""
    n_envs: int
    batch: tuple[Output, ...]
    """of a sample"""
    rows: tuple[Output, ...]
    """of rows as they were added"""


def layout_of(fields: Mapping[str, Field], n_envs: int) -> Layout:
    """The layout of a buffer whose fields have their roles and stacks as the library resolved them."""
    numbers = [
        Output(name, (), _DTYPES_OF_POINTERS[field.type.cname], name, 0)
        for name, field in ffi.typeof("per_batch").fields
        if field.type.cname in _DTYPES_OF_POINTERS and name != "mask"
    ]
    row_numbers = [output for output in numbers if output.name not in NUMBERS_OF_DRAWS]
    return Layout(
        fields=tuple(fields),
        next_fields=tuple(f"next_{name}" if field.role == "observation" else None for name, field in fields.items()),
        n_envs=n_envs,
        batch=(*_field_outputs(fields, stacked=True), *numbers),
        rows=(*_field_outputs(fields, stacked=False), *row_numbers),
    )


def _field_outputs(fields: Mapping[str, Field], *, stacked: bool) -> list[Output]:
    """The arrays that hold fields: each, and of observations the next one."""
    outputs = []
    for member, prefix in (("fields", ""), ("next_fields", "next_")):
        for index, (name, field) in enumerate(fields.items()):
            if prefix and field.role != "observation":
                continue
            frames = (field.stack,) if stacked and field.stack is not None and field.stack > 1 else ()
            outputs.append(Output(prefix + name, (*frames, *field.shape), field.dtype, member, index))
    return outputs
