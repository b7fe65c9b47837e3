"""Options of a buffer from a Gymnasium environment: fields, number of environments, autoreset mode, frame stack.

This module alone writes and parses the names of fields in containers: `observation.image` is the part of a Dict under
"image", `observation.0` the first part of a Tuple. A backslash escapes what would be misread:

    key           in a name
    "a.b"         a\\.b        the dot belongs to the key
    "a\\b"        a\\\\b
    "7"           \\7          the key of a Dict, not the place in a Tuple
    7             \\#7         a whole number as the key of a Dict
    "\\n"         \\u000a      a character that names cannot have: a control character, or half of a surrogate pair
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from per import _arrays
from per._errors import InvalidArgument, PerWarning, Unsupported, kind_of
from per.field import Field
from per.typing import Autoreset, DTypeLike, DTypeName, Padding

_ONE_FIELD = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
_NO_ARRAYS = {
    "Text": "its values are strings",
    "Graph": "its values differ in shape",
    "Sequence": "its values differ in length",
    "OneOf": "its values differ in kind",
}
_NARROWED: dict[str, DTypeName] = {"int64": "int32", "uint64": "uint32"}


_MARKED = re.compile(r"[\\.\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MARK = re.compile(r"\\(?:([\\.])|u([0-9a-f]{4}))")
_PLACE = re.compile(r"0|[1-9][0-9]*")
_PLACE_AS_KEY = re.compile(r"\\(0|[1-9][0-9]*)")
_NUMBER_AS_KEY = re.compile(r"\\#(-?[0-9]+)")
_MARKED_OR_NOT = re.compile(r"\\.|.", re.DOTALL)


def name_of(*keys: object) -> str:
    """The name of the field in nested Dicts under these keys, outermost first.

    Raises Unsupported for a key that is neither a string nor a whole number.
    """
    return ".".join(map(_step_of, keys))


def parts_of(name: str, container: Mapping[Any, Any] | Sequence[Any]) -> dict[str, Any]:
    """The parts of a Dict or Tuple by field name; `name` is that of the container."""
    if isinstance(container, Mapping):
        return {f"{name}.{_step_of(key)}": part for key, part in container.items()}
    return {f"{name}.{i}": part for i, part in enumerate(container)}


def steps_of(name: str) -> list[str]:
    """Splits a name at its dots into steps: the keys of the containers and of the part, with escapes."""
    steps = [""]
    for text in _MARKED_OR_NOT.findall(name):
        if text == ".":
            steps.append("")
        else:
            steps[-1] += text
    return steps


def key_of(step: str) -> str | int:
    """The Dict key that a step of a name denotes. A place in a Tuple is returned as its digits."""
    if number := _NUMBER_AS_KEY.fullmatch(step):
        return int(number[1])
    if place := _PLACE_AS_KEY.fullmatch(step):
        return place[1]
    return _MARK.sub(lambda mark: mark[1] or chr(int(mark[2], 16)), step)


def field_of(name: str, shape: Any, dtype: Any, **options: Any) -> Field:
    """A field whose errors contain its name."""
    try:
        return Field(shape, dtype, **options)
    except InvalidArgument as error:
        raise InvalidArgument(f"field {name}: {error}") from error


def _step_of(key: object) -> str:
    if isinstance(key, (int, np.integer)):
        return f"\\#{int(key)}"
    if not isinstance(key, str):
        raise Unsupported(f"{key!r} is a key of a Dict; allowed: strings and whole numbers")
    if _PLACE.fullmatch(key):
        return f"\\{key}"
    return _MARKED.sub(lambda found: f"\\{found[0]}" if found[0] in "\\." else f"\\u{ord(found[0]):04x}", key)


class Found(NamedTuple):
    """The fields from an environment's spaces, and the buffer options that the environment determines."""

    fields: dict[str, Field]
    options: dict[str, Any]


