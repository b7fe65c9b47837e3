"""tianshou: its prioritized buffers, with n-step returns as its algorithms form them."""

from __future__ import annotations

from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step, goal_reward


class TianshouBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        from tianshou import data

        if options.seed is not None:
            raise NotClaimed("priorities draw from numpy's global random state")
        if options.beta_steps:
            raise NotClaimed("the caller sets beta with set_beta()")
        if options.alpha <= 0:
            raise NotClaimed("alpha must be positive")
        if options.sequence_length:
            raise NotClaimed("no sequences")
        if not options.replacement or options.stratified:
            raise NotClaimed("draws are independent, with replacement")
        if options.autoreset != "disabled":
            raise NotClaimed("its collector resets")
        self.options = options
        self.data = data
        given: dict[str, Any] = {"alpha": options.alpha, "beta": options.beta, "stack_num": options.frame_stack}
        if options.frame_stack > 1:  # as in its examples of stacks: next ones are those of the next step
            given |= {"ignore_obs_next": True, "sample_avail": True}
        if options.goals:
            if options.goals != "future" or options.n_envs > 1:
                raise NotClaimed("HERReplayBuffer has the strategy future")
            self.buffer: Any = data.HERReplayBuffer(options.capacity, goal_reward, horizon=options.capacity)
        elif options.n_envs > 1:
            self.buffer = data.PrioritizedVectorReplayBuffer(options.capacity, options.n_envs, **given)
        else:
            self.buffer = data.PrioritizedReplayBuffer(options.capacity, **given)

    def add(self, step: Step) -> Any:
        observation, following = step.observation, step.next_observation
        if self.options.goals:
            observation, following = (
                self.data.Batch(observation=state, achieved_goal=state, desired_goal=step.goal)
                for state in (observation, following)
            )
        given = self.data.Batch(
            obs=observation,
            act=step.action,
            rew=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            obs_next=following,
        )
        indices = self.buffer.add(given, np.arange(self.options.n_envs))[0]
        if step.priority is not None:
            self.buffer.update_weight(indices, step.priority)
        return indices

    def sample(self) -> Batch:
        drawn, indices = self.buffer.sample(self.options.batch_size)
        goals = self.options.goals
        weights = None if goals else drawn.weight
        reward, discount, last = self.returns(drawn, indices)
        following = self.buffer[last].obs_next
        return Batch(
            observation=drawn.obs.observation if goals else drawn.obs,
            action=drawn.act,
            reward=reward,
            next_observation=following.observation if goals else following,
            discount=discount,
            weights=weights,
            handle=indices,
            goal=drawn.obs.desired_goal if goals else None,
        )

    def returns(self, drawn: Any, indices: Array) -> tuple[Array, Array, Array]:
        """The sum of rewards, the factor of the bootstrap value, and the index that it is computed at."""
        import torch
        from tianshou.algorithm import Algorithm

        asked = []

        def compute(value: float) -> Array:
            def target(_: Any, at: Array) -> Any:
                asked.append(at)
                return torch.full((len(at), 1), value)

            n_step = {"gamma": self.options.gamma, "n_step": self.options.n_step}
            batch = Algorithm.compute_nstep_return(drawn, self.buffer, indices, target, **n_step)
            return batch.returns.numpy()[:, 0]

        reward = compute(0.0)
        return reward, compute(1.0) - reward, asked[0]

    def update(self, handle: Any, priorities: Array) -> None:
        if self.options.goals:
            raise NotClaimed("hindsight draws uniformly")
        self.buffer.update_weight(handle, priorities)

    def set_all(self, priorities: Array) -> None:
        if self.options.n_envs > 1:
            raise NotClaimed("each environment has a ring of its own")
        self.update(self.buffer.sample_indices(0), priorities)  # 0: all of them, oldest first

    def __len__(self) -> int:
        return len(self.buffer)

    def save(self, path: str) -> None:
        self.buffer.save_hdf5(path)

    def load(self, path: str) -> None:
        self.buffer = type(self.buffer).load_hdf5(path)


class Tianshou(Library):
    name = package = module = "tianshou"
    documents = "https://tianshou.org/en/stable/"
    windows = macos = pure_python = True
    epsilon = float(np.finfo(np.float32).eps)

    def create(self, options: Options) -> Buffer:
        return TianshouBuffer(options)
