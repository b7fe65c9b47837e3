"""Prioritized replay for stable-baselines3: buffers for its algorithms, and DQN, SAC, TD3 and DDPG that use them.

    from per.integrations.sb3 import DQN    # in place of: from stable_baselines3 import DQN

train() is unchanged. Algorithms compute their targets from the rewards of a batch. The buffers return rewards as a
tensor subclass that intercepts the losses computed from it (torch.Tensor.__torch_function__): it adds the weights to
the loss, and sets priorities by the TD errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers, type_aliases
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import per
from per.integrations._demonstrations import WithDemonstrations
from per.integrations._single_transitions import refuse_other_batches
from per.integrations._weighted_losses import WeightedRewards
from per.spaces import field_of, parts_of


class ReplayBufferSamples(type_aliases.ReplayBufferSamples):
    """SB3's samples, and the attributes weights float32[B, 1] and ids int64[B], for update_priorities()."""

    weights: torch.Tensor
    ids: np.ndarray[Any, np.dtype[np.int64]]


class DictReplayBufferSamples(type_aliases.DictReplayBufferSamples):
    """The same with Dict observations."""

    weights: torch.Tensor
    ids: np.ndarray[Any, np.dtype[np.int64]]


class _Dones:
    """Stands in for SB3's array, into which learn() writes that the last trajectory ended."""

    def __init__(self, replay: per.ReplayBuffer) -> None:
        self._replay = replay

    def __setitem__(self, position: Any, is_done: Any) -> None:
        if is_done:
            self._replay.cut()

    def __getitem__(self, position: Any) -> Any:
        raise per.Unsupported(f"dones[{position!r}] is read; {_NO_ARRAYS}")


# The arrays of SB3's buffers, by position.
_ARRAYS = ("observations", "next_observations", "actions", "rewards", "timeouts")
_NO_ARRAYS = "allowed, as rows have ids here: replay.get(replay.live_ids()), with its names"


