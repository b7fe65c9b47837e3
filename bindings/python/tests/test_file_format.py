"""Files have the format of docs/format.md, and the files kept in tests/golden can be read."""

from __future__ import annotations

import io
import pathlib
import struct
import sys

import numpy as np
import per
import pytest
from naive_walk import Walk

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
import make_buffers
import read_buffer

GOLDEN = pathlib.Path(make_buffers.__file__).parent

pytestmark = pytest.mark.filterwarnings("ignore:After .* of .* ends", "ignore:.* cuts")

FIELDS = {
    "observation": per.Field((), "float32"),
    "screen": per.Field((2, 3), "uint8", role="observation", stack=2),
    "action": per.Field(2, "int16"),
    "noise": per.Field((), "float16", default=1.5),
}


def has_zstd():
    try:
        per.ReplayBuffer(10, FIELDS, save_compression=1)
    except per.Unsupported:
        return False
    return True


class FileWalk(Walk):
    end_probability = 0.08

    def observe(self):
        return {
            "observation": self.random.integers(0, 1000, self.n).astype(np.float32),
            "screen": self.random.integers(0, 256, (self.n, 2, 3)).astype(np.uint8),
        }

    def other_fields(self, at):
        return {
            "action": self.random.integers(-9, 9, (self.n, 2)).astype(np.int16),
            "noise": self.random.normal(size=self.n).astype(np.float16),
        }


def expect_what_the_library_says(file, buffer):
    """Rows, priorities, counters and options in the file, and the rows that can be drawn."""
    ids = buffer.live_ids()
    rows = {row.id: row for env in range(buffer.n_envs) for row in file.rows(env)}
    if not file.options["sequence_length"]:
        assert file.live_ids() == sorted(ids.tolist())
    batch = buffer.get(ids)
    for i, id in enumerate(ids):
        row = rows[int(id)]
        assert row.flags & read_buffer.IS_STEP
        assert batch["reward"][i] == row.reward
        assert bool(batch["terminated"][i]) == bool(row.flags & read_buffer.TERMINATED)
        assert bool(batch["truncated"][i]) == bool(row.flags & read_buffer.TRUNCATED)
        for field in file.fields:
            np.testing.assert_array_equal(batch[field.name][i], row.values[field.name])
            if field.is_observation and row.next_values is not None:
                np.testing.assert_array_equal(batch["next_" + field.name][i], row.next_values[field.name])
        assert row.times_sampled == (int(batch.times_sampled[i]) if "times_sampled" in batch else None)
    np.testing.assert_array_equal(buffer.priorities(ids), [rows[int(id)].priority for id in ids])
    statistics = buffer.stats()
    for name, value in file.counters.items():
        assert getattr(statistics, name) == value
    assert (statistics.samples, statistics.beta_step) == (file.batches, file.beta_step)
    if half_life := file.options["half_life"]:
        births = {id: row.k if row.version is None else row.version for id, row in rows.items()}
        now = max(lane.head for lane in file.lanes) - 1 if file.options["age"] == 0 else file.version
        decayed = [rows[int(id)].priority ** buffer.alpha * 2.0 ** ((births[int(id)] - now) / half_life) for id in ids]
        assert statistics.total == pytest.approx(sum(decayed), rel=1e-5)
    assert statistics.version == file.version
    assert file.options["capacity"] == buffer.capacity and file.options["seed"] == buffer.options["seed"]
    for name in ("n_step", "gamma", "alpha", "beta_final", "epsilon", "uniform_fraction", "n_envs"):
        assert file.options[name] == buffer.options[name]
    assert [(field.name, field.shape, field.stack) for field in file.fields] == [
        (name, field.shape, field.stack) for name, field in buffer.fields.items()
    ]


