"""Reads files of replay buffers without libper, by docs/format.md.

    buffer = read_buffer(path)
    buffer.options["capacity"], buffer.counters["added"]
    for row in buffer.rows(0):
        buffer.lanes[0], row.k, row.flags, row.values["observation"], row.next_values

Needs the packages xxhash, for checksums, and zstandard, for compressed files.
"""

import struct
from dataclasses import dataclass

import numpy as np
import xxhash

MAGIC = b"\x89PER\r\n\x1a\n"
PIECE = 2**20
DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "bfloat16", "f4", "f8"]
OPTIONS = (
    [("q", "capacity"), ("q", "n_envs"), ("Q", "seed")]
    + [("q", name) for name in ("n_step", "frame_stack", "sequence_length", "burn_in", "sequence_stride", "beta_steps")]
    + [("q", name) for name in ("samples_tolerance", "min_size_to_sample")]
    + [("d", name) for name in ("gamma", "alpha", "beta", "beta_final", "epsilon", "sequence_eta", "uniform_fraction")]
    + [("d", "half_life"), ("q", "max_age"), ("i", "age"), ("d", "samples_per_insert")]
    + [
        ("i", name)
        for name in ("prioritization", "scheme", "normalize_weights", "max_priority", "on_invalid", "on_gap")
    ]
    + [("i", name) for name in ("autoreset", "store_next_observation", "overwrite", "critics", "gather_threads")]
    + [("i", name) for name in ("on_nan", "save_compression", "keep_times_sampled", "max_times_sampled")]
)
COUNTERS = ["added", "dropped", "episodes", "cuts", "updates", "stale_updates", "rejected_updates", "suspected_resets"]
FIGURES = [("q", "size"), ("q", "max_age"), ("d", "mean_age"), ("d", "effective_size"), ("d", "duplicates")]
RANK_CLASSES = 8160
IS_STEP, STARTS, TERMINATED, TRUNCATED, UNKNOWN, USED_UP = 1, 2, 4, 8, 16, 64
VERSIONS = 1
IDLE, RUNNING, ANNOUNCED, ENDED = range(4)


class Damaged(Exception):
    pass


