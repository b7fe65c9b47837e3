"""Coordinator: several buffers, the shards, that draw as one buffer with all their lanes does."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from per import _arrays, _library, _options
from per._errors import InvalidArgument
from per._handle import Handle, created
from per._library import NULL, check, ffi, lib

Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Law:
    """What draws from a buffer are made of, in whole numbers: ReplayBuffer.law().

    Attributes:
        total_mass: sum of mass(p^alpha) = ceil(p^alpha 2^scale) over the live transitions
        smallest_mass: the smallest of them that is not 0; 0 unless the buffer has normalize_weights="buffer_max"
        live: transitions that can be drawn
        changes: calls that may have changed what is drawn
        max_priority: priority that the next transition gets
        scale: of the masses
        is_scale_fixed: whether it was set
        measured_scale: at which masses were measured; None: none were, and what is measured is 0
        measured_mass: sum of all masses at that scale
        largest_leaf: the largest p^alpha, if it was measured
        scale_needed: the scale that this buffer would choose by itself now, if it was measured
    """

    total_mass: int
    smallest_mass: int
    live: int
    changes: int
    max_priority: float
    scale: int
    is_scale_fixed: bool
    measured_scale: int | None = None
    measured_mass: int = 0
    largest_leaf: float = 0.0
    scale_needed: int = 0

    @classmethod
    def _of(cls, replay: Any, measured_scale: int | None) -> Law:
        law = _library.new("per_law")
        scale = lib.PER_SCALE_AUTOMATIC if measured_scale is None else _options.whole("measured_scale", measured_scale)
        check(lib.per_replay_law(replay, scale, law))
        return cls(
            int(law.total_mass),
            int(law.smallest_mass),
            int(law.live),
            int(law.changes),
            float(law.max_priority),
            int(law.scale),
            bool(law.is_scale_fixed),
            measured_scale,
            int(law.measured_low) + (int(law.measured_high) << 64),
            float(law.largest_leaf),
            int(law.scale_needed),
        )

    def _struct(self) -> Any:
        law = _library.new("per_law")
        law.total_mass, law.smallest_mass, law.live = self.total_mass, self.smallest_mass, self.live
        law.changes, law.max_priority = self.changes, self.max_priority
        law.scale, law.is_scale_fixed = self.scale, self.is_scale_fixed
        if self.measured_scale is not None:
            law.measured_scale = self.measured_scale
        law.measured_low, law.measured_high = self.measured_mass & (2**64 - 1), self.measured_mass >> 64
        law.largest_leaf, law.scale_needed = self.largest_leaf, self.scale_needed
        return law


class Shard(NamedTuple):
    """What a shard is to be created with."""

    capacity: int
    n_envs: int
    first_env: int
    """the environment of the whole that is the shard's environment 0"""


class Settling(NamedTuple):
    """What Coordinator.settle() asks for."""

    todo: str
    """"measure": law(measured_scale=scale) of each shard that is there; "set": set_scale(scale), and then its law()"""
    scale: int


class Round(NamedTuple):
    """Units of a batch, and which shard each of them is in."""

    shards: Ids
    """int64[n]"""
    units: Ids
    """int64[n], for get_units() of that shard"""


class CoordinatedBatch(NamedTuple):
    """What Coordinator.finish() returns."""

    ids: Ids
    """int64[batch_size], of the whole"""
    weights: npt.NDArray[np.float32]
    """float32[batch_size]"""
    probabilities: npt.NDArray[np.float32]
    """float32[batch_size]"""


