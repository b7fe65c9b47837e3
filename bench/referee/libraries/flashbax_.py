"""Flashbax: prioritised item and trajectory buffers, compiled and with donated states."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step

_COLUMNS = ("observation", "action", "reward", "terminated", "truncated", "next_observation")


class Functions:
    """The functions of a buffer, which keep no state, compiled once for all buffers with these options."""

    def __init__(self, options: Options) -> None:
        import flashbax
        import jax

        given: dict[str, Any] = {"sample_batch_size": options.batch_size, "priority_exponent": options.alpha}
        if options.sequence_length:
            given |= {"sample_sequence_length": options.sequence_length, "period": 1, "max_size": options.capacity}
            given |= {"add_batch_size": options.n_envs, "min_length_time_axis": 1}
            buffer = flashbax.make_prioritised_trajectory_buffer(**given)
        else:
            given |= {"max_length": options.capacity, "min_length": 1, "add_batches": True}
            buffer = flashbax.make_prioritised_item_buffer(**given)
        self.init = buffer.init
        self.add = jax.jit(buffer.add, donate_argnums=0)
        self.can_sample = jax.jit(buffer.can_sample)
        self.sample = jax.jit(buffer.sample)
        self.set_priorities = jax.jit(buffer.set_priorities, donate_argnums=0)


_functions = functools.cache(Functions)


class FlashbaxBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import jax

        if options.n_step > 1 or options.frame_stack > 1:
            raise NotClaimed("a learner forms returns and stacks from trajectories")
        if options.goals:
            raise NotClaimed("no hindsight")
        if options.beta_steps:
            raise NotClaimed("a learner computes weights from probabilities")
        if not options.replacement or options.stratified is False:
            raise NotClaimed("draws are stratified, with replacement")
        if options.batch_size > options.capacity:
            raise NotClaimed("a batch is at most as large as the buffer")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller resets")
        self.options = options
        self.jax = jax
        self.can_sample = False
        self.functions = _functions(dataclasses.replace(options, seed=None))
        frame = jax.numpy.zeros(options.shape, options.dtype)
        flag, zero = jax.numpy.zeros((), bool), jax.numpy.zeros((), jax.numpy.float32)
        action = jax.numpy.zeros((), jax.numpy.int32)
        self.state = self.functions.init(dict(zip(_COLUMNS, (frame, action, zero, flag, flag, frame), strict=True)))
        self.key = jax.random.PRNGKey(options.seed if options.seed is not None else np.random.randint(1 << 30))

    def add(self, step: Step) -> Any:
        rows = {name: self.jax.numpy.asarray(getattr(step, name)) for name in _COLUMNS}
        rows["action"] = rows["action"].astype("int32")
        if self.options.sequence_length:
            rows = {name: array[:, None] for name, array in rows.items()}  # [environment, time]
        first = int(self.state.current_index)
        self.state = self.functions.add(self.state, rows)
        index = (first + np.arange(self.options.n_envs)) % self.options.capacity
        if step.priority is not None:
            if self.options.sequence_length:
                raise NotClaimed("steps of a trajectory have no priorities of their own")
            self.update(index, step.priority)
        return index

    def sample(self) -> Batch:
        if not self.can_sample:
            self.can_sample = bool(self.functions.can_sample(self.state))
            if not self.can_sample:
                raise ValueError("can_sample() is False")
        self.key, used = self.jax.random.split(self.key)
        drawn = self.functions.sample(self.state, used)
        rows = self.jax.tree.map(np.asarray, drawn.experience)
        probabilities = np.asarray(drawn.probabilities)
        weights = (1 / probabilities) ** self.options.beta  # as its examples of learners do
        return Batch(
            observation=rows["observation"],
            action=rows["action"],
            reward=rows["reward"],
            next_observation=rows["next_observation"],
            discount=self.options.gamma * (1.0 - rows["terminated"]),
            weights=weights / weights.max(),
            handle=np.asarray(drawn.indices),
        )

    def update(self, handle: Any, priorities: Array) -> None:
        indices, given = self.jax.numpy.asarray(handle), self.jax.numpy.asarray(priorities, "float32")
        self.state = self.functions.set_priorities(self.state, indices, given)

    def set_all(self, priorities: Array) -> None:
        if self.options.sequence_length:
            raise NotClaimed("priorities are those of trajectories")
        oldest = int(self.state.current_index) if self.state.is_full else 0
        self.update((oldest + np.arange(len(priorities))) % self.options.capacity, priorities)

    def __len__(self) -> int:
        return self.options.capacity if self.state.is_full else int(self.state.current_index)

    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.jax.tree.leaves(self.state))


class Flashbax(Library):
    name = "Flashbax"
    package = module = "flashbax"
    documents = "https://github.com/instadeepai/flashbax"
    gpu = windows = macos = pure_python = True
    disclaims: ClassVar[dict[str, str]] = {
        "a_forked_child_has_its_own_copy": "JAX warns that os.fork() is incompatible with it",
        "integers_of_64_bits_are_stored_exactly": "JAX has 32 bits unless jax_enable_x64 is set",
        "sequences_do_not_join_episodes": "the user is expected to handle the case of final to first timestep",
    }

    def create(self, options: Options) -> Buffer:
        return FlashbaxBuffer(options)
