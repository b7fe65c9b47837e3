"""The naive model and the library behind the same interface, so that one test runs against both."""

from __future__ import annotations

import contextlib

import cuda_switch
import numpy as np
import per
import pytest
from naive_replay import COUNTERS, NaiveReplay, Refused
from per import _library
from per._library import ffi, lib
from toy_environments import is_in_row

COUNTED = COUNTERS

DESCRIBED = ("capacity", "live", "total", "max_priority", "beta", "alpha", "gamma")
PLAIN_OUTPUTS = (
    ("reward", "float", "float32"),
    ("discount", "float", "float32"),
    ("n_steps", "int32_t", "int32"),
    ("terminated", "uint8_t", "bool"),
    ("truncated", "uint8_t", "bool"),
    ("priorities", "float", "float32"),
    ("gamma_m", "float", "float32"),
)
SCALAR = {"observation": per.Field((), "float32"), "action": per.Field((), "int64")}


@contextlib.contextmanager
def skip_if_unsupported():
    try:
        yield
    except per.Unsupported as error:
        pytest.skip(str(error))


def flat(batch, fields=None):
    """{name: array} with full names of fields, "observation.image" for batch["observation"]["image"].

    Rows of any length are padded to the max_length of these fields.
    """
    arrays = {}
    for name, value in batch.items():
        if isinstance(value, dict):
            arrays |= {f"{name}.{part}": array for part, array in value.items()}
        elif isinstance(value, per.Ragged):
            arrays[name] = value.padded(fields[name.removeprefix("next_")].max_length)
        else:
            arrays[name] = value
    return arrays