class PrioritizedReplayBuffer(WithDemonstrations, buffers.ReplayBuffer):
    """A replay_buffer_class for any off-policy algorithm of stable-baselines3.

    This class is enough to prioritize algorithms whose critics learn by the mean mse_loss(), smooth_l1_loss() or
    huber_loss() of targets computed from `samples.rewards`; train() is unchanged. Other algorithms draw uniformly, with
    weights 1, unless they use `samples.weights` and update_priorities() themselves.

    Parameters
    ----------
    buffer_size : int
        Transitions of all environments. Each end of an episode takes the space of one more.
    observation_space, action_space : Any
        As in SB3.
    device : torch.device or str, default "auto"
        As in SB3. The buffer is in host memory, batches on the device.
    n_envs : int, default 1
        As in SB3.
    optimize_memory_usage : bool, default False
        Has no effect; next observations are always stored once, also with handle_timeout_termination.
    handle_timeout_termination : bool, default True
        As in SB3: whether info["TimeLimit.truncated"] is used.
    n_steps : int, default 1
        Steps of a return, as in SB3's NStepReplayBuffer. Dict observations are allowed.
    **options : Any
        Options of per.ReplayBuffer, such as gamma, alpha and beta, except those of sequences, n_step, frame_stack and
        arrays. The default seed comes from numpy's global generator, which set_random_seed() seeds.

    Notes
    -----
    The attribute `replay` is the libper buffer.
    """

    pos: int
    full: bool

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        **options: Any,
    ) -> None:
        refuse_other_batches(
            options,
            n_step="n_steps says how many steps a return has",
            frame_stack="VecFrameStack stacks frames",
            arrays="batches hold tensors",
        )
        per_env = max(buffer_size // n_envs, 1)
        buffers.BaseBuffer.__init__(self, per_env, observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        fields = {"action": field_of("action", self.action_dim, self._maybe_cast_dtype(action_space.dtype))}
        if isinstance(self.obs_shape, dict):
            parts = {key: (shape, observation_space[key].dtype) for key, shape in self.obs_shape.items()}
            for name, part in parts_of("observation", parts).items():
                fields[name] = field_of(name, *part)
        else:
            fields["observation"] = field_of("observation", self.obs_shape, observation_space.dtype)
        options = {"n_envs": n_envs, "n_step": n_steps, "seed": int(np.random.randint(2**31)), **options}
        capacity = per.ReplayBuffer.capacity_for(per_env * n_envs, fields=fields, **options)
        self.replay = per.ReplayBuffer(capacity, fields, **options)
        self.n_steps, self.gamma = n_steps, self.replay.gamma

    def __getattr__(self, name: str) -> Any:
        if name in _ARRAYS:
            raise AttributeError(f"{type(self).__name__} has no {name}; {_NO_ARRAYS}")
        raise AttributeError(f"{type(self).__name__} has no {name}")

    @property
    def dones(self) -> Any:
        return _Dones(self.replay)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> Any:
        """Adds one step of every environment, as SB3's buffer does. Returns the transitions' ids, int64[n_envs]."""
        timeouts = np.zeros(self.n_envs, bool)
        if self.handle_timeout_termination:
            timeouts[:] = [info.get("TimeLimit.truncated", False) for info in infos]
        ids = self.replay.add(
            observation=self._shaped(obs),
            next_observation=self._shaped(next_obs),
            action=action.reshape(self.n_envs, self.action_dim),
            reward=reward,
            terminated=np.logical_and(done, np.logical_not(timeouts)),
            truncated=timeouts,
        )
        self.pos = (self.pos + 1) % self.buffer_size
        self.full = self.full or self.pos == 0
        return ids

    def _shaped(self, observation: Any) -> Any:
        """Observations of all environments in the fields' shapes and dtypes: SB3's may lack axes of size 1."""
        if isinstance(self.obs_shape, dict):
            return {
                key: _cast(observation[key], self.observation_space[key], key).reshape(self.n_envs, *shape)
                for key, shape in self.obs_shape.items()
            }
        return _cast(observation, self.observation_space, "observation").reshape(self.n_envs, *self.obs_shape)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draws a prioritized batch. As in SB3, the last axis has the numbers of one transition."""
        batch = self._draw(batch_size)
        return self._samples(batch, batch.reward, env)

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> NoReturn:
        raise per.Unsupported(f"_get_samples() reads their arrays; {_NO_ARRAYS}, or sample()")

    def check_alike(self, other: Any, names: Sequence[str]) -> None:
        """Raises InvalidArgument unless these attributes of both buffers are equal."""
        for name in names:
            given, allowed = getattr(other, name), getattr(self, name)
            if given != allowed:
                raise per.InvalidArgument(f"{name} of the buffer is {given}; allowed: {allowed}")

    def take_over(self, theirs: buffers.ReplayBuffer) -> None:
        """Replaces all transitions by those of an SB3 buffer. All get the largest priority.

        Raises
        ------
        InvalidArgument
            The buffer has other spaces or another number of environments.
        """
        self.check_alike(theirs, ("observation_space", "action_space", "n_envs"))
        self.reset()
        n_rows = theirs.buffer_size if theirs.full else theirs.pos
        # With optimize_memory_usage the row at `pos` of a full buffer has the observation after the newest step.
        first = int(theirs.full and theirs.optimize_memory_usage)
        for i in (np.arange(first, n_rows) + (theirs.pos if theirs.full else 0)) % theirs.buffer_size:
            following = (i + 1) % theirs.buffer_size
            infos = theirs.infos[i] if getattr(theirs, "copy_info_dict", False) else [{}] * self.n_envs
            self.add(
                _row(theirs.observations, i),
                _row(theirs.observations, following)
                if theirs.optimize_memory_usage
                else _row(theirs.next_observations, i),
                theirs.actions[i],
                theirs.rewards[i],
                theirs.dones[i] != 0,
                [
                    {**info, "TimeLimit.truncated": bool(cut)}
                    for info, cut in zip(infos, theirs.timeouts[i], strict=True)
                ],
            )

    def _samples(self, batch: per.Batch, reward: Any, env: VecNormalize | None) -> Any:
        kind = DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples
        observations, next_observations = (
            self._tensors(self._normalize_obs(value, env)) for value in (batch.observation, batch.next_observation)
        )
        reward = reward.reshape(-1, 1)
        if env is not None:
            # Rewards are divided, and clipped if too large. A return is clipped by its mean reward, so it is the return
            # of normalized rewards unless one of these is clipped.
            sums = np.cumsum(self.gamma ** np.arange(self.n_steps, dtype=np.float32))[batch.n_steps - 1].reshape(-1, 1)
            reward = sums * self._normalize_reward(reward / sums, env)
        weights = self._tensors(batch.weights.reshape(-1, 1))
        samples = kind(
            observations,
            self._tensors(batch.action),
            next_observations,
            self._tensors(batch.terminated.astype(np.float32).reshape(-1, 1)),
            WeightedRewards.of(self._tensors(reward), weights, self, batch.ids),
            self._tensors(batch.gamma_m.reshape(-1, 1)) if self.n_steps > 1 else None,
        )
        samples.ids, samples.weights = batch.ids, weights
        return samples

    def _tensors(self, arrays: Any) -> Any:
        if isinstance(arrays, dict):
            return {key: self.to_torch(array, copy=False) for key, array in arrays.items()}
        return self.to_torch(arrays, copy=False)

    def size(self) -> int:
        """Mean number of transitions per environment that can be drawn."""
        return len(self.replay) // self.n_envs

    def reset(self) -> None:
        super().reset()
        self.replay.clear()


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, buffers.DictReplayBuffer):
    """PrioritizedReplayBuffer, which accepts Dict observations, for code that requires a DictReplayBuffer."""


class PrioritizedHerReplayBuffer(PrioritizedDictReplayBuffer, stable_baselines3.HerReplayBuffer):
    """Prioritized hindsight experience replay, with the arguments of SB3's HerReplayBuffer.

    Running episodes are drawn from as well; their goals come from the steps added so far. Each transition gets another
    goal with probability n_sampled_goal / (n_sampled_goal + 1).

    Parameters
    ----------
    env : VecEnv
        The training environment, whose compute_reward() computes rewards.
    n_sampled_goal : int, default 4
        As in SB3.
    goal_selection_strategy : Any, default "future"
        As in SB3.
    copy_info_dict : bool, default False
        Whether infos are stored, and passed to compute_reward(). Not with n_steps above 1.
    **options : Any
        Other arguments of PrioritizedReplayBuffer.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        *args: Any,
        n_sampled_goal: int = 4,
        goal_selection_strategy: Any = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ) -> None:
        PrioritizedReplayBuffer.__init__(self, buffer_size, observation_space, action_space, *args, **options)
        if copy_info_dict and self.n_steps > 1:
            raise per.Unsupported(f"copy_info_dict with n_steps {self.n_steps}; allowed: n_steps 1")
        self.env = env
        self.copy_info_dict = copy_info_dict
        self.infos: list[dict[str, Any]] = [{}] * self.replay.capacity if copy_info_dict else []
        self._hindsight = per.Hindsight(
            achieved="observation.achieved_goal",
            goal="observation.desired_goal",
            # A reward that needs an info is computed after the draw, when its transition is known.
            reward=self._unknown_rewards if copy_info_dict else self._rewards,
            strategy=getattr(goal_selection_strategy, "name", goal_selection_strategy).lower(),
            k=n_sampled_goal,
        )

    def _rewards(self, achieved: Any, goal: Any, infos: list[dict[str, Any]] | None = None) -> Any:
        assert self.env is not None, "set_env() must be called before rewards of other goals can be computed"
        infos = [{} for _ in goal] if infos is None else infos
        return self.env.env_method("compute_reward", achieved, goal, infos, indices=[0])[0]

    def _unknown_rewards(self, achieved: Any, goal: Any) -> Any:
        return np.full(len(goal), np.nan, np.float32)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> Any:
        ids = super().add(obs, next_obs, action, reward, done, infos)
        if self.copy_info_dict:
            for id, info in zip(ids, infos, strict=True):
                if id >= 0:  # not a step in which the environment reset
                    self.infos[id % len(self.infos)] = info
        return ids

    def _samples(self, batch: per.Batch, reward: Any, env: VecNormalize | None) -> Any:
        unknown = np.flatnonzero(np.isnan(reward)) if self.copy_info_dict else ()
        if len(unknown) > 0:
            infos = [self.infos[id % len(self.infos)] for id in batch.ids[unknown]]
            achieved, goal = batch.next_observation["achieved_goal"], batch.observation["desired_goal"]
            reward[unknown] = self._rewards(achieved[unknown], goal[unknown], infos)
        return super()._samples(batch, reward, env)

    def truncate_last_trajectory(self) -> None:
        """Ends the running episodes as truncated."""
        self.replay.cut()


def _cast(values: Any, space: spaces.Space[Any], name: str) -> Any:
    """An array of the space's dtype. Raises per.InvalidArgument if whole numbers would change."""
    given = np.asarray(values)
    with np.errstate(invalid="ignore"):  # for NaN, which is refused below
        cast = given.astype(space.dtype, copy=False)
    if cast is not given and cast.dtype.kind in "iu" and not np.array_equal(cast, given):
        numbers = f"numbers from {given.min()} to {given.max()}"
        least, largest = np.iinfo(cast.dtype).min, np.iinfo(cast.dtype).max
        raise per.InvalidArgument(f"{name} has {numbers}; allowed: whole ones of {least} .. {largest}, {cast.dtype}")
    return cast


def _row(arrays: Any, i: int) -> Any:
    return {key: array[i] for key, array in arrays.items()} if isinstance(arrays, dict) else arrays[i]


_OF_THEIRS = {
    buffers.ReplayBuffer: PrioritizedReplayBuffer,
    buffers.NStepReplayBuffer: PrioritizedReplayBuffer,
    buffers.DictReplayBuffer: PrioritizedDictReplayBuffer,
    stable_baselines3.HerReplayBuffer: PrioritizedHerReplayBuffer,
}


class _Prioritized:
    """An algorithm whose default replay_buffer_class is one of the above.

    load() also accepts models saved by SB3's own algorithm, and replaces their buffer class by libper's.
    load_replay_buffer() also accepts SB3's buffers, and copies their transitions.
    """

    def __init__(self, *args: Any, _init_setup_model: bool = True, **options: Any) -> None:
        # load() passes False, restores the saved attributes, and calls _setup_model(). The attribute is then True only
        # if libper's algorithm saved the model: the files of SB3's algorithms do not have it.
        self._has_chosen_buffer = _init_setup_model
        super().__init__(*args, _init_setup_model=_init_setup_model, **options)  # type: ignore[call-arg]

    def _setup_model(self: Any) -> None:
        if self.replay_buffer_class is None:
            has_parts = isinstance(self.observation_space, spaces.Dict)
            self.replay_buffer_class = PrioritizedDictReplayBuffer if has_parts else PrioritizedReplayBuffer
        elif not self._has_chosen_buffer:
            self.replay_buffer_class = _OF_THEIRS.get(self.replay_buffer_class, self.replay_buffer_class)
        self._has_chosen_buffer = True
        n_steps = self.n_steps
        if issubclass(self.replay_buffer_class, PrioritizedReplayBuffer):
            gamma = self.replay_buffer_kwargs.get("gamma", self.gamma)
            if gamma != self.gamma:
                raise per.InvalidArgument(f"gamma of replay_buffer_kwargs is {gamma}; the algorithm's is {self.gamma}")
            self.replay_buffer_kwargs = {"n_steps": n_steps, "gamma": self.gamma, **self.replay_buffer_kwargs}
            self.n_steps = 1  # otherwise SB3 warns that a given replay_buffer_class does not get n_steps
        super()._setup_model()  # type: ignore[misc]
        self.n_steps = n_steps

    def load_replay_buffer(self: Any, path: Any, truncate_last_traj: bool = True) -> None:
        """Loads a libper buffer, or the transitions of an SB3 buffer, which all get the largest priority.

        Raises
        ------
        InvalidArgument
            The buffer has other spaces, n_steps or gamma, or another number of environments; nothing is changed.
        """
        buffer = self.replay_buffer
        try:
            super().load_replay_buffer(path, truncate_last_traj)  # type: ignore[misc]
            loaded = self.replay_buffer
            if isinstance(buffer, PrioritizedReplayBuffer):
                if isinstance(loaded, PrioritizedReplayBuffer):
                    buffer.check_alike(loaded, ("observation_space", "action_space", "n_envs", "n_steps", "gamma"))
                else:
                    buffer.take_over(loaded)
                    self.replay_buffer = buffer
        except BaseException:
            self.replay_buffer = buffer
            raise


class DQN(_Prioritized, stable_baselines3.DQN):
    """stable_baselines3.DQN, prioritized, with the same arguments; replay_buffer_kwargs may have alpha, beta, ..."""


class SAC(_Prioritized, stable_baselines3.SAC):
    """stable_baselines3.SAC, prioritized as DQN is."""


class TD3(_Prioritized, stable_baselines3.TD3):
    """stable_baselines3.TD3, prioritized as DQN is."""


class DDPG(_Prioritized, stable_baselines3.DDPG):
    """stable_baselines3.DDPG, prioritized as DQN is."""
