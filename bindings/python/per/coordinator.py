"""Coordinator: makes several buffers, the shards, draw as one buffer with all their lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from per import _arrays, _library, _options
from per._errors import InvalidArgument, kind_of
from per._handle import Handle, created
from per._library import NULL, check, ffi, lib
from per.typing import (
    CoordinatorOptions,
    DrawOptions,
    FloatLike,
    IntArrayLike,
    IntLike,
    NormalizeWeights,
    Prioritization,
    Scheme,
    Unpack,
)

if TYPE_CHECKING:
    from per.replay import ReplayBuffer
else:  # for typing.get_type_hints(); the module of buffers imports this one
    ReplayBuffer = Any

Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class ShardSummary:
    """The integers that draws from a buffer depend on: ReplayBuffer.summarize().

    Attributes
    ----------
    total_mass : int
        Sum of mass(p^alpha) = ceil(p^alpha 2^scale) over the live transitions.
    smallest_mass : int
        The smallest nonzero mass; 0 unless the buffer has normalize_weights="buffer_max".
    live : int
        Number of transitions that can be drawn.
    changes : int
        Number of calls that may have changed the draws.
    max_priority : float
        Priority of the next transition.
    scale : int
        Scale of the masses.
    is_scale_fixed : bool
        Whether the scale was set.
    version : int
        Version of steps that are added now.
    reference : int
        With a half-life, the reference of the leaves: a leaf is p^alpha 2^(birth / half_life - reference). Otherwise 0.
    measured_scale : int or None
        Scale of the additional measurement; None: nothing was measured, and the values below are 0.
    measured_reference : int
        Reference of the leaves in that measurement.
    measured_mass : int
        Sum of all masses at that scale.
    largest_leaf : float
        The largest leaf, which without a half-life is p^alpha, if it was measured.
    scale_needed : int
        The scale that this buffer would choose now, if it was measured.
    """

    total_mass: int
    smallest_mass: int
    live: int
    changes: int
    max_priority: float
    scale: int
    is_scale_fixed: bool
    version: int = 0
    reference: int = 0
    measured_scale: int | None = None
    measured_reference: int = 0
    measured_mass: int = 0
    largest_leaf: float = 0.0
    scale_needed: int = 0

    @classmethod
    def _of(cls, replay: Any, measured_scale: IntLike | None, measured_reference: IntLike) -> ShardSummary:
        scale = (
            lib.PER_SCALE_AUTOMATIC if measured_scale is None else _options.whole32("measured_scale", measured_scale)
        )
        reference = _options.whole("measured_reference", measured_reference)
        summary = _library.filled("per_shard_summary", lib.per_replay_summarize, replay, scale, reference)
        return cls(
            int(summary.total_mass),
            int(summary.smallest_mass),
            int(summary.live),
            int(summary.changes),
            float(summary.max_priority),
            int(summary.scale),
            bool(summary.is_scale_fixed),
            int(summary.version),
            int(summary.reference),
            None if measured_scale is None else int(measured_scale),
            int(summary.measured_reference),
            int(summary.measured_low) + (int(summary.measured_high) << 64),
            float(summary.largest_leaf),
            int(summary.scale_needed),
        )

    def _struct(self) -> Any:
        summary = _library.sized("per_shard_summary")
        if not isinstance(mass := self.measured_mass, int):
            raise InvalidArgument(f"summary.measured_mass is {mass!r}, a {type(mass).__name__}; allowed: an int")
        scale = lib.PER_SCALE_AUTOMATIC if self.measured_scale is None else self.measured_scale
        values = vars(self) | {"measured_scale": scale}
        del values["measured_mass"]
        for name, value in values.items():
            _options.set_field(summary, name, f"summary.{name}", value)
        _options.set_field(summary, "measured_low", "summary.measured_mass", mass & (2**64 - 1))
        _options.set_field(summary, "measured_high", "summary.measured_mass", mass >> 64)
        return summary


class Shard(NamedTuple):
    """The options to create a shard with."""

    capacity: int
    n_envs: int
    first_env: int
    """global index of the shard's environment 0"""


class ScaleRequest(NamedTuple):
    """A request from Coordinator.agree_on_scale()."""

    todo: Literal["measure", "set"]
    """"measure": summarize(scale, reference) of each present shard; "set": set_scale(scale, reference), and then
    summarize()"""
    scale: int
    reference: int
    """of the leaves with a half-life; otherwise 0"""


