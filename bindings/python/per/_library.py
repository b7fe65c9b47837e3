"""Finds and loads libper; translates its statuses to exceptions and its enums to names."""

from __future__ import annotations

import functools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from per import _errors
from per._declarations import ffi as _ffi

ffi: Any = _ffi
ABI_VERSION: int = ffi.integer_const("PER_ABI_VERSION")
FILE_NAME = f"libper.so.{ABI_VERSION}"
NULL: Any = ffi.NULL


def places() -> Iterator[tuple[str, str]]:
    """The places to search for libper, in order: a file name for dlopen, and a description of the place."""
    chosen = os.environ.get("LIBPER_PATH")
    if chosen:
        yield chosen, "LIBPER_PATH"
        return
    package = pathlib.Path(__file__).resolve().parent
    yield str(package / FILE_NAME), "beside the package"
    for source in package.parents[2:3]:
        if (source / "include" / "per.h").is_file():
            yield str(source / "build" / FILE_NAME), "the build folder of the source tree"
    yield FILE_NAME, "the system's library path"


def load() -> tuple[Any, str]:
    """The loaded library and the name that it was loaded by.

    Raises ImportError with every place that was tried, and why it failed.
    """
    reasons = []
    for name, place in places():
        try:
            library = ffi.dlopen(name)
            version = library.per_abi_version()
        except (OSError, AttributeError, ffi.error) as error:
            reasons.append(f"  {name} ({place}): {error}")
            continue
        if version == ABI_VERSION:
            return library, name
        reasons.append(f"  {name} ({place}): has ABI version {version}, this package needs {ABI_VERSION}")
    raise ImportError(
        "libper cannot be loaded. Tried:\n"
        + "\n".join(reasons)
        + "\nSet LIBPER_PATH to the library, or build it: cmake -S . -B build && cmake --build build"
    )


lib: Any
path: str
lib, path = load()


def check(status: int, arguments: Mapping[str, str] | None = None) -> None:
    """Raises the exception for a status, with the library's message, unless it is PER_OK.

    Choices and devices in the message get their Python names. `arguments`: Python names of the function's arguments
    that differ from those in C.
    """
    if status:
        message = ffi.string(lib.per_last_error()).decode("utf-8", "replace")
        words = {**_choices_by_constant(), **_WORDS, **(arguments or {})}
        # Quoted text, such as the name of a field, is left unchanged. A constant of C may be followed by its number.
        message = re.sub(r'"[^"]*"|\b(PER_\w+) \(\d+\)|\b[A-Za-z_]\w*', lambda found: _in_python(found, words), message)
        for phrase, in_python in _PHRASES.items():
            message = message.replace(phrase, in_python)
        message = _with_values_of_python(message)
        raise _errors.of_status(status, message)


def _in_python(found: re.Match[str], words: Mapping[str, str]) -> str:
    return words.get(found[1] or found[0], found[0])


# Words of messages that have another name in Python.
_WORDS = {
    "device_index": "the number after 'cuda:'",
    "n_step_min": "n_step[0]",
    "source_of": "batch.sources",
    "false": "False",
    "per_replay_clear": "clear",
    "per_replay_compute_capacity": "ReplayBuffer.capacity_for",
    "per_replay_cut": "cut",
    "per_replay_save": "save",
}

# Phrases of messages, and what Python says in their place, after _WORDS: for features that exist only here.
_INFO = ", which add(..., info=info) says by itself"
_PHRASES = {
    **{
        phrase: phrase + _INFO
        for phrase in ("whether the next observation is its final one", "ending an episode without next_mask")
    },
    "as one step is added": "as add() takes one step; extend() takes several",
    "with NULL in next_fields": "with next_observations=False",
    "must be a plain float32 field with one number a step": (
        "must be a plain float32 field with one number a step, as per.Field() declares it"
    ),
}


# The boolean options.
FLAGS = ("store_next_observation", "overwrite", "keep_times_sampled", "storage_preallocated", "gather_on_device")

# The options that may be None, and the number that C has for it.
NUMBERS_OF_NONE = {
    "compression": -1,
    "half_life": 0,
    "max_age": -1,
    "max_heap_bytes": 0,
    "sequence_length": 0,
    "sequence_stride": 0,
    "stack": 0,
}


def _with_values_of_python(message: str) -> str:
    """A message that begins with the name of an option, with True, False and None in place of C's numbers."""
    name = message.partition(" is ")[0]
    if name in FLAGS:
        return re.sub(r"\b(is|be) ([01])\b", lambda found: f"{found[1]} {found[2] == '1'}", message)
    if name in NUMBERS_OF_NONE:
        none = NUMBERS_OF_NONE[name]
        message = message.replace(f"allowed are {none} ..", f"allowed are None and {none + 1} ..")
        return re.sub(rf"(must be|allowed are) {none}\b", r"\1 None", message)
    return message


def new(struct: str) -> Any:
    """A struct of per.h with the values that its _init function sets."""
    value = ffi.new(f"{struct} *")
    check(getattr(lib, f"{struct}_init")(value, ffi.sizeof(struct)))
    return value


def sized(struct: str) -> Any:
    """A struct of per.h with struct_size set and everything else 0."""
    value = ffi.new(f"{struct} *")
    value.struct_size = ffi.sizeof(struct)
    return value


def filled(struct: str, function: Any, *arguments: object) -> Any:
    """The struct filled by a function of per.h that takes the struct and its size last."""
    value = ffi.new(f"{struct} *")
    check(function(*arguments, value, ffi.sizeof(struct)))
    return value


@functools.cache
def choices(enum: str) -> dict[str, int]:
    """Names and numbers of an enum of per.h: {"stratified": 0, ...} for per_scheme."""
    names = _constants(enum)
    words = [name.split("_") for name in names.values()]
    shared = next(i for i, parts in enumerate(zip(*words, strict=False)) if len(set(parts)) > 1)
    return {"_".join(names[number].split("_")[shared:]).lower(): number for number in sorted(names)}


@functools.cache
def _choices_by_constant() -> dict[str, str]:
    """Names of constants of per.h in messages: {"PER_STRATIFIED": "'stratified'", ...}, without statuses."""
    enums = [name for name in ffi.list_types()[0] if ffi.typeof(name).kind == "enum" and name != "per_status"]
    return {constant: repr(name_of(enum, number)) for enum in enums for number, constant in _constants(enum).items()}


def _constants(enum: str) -> dict[int, str]:
    return ffi.typeof(enum).elements  # type: ignore[no-any-return]


def name_of(enum: str, number: int) -> Any:
    """The name of a choice of an enum: one of the words in per.typing."""
    return next(name for name, value in choices(enum).items() if value == number)


def version() -> str:
    """The version of the loaded library."""
    text: str = ffi.string(lib.per_version()).decode()
    return text
