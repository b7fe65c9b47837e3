"""A prioritized episode buffer for RLlib's new API stack, with libper's sum tree.

config.training(
    replay_buffer_config={"type": "per.integrations.rllib.PrioritizedEpisodeReplayBuffer", "alpha": 0.6, "beta": 0.4}
)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import replay_buffers

import per
from per.integrations._copied_tree import CopiedTree

__all__ = ["PrioritizedEpisodeReplayBuffer"]


class _Leaves:
    """Stands in for RLlib's sum tree: p^alpha of each step's node. Draws use everything written so far."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity = capacity
        self._tree = CopiedTree(capacity, seed=seed)
        self._priorities = np.zeros(capacity)
        self._written: list[int] = []

    @property
    def written(self) -> set[int]:
        """Nodes whose step was added or evicted since the last draw or update."""
        return set(self._written)

    def __getitem__(self, node: Any) -> Any:
        return self._priorities[node]

    def __setitem__(self, node: int, priority: float) -> None:
        self._priorities[node] = priority
        self._written.append(node)

    def _write(self) -> None:
        if self._written:
            self._tree.update(self._written, self._priorities[self._written])
            self._written = []

    def update(self, nodes: Sequence[int] | npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None:
        self._write()
        self._tree.update(nodes, priorities)
        self._priorities[nodes] = priorities

    def sample(self, batch_size: int) -> npt.NDArray[np.int64]:
        self._write()
        return self._tree.sample(batch_size).indices

    def sum(self) -> float:
        self._write()
        return self._tree.total

    def get_state(self) -> dict[str, Any]:
        return {"priorities": self._priorities.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._written = []
        self.update(range(self.capacity), np.asarray(state["priorities"]))


class _NoLeaves:
    """Stands in for RLlib's tree of minima, which weights normalised by their batch do not need."""

    def __setitem__(self, node: int, priority: float) -> None:
        pass

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        pass


class PrioritizedEpisodeReplayBuffer(replay_buffers.PrioritizedEpisodeReplayBuffer):
    """RLlib's episode buffer, which draws all steps of a batch at once from a `per.SumTree`.

    Parameters
    ----------
    seed : int, optional
        Seed of the draws and of random n_steps. None: a new one each time.
    *args, **options : Any
        Other arguments of RLlib's buffer.

    Notes
    -----
    A copy or a pickled buffer keeps the priorities and draws with another seed.
    """

    _sum_segment: Any
    _max_priority: float
    _last_sampled_indices: list[int]

    def __init__(self, *args: Any, seed: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rng = np.random.default_rng(seed)
        self._sum_segment = _Leaves(self._sum_segment.capacity, int(self.rng.integers(2**63)))
        self._min_segment = _NoLeaves()

    def add(self, episodes: SingleAgentEpisode | list[SingleAgentEpisode], weight: float | None = None) -> None:
        """Adds episodes, or further steps of them. The oldest episodes are evicted to make room.

        Parameters
        ----------
        weight : float, optional
            Priority of the steps; None: the largest seen.

        Raises
        ------
        InvalidArgument
            The weight is no finite number >= 0; nothing is added.
        """
        if weight is not None and not 0 <= weight < math.inf:
            raise per.InvalidArgument(f"weight is {weight}; allowed: finite numbers >= 0")
        super().add(episodes, weight)
        if self._last_sampled_indices:
            # After the eviction of its episode, a node belongs to another step or to none.
            changed = self._sum_segment.written
            self._last_sampled_indices = [-1 if node in changed else node for node in self._last_sampled_indices]

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        **options: Any,
    ) -> list[SingleAgentEpisode]:
        """Draws steps by priority. Each is returned as a one-step episode with its n-step return and next observation.

        Draws are stratified (Schaul et al. 2016, section 3.3); steps whose n-step window is incomplete are redrawn.
        extra_model_outputs has `n_step` and `weights`, w_i = (P(i) / min_j P(j))^-beta over the batch.

        Parameters
        ----------
        num_items, batch_size_B : int, optional
            Steps in the batch; give one of the two. None: the buffer's.
        batch_length_T : int, optional
            Ignored: the buffer draws single steps.
        n_step : int or tuple[int, int], optional
            One n for all, or (first, end), from which each step's n is drawn: first to end - 1, as in RLlib.
        beta : float or None, default 0.0
            As in RLlib's buffer.
        gamma : float, default 0.99
            As in RLlib's buffer.
        include_infos, include_extra_model_outputs, to_numpy : bool, default False
            As in RLlib's buffer.
        **options : Any
            Ignored.

        Raises
        ------
        Empty
            Nothing was added yet.
        InvalidArgument
            No episode has as many steps as n_step.
        """
        if num_items is not None and batch_size_B is not None:
            raise per.InvalidArgument("num_items and batch_size_B are given; allowed: one of the two")
        size = num_items or batch_size_B or self.batch_size_B
        drawn: list[tuple[int, SingleAgentEpisode, int, int]] = []
        resamples = 0
        while len(drawn) < size:
            nodes = self._sum_segment.sample(size - len(drawn)).tolist()
            steps = self.rng.integers(*n_step, len(nodes)).tolist() if isinstance(n_step, tuple) else None
            found = len(drawn)
            for i, node in enumerate(nodes):
                number, t, _ = self._indices[self._tree_idx_to_sample_idx[node]]
                episode = self.episodes[number - self._num_episodes_evicted]
                n: Any = (n_step or 1) if steps is None else steps[i]
                if t + n <= len(episode):
                    drawn.append((node, episode, t, n))
            resamples += len(nodes) - (len(drawn) - found)
            fewest = n_step[0] if isinstance(n_step, tuple) else n_step or 1
            if len(drawn) == found and all(len(episode) < fewest for episode in self.episodes):
                raise per.InvalidArgument(f"n_step is {n_step}: no episode of the buffer has {fewest} steps")

        self._last_sampled_indices = [node for node, *_ in drawn]
        priorities = self._sum_segment[self._last_sampled_indices]
        weights = (priorities / priorities.min()) ** -(beta or 0.0)
        rows = [
            self._row(episode, t, n, gamma, weight, include_infos, include_extra_model_outputs)
            for (_, episode, t, n), weight in zip(drawn, weights.tolist(), strict=True)
        ]
        if to_numpy:
            for row in rows:
                row.to_numpy()
        self._count(drawn, resamples)
        return rows

    @staticmethod
    def _row(
        episode: SingleAgentEpisode, t: int, n: int, gamma: float, weight: float, infos: bool, outputs: bool
    ) -> SingleAgentEpisode:
        """The transition from t to t + n."""
        rewards = np.asarray(episode.get_rewards(slice(t, t + n)))
        is_last = t + n == len(episode)
        others = (
            {key: [episode.get_extra_model_outputs(key, t)] for key in episode.extra_model_outputs} if outputs else {}
        )
        return SingleAgentEpisode(
            observations=[episode.get_observations(t), episode.get_observations(t + n)],
            observation_space=episode.observation_space,
            infos=[episode.get_infos(t), episode.get_infos(t + n)] if infos else None,
            actions=[episode.get_actions(t)],
            action_space=episode.action_space,
            rewards=[float(rewards @ gamma ** np.arange(n))],
            terminated=is_last and episode.is_terminated,
            truncated=is_last and episode.is_truncated,
            extra_model_outputs={"weights": [weight], "n_step": [n], **others},
            len_lookback_buffer=0,
            t_started=t,
        )

    def _count(self, drawn: list[tuple[int, SingleAgentEpisode, int, int]], resamples: int) -> None:
        """Updates the counts of get_metrics()."""
        self.sampled_timesteps += len(drawn)
        counts = {
            "num_env_steps_sampled": len(drawn),
            "num_episodes_per_sample": len({id(episode) for _, episode, _, _ in drawn}),
            "num_env_steps_per_sample": len({node for node, *_ in drawn}),
            "sampled_n_step": sum(n for *_, n in drawn) / len(drawn),
            "num_resamples": resamples,
        }
        of_owners = {
            f"{owner}_to_{name.replace('env_steps', 'steps')}": {owner_id: count}
            for owner, owner_id in (("agent", DEFAULT_AGENT_ID), ("module", DEFAULT_MODULE_ID))
            for name, count in counts.items()
        }
        self._update_sample_metrics(**counts, **of_owners)

    def update_priorities(self, priorities: object, module_id: Any = None) -> None:
        """Sets the priorities of the last sample, usually |TD errors|, float[steps drawn].

        Steps evicted meanwhile are skipped. For a step drawn twice the last priority wins.

        Raises
        ------
        InvalidArgument
            Their number is wrong, or one is not finite; nothing is changed.
        """
        given = np.maximum(np.asarray(priorities, np.float64).ravel(), 1e-12)
        nodes = np.asarray(self._last_sampled_indices, np.int64)
        if len(given) != len(nodes):
            raise per.InvalidArgument(f"priorities has {len(given)} entries; allowed: {len(nodes)}, one a step drawn")
        if not np.isfinite(given).all():
            i = int(np.flatnonzero(~np.isfinite(given))[0])
            raise per.InvalidArgument(f"priorities[{i}] is {given[i]}; allowed: finite numbers")
        is_there = nodes >= 0
        self._sum_segment.update(nodes[is_there], given[is_there] ** self._alpha)
        self._max_priority = float(given[is_there].max(initial=self._max_priority))
        self._last_sampled_indices = []
