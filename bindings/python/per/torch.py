"""Calls of a buffer or a tree inside programs compiled by torch: torch.compile(fullgraph=True), CUDA graphs.

The calls are torch operators (torch.library). A whole training step - draw a batch, learn, set priorities, add a step -
is one graph without a break, on the CPU and on CUDA. Calls run in program order, and return bit-identical results to
the same calls outside.

>>> import per, per.torch, torch
>>> fields = {"observation": per.Field(4)}
>>> replay = per.torch.Buffer(per.ReplayBuffer(1000, fields, arrays="torch"))
>>> @torch.compile(backend="eager", fullgraph=True)
... def step(observation, next_observation):
...     replay.add(observation=observation, reward=1.0, terminated=False, truncated=False,
...                next_observation=next_observation)
...     batch = replay.sample(32)
...     replay.update_priorities(batch.ids, batch.reward - batch.observation[:, 0])
...     return batch.weights.sum()
>>> float(step(torch.zeros(4), torch.ones(4)))
32.0
"""

from __future__ import annotations

import inspect
import itertools
import keyword
import weakref
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np
import torch

from per import _options
from per import batch as batches
from per._errors import InvalidArgument, Unsupported, kind_of
from per._layout import Output
from per.replay import ReplayBuffer
from per.tree import SumTree
from per.typing import NormalizeWeights, Prioritization, Scheme

__all__ = ["Buffer", "Draw", "Tree"]

Values: TypeAlias = torch.Tensor | float | Mapping[Any, Any] | tuple[Any, ...]
"""A tensor, a number, or tensors in the containers of an observation."""

if TYPE_CHECKING:

    class _Batch(tuple[Any, ...]):
        """A named tuple. Attributes that are not named here are of the user's fields."""

        observation: Any
        next_observation: Any
        reward: torch.Tensor
        discount: torch.Tensor
        n_steps: torch.Tensor
        terminated: torch.Tensor
        truncated: torch.Tensor
        weights: torch.Tensor
        ids: torch.Tensor
        priorities: torch.Tensor
        probabilities: torch.Tensor
        gamma_m: torch.Tensor

        def __getattr__(self, name: str) -> Any: ...
        def _asdict(self) -> dict[str, Any]: ...


_VALUES = (torch.Tensor, int, float, np.number, np.bool_, torch.SymInt, torch.SymFloat, torch.SymBool)

_numbers = itertools.count(1)
_live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""objects by their number in a program. Numbers are not reused"""


def _of(number: int) -> Any:
    found = _live.get(int(number))
    if found is None:
        raise InvalidArgument(f"the program calls buffer or tree {number} of per.torch, which is gone")
    return found


def _tensor(array: Any) -> torch.Tensor:
    """A libper array as a tensor in place, whatever torch's default device is."""
    return array if isinstance(array, torch.Tensor) else torch.as_tensor(array, device="cpu")


def _detached(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"{name} is {kind_of(value)}; allowed: tensors")
    return value.detach()