def of_env(env: Any, dtypes: Mapping[str, DTypeLike], given: Mapping[str, Any], *, has_64_bits: bool) -> Found:
    """Reads a gymnasium.Env or gymnasium.vector.VectorEnv, except for options that are given.

    Without 64-bit types, which JAX enables on request only, whole numbers are stored in 32 bits.
    """
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as error:
        raise Unsupported(f"for_env() needs gymnasium, which cannot be imported: {error}") from error
    is_vector = isinstance(env, gymnasium.vector.VectorEnv)
    if not is_vector and not isinstance(env, gymnasium.Env):
        hint = f"; gymnasium.make({env!r}) makes one" if isinstance(env, str) else ""
        raise InvalidArgument(f"env is {kind_of(env)}; allowed: gymnasium.Env or gymnasium.vector.VectorEnv{hint}")
    observation_space = env.single_observation_space if is_vector else env.observation_space
    action_space = env.single_action_space if is_vector else env.action_space
    stack = _frame_stack(env, is_vector, observation_space)
    padding = None if stack is None else _padding(env, is_vector, stack)
    fields = of_spaces(
        observation_space, action_space, dtypes, has_64_bits=has_64_bits, stack=stack or 1, padding=padding
    )
    options: dict[str, Any] = {} if "autoreset" in given else {"autoreset": _autoreset(env, is_vector)}
    if is_vector:
        options["n_envs"] = env.num_envs
    if stack is not None:
        options["frame_stack"] = stack
    return Found(fields, options)


def of_spaces(
    observation_space: Any,
    action_space: Any,
    dtypes: Mapping[str, DTypeLike],
    *,
    has_64_bits: bool,
    stack: int = 1,
    padding: Padding | None = None,
) -> dict[str, Field]:
    """The fields of an environment's spaces; `stack`: frames stacked in front of its observations."""
    fields = {
        name: dataclasses.replace(field, padding=padding)
        for name, field in _fields_of(observation_space, "observation", stack)
    }
    fields.update(_fields_of(action_space, "action", 1))
    return _with_dtypes(fields, dtypes, has_64_bits)


def _fields_of(space: Any, name: str, stack: int) -> Iterator[tuple[str, Field]]:
    """The fields of a space and of its parts, without the leading axis of stacked frames."""
    kind = _kind_of(space)
    if kind in _ONE_FIELD:
        shape = tuple(space.shape) if stack == 1 else tuple(space.shape[1:])
        yield name, field_of(name, shape, space.dtype)
        return
    if kind not in ("Dict", "Tuple"):
        reason = _NO_ARRAYS.get(kind, "it is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple")
        raise Unsupported(f"{name} is a {type(space).__name__} space, which no field can hold: {reason}")
    if not space.spaces:
        raise Unsupported(f"{name} is an empty {kind} space")
    for name_of_part, part in parts_of(name, space.spaces).items():
        yield from _fields_of(part, name_of_part, stack)


def _kind_of(space: Any) -> str:
    """The name of a space's Gymnasium class."""
    spaces = importlib.import_module("gymnasium.spaces")
    for kind in (*_ONE_FIELD, *_NO_ARRAYS, "Dict", "Tuple"):
        if hasattr(spaces, kind) and isinstance(space, getattr(spaces, kind)):
            return kind
    return type(space).__name__


def _with_dtypes(fields: dict[str, Field], dtypes: Mapping[str, DTypeLike], has_64_bits: bool) -> dict[str, Field]:
    for name in dtypes:
        if not any(name in (field, *_parents(field)) for field in fields):
            raise InvalidArgument(f"dtypes has {name}; allowed: {', '.join(fields)}")
    changed = {}
    for name, field in fields.items():
        asked = [dtypes[key] for key in (name, *_parents(name)) if key in dtypes]
        dtype: DTypeName = "float32" if field.dtype == "float64" else field.dtype
        if not has_64_bits:
            dtype = _NARROWED.get(dtype, dtype)
        changed[name] = dataclasses.replace(field, dtype=_arrays.dtype_name(asked[0]) if asked else dtype)
    return changed


