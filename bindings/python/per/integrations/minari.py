"""Converts between Minari datasets and `per.ReplayBuffer`, bit for bit.

    buffer = new_buffer(minari.load_dataset("mujoco/hopper/medium-v0"), n_step=3, alpha=0.6)
    create_dataset("hopper/mine-v0", buffer, env=env)

Preserved are all observations, including the last one of each episode, and all actions, rewards, terminations and
truncations. Infos, seeds and options of episodes are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from minari import MinariDataset, create_dataset_from_buffers
from minari.data_collector import EpisodeBuffer

import per
from per.spaces import parts_of
from per.typing import DTypeLike

__all__ = ["create_dataset", "episodes", "new_buffer"]


def new_buffer(
    dataset: MinariDataset,
    capacity: int | None = None,
    *,
    dtypes: Mapping[str, DTypeLike] | None = None,
    fields: Mapping[str, per.Field] | None = None,
    **options: Any,
) -> per.ReplayBuffer:
    """Creates a buffer with all steps of a dataset. Environment e of n_envs has episodes e, e + n_envs, ...

    Beside observation, action, reward and flags, each row has the values that libper would round or merge, in fields
    with defaults, which later steps may leave out: `minari.episode` (-1 for other steps), `minari.reward` in the data's
    precision, `minari.truncated` as in the dataset. An episode that ends in the dataset without a flag is truncated.

    Parameters
    ----------
    dataset : MinariDataset
        A dataset of minari.load_dataset(), or a filtered one.
    capacity : int, optional
        Total rows. None: as many as the dataset needs, which is then read twice.
    dtypes : Mapping[str, DTypeLike], optional
        Dtypes to store in place of the data's, by field name.
    fields : Mapping[str, per.Field], optional
        Additional fields, with defaults.
    **options : Any
        As in per.ReplayBuffer.

    Raises
    ------
    Unsupported
        A space has no arrays of fixed shape. Also as in per.ReplayBuffer.
    """
    n_envs = int(options.get("n_envs", 1))
    if capacity is None:
        rows = np.zeros(n_envs, np.int64)
        for i, episode in enumerate(dataset.iterate_episodes()):
            rows[i % n_envs] += len(episode) + 1 + np.count_nonzero((episode.terminations | episode.truncations)[:-1])
        capacity = max(1, int(rows.max())) * n_envs
    first = next(iter(dataset.iterate_episodes(dataset.episode_indices[:1])), None)
    found = {} if first is None else _dtypes(first.observations, "observation") | _dtypes(first.actions, "action")
    kept = {
        "minari.episode": per.Field((), "int64", default=-1),
        "minari.reward": per.Field((), "float64" if first is None else first.rewards.dtype, default=0.0),
        "minari.truncated": per.Field((), "bool", default=False),
    }
    buffer = per.ReplayBuffer.for_spaces(
        dataset.observation_space,
        dataset.action_space,
        capacity,
        dtypes={**found, **(dtypes or {})},
        fields={**kept, **(fields or {})},
        **options,
    )
    for i, episode in enumerate(dataset.iterate_episodes()):
        ends = episode.terminations | episode.truncations
        steps = {
            "observation": _map(lambda array: array[:-1], episode.observations),
            "next_observation": _map(lambda array: array[1:], episode.observations),
            "action": episode.actions,
            "reward": episode.rewards,
            "terminated": episode.terminations,
            "truncated": episode.truncations | (~ends & (np.arange(len(episode)) == len(episode) - 1)),
            "minari": {
                "episode": np.full(len(episode), i),
                "reward": episode.rewards,
                "truncated": episode.truncations,
            },
        }
        # The axis of environments, here of size 1.
        buffer.extend(**_map(lambda array: array[:, None], steps), env_ids=[i % n_envs])
    return buffer


def episodes(buffer: per.ReplayBuffer) -> Iterator[EpisodeBuffer]:
    """The live transitions of a buffer as episodes, by environment and in order of time.

    An episode whose first steps were overwritten begins with its oldest row. A running episode ends with its latest
    live transition, with neither flag. With store_next_observation, rows are joined if the next observation of one is
    the observation of the following one.

    Raises
    ------
    Unsupported
        The buffer has sequences, of which only the starts are live.
    """
    if buffer.options["sequence_length"] is not None:
        raise per.Unsupported("sequence_length is given; allowed: None, as episodes are made of single transitions")
    rows: dict[str, Any] | None = None
    for piece in _pieces(buffer):
        if rows is not None and _episode(rows) == _episode(piece) >= 0:
            rows = _map(lambda before, after: np.concatenate([before, after]), rows, piece)
            continue
        if rows is not None:
            yield _buffer_of(rows)
        rows = piece
    if rows is not None:
        yield _buffer_of(rows)


def create_dataset(
    dataset_id: str, buffer: per.ReplayBuffer, *, jpeg_encoding: bool = False, **options: Any
) -> MinariDataset:
    """Writes the episodes of a buffer to a new dataset, with images unchanged.

    Parameters
    ----------
    buffer : per.ReplayBuffer
        The buffer to be written.
    jpeg_encoding : bool, default False
        True makes images smaller, but lossy.
    **options : Any
        As in minari.create_dataset_from_buffers(): env, or observation_space and action_space.
    """
    return create_dataset_from_buffers(dataset_id, list(episodes(buffer)), jpeg_encoding=jpeg_encoding, **options)


def _pieces(buffer: per.ReplayBuffer) -> Iterator[dict[str, Any]]:
    """Runs of consecutive rows, of which only the last may end an episode."""
    ids = buffer.live_ids()
    for run in np.split(ids, np.flatnonzero(np.diff(ids) != buffer.n_envs) + 1):
        if run.size > 0:
            rows: dict[str, Any] = _map(np.asarray, dict(buffer.get(run)))
            ends = (rows["terminated"] | rows["truncated"])[:-1]
            for after, following in zip(_leaves(rows["next_observation"]), _leaves(rows["observation"]), strict=True):
                ends |= (_bytes_of(after)[:-1] != _bytes_of(following)[1:]).any(axis=1)
            borders = [0, *(np.flatnonzero(ends) + 1), run.size]
            for begin, end in itertools.pairwise(borders):
                yield _map(lambda array, part=slice(begin, end): array[part], rows)


def _episode(rows: Mapping[str, Any]) -> int:
    """The number of the rows' episode in the dataset; -1 for steps of none."""
    return int(rows["minari"]["episode"][0]) if "minari" in rows else -1


