"""Minari's datasets in and out of a `per.ReplayBuffer`, bit for bit.

    buffer = new_buffer(minari.load_dataset("mujoco/hopper/medium-v0"), n_step=3, alpha=0.6)
    create_dataset("hopper/mine-v0", buffer, env=env)

Every observation comes through, the last of each episode too, and every action, reward, termination and truncation.
Infos, seeds and options of episodes do not.
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
    """A buffer with all steps of a dataset: the first of n_envs environments has its episodes 0, n_envs, 2 n_envs, ...

    Beside observation, action, reward and the flags, each row has what libper would round or join, as fields with
    defaults that steps added later may leave out: `minari.episode` (-1 of other steps), `minari.reward` in the data's
    precision, `minari.truncated` as in the dataset. An episode that ends there with neither flag is truncated here.

    Parameters
    ----------
    dataset : MinariDataset
        What minari.load_dataset() gives, or a filtered one.
    capacity : int, optional
        Rows in all. None: as many as the dataset takes, which is then read twice.
    dtypes : Mapping[str, DTypeLike], optional
        By name of a field, dtypes to store in place of the data's.
    fields : Mapping[str, per.Field], optional
        Further fields, with defaults.
    **options : Any
        As per.ReplayBuffer takes it.

    Raises
    ------
    Unsupported
        For a space without arrays of one shape; and as per.ReplayBuffer.
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
        # The axis of environments, of which this is one.
        buffer.extend(**_map(lambda array: array[:, None], steps), env_ids=[i % n_envs])
    return buffer


def episodes(buffer: per.ReplayBuffer) -> Iterator[EpisodeBuffer]:
    """The live transitions of a buffer, episode by episode, environment by environment, in order of time.

    An episode whose first steps were overwritten begins with the oldest one there is, and one that goes on ends with
    the latest one that is live, with neither flag. Rows with a next observation of their own (store_next_observation)
    belong together while one's next observation is the next one's observation.

    Raises
    ------
    Unsupported
        For a buffer of sequences, of which only the starts are live.
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
    """Writes the episodes of a buffer to a new dataset, images as they are.

    Parameters
    ----------
    buffer : per.ReplayBuffer
        A buffer.
    jpeg_encoding : bool, default False
        True makes images smaller, and others than they were.
    **options : Any
        As minari.create_dataset_from_buffers() takes it: env, or observation_space and action_space.
    """
    return create_dataset_from_buffers(dataset_id, list(episodes(buffer)), jpeg_encoding=jpeg_encoding, **options)


def _pieces(buffer: per.ReplayBuffer) -> Iterator[dict[str, Any]]:
    """Rows in a row, of which none but the last ends an episode."""
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
    """The number of the dataset's episode that rows are of; -1 for steps that are of none."""
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
    """What a function makes of each array in dicts and tuples, and of those at the same place in others."""
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
    """The dtypes of arrays in dicts and tuples by the names of their fields."""
    if not isinstance(value, (Mapping, tuple)):
        return {name: value.dtype}
    parts = parts_of(name, value)
    return {field: dtype for part in parts for field, dtype in _dtypes(parts[part], part).items()}


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