@dataclasses.dataclass(frozen=True)
class CoordinatorState:
    """What a coordinator knows: Coordinator.state().

    Attributes:
        samples: batches drawn; with the seed the whole random state
        beta_step: batches that advanced beta
        total_mass: of the shards that were there when they were last settled
        rescales_below: a total mass below this asks for another scale
        live: transitions of the shards that are there
        shards: how many are there
        beta: exponent of the weights of the next batch
        max_priority: the largest priority that any shard ever told of, at least 1
        scale: of all masses
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


class Coordinator(Handle):
    """Draws from several buffers, the shards, as one buffer with all their lanes would.

    The ids, transitions, weights and priorities are those of the one, bit for bit, for any number of shards. They may
    be in several processes and on several machines: a coordinator calls none of them, and the program carries what the
    one says to the other.

    Arguments:
        capacity, n_envs: of the whole. Shard s has the environments from s n_envs / n_shards on.
        n_shards: 1 to n_envs.
        options: those of ReplayBuffer, of which the law of draws matters: seed, alpha, beta, scheme, ...

    Raises:
        Unsupported for prioritization "rank" and max_priority "now", which need more of the shards than their laws.

    >>> import numpy as np, per
    >>> fields = {"observation": per.Field((), "float32")}
    >>> coordinator = per.Coordinator(40, 2, n_envs=4, seed=3)
    >>> shards = []
    >>> for s in range(2):
    ...     capacity, n_envs, _ = coordinator.shard(s)
    ...     shards.append(per.ReplayBuffer(capacity, fields, n_envs=n_envs))
    ...     steps = np.zeros((8, n_envs))
    ...     ids = shards[s].extend(observation=steps, reward=steps, terminated=steps, truncated=steps)
    >>> per.coordinator.settle(coordinator, shards)
    >>> round = coordinator.draw(6)
    >>> found = [(s, shards[s].get_units(round.units[round.shards == s])) for s in range(2)]
    >>> ids, masses = np.empty(6, np.int64), np.empty(6, np.int64)
    >>> for s, (batch, mass, _) in found:
    ...     ids[round.shards == s], masses[round.shards == s] = batch.ids, mass
    >>> coordinator.found(ids, masses)
    >>> coordinator.finish().weights.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """

    _noun = "coordinator"
    _in_place_of_pickling = "Pickle its state(), and restore() another."

    def __init__(self, capacity: int, n_shards: int, *, n_envs: int = 1, **options: object) -> None:
        given = _library.new("per_replay_options")
        known = {name for name, _ in ffi.typeof("per_replay_options").fields} - {"struct_size", "fields", "n_fields"}
        for name in options:
            if name not in known:
                raise InvalidArgument(f"{name} is no option of a coordinator{_options.meant(name, known)}")
        # What is not given stays as the library filled it.
        _options.set_options(given, {name: value for name, value in options.items() if value is not None})
        _options.set_options(given, {"capacity": capacity, "n_envs": n_envs})
        self._handle = created(lib.per_coordinator_create, given, _options.whole("n_shards", n_shards))
        self._batch_size = 0

    def shard(self, shard: int) -> Shard:
        """What that shard is to be created with, beside the options of the whole."""
        out = [ffi.new("int64_t *") for _ in range(3)]
        check(lib.per_coordinator_shard(self._open(), _options.whole("shard", shard), *out))
        return Shard(*(int(number[0]) for number in out))

    def tell(self, shard: int, law: Law | None) -> None:
        """Takes what law() says of a shard; None: it is gone, and its mass with it, until it tells of itself again."""
        struct = NULL if law is None else law._struct()
        check(lib.per_coordinator_tell(self._open(), _options.whole("shard", shard), struct))

    def settle(self, chooses_anew: bool = False) -> Settling | None:
        """Brings all shards to the scale that one buffer would have; None: they are there, and batches can be drawn.

        What it asks for is done with every shard that is there, whose law is then told, and settle() called again.

        Arguments:
            chooses_anew: as after setting alpha, whatever the scale was; for the first of these calls.

        Raises:
            InvalidArgument if a shard has never told of itself, or has not done what was asked for.
        """
        todo, scale = ffi.new("int32_t *"), ffi.new("int32_t *")
        check(lib.per_coordinator_settle(self._open(), chooses_anew, todo, scale))
        if todo[0] == lib.PER_SETTLED:
            return None
        return Settling("measure" if todo[0] == lib.PER_SETTLE_MEASURE else "set", int(scale[0]))

    def draw(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        scheme: str | None = None,
        prioritization: str | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: str | None = None,
    ) -> Round:
        """Begins a batch: the units of its first round. There is one round; without replacement there may be several.

        Raises:
            Empty if nothing is live; Unsupported for prioritization "rank", and without replacement for a
            uniform_fraction between 0 and 1; InvalidArgument, also before settle() has returned None.
        """
        options = _options.sample_options(beta, scheme, prioritization, uniform_fraction, normalize_weights, None)
        count = ffi.new("int64_t *")
        size = _options.whole("batch_size", batch_size)
        check(lib.per_coordinator_draw(self._open(), options, size, count))
        self._batch_size = size
        return self._next_round(count[0])

    def _next_round(self, count: int) -> Round:
        round = Round(np.empty(count, np.int64), np.empty(count, np.int64))
        check(lib.per_coordinator_units(self._open(), count, *(ffi.from_buffer("int64_t[]", array) for array in round)))
        return round

    def found(self, ids: object, masses: object, first_units: object = None) -> Round | None:
        """Takes what get_units() of the shards found for the round, in the order of its units: int64[n] each.

        Returns:
            The next round, or None: finish() comes next.

        Raises:
            InvalidArgument for what the shards cannot have found: the round is still under way; and where without
            replacement fewer than batch_size can be drawn, or a round finds only what was taken out: then no batch is.
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
        check(lib.per_coordinator_found(self._open(), n, *pointers, count))
        return self._next_round(count[0]) if count[0] else None

    def finish(self) -> CoordinatedBatch:
        """Ends a batch, which counts from now on.

        With replacement its transitions are those of the round, in that order; without, get_windows() of the shards has
        them, by locate().
        """
        n = self._batch_size
        batch = CoordinatedBatch(np.empty(n, np.int64), np.empty(n, np.float32), np.empty(n, np.float32))
        types = "int64_t[]", "float[]", "float[]"
        pointers = [ffi.from_buffer(type, array) for type, array in zip(types, batch, strict=True)]
        check(lib.per_coordinator_finish(self._open(), n, *pointers))
        return batch

    def locate(self, ids: object) -> tuple[Ids, Ids]:
        """Which shards ids of the whole belong to, and what they are there; -1 for id -1."""
        array = _arrays.as_int64(ids, "ids")
        out = np.empty(array.size, np.int64), np.empty(array.size, np.int64)
        pointers = [ffi.from_buffer("int64_t[]", each) for each in (array, *out)]
        check(lib.per_coordinator_locate(self._open(), array.size, *pointers))
        return out

    def ids(self, shard: int, ids: object) -> Ids:
        """Ids of the whole, from those of a shard; -1 stays -1."""
        array = _arrays.as_int64(ids, "ids")
        out = np.empty(array.size, np.int64)
        pointers = [ffi.from_buffer("int64_t[]", each) for each in (array, out)]
        check(lib.per_coordinator_ids(self._open(), _options.whole("shard", shard), array.size, *pointers))
        return out

    def state(self) -> CoordinatorState:
        """What is to be saved with the shards."""
        status = _library.new("per_coordinator_status")
        check(lib.per_coordinator_state(self._open(), status))
        return CoordinatorState(*(getattr(status, field.name) for field in dataclasses.fields(CoordinatorState)))

    def restore(self, state: CoordinatorState) -> None:
        """Makes it the coordinator that had this state; before any shard has told of itself."""
        status = _library.new("per_coordinator_status")
        for field in dataclasses.fields(CoordinatorState):
            setattr(status, field.name, getattr(state, field.name))
        check(lib.per_coordinator_restore(self._open(), status))


def settle(coordinator: Coordinator, shards: Any, chooses_anew: bool = False) -> None:
    """Tells of buffers of this process, one for each shard or None where it is gone, and brings them to one scale."""
    for s, shard in enumerate(shards):
        coordinator.tell(s, None if shard is None else shard.law())
    asked = coordinator.settle(chooses_anew)
    while asked is not None:
        for s, shard in enumerate(shards):
            if shard is None:
                continue
            if asked.todo == "set":
                shard.set_scale(asked.scale)
            coordinator.tell(s, shard.law(asked.scale if asked.todo == "measure" else None))
        asked = coordinator.settle()