@pytest.mark.parametrize("seed", range(8))
def test_reader_without_libper_finds_what_the_library_says(seed):
    random = np.random.default_rng(seed)
    options = {
        "n_envs": int(random.integers(1, 4)),
        "n_step": int(random.integers(1, 4)),
        "prioritization": ("proportional", "rank", "uniform")[seed % 3],
        "autoreset": ("disabled", "next_step")[seed % 2],
    }
    if seed in (3, 6):
        options["store_next_observation"] = True
    if seed in (4, 5):
        options |= {"sequence_length": 2, "burn_in": 1}
    if seed in (2, 5, 7):
        options |= {"keep_times_sampled": True}
    if seed in (1, 6):
        options |= {"max_times_sampled": 2, "scheme": "without_replacement"}
    if seed in (0, 3, 6):
        options |= {"half_life": 4.0}
    if seed in (0, 6, 7):
        options |= {"age": "versions", "max_age": 2}
    walk = FileWalk(seed, options["n_envs"] * int(random.integers(9, 16)), FIELDS, **options)
    if seed % 2 and has_zstd():
        walk.buffer.save_compression = seed
    for version, length in enumerate((0, 1, 6, 40, 25)):
        if "max_age" in options:
            walk.buffer.set_version(version)
            walk.naive.set_version(version)
        for _ in range(length):
            walk.step()
        for size in (4, 3):
            if len(walk.buffer) < size:
                continue
            ids = walk.buffer.sample(size).ids
            if options.get("sequence_length") is None:
                walk.buffer.update_priorities(ids, priorities=random.random(size).astype(np.float32))
        content = bytes(walk.buffer)
        expect_what_the_library_says(read_buffer.Buffer(content), walk.buffer)
        assert bytes(per.ReplayBuffer.from_bytes(content)) == content
        if length == 40:
            walk.buffer.clear()
            walk.naive.clear()


def test_compressed_screens_are_five_times_smaller():
    """A game like Atari's: paddles, a ball and a score on a patterned background, most of which does not change."""
    if not has_zstd():
        pytest.skip("libper was built without zstd")
    fields = {"observation": per.Field((84, 84), "uint8", stack=4), "action": per.Field((), "int64")}
    buffer = per.ReplayBuffer(600, fields, save_compression=1)
    random = np.random.default_rng(0)
    background = np.where(random.random((84, 84)) < 0.1, 110, 87).astype(np.uint8)
    for t in range(500):
        screen = background.copy()
        screen[:8] = 236 if t % 100 < 50 else 60
        screen[abs(t % 120 - 60) + 8 :][:12, 8:11] = 148
        screen[random.integers(8, 72) :][:12, 72:75] = 213
        screen[abs(t * 3 % 140 - 70) + 10 :][:2, abs(t * 2 % 160 - 80) :][:, :2] = 236
        reward = random.normal()
        buffer.add(observation=screen, action=t % 6, reward=reward, terminated=t % 100 == 99, truncated=False,
                   next_observation=screen, priorities=random.random())  # fmt: skip
    compressed = bytes(buffer)
    buffer.save_compression = 0
    assert 5 * len(compressed) < len(bytes(buffer))
    loaded = per.ReplayBuffer.from_bytes(compressed)
    assert loaded.save_compression == 1
    buffer.save_compression = 1
    assert bytes(loaded) == bytes(buffer) == compressed


def test_a_save_may_be_compressed_in_another_way_than_its_buffer(tmp_path):
    if not has_zstd():
        pytest.skip("libper was built without zstd")
    buffer = per.ReplayBuffer(3000, {"observation": per.Field(10)})
    flags = np.zeros(2000, bool)
    observation = (np.arange(20_000) % 200).reshape(2000, 10)
    buffer.extend(observation=observation, reward=flags, terminated=flags, truncated=flags)
    plain = bytes(buffer)
    file = io.BytesIO()
    buffer.save(file, compression=3)
    buffer.save(tmp_path / "whole", compression=3)
    buffer.save(tmp_path / "background", compression=3, wait=False).wait()
    assert file.getvalue() == (tmp_path / "whole").read_bytes() == (tmp_path / "background").read_bytes()
    assert 2 * len(file.getvalue()) < len(plain)
    loaded = per.ReplayBuffer.from_bytes(file.getvalue())
    assert loaded.save_compression == 0 and bytes(loaded) == plain
    written = [buffer.checkpoint(tmp_path / str(level), compression=level) for level in (0, 3)]
    assert 2 * written[1] < written[0]
    for bad, allowed in ((-1, "None, or 0 to 19"), (20, "0 .. 19"), ("3", "an int")):
        with pytest.raises(per.InvalidArgument, match=f"^compression is {bad!r}.*{allowed}"):
            buffer.save(tmp_path / "none", compression=bad)
    assert not (tmp_path / "none").exists()


def test_compression_can_be_set_and_read():
    buffer = per.ReplayBuffer(10, FIELDS)
    assert buffer.save_compression == 0 == buffer.options["save_compression"]
    for bad in (-1, 20, 2**40, "1", 1.5):
        with pytest.raises(per.InvalidArgument, match=f"^save_compression is {bad!r}"):
            buffer.save_compression = bad
    if has_zstd():
        buffer.save_compression = 19
        assert buffer.save_compression == 19 == buffer.options["save_compression"]
    else:
        with pytest.raises(per.Unsupported, match="built without zstd"):
            buffer.save_compression = 1


