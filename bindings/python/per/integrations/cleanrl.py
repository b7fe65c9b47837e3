"""Prioritized replay for CleanRL's single files: replaces the two buffers they use, with the same arguments and names.

from per.integrations.cleanrl import ReplayBuffer               # in place of cleanrl_utils.buffers
from per.integrations.cleanrl import PrioritizedReplayBuffer    # in place of the class in rainbow_atari.py
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

import per
from per import spaces
from per._errors import kind_of
from per.integrations._demonstrations import WithDemonstrations
from per.integrations._resets import SuspectedResets
from per.integrations._single_transitions import refuse_other_batches
from per.integrations._weighted_losses import WeightedRewards


class ReplayBufferSamples(NamedTuple):
    """The fields of CleanRL's class, and three more: gamma^m of the m steps of a return, weights, and ids for updates.

    All except observations are [B, 1], actions [B, numbers of an action], ids int64[B].
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
    """The fields of CleanRL's class, and discounts: gamma^m of the m steps of a return, which ends with the episode."""

    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    indices: Any
    weights: torch.Tensor
    discounts: torch.Tensor


class _Buffer:
    """A libper buffer with arrays in CleanRL's shapes."""

    def __init__(self, transitions: int, fields: dict[str, per.Field], device: Any, options: dict[str, Any]) -> None:
        refuse_other_batches(options)
        if set(fields) != {"observation", "action"}:
            raise per.Unsupported(f"the spaces have {', '.join(fields)}; allowed: one array each, no Dict and Tuple")
        self.device = torch.device(device)
        self._stack = options.get("frame_stack", 1)
        if self._stack > 1:  # CleanRL's observations are stacks, libper's fields single frames
            stacks = fields["observation"]
            if stacks.shape[:1] != (self._stack,):
                allowed = f"stacks of frame_stack = {self._stack} along the first axis"
                raise per.InvalidArgument(f"the observations have shape {list(stacks.shape)}; allowed: {allowed}")
            fields = {**fields, "observation": per.Field(stacks.shape[1:], stacks.dtype)}
        self._suspected = None if "autoreset" in options else SuspectedResets()
        options = {"seed": int(np.random.randint(2**31)), "autoreset": "same_step", **options}
        capacity = per.ReplayBuffer.capacity_for(transitions, fields=fields, **options)
        self.replay = per.ReplayBuffer(capacity, fields, **options)
        self._resets_at_once = self.replay.options["autoreset"] == "same_step"
        self._shapes = {name: (self.replay.n_envs, *field.value_shape) for name, field in fields.items()}

    def _shaped(self, name: str, values: Any) -> Any:
        shape = self._shapes[name]
        whole = (shape[0], self._stack, *shape[1:]) if name == "observation" and self._stack > 1 else shape
        try:
            values = np.reshape(values, whole)
        except ValueError as error:
            raise per.InvalidArgument(f"{name} has shape {list(np.shape(values))}; allowed: {list(whole)}") from error
        return values if whole is shape else values[:, -1]

    def _add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any, infos: Any = None
    ) -> Any:
        terminated, reward = np.reshape(terminated, -1), np.reshape(reward, -1)
        observation, following = self._shaped("observation", obs), self._shaped("observation", next_obs)
        next_mask = None
        if self._resets_at_once:
            # After a terminal state, CleanRL's files pass the first observation of the next episode.
            next_mask = np.logical_not(terminated)
            if isinstance(infos, Mapping) and ("final_obs" in infos or "final_observation" in infos):
                following, is_final = self._with_final(following, infos, truncated)
                truncated = np.where(is_final & next_mask, True, truncated)
                next_mask = next_mask | is_final
            if self._suspected is not None:
                self._suspected.look(observation, following, reward, ~next_mask)
        return self.replay.add(
            observation=observation,
            next_observation=following,
            action=self._shaped("action", action),
            reward=reward,
            terminated=terminated,
            next_mask=next_mask,
            truncated=truncated,
        )

    def _with_final(self, following: Any, infos: Mapping[str, Any], truncated: Any) -> tuple[Any, Any]:
        """The next observations with the final ones of an info, and the environments that have one.

        Without a mask in the info, as ALE's own vector environment gives it, they are those that were truncated.
        """
        key = "final_obs" if "final_obs" in infos else "final_observation"
        given, n = infos[key], len(following)
        is_final = np.broadcast_to(np.asarray(infos.get(f"_{key}", truncated), bool).reshape(-1), n)
        places = np.flatnonzero(is_final)
        if len(places) > 0 and (not hasattr(given, "__len__") or len(given) != n):
            raise per.InvalidArgument(f"infos[{key!r}] is {kind_of(given)}; allowed: {n} observations")
        finals = [np.asarray(given[i])[-1] if self._stack > 1 else np.asarray(given[i]) for i in places]
        following = np.array(following, np.result_type(following, *finals))
        for i, final in zip(places, finals, strict=True):
            if final.size != following[i].size:
                shapes = f"shape {list(final.shape)}; allowed: {list(following.shape[1:])}"
                raise per.InvalidArgument(f"infos[{key!r}][{i}] has {shapes}")
            following[i] = final.reshape(following.shape[1:])
        return following, is_final

    def _tensor(self, array: Any) -> torch.Tensor:
        """A tensor [B, ...] of an array; scalars get an axis of size 1."""
        return torch.as_tensor(array if array.ndim > 1 else array.reshape(-1, 1), device=self.device)


