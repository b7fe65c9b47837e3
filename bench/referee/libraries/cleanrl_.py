"""CleanRL: PrioritizedReplayBuffer of cleanrl_utils.buffers, a copy of stable-baselines3's with priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step


class CleanRLBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import gym
        from cleanrl_utils.buffers import PrioritizedReplayBuffer

        if options.beta_steps:
            raise NotClaimed("beta is an argument of sample(); there is no schedule")
        if options.seed is not None:
            raise NotClaimed("draws use NumPy's global generator; no seed of a buffer")
        if not options.replacement or options.stratified:
            raise NotClaimed("draws are independent, with replacement")
        if options.n_envs > 1:
            raise NotClaimed("one environment a prioritized buffer")
        if options.n_step > 1 or options.sequence_length or options.frame_stack > 1:
            raise NotClaimed("single transitions only")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller passes final observations")
        self.options = options
        information = np.iinfo if np.issubdtype(options.dtype, np.integer) else np.finfo
        limits = information(np.dtype(options.dtype))
        frames = gym.spaces.Box(limits.min, limits.max, options.shape, np.dtype(options.dtype))
        self.buffer = PrioritizedReplayBuffer(options.capacity, options.alpha, frames, gym.spaces.Discrete(4))
        self.added = 0

    def add(self, step: Step) -> None:
        if step.priority is not None:
            raise NotClaimed("new transitions get the largest priority")
        self.buffer.add(step.observation, step.next_observation, step.action, step.reward, step.terminated)
        self.added += 1

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size, beta=self.options.beta)
        return Batch(
            observation=drawn.observations.numpy(),
            action=drawn.actions.numpy()[:, 0],
            reward=drawn.rewards.numpy()[:, 0],
            next_observation=drawn.next_observations.numpy(),
            discount=(1 - drawn.dones.numpy()[:, 0]) * self.options.gamma,
            weights=drawn.weights,
            handle=drawn.indices,
        )

    def update(self, handle: Any, priorities: Array) -> None:
        if (np.asarray(priorities) == 0).any():
            raise NotClaimed("priorities must be positive")
        self.buffer.update_weights(np.asarray(handle), np.asarray(priorities))

    def set_all(self, priorities: Array) -> None:
        first = self.added - len(priorities)
        self.update((first + np.arange(len(priorities))) % self.options.capacity, priorities)

    def __len__(self) -> int:
        return int(self.buffer.size())

    def nbytes(self) -> int:
        arrays = (value for value in vars(self.buffer).values() if isinstance(value, np.ndarray))
        return sum(array.nbytes for array in arrays)


class CleanRL(Library):
    name = "CleanRL"
    package = "cleanrl"
    module = "cleanrl_utils"
    documents = "https://docs.cleanrl.dev/"
    windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return CleanRLBuffer(options)
