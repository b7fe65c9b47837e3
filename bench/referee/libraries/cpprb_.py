"""cpprb: PrioritizedReplayBuffer and ReplayBuffer, as in its user guide."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step, goal_reward


class CpprbBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        import cpprb

        if options.beta_steps:
            raise NotClaimed("beta is an argument of sample(); there is no schedule")
        if options.seed is not None:
            raise NotClaimed("no seed")
        if options.sequence_length:
            raise NotClaimed("no sequences")
        if not options.replacement or options.stratified is False:
            raise NotClaimed("draws are stratified, with replacement")
        if options.n_envs > 1:
            raise NotClaimed("one environment a buffer")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller resets")
        self.options = options
        fields: dict[str, Any] = {
            "obs": {"shape": options.shape, "dtype": np.dtype(options.dtype)},
            "act": {"dtype": np.int64},
            "rew": {},
            "next_obs": {"shape": options.shape, "dtype": np.dtype(options.dtype)},
            "done": {},
        }
        # With check_for_update, updates of rows that were overwritten since the last sample() are ignored.
        given: dict[str, Any] = {"alpha": options.alpha, "eps": 0.0, "check_for_update": True}
        if options.n_step > 1:
            given["Nstep"] = {"size": options.n_step, "gamma": options.gamma, "rew": "rew", "next": "next_obs"}
        if options.frame_stack > 1:
            raise NotClaimed("stack_compress stores stacks that the caller forms")
        if options.goals:
            del fields["rew"]  # computed
            self.buffer: Any = cpprb.HindsightReplayBuffer(
                options.capacity,
                fields,
                max_episode_len=options.capacity,
                reward_func=lambda reached, action, goal: goal_reward(reached, goal)[:, None],
                strategy=options.goals,
                **given,
            )
        else:
            self.buffer = cpprb.PrioritizedReplayBuffer(options.capacity, fields, **given)

    def add(self, step: Step) -> Any:
        given = {
            "obs": step.observation[0],
            "act": step.action[0],
            "rew": step.reward[0],
            "next_obs": step.next_observation[0],
            "done": step.terminated[0],
        }
        if self.options.goals:
            del given["rew"]
        if step.priority is not None:
            given["priorities"] = step.priority[0]
        index = self.buffer.add(**given)
        if step.terminated[0] or step.truncated[0]:
            self.buffer.on_episode_end(*([step.goal[0]] if self.options.goals else []))
        return index

    def extend(self, steps: list[Step]) -> None:
        alone = self.options.n_step > 1 or self.options.goals or len(steps) > self.options.capacity
        if alone or any(step.priority is not None for step in steps):
            return super().extend(steps)
        self.buffer.add(
            obs=np.concatenate([step.observation for step in steps]),
            act=np.concatenate([step.action for step in steps]),
            rew=np.concatenate([step.reward for step in steps]),
            next_obs=np.concatenate([step.next_observation for step in steps]),
            done=np.concatenate([step.terminated for step in steps]),
        )

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size, beta=self.options.beta)
        return Batch(
            observation=drawn["obs"],
            action=drawn["act"][:, 0],
            reward=drawn["rew"][:, 0],
            next_observation=drawn["next_obs"],
            discount=(1 - drawn["done"][:, 0]) * self.options.gamma**self.options.n_step,
            weights=drawn["weights"],
            handle=drawn["indexes"],
            goal=drawn.get("goal"),
        )

    def update(self, handle: Any, priorities: Array) -> None:
        self.buffer.update_priorities(handle, priorities)

    def set_all(self, priorities: Array) -> None:
        self.buffer.sample(1)  # otherwise check_for_update ignores priorities of what came since the last one
        oldest = self.buffer.get_next_index() if len(self) == self.options.capacity else 0
        self.update((oldest + np.arange(len(priorities))) % self.options.capacity, priorities)

    def __len__(self) -> int:
        return int(self.buffer.get_stored_size())

    def save(self, path: str) -> None:
        self.buffer.save_transitions(path)

    def load(self, path: str) -> None:
        self.buffer.load_transitions(f"{path}.npz")


class Cpprb(Library):
    name = "cpprb"
    package = module = "cpprb"
    documents = "https://ymd_h.gitlab.io/cpprb/"
    windows = macos = True
    disclaims: ClassVar[dict[str, str]] = {
        "a_loaded_buffer_has_the_same_priorities": "saves and loads transitions, not the entire buffer",
    }

    def create(self, options: Options) -> Buffer:
        return CpprbBuffer(options)