class ReplayBuffer(WithDemonstrations, _Buffer):
    """The buffer of all single files except rainbow_atari.py. Prioritized in those that use mse_loss().

    These files compute their targets from `data.rewards`, a tensor that adds the weights to a mean mse_loss(),
    smooth_l1_loss() or huber_loss() of a target and sets priorities by its TD errors. With other losses draws are
    uniform, with weights 1, unless `data.weights` and update_priorities() are used.

    Parameters
    ----------
    buffer_size : int
        Transitions of all environments. Each truncation takes the space of one more.
    observation_space, action_space : Any
        As in CleanRL. Observations of float64 are stored as float32.
    device : torch.device or str, default "auto"
        As in CleanRL.
    n_envs : int, default 1
        As in CleanRL.
    optimize_memory_usage : bool, default False
        Has no effect; next observations are always stored once.
    handle_timeout_termination : bool, default True
        As in CleanRL: whether info["TimeLimit.truncated"] is used.
    **options : Any
        Options of per.ReplayBuffer, except those of sequences. With frame_stack, observations are stacks of that many
        frames, as from FrameStack, and only the newest frame of each is stored. The default seed comes from numpy's
        global generator. The default of autoreset is "same_step", as in CleanRL's files.

    Warns
    -----
    PerWarning
        Once, if autoreset is not given and environments seem to reset in the step after an end.

    Notes
    -----
    An episode truncated without a flag ends where the next observation does not follow. The attribute `replay` is the
    libper buffer.
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
        self._resets_in_next_step = self.replay.options["autoreset"] == "next_step"
        self._is_warned = False

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any, truncated: Any = None
    ) -> None:
        """Adds one step of every environment.

        Parameters
        ----------
        obs, next_obs, action, reward, done : Any
            As in CleanRL. At an end next_obs is the final observation. With autoreset "same_step": after a terminal
            state it is ignored, and batches have obs in its place, unless infos has the final one; for a truncated
            episode it is the final one.
        infos : Any
            The info of a Gymnasium vector environment, or a list of dicts. Final observations are taken from it.
        truncated : Any, optional
            Flags [n_envs]. None: taken from infos: "TimeLimit.truncated" in a list; "final_obs", or "episode" of
            RecordEpisodeStatistics, for a step that is not done.

        Warns
        -----
        PerWarning
            Once, if autoreset is "next_step" and nothing tells which episodes are truncated.
        """
        done = np.reshape(done, -1)
        if truncated is None:
            truncated = self._truncated(done, infos)
            done = np.where(truncated, False, done)
        self._add(obs, next_obs, action, reward, done, np.reshape(truncated, -1), infos)

    def _truncated(self, done: Any, infos: Any) -> Any:
        """Flags of the episodes truncated at this step, as far as infos has them."""
        if self.handle_timeout_termination:
            if isinstance(infos, Mapping) or not hasattr(infos, "__len__") or len(infos) != len(done):
                n = f"a list of {len(infos)}" if isinstance(infos, list) else kind_of(infos)
                raise per.InvalidArgument(
                    f"infos is {n}; allowed: a list of {len(done)} dicts, or with handle_timeout_termination=False the "
                    "dict of a vector environment"
                )
            return np.array([info.get("TimeLimit.truncated", False) for info in infos], bool)
        if self._resets_in_next_step and isinstance(infos, Mapping) and "_episode" in infos:
            return np.asarray(infos["_episode"], bool) & np.logical_not(done)
        if self._resets_in_next_step and done.any() and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                "infos has no 'episode', which RecordEpisodeStatistics puts there, and truncated is not given: with "
                "autoreset='next_step' an episode that is truncated then goes on into the next one. Give "
                "add(..., truncated=truncations)",
                per.PerWarning,
                stacklevel=3,
            )
        return np.zeros(len(done), bool)

    def sample(self, batch_size: int) -> ReplayBufferSamples:
        """Draws a prioritized batch.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        """
        batch = self._draw(batch_size)
        weights = self._tensor(batch.weights)
        return ReplayBufferSamples(
            observations=self._tensor(batch.observation),
            actions=self._tensor(batch.action.reshape(batch_size, -1)),
            next_observations=self._tensor(batch.next_observation),
            dones=self._tensor(batch.terminated.astype(np.float32)),
            rewards=WeightedRewards.of(self._tensor(batch.reward), weights, self, batch.ids),
            discounts=self._tensor(batch.gamma_m),
            weights=weights,
            ids=batch.ids,
        )

    def size(self) -> int:
        """Mean number of transitions per environment that can be drawn."""
        return len(self.replay) // self.n_envs


class PrioritizedReplayBuffer(_Buffer):
    """The buffer of rainbow_atari.py. It also draws the last n_step - 1 transitions of an episode.

    Parameters
    ----------
    capacity : int
        Transitions. Each truncation takes the space of one more.
    obs_shape : tuple[int, ...]
        As in CleanRL.
    device : torch.device or str
        As in CleanRL.
    n_step : int
        As in CleanRL.
    gamma : float
        As in CleanRL.
    alpha : float, default 0.6
        As in CleanRL.
    beta : float, default 0.4
        As in CleanRL. The attribute `beta` may be set before each draw.
    eps : float, default 1e-06
        As in CleanRL.
    dtype : Any, default np.uint8
        Dtype of the observations.
    **options : Any
        Other options of per.ReplayBuffer. With frame_stack, obs_shape is that of stacks of that many frames, and only
        the newest frame of each is stored. The default seed comes from numpy's global generator. The default of
        autoreset is "same_step", as in CleanRL's file.

    Warns
    -----
    PerWarning
        Once, if autoreset is not given and environments seem to reset in the step after an end.
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
        """Adds one step. An episode truncated without a flag ends where the next observation does not follow.

        With autoreset "next_step" the next observation follows even then, so `truncated` must be given. With autoreset
        "same_step" next_obs is ignored after a terminal state; batches have obs in its place.
        """
        self._add(obs, next_obs, action, reward, done, np.broadcast_to(truncated, np.shape(done)).reshape(-1))

    def sample(self, batch_size: int) -> PrioritizedBatch:
        """Draws a prioritized batch, with the exponent `beta` for weights.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        """
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
        """Sets |priorities| + eps, before alpha.

        Parameters
        ----------
        indices : Any
            int64[n], from batches. They are ids, which grow with each step, not places of the buffer.
        priorities : Any
            float32[n] of any sign.
        """
        self.replay.update_priorities(indices, priorities)

    @property
    def size(self) -> int:
        """Number of transitions that can be drawn."""
        return len(self.replay)
