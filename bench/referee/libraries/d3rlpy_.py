"""d3rlpy: ReplayBuffer over a FIFOBuffer, uniform, as its documents on online training show it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from contract import Batch, Buffer, Library, NotClaimed, Options, Step


class D3rlpyBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        from d3rlpy import dataset

        if options.seed is not None:
            raise NotClaimed("draws use NumPy's global generator; no seed of a buffer")
        if options.stratified or not options.replacement:
            raise NotClaimed("draws are uniform, with replacement")
        if options.n_envs > 1:
            raise NotClaimed("one environment a buffer")
        if options.n_step > 1 and options.frame_stack > 1:
            raise NotClaimed("one transition picker a buffer: n-step returns or stacks")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller resets")
        self.options = options
        self.dataset = dataset
        self.buffer = dataset.ReplayBuffer(dataset.FIFOBuffer(options.capacity), **self.given())

    def given(self) -> dict[str, Any]:
        """Arguments of ReplayBuffer other than the storage."""
        from d3rlpy.constants import ActionSpace

        options, dataset = self.options, self.dataset
        picker = dataset.BasicTransitionPicker()
        if options.n_step > 1:
            picker = dataset.MultiStepTransitionPicker(options.n_step, options.gamma)
        if options.frame_stack > 1:
            picker = dataset.FrameStackTransitionPicker(options.frame_stack)
        return {
            "transition_picker": picker,
            "observation_signature": dataset.Signature([np.dtype(options.dtype)], [options.shape]),
            "action_signature": dataset.Signature([np.dtype(np.int64)], [(1,)]),
            "reward_signature": dataset.Signature([np.dtype(np.float32)], [(1,)]),
            "action_space": ActionSpace.DISCRETE,
            "action_size": 4,
        }

    def add(self, step: Step) -> None:
        if step.priority is not None:
            raise NotClaimed("no priorities")
        self.buffer.append(step.observation[0], int(step.action[0]), float(step.reward[0]))
        if step.terminated[0] or step.truncated[0]:
            self.buffer.clip_episode(bool(step.terminated[0]))

    def sample(self) -> Batch:
        options = self.options
        if options.sequence_length:
            drawn = self.buffer.sample_trajectory_batch(options.batch_size, options.sequence_length)
            return Batch(
                observation=drawn.observations,
                action=drawn.actions[..., 0],
                reward=drawn.rewards[..., 0],
                next_observation=None,
                discount=(1 - drawn.terminals[..., 0]) * options.gamma,
                weights=None,
                handle=None,
                mask=drawn.masks > 0,
            )
        drawn = self.buffer.sample_transition_batch(options.batch_size)
        stack = (options.frame_stack,) if options.frame_stack > 1 else ()  # it joins stacks along the channels
        return Batch(
            observation=drawn.observations.reshape(-1, *stack, *options.shape),
            action=drawn.actions[:, 0],
            reward=drawn.rewards[:, 0],
            next_observation=drawn.next_observations.reshape(-1, *stack, *options.shape),
            discount=(1 - drawn.terminals[:, 0]) * options.gamma ** drawn.intervals[:, 0],
            weights=None,
            handle=None,
        )

    def __len__(self) -> int:
        return int(self.buffer.transition_count)

    def save(self, path: str) -> None:
        with open(path, "w+b") as file:
            self.buffer.dump(file)

    def load(self, path: str) -> None:
        storage = self.dataset.FIFOBuffer(self.options.capacity)
        with open(path, "rb") as file:
            self.buffer = self.dataset.ReplayBuffer.load(file, storage)

    def nbytes(self) -> int:
        rows = (array for e in self.buffer.episodes for array in (e.observations, e.actions, e.rewards))
        return sum(array.nbytes for array in rows)


class D3rlpy(Library):
    holds_back = True
    name = "d3rlpy"
    package = module = "d3rlpy"
    documents = "https://d3rlpy.readthedocs.io/en/latest/references/dataset.html"
    disclaims: ClassVar[dict[str, str]] = {
        "final_observations_without_autoreset": "append() takes no final observation: the last step of a truncated "
        "episode is not a transition",
        "integers_of_64_bits_are_stored_exactly": "batches are of float32, as the types of TransitionMiniBatch say",
        "a_kill_during_a_save_leaves_a_whole_file": "dump() only: the caller opens the file",
    }
    windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return D3rlpyBuffer(options)