class ModelReplay:
    def __init__(self, capacity, fields=SCALAR, **options):
        self.naive = self._call(NaiveReplay, capacity, fields, **options)

    def close(self):
        pass

    def _call(self, function, *args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Refused as refusal:
            raise getattr(per, refusal.kind)(str(refusal)) from None

    def __getattr__(self, name):
        verb = getattr(self.naive, name)
        return lambda *args, **kwargs: self._call(verb, *args, **kwargs)

    def reloaded(self, path):
        return self

    def rows(self):
        """{id: row} of all live transitions."""
        return {id: self.naive.row(id) for id in self.naive.live()}

    def stats(self):
        naive = self.naive
        return dict(
            naive.counters,
            capacity=naive.capacity,
            live=len(naive.live()),
            total=naive.total(),
            max_priority=naive.largest(),
            beta=naive.beta,
            alpha=naive.alpha,
            gamma=naive.gamma,
        )


class LibraryReplay:
    def __init__(self, capacity, fields=SCALAR, **options):
        self.buffer = per.ReplayBuffer(capacity, fields, **options)
        self.fields = fields

    def close(self):
        self.buffer.close()

    def __getattr__(self, name):
        return getattr(self.buffer, name)

    def packed(self, arrays):
        """Arrays by name; those of padded rows of any length become per.Ragged."""
        given = dict(arrays)
        for name in arrays:
            field = self.fields.get(name.removeprefix("next_"))
            if field is not None and field.max_length is not None and given[name] is not None:
                inside = is_in_row(np.asarray(given[name]), field).reshape(-1, field.max_length)
                values = np.asarray(given[name]).reshape(*inside.shape, *field.value_shape)
                offsets = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
                given[name] = per.Ragged(values[inside], offsets)
        return given

    def add(self, **arrays):
        return self.buffer.add(**self.packed(arrays))

    def extend(self, **arrays):
        return self.buffer.extend(**self.packed(arrays))

    def set(self, ids, **arrays):
        self.buffer.set(ids, **self.packed(arrays))

    def reloaded(self, path):
        """Another buffer with the same content, saved to a file and loaded."""
        self.buffer.save(path)
        other = LibraryReplay.__new__(LibraryReplay)
        other.fields = self.fields
        other.buffer = per.ReplayBuffer.load(path)
        return other

    def set_alpha(self, alpha):
        self.buffer.alpha = alpha

    def set_beta(self, beta):
        self.buffer.beta = beta

    def set_gamma(self, gamma):
        self.buffer.gamma = gamma

    def set_n_step(self, n_step):
        self.buffer.n_step = n_step

    def stats(self):
        stats = self.buffer.stats()
        return {name: getattr(stats, name) for name in (*COUNTED, *DESCRIBED)}

    def get(self, id):
        return {name: array[0] for name, array in self.get_rows([id], with_next=True).items()}

    def get_rows(self, ids, with_next):
        """Arrays of plain rows, without next observations unless requested."""
        if with_next:
            return flat(cuda_switch.reported(self.buffer, lambda: self.buffer.get(ids)), self.fields)
        if any(field.max_length is not None for field in self.fields.values()):
            rows = flat(self.buffer.get(ids, next_observations=False), self.fields)
            return {name: array for name, array in rows.items() if name != "ids"}
        ids = np.ascontiguousarray(ids, np.int64)
        rows = {name: np.empty((len(ids), *f.shape), f.dtype) for name, f in self.fields.items()}
        pointers = ffi.new("void *[]", [ffi.from_buffer(array) for array in rows.values()])
        batch = _library.new("per_batch")
        batch.fields = pointers
        counts = (("times_sampled", "int32_t", "int32"),) if self.buffer._keeps_times_sampled else ()
        for name, c_type, dtype in (*PLAIN_OUTPUTS, *counts):
            rows[name] = np.empty(len(ids), dtype)
            setattr(batch, name, ffi.from_buffer(c_type + "[]", rows[name]))
        arguments = self.buffer._handle, len(ids), ffi.from_buffer("int64_t[]", ids), batch, ffi.NULL
        cuda_switch.reported(self.buffer, lambda: _library.check(lib.per_replay_get(*arguments)))
        return rows

    def sample(self, batch_size, **options):
        return flat(cuda_switch.reported(self.buffer, lambda: self.buffer.sample(batch_size, **options)), self.fields)

    def get_windows(self, ids, **options):
        return flat(cuda_switch.reported(self.buffer, lambda: self.buffer.get_windows(ids, **options)), self.fields)

    def rows(self):
        """{id: row} of all live transitions, drawn at alpha = 0 from strata as wide as half of one."""
        live = len(self.buffer)
        if live == 0:
            return {}
        alpha = self.buffer.alpha
        self.buffer.alpha = 0
        batch = flat(self.buffer.sample(2 * live, scheme="stratified", beta=0.0))
        self.buffer.alpha = alpha
        rows = {int(id): {name: array[i] for name, array in batch.items()} for i, id in enumerate(batch["ids"])}
        assert len(rows) == live
        return rows


def make_library(capacity, fields=SCALAR, **options):
    with skip_if_unsupported():
        return LibraryReplay(capacity, fields, **options)


make_each = pytest.mark.parametrize("make", [ModelReplay, make_library], ids=["model", "library"])


def add(buffer, observation, following=None, reward=0.0, end=None, **more):
    """One step of the only environment. `end`: None, "terminated" or "truncated"; returns the id."""
    if following is not None:
        more["next_observation"] = np.array([following], np.float32)
    ids = buffer.add(
        observation=np.array([observation], np.float32),
        action=np.array([0 if np.isnan(observation) else int(observation)]),
        reward=np.array([reward], np.float32),
        terminated=np.array([end == "terminated"]),
        truncated=np.array([end == "truncated"]),
        **more,
    )
    return int(ids[0])


def add_episode(buffer, first, length, end="terminated", reward=1.0, **more):
    """Observations first, first + 1 ...; the final one is first + length. Returns the ids."""
    last = first + length - 1
    return [
        add(buffer, o, o + 1, reward=reward, end=end if o == last else None, **more) for o in range(first, last + 1)
    ]


def seen(row):
    """(observation, next observation, reward, discount, n_steps, terminated, truncated) of a row, as Python numbers."""
    names = ("observation", "next_observation", "reward", "discount", "n_steps", "terminated", "truncated")
    return tuple(pytest.approx(float(row[name]), rel=1e-6) for name in names)


def check(row, observation, following, reward, discount, n_steps, terminated, truncated):
    assert (observation, following, reward, discount, n_steps, terminated, truncated) == seen(row)


def refused(kind):
    return pytest.raises(getattr(per, kind))
