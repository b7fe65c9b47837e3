"""ReplayBuffer: one buffer whose environments are distributed among actors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import per
from per import _arrays, _options
from per._errors import InvalidArgument, Unsupported, io_error
from per._handle import constructor
from per.coordinator import CoordinatorState
from per.ray.channel import Channel
from per.ray.coordination import MANIFEST, VERSION, Coordination, Drawn, get, once_allowed
from per.ray.limits import OPTIONS as LIMITS
from per.ray.limits import Limits
from per.ray.loader import Loader
from per.ray.shard import Shard
from per.ray.writer import Steps, Writer, n_bytes, n_steps
from per.typing import ArrayLike, IntArrayLike, IntLike, NormalizeWeights, Prioritization, Scheme, WhenFull

Ids = npt.NDArray[np.int64]

_IN_HOST_MEMORY = "shards are in host memory, and give arrays of numpy"
_IN_MEMORY = "the rows of shards lie in memory"
_UNCOUNTED = "shards do not count the draws of a transition"
# Options that are fixed for shards, with the allowed values and the reason.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "device": (("cpu",), _IN_HOST_MEMORY),
    "arrays": (("numpy", None), _IN_HOST_MEMORY),
    "keep_times_sampled": ((False,), _UNCOUNTED),
    "max_times_sampled": ((0,), _UNCOUNTED),
    "storage": ((None,), _IN_MEMORY),
    "storage_preallocated": ((False,), _IN_MEMORY),
}

_NOT_OF_ACTORS = ("name", "lifetime", "max_concurrency", "max_restarts", "max_task_retries")

_CHOICES = ("beta", "scheme", "prioritization", "uniform_fraction", "normalize_weights")

# Draw options that draws in flight (exact=False) do not support: they need more than the total mass of each shard.
_NOT_AHEAD = {"scheme": "without_replacement", "prioritization": "uniform", "normalize_weights": "buffer_max"}
_MAX_SLOTS = 1024

# Larger steps of a shard, in bytes, are sent through the object store, not through the coordinator.
_LARGE_BYTES = 100_000


@dataclasses.dataclass(frozen=True)
class Statistics:
    """The result of ReplayBuffer.stats(): sums over the present shards, and the state of the whole.

    Attributes
    ----------
    capacity, live, added, dropped, episodes, cuts, stale_updates, rejected_updates, total, updates, memory_bytes
        As in per.Statistics. With a half-life by steps, the part of a shard in `total` has ages since its newest row.
    samples, beta_step, beta, max_priority
        As in per.Statistics.
    shards : int
        Number of present shards.
    losses : int
        Number of times that a shard was lost.
    outlived_updates : int
        Updates of transitions whose shard is gone, or has restarted since it issued their ids.
    gone : dict[int, str]
        Absent shards, with the reason.
    refused_calls : int
        Calls of writers, and steps of channels, that shards refused, for example because a lane was full.
    refusal : str
        The reason for the first refusal, of any shard; "" if there was none.
    """

    capacity: int
    live: int
    added: int
    dropped: int
    episodes: int
    cuts: int
    stale_updates: int
    rejected_updates: int
    total: float
    updates: int
    memory_bytes: int
    samples: int
    beta_step: int
    beta: float
    max_priority: float
    shards: int
    losses: int
    outlived_updates: int
    gone: dict[int, str]
    refused_calls: int
    refusal: str


_SUMMED = (
    *("capacity", "live", "added", "dropped", "episodes", "cuts", "stale_updates", "rejected_updates", "total"),
    *("updates", "memory_bytes"),
)
_OF_THE_WHOLE = ("samples", "beta_step", "beta", "max_priority", "shards")


class ReplayBuffer:
    """A sharded per.ReplayBuffer: each shard is a Ray actor with a contiguous range of the environments.

    Ids, transitions, weights and priorities are bit-identical to those of one buffer with all environments, for any
    number of shards. A handle may be pickled and used in other tasks and actors; all of them share one buffer. The
    buffer ends with the process that created it. The coordinating actor runs on that process's node.

    Parameters
    ----------
    capacity : int
        Rows of the whole, as in per.ReplayBuffer.
    fields : Mapping[str, per.Field]
        As in per.ReplayBuffer.
    n_envs : int, default 1
        Environments of the whole, as in per.ReplayBuffer.
    shards : int, default 1
        Number of shards, 1 to n_envs. Shard s has the environments from s n_envs / shards on.
    least_shards : int, optional
        Number of shards that must have started before this call returns; None: all. The call waits until Ray has room
        for them. The others start once there is room, for example when a node joins.
    timeout : float or None, default 60.0
        Seconds that a shard has to answer, except to save. A slower one counts as gone until it answers again; None: no
        limit.
    actor_options : Mapping[str, Any], optional
        Ray options() of the shards, such as num_cpus, memory, scheduling_strategy; not name, lifetime, max_concurrency,
        max_restarts and max_task_retries.
    **options : Any
        As in per.ReplayBuffer; device, arrays, storage, storage_preallocated, keep_times_sampled and max_times_sampled
        must have their defaults. The rate limiter is shared by all shards. max_heap_bytes is divided among the shards
        in proportion to their environments; Full is raised once the part of one of them is used up.

    Raises
    ------
    InvalidArgument
    Unsupported
        As in per.Coordinator.

    Examples
    --------
    >>> import ray  # doctest: +SKIP
    >>> import per, per.ray
    >>> buffer = per.ray.ReplayBuffer(  # doctest: +SKIP
    ...     1_000_000, {"observation": per.Field(17), "action": per.Field(6)}, n_envs=64, shards=4, seed=7
    ... )
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, per.Field],
        *,
        n_envs: int = 1,
        shards: int = 1,
        least_shards: int | None = None,
        timeout: float | None = 60.0,
        actor_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        for name, (allowed, reason) in _FIXED.items():
            if name in options and not any(_is_same(options[name], value) for value in allowed):
                raise InvalidArgument(f"{name} is {options[name]!r}; allowed: {allowed[0]!r}, as {reason}")
        steps = Steps({**options, "fields": fields}, n_envs)
        known: dict[str, Any] = {**steps.options, "capacity": _options.whole("capacity", capacity)}
        known["overwrite"] = options.get("overwrite", True)
        known["on_gap"] = options.get("on_gap", known["on_gap"])
        known |= _limits_of(options)
        most = -(-known["capacity"] // known["n_envs"]) * known["n_envs"]
        if not known["overwrite"] and known["min_size_to_sample"] > most:
            raise InvalidArgument(f"min_size_to_sample is {known['min_size_to_sample']}: allowed are 0 .. {most}")
        self._create(known, shards, least_shards, timeout, actor_options)

    def _create(
        self,
        options: dict[str, Any],
        shards: int,
        least_shards: int | None,
        timeout: float | None,
        actor_options: Mapping[str, Any] | None,
        manifest: dict[str, Any] | None = None,
        directory: str = "",
    ) -> None:
        whole = _coordinator(options, shards)
        options["overwrite"] = bool(options["overwrite"])  # as validated above
        least = shards if least_shards is None else _options.whole("least_shards", least_shards)
        if not 0 <= least <= shards:
            raise InvalidArgument(f"least_shards is {least}; allowed: 0 to {shards}")
        if timeout is not None:
            timeout = _options.real("timeout", timeout)
            if not 0 < timeout < math.inf:
                raise InvalidArgument(f"timeout is {timeout:g}; allowed: more than 0, and finite")
        if actor_options is not None and not isinstance(actor_options, Mapping):
            raise InvalidArgument(f"actor_options is {actor_options!r}; allowed: a dict")
        for name in (actor_options or {}).keys() & set(_NOT_OF_ACTORS):
            raise InvalidArgument(f"actor_options has {name}: shards choose it themselves")
        placed = {"num_cpus": 0, "scheduling_strategy": "SPREAD", **(actor_options or {}), "max_restarts": -1}
        actor = ray.remote(Shard).options(**placed)
        limits = manifest["limits"] if manifest else {name: options[name] for name in LIMITS}
        of_shards = {name: value for name, value in options.items() if name not in LIMITS}
        handles = []
        for s in range(shards):
            piece = whole.shard(s)
            of_shard = {**of_shards, "capacity": piece.capacity, "n_envs": piece.n_envs, "seed": s}
            limit = options.get("max_heap_bytes")
            of_shard["max_heap_bytes"] = limit and max(limit * piece.n_envs // options["n_envs"], 1)
            handles.append(actor.remote(of_shard, Limits(**limits).holds_adds))
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # A call in progress when its process died is repeated, except add.
        lives = {"max_restarts": -1, "max_task_retries": -1}
        coordination = ray.remote(Coordination).options(num_cpus=0, scheduling_strategy=here, **lives)
        coordinator = coordination.remote(handles, _law_options(options), timeout)
        get(coordinator.open.remote(least, manifest, directory, limits))
        self._attach(options, handles, coordinator)

    def _attach(self, options: dict[str, Any], shards: list[Any], coordinator: Any) -> None:
        self._options, self._shards, self._coordinator = options, shards, coordinator
        self._whole = _coordinator(options, len(shards))
        for s in range(len(shards)):
            self._whole.report(s, None)
        self._whole.agree_on_scale()  # lets it validate the arguments of draws
        self._steps = Steps(options, options["n_envs"])

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._options, self._shards, self._coordinator)

    # ------------------------------------------------------------ adding

    def add(self, **steps: Any) -> Ids:
        """Adds one step of every environment, like per.ReplayBuffer.add().

        Steps of an absent shard are lost, and their ids are -1. A shard that did not answer in time may still have
        added them. Full does not undo the adds of other shards.
        """
        return self._add(False, steps)

    def extend(self, **steps: Any) -> Ids:
        """Adds K consecutive steps, like per.ReplayBuffer.extend(); with priorities or TD errors in K calls."""
        if steps.get("priorities") is None and steps.get("td_errors") is None:
            return self._add(True, steps)
        arrays, shape = self._steps.look(True, steps)
        each = [
            {name: array if array.ndim == 0 or name == "env_ids" else array[k] for name, array in arrays.items()}
            for k in range(shape[0])
        ]
        return np.stack(self._send(False, each, shape[1:])) if each else np.empty(shape, np.int64)

    def _add(self, is_extend: bool, steps: dict[str, Any]) -> Ids:
        arrays, shape = self._steps.look(is_extend, steps)
        return self._send(is_extend, [arrays], shape)[0]

    def _send(self, is_extend: bool, calls: list[dict[str, Any]], shape: tuple[int, ...]) -> list[Ids]:
        """Adds steps call by call; the rate limiter allows all of them, or none."""
        given = [self._in_parts(is_extend, arrays, shape) for arrays in calls]
        parts = [{s: (part, count) for s, (part, count, _) in call.items()} for call in given]
        axis = int(is_extend)
        all_ids = []
        for call, added in zip(given, get(self._coordinator.add.remote(is_extend, parts)), strict=True):
            ids = np.full(shape, -1, np.int64)
            for s, of_shard in added.items():
                if len(shape) > axis:
                    ids[..., call[s][2]] = of_shard
                else:
                    ids[...] = of_shard
            all_ids.append(ids)
        return all_ids

    def _in_parts(
        self, is_extend: bool, arrays: dict[str, Any], shape: tuple[int, ...]
    ) -> dict[int, tuple[Any, int, Ids]]:
        """For each shard its part of the steps, their number, and their places in the ids."""
        axis = int(is_extend)
        env_ids = arrays.pop("env_ids", None)
        envs = np.arange(self.n_envs) if env_ids is None else env_ids
        shards, envs_there = self._whole.locate(envs)
        parts = {}
        there = np.unique(shards).tolist()
        for s in there:
            place = np.flatnonzero(shards == s)
            run = slice(int(place[0]), int(place[-1]) + 1) if env_ids is None else place
            part = dict(arrays)
            for name, array in arrays.items() if len(there) > 1 else ():
                # The environments are several: a first axis of 1 is that of the one step.
                before = int(is_extend or (array.ndim > 1 and len(array) == 1))
                if array.ndim > before:
                    part[name] = array[(slice(None),) * before + (run,)]
            if env_ids is not None:
                part["env_ids"] = envs_there[place]
            is_large = sum(map(n_bytes, part.values())) > _LARGE_BYTES
            count = n_steps(part, (*shape[:axis], len(place)) if len(shape) > axis else shape)
            parts[s] = ray.put(part) if is_large else part, count, place
        return parts

    def shard_of(self, env_ids: IntArrayLike) -> Ids:
        """The shard of each environment, int64[n].

        Parameters
        ----------
        env_ids : IntArrayLike
            int64[n], each once: environments, numbered from 0.
        """
        envs = _arrays.as_int64(env_ids, "env_ids")
        for i in np.flatnonzero((envs < 0) | (envs >= self.n_envs)):
            raise InvalidArgument(f"env_ids[{i}] is {envs[i]}: allowed are 0 .. {self.n_envs - 1}")
        return self._whole.locate(envs)[0]

    def writer(self, env_ids: IntArrayLike) -> Writer:
        """Creates a handle that writes steps of environments directly to their shard.

        It may be pickled. Its steps are added after the next batch or other call of any learner, and can then be drawn.

        Parameters
        ----------
        env_ids : IntArrayLike
            int64[n], environments of one shard, in the order of the steps to be written.
        """
        s, envs = self._of_one_shard(env_ids)
        return Writer(self._options, self._shards[s], self._coordinator, envs)

    def channel(
        self, env_ids: IntArrayLike, *, slots: int = 0, when_full: WhenFull = "waits", timeout: float | None = None
    ) -> Channel:
        """Creates a channel that writes steps of environments to their shard, in shared memory on the shard's node.

        An existing channel with the same arguments is returned. A channel lives as long as the process of its shard;
        after a shard has died and come back, there is another one.

        Parameters
        ----------
        env_ids : IntArrayLike
            As in writer(). An environment belongs to one channel.
        slots : int, default 0
            As in per.ReplayBuffer.channel().
        when_full : {"waits", "drops"}, default "waits"
            As in per.ReplayBuffer.channel().
        timeout : float, optional
            Seconds to wait for an absent shard; None: no limit.

        Raises
        ------
        InvalidArgument
            Also if one of the environments belongs to another channel.
        Timeout
            The shard is still gone after `timeout`.
        """
        s, envs = self._of_one_shard(env_ids)
        first_env = int(self._whole.shard(s).first_env)
        given = envs, first_env, _options.whole("slots", slots), when_full

        def made() -> tuple[str, str]:
            try:
                path_and_node: tuple[str, str] = get(self._shards[s].channel.remote(*given))
                return path_and_node
            except (per.Busy, ray.exceptions.RayError) as error:
                gone = per.Busy(f"shard {s} has no channel to give: {error}")
            get(self._coordinator.refresh.remote())  # detects the death of a shard and reopens it
            raise gone

        path, node_id = once_allowed(made, timeout, longest_pause=0.5)
        return Channel(path, node_id, self._shards[s], self._coordinator)

    def _of_one_shard(self, env_ids: IntArrayLike) -> tuple[int, Ids]:
        """The shard of environments, and their numbers there."""
        numbers = np.unique(self.shard_of(env_ids))
        envs = _arrays.as_int64(env_ids, "env_ids")
        again = np.setdiff1d(np.arange(envs.size), np.unique(envs, return_index=True)[1])
        if again.size:
            raise InvalidArgument(f"env_ids[{again[0]}] is {envs[again[0]]}: given twice")
        if numbers.size != 1:
            raise InvalidArgument(f"env_ids are of shards {numbers.tolist()}; allowed: environments of one shard")
        return int(numbers[0]), self._whole.locate(envs)[1]

    # ---------------------------------------------------------- sampling

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        scheme: Scheme | None = None,
        prioritization: Prioritization | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: NormalizeWeights | None = None,
        n_step: int | None = None,
    ) -> per.Batch:
        """Draws live transitions and their weights, like per.ReplayBuffer.sample().

        If a shard dies meanwhile, another batch is drawn from the remaining ones.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        beta : float, optional
            Exponent of the weights, in place of the buffer's.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            In place of the buffer's.
        prioritization : {"proportional", "rank", "uniform"}, optional
            In place of the buffer's.
        uniform_fraction : float, optional
            In place of the buffer's.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            In place of the buffer's.
        n_step : int, optional
            In place of the buffer's.

        Raises
        ------
        Empty
        InvalidArgument
        Unsupported
            The draw is not supported by per.Coordinator.draw().
        """
        given = beta, scheme, prioritization, uniform_fraction, normalize_weights
        asked = self._look_at_draw(batch_size, n_step, given)
        return self._batch(lambda: get(self._coordinator.sample.remote(*asked)))

    def loader(
        self,
        batch_size: int,
        *,
        slots: int = 3,
        exact: bool = True,
        beta: float | None = None,
        scheme: Scheme | None = None,
        prioritization: Prioritization | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: NormalizeWeights | None = None,
        n_step: int | None = None,
    ) -> Loader:
        """Creates an iterator over batches, up to `slots` of which are drawn ahead.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        slots : int, default 3
            Batches drawn ahead, and the most that the caller may hold at a time.
        exact : bool, default True
            True: each batch is drawn after the one before, and they are those of sample(). False: several batches are
            in flight, each drawn from what was known of the shards when it began; its probabilities and weights are
            those with which its transitions were actually drawn.
        beta : float, optional
            Exponent of the weights, in place of the buffer's.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            In place of the buffer's.
        prioritization : {"proportional", "rank", "uniform"}, optional
            In place of the buffer's.
        uniform_fraction : float, optional
            In place of the buffer's.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            In place of the buffer's.
        n_step : int, optional
            In place of the buffer's.

        Raises
        ------
        InvalidArgument
        Unsupported
            As in sample().
        Unsupported
            exact is False, and scheme is "without_replacement", prioritization is "uniform", uniform_fraction is set or
            normalize_weights is "buffer_max".
        """
        given = beta, scheme, prioritization, uniform_fraction, normalize_weights
        asked = self._look_at_draw(batch_size, n_step, given)
        exact, slots = _options.flag("exact", exact), _options.whole("slots", slots)
        if not 1 <= slots <= _MAX_SLOTS:
            raise InvalidArgument(f"slots is {slots}: allowed are 1 .. {_MAX_SLOTS}")
        if not exact:
            chosen = {name: self._options[name] if value is None else value for name, value in asked[-1].items()}
            for name, value in _NOT_AHEAD.items():
                if chosen[name] == value:
                    raise Unsupported(f"{name} is {value!r}: shards that draw ahead do not know it of each other")
            if chosen["uniform_fraction"]:
                raise Unsupported("uniform_fraction is not 0: shards that draw ahead draw by priority only")
        return Loader(self._coordinator, self._batch, slots, exact, asked)

    def _look_at_draw(self, batch_size: int, n_step: int | None, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments for the coordinator, validated before anything is sent."""
        if isinstance(n_step, (tuple, list)):
            raise Unsupported(f"n_step is {n_step}: shards draw no lengths of windows; allowed: an int")
        choices = dict(zip(_CHOICES, given, strict=True))
        for name in ("beta", "uniform_fraction"):
            choices[name] = None if choices[name] is None else _options.real(name, choices[name])
        size = _options.whole("batch_size", batch_size)
        length = None if n_step is None else _options.whole("n_step", n_step)
        self._steps.look_at_draw(size, {**choices, "n_step": length})
        with contextlib.suppress(per.Empty):
            self._whole.draw(size, **choices)
        return size, length, choices

    def _batch(self, draw: Callable[[], Drawn]) -> per.Batch:
        """The rows of a draw; if they are lost, of another draw."""
        while True:
            drawn = draw()
            try:
                rows = get([reference for _, reference in drawn.rows])
            except ray.exceptions.ObjectLostError:
                continue
            return self._steps.batch(drawn, rows)

    def update_priorities(
        self, ids: IntArrayLike, td_errors: ArrayLike | None = None, *, priorities: ArrayLike | None = None
    ) -> None:
        """Sets priorities by id, like per.ReplayBuffer.update_priorities().

        Transitions that their shard no longer has are skipped and counted: rows that were overwritten (stale_updates),
        and ids issued before the shard restarted (outlived_updates).

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from batches.
        td_errors : ArrayLike, optional
            float32[n] of any sign.
        priorities : ArrayLike, optional
            float32[n], >= 0, in place of td_errors.

        Raises
        ------
        InvalidArgument
            An id was never issued. Updates of other shards stay applied, and the message has the shard's own id.
        """
        whole, name, values = self._steps.look_at_update(ids, td_errors, priorities)
        axis = -2 if self._options["sequence_length"] and values.ndim > 1 and name == "td_errors" else -1
        get(self._coordinator.update.remote(whole, name, values, axis))

    # ------------------------------------------------------ rate limiter

    def wait_to_add(self, count: int | None = None, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows adding `count` steps, like per.ReplayBuffer.wait_to_add().

        The limiter is shared by all shards, and counts steps of writers once they are in the buffer.

        Parameters
        ----------
        count : int, optional
            Steps, over all environments; None: one of each.
        timeout : float, optional
            Seconds; None: no limit.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        InvalidArgument
            That many steps are never allowed.
        """
        steps = self.n_envs if count is None else _options.whole("count", count)
        if not 0 <= steps <= 1 << 40:
            raise InvalidArgument(f"count is {steps}: allowed are 0 .. {1 << 40}")
        once_allowed(lambda: get(self._coordinator.check_add.remote(steps)), timeout)

    def wait_to_sample(self, batch_size: int, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows drawing `batch_size` transitions: see wait_to_add().

        Meanwhile the buffer adds steps from writers.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        timeout : float, optional
            Seconds; None: no limit.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        InvalidArgument
            That many transitions are never allowed.
        """
        size = _options.whole("batch_size", batch_size)
        self._look_at_draw(size, None, (None,) * len(_CHOICES))
        once_allowed(lambda: get(self._coordinator.check_draw.remote(size)), timeout)

    def set_version(self, version: IntLike) -> None:
        """Sets the version under which steps are added from here on, like per.ReplayBuffer.set_version().

        A shard that is absent gets it once it is back.

        Parameters
        ----------
        version : int
            At least the latest version, which is 0 at first, and at most 2^31 - 1.
        """
        get(self._coordinator.set_version.remote(_options.whole("version", version)))

    def stop_limiting(self) -> None:
        """Ends all limits permanently, and lets all waiters continue."""
        get(self._coordinator.stop_limiting.remote())

    # ------------------------------------------------------------- state

    def stats(self) -> Statistics:
        """The buffer's contents and activity in numbers."""
        state, of_shards, known = get(self._coordinator.stats.remote())
        statistics, refused, refusals = zip(*of_shards.values(), strict=True) if of_shards else ((), (), ())
        return Statistics(
            **{name: sum(getattr(each, name) for each in statistics) for name in _SUMMED},
            **{name: getattr(state, name) for name in _OF_THE_WHOLE},
            **known,
            refused_calls=sum(refused),
            refusal=next(filter(None, refusals), ""),
        )

    def __len__(self) -> int:
        return int(get(self._coordinator.live.remote()))

    @property
    def n_envs(self) -> int:
        """Number of environments. Each has its own lane."""
        return int(self._options["n_envs"])

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a checkpoint of all shards between two batches. Shards that die are restored from the last checkpoint.

        `timeout` does not limit it.

        The previous checkpoint stays until the new one is complete, and after an error.

        Parameters
        ----------
        directory : str or os.PathLike[str]
            A directory that all nodes see. It is created if missing.

        Raises
        ------
        IoError
        Busy
            A shard is gone.
        """
        path = _path_of(directory)
        fields = {name: dataclasses.asdict(field) for name, field in self._options["fields"].items()}
        manifest = {"shards": len(self._shards), "options": {**self._options, "fields": fields}}
        get(self._coordinator.save.remote(path, manifest))

    @constructor
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        least_shards: int | None = None,
        timeout: float | None = 60.0,
        actor_options: Mapping[str, Any] | None = None,
    ) -> ReplayBuffer:
        """Loads a buffer from a checkpoint of save(). It continues bit-identically. Arguments are as in the class.

        Raises
        ------
        IoError
        CorruptFile
        Unsupported
            The checkpoint is of another version.
        """
        path = _path_of(directory)
        file = Path(path) / MANIFEST
        try:
            manifest = json.loads(file.read_text())
            if manifest["version"] != VERSION:
                raise Unsupported(f"{file}: version is {manifest['version']}; allowed: {VERSION}")
            options, shards = manifest["options"], _options.whole("shards", manifest["shards"])
            options["fields"] = {name: per.Field(**field) for name, field in options["fields"].items()}
            _look_at_manifest(manifest, shards)
        except OSError as error:
            raise io_error(f"{file}: {error.strerror}", error.errno, path) from None
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise per.CorruptFile(f"{file} is damaged: {error}") from None
        buffer = cls.__new__(cls)
        buffer._create(options, shards, least_shards, timeout, actor_options, manifest, path)
        return buffer

    def close(self) -> None:
        """Ends the actors, for all handles."""
        for actor in [self._coordinator, *self._shards]:
            ray.kill(actor)

    def __repr__(self) -> str:
        return f"per.ray.ReplayBuffer({self._options['capacity']}, n_envs={self.n_envs}, shards={self.shards})"


def _attached(options: dict[str, Any], shards: list[Any], coordinator: Any) -> ReplayBuffer:
    """Rebuilds a pickled handle."""
    buffer = ReplayBuffer.__new__(ReplayBuffer)
    buffer._attach(options, shards, coordinator)
    return buffer


def _path_of(directory: str | os.PathLike[str]) -> str:
    path = os.fsdecode(_options.path(directory, "directory"))
    if not path:
        raise InvalidArgument(f"directory is {directory!r}; allowed: the path of a directory")
    return os.path.abspath(path)


def _look_at_manifest(manifest: dict[str, Any], shards: int) -> None:
    """Raises an error if it does not describe a buffer."""
    options = manifest["options"]
    _options.flag("overwrite", options["overwrite"])
    Steps(options, options["n_envs"])
    per.Coordinator(n_shards=shards, state=CoordinatorState(**manifest["state"]), **_law_options(options))
    for limits in ({name: options[name] for name in LIMITS}, manifest["limits"]):
        for name, value in dataclasses.asdict(Limits(**limits)).items():
            (_options.real if name == "samples_per_insert" else _options.whole)(name, value)
    lives = np.array(manifest["lives"], np.int64)
    if lives.shape != (shards,) or (lives < 0).any() or _options.whole("number", manifest["number"]) < 1:
        raise ValueError("lives or number")


def _is_same(given: object, value: object) -> bool:
    is_comparable = given is None or isinstance(given, (str, int, np.bool_, np.integer))  # an array has no one answer
    return is_comparable and bool(given == value)


def _limits_of(options: dict[str, Any]) -> dict[str, Any]:
    """The given options of the rate limiter, as numbers that can be saved."""
    return {
        name: _options.real(name, options[name])
        if name == "samples_per_insert"
        else _options.whole(name, options[name])
        for name in LIMITS
        if name in options
    }


def _law_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of per.Coordinator."""
    others = ("fields", "device", "arrays", "storage", "storage_preallocated", *LIMITS)
    return {name: value for name, value in options.items() if name not in others}


def _coordinator(options: dict[str, Any], shards: int) -> per.Coordinator:
    try:
        return per.Coordinator(n_shards=_options.whole("shards", shards), **_law_options(options))
    except InvalidArgument as error:
        raise InvalidArgument(str(error).replace("n_shards", "shards")) from None
