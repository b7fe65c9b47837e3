"""Replay buffers inside of jitted programs, with Flashbax's functions: make_prioritised_flat_buffer() and others.

The rows lie in libper, not in the program's state. XLA calls the library by itself (jax.ffi), without Python, on the
CPU and on CUDA. What goes through the program is a State of 16 bytes, which keeps the calls in the program's order.

>>> import jax, jax.numpy as jnp
>>> import per.jax
>>> buffer = per.jax.make_prioritised_flat_buffer(max_length=1000, min_length=32, sample_batch_size=32)
>>> state = buffer.init({"observation": jnp.zeros(4), "reward": jnp.zeros(())})
>>> def step(state, t):
...     return buffer.add(state, {"observation": jnp.full(4, t, jnp.float32), "reward": 1.0}), None
>>> state, _ = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(100)))(state)
>>> batch = buffer.sample(state, jax.random.key(0))
>>> bool((batch.experience.second["observation"] == batch.experience.first["observation"] + 1).all())
True
>>> state = buffer.set_priorities(state, batch.indices, jnp.ones(32))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from per import _kinds, _xla
from per._errors import InvalidArgument
from per._traced import ExperiencePair, Sample, State
from per.field import Field
from per.replay import ReplayBuffer

__all__ = [
    "Buffer",
    "ExperiencePair",
    "Sample",
    "State",
    "make_flat_buffer",
    "make_prioritised_flat_buffer",
    "make_prioritised_trajectory_buffer",
    "make_trajectory_buffer",
]


class Buffer:
    """The functions of a buffer, for use inside of jitted programs, as Flashbax has them.

    Behind them is one buffer of the library, which lives as long as this object, and has one present state.
    """

    def __init__(
        self, lanes: int, rows: int, min_rows: int, batch_size: int, left_out: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        if "seed" in options:
            raise InvalidArgument("seed is given; the keys of sample() say what is drawn")
        self._lanes, self._rows, self._min_rows, self._batch_size = lanes, rows, min_rows, batch_size
        self._left_out = left_out  # the axes of [lanes, K] that steps are added without
        self._options = options
        self._opened: Any = None  # closes the library's buffer when it goes
        self._number = 0  # of that buffer; 0: init() was not called yet
        self._steps: tuple[Any, list[Any]] = (jax.tree.structure(None), [])  # of init(): its tree, and paths and leaves
        self._results: list[Any] = []  # the arrays of a sample

    def init(self, step: Any) -> State:
        """Empties the buffer, and gives its first state. Earlier states are refused from then on.

        Parameters
        ----------
        step : Any
            A pytree of arrays as one step of one environment has them. Only shapes and dtypes count.
        """
        paths, tree = jax.tree.flatten_with_path(step)
        leaves = [(path, jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))) for path, leaf in paths]
        if self._steps != (tree, leaves):
            self._open(self._new([leaf for _, leaf in leaves]))
            self._steps = tree, leaves
        blank = jnp.zeros(_xla.TICKET.shape, _xla.TICKET.dtype)
        return State(self._number, *_xla.call("init", self._number, blank, [], (), step))

    def _new(self, leaves: list[Any]) -> ReplayBuffer:
        fields = {f"field{i}": Field(leaf.shape, leaf.dtype, role="observation") for i, leaf in enumerate(leaves)}
        # A lane of the library needs one row more than a sequence has steps, for a final observation.
        rows = max(self._rows, 2 + self._options.get("sequence_length", 1))
        return ReplayBuffer(self._lanes * rows, fields, n_envs=self._lanes, arrays="jax", **self._options)

    def _open(self, replay: ReplayBuffer, ticket: Any = None) -> None:
        """Takes a buffer of the library, in place of the one before."""
        ids = ((), np.int64) if _kinds.jax_has_64_bits() else ((2,), np.uint32)
        arrays = [(output.shape, output.dtype) for output in replay._layout.batch if "fields" in output.member]
        self._results = [
            jax.ShapeDtypeStruct((self._batch_size, *shape), jnp.dtype(dtype))
            for shape, dtype in (ids, ((), np.float32), ((), np.float32), *arrays)
        ]
        self._opened = _xla.open(replay._open(), ticket)
        self._number = int(self._opened[0])

    def state_dict(self, state: State) -> dict[str, Any]:
        """The whole buffer, for a checkpoint: {"ticket": int32[4], "checkpoint": uint8[bytes]}, arrays of numpy.

        It is called outside of jitted programs, and waits for those that give the state. None may run meanwhile.

        Parameters
        ----------
        state : State
            The state that the call before gave.
        """
        self._check(state)
        if isinstance(state._ticket, jax.core.Tracer):
            raise InvalidArgument("state_dict() is called inside of a program; allowed: outside, with a state it gave")
        ticket = np.array(state._ticket)
        return {"ticket": ticket, "checkpoint": _xla.checkpoint(self._number, ticket)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> State:
        """Becomes the buffer of a state_dict(), and gives its state, which goes on with the same draws.

        init() must have been called with the same step. Earlier states are refused from then on, and programs are
        compiled anew.

        Parameters
        ----------
        state_dict : Mapping[str, Any]
            What state_dict() gave.

        Raises
        ------
        InvalidArgument
        CorruptFile
        Unsupported
            Then the buffer is as it was.
        """
        if set(state_dict) != {"ticket", "checkpoint"}:
            raise InvalidArgument(f"state_dict has {sorted(state_dict)}; allowed: ['checkpoint', 'ticket']")
        if self._number == 0:
            raise InvalidArgument("init() was not called, which says what a step is: call it first")
        ticket = self._read_ticket(state_dict["ticket"])
        replay = self._new([leaf for _, leaf in self._steps[1]])
        expected = replay.options
        replay.load_state_dict({"checkpoint": np.asarray(state_dict["checkpoint"])})
        for name in ("capacity", "sequence_length", "sequence_stride"):
            if replay.options[name] != expected[name]:
                given = f"{name} {replay.options[name]}"
                raise InvalidArgument(f"checkpoint has {given}; allowed: that of the buffer, {expected[name]}")
        self._open(replay, ticket)
        return State(self._number, jnp.asarray(ticket))

    def _read_ticket(self, given: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
        """A copy of the ticket of a state_dict(), which says how many steps each environment has had."""
        ticket = np.asarray(given)
        if ticket.shape != _xla.TICKET.shape or ticket.dtype.kind not in "iu":
            raise InvalidArgument(
                f"ticket is {ticket.dtype}{list(ticket.shape)}; allowed: int32[4], as state_dict() gave it"
            )
        if not (0 <= ticket[2] < self._rows and 0 <= ticket[3] < 2**31):
            raise InvalidArgument(
                f"ticket is {ticket.tolist()}; allowed, as state_dict() gave it: a place of 0 .. {self._rows - 1} as "
                "its third number, and a count as its fourth"
            )
        return np.array(ticket, _xla.TICKET.dtype)

    def add(self, state: State, batch: Any) -> State:
        """Adds a step, or K, of each environment: the next state.

        Parameters
        ----------
        state : State
            The state that the call before gave.
        batch : Any
            A pytree as init() was given, of arrays [add_batch_size, K, ...]: without the first axis if add_batch_size
            is None, and without the second unless add_sequences.
        """
        tree, leaves = self._steps
        arrays, given = jax.tree.flatten(batch)
        if given != tree:
            raise InvalidArgument(f"batch is a {given}; allowed, as init() was given: {tree}")
        rows = [self._read(array, *leaf) for array, leaf in zip(arrays, leaves, strict=True)]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) != 1:
            raise InvalidArgument(f"batch has arrays of {lengths} steps; allowed: as many in each")
        # Rewards and flags of the library: the program's own are fields like others.
        none = jnp.zeros((lengths[0], self._lanes), np.float32)
        return self._next("add", state, lengths[0], none, *rows)

    def _read(self, leaf: Any, path: Any, step: Any) -> Any:
        """An array of steps as the library takes it: [K, lanes, ...]."""
        array = jnp.asarray(leaf)
        rows = jnp.expand_dims(array, self._left_out)
        if rows.dtype != step.dtype or rows.shape[:1] != (self._lanes,) or rows.shape[2:] != step.shape:
            axes = [axis for i, axis in enumerate((self._lanes, "K")) if i not in self._left_out]
            allowed = ", ".join(map(str, [*axes, *step.shape]))
            name = f"batch{jax.tree_util.keystr(path)}"
            raise InvalidArgument(f"{name} is {array.dtype}{list(array.shape)}; allowed: {step.dtype}[{allowed}]")
        return rows.swapaxes(0, 1)

    def sample(self, state: State, key: Any) -> Sample:
        """Draws a batch. On the CPU it is an error if nothing can be drawn yet; see can_sample().

        Parameters
        ----------
        state : State
            The state that the call before gave.
        key : Any
            One of jax.random.key() or PRNGKey(). The same state and key give the same batch. That of a seed draws what
            a per.ReplayBuffer with this seed draws first.
        """
        ticket, *arrays = self._call("sample", state, self._results, _xla.numbers_of(key))
        # XLA may put off what nothing waits for. With the draw's ticket the state is not used up before the draw.
        if state._is_of_this_trace():
            state._ticket = ticket
        tree, leaves = self._steps
        steps = [tree.unflatten(arrays[i : i + len(leaves)]) for i in range(3, len(arrays), len(leaves))]
        return Sample(ExperiencePair(*steps) if len(steps) == 2 else steps[0], *arrays[:3])

    def can_sample(self, state: State) -> Any:
        """Whether as many steps were added as were asked for: bool [].

        Parameters
        ----------
        state : State
            The state that the call before gave.
        """
        return state.is_full | (state.current_index >= self._min_rows)

    def set_priorities(self, state: State, indices: Any, priorities: Any) -> State:
        """Sets the priorities of pairs or trajectories, before the exponent: the next state.

        Parameters
        ----------
        state : State
            The state that the call before gave.
        indices : Any
            As samples have them.
        priorities : Any
            One for each, >= 0.
        """
        self._check(state)
        ids, allowed = jnp.asarray(indices), self._results[0]
        axes = ids.ndim - (allowed.ndim - 1)
        if ids.dtype != allowed.dtype or axes < 0 or ids.shape[axes:] != allowed.shape[1:]:
            raise InvalidArgument(
                f"indices is {ids.dtype}{list(ids.shape)}; allowed, as samples have them: "
                f"{allowed.dtype}[{', '.join(map(str, ('B', *allowed.shape[1:])))}]"
            )
        count = math.prod(ids.shape[:axes])
        if math.prod(jnp.shape(priorities)) != count:
            raise InvalidArgument(f"priorities has shape {list(jnp.shape(priorities))}; allowed: [{count}], as indices")
        return self._next("set_priorities", state, 0, ids, jnp.asarray(priorities, np.float32))

    def _next(self, name: str, state: State, steps: int, *operands: Any) -> State:
        """Queues a call that uses a state up, and gives the next one, so many steps on."""
        (ticket,) = self._call(name, state, [], *operands)
        state._is_used_up = isinstance(ticket, jax.core.Tracer) and state._is_of_this_trace()
        end = ticket[2] + steps
        return State(
            self._number, jnp.stack([ticket[0], ticket[1] + 1, end % self._rows, ticket[3] + end // self._rows])
        )

    def _call(self, name: str, state: State, results: list[Any], *operands: Any) -> list[Any]:
        self._check(state)
        return _xla.call(name, self._number, state._ticket, results, operands)

    def _check(self, state: State) -> None:
        if state._number != self._number:
            raise InvalidArgument(
                "this state is of another buffer, or from before load_state_dict() or an init() of other steps"
            )
        if state._is_used_up:
            raise InvalidArgument("this state is used up: go on with the one that add() or set_priorities() returned")


def make_prioritised_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
    priority_exponent: float = 0.6,
    device: str | None = None,
    **options: Any,
) -> Buffer:
    """A buffer that draws pairs of steps which follow each other, with Flashbax's arguments.

    Parameters
    ----------
    max_length : int
        Steps that it holds, of all environments together.
    min_length : int
        Steps until can_sample().
    sample_batch_size : int
        Pairs of a batch.
    add_sequences : bool, default False
        Steps are added with an axis of time.
    add_batch_size : int, optional
        Environments; None: one, and steps are added without an axis for it.
    priority_exponent : float, default 0.6
        Alpha of per.ReplayBuffer.
    device : str, optional
        "cpu" or "gpu", where the program is to run; None: JAX's default.
    **options : Any
        Others of per.ReplayBuffer: beta, normalize_weights, max_priority, uniform_fraction ...
    """
    lanes = 1 if add_batch_size is None else add_batch_size
    if max_length // lanes < 2:
        raise InvalidArgument(f"max_length is {max_length}; allowed: 2 for each environment, {2 * lanes}, or more")
    left_out = (0,) * (add_batch_size is None) + (1,) * (not add_sequences)
    options = {"alpha": priority_exponent, "device": _device(device), **options}
    return Buffer(lanes, max_length // lanes, min_length // lanes + 1, sample_batch_size, left_out, options)


def make_prioritised_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
    priority_exponent: float = 0.6,
    device: str | None = None,
    **options: Any,
) -> Buffer:
    """A buffer that draws trajectories of L steps, with Flashbax's arguments.

    Parameters
    ----------
    add_batch_size : int
        environments.
    sample_batch_size : int
        Trajectories of a batch.
    sample_sequence_length : int
        L, from 2 to as many steps as are held of an environment.
    period : int
        Distance of the starts of trajectories.
    min_length_time_axis : int
        Steps of each environment until can_sample().
    max_size, max_length_time_axis : int, optional
        Steps that it holds, of all environments together or of each; one of the two.
    priority_exponent : float, default 0.6
        As make_prioritised_flat_buffer() takes it.
    device : str, optional
        As make_prioritised_flat_buffer() takes it.
    **options : Any
        As make_prioritised_flat_buffer() takes it.
    """
    rows = max_length_time_axis if max_size is None else max_size // add_batch_size
    if rows is None or None not in (max_size, max_length_time_axis):
        raise InvalidArgument("of max_size and max_length_time_axis one is to be given")
    if not 2 <= sample_sequence_length <= rows:
        allowed = f"2 or more, up to the {rows} steps that it holds of an environment"
        raise InvalidArgument(f"sample_sequence_length is {sample_sequence_length}; allowed: {allowed}")
    # L steps are L - 1 transitions of the library, and the observation that the last of them leads to.
    sequences = {"sequence_length": sample_sequence_length - 1, "sequence_stride": period}
    options = {"alpha": priority_exponent, "device": _device(device), **sequences, **options}
    min_rows = max(min_length_time_axis, sample_sequence_length)
    return Buffer(add_batch_size, rows, min_rows, sample_batch_size, (), options)


def make_flat_buffer(*arguments: Any, **options: Any) -> Buffer:
    """make_prioritised_flat_buffer() in which all pairs are equally likely."""
    return make_prioritised_flat_buffer(*arguments, **options, prioritization="uniform")


def make_trajectory_buffer(*arguments: Any, **options: Any) -> Buffer:
    """make_prioritised_trajectory_buffer() in which all trajectories are equally likely."""
    return make_prioritised_trajectory_buffer(*arguments, **options, prioritization="uniform")


def _device(device: str | None) -> str:
    return (device or jax.default_backend()).replace("gpu", "cuda")
