"""AgileRL: PrioritizedReplayBuffer with MultiStepReplayBuffer beside it, as its train_off_policy() uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step


class AgileRLBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import torch
        from agilerl.components.data import Transition
        from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer

        if options.beta_steps:
            raise NotClaimed("beta is an argument of sample(); there is no schedule")
        if options.seed is not None:
            raise NotClaimed("draws use torch's global generator; no seed of a buffer")
        if not options.replacement or options.stratified is False:
            raise NotClaimed("draws of the prioritized buffer are stratified, with replacement")
        if options.sequence_length or options.frame_stack > 1:
            raise NotClaimed("transitions only")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller passes final observations")
        self.options = options
        self.torch = torch
        self.transition = Transition
        self.buffer = PrioritizedReplayBuffer(options.capacity, alpha=options.alpha)
        self.windows: Any = None
        if options.n_step > 1:
            self.windows = MultiStepReplayBuffer(options.capacity, n_step=options.n_step, gamma=options.gamma)

    def add(self, step: Step) -> None:
        self.store([step])

    def extend(self, steps: list[Step]) -> None:
        """The prioritized buffer takes several steps at once; the windows take one of each environment."""
        most = 1 if self.windows is not None else self.options.capacity // self.options.n_envs
        for first in range(0, len(steps), most):
            self.store(steps[first : first + most])

    def store(self, steps: list[Step]) -> None:
        if any(step.priority is not None for step in steps):
            raise NotClaimed("new transitions get the largest priority")
        row = self.transition(
            obs=self.torch.as_tensor(np.concatenate([step.observation for step in steps])),
            action=np.concatenate([step.action for step in steps]),
            reward=np.concatenate([step.reward for step in steps]),
            next_obs=self.torch.as_tensor(np.concatenate([step.next_observation for step in steps])),
            done=np.concatenate([step.terminated for step in steps]),  # train_off_policy() passes the first flag
        ).to_tensordict()
        row.batch_size = [self.options.n_envs * len(steps)]
        if self.windows is not None:
            row = self.windows.add(row)  # the step that leaves the window, if one does
        if row is not None:
            self.buffer.add(row)

    def sample(self) -> Batch:
        options = self.options
        drawn = self.buffer.sample(options.batch_size, beta=options.beta)
        rows = drawn if self.windows is None else self.windows.sample_from_indices(drawn["idxs"][:, 0])
        return Batch(
            observation=rows["obs"].numpy(),
            action=rows["action"].numpy()[:, 0],
            reward=rows["reward"].numpy()[:, 0],
            next_observation=rows["next_obs"].numpy(),
            discount=(1 - rows["done"].numpy()[:, 0]) * options.gamma**options.n_step,  # as RainbowDQN.learn() has it
            weights=drawn["weights"].numpy()[:, 0],
            handle=drawn["idxs"].numpy()[:, 0],
        )

    def update(self, handle: Any, priorities: Array) -> None:
        self.buffer.update_priorities(np.asarray(handle), np.asarray(priorities))

    def set_all(self, priorities: Array) -> None:
        first = self.buffer.counter - len(priorities)
        self.update((first + np.arange(len(priorities))) % self.options.capacity, priorities)

    def __len__(self) -> int:
        return len(self.buffer)

    def nbytes(self) -> int:
        storage = self.buffer.storage
        return 0 if storage is None else sum(tensor.nbytes for tensor in storage.values())


class AgileRL(Library):
    name = "AgileRL"
    package = module = "agilerl"
    documents = "https://docs.agilerl.com/en/latest/api/components/replay_buffer.html"
    epsilon = 1e-5  # smaller priorities are raised to it
    windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return AgileRLBuffer(options)
