"""Replay by priority in CleanRL's single files: the two buffers that they use, with the same arguments and names.

from per.integrations.cleanrl import ReplayBuffer               # in place of cleanrl_utils.buffers
from per.integrations.cleanrl import PrioritizedReplayBuffer    # in place of the class in rainbow_atari.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import per
from per import spaces
from per.integrations._single_transitions import refuse_other_batches
from per.integrations._weighted_losses import WeightedRewards


class ReplayBufferSamples(NamedTuple):
    """What theirs has, and the last three: gamma^m of the m steps of a return, weights, and what priorities are set by.

    All but observations are [B, 1], actions [B, numbers of an action], ids int64[B].
    """

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor
    ids: Any


class PrioritizedBatch(NamedTuple):
    """What theirs has, and discounts: gamma^m of the m steps of a return, which ends where the episode does."""

    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    indices: Any
    weights: torch.Tensor
    discounts: torch.Tensor


class _Buffer:
    """A buffer of libper, with arrays in the shapes of CleanRL."""

    def __init__(self, transitions: int, fields: dict[str, per.Field], device: Any, options: dict[str, Any]) -> None:
        refuse_other_batches(options)
        self.device = torch.device(device)
        self._stack = options.get("frame_stack", 1)
        if self._stack > 1:  # theirs are stacks, libper's fields single frames
            stacks = fields["observation"]
            fields = {**fields, "observation": per.Field(stacks.shape[1:], stacks.dtype)}
        options = {"seed": int(np.random.randint(2**31)), **options}
        capacity = per.ReplayBuffer.capacity_for(transitions, fields=fields, **options)
        self.replay = per.ReplayBuffer(capacity, fields, **options)
        self._shapes = {name: (self.replay.n_envs, *field.shape) for name, field in fields.items()}

    def _shaped(self, name: str, values: Any) -> Any:
        shape = self._shapes[name]
        if name == "observation" and self._stack > 1:
            values = np.reshape(values, (shape[0], self._stack, *shape[1:]))[:, -1]
        return np.reshape(values, shape)

    def _add(self, obs: Any, next_obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any) -> Any:
        ended = np.reshape(terminated, -1)
        return self.replay.add(
            observation=self._shaped("observation", obs),
            next_observation=self._shaped("observation", next_obs),
            action=self._shaped("action", action),
            reward=np.reshape(reward, -1),
            terminated=ended,
            # CleanRL's files give the next episode's first observation there.
            next_mask=np.logical_not(ended),
            truncated=truncated,
        )

    def _tensor(self, array: Any) -> torch.Tensor:
        """A tensor [B, ...] of an array, with an axis of size 1 where it has numbers."""
        return torch.as_tensor(array if array.ndim > 1 else array.reshape(-1, 1), device=self.device)


class ReplayBuffer(_Buffer):
    """The buffer of all single files but rainbow_atari.py, which draws by priority in those that use mse_loss().

    These form their targets from `data.rewards`, a tensor by which a mean mse_loss(), smooth_l1_loss() or huber_loss()
    of a target gets its weights, and the transitions their TD errors. With other losses draws are uniform, with
    weights 1, unless `data.weights` and update_priorities() are used.

    Arguments:
        buffer_size: transitions of all environments. Each truncation takes the place of one more.
        observation_space, action_space, device, n_envs: as theirs. Observations of float64 are kept as float32.
        optimize_memory_usage: changes nothing; next observations are stored once.
        handle_timeout_termination: as theirs: whether info["TimeLimit.truncated"] is looked at.
        options: those of per.ReplayBuffer, but for sequences. With frame_stack observations are stacks of so many
            frames, as FrameStack gives them, and the newest of each is stored. The seed comes from numpy's global
            generator unless it is given.

    An episode that is truncated without a word ends where the next observation does not follow. The buffer of libper is
    the attribute `replay`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **options: Any,
    ) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        fields = spaces.of_spaces(observation_space, action_space, {}, has_64_bits=True)
        super().__init__(buffer_size, fields, device, {"n_envs": n_envs, **options})
        self.buffer_size, self.n_envs = max(buffer_size // n_envs, 1), n_envs
        self.handle_timeout_termination = handle_timeout_termination

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Adds a step of every environment. Of a truncated episode next_obs has the last observation.

        Of one that ended in a terminal state next_obs is not looked at; batches have obs in its place.
        """
        timeouts = np.zeros(self.n_envs, bool)
        if self.handle_timeout_termination:
            timeouts[:] = [info.get("TimeLimit.truncated", False) for info in infos]
        self._add(obs, next_obs, action, reward, np.logical_and(done, np.logical_not(timeouts)), timeouts)

    def sample(self, batch_size: int) -> ReplayBufferSamples:
        """A draw by priority."""
        batch = self.replay.sample(batch_size)
        weights = self._tensor(batch.weights)
        return ReplayBufferSamples(
            observations=self._tensor(batch.observation),
            actions=self._tensor(batch.action.reshape(batch_size, -1)),
            next_observations=self._tensor(batch.next_observation),
            dones=self._tensor(batch.terminated.astype(np.float32)),
            rewards=WeightedRewards.of(self._tensor(batch.reward), weights, self.replay, batch.ids),
            discounts=self._tensor(batch.gamma_m),
            weights=weights,
            ids=batch.ids,
        )

    def update_priorities(self, ids: Any, td_errors: torch.Tensor) -> None:
        """Sets the priorities of the transitions of a batch by TD errors [B], or [n_critics, B]."""
        self.replay.update_priorities(ids, td_errors.detach().cpu())

    def size(self) -> int:
        """Transitions of an environment that can be drawn, on average."""
        return len(self.replay) // self.n_envs


class PrioritizedReplayBuffer(_Buffer):
    """The buffer of rainbow_atari.py, which keeps the last n_step - 1 starts of an episode.

    Arguments:
        capacity: transitions. Each truncation takes the place of one more.
        obs_shape, device, n_step, gamma, alpha, beta, eps: as theirs. `beta` may be set before each draw.
        dtype: of the observations.
        options: further ones of per.ReplayBuffer. With frame_stack obs_shape is that of stacks of so many frames, and
            the newest frame of each is stored. The seed comes from numpy's global generator unless it is given.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        device: torch.device | str,
        n_step: int,
        gamma: float,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        *,
        dtype: Any = np.uint8,
        **options: Any,
    ) -> None:
        fields = {"observation": per.Field(obs_shape, dtype), "action": per.Field((), np.int64)}
        given = {"n_step": n_step, "gamma": gamma, "alpha": alpha, "epsilon": eps}
        super().__init__(capacity, fields, device, {**given, **options})
        self.capacity, self.n_step, self.gamma = capacity, n_step, gamma
        self.alpha, self.beta, self.eps = alpha, beta, eps

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any, truncated: Any = False) -> None:
        """Adds a step. An episode that is truncated without a word ends where the next observation does not follow.

        Of an episode that ended in a terminal state next_obs is not looked at; batches have obs in its place.
        """
        self._add(obs, next_obs, action, reward, done, truncated)

    def sample(self, batch_size: int) -> PrioritizedBatch:
        """A draw by priority, with weights of `beta`."""
        batch = self.replay.sample(batch_size, beta=self.beta)
        return PrioritizedBatch(
            observations=self._tensor(batch.observation),
            actions=self._tensor(batch.action),
            rewards=self._tensor(batch.reward),
            next_observations=self._tensor(batch.next_observation),
            dones=self._tensor(batch.terminated),
            indices=batch.ids,
            weights=self._tensor(batch.weights),
            discounts=self._tensor(batch.gamma_m),
        )

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Sets |priorities| + eps, before alpha."""
        self.replay.update_priorities(indices, priorities)

    @property
    def size(self) -> int:
        """Transitions that can be drawn."""
        return len(self.replay)
