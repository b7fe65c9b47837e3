"""LeRobot: the ReplayBuffer of lerobot.rl, uniform, as its learner uses it."""

from __future__ import annotations

import numpy as np
from contract import Batch, Buffer, Library, NotClaimed, Options, Step


class LeRobotBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import torch
        from lerobot.rl.buffer import ReplayBuffer

        if options.seed is not None:
            raise NotClaimed("draws use torch's global generator; no seed of a buffer")
        if options.stratified or not options.replacement:
            raise NotClaimed("draws are uniform, with replacement")
        if options.n_step > 1 or options.frame_stack > 1 or options.sequence_length:
            raise NotClaimed("single transitions only")
        if options.n_envs > 1:
            raise NotClaimed("one environment a buffer")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller resets")
        self.options = options
        self.torch = torch
        self.key = "observation.state"
        self.buffer = ReplayBuffer(
            options.capacity, device="cpu", state_keys=[self.key], storage_device="cpu", use_drq=False
        )

    def add(self, step: Step) -> None:
        if step.priority is not None:
            raise NotClaimed("no priorities")
        self.buffer.add(
            state={self.key: self.torch.as_tensor(step.observation)},
            action=self.torch.as_tensor(step.action),
            reward=float(step.reward[0]),
            next_state={self.key: self.torch.as_tensor(step.next_observation)},
            done=bool(step.terminated[0]),
            truncated=bool(step.truncated[0]),
        )

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size)
        return Batch(
            observation=drawn["state"][self.key].numpy(),
            action=drawn["action"].numpy(),
            reward=drawn["reward"].numpy(),
            next_observation=drawn["next_state"][self.key].numpy(),
            discount=(1 - drawn["done"].numpy()) * np.float32(self.options.gamma),
            weights=None,
            handle=None,
        )

    def __len__(self) -> int:
        return len(self.buffer)

    def nbytes(self) -> int:
        buffer = self.buffer
        frames = [*buffer.states.values(), *buffer.next_states.values()]
        return sum(tensor.nbytes for tensor in [*frames, buffer.actions, buffer.rewards, buffer.dones])


class LeRobot(Library):
    name = "LeRobot"
    package = "lerobot"
    module = "lerobot.rl.buffer"
    documents = "https://huggingface.co/docs/lerobot/hilserl"
    gpu = windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return LeRobotBuffer(options)
