"""What goes through programs that JAX traces, in the place of buffers (per.jax): their states, and samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax.extend.core import get_opaque_trace_state


class State:
    """What goes through a program in the place of a buffer.

    add() and set_priorities() use a state up, and return the next one. One that is used up is refused.
    """

    def __init__(self, number: int, ticket: Any) -> None:
        self._number, self._ticket = number, ticket
        self._trace, self._is_used_up = get_opaque_trace_state(), False

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self._number, self._ticket)

    @property
    def current_index(self) -> Any:
        """The row of each environment that its next step goes to."""
        return self._ticket[..., 2]

    @property
    def is_full(self) -> Any:
        """Whether each row was written."""
        return self._ticket[..., 3] != 0

    def _is_of_this_trace(self) -> bool:
        """Whether the program that is traced now is the one that the state is a value of, and not a part of it."""
        return bool(self._trace == get_opaque_trace_state())


jax.tree_util.register_pytree_node(
    State, lambda state: ((state._ticket,), state._number), lambda number, leaves: State(number, *leaves)
)


class ExperiencePair(NamedTuple):
    """Steps of an environment, and those that followed them: pytrees as init() was given, of arrays [B, ...]."""

    first: Any
    second: Any


class Sample(NamedTuple):
    """A batch of B pairs of steps, or trajectories of L."""

    experience: Any
    """an ExperiencePair, or a pytree as init() was given, of arrays [B, L, ...]"""
    indices: Any
    """for set_priorities(): uint32 [B, 2], the lower half first, or int64 [B] with jax_enable_x64. None comes twice: a
    priority that is set after its row was overwritten touches nothing"""
    probabilities: Any
    """float32 [B]"""
    weights: Any
    """float32 [B]: importance-sampling weights, as per.ReplayBuffer gives them"""
