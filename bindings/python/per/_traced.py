"""The values that represent buffers in programs traced by JAX (per.jax): states and samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax.extend.core import get_opaque_trace_state


class State:
    """The value that represents a buffer in a program.

    add() and set_priorities() consume a state and return the next one. A consumed state is refused.
    """

    def __init__(self, number: int, ticket: Any) -> None:
        self._number, self._ticket = number, ticket
        self._trace, self._is_used_up = get_opaque_trace_state(), False

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self._number, self._ticket)

    @property
    def current_index(self) -> jax.Array:
        """The row of each environment that its next step is written to."""
        index: jax.Array = self._ticket[..., 2]
        return index

    @property
    def is_full(self) -> jax.Array:
        """Whether every row has been written."""
        is_full: jax.Array = self._ticket[..., 3] != 0
        return is_full

    def _is_of_this_trace(self) -> bool:
        """Whether the state is a value of the program being traced itself, not of an enclosing one."""
        return bool(self._trace == get_opaque_trace_state())


jax.tree_util.register_pytree_node(
    State, lambda state: ((state._ticket,), state._number), lambda number, leaves: State(number, *leaves)
)


class ExperiencePair(NamedTuple):
    """Steps of an environment and their successors: pytrees like the one given to init(), of arrays [B, ...]."""

    first: Any
    second: Any


class Sample(NamedTuple):
    """A batch of B pairs of steps, or B trajectories of L steps."""

    experience: Any
    """an ExperiencePair, or a pytree like the one given to init(), of arrays [B, L, ...]"""
    indices: jax.Array
    """for set_priorities(): uint32 [B, 2], the lower half first, or int64 [B] with jax_enable_x64. Indices are never
    reused: a priority set after its row was overwritten has no effect"""
    probabilities: jax.Array
    """float32 [B]"""
    weights: jax.Array
    """float32 [B]: importance-sampling weights, as per.ReplayBuffer gives them"""
