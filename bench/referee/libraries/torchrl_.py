"""TorchRL: TensorDictPrioritizedReplayBuffer with its transforms and samplers.

Each release of TorchRL ships priority trees for one version of torch; they are compiled for the one installed.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, CannotTry, Library, NotClaimed, Options, Step, goal_reward


@functools.cache
def _build_trees() -> None:
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import torchrl_extension

    try:
        torchrl_extension.build()
    except Exception as error:
        raise CannotTry("its priority trees do not load with this torch, and cannot be compiled here") from error


class TorchRLBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        _build_trees()
        import tensordict
        import torch
        from torchrl import data
        from torchrl.data.replay_buffers import scheduler
        from torchrl.envs.transforms import MultiStepTransform

        if not options.replacement or options.stratified:
            raise NotClaimed("prioritized draws are independent, with replacement")
        if options.autoreset != "disabled":
            raise NotClaimed("its environments reset")
        if options.frame_stack > 1:
            raise NotClaimed("CatFrames stacks what a uniform sampler draws; there is none with priorities")
        self.options = options
        self.torch, self.tensordict = torch, tensordict.TensorDict
        law: dict[str, Any] = {"alpha": options.alpha, "beta": options.beta}
        size = options.capacity
        self.in_time = options.n_envs > 1 and (options.n_step > 1 or options.sequence_length > 0)
        given: dict[str, Any] = {"storage": data.LazyTensorStorage(size, ndim=2 if self.in_time else 1)}
        if options.n_step > 1:
            given["transform"] = MultiStepTransform(options.n_step, options.gamma)
        if options.sequence_length:
            sampler = data.PrioritizedSliceSampler(size, **law, slice_len=options.sequence_length)
            rows = options.batch_size * options.sequence_length
            self.buffer: Any = data.TensorDictReplayBuffer(sampler=sampler, batch_size=rows, **given)
        elif options.goals:
            given |= {"batch_size": options.batch_size, "sampler": data.PrioritizedSampler(size, **law)}
            self.buffer = data.HERReplayBuffer(self.reward, strategy=options.goals, **given)
        else:
            self.buffer = data.TensorDictPrioritizedReplayBuffer(batch_size=options.batch_size, **law, **given)
        if options.seed is not None:
            self.buffer.set_rng(torch.Generator().manual_seed(options.seed))
        self.schedule = None
        if options.beta_steps:
            self.schedule = scheduler.LinearScheduler(self.buffer, "beta", 1.0, options.beta_steps)

    def reward(self, rows: Any) -> Any:
        achieved, goal = rows["next", "achieved_goal"].numpy(), rows["desired_goal"].numpy()
        return self.torch.as_tensor(goal_reward(achieved, goal)).unsqueeze(-1)

    def rows(self, steps: list[Step]) -> Any:
        """Steps as environments and collectors of TorchRL return them: [time], or [environment, time]."""

        def column(name: str) -> Any:
            values = [self.torch.as_tensor(np.asarray(getattr(step, name))) for step in steps]
            return self.torch.stack(values, 1) if self.in_time else self.torch.cat(values)

        terminated, truncated = column("terminated").unsqueeze(-1), column("truncated").unsqueeze(-1)
        following = {
            "observation": column("next_observation"),
            "reward": column("reward").unsqueeze(-1),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
        }
        action = column("action")
        fields = {"observation": column("observation"), "action": action, "next": following}
        if self.options.goals:
            fields |= {"achieved_goal": fields["observation"], "desired_goal": column("goal")}
            following |= {"achieved_goal": following["observation"], "desired_goal": column("goal")}
        return self.tensordict(fields, action.shape)

    def add(self, step: Step) -> Any:
        index = self.buffer.extend(self.rows([step]))
        if step.priority is not None and len(index):
            self.update(index, step.priority)
        return index

    def extend(self, steps: list[Step]) -> None:
        if any(step.priority is not None for step in steps):
            super().extend(steps)
        else:
            self.buffer.extend(self.rows(steps))

    def sample(self) -> Batch:
        drawn = self.buffer.sample()
        if self.schedule is not None:
            self.schedule.step()
        following = drawn["next"]
        steps = drawn["steps_to_next_obs"] if self.options.n_step > 1 else 1
        discount = self.options.gamma**steps * ~following["terminated"].squeeze(-1)
        arrays = {
            "observation": drawn["observation"],
            "action": drawn["action"],
            "reward": following["reward"].squeeze(-1),
            "next_observation": following["observation"],
            "discount": discount,
            "weights": drawn["priority_weight"],
            "handle": drawn["index"],
        }
        if self.options.goals:
            arrays["goal"] = drawn["desired_goal"]
        if self.options.sequence_length:
            arrays = {name: array.unflatten(0, (-1, self.options.sequence_length)) for name, array in arrays.items()}
            arrays |= {name: arrays[name][:, 0] for name in ("weights", "handle")}  # slices start by priority
        return Batch(**{name: array.numpy() for name, array in arrays.items()})

    def update(self, handle: Any, priorities: Array) -> None:
        self.buffer.update_priority(
            self.torch.as_tensor(handle), self.torch.as_tensor(priorities, dtype=self.torch.float32)
        )

    def set_all(self, priorities: Array) -> None:
        oldest = self.buffer.write_count % self.options.capacity if len(self) == self.options.capacity else 0
        self.update((oldest + np.arange(len(priorities))) % self.options.capacity, priorities)

    def __len__(self) -> int:
        return len(self.buffer)

    def save(self, path: str) -> None:
        self.buffer.dumps(path)

    def load(self, path: str) -> None:
        self.buffer.loads(path)

    def nbytes(self) -> int:
        return int(self.buffer[:].bytes())


class TorchRL(Library):
    threads = True
    name = "TorchRL"
    package = module = "torchrl"
    documents = "https://docs.pytorch.org/rl/stable/reference/data_replaybuffers.html"
    gpu = windows = macos = True
    epsilon = 1e-8  # its default; with 0, one priority of 0 makes every sample() an error

    def create(self, options: Options) -> Buffer:
        return TorchRLBuffer(options)
