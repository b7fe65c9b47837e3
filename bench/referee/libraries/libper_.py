"""libper: per.ReplayBuffer, as in its README and its list of options."""

from __future__ import annotations

from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, Options, Step, goal_reward

_SCHEMES = {None: "stratified", True: "stratified", False: "independent"}


class LibperBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import per

        self.options = options
        given: dict[str, Any] = {
            "n_envs": options.n_envs,
            "n_step": options.n_step,
            "frame_stack": options.frame_stack,
            "sequence_length": options.sequence_length or None,
        }
        # With its own next observation every row is a transition. Frames are stored once for all their stacks, and
        # rows are then also needed for final observations.
        shares = options.frame_stack > 1
        rows = per.ReplayBuffer.capacity_for(options.capacity, 1, **given) if shares else options.capacity
        fields = {"observation": per.Field(options.shape, options.dtype), "action": per.Field((), "int64")}
        self.hindsight = None
        if options.goals:
            fields["goal"] = per.Field(options.shape, options.dtype)
            self.hindsight = per.Hindsight("observation", "goal", goal_reward, strategy=options.goals)
        self.buffer: Any = per.ReplayBuffer(
            rows,
            fields,
            gamma=options.gamma,
            alpha=options.alpha,
            beta=options.beta,
            beta_steps=options.beta_steps,
            scheme=_SCHEMES[options.stratified] if options.replacement else "without_replacement",
            autoreset=options.autoreset,
            seed=options.seed or 0,
            store_next_observation=not shares,
            **given,
        )

    def add(self, step: Step) -> Any:
        goal = {"goal": step.goal} if self.options.goals else {}
        return self.buffer.add(
            observation=step.observation,
            action=step.action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            next_observation=step.next_observation,
            priorities=step.priority,
            info=step.info or None,
            **goal,
        )

    def extend(self, steps: list[Step]) -> None:
        if self.options.goals or any(step.info or step.priority is not None for step in steps):
            super().extend(steps)
            return
        names = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
        self.buffer.extend(**{name: np.stack([getattr(step, name) for step in steps]) for name in names})

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size, hindsight=self.hindsight)
        observation, mask, length = drawn.observation, None, self.options.sequence_length
        if length:  # observations have n_step more: step t bootstraps from observation t + n_steps[t]
            mask = drawn.mask
            next_steps = np.arange(length) + drawn.n_steps
            next_observation = observation[np.arange(len(observation))[:, None], next_steps]
            observation = observation[:, :length]
        else:
            next_observation = drawn.next_observation
        return Batch(
            observation=observation,
            action=drawn.action,
            reward=drawn.reward,
            next_observation=next_observation,
            discount=drawn.discount,
            weights=drawn.weights,
            handle=drawn.ids,
            mask=mask,
            goal=drawn.goal if self.options.goals else None,
        )

    def update(self, handle: Any, priorities: Array) -> None:
        self.buffer.update_priorities(handle, priorities=priorities)

    def set_all(self, priorities: Array) -> None:
        self.update(np.sort(self.buffer.live_ids()), priorities)

    def __len__(self) -> int:
        return len(self.buffer)

    def nbytes(self) -> int:
        return int(self.buffer.stats().memory_bytes)

    def save(self, path: str) -> None:
        self.buffer.save(path)

    def load(self, path: str) -> None:
        self.buffer = type(self.buffer).load(path)


class Libper(Library):
    threads = atomic_saves = True
    name = package = "libper"
    module = "per"
    documents = "options.md"
    gpu = True

    def create(self, options: Options) -> Buffer:
        return LibperBuffer(options)
