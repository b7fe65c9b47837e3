"""Batch: the arrays of a sample, as attributes and by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, overload

import numpy as np

from per import _arrays, _kinds, _options, spaces
from per._errors import InvalidArgument, kind_of
from per.ragged import Ragged, mapped
from per.typing import Array_co

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    @dataclass_transform(eq_default=False, frozen_default=True)
    def read_only(kind: type[AnyBatch]) -> type[AnyBatch]:
        """Type checkers refuse assignment to the attributes of such a class."""

else:

    def read_only(kind):
        return kind


AnyBatch = TypeVar("AnyBatch", bound="Mapping[str, Any]")

_Name: TypeAlias = Literal[
    "reward",
    "discount",
    "n_steps",
    "terminated",
    "truncated",
    "weights",
    "ids",
    "priorities",
    "probabilities",
    "gamma_m",
    "times_sampled",
    "sources",
    "mask",
]

# A nested observation: the full name of a field, or containers of such names.
Node = Any


def structure_of(names: list[str]) -> dict[str, Node]:
    """The containers that field names describe, by the first step of each name: see per.spaces.steps_of().

    A container with the steps 0, 1, .. is a tuple. A name with one step is mapped to itself.
    """
    tree: dict[str, Any] = {}
    for name in names:
        *path, last = spaces.steps_of(name)
        level = tree
        for step in path:
            level = level.setdefault(step, {})
            if not isinstance(level, dict):
                raise InvalidArgument(f"{name} and {'.'.join(path)} are both fields; allowed: one or the other")
        if last in level:
            raise InvalidArgument(f"{name} and fields that begin with {name}. exclude each other")
        level[last] = name
    return {step: _with_tuples(node) for step, node in tree.items()}


def _with_tuples(node: Any) -> Node:
    if not isinstance(node, dict):
        return node
    children = {step: _with_tuples(child) for step, child in node.items()}
    if list(children) == [str(i) for i in range(len(children))]:
        return tuple(children.values())
    by_key: dict[Any, Node] = {spaces.key_of(step): child for step, child in children.items()}
    if len(by_key) < len(children):
        raise InvalidArgument(f"fields have parts {', '.join(children)}; allowed: one name for each key")
    return by_key


def is_nested(structure: dict[str, Node]) -> bool:
    """Whether any name is in a container."""
    return any(not isinstance(node, str) for node in structure.values())


def nest(node: Node, arrays: Mapping[str, Any]) -> Any:
    """The containers of a node, filled with the arrays of those names."""
    if isinstance(node, dict):
        return {key: nest(child, arrays) for key, child in node.items()}
    if isinstance(node, tuple):
        return tuple(nest(child, arrays) for child in node)
    return arrays[node]


def maker_of(kind: type[Batch], outputs: dict[str, Node]) -> Callable[[dict[str, Any]], Batch]:
    """A callable that makes a batch from arrays by full name: the class itself, unless some are in containers."""
    return (lambda arrays: kind(nested(outputs, arrays))) if is_nested(outputs) else kind


def nested(outputs: dict[str, Node], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by full name, in the containers of those outputs."""
    return {name: nest(node, arrays) for name, node in outputs.items()}


def flatten(node: Node, value: Any, name: str, arrays: dict[str, Any]) -> None:
    """Enters the arrays of a container into `arrays` by full name. Missing and unknown parts are errors."""
    if isinstance(node, str):
        arrays[node] = value
        return
    children = node if isinstance(node, dict) else dict(enumerate(node))
    if isinstance(value, (tuple, list)) and isinstance(node, tuple):
        given = dict(enumerate(value))
    elif isinstance(value, Mapping) and isinstance(node, dict):
        given = dict(value)
    elif _arrays.ends_with_info(value):
        raise _arrays.with_info(name)
    else:
        expected = (
            f"a dict with {', '.join(map(str, children))}" if isinstance(node, dict) else f"a tuple of {len(node)}"
        )
        raise InvalidArgument(f"{name} is {kind_of(value)}; allowed: {expected}")
    if given.keys() != children.keys():
        given_keys, allowed_keys = (", ".join(map(str, keys)) for keys in (given, children))
        raise InvalidArgument(f"{name} has {given_keys}; allowed: {allowed_keys}, all of them")
    names = spaces.parts_of(name, node)
    for name_of_part, (key, child) in zip(names, children.items(), strict=True):
        flatten(child, given[key], name_of_part, arrays)


def refuse_method_names(outputs: Mapping[str, Node], kind: type[Batch] | None = None) -> None:
    """Refuses names such as "keys", which Python itself calls as a method. `kind`: Batch, or a subclass."""
    for name in outputs:
        if hasattr(kind or Batch, name):
            raise InvalidArgument(f"field {name} has the name of a method of per.Batch; allowed: any other name")


