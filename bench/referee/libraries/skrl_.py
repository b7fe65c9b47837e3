"""skrl: RandomMemory, uniform, as its agents use it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from contract import Batch, Buffer, Library, NotClaimed, Options, Step

NAMES = ["observations", "actions", "rewards", "next_observations", "terminated"]


class SkrlBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import torch
        from skrl.memories.torch import RandomMemory

        if options.seed is not None:
            raise NotClaimed("draws use torch's global generator; no seed of a memory")
        if options.stratified:
            raise NotClaimed("draws are uniform")
        if options.n_step > 1 or options.frame_stack > 1:
            raise NotClaimed("no n-step returns, no stacks")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller passes final observations")
        self.options = options
        self.torch = torch
        rows = options.capacity // options.n_envs
        given: dict[str, Any] = {"device": "cpu", "replacement": options.replacement}
        self.memory = RandomMemory(memory_size=rows, num_envs=options.n_envs, **given)
        frame = {"size": math.prod(options.shape), "dtype": getattr(torch, options.dtype)}
        for name in NAMES:
            self.memory.create_tensor(name=name, **(frame if name.endswith("observations") else self.scalar(name)))

    def scalar(self, name: str) -> dict[str, Any]:
        dtypes = {"actions": self.torch.int32, "rewards": self.torch.float32, "terminated": self.torch.bool}
        return {"size": 1, "dtype": dtypes[name]}

    def add(self, step: Step) -> None:
        if step.priority is not None:
            raise NotClaimed("no priorities")
        arrays = [step.observation, step.action, step.reward, step.next_observation, step.terminated]
        rows = [self.torch.as_tensor(np.asarray(array)).reshape(self.options.n_envs, -1) for array in arrays]
        self.memory.add_samples(**dict(zip(NAMES, rows, strict=True)))

    def sample(self) -> Batch:
        options = self.options
        length = max(options.sequence_length, 1)
        drawn = self.memory.sample(NAMES, batch_size=options.batch_size, sequence_length=length)[0]
        rows = {name: rows.numpy() for name, rows in zip(NAMES, drawn, strict=True)}
        lead = (-1, length) if options.sequence_length else (-1,)
        return Batch(
            observation=rows["observations"].reshape(*lead, *options.shape),
            action=rows["actions"].reshape(lead),
            reward=rows["rewards"].reshape(lead),
            next_observation=rows["next_observations"].reshape(*lead, *options.shape),
            discount=(~rows["terminated"]).reshape(lead) * options.gamma,
            weights=None,
            handle=None,
        )

    def __len__(self) -> int:
        return len(self.memory)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.memory.tensors.values())


class Skrl(Library):
    name = "skrl"
    package = module = "skrl"
    documents = "https://skrl.readthedocs.io/en/latest/api/memories/random.html"
    disclaims: ClassVar[dict[str, str]] = {
        "sequences_do_not_join_episodes": "its RNN models reset their state after a step that is terminated",
        "a_row_of_a_wrong_shape_is_an_error": "no check is performed for compatibility of the shapes",
    }
    gpu = windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return SkrlBuffer(options)
