"""Dopamine: ReplayBuffer of its JAX agents with PrioritizedSamplingDistribution, as its Rainbow agent uses them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step


class DopamineBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        from dopamine.jax.replay_memory import accumulator, elements, replay_buffer, samplers

        if options.beta_steps:
            raise NotClaimed("the agent forms weights, with a fixed exponent")
        if not options.replacement or options.stratified:
            raise NotClaimed("draws are independent, with replacement")
        if options.n_envs > 1:
            raise NotClaimed("one environment a buffer")
        if options.sequence_length:
            raise NotClaimed("no sequences")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller resets")
        self.options = options
        self.element = elements.TransitionElement
        self.distribution = samplers.PrioritizedSamplingDistribution(
            options.seed, priority_exponent=options.alpha, max_capacity=options.capacity
        )
        self.buffer = replay_buffer.ReplayBuffer(
            accumulator.TransitionAccumulator(options.frame_stack, options.n_step, options.gamma),
            self.distribution,
            batch_size=options.batch_size,
            max_capacity=options.capacity,
        )

    def add(self, step: Step) -> None:
        """A transition has the flag of the step of its next state: so the final observation is a step, too."""
        self.append(step.observation[0], step)
        if step.terminated[0] or step.truncated[0]:
            assert step.next_observation is not None
            self.append(step.next_observation[0], step, bool(step.terminated[0]), True)

    def append(self, frame: Array, step: Step, terminal: bool = False, ended: bool = False) -> None:
        reward = 0.0 if ended else float(step.reward[0])
        priority = self.distribution._sum_tree.max_recorded_priority  # as DQNAgent._store_transition() has it
        if step.priority is not None:
            priority = float(step.priority[0])
        self.buffer.add(self.element(frame, int(step.action[0]), reward, terminal, ended), priority=priority)

    def sample(self) -> Batch:
        options = self.options
        drawn, found = self.buffer.sample(with_sample_metadata=True)
        frames = [np.moveaxis(np.asarray(stack), -1, 1) for stack in (drawn.state, drawn.next_state)]
        if options.frame_stack == 1:
            frames = [stack[:, 0] for stack in frames]
        weights = found.probabilities**-options.beta  # the agent forms them from the returned probabilities
        return Batch(
            observation=frames[0],
            action=np.asarray(drawn.action),
            reward=np.asarray(drawn.reward),
            next_observation=frames[1],
            discount=(1 - np.asarray(drawn.is_terminal, np.float32)) * options.gamma**options.n_step,
            weights=weights / weights.max(),
            handle=found.keys,
        )

    def update(self, handle: Any, priorities: Array) -> None:
        self.buffer.update(np.asarray(handle), priorities=np.asarray(priorities))

    def set_all(self, priorities: Array) -> None:
        first = self.buffer.add_count - len(priorities)
        self.update(first + np.arange(len(priorities)), priorities)

    def __len__(self) -> int:
        return int(self.distribution.size)

    def save(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.buffer.save(path, 0)

    def load(self, path: str) -> None:
        self.buffer.load(path, 0)


class Dopamine(Library):
    holds_back = True
    name = "Dopamine"
    package = "dopamine-rl"
    module = "dopamine"
    documents = "https://google.github.io/dopamine/docs/"
    windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return DopamineBuffer(options)
