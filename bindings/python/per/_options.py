"""Translates keyword arguments to the options structs of per.h. The library decides which values are allowed.

Only what C cannot represent is refused here: numbers of the wrong type or out of range, and unknown names. So are the
numbers that stand for an option without a value in C: in Python this is None, and nothing else.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from per import _library
from per._errors import InvalidArgument, kind_of
from per._library import ffi
from per.typing import BufferOptions, DrawOptions, IntLike

# The options that are chosen by name, with their enums.
_CHOICES = {
    "prioritization": "per_prioritization",
    "scheme": "per_scheme",
    "normalize_weights": "per_normalization",
    "max_priority": "per_max_priority",
    "on_invalid": "per_on_invalid",
    "on_gap": "per_on_gap",
    "on_nan": "per_on_nan",
    "autoreset": "per_autoreset",
    "critics": "per_critics",
    "age": "per_age",
    "when_full": "per_when_full",
    "moved_by": "per_moved_by",
    "when_empty": "per_when_empty",
}

# Descriptions of C's number types.
NUMBERS = {
    "int32_t": "whole numbers from -2^31 to 2^31 - 1",
    "int64_t": "whole numbers from -2^63 to 2^63 - 1",
    "uint64_t": "whole numbers from 0 to 2^64 - 1",
    "float": "numbers",
    "double": "numbers",
}


AnyCall = TypeVar("AnyCall", bound=Callable[..., Any])


def by_name(method: AnyCall) -> AnyCall:
    """Leaves the errors for arrays that are missing or given by position to the method and the library.

    Calls may leave out required names, which are then None. help() and inspect do not show *positional.
    """
    signature = inspect.signature(method)
    named = [each for each in signature.parameters.values() if each.kind is not each.VAR_POSITIONAL]
    method.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    required = [each.name for each in named if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    method.__kwdefaults__ = dict.fromkeys(required) | (method.__kwdefaults__ or {})
    return method


def not_by_name(method: str, given: tuple[object, ...], fields: Iterable[str]) -> TypeError:
    """The error for a call that passes arrays by position."""
    names = ", ".join(f"{name}=..." for name in [*fields, "reward", "terminated", "truncated"])
    kinds = ", ".join(type(each).__name__ for each in given)
    return TypeError(f"{method}() takes names: {names}; given without a name: {kinds}")


class _SignatureOfInit:
    """The signature of a constructor. Python would show that of __new__()."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


# Names of other libraries, for hints: of arguments, fields and arrays of batches.
_OTHER_NAMES = {
    "beta_frames": "beta_steps",
    "buffer_size": "capacity",
    "eps": "epsilon",
    "max_size": "capacity",
    "maxlen": "capacity",
    "size": "capacity",
    "num_envs": "n_envs",
    "discount": "gamma",
    "done": "terminated and truncated",
    "dones": "terminated and truncated",
    "terminations": "terminated",
    "truncations": "truncated",
    "obs": "observation",
    "next_obs": "next_observation",
    "act": "action",
    "actions": "action",
    "rew": "reward",
    "rewards": "reward",
    "indices": "ids",
}


def meant(name: str, names: Iterable[str]) -> str:
    """The end of the error for an unknown name: "; did you mean beta?", or empty if none of the names is similar."""
    known = set(names)
    if name in known:
        return ""
    other = _OTHER_NAMES.get(name, "")
    if other and known.issuperset(other.split(" and ")):
        return f"; did you mean {other}?"
    alike = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)  # that of 4 letters, 2 of them swapped
    return f"; did you mean {alike[0]}?" if alike else ""


# Attributes of other libraries' buffers, and their modules' names, for hints.
_OTHER_ATTRIBUTES = {
    "append": "add",
    "get_batch": "sample",
    "insert": "add",
    "load": "ReplayBuffer.load",
    "PrioritizedReplayBuffer": "ReplayBuffer",
    "push": "add",
    "remember": "add",
    "ReplayMemory": "ReplayBuffer",
    "store": "add",
    "SegmentTree": "SumTree",
    "update": "update_priorities",
}


