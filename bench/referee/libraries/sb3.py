"""stable-baselines3: ReplayBuffer, NStepReplayBuffer and HerReplayBuffer, as its algorithms and documents use them."""

from __future__ import annotations

from typing import Any

import numpy as np
from contract import Batch, Buffer, Library, NotClaimed, Options, Step, goal_reward


class StableBaselines3Buffer(Buffer):
    def __init__(self, options: Options) -> None:
        import gymnasium
        from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

        if options.seed is not None:
            raise NotClaimed("draws use NumPy's global generator; no seed of a buffer")
        if options.stratified or not options.replacement:
            raise NotClaimed("draws are independent, with replacement")
        if options.sequence_length:
            raise NotClaimed("no sequences")
        if options.frame_stack > 1:
            raise NotClaimed("VecFrameStack forms stacks before the buffer, which stores them")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller passes final observations")
        self.options = options
        information = np.iinfo if np.issubdtype(options.dtype, np.integer) else np.finfo
        limits = information(np.dtype(options.dtype))
        frames = gymnasium.spaces.Box(limits.min, limits.max, options.shape, np.dtype(options.dtype))
        spaces = (frames, gymnasium.spaces.Discrete(4))
        given: dict[str, Any] = {"device": "cpu", "n_envs": options.n_envs}
        if options.n_step > 1:
            given |= {"n_steps": options.n_step, "gamma": options.gamma}
        kind = NStepReplayBuffer if options.n_step > 1 else ReplayBuffer
        self.buffer = kind(options.capacity, *spaces, **given)

    def add(self, step: Step) -> None:
        if step.priority is not None:
            raise NotClaimed("no priorities")
        done = step.terminated | step.truncated
        infos = [{"TimeLimit.truncated": bool(cut)} for cut in step.truncated & ~step.terminated]
        self.buffer.add(step.observation, step.next_observation, step.action, step.reward, done, infos)

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size)
        discount = self.options.gamma if drawn.discounts is None else drawn.discounts.numpy()[:, 0]
        return Batch(
            observation=drawn.observations.numpy(),
            action=drawn.actions.numpy()[:, 0],
            reward=drawn.rewards.numpy()[:, 0],
            next_observation=drawn.next_observations.numpy(),
            discount=(1 - drawn.dones.numpy()[:, 0]) * discount,
            weights=None,
            handle=None,
        )

    def __len__(self) -> int:
        return int(self.buffer.size()) * self.options.n_envs

    def save(self, path: str) -> None:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(path, self.buffer)

    def load(self, path: str) -> None:
        from stable_baselines3.common.save_util import load_from_pkl

        self.buffer = load_from_pkl(path)

    def nbytes(self) -> int:
        arrays = (value for value in vars(self.buffer).values() if isinstance(value, np.ndarray))
        return sum(array.nbytes for array in arrays)


class GoalEnv:
    """The part of a vector environment that HerReplayBuffer calls."""

    def env_method(self, name: str, achieved: Any, desired: Any, infos: Any, indices: Any) -> list[Any]:
        assert name == "compute_reward"
        return [goal_reward(achieved, desired)]


class HindsightBuffer(StableBaselines3Buffer):
    """HerReplayBuffer: four of five goals of a batch are replaced, as by default."""

    def __init__(self, options: Options) -> None:
        import gymnasium
        from stable_baselines3 import HerReplayBuffer

        if options.n_step > 1:
            raise NotClaimed("HerReplayBuffer has no n-step returns")
        super().__init__(options)
        frames = self.buffer.observation_space
        space = gymnasium.spaces.Dict({"observation": frames, "achieved_goal": frames, "desired_goal": frames})
        given: dict[str, Any] = {"device": "cpu", "n_envs": options.n_envs, "goal_selection_strategy": options.goals}
        self.buffer = HerReplayBuffer(options.capacity, space, gymnasium.spaces.Discrete(4), GoalEnv(), **given)

    def add(self, step: Step) -> None:
        done = step.terminated | step.truncated
        infos = [{"TimeLimit.truncated": bool(cut)} for cut in step.truncated & ~step.terminated]
        now, after = (
            {"observation": frame, "achieved_goal": frame, "desired_goal": step.goal}
            for frame in (step.observation, step.next_observation)
        )
        self.buffer.add(now, after, step.action, step.reward, done, infos)

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size)
        return Batch(
            observation=drawn.observations["observation"].numpy(),
            action=drawn.actions.numpy()[:, 0],
            reward=drawn.rewards.numpy()[:, 0],
            next_observation=drawn.next_observations["observation"].numpy(),
            discount=(1 - drawn.dones.numpy()[:, 0]) * self.options.gamma,
            weights=None,
            handle=None,
            goal=drawn.observations["desired_goal"].numpy(),
        )


class StableBaselines3(Library):
    name = "stable-baselines3"
    package = "stable_baselines3"
    module = "stable_baselines3"
    documents = "https://stable-baselines3.readthedocs.io/en/master/common/buffers.html"
    windows = macos = pure_python = True

    def create(self, options: Options) -> Buffer:
        return HindsightBuffer(options) if options.goals else StableBaselines3Buffer(options)