# Argument names of the calls that take fields by name: a field of such a name could not be passed.
_ARGUMENTS = ("env_ids", "info", "stream", "td_errors", "timeout")


def refuse_argument_names(inputs: Mapping[str, Node]) -> None:
    """Raises InvalidArgument for a field whose name is another argument of add(), extend(), set() or a writer."""
    for name in inputs:
        if name in _ARGUMENTS:
            raise InvalidArgument(f"field {name} has the name of an argument of add(); allowed: any other name")


class NoSuchArray(KeyError):
    """A batch has no array of that name. Python shows the text of other KeyErrors as a quoted string."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


# Hints for arrays that only some batches have.
_ARRAYS_ELSEWHERE = {
    "mask": "; only those of sequences have one",
    "sources": "; those of a per.Mixture do",
    "times_sampled": "; those of a buffer with keep_times_sampled=True do",
}


@read_only
class Batch(Mapping[str, Any], Generic[Array_co]):
    """Transitions drawn together: one array per name, as attributes and as a Mapping.

    A transition has a window of m steps: n_step, or fewer if the episode ends inside the window. Fields that a buffer
    declares beside the observation and the action are read by name, `batch["log_prob"]`, or as attributes, which type
    checkers do not know.

    Attributes
    ----------
    observation : Any
        [B, shape] of step i, in the user's containers: `batch.observation["image"]`. Frame stacks are
        [B, stack, shape]. Other declared fields have the same form. Those with max_length are a per.Ragged of B rows.
    next_observation : Any
        The observation of step i + m. Each observation has one, with the prefix "next_".
    action : Any
        [B, shape] of step i, if a field has that name.
    reward : Array
        float32[B], sum over k < m of gamma^k r_(i+k).
    discount : Array
        float32[B], gamma^m if step i + m - 1 is not terminated, else 0: the factor of the bootstrap value.
    n_steps : Array
        int32[B], m.
    terminated, truncated : Array
        bool[B], of step i + m - 1. A step flagged both ways is terminated only.
    weights : Array
        float32[B], importance-sampling weights (section 3.4 of the paper).
    ids : Array
        int64[B], for update_priorities(); in JAX without 64-bit types uint32[B, 2].
    priorities : Array
        float32[B], p before alpha.
    probabilities : Array
        float32[B], the P that the weights are computed from.
    gamma_m : Array
        float32[B], gamma^m however the window ends, for learners that use `terminated` themselves.
    times_sampled : Array
        int32[B], with keep_times_sampled only: number of draws so far, this batch included.
    sources : Array
        int32[B], of per.Mixture only: which of its buffers each row is from, 0 for the first.
    mask : Array
        bool[B, T], for sequences only: False for the padding after the end of an episode, where all values are 0.
    size : int
        B, unless a field has that name. len() of a batch, as a Mapping, is the number of its arrays.

    Notes
    -----
    For sequences of T = burn_in + sequence_length steps, weights, ids, priorities, probabilities and times_sampled have
    shape [B]; fields, reward, discount, n_steps, terminated, truncated and gamma_m have shape [B, T], each step t < T
    as if drawn on its own. Observations have shape [B, T + n_step, shape], so there is no next_observation: step t
    bootstraps from observation t + n_steps[t]. Fields of role "recurrent_state" are those of the start, [B, shape].

    For JAX and torch a batch is a pytree: jax.jit, jax.tree.map, torch.compile and torch.func.vmap accept and return
    it, if these libraries were imported before the buffer was created. (JAX keeps only the lower 32 bits of numpy's
    int64, also of ids: arrays="jax" keeps them whole.)

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
    >>> ids = buffer.add(observation=[0, 1], reward=2, terminated=True, truncated=False, next_observation=[1, 1])
    >>> batch = buffer.sample(3)
    >>> batch.observation.shape, batch["reward"].tolist(), batch.size
    ((3, 2), [2.0, 2.0, 2.0], 3)
    """

    __slots__ = ("__dict__",)

    observation: Any
    next_observation: Any
    action: Any
    reward: Array_co
    discount: Array_co
    n_steps: Array_co
    terminated: Array_co
    truncated: Array_co
    weights: Array_co
    ids: Array_co
    priorities: Array_co
    probabilities: Array_co
    gamma_m: Array_co
    times_sampled: Array_co
    sources: Array_co
    mask: Array_co
    size: int

    if not TYPE_CHECKING:  # type checkers are to report misspelt names; other fields are batch["name"] for them

        def __getattr__(self, name: str) -> Any:
            if name == "size" and "ids" in self:
                return int(self["ids"].shape[0])
            raise AttributeError(self._without(name))

    def _without(self, name: str) -> str:
        """The message of the error for an array that the batch does not have."""
        names = set(self)
        if name != "next_observation" or "observation" not in names:
            hint = _ARRAYS_ELSEWHERE.get(name) or _options.meant(name, names)
        elif "mask" in names:
            hint = "; in sequences the next observation of step t is entry t + n_steps[t] of observation"
        else:
            hint = "; next_observations=True reads it"
        return f"this batch has no {name}{hint or f'; it {self._state()}'}"

    def _state(self) -> str:
        """Description of the batch's state for error messages."""
        return f"has {', '.join(self)}"

    def __init__(self, arrays: dict[str, Any]) -> None:
        object.__setattr__(self, "__dict__", arrays)

    @overload
    def __getitem__(self, name: _Name) -> Array_co: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str) -> Any:
        value: Any = self.__dict__
        try:
            if name in value:
                return value[name]
            top, *steps = spaces.steps_of(name)
            value = value[top]
            for step in steps:
                value = value[int(step)] if isinstance(value, tuple) else value[spaces.key_of(step)]
        except (KeyError, ValueError, IndexError, TypeError, AttributeError):
            raise NoSuchArray(self._without(str(name))) from None
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    # Mapping compares element by element, which arrays do not allow.
    def __eq__(self, other: object) -> bool:
        return object.__eq__(self, other)

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # type checkers are to report misspelt names

        def __setattr__(self, name: str, value: object) -> NoReturn:
            getattr(self, name)  # raises the error for a misspelt name
            raise AttributeError(f"a batch's arrays are not exchanged; write into batch.{name} instead")

    def to(self, device: Any) -> Batch[Array_co]:
        """A batch with its arrays on a device of torch or JAX.

        For numpy's arrays only "cpu" is allowed, and they stay the same. to("cpu") turns CuPy's arrays into numpy's.

        Parameters
        ----------
        device : Any
            A device of torch or of JAX, or its name.

        Raises
        ------
        InvalidArgument
            The arrays cannot be moved to that device.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> batch = buffer.sample(4)
        >>> batch.to("cpu").reward.tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        return Batch({name: map_arrays(value, lambda array: _moved(array, device)) for name, value in self.items()})

    def __reduce__(self) -> tuple[type[Batch], tuple[dict[str, Any]]]:
        return Batch, (dict(self),)

    def __repr__(self) -> str:
        described = (f"{name} {_arrays_described(value)}".replace("'", "") for name, value in self.items())
        return f"per.Batch({', '.join(described)})"


class JaxBatch(Batch):
    """A batch whose arrays become JAX arrays on first access: each conversion costs more than drawing the batch."""

    __slots__ = ("_host",)

    _host: dict[str, Any]

    def __init__(self, arrays: dict[str, Any]) -> None:
        object.__setattr__(self, "_host", arrays)

    @classmethod
    def of_jax(cls, arrays: dict[str, Any]) -> JaxBatch:
        """A batch of values that JAX already holds: arrays, or the placeholders it uses for them."""
        batch = cls(arrays)
        object.__setattr__(batch, "__dict__", arrays)
        return batch

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            host = object.__getattribute__(self, "_host")
            if name not in host:
                return super().__getattr__(name)
            value = map_arrays(host[name], _kinds.to_jax)
            return self.__dict__.setdefault(name, value)

    def __getitem__(self, name: str) -> Any:
        if isinstance(name, str) and (top := spaces.steps_of(name)[0]) in self._host:
            getattr(self, top)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._host)

    def __len__(self) -> int:
        return len(self._host)


def map_arrays(value: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to each array of nested dicts and tuples, and to both of a Ragged."""
    if isinstance(value, dict):
        return {key: map_arrays(child, function) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(map_arrays(child, function) for child in value)
    return mapped(value, function) if isinstance(value, Ragged) else function(value)


def _moved(array: Any, device: Any) -> Any:
    if isinstance(array, np.ndarray):
        if str(device) != "cpu":
            raise InvalidArgument(f"device is {device!r}; allowed for numpy arrays: 'cpu'. Use arrays='torch' or 'jax'")
        return array
    if type(array).__module__.partition(".")[0] == "cupy":
        if str(device) != "cpu":
            raise InvalidArgument(f"device is {device!r}; allowed for arrays of CuPy: 'cpu'")
        return array.get()
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(array, torch.Tensor):
            return array.to(torch.device(device))
        jax = importlib.import_module("jax")
        return jax.device_put(array, jax.devices(device)[0] if isinstance(device, str) else device)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise InvalidArgument(f"device is {device!r}: {str(error).splitlines()[0]}") from error


def _arrays_described(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays_described(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_arrays_described, value))
    return repr(value).removeprefix("per.") if isinstance(value, Ragged) else _arrays.described(value)