def _parents(name: str) -> Iterator[str]:
    """The names of the containers around a field, innermost first."""
    steps = steps_of(name)
    for count in reversed(range(1, len(steps))):
        yield ".".join(steps[:count])


def _autoreset(env: Any, is_vector: bool) -> Autoreset:
    """The autoreset mode in per.h's terms."""
    if not is_vector:
        return "next_step" if _wrapper_of(env, "Autoreset") is not None else "disabled"
    mode = (env.metadata or {}).get("autoreset_mode")
    words: dict[str, Autoreset] = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}
    name = words.get(str(getattr(mode, "value", mode)))
    if name is None:
        raise InvalidArgument(
            f"env.metadata has autoreset_mode {mode!r}; allowed: an AutoresetMode of Gymnasium. "
            "Set it, as in env.metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.NEXT_STEP"
        )
    return name


def _wrapper_of(env: Any, kind: str) -> Any:
    """The wrapper of that class around an environment, or None."""
    wrappers = importlib.import_module("gymnasium.wrappers")
    gymnasium = importlib.import_module("gymnasium")
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, getattr(wrappers, kind)):
            return env
        env = env.env
    return None


def _frame_stack(env: Any, is_vector: bool, space: Any) -> int | None:
    """Number of frames that the environment stacks in front of its observations; None if it stacks none."""
    if not is_vector:
        wrapper = _wrapper_of(env, "FrameStackObservation")
        stack = None if wrapper is None else int(wrapper.stack_size)
    else:
        stack = _frame_stack_of_parts(env)
    if stack is None or not _all_begin_with(space, stack):
        return None
    changing = [name for name, keeps_frames in _wrappers_outside(env, is_vector) if not keeps_frames]
    if not changing or stack == 1:
        return stack
    warnings.warn(
        f"{changing[0]} is outside of the stack of env, and may skip frames or change them differently at each step: "
        f"the buffer stores whole stacks, which takes {stack} times the memory. Apply it inside of the stack",
        PerWarning,
        stacklevel=4,
    )
    return None


def _frame_stack_of_parts(env: Any) -> int | None:
    """The same for a vector environment, whose parts may be in other processes. None if they cannot be queried."""
    unwrapped = env.unwrapped
    if _is_of_ale(unwrapped):
        return int(unwrapped.single_observation_space.shape[0])
    if not hasattr(unwrapped, "call"):
        return None
    # Querying a missing attribute would end an AsyncVectorEnv.
    if not all(all(unwrapped.call("has_wrapper_attr", name)) for name in ("stack_size", "padding_type")):
        return None
    sizes = {int(size) for size in unwrapped.call("get_wrapper_attr", "stack_size")}
    return sizes.pop() if len(sizes) == 1 else None


def _is_of_ale(env: Any) -> bool:
    """Whether it is ALE's own vector environment, which stacks frames itself, zeros before the first one.

    Raises Unsupported if it was made with life_loss_info.
    """
    if type(env).__module__ != "ale_py.vector_env":
        return False
    if env.spec is not None and env.spec.kwargs.get("life_loss_info"):
        raise Unsupported(
            "env ends an episode at each lost life (life_loss_info) without resetting, so that its next step would be "
            "taken for a reset; allowed: episodic_life, with which it resets"
        )
    return True


