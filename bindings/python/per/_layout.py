"""The layout of a buffer: the arrays of its calls and their places in the structs of per.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from per._library import ffi
from per.field import Field

# The arrays of per_steps other than fields, in its order.
STEP_ARRAYS: tuple[str, ...] = tuple(
    name for name, field in ffi.typeof("per_steps").fields if field.type == ffi.typeof("per_array")
)

# The arrays of per_batch that exist only for drawn rows.
NUMBERS_OF_DRAWS = ("weights", "probabilities")
# The arrays with one value per sequence; all others have one per step.
_NUMBERS_OF_SEQUENCES = ("weights", "ids", "priorities", "probabilities", "times_sampled")

_DTYPES_OF_POINTERS = {"float *": "float32", "int32_t *": "int32", "int64_t *": "int64", "uint8_t *": "bool"}


class Output(NamedTuple):
    """An array of a batch."""

    name: str
    shape: tuple[int, ...]
    """for one transition or sequence"""
    dtype: str
    member: str
    """member of per_batch"""
    field: int
    """field number, if the member has one pointer per field"""
    value_shape: tuple[int, ...] | None = None
    """shape of a value, if the array has rows of any length: `shape` is then that of the rows"""


class Layout(NamedTuple):
    """The names and arrays of a buffer."""

    fields: tuple[str, ...]
    next_fields: tuple[str | None, ...]
    """by field; None for fields that are not observations"""
    n_envs: int
    steps: int
    """length T of a sequence; 0: single transitions"""
    learned_steps: int
    """steps of a sequence after the burn-in"""
    batch: tuple[Output, ...]
    """arrays of a sample"""
    rows: tuple[Output, ...]
    """arrays of plain rows, as they were added"""
    windows: tuple[Output, ...]
    """arrays of single transitions that were not drawn"""
    value_shapes: Mapping[str, tuple[int, ...]]
    """by the names of inputs with rows of any length"""


def layout_of(
    fields: Mapping[str, Field],
    n_envs: int,
    steps: int = 0,
    learned_steps: int = 0,
    n_step: int = 1,
    keeps_times_sampled: bool = False,
) -> Layout:
    """The layout of a buffer whose fields have the roles and stacks resolved by the library.

    With steps > 0, its batches are sequences for that n_step.
    """
    numbers = [
        Output(name, (), _DTYPES_OF_POINTERS[field.type.cname], name, 0)
        for name, field in ffi.typeof("per_batch").fields
        if field.type.cname in _DTYPES_OF_POINTERS and (keeps_times_sampled or name != "times_sampled")
    ]
    of_transitions = [output for output in numbers if output.name != "mask"]
    of_rows = [output for output in of_transitions if output.name not in NUMBERS_OF_DRAWS]
    if steps > 0:
        sequence_numbers = [
            output if output.name in _NUMBERS_OF_SEQUENCES else output._replace(shape=(steps,)) for output in numbers
        ]
        drawn = (*_sequence_outputs(fields, steps, n_step), *sequence_numbers)
    else:
        drawn = (*_field_outputs(fields, stacked=True), *of_transitions)
    return Layout(
        fields=tuple(fields),
        next_fields=tuple(f"next_{name}" if field.role == "observation" else None for name, field in fields.items()),
        n_envs=n_envs,
        steps=steps,
        learned_steps=learned_steps,
        batch=drawn,
        rows=(*_field_outputs(fields, stacked=False), *of_rows),
        windows=(*_field_outputs(fields, stacked=True), *of_rows),
        value_shapes={
            prefix + name: field.value_shape
            for name, field in fields.items()
            for prefix in ("", "next_")
            if field.max_length is not None
        },
    )


def _frames(field: Field) -> tuple[int, ...]:
    """The axis of a stack, if any."""
    return (field.stack,) if field.stack is not None and field.stack > 1 else ()


def _sequence_outputs(fields: Mapping[str, Field], steps: int, n_step: int) -> list[Output]:
    """The arrays of sequences' fields: one each; observations include those that returns bootstrap from."""
    lengths: dict[str | None, tuple[int, ...]] = {"observation": (steps + n_step,), "recurrent_state": ()}
    return [
        _output(name, field, (*lengths.get(field.role, (steps,)), *_frames(field)), "fields", index)
        for index, (name, field) in enumerate(fields.items())
    ]


def _output(name: str, field: Field, places: tuple[int, ...], member: str, index: int) -> Output:
    """The array of a field with these axes before those of the field."""
    if field.max_length is not None:
        return Output(name, places, field.dtype, member, index, field.value_shape)
    return Output(name, (*places, *field.value_shape), field.dtype, member, index)


def _field_outputs(fields: Mapping[str, Field], *, stacked: bool) -> list[Output]:
    """The arrays of single transitions' fields: one each, and for observations also the next one."""
    outputs = []
    for member, prefix in (("fields", ""), ("next_fields", "next_")):
        for index, (name, field) in enumerate(fields.items()):
            if prefix and field.role != "observation":
                continue
            frames = _frames(field) if stacked else ()
            outputs.append(_output(prefix + name, field, frames, member, index))
    return outputs