class _InGraph:
    """Represents an object of libper in a program: by its number, and a tensor that every call claims to write.

    The tensor keeps the order: a compiler may neither reorder nor drop writes of a tensor.
    """

    def __init__(self, name: str, of: Any, kind: type[ReplayBuffer[Any] | SumTree[Any]], *allowed: str) -> None:
        if not isinstance(of, kind):
            raise InvalidArgument(f"{name} is {kind_of(of)}; allowed: a per.{kind.__name__}")
        if (arrays := of.options["arrays"]) not in allowed:
            raise InvalidArgument(f"{name} has arrays={arrays!r}; allowed: {', '.join(map(repr, allowed))}")
        self._of = of
        self._number = next(_numbers)
        _live[self._number] = of
        self._turn = _tensor(of._memory.new((), "int64", of._memory.queue(None)))
        # CUDA graphs made by torch.compile accept tensors that are only written if their address is fixed.
        torch._dynamo.mark_static_address(self._turn)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the buffer or tree, too. The copy gets a number of its own, by which programs know it."""
        return type(self), (self._of,)

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._turn.new_empty(shape, dtype=dtype, device=self._turn.device)

    def _size(self, batch_size: Any) -> int:
        """Refuses sizes that no tensor can have."""
        if not isinstance(batch_size, (int, torch.SymInt)):
            batch_size = _options.whole("batch_size", batch_size)
        if batch_size < 0 or batch_size > _options.LARGEST_BATCH:
            self._of.sample(batch_size)  # the library's message
        size: int = batch_size
        return size

    @staticmethod
    def _choices(**choices: Any) -> tuple[Any, ...]:
        """The values as torch takes them. Others are refused here, since torch would not name the argument."""
        for name, value in choices.items():
            if name in ("beta", "uniform_fraction"):
                if not (value is None or isinstance(value, (int, float, torch.SymInt, torch.SymFloat))):
                    choices[name] = _options.real(name, value)
            elif not (value is None or isinstance(value, str)):
                raise InvalidArgument(f"{name} is {value!r}; allowed: str")
        return tuple(choices.values())

    def __repr__(self) -> str:
        return f"per.torch.{type(self).__name__}({self._of!r})"


class Buffer(_InGraph):
    """A per.ReplayBuffer inside compiled programs. Its own calls may be used outside, between those of the program.

    Parameters
    ----------
    buffer : ReplayBuffer
        A buffer with torch arrays (arrays="torch").

    Notes
    -----
    Errors are raised where the call runs, as outside a program. On CUDA calls are queued on torch's current stream; a
    captured graph draws a new batch at each launch.
    """

    def __init__(self, buffer: ReplayBuffer[torch.Tensor]) -> None:
        super().__init__("buffer", buffer, ReplayBuffer, "torch")
        for name, field in buffer.fields.items():
            if field.max_length is not None:
                raise Unsupported(
                    f"field {name} has max_length {field.max_length}: programs take no rows of any length"
                )
        outputs = _outputs_of(buffer)
        structure = batches.structure_of([output.name for output in outputs])
        self._outputs = [(output.name, output.shape, getattr(torch, output.dtype)) for output in outputs]
        for name in structure:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise Unsupported(f"field {name} is no attribute of a named tuple, which batches are in programs")
        self._kind: Any = namedtuple("Batch", structure)  # type: ignore[misc]
        self._nodes = tuple(structure.values())
        self._inputs = buffer._inputs
        self._n_envs = buffer.n_envs
        self._unsigned = {
            name: getattr(torch, field.dtype)
            for of, field in buffer.fields.items()
            for name in (of, f"next_{of}")
            if field.dtype.startswith("uint")
        }

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        scheme: Scheme | None = None,
        prioritization: Prioritization | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: NormalizeWeights | None = None,
    ) -> _Batch:
        """Draws a batch: a named tuple with the arrays of per.Batch, nested observations as dicts.

        As per.ReplayBuffer.sample().

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        beta : float, optional
            Exponent of the weights, in place of the buffer's.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            In place of the buffer's.
        prioritization : {"proportional", "rank", "uniform"}, optional
            In place of the buffer's.
        uniform_fraction : float, optional
            In place of the buffer's.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            In place of the buffer's.
        """
        choices = self._choices(
            beta=beta,
            scheme=scheme,
            prioritization=prioritization,
            uniform_fraction=uniform_fraction,
            normalize_weights=normalize_weights,
        )
        batch_size = self._size(batch_size)
        arrays = {name: self._new((batch_size, *shape), dtype) for name, shape, dtype in self._outputs}
        _ops.sample(self._turn, self._number, list(arrays.values()), *choices)
        batch: _Batch = self._kind(*[batches.nest(node, arrays) for node in self._nodes])
        return batch

    def add(self, /, *, reward: Values, terminated: Values, truncated: Values, **arrays: Values) -> torch.Tensor:
        """Adds one step of every environment. Returns ids, int64[n].

        Parameters
        ----------
        reward, terminated, truncated : Values
            As in per.ReplayBuffer.add().
        **arrays : Values
            Tensors and numbers under the other argument names of per.ReplayBuffer.add().
        """
        return self._add({"reward": reward, "terminated": terminated, "truncated": truncated, **arrays}, ())

    def extend(
        self, /, *, reward: Values, terminated: torch.Tensor, truncated: Values, **arrays: Values
    ) -> torch.Tensor:
        """Adds K consecutive steps; K is the length of `terminated`. Returns ids, int64[K, n]."""
        if not isinstance(terminated, torch.Tensor) or terminated.ndim == 0:
            raise InvalidArgument(f"terminated is {kind_of(terminated)}; allowed: a tensor of K rows")
        arrays |= {"reward": reward, "terminated": terminated, "truncated": truncated}
        return self._add(arrays, (len(terminated),))

    def _add(self, arrays: dict[str, Any], steps: tuple[int, ...]) -> torch.Tensor:
        flat: dict[str, Any] = {}
        for name, value in arrays.items():
            batches.flatten(self._inputs.get(name, name), value, name, flat)
        for name, value in flat.items():
            if not isinstance(value, _VALUES):
                raise InvalidArgument(f"{name} is {kind_of(value)}; allowed: tensors and numbers")
        n, given = self._n_envs, {}
        if (env_ids := flat.get("env_ids")) is not None:
            n = env_ids.numel() if isinstance(env_ids, torch.Tensor) else 1
        ids = self._new((*steps, n), torch.int64)
        for name, value in flat.items():
            if isinstance(value, torch.Tensor):
                given[name] = value.detach()
            else:
                shape = (n,) if name == "env_ids" else ids.shape
                given[name] = torch.full(shape, value, dtype=self._dtype_of(name, value), device=ids.device)
        _ops.add(self._turn, self._number, ids, bool(steps), list(given), list(given.values()))
        return ids

    def _dtype_of(self, name: str, number: Any) -> torch.dtype:
        """A dtype that holds a number as the library reads it outside a program."""
        if isinstance(number, (bool, np.bool_, torch.SymBool)):
            return torch.bool
        if isinstance(number, (float, np.floating, torch.SymFloat)):
            return torch.float64
        dtype: torch.dtype = self._unsigned.get(name, torch.int64)
        if not isinstance(number, torch.SymInt):
            most = min(torch.iinfo(dtype).max, torch.iinfo(torch.int64).max)
            if not torch.iinfo(dtype).min <= number <= most:
                raise InvalidArgument(f"{name} is {number}; allowed: {torch.iinfo(dtype).min} to {most}")
        return dtype

    @overload
    def update_priorities(self, ids: torch.Tensor, td_errors: torch.Tensor) -> None: ...
    @overload
    def update_priorities(self, ids: torch.Tensor, *, priorities: torch.Tensor) -> None: ...
    def update_priorities(
        self, ids: torch.Tensor, td_errors: torch.Tensor | None = None, *, priorities: torch.Tensor | None = None
    ) -> None:
        """Sets p = |td_error| + epsilon, or the given priorities, as per.ReplayBuffer.update_priorities().

        Parameters
        ----------
        ids : torch.Tensor
            int64[n], from batches.
        td_errors : torch.Tensor, optional
            float32[n] of any sign.
        priorities : torch.Tensor, optional
            float32[n], >= 0, in place of td_errors.
        """
        errors = None if td_errors is None else _detached("td_errors", td_errors)
        given = None if priorities is None else _detached("priorities", priorities)
        _ops.update(self._turn, self._number, _detached("ids", ids), errors, given)


class Draw(NamedTuple):
    """The result of Tree.sample(), as per.Draw."""

    indices: torch.Tensor
    priorities: torch.Tensor
    weights: torch.Tensor


class Tree(_InGraph):
    """A per.SumTree inside compiled programs."""

    def __init__(self, tree: SumTree[Any]) -> None:
        super().__init__("tree", tree, SumTree, "numpy", "torch")

    def sample(self, batch_size: int, *, beta: float = 0.0, scheme: Scheme = "stratified") -> Draw:
        """Draws indices, as per.SumTree.sample().

        Parameters
        ----------
        batch_size : int
            1 to 2^24.
        beta : float, default 0.0
            Exponent of the weights.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, default "stratified"
            As in per.SumTree.sample().
        """
        batch_size = self._size(batch_size)
        arrays = [self._new((batch_size,), dtype) for dtype in (torch.int64, torch.float32, torch.float32)]
        if beta is None or scheme is None:
            raise InvalidArgument(f"beta is {beta!r}, scheme is {scheme!r}; allowed: a number, str")
        _ops.tree_sample(self._turn, self._number, arrays, *self._choices(beta=beta, scheme=scheme))
        return Draw(*arrays)

    def update(self, indices: torch.Tensor, priorities: torch.Tensor) -> None:
        """Sets priorities, as per.SumTree.update().

        Parameters
        ----------
        indices : torch.Tensor
            int64[n], 0 to capacity - 1.
        priorities : torch.Tensor
            float32[n], finite, >= 0.
        """
        given = _detached("indices", indices), _detached("priorities", priorities)
        _ops.tree_update(self._turn, self._number, *given)


def _refuse_in_backward(name: str) -> None:
    if torch._C._current_graph_task_id() != -1:
        raise InvalidArgument(
            f"{name}() is called inside of backward(), where torch.utils.checkpoint computes a function again: that "
            "would draw another batch or add a second step; allowed: before the function, with the batch as an argument"
        )


def _outputs_of(buffer: ReplayBuffer[Any]) -> tuple[Output, ...]:
    """The arrays of a batch, whose shapes depend on n_step if it has sequences."""
    return (buffer._sequence_layout(buffer.n_step) if buffer._steps > 0 else buffer._layout).batch


def _sample(turn: torch.Tensor, number: int, out: list[torch.Tensor], *choices: Any) -> None:
    _refuse_in_backward("sample")
    buffer = _of(number)
    given = {name: value for name, value in zip(_CHOICES, choices, strict=True) if value is not None}
    outputs = _outputs_of(buffer)
    if [tuple(array.shape[1:]) for array in out] != [output.shape for output in outputs]:
        raise InvalidArgument(
            "batches of the buffer are others than when the per.torch.Buffer was made, after load_state_dict() or with "
            f"n_step, which is {buffer.n_step}; allowed: as they were, or a new per.torch.Buffer"
        )
    arrays = {output.name: array for output, array in zip(outputs, out, strict=True)}
    buffer.sample(len(out[0]), out=batches.Batch(buffer._nested(arrays)), **given)


def _add(
    turn: torch.Tensor, number: int, ids: torch.Tensor, is_run: bool, names: list[str], arrays: list[torch.Tensor]
) -> None:
    _refuse_in_backward("extend" if is_run else "add")
    buffer = _of(number)
    given: dict[str, Any] = dict(zip(names, arrays, strict=True))
    ids.copy_(_tensor(buffer.extend(**given) if is_run else buffer.add(**given)).view_as(ids))


def _update(
    turn: torch.Tensor, number: int, ids: torch.Tensor, td_errors: torch.Tensor | None, priorities: torch.Tensor | None
) -> None:
    _of(number).update_priorities(ids, td_errors, priorities=priorities)


def _tree_sample(turn: torch.Tensor, number: int, out: list[torch.Tensor], beta: float, scheme: str) -> None:
    _refuse_in_backward("sample")
    for array, drawn in zip(out, _of(number).sample(len(out[0]), beta=beta, scheme=scheme), strict=True):
        array.copy_(_tensor(drawn))


def _tree_update(turn: torch.Tensor, number: int, indices: torch.Tensor, priorities: torch.Tensor) -> None:
    _of(number).update(indices, priorities)


# Operators that write a tensor may return none, so the result arrays are arguments, too.
_CHOICES = ("beta", "scheme", "prioritization", "uniform_fraction", "normalize_weights")
_DEFINITIONS: dict[str, tuple[Callable[..., None], str]] = {
    "sample": (
        _sample,
        "Tensor(b!)[] out, float? beta, str? scheme, str? prioritization, float? uniform_fraction, "
        "str? normalize_weights",
    ),
    "add": (_add, "Tensor(b!) ids, bool is_run, str[] names, Tensor[] arrays"),
    "update": (_update, "Tensor ids, Tensor? td_errors, Tensor? priorities"),
    "tree_sample": (_tree_sample, "Tensor(b!)[] out, float beta, str scheme"),
    "tree_update": (_tree_update, "Tensor indices, Tensor priorities"),
}


def _fake_of(function: Callable[..., None]) -> Callable[..., None]:
    """The function that torch calls while tracing a program, and in place of an operator on the meta device."""
    parameters = list(inspect.signature(function).parameters)

    def fake(*arguments: Any) -> None:
        given = dict(zip(parameters, arguments, strict=False))
        given |= zip(given.get("names", ()), given.get("arrays", ()), strict=True)
        for name, value in given.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                device = given["turn"].device
                raise InvalidArgument(f"{name} is on the meta device, where tensors have no numbers; allowed: {device}")

    return fake


for _name, (_function, _arguments) in _DEFINITIONS.items():
    torch.library.define(f"libper::{_name}", f"(Tensor(a!) turn, int number, {_arguments}) -> ()")
    torch.library.impl(f"libper::{_name}", "CompositeExplicitAutograd", _function)
    torch.library.register_fake(f"libper::{_name}", _fake_of(_function))

_ops = torch.ops.libper