def _buffer_of(rows: Mapping[str, Any]) -> EpisodeBuffer:
    of_dataset = _episode(rows) >= 0
    return EpisodeBuffer(
        observations=_map(
            lambda array, after: np.concatenate([array, after[-1:]]), rows["observation"], rows["next_observation"]
        ),
        actions=rows["action"],
        rewards=rows["minari"]["reward"] if of_dataset else rows["reward"].astype(np.float64),
        terminations=rows["terminated"],
        truncations=rows["minari"]["truncated"] if of_dataset else rows["truncated"],
    )


def _map(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Applies a function to each array in dicts and tuples, and to those at the same place in others."""
    if isinstance(value, Mapping):
        return {key: _map(function, value[key], *(other[key] for other in others)) for key in value}
    if isinstance(value, tuple):
        return tuple(_map(function, *children) for children in zip(value, *others, strict=True))
    return function(value, *others)


def _leaves(value: Any) -> list[npt.NDArray[Any]]:
    leaves: list[npt.NDArray[Any]] = []
    _map(leaves.append, value)
    return leaves


def _dtypes(value: Any, name: str) -> dict[str, np.dtype[Any]]:
    """The dtypes of arrays in dicts and tuples, by field name."""
    if not isinstance(value, (Mapping, tuple)):
        return {name: value.dtype}
    parts = parts_of(name, value)
    return {field: dtype for part in parts for field, dtype in _dtypes(parts[part], part).items()}


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