class Round(NamedTuple):
    """Units of a batch, and the shard of each."""

    shards: Ids
    """int64[n]"""
    units: Ids
    """int64[n], for get_units() of that shard"""


class CoordinatedBatch(NamedTuple):
    """The result of Coordinator.finish()."""

    ids: Ids
    """int64[batch_size], global ids, as of one buffer with all environments"""
    weights: npt.NDArray[np.float32]
    """float32[batch_size]"""
    probabilities: npt.NDArray[np.float32]
    """float32[batch_size]"""


@dataclasses.dataclass(frozen=True)
class CoordinatorState:
    """The state of a coordinator: Coordinator.state().

    Attributes
    ----------
    samples : int
        Batches drawn; with the seed, the whole random state.
    beta_step : int
        Batches that advanced beta.
    total_mass : int
        Total mass of the shards present when they last agreed on a scale.
    rescales_below : int
        A total mass below this requires another scale.
    live : int
        Transitions of the present shards.
    shards : int
        Number of present shards.
    beta : float
        Exponent of the weights of the next batch.
    max_priority : float
        The largest priority that any shard has reported, at least 1.
    scale : int
        Scale of all masses.
    reference : int
        Reference of all leaves; 0 without a half-life.
    """

    samples: int
    beta_step: int
    total_mass: int
    rescales_below: int
    live: int
    shards: int
    beta: float
    max_priority: float
    scale: int
    reference: int = 0

    def _struct(self) -> Any:
        status = _library.sized("per_coordinator_state")
        for name, value in vars(self).items():
            _options.set_field(status, name, f"state.{name}", value)
        return status


