"""A prioritized episode buffer for RLlib's new API stack, with libper's sum tree.

config.training(
    replay_buffer_config={"type": "per.integrations.rllib.PrioritizedEpisodeReplayBuffer", "alpha": 0.6, "beta": 0.4}
)
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import replay_buffers

import per
from per import _options
from per.integrations._copied_tree import CopiedTree

__all__ = ["PrioritizedEpisodeReplayBuffer"]

_MOST_PASSES_IN_VAIN = 10  # until a draw looks for the steps whose windows are complete


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


def _ends_of(n_step: Any) -> tuple[int, int]:
    """The range of n: first to end - 1."""
    with contextlib.suppress(TypeError, ValueError):
        ends = n_step if isinstance(n_step, tuple) else (n_step, n_step + 1)
        first, end = map(operator.index, ends)
        if 1 <= first < end:
            return first, end
    raise per.InvalidArgument(f"n_step is {n_step!r}; allowed: an int >= 1, or (first, end) with 1 <= first < end")


def _own(state: Any) -> Any:
    """A state whose containers are its own. RLlib's share their lists with the buffer, which extends them."""
    if isinstance(state, dict):
        return {key: _own(value) for key, value in state.items()}
    return [_own(value) for value in state] if isinstance(state, list) else state


def _are_leaves(priorities: Any, alpha: float) -> Any:
    """True for finite priorities whose p^alpha fits the tree's float32."""
    with np.errstate(over="ignore"):
        return np.isfinite(priorities) & (np.maximum(priorities, 0.0) ** alpha <= np.finfo(np.float32).max)


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
            The weight is no finite number >= 0, or its power alpha does not fit float32; nothing is added.
        """
        if weight is not None and not (weight >= 0 and _are_leaves(np.float64(weight), self._alpha)):
            allowed = f"finite numbers >= 0 whose power {self._alpha}, alpha, fits float32"
            raise per.InvalidArgument(f"weight is {weight}; allowed: {allowed}")
        super().add(episodes, max(weight, self._least) if weight else weight)
        if self._last_sampled_indices:
            # After the eviction of its episode, a node belongs to another step or to none.
            changed = self._sum_segment.written
            self._last_sampled_indices = [-1 if node in changed else node for node in self._last_sampled_indices]

    @property
    def _least(self) -> float:
        """Its power alpha is the least positive float32: no positive priority becomes 0."""
        return 2.0 ** (-149 / self._alpha) if self._alpha > 0 else 0.0

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
        If redrawing finds no other steps, the rest is drawn by priority from those with complete windows.
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
            As in RLlib's buffer. None: 0.
        gamma : float, default 0.99
            As in RLlib's buffer.
        include_infos, include_extra_model_outputs, to_numpy : bool, default False
            As in RLlib's buffer.
        **options : Any
            Ignored.

        Raises
        ------
        Empty
            Nothing was added yet, or all steps that can be drawn have priority 0.
        InvalidArgument
            An argument has no meaning, or no episode has as many steps as n_step.
        """
        if num_items is not None and batch_size_B is not None:
            raise per.InvalidArgument("num_items and batch_size_B are given; allowed: one of the two")
        if num_items is not None:
            size = _options.at_least("num_items", num_items, 1)
        else:
            size = _options.at_least("batch_size_B", self.batch_size_B if batch_size_B is None else batch_size_B, 1)
        first, end = _ends_of(1 if n_step is None else n_step)
        exponent = 0.0 if beta is None else _options.real("beta", beta)
        if not 0 <= exponent < math.inf:
            raise per.InvalidArgument(f"beta is {beta}; allowed: finite numbers >= 0, None")

        drawn: list[tuple[int, SingleAgentEpisode, int, int]] = []
        resamples = passes_in_vain = 0
        while len(drawn) < size:
            wanted, found = size - len(drawn), len(drawn)
            if passes_in_vain < _MOST_PASSES_IN_VAIN:
                nodes, steps = self._sum_segment.sample(wanted), self.rng.integers(first, end, wanted)
            else:
                nodes, steps = self._draw_complete(wanted, first, end)
            for node, n in zip(nodes.tolist(), steps.tolist(), strict=True):
                number, t, _ = self._indices[self._tree_idx_to_sample_idx[node]]
                episode = self.episodes[number - self._num_episodes_evicted]
                if t + n <= len(episode):
                    drawn.append((node, episode, t, n))
            resamples += wanted - (len(drawn) - found)
            passes_in_vain = passes_in_vain + 1 if len(drawn) == found else 0

        self._last_sampled_indices = [node for node, *_ in drawn]
        priorities = self._sum_segment[self._last_sampled_indices]
        weights = (priorities / priorities.min()) ** -exponent
        rows = [
            self._row(episode, t, n, gamma, weight, include_infos, include_extra_model_outputs)
            for (_, episode, t, n), weight in zip(drawn, weights.tolist(), strict=True)
        ]
        if to_numpy:
            for row in rows:
                row.to_numpy()
        self._count(drawn, resamples)
        return rows

    def _draw_complete(self, size: int, first: int, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draws nodes and their n among the complete windows, with the probabilities that redrawing has."""
        numbers, starts, nodes = np.array(self._indices).T
        lengths = np.array([len(episode) for episode in self.episodes])[numbers - self._num_episodes_evicted]
        n_choices = np.clip(lengths - starts + 1, first, end) - first
        if not n_choices.any():
            raise per.InvalidArgument(f"n_step is {first}: no episode of the buffer has {first} steps")
        masses = self._sum_segment[nodes] * n_choices
        if not masses.any():
            raise per.Empty(f"n_step is {first}: all steps that can be drawn have priority 0")
        drawn = self.rng.choice(len(nodes), size, p=masses / masses.sum())
        return nodes[drawn], self.rng.integers(first, first + n_choices[drawn])

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

    def get_state(self) -> dict[str, Any]:
        """Everything, for set_state(). Later calls of the buffer do not change it."""
        state: dict[str, Any] = _own(super().get_state())
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replaces the contents by a state of get_state().

        Raises
        ------
        InvalidArgument
            The state is of another kind of buffer, or of one with another capacity; nothing is changed.
        """
        leaves = state.get("_sum_segment")
        if not isinstance(leaves, Mapping):
            allowed = "states of per.integrations.rllib.PrioritizedEpisodeReplayBuffer"
            raise per.InvalidArgument(f"state is of another kind of buffer; allowed: {allowed}")
        given, own = len(leaves["priorities"]), self._sum_segment.capacity  # twice the capacity's next power of two
        if given != own:
            capacities, allowed = (f"{n // 4 + 1} to {n // 2}" for n in (given, own))
            raise per.InvalidArgument(f"state is of a buffer of capacity {capacities}; allowed: {allowed}")
        self.episodes.clear()  # RLlib reads episodes only into an empty buffer
        super().set_state(_own(state))

    def update_priorities(self, priorities: object, module_id: Any = None) -> None:
        """Sets the priorities of the last sample, usually |TD errors|, float[steps drawn].

        Steps evicted meanwhile are skipped. For a step drawn twice the last priority wins.

        Raises
        ------
        InvalidArgument
            Their number is wrong, or one is not finite or its power alpha does not fit float32; nothing is changed.
        """
        given = np.asarray(priorities, np.float64).ravel()
        nodes = np.asarray(self._last_sampled_indices, np.int64)
        if len(given) != len(nodes):
            raise per.InvalidArgument(f"priorities has {len(given)} entries; allowed: {len(nodes)}, one a step drawn")
        if not (are_good := _are_leaves(given, self._alpha)).all():
            i = int(np.flatnonzero(~are_good)[0])
            allowed = f"finite numbers whose power {self._alpha}, alpha, fits float32"
            raise per.InvalidArgument(f"priorities[{i}] is {given[i]}; allowed: {allowed}")
        given = np.maximum(given, max(1e-12, self._least))
        is_there = nodes >= 0
        self._sum_segment.update(nodes[is_there], given[is_there] ** self._alpha)
        self._max_priority = float(given[is_there].max(initial=self._max_priority))
        self._last_sampled_indices = []