def no_attribute(owner: object, whose: str, name: str) -> AttributeError:
    """The error for an attribute that neither the owner nor, for an object, its type has."""
    other = _OTHER_ATTRIBUTES.get(name, "")
    if name.startswith("_"):
        hint = ""
    elif name == "size" and hasattr(owner, "__len__"):
        hint = "; did you mean len()?"
    elif other and hasattr(owner, other.partition(".")[0]):
        hint = f"; did you mean {other}()?"
    else:
        hint = meant(name, [known for known in dir(owner) if not known.startswith("_")])
    return AttributeError(f"{whose} has no attribute {name!r}{hint}")


class Named:
    """Base class of objects whose constructor suggests the correct spelling of a misspelt argument."""

    __signature__: _SignatureOfInit = _SignatureOfInit()

    if not TYPE_CHECKING:  # for type checkers __init__ has the whole signature

        def __new__(cls, *arguments, **named):
            known = inspect.signature(cls.__init__).parameters if named else {}
            takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
            for name in named if not takes_any else ():
                if name not in known:
                    raise TypeError(f"{cls.__name__}() has no argument {name}{meant(name, known)}")
            return super().__new__(cls)


def set_options(options: Any, given: Mapping[str, object]) -> None:
    """Sets fields of an options struct from the arguments of the same names."""
    for name, value in given.items():
        enum = _CHOICES.get(name)
        if value is None and name in _library.NUMBERS_OF_NONE:
            continue
        if name in _library.FLAGS:
            value = flag(name, value)
        set_field(options, name, name, value if enum is None else number(enum, name, value))


# The options of a buffer that are members of per_replay_options with the same name, in the constructor's order.
BUFFER_OPTIONS = [name for name in BufferOptions.__annotations__ if name not in ("device", "arrays", "storage")]


def set_buffer_options(options: Any, given: Mapping[str, Any]) -> None:
    """Sets members of a per_replay_options from the arguments of a buffer. Others, such as its device, are ignored."""
    set_options(options, {name: given[name] for name in given if name in BUFFER_OPTIONS})


def check_buffer_options(given: Iterable[str]) -> None:
    """Raises InvalidArgument for an unknown option of a buffer."""
    unknown = set(given) - set(BufferOptions.__annotations__)
    if unknown:
        name = min(unknown)
        allowed = ", ".join(BUFFER_OPTIONS)
        raise InvalidArgument(f"{name} is no option of a buffer; allowed: {allowed}{meant(name, BUFFER_OPTIONS)}")


def buffer_option(options: Any, name: str) -> Any:
    """The value of a member of per_replay_options for the argument of the same name."""
    value = option(options, name)
    if value == _library.NUMBERS_OF_NONE.get(name):
        return None
    return bool(value) if name in _library.FLAGS else value


def set_storage(options: Any, storage: Any) -> Any:
    """Sets the directory of the rows unless it is None. The returned object must outlive the options."""
    kept = None if storage is None else ffi.new("char[]", path(storage, "storage"))
    options.memory.storage = ffi.NULL if kept is None else kept
    return kept


@functools.cache
def places(struct: Any) -> dict[str, tuple[str, ...]]:
    """The members of a struct of per.h, each with the path to it: empty, or the embedded struct that contains it.

    Arguments are flat: members of embedded structs are named like the others.
    """
    own: dict[str, tuple[str, ...]] = {}
    inner: dict[str, tuple[str, ...]] = {}
    for name, member in struct.fields:
        if member.type.kind == "struct":
            inner |= {each: (name, *way) for each, way in places(member.type).items()}
        else:
            own[name] = ()
    return inner | own


def holder(options: Any, name: str) -> Any:
    """The struct that has the member of that name: the options, or a struct embedded in them."""
    return functools.reduce(getattr, places(_struct_of(options))[name], options)


def _struct_of(options: Any) -> Any:
    """The type of a struct, or of the one that a pointer points to."""
    kind = ffi.typeof(options)
    return kind.item if kind.kind == "pointer" else kind


_MOST_SHOWN = 80  # characters of a path in a message: it may be a whole file by mistake
_MAGIC = b"\x89PER\r\n"  # first bytes of a file from save()