def _padding(env: Any, is_vector: bool, stack: int) -> Padding | None:
    """The padding at the start of the environment's stacks; None for the first frame, repeated.

    Raises Unsupported if it is neither the first frame nor zeros.
    """
    if stack == 1:
        return None
    outside = [name for name, _ in _wrappers_outside(env, is_vector)]
    if _is_of_ale(env.unwrapped):
        kinds, values = ["zero"], [0]
    elif is_vector:
        kinds = env.unwrapped.call("get_wrapper_attr", "padding_type")
        values = env.unwrapped.call("get_wrapper_attr", "padding_value")
    else:
        wrapper = _wrapper_of(env, "FrameStackObservation")
        kinds, values = [wrapper.padding_type], [wrapper.padding_value]
    if all(kind == "reset" for kind in kinds):
        return None
    if all(kind != "reset" and _is_zero(value) for kind, value in zip(kinds, values, strict=True)):
        if "RescaleObservation" not in outside:
            return "zero"
        raise Unsupported(
            "env stacks frames with zeros before the first one, and RescaleObservation outside of the stack may change "
            "the zeros: no buffer gives such stacks back as they were; apply it inside, or use padding_type='reset'"
        )
    raise Unsupported(
        "env stacks frames with a padding_type that is not 'reset', or zeros, everywhere: "
        "no buffer gives such stacks back as they were"
    )


# Gymnasium's classes whose step() neither changes observations nor takes several steps.
_KEEPS_STEPS = {
    *(f"{vector}{changed}Wrapper" for vector in ("", "Vector") for changed in ("", "Action", "Reward")),
    *(
        "ArrayConversion",
        "Autoreset",
        "DictInfoToList",
        "HumanRendering",
        "JaxToNumpy",
        "JaxToTorch",
        "NormalizeReward",
    ),
    *("NumpyToTorch", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo"),
    *("RenderCollection", "TimeLimit"),
}
# Wrappers that change each frame of a stack by itself, and always in the same way.
_KEEPS_FRAMES = {"DtypeObservation", "FilterObservation", "RescaleObservation", "ReshapeObservation"}


def _wrappers_outside(env: Any, is_vector: bool) -> Iterator[tuple[str, bool]]:
    """The wrappers around the stack of an environment, and whether the frames of a stack stay those of earlier steps.

    Of parts in other processes only the names are known: whether a wrapper that is not Gymnasium's keeps frames is not.
    """
    gymnasium = importlib.import_module("gymnasium")
    kinds = gymnasium.Wrapper, gymnasium.vector.VectorWrapper
    parts = getattr(env.unwrapped, "envs", None) if is_vector else ()
    for outermost in (env, *(parts or ())):
        while isinstance(outermost, kinds) and not isinstance(outermost, gymnasium.wrappers.FrameStackObservation):
            yield type(outermost).__name__, _keeps_frames(outermost)
            outermost = outermost.env
    if parts is None and hasattr(env.unwrapped, "call"):
        for chain in env.unwrapped.call("__str__"):  # <Outer<FrameStackObservation<Inner<..>>>>
            for name in itertools.takewhile(lambda it: it != "FrameStackObservation", re.findall(r"<(\w+)", chain)):
                yield name, name in _KEEPS_FRAMES | _KEEPS_STEPS


def _keeps_frames(wrapper: Any) -> bool:
    """Whether the frames of a stack stay those of the steps before, as far as can be known from the class."""
    kind = type(wrapper)
    definer = next(base for base in kind.__mro__ if "step" in vars(base))
    of_gymnasium = definer.__module__.split(".")[0] == kind.__module__.split(".")[0] == "gymnasium"
    if of_gymnasium and kind.__name__ in _KEEPS_FRAMES:
        return True
    return definer.__module__.split(".")[0] == "gymnasium" and definer.__name__ in _KEEPS_STEPS


def _is_zero(observation: Any) -> bool:
    """Whether every element of every part of an observation is 0."""
    if isinstance(observation, Mapping):
        return all(map(_is_zero, observation.values()))
    if isinstance(observation, tuple):
        return all(map(_is_zero, observation))
    return not np.any(observation)


def _all_begin_with(space: Any, stack: int) -> bool:
    """Whether every part of a space has the frame axis first: an outer wrapper may have removed it."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        return space.shape is not None and len(space.shape) > 0 and space.shape[0] == stack
    return all(_all_begin_with(part, stack) for part in (parts.values() if isinstance(parts, Mapping) else parts))