def test_rows_that_were_cleared_are_not_in_the_file():
    walk = FileWalk(1, 40, FIELDS)
    for _ in range(30):
        walk.step()
    walk.buffer.clear()
    assert [row.flags for row in read_buffer.Buffer(bytes(walk.buffer)).rows(0)] in ([], [0])


def test_damage_is_said_to_lie_in_its_section():
    walk = FileWalk(2, 40, FIELDS)
    for _ in range(30):
        walk.step()
    content = bytes(walk.buffer)
    at = 16
    names = []
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        name = content[at + 4 : at + 4 + length].decode()
        (size,) = struct.unpack_from("<Q", content, at + 8 + length)
        end = at + 16 + length + size + 8
        for place in (at + 4, at + 8 + length, end - 9, end - 1):  # the name, the size, the content, the checksum
            damaged = bytearray(content)
            damaged[place] ^= 4
            with pytest.raises(per.CorruptFile, match=f"^the stream is damaged in the section '{name}': "):
                per.ReplayBuffer.load(io.BytesIO(damaged))
            with pytest.raises((read_buffer.Damaged, UnicodeDecodeError)):
                read_buffer.Buffer(bytes(damaged))
        names.append(name)
        at = end
    fields = ["field observation", "field screen", "field action", "field noise"]
    assert names == ["options", "counters", "lanes", "flags", "rewards", "priorities", *fields, "ranks", "end"]


# ------------------------------------------------------------------------------------------------ files that are kept


@pytest.fixture(params=["buffer.per", "buffer_compressed.per"])
def kept(request):
    if "compressed" in request.param and not has_zstd():
        pytest.skip("libper was built without zstd")
    return GOLDEN / request.param


def test_file_that_is_kept_is_read(kept):
    """Saving it again writes the same bytes."""
    buffer = per.ReplayBuffer.load(kept)
    expect_what_the_library_says(read_buffer.read_buffer(kept), buffer)
    buffer.save_compression = 0
    assert bytes(buffer) == (GOLDEN / "buffer.per").read_bytes()


def test_file_that_is_kept_holds_what_was_added(kept):
    file = read_buffer.read_buffer(kept)
    for name, value in make_buffers.OPTIONS.items():
        assert isinstance(value, str) or file.options[name] == value
    assert (file.options["prioritization"], file.options["normalize_weights"]) == (1, 1)  # rank, buffer maximum
    assert file.ranks is not None and file.batches == 3 and file.counters["cuts"] == 2
    assert [field.name for field in file.fields if field.compression] == ["action"]
    assert [field.default.tolist() for field in file.fields if field.default is not None] == [[0.25, 0.25]]
    times = [row.times_sampled for env in range(file.options["n_envs"]) for row in file.rows(env)]
    assert sum(times) == make_buffers.BATCHES * make_buffers.BATCH_SIZE
    live = set(file.live_ids())
    for env, lane in enumerate(make_buffers.rows()):
        rows = {row.k: row for row in file.rows(env)}
        assert sorted(rows) == list(make_buffers.rows_there(lane))
        for k, row in rows.items():
            t, values, *of_step = lane[k]
            for name, value in row.values.items():
                np.testing.assert_array_equal(value, values[name])
            if t is None:
                assert row.flags == 0
                continue
            reward, flags = of_step
            bits = 1 + 2 * flags["starts"] + 4 * flags["terminated"] + 8 * flags["truncated"] + 16 * flags["unknown"]
            assert (row.reward, row.flags) == (reward, bits)
            first_live = min(live) == row.id
            assert row.priority == (40 if first_live else make_buffers.priority(env, t))


def test_buffer_of_a_file_that_is_kept_draws_what_was_added(kept):
    buffer = per.ReplayBuffer.load(kept)
    lanes = make_buffers.rows()
    batch = buffer.get_windows(buffer.live_ids())
    assert len(batch.ids) == 16
    for i, id in enumerate(batch.ids):
        k, env = divmod(int(id), make_buffers.N_ENVS)
        lane = lanes[env]
        length = 1 if any(lane[k][3][end] for end in ("terminated", "truncated")) or lane[k + 1][0] is None else 2
        if lane[k + 1][0] is not None and lane[k + 1][3]["unknown"]:
            length = 1  # the last step of its episode only serves to bootstrap from
        reward = sum(make_buffers.OPTIONS["gamma"] ** j * lane[k + j][2] for j in range(length))
        assert (batch.n_steps[i], batch.reward[i]) == (length, reward)
        position = batch["next_observation.position"][i]
        np.testing.assert_array_equal(position, lane[k + length][1]["observation.position"])