def set_field(struct: Any, field: str, argument: str, value: Any) -> None:
    """Sets a number in a struct. Raises an error that names the argument if C cannot hold it, or has it for None."""
    owner = holder(struct, field)
    c_type = dict(_struct_of(owner).fields)[field].type.cname
    try:
        setattr(owner, field, operator.index(value) if "int" in c_type else value)
    except (TypeError, OverflowError) as error:
        raise _not_a_number(argument, value, c_type, error) from error
    if getattr(owner, field) == _library.NUMBERS_OF_NONE.get(argument):
        raise InvalidArgument(f"{argument} is {value!r}; allowed: None, or {_BESIDE_NONE[argument]}")


# The numbers that may be given for the options that may be None.
_BESIDE_NONE = {
    "compression": "0 to 19",
    "half_life": "0.01 and above",
    "max_age": "0 and above, in steps at least the rows that a lane needs",
    "max_heap_bytes": "1 and above",
    "sequence_length": "1 and above",
    "sequence_stride": "1 and above",
    "stack": "1 and above",
}


def _not_a_number(argument: str, value: object, c_type: str, error: Exception) -> InvalidArgument:
    """The error for a value that C's type cannot hold: of another type, or out of range."""
    if isinstance(error, OverflowError):
        return InvalidArgument(f"{argument} is {value!r}; allowed: {NUMBERS[c_type]}")
    allowed = "an int" if "int" in c_type else "a number"
    return InvalidArgument(f"{argument} is {value!r}, a {type(value).__name__}; allowed: {allowed}")


def path(value: Any, argument: str = "path", or_file: str = "") -> bytes:
    """The bytes of a path. A NUL is an error, since C would end the path there.

    `or_file` says what is allowed beside paths.
    """
    try:
        encoded = os.fsencode(value)
    except TypeError as error:
        raise InvalidArgument(f"{argument} is {value!r}; allowed: str, bytes, os.PathLike{or_file}") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{argument} is {value!r}; allowed: what the file system can encode ({error})") from error
    if b"\0" in encoded:
        given = os.fspath(value)
        shown = repr(given[:_MOST_SHOWN]) + "..." * (len(given) > _MOST_SHOWN)
        other = "; from_bytes() reads what save() wrote" if encoded.startswith(_MAGIC) else ""
        raise InvalidArgument(f"{argument} is {shown}; allowed: paths without a NUL{other}")
    return encoded


def option(options: Any, name: str) -> Any:
    """The value of an options field for the argument of the same name."""
    value, enum = getattr(holder(options, name), name), _CHOICES.get(name)
    return value if enum is None else _library.name_of(enum, value)


def number(enum: str, argument: str, name: object) -> int:
    """The number of a choice given by name."""
    allowed = {word: value for word, value in _library.choices(enum).items() if word != "default"}  # which is None
    if not isinstance(name, str) or name not in allowed:
        raise InvalidArgument(f"{argument} is {name!r}; allowed: {', '.join(map(repr, allowed))}")
    return allowed[name]


_SAMPLE_OPTIONS = ffi.typeof("per_sample_options *")
_SAMPLE_DEFAULTS = _library.new("per_sample_options")


def takes_draw_options(*left_out: str) -> Callable[[AnyCall], AnyCall]:
    """Makes help() and inspect show the options of a draw in place of a method's **choices.

    Parameters
    ----------
    left_out
        Options of a draw that the method does not take.
    """

    def with_options(method: AnyCall) -> AnyCall:
        shown = inspect.signature(method)
        parameters = [each for each in shown.parameters.values() if each.kind is not each.VAR_KEYWORD]
        for name, annotation in DrawOptions.__annotations__.items():
            if name not in left_out:
                kind = inspect.Parameter.KEYWORD_ONLY
                hint = getattr(annotation, "__forward_arg__", annotation)
                parameters.append(inspect.Parameter(name, kind, default=None, annotation=hint))
        method.__signature__ = shown.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return with_options