class Source:
    """A cursor over bytes."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        if size > len(self.data) - self.at:
            raise Damaged("it ends early")
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def number(self, kind):
        (value,) = struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))
        return value

    def numbers(self, pairs):
        return {name: self.number(kind) for kind, name in pairs}


def decompressed(content, size):
    import zstandard

    pieces, source = [], Source(content)
    while size > 0:
        n = min(size, PIECE)
        pieces.append(zstandard.ZstdDecompressor().decompress(source.take(source.number("I")), max_output_size=n))
        size -= n
    return b"".join(pieces)


def sections(data):
    """The contents of the sections of a file, by name."""
    source, contents, seals = Source(data), {}, b""
    source.take(16)
    while "end" not in contents:
        begin = source.at
        name = source.take(source.number("I")).decode()
        is_compressed, size = source.number("I"), source.number("Q")
        if is_compressed:
            start, left = source.at, size
            while left > 0:
                source.take(source.number("I"))
                left -= min(left, PIECE)
            contents[name] = decompressed(data[start : source.at], size)
        else:
            contents[name] = source.take(size)
        if name == "end" and contents[name] != struct.pack("<Q", xxhash.xxh3_64_intdigest(seals)):
            raise Damaged("sections of another file are among those before the end")
        seal = struct.pack("<Q", xxhash.xxh3_64_intdigest(data[begin : source.at]))
        if source.take(8) != seal:
            raise Damaged("the checksum is wrong")
        seals += seal
    if source.at != len(data):
        raise Damaged("it goes on after its end")
    return contents


@dataclass
class Field:
    name: str
    shape: tuple
    dtype: int
    role: int
    stack: int
    padding: int
    compression: int
    default: np.ndarray | None = None

    def frames(self, content):
        """An array of the frames. bfloat16 is converted to float32."""
        if DTYPES[self.dtype] == "bfloat16":
            return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4").reshape(-1, *self.shape)
        return np.frombuffer(content, np.dtype(DTYPES[self.dtype]).newbyteorder("<")).reshape(-1, *self.shape)

    @property
    def is_observation(self):
        return self.role == 2

    @property
    def bytes(self):
        item = 2 if DTYPES[self.dtype] == "bfloat16" else np.dtype(DTYPES[self.dtype]).itemsize
        return item * int(np.prod(self.shape, dtype=np.int64))


@dataclass
class Lane:
    head: int
    first: int
    tail: int
    episode: int
    state: int


@dataclass
class Row:
    k: int
    id: int
    flags: int
    reward: np.float32
    priority: np.float32
    values: dict
    next_values: dict | None  # next observations, None if unknown
    times_sampled: int | None  # None if the buffer does not count draws
    version: int | None  # None if ages are steps


class Buffer:
    def __init__(self, data):
        if data[:8] != MAGIC:
            raise Damaged("it is no file of libper")
        if data[8:16] != struct.pack("<II", 1, 0):
            raise Damaged("it has another format")
        contents = sections(data)
        self._read_options(Source(contents["options"]))
        self._read_counters(Source(contents["counters"]))
        self._read_lanes(Source(contents["lanes"]))
        self._arrays = {name: frames(contents[name]) for name, frames in self._array_names()}
        self._read_ranks(Source(contents["ranks"]))
        self.rate_limiter = None
        if "rate limiter" in contents:
            self.rate_limiter = Source(contents["rate limiter"]).numbers([("q", "added"), ("q", "drawn")])

    def _read_options(self, source):
        self.options = source.numbers(OPTIONS)
        self.fields = [self._read_field(source) for _ in range(source.number("q"))]
        self.lane_rows = self.options["capacity"] // self.options["n_envs"]

    def _read_field(self, source):
        name = source.take(source.number("I")).decode()
        shape = tuple(source.number("q") for _ in range(source.number("i")))
        field = Field(name, shape, *(source.number("i") for _ in range(5)))
        if source.number("B"):
            field.default = field.frames(source.take(field.bytes))[0]
        return field

    def _read_counters(self, source):
        self.beta_step, self.batches = source.number("q"), source.number("q")
        self.counters = source.numbers([("q", name) for name in COUNTERS])
        self.largest_priority = np.float32(source.number("f"))
        self.scale, self.rescales_below = source.number("i"), source.number("Q")
        self.last_batch = source.numbers(FIGURES)
        self.version, self.reference = source.number("q"), source.number("q")

    def _read_lanes(self, source):
        self.lanes = [Lane(*struct.unpack("<qqqqB", source.take(33))) for _ in range(self.options["n_envs"])]

    def _read_ranks(self, source):
        self.ranks = None
        if source.number("B"):
            numbers = source.numbers([("q", "n_changes"), ("i", "scale"), ("Q", "rescales_below")])
            self.ranks = numbers | {"weights": np.frombuffer(source.take(4 * RANK_CLASSES), "<f4")}

    def _array_names(self):
        """Names of sections with arrays, and functions that make the array of a section."""
        yield "flags", lambda content: np.frombuffer(content, "u1")
        if self.options["age"] == VERSIONS:
            yield "versions", lambda content: np.frombuffer(content, "<i4")
        for name in ("rewards", "priorities"):
            yield name, lambda content: np.frombuffer(content, "<f4")
        if self.options["keep_times_sampled"]:
            yield "times sampled", lambda content: np.frombuffer(content, "<i4")
        for field in self.fields:
            yield f"field {field.name}", field.frames
            if self.options["store_next_observation"] and field.is_observation:
                yield f"field next_{field.name}", field.frames

    def row_range(self, env):
        """The range of the rows of an environment in the file: first, end."""
        lane = self.lanes[env]
        end = lane.head + (lane.state == ANNOUNCED and not self.options["store_next_observation"])
        first = max(lane.first, end - self.lane_rows)
        return (min(first, lane.head - 1) if lane.state == ENDED else first), end

    def rows(self, env):
        first, end = self.row_range(env)
        at = sum(last - start for start, last in map(self.row_range, range(env)))
        return [self._row(env, k, at + k - first) for k in range(first, end)]

    def _row(self, env, k, i):
        def frames(fields, place, prefix=""):
            return {field.name: self._arrays[f"field {prefix}{field.name}"][place] for field in fields}

        observations = [field for field in self.fields if field.is_observation]
        flags = int(self._arrays["flags"][i])
        next_values = None
        if self.options["store_next_observation"] and flags & IS_STEP:
            next_values = frames(observations, i, "next_")
        elif flags & IS_STEP and not flags & UNKNOWN and k + 1 < self.row_range(env)[1]:
            next_values = frames(observations, i + 1)
        values = frames(self.fields if flags & IS_STEP else observations, i)
        reward, priority = self._arrays["rewards"][i], self._arrays["priorities"][i]
        times = int(self._arrays["times sampled"][i]) if "times sampled" in self._arrays else None
        version = int(self._arrays["versions"][i]) if "versions" in self._arrays else None
        return Row(k, k * self.options["n_envs"] + env, flags, reward, priority, values, next_values, times, version)

    def live_ids(self):
        """Ids of live transitions in ascending order. Sequences are not supported."""
        n_step, ids = self.options["n_step"], []
        for env, lane in enumerate(self.lanes):
            for row in self.rows(env):
                if not row.flags & IS_STEP or row.flags & USED_UP or row.k < lane.tail:
                    continue
                if row.flags & TRUNCATED and row.flags & UNKNOWN:
                    continue
                runs = lane.state in (RUNNING, ANNOUNCED) and row.k >= lane.episode
                observed = lane.head - (lane.state == RUNNING)  # the last row with an observation
                if not runs or row.k + n_step <= observed:
                    ids.append(row.id)
        return sorted(ids)


def read_buffer(path):
    with open(path, "rb") as file:
        return Buffer(file.read())
