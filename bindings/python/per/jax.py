"""Replay buffers inside jitted programs, with Flashbax's functions: make_prioritised_flat_buffer() and others.

The rows are in libper, not in the program's state. XLA calls the library directly (jax.ffi), without Python, on the
CPU and on CUDA. The program carries a State of 16 bytes, which keeps the calls in the program's order.

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
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from per import _arrays, _kinds, _options, _xla
from per._errors import InvalidArgument, kind_of
from per._traced import ExperiencePair, Sample, State
from per.field import Field
from per.replay import ReplayBuffer
from per.typing import FloatLike, HostOptions, Unpack

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

_Arguments = ParamSpec("_Arguments")

# Options of per.ReplayBuffer that these buffers do not take, with what determines them here.
_NOT_TAKEN = {
    "arrays": "the program determines the arrays",
    "n_envs": "add_batch_size determines the environments",
    "seed": "the keys of sample() determine the draws",
    "sequence_eta": "set_priorities() determines the priorities of trajectories",
    "sequence_length": "sample_sequence_length determines trajectories",
    "sequence_stride": "period determines trajectories",
    "store_next_observation": "the step after another one determines its next observation",
}


class Buffer:
    """The functions of a buffer, for use inside jitted programs, as in Flashbax.

    They share one buffer of the library, which lives as long as this object and has one current state.
    """

    def __init__(
        self, lanes: int, rows: int, min_rows: int, batch_size: int, left_out: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        self._lanes, self._rows, self._min_rows = lanes, rows, max(min_rows, _rows_of_draw(options))
        self._batch_size = _options.at_least("sample_batch_size", batch_size, 1)
        self._left_out = left_out  # axes of [lanes, K] that added steps do not have
        self._options = options
        self._opened: Any = None  # closes the library's buffer when collected
        self._number = 0  # number of that buffer; 0: init() was not called yet
        self._steps: tuple[Any, list[Any]] = (jax.tree.structure(None), [])  # from init(): tree, and paths and leaves
        self._results: list[Any] = []  # the arrays of a sample

    def init(self, step: Any) -> State:
        """Empties the buffer and returns its first state. Earlier states are refused from then on.

        Parameters
        ----------
        step : Any
            A pytree of arrays in the form of one step of one environment. Only shapes and dtypes count.
        """
        paths, tree = jax.tree.flatten_with_path(step)
        leaves = [(path, _form(leaf, f"step{jax.tree_util.keystr(path)}")) for path, leaf in paths]
        if self._number == 0 or self._steps != (tree, leaves):
            self._open(self._new([leaf for _, leaf in leaves]))
            self._steps = tree, leaves
        blank = jnp.zeros(_xla.TICKET.shape, _xla.TICKET.dtype)
        return State(self._number, *_xla.call("init", self._number, blank, [], (), step))

    def _new(self, leaves: list[Any]) -> ReplayBuffer:
        fields = {f"field{i}": Field(leaf.shape, leaf.dtype, role="observation") for i, leaf in enumerate(leaves)}
        # The library needs one row more than a draw, for a final observation, and those of stacks.
        rows = max(self._rows, _rows_of_draw(self._options) + self._options.get("frame_stack", 1))
        return ReplayBuffer(self._lanes * rows, fields, n_envs=self._lanes, arrays="jax", **self._options)

    def _open(self, replay: ReplayBuffer, ticket: Any = None) -> None:
        """Takes over a buffer of the library, in place of the earlier one."""
        ids = ((), np.int64) if _kinds.jax_has_64_bits() else ((2,), np.uint32)
        arrays = [(output.shape, output.dtype) for output in replay._layout.batch if "fields" in output.member]
        self._results = [
            jax.ShapeDtypeStruct((self._batch_size, *shape), jnp.dtype(dtype))
            for shape, dtype in (ids, ((), np.float32), ((), np.float32), *arrays)
        ]
        self._opened = _xla.open(replay._open(), ticket)
        self._number = int(self._opened[0])

    def state_dict(self, state: State) -> dict[str, Any]:
        """The whole buffer, for a checkpoint: {"ticket": int32[4], "checkpoint": uint8[bytes]}, as numpy arrays.

        Call it outside jitted programs. It waits for those that produce the state; none may run meanwhile.

        Parameters
        ----------
        state : State
            The state returned by the previous call.
        """
        self._check(state)
        if isinstance(state._ticket, jax.core.Tracer):
            raise InvalidArgument("state_dict() is called inside of a program; allowed: outside, with a state it gave")
        ticket = np.array(state._ticket)
        return {"ticket": ticket, "checkpoint": _xla.checkpoint(self._number, ticket)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> State:
        """Replaces the buffer by that of a state_dict() and returns its state, which continues with the same draws.

        init() must have been called with the same step. Earlier states are refused from then on, and programs are
        recompiled.

        Parameters
        ----------
        state_dict : Mapping[str, Any]
            The result of state_dict().

        Raises
        ------
        InvalidArgument
        CorruptFile
        Unsupported
            The buffer is unchanged.
        """
        if not isinstance(state_dict, Mapping):
            raise InvalidArgument(f"state_dict is {kind_of(state_dict)}; allowed: what state_dict() returned")
        if set(state_dict) != {"ticket", "checkpoint"}:
            keys = sorted(map(str, state_dict))
            raise InvalidArgument(f"state_dict has {keys}; allowed: ['checkpoint', 'ticket']")
        if self._number == 0:
            raise InvalidArgument("init() was not called: call it first, with an example of a step")
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
        """A copy of the ticket in a state_dict(), which has the number of steps of each environment."""
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
        """Adds a step, or K, of each environment. Returns the next state.

        Parameters
        ----------
        state : State
            The state returned by the previous call.
        batch : Any
            A pytree like that given to init(), of arrays [add_batch_size, K, ...]: without the first axis if
            add_batch_size is None, and without the second unless add_sequences.
        """
        self._check(state)
        tree, leaves = self._steps
        arrays, given = jax.tree.flatten(batch)
        if given != tree:
            raise InvalidArgument(f"batch is a {given}; allowed, as init() was given: {tree}")
        rows = [self._read(array, *leaf) for array, leaf in zip(arrays, leaves, strict=True)]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) != 1:
            raise InvalidArgument(f"batch has arrays of {lengths} steps; allowed: as many in each")
        # Rewards and flags of the library are unused: the program's own are ordinary fields.
        none = jnp.zeros((lengths[0], self._lanes), np.float32)
        return self._next("add", state, lengths[0], none, *rows)

    def _read(self, leaf: Any, path: Any, step: Any) -> Any:
        """An array of steps in the library's shape: [K, lanes, ...]."""
        name = f"batch{jax.tree_util.keystr(path)}"
        if step.dtype.kind in "iu" and not isinstance(leaf, jax.Array):
            _arrays.as_whole(leaf, name, step.dtype.type)  # JAX would wrap 64-bit numbers
        array = _as_jax(leaf, name)
        axes = [axis for i, axis in enumerate((self._lanes, "K")) if i not in self._left_out] + [*step.shape]
        fits = len(axes) == array.ndim and all(axis in ("K", n) for axis, n in zip(axes, array.shape, strict=True))
        if array.dtype != step.dtype or not fits:
            allowed = ", ".join(map(str, axes))
            raise InvalidArgument(f"{name} is {array.dtype}{list(array.shape)}; allowed: {step.dtype}[{allowed}]")
        return jnp.expand_dims(array, self._left_out).swapaxes(0, 1)

    def sample(self, state: State, key: Any) -> Sample:
        """Draws a batch. On the CPU it is an error if nothing can be drawn yet; see can_sample().

        Parameters
        ----------
        state : State
            The state returned by the previous call.
        key : Any
            A key of jax.random.key() or PRNGKey(). The same state and key give the same batch. The batch of
            jax.random.key(seed) is the first one that a per.ReplayBuffer with that seed draws.
        """
        if not hasattr(key, "dtype"):
            raise InvalidArgument(f"key is {kind_of(key)}; allowed: one key of jax.random")
        ticket, *arrays = self._call("sample", state, self._results, _xla.numbers_of(key))
        # XLA may delay operations whose result nothing needs. The draw's ticket keeps the state in use until the draw.
        if state._is_of_this_trace():
            state._ticket = ticket
        tree, leaves = self._steps
        steps = [tree.unflatten(arrays[i : i + len(leaves)]) for i in range(3, len(arrays), len(leaves))]
        return Sample(ExperiencePair(*steps) if len(steps) == 2 else steps[0], *arrays[:3])

    def can_sample(self, state: State) -> jax.Array:
        """Whether the required number of steps has been added: bool [].

        Parameters
        ----------
        state : State
            The state returned by the previous call.
        """
        _check_kind(state)
        return state.is_full | (state.current_index >= self._min_rows)

    def set_priorities(self, state: State, indices: Any, priorities: Any) -> State:
        """Sets the priorities of pairs or trajectories, before the exponent. Returns the next state.

        Parameters
        ----------
        state : State
            The state returned by the previous call.
        indices : Any
            As in samples.
        priorities : Any
            One for each index, >= 0.
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
        """Queues a call that consumes a state, and returns the next one, `steps` further on."""
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
        _check_kind(state)
        if state._number != self._number:
            raise InvalidArgument(
                "this state is of another buffer, or from before load_state_dict() or an init() of other steps"
            )
        if state._is_used_up:
            raise InvalidArgument("this state is used up: use the one that add() or set_priorities() returned")

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.jax.Buffer cannot be pickled: it is a handle of this process. Pickle its state_dict().")


def make_prioritised_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
    priority_exponent: FloatLike = 0.6,
    device: str | None = None,
    **options: Unpack[HostOptions],
) -> Buffer:
    """Creates a buffer that draws pairs of consecutive steps, with Flashbax's arguments.

    Parameters
    ----------
    max_length : int
        Number of steps that the buffer holds, over all environments.
    min_length : int
        Steps until can_sample() is true.
    sample_batch_size : int
        Pairs in a batch.
    add_sequences : bool, default False
        Steps are added with a time axis.
    add_batch_size : int, optional
        Number of environments; None: one, and steps are added without its axis.
    priority_exponent : float, default 0.6
        Alpha of per.ReplayBuffer.
    device : str, optional
        "cpu" or "gpu", where the program runs; None: JAX's default.
    **options : Unpack[HostOptions]
        Other options of per.ReplayBuffer: beta, normalize_weights, max_priority, uniform_fraction ...
    """
    lanes = 1 if add_batch_size is None else _options.at_least("add_batch_size", add_batch_size, 1)
    given = _given(priority_exponent, device, options)
    needed = _rows_of_draw(given)
    rows = _options.whole("max_length", max_length) // lanes
    if rows < needed:
        allowed = f"{needed} for each environment, {needed * lanes}, or more"
        raise InvalidArgument(f"max_length is {max_length}; allowed: {allowed}")
    left_out = (0,) * (add_batch_size is None) + (1,) * (not add_sequences)
    min_rows = _options.whole("min_length", min_length) // lanes + 1
    return Buffer(lanes, rows, min_rows, sample_batch_size, left_out, given)


def make_prioritised_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
    priority_exponent: FloatLike = 0.6,
    device: str | None = None,
    **options: Unpack[HostOptions],
) -> Buffer:
    """Creates a buffer that draws trajectories of L steps, with Flashbax's arguments.

    Parameters
    ----------
    add_batch_size : int
        Number of environments.
    sample_batch_size : int
        Trajectories in a batch.
    sample_sequence_length : int
        L, from 2 to the number of steps that the buffer holds of each environment, less those that n_step and
        burn_in add to a trajectory.
    period : int
        Distance between the starts of trajectories.
    min_length_time_axis : int
        Steps of each environment until can_sample() is true.
    max_size, max_length_time_axis : int, optional
        Number of steps that the buffer holds, of all environments together or of each; give one of the two.
    priority_exponent : float, default 0.6
        As in make_prioritised_flat_buffer().
    device : str, optional
        As in make_prioritised_flat_buffer().
    **options : Unpack[HostOptions]
        As in make_prioritised_flat_buffer().
    """
    lanes = _options.at_least("add_batch_size", add_batch_size, 1)
    if (max_size is None) == (max_length_time_axis is None):
        raise InvalidArgument("give one of max_size and max_length_time_axis")
    if max_size is None:
        rows = _options.whole("max_length_time_axis", max_length_time_axis)
    else:
        rows = _options.whole("max_size", max_size) // lanes
    given = _given(priority_exponent, device, options)
    most = rows - (_rows_of_draw(given) - 2)  # beside n_step and burn_in
    what = f", as the buffer holds {rows} steps of an environment"
    # A trajectory of L steps is a sequence of L - 1 transitions and the observation after the last one.
    length = _options.at_least("sample_sequence_length", sample_sequence_length, 2, most, what) - 1
    given |= {"sequence_length": length, "sequence_stride": _options.whole("period", period)}
    min_rows = _options.whole("min_length_time_axis", min_length_time_axis)
    return Buffer(lanes, rows, min_rows, sample_batch_size, (), given)


def _called_like(
    make: Callable[_Arguments, Buffer],
) -> Callable[[Callable[..., Buffer]], Callable[_Arguments, Buffer]]:
    """For type checkers: the function has the arguments of another one."""
    return lambda function: function


@_called_like(make_prioritised_flat_buffer)
def make_flat_buffer(*arguments: Any, **options: Any) -> Buffer:
    """make_prioritised_flat_buffer() with equally likely pairs."""
    return make_prioritised_flat_buffer(*arguments, **options, prioritization="uniform")


@_called_like(make_prioritised_trajectory_buffer)
def make_trajectory_buffer(*arguments: Any, **options: Any) -> Buffer:
    """make_prioritised_trajectory_buffer() with equally likely trajectories."""
    return make_prioritised_trajectory_buffer(*arguments, **options, prioritization="uniform")


def _given(priority_exponent: FloatLike, device: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the library's buffer that do not depend on the kind of buffer."""
    for name in options:
        if name in _NOT_TAKEN:
            raise InvalidArgument(f"{name} is given; {_NOT_TAKEN[name]}")
    place = (device or jax.default_backend()).replace("gpu", "cuda")
    return {"alpha": priority_exponent, "device": place, **options}


def _rows_of_draw(options: Mapping[str, Any]) -> int:
    """The steps of an environment that the first draw needs: those drawn, and the one after the last window."""
    parts = {"burn_in": 0, "sequence_length": 1, "n_step": 1}
    return sum(_options.whole(name, options.get(name, default)) for name, default in parts.items())


def _form(leaf: Any, name: str) -> Any:
    """The shape and dtype of a leaf of a step."""
    try:
        form = jax.eval_shape(lambda leaf: leaf, leaf)
    except TypeError as error:
        raise InvalidArgument(f"{name} is {kind_of(leaf)}; allowed: arrays and numbers") from error
    return jax.ShapeDtypeStruct(form.shape, form.dtype)


def _as_jax(leaf: Any, name: str) -> jax.Array:
    try:
        return jnp.asarray(leaf)
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(f"{name} is {kind_of(leaf)} that JAX cannot read: {_arrays.first_line(error)}") from error


def _check_kind(state: object) -> None:
    if not isinstance(state, State):
        raise InvalidArgument(f"state is {kind_of(state)}; allowed: the state that the previous call returned")