class Coordinator(Handle):
    """Draws from several buffers, the shards, as from one buffer with all their lanes.

    Ids, transitions, weights and priorities are bit-identical to those of that one buffer, for any number of shards.
    Shards may be in several processes and on several machines: the coordinator calls none of them, and the program
    passes the messages between them.

    Parameters
    ----------
    capacity : int
        Total rows of all shards.
    n_shards : int
        Number of shards, 1 to n_envs. Shard s has the environments from s n_envs / n_shards on.
    state : CoordinatorState, optional
        The state() of a coordinator with the same arguments, to continue from; None: a new one.
    **options : Unpack[CoordinatorOptions]
        Options of the whole, as of ReplayBuffer. Those that determine draws are used: n_envs, seed, alpha, ...

    Raises
    ------
    Unsupported
        prioritization is "rank" or max_priority is "now": these need more from the shards than their summaries.

    Examples
    --------
    >>> import numpy as np, per
    >>> fields = {"observation": per.Field((), "float32")}
    >>> coordinator = per.Coordinator(40, 2, n_envs=4, seed=3)
    >>> shards = []
    >>> for s in range(2):
    ...     capacity, n_envs, _ = coordinator.shard(s)
    ...     shards.append(per.ReplayBuffer(capacity, fields, n_envs=n_envs))
    ...     steps = np.zeros((8, n_envs))
    ...     ids = shards[s].extend(observation=steps, reward=steps, terminated=steps, truncated=steps)
    >>> per.coordinator.agree_on_scale(coordinator, shards)
    >>> round = coordinator.draw(6)
    >>> found = [(s, shards[s].get_units(round.units[round.shards == s])) for s in range(2)]
    >>> ids, masses = np.empty(6, np.int64), np.empty(6, np.int64)
    >>> for s, (batch, mass, _) in found:
    ...     ids[round.shards == s], masses[round.shards == s] = batch.ids, mass
    >>> coordinator.submit(ids, masses)
    >>> coordinator.finish().weights.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """

    _noun = "coordinator"
    _in_place_of_pickling = "Pickle its state(), and give it to another."

    def __init__(
        self,
        capacity: IntLike,
        n_shards: IntLike,
        *,
        state: CoordinatorState | None = None,
        **options: Unpack[CoordinatorOptions],
    ) -> None:
        given = _library.new("per_replay_options")
        known = set(_options.places(ffi.typeof("per_replay_options"))) - {
            "struct_size",
            "fields",
            "n_fields",
            "field_size",
            "device",
            "device_index",
            "storage",
            "storage_preallocated",
            "allocate",
            "deallocate",
            "context",
        }
        for name in options:
            if name not in known:
                raise InvalidArgument(f"{name} is no option of a coordinator{_options.meant(name, known)}")
        # Options that are not given keep the library's defaults.
        _options.set_options(given, {name: value for name, value in options.items() if value is not None})
        _options.set_options(given, {"capacity": capacity})
        if not isinstance(state, (CoordinatorState, type(None))):
            raise InvalidArgument(f"state is {kind_of(state)}; allowed: None, or a CoordinatorState")
        status = NULL if state is None else state._struct()
        self._handle = created(lib.per_coordinator_create, given, _options.whole("n_shards", n_shards), status)
        self._batch_size = 0

    def shard(self, shard: IntLike) -> Shard:
        """The values to create that shard with, beside the options of the whole.

        Parameters
        ----------
        shard : int
            Its number, from 0.
        """
        out = [ffi.new("int64_t *") for _ in range(3)]
        check(lib.per_coordinator_describe_shard(self._open(), _options.whole("shard", shard), *out))
        return Shard(*(int(number[0]) for number in out))

    def report(self, shard: IntLike, summary: ShardSummary | None) -> None:
        """Takes the summary of a shard; None: the shard and its mass are absent until it reports again.

        Parameters
        ----------
        shard : int
            Its number, from 0.
        summary : ShardSummary or None
            The result of the shard's summarize(). None: the shard is gone.
        """
        if not isinstance(summary, (ShardSummary, type(None))):
            raise InvalidArgument(f"summary is {kind_of(summary)}; allowed: None, or a ShardSummary")
        struct = NULL if summary is None else summary._struct()
        check(lib.per_coordinator_report(self._open(), _options.whole("shard", shard), struct))

    def agree_on_scale(self, chooses_anew: bool = False) -> ScaleRequest | None:
        """Brings all shards to the scale that one buffer would have. Returns None once batches can be drawn.

        Otherwise carry out the returned request on every present shard, report the new summaries, and call it again.

        Parameters
        ----------
        chooses_anew : bool, default False
            True: choose a new scale whatever the current one is, as is necessary after setting alpha. Only for the
            first call.

        Raises
        ------
        InvalidArgument
            A shard has never reported, or has not done what was requested; or versions differ.
        """
        todo, scale, reference = ffi.new("int32_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
        anew = _options.flag("chooses_anew", chooses_anew)
        check(lib.per_coordinator_agree_on_scale(self._open(), anew, todo, scale, reference))
        if todo[0] == lib.PER_SCALE_AGREED:
            return None
        return ScaleRequest("measure" if todo[0] == lib.PER_SCALE_MEASURE else "set", int(scale[0]), int(reference[0]))

    def draw(
        self,
        batch_size: IntLike,
        *,
        beta: FloatLike | None = None,
        scheme: Scheme | None = None,
        prioritization: Prioritization | None = None,
        uniform_fraction: FloatLike | None = None,
        normalize_weights: NormalizeWeights | None = None,
    ) -> Round:
        """Begins a batch and returns the units of its first round. Only draws without replacement may need more rounds.

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

        Raises
        ------
        Empty
            No transition is live.
        Unsupported
            prioritization is "rank", or uniform_fraction is between 0 and 1 without replacement.
        InvalidArgument
            Also before agree_on_scale() has returned None.
        """
        given: DrawOptions = {
            "beta": beta,
            "scheme": scheme,
            "prioritization": prioritization,
            "uniform_fraction": uniform_fraction,
            "normalize_weights": normalize_weights,
        }
        options = _options.sample_options(given)
        count = ffi.new("int64_t *")
        size = _options.whole("batch_size", batch_size)
        check(lib.per_coordinator_draw(self._open(), options, size, count))
        self._batch_size = size
        return self._next_round(count[0])

    def _next_round(self, count: int) -> Round:
        round = Round(np.empty(count, np.int64), np.empty(count, np.int64))
        check(
            lib.per_coordinator_get_units(
                self._open(), count, *(ffi.from_buffer("int64_t[]", array) for array in round)
            )
        )
        return round

    def submit(self, ids: IntArrayLike, masses: IntArrayLike, first_units: IntArrayLike | None = None) -> Round | None:
        """Takes the results of the shards' get_units() for the round, in the order of its units: int64[n] each.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from batches.
        masses : IntArrayLike
            int64[n], mass of each transition, as get_units() gives it.
        first_units : IntArrayLike, optional
            int64[n], the first unit of each, as get_units() gives it.

        Returns
        -------
        Round or None
            The next round; None: call finish() next.

        Raises
        ------
        InvalidArgument
            The values cannot come from the shards: the round stays open. Or, without replacement, fewer than batch_size
            can be drawn, or a round finds only transitions already taken: the batch is abandoned.
        """
        arrays = [_arrays.as_int64(ids, "ids"), _arrays.as_int64(masses, "masses")]
        if first_units is not None:
            arrays.append(_arrays.as_int64(first_units, "first_units"))
        n = arrays[0].size
        for array, name in zip(arrays, ("ids", "masses", "first_units"), strict=False):
            if array.size != n:
                raise InvalidArgument(f"{name} has {array.size} elements; allowed: {n}, as ids has")
        count = ffi.new("int64_t *")
        first = ffi.from_buffer("uint64_t[]", arrays[2]) if len(arrays) > 2 else NULL
        pointers = ffi.from_buffer("int64_t[]", arrays[0]), ffi.from_buffer("uint64_t[]", arrays[1]), first
        check(lib.per_coordinator_submit(self._open(), n, *pointers, count))
        return self._next_round(count[0]) if count[0] else None

    def finish(self) -> CoordinatedBatch:
        """Ends a batch, which then counts as drawn.

        With replacement, its transitions are those of the round, in that order. Without replacement, get them by
        locate() and get_windows() of the shards.
        """
        n = self._batch_size
        batch = CoordinatedBatch(np.empty(n, np.int64), np.empty(n, np.float32), np.empty(n, np.float32))
        types = "int64_t[]", "float[]", "float[]"
        pointers = [ffi.from_buffer(type, array) for type, array in zip(types, batch, strict=True)]
        check(lib.per_coordinator_finish(self._open(), n, *pointers))
        return batch

    def locate(self, ids: IntArrayLike) -> tuple[Ids, Ids]:
        """The shard of each global id, and the id within that shard; -1 for id -1.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from batches.
        """
        array = _arrays.as_int64(ids, "ids")
        out = np.empty(array.size, np.int64), np.empty(array.size, np.int64)
        pointers = [ffi.from_buffer("int64_t[]", each) for each in (array, *out)]
        check(lib.per_coordinator_locate(self._open(), array.size, *pointers))
        return out

    def ids(self, shard: IntLike, ids: IntArrayLike) -> Ids:
        """Converts ids of a shard to global ids; -1 stays -1.

        Parameters
        ----------
        shard : int
            Its number, from 0.
        ids : IntArrayLike
            int64[n], ids of that shard.
        """
        array = _arrays.as_int64(ids, "ids")
        out = np.empty(array.size, np.int64)
        pointers = [ffi.from_buffer("int64_t[]", each) for each in (array, out)]
        check(lib.per_coordinator_get_ids(self._open(), _options.whole("shard", shard), array.size, *pointers))
        return out

    def state(self) -> CoordinatorState:
        """The state to save together with the shards."""
        status = _library.filled("per_coordinator_state", lib.per_coordinator_get_state, self._open())
        return CoordinatorState(*(getattr(status, field.name) for field in dataclasses.fields(CoordinatorState)))


def agree_on_scale(coordinator: Coordinator, shards: Sequence[ReplayBuffer | None], chooses_anew: bool = False) -> None:
    """Reports the shards of this process, None for an absent one, and brings them to one scale."""
    for s, shard in enumerate(shards):
        coordinator.report(s, None if shard is None else shard.summarize())
    asked = coordinator.agree_on_scale(chooses_anew)
    while asked is not None:
        for s, shard in enumerate(shards):
            if shard is None:
                continue
            if asked.todo == "set":
                shard.set_scale(asked.scale, asked.reference)
                summary = shard.summarize()
            else:
                summary = shard.summarize(asked.scale, asked.reference)
            coordinator.report(s, summary)
        asked = coordinator.agree_on_scale()