def sample_options(choices: Mapping[str, Any], method: Any = None) -> Any:
    """The per_sample_options with those options of a draw that are not None.

    The values that mean "the buffer's" in C are not valid arguments.

    Parameters
    ----------
    method : Any, optional
        The method whose **choices they are.
    """
    if method is not None:
        known = method.__signature__.parameters
        for name in choices:
            if name not in known:
                hint = meant(name, known)
                raise TypeError(f"{method.__qualname__}() got an unexpected keyword argument {name!r}{hint}")
    options = ffi.new(_SAMPLE_OPTIONS, _SAMPLE_DEFAULTS[0])
    beta, uniform_fraction, n_step = map(choices.get, ("beta", "uniform_fraction", "n_step"))
    scheme, prioritization, normalize_weights = map(choices.get, ("scheme", "prioritization", "normalize_weights"))
    if beta is not None:
        options.beta = _number("beta", beta)
    if uniform_fraction is not None:
        options.uniform_fraction = _number("uniform_fraction", uniform_fraction)
    if isinstance(n_step, (tuple, list)):
        ends = [whole(f"n_step[{i}]", n_step[i]) for i in range(len(n_step))]
        if len(ends) != 2 or 0 in ends or ends[0] > ends[1]:
            raise InvalidArgument(f"n_step is {n_step!r}; allowed: (least, most), from 1 to the buffer's n_step")
        options.n_step_min, options.n_step = ends
    elif n_step is not None:
        options.n_step = whole("n_step", n_step)
        if n_step == 0:
            raise InvalidArgument("n_step is 0; allowed: 1 to the buffer's n_step")
    if scheme is not None:
        options.scheme = number("per_scheme", "scheme", scheme)
    if prioritization is not None:
        options.prioritization = number("per_prioritization", "prioritization", prioritization)
    if normalize_weights is not None:
        options.normalize_weights = number("per_normalization", "normalize_weights", normalize_weights)
    return options


def save_options(compression: IntLike | None) -> Any:
    """A per_save_options with this compression."""
    options = _library.new("per_save_options")
    set_options(options, {"compression": compression})
    return options


def _number(argument: str, value: object) -> float:
    number = real(argument, value)
    if number != number:
        raise InvalidArgument(f"{argument} is nan; allowed: a number")
    return number


def device(argument: object) -> tuple[int, int]:
    """The per_device and the index for "cpu", "cuda" or "cuda:1"."""
    kind, colon, index = str(argument).partition(":")
    kinds = _library.choices("per_device")
    try:
        if kind not in kinds or (colon and (kind == "cpu" or not index.isdecimal())):
            raise ValueError
        return kinds[kind], int(ffi.new("int32_t *", int(index or 0))[0])
    except (ValueError, OverflowError):
        raise InvalidArgument(f"device is {argument!r}; allowed: 'cpu', 'cuda', 'cuda:0', 'cuda:1', ...") from None


def function(argument: str, value: object) -> None:
    """Raises InvalidArgument unless it is callable."""
    if not callable(value):
        raise InvalidArgument(f"{argument} is {value!r}; allowed: a function")


def flag(argument: str, value: object) -> bool:
    """True or False, in Python's or numpy's form."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{argument} is {value!r}; allowed: True or False")
    return bool(value)


def real(argument: str, value: Any) -> float:
    """A number as C's double."""
    if isinstance(value, (str, bytes)):  # which float() would read
        raise InvalidArgument(f"{argument} is {value!r}; allowed: a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{argument} is {value!r}; allowed: a number") from error


# The largest batch of per.h.
LARGEST_BATCH = 1 << 24


def rows_of(batch_size: int) -> int:
    """Number of rows to allocate for a batch; 0 if the size is out of range, which the library then reports."""
    return batch_size if 0 <= batch_size <= LARGEST_BATCH else 0


def whole(argument: str, value: Any) -> int:
    """A whole number that fits int64_t."""
    try:
        return int(ffi.new("int64_t *", operator.index(value))[0])
    except (TypeError, OverflowError) as error:
        raise _not_a_number(argument, value, "int64_t", error) from error


def by_field(argument: str, value: Any) -> dict[str, Any]:
    """A mapping by names of fields; empty for None."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgument(f"{argument} is {kind_of(value)}; allowed: a dict by names of fields")
    return dict(value or {})


def whole32(argument: str, value: object) -> int:
    """A whole number that fits int32_t."""
    return at_least(argument, value, -(1 << 31), (1 << 31) - 1)


def at_least(argument: str, value: object, least: int, most: int | None = None, what: str = "") -> int:
    """A whole number of that range. `what` describes the largest one in the message."""
    number = whole(argument, value)
    if number < least or (most is not None and number > most):
        allowed = f"{least} and above" if most is None else f"{least} to {most}{what}"
        raise InvalidArgument(f"{argument} is {number}; allowed: {allowed}")
    return number
