"""Turns keyword arguments into the options structs of per.h. What is allowed is the library's to say.

Only what C cannot express is refused here: numbers of the wrong type or beyond it, and names that are none.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from per import _library
from per._errors import InvalidArgument
from per._library import ffi

# The options that are chosen by name, with their enums.
_CHOICES = {
    "prioritization": "per_prioritization",
    "scheme": "per_scheme",
    "normalize_weights": "per_normalization",
    "max_priority": "per_max_priority",
    "on_invalid": "per_on_invalid",
    "on_gap": "per_on_gap",
    "autoreset": "per_autoreset",
}


def set_options(options: Any, given: Mapping[str, object]) -> None:
    """Sets fields of an options struct by the arguments of the same names."""
    for name, value in given.items():
        enum = _CHOICES.get(name)
        set_field(options, name, name, value if enum is None else number(enum, name, value))


def set_field(struct: Any, field: str, argument: str, value: object) -> None:
    """Sets a number in a struct. What C cannot hold is an error that names the argument."""
    try:
        setattr(struct, field, value)
    except (TypeError, OverflowError) as error:
        c_type = dict(ffi.typeof(struct).item.fields)[field].type.cname
        raise InvalidArgument(f"{argument} is {value!r}; allowed: what fits {c_type}") from error


def number(enum: str, argument: str, name: object) -> int:
    """The number of a choice given by name."""
    allowed = _library.choices(enum)
    if not isinstance(name, str) or name not in allowed:
        raise InvalidArgument(f"{argument} is {name!r}; allowed: {', '.join(map(repr, allowed))}")
    return allowed[name]


def name_of(enum: str, number: int) -> str:
    """The name of a choice given by number."""
    return next(name for name, value in _library.choices(enum).items() if value == number)


def sample_options(given: Mapping[str, Any]) -> Any:
    """The per_sample_options with the arguments that are not None.

    The values that stand for "the buffer's" in C are no values of an argument.
    """
    options = _library.new("per_sample_options")
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in chosen.keys() & {"beta", "uniform_fraction"}:
        if (value := real(name, chosen[name])) != value:
            raise InvalidArgument(f"{name} is nan; allowed: a number")
    if "n_step" in chosen and whole("n_step", chosen["n_step"]) == 0:
        raise InvalidArgument("n_step is 0; allowed: 1 to the buffer's n_step")
    set_options(options, chosen)
    return options


def device(argument: object) -> tuple[int, int]:
    """The per_device and the index that "cpu", "cuda" or "cuda:1" name."""
    kind, colon, index = str(argument).partition(":")
    kinds = _library.choices("per_device")
    if kind not in kinds or (colon and not index.isdecimal()):
        raise InvalidArgument(f"device is {argument!r}; allowed: 'cpu', 'cuda', 'cuda:0', 'cuda:1', ...")
    return kinds[kind], int(index or 0)


def real(argument: str, value: Any) -> float:
    """A number as C's double."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{argument} is {value!r}; allowed: a number") from error


def whole(argument: str, value: Any) -> int:
    """A whole number that fits int64_t."""
    try:
        return int(ffi.new("int64_t *", operator.index(value))[0])
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(f"{argument} is {value!r}; allowed: what fits int64_t") from error
