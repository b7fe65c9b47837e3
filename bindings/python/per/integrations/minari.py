"""Converts between Minari datasets and `per.ReplayBuffer`, bit for bit.

    buffer = new_buffer(minari.load_dataset("mujoco/hopper/medium-v0"), n_step=3, alpha=0.6)
    create_dataset("hopper/mine-v0", buffer, env=env)

Preserved are all observations, including the last one of each episode, and all actions, rewards, terminations and
truncations. Infos, seeds and options of episodes are not.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from minari import EpisodeData, MinariDataset, create_dataset_from_buffers
from minari.data_collector import EpisodeBuffer

import per
from per.spaces import parts_of, steps_of
from per.typing import DTypeLike

__all__ = ["create_dataset", "episodes", "new_buffer"]

_EXPORTED = ("observation", "next_observation", "action", "reward", "terminated", "truncated", "minari")


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
    Fields have the dtypes of the first episode, but integer and boolean rewards are stored as float64.

    Parameters
    ----------
    dataset : MinariDataset
        A dataset of minari.load_dataset(), or a filtered one.
    capacity : int, optional
        Total rows. None: as many as the dataset needs, which is then read twice.
    dtypes : Mapping[str, DTypeLike], optional
        Dtypes to store in place of the first episode's, by field name, such as "action" or "minari.reward".
    fields : Mapping[str, per.Field], optional
        Additional fields, with defaults.
    **options : Any
        As in per.ReplayBuffer.

    Raises
    ------
    InvalidArgument
        The first episode's dtypes cannot hold all values of another one. The message names the dtypes to ask for.
    Unsupported
        A space has no arrays of fixed shape. Also as in per.ReplayBuffer.
    """
    fields, asked = dict(fields or {}), dict(dtypes or {})
    least = per.ReplayBuffer.capacity_for(1, fields={"observation": per.Field(), **fields}, **options)
    n_envs = int(options.get("n_envs", 1))
    if capacity is None:
        rows: Counter[int] = Counter()
        for i, episode in enumerate(dataset.iterate_episodes()):
            ends = episode.terminations | episode.truncations
            rows[i % n_envs] += len(episode) + 1 + int(np.count_nonzero(ends[:-1]))
        capacity = max(least, n_envs * max(rows.values(), default=0))
    found = _dtypes_of_first(dataset)
    found = {name: found[name] for name in found if not any(f"{name}.".startswith(f"{key}.") for key in asked)}
    declared = {**found, **asked}
    kept = {
        "minari.episode": per.Field((), "int64", default=-1),
        # False casts to every dtype.
        "minari.reward": per.Field((), declared.pop("minari.reward", "float64"), default=False),
        "minari.truncated": per.Field((), "bool", default=False),
    }
    buffer = per.ReplayBuffer.for_spaces(
        dataset.observation_space,
        dataset.action_space,
        capacity,
        dtypes=declared,
        fields={**kept, **fields},
        **options,
    )
    for i, episode in enumerate(dataset.iterate_episodes()):
        _check_dtypes(i, episode, {name: dtype for name, dtype in found.items() if name not in fields})
        ends = episode.terminations | episode.truncations
        steps = {
            "observation": _map(lambda array: array[:-1], episode.observations),
            "next_observation": _map(lambda array: array[1:], episode.observations),
            "next_mask": np.ones(len(episode), bool),  # also with "same_step" these are the final observations
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
        if options.get("autoreset") == "next_step":
            steps = _with_resets(steps)
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
    InvalidArgument
        The buffer has no observation or no action.
    Unsupported
        The buffer has sequences, of which only the starts are live; an observation field that is not `observation` or
        a part of it; or a field to be exported that is bfloat16.
    """
    if buffer.options["sequence_length"] is not None:
        raise per.Unsupported("sequence_length is given; allowed: None, as episodes are made of single transitions")
    _check_fields(buffer.fields)
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


def _arrays_of(episode: EpisodeData) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an episode by field name, without flags."""
    arrays = _by_field(episode.observations, "observation") | _by_field(episode.actions, "action")
    return {**arrays, "minari.reward": episode.rewards}


def _dtypes_of_first(dataset: MinariDataset) -> dict[str, np.dtype[Any]]:
    """The dtypes of the first episode by field name; float64 for rewards that are no floats, as later ones may be."""
    found: dict[str, np.dtype[Any]] = {"minari.reward": np.dtype("float64")}
    for episode in dataset.iterate_episodes(dataset.episode_indices[:1]):
        found |= {name: array.dtype for name, array in _arrays_of(episode).items()}
    if not np.issubdtype(found["minari.reward"], np.floating):
        found["minari.reward"] = np.dtype("float64")
    return found


def _check_dtypes(i: int, episode: EpisodeData, dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Raises an error if one of these dtypes, by field name, cannot hold all values of episode i."""
    for name, array in _arrays_of(episode).items():
        dtype = dtypes.get(name, array.dtype)
        if dtype == array.dtype or _holds(dtype, array):
            continue
        common = np.promote_types(array.dtype, dtype)
        if common.kind not in (array.dtype.kind, dtype.kind) or not _holds(common, array):
            common = array.dtype  # float64 would round 64-bit integers
        raise per.InvalidArgument(
            f"{name} of episode {i} has dtype {array.dtype}; allowed: values that the field's {dtype} can hold, or "
            f"dtypes={{{name!r}: '{common}'}}"
        )


def _holds(dtype: np.dtype[Any], array: npt.NDArray[Any]) -> bool:
    """True if an array can be converted to this dtype and back without a change of any bit."""
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return False
    with np.errstate(all="ignore"):
        held = array.astype(dtype)
        if held.astype(array.dtype).tobytes() != array.tobytes():
            return False
    if array.dtype.kind not in "iu" or array.size == 0:
        return True
    # An integer that wraps or saturates may survive the way there and back. Python compares the extremes exactly.
    return all(end(held).item() == end(array).item() for end in (np.min, np.max))


def _with_resets(steps: dict[str, Any]) -> dict[str, Any]:
    """The steps, with a reset step after each end. A buffer with autoreset "next_step" recognizes and drops it.

    Without it, such a buffer drops the first step of an episode that begins with the observation that ended the last.
    """
    order = np.repeat(np.arange(len(steps["reward"])), 1 + (steps["terminated"] | steps["truncated"]))
    is_reset = np.append(False, order[1:] == order[:-1])
    steps = _map(lambda array: array[order], steps)
    for observation, after in zip(_leaves(steps["observation"]), _leaves(steps["next_observation"]), strict=True):
        observation[is_reset] = after[is_reset]
    for name in ("reward", "terminated", "truncated"):
        steps[name][is_reset] = 0
    return steps


def _check_fields(fields: Mapping[str, per.Field]) -> None:
    """Raises an error if episodes of a buffer with these fields would miss values."""
    exported = {name: steps_of(name)[0] for name in fields if steps_of(name)[0] in _EXPORTED}
    for needed in ("observation", "action"):
        if needed not in exported.values():
            raise per.InvalidArgument(f"fields are {', '.join(fields)}; needed: observation and action")
    for name, field in fields.items():
        if (field.role == "observation") != (exported.get(name) == "observation"):
            raise per.Unsupported(
                f"field {name} has role {field.role!r}; allowed: 'observation' for observation and its parts, and for "
                "no other field, as an episode has one observation"
            )
        if name in exported and field.dtype == "bfloat16":
            raise per.Unsupported(f"field {name} has dtype bfloat16; allowed: dtypes of numpy")


def _pieces(buffer: per.ReplayBuffer) -> Iterator[dict[str, Any]]:
    """Runs of consecutive rows, of which only the last may end an episode."""
    ids = buffer.live_ids()
    for run in np.split(ids, np.flatnonzero(np.diff(ids) != buffer.n_envs) + 1):
        if run.size > 0:
            values = dict(buffer.get(run))
            rows: dict[str, Any] = _map(np.asarray, {name: values[name] for name in _EXPORTED if name in values})
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


def _by_field(value: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays in dicts and tuples by field name."""
    if not isinstance(value, (Mapping, tuple)):
        return {name: value}
    parts = parts_of(name, value)
    return {field: array for part in parts for field, array in _by_field(parts[part], part).items()}


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
