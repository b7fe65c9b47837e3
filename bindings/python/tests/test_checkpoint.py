"""Buffers saved to files and loaded again."""

import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field(3, "float32"), "action": per.Field((), "int64")}


def walk(buffer, steps):
    for i in range(steps):
        buffer.add(
            observation=np.full(3, i), action=i, reward=float(i), terminated=i % 7 == 6, truncated=False,
            next_observation=np.full(3, i + 1),
        )  # fmt: skip


def test_loaded_buffer_goes_on_with_the_same_draws(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS, n_step=2, seed=3, beta_steps=10)
    walk(buffer, 80)
    buffer.update_priorities(buffer.sample(32).ids, np.linspace(-3, 3, 32, dtype=np.float32))
    path = tmp_path / "replay.per"
    buffer.save(path)
    loaded = per.ReplayBuffer.load(path)
    assert len(loaded) == len(buffer) and loaded.capacity == buffer.capacity
    for _ in range(3):
        expected, batch = buffer.sample(64), loaded.sample(64)
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])
        walk(buffer, 20)
        walk(loaded, 20)


def test_damaged_and_missing_files_are_told_apart(tmp_path):
    path = tmp_path / "replay.per"
    with pytest.raises(per.IoError) as missing:
        per.ReplayBuffer.load(path)
    assert isinstance(missing.value, OSError)
    buffer = per.ReplayBuffer(100, FIELDS)
    walk(buffer, 5)
    buffer.save(path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(per.CorruptFile):
        per.ReplayBuffer.load(path)
    with pytest.raises(per.IoError):
        buffer.save(tmp_path / "missing" / "replay.per")


def test_path_with_a_nul_is_refused_and_no_other_file_touched(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    cut = tmp_path / "replay"
    cut.write_bytes(b"mine")
    for path in (f"{cut}\0.per", type("Path", (), {"__fspath__": lambda self: f"{cut}\0.per"})()):
        for call in (buffer.save, per.ReplayBuffer.load):
            with pytest.raises(per.InvalidArgument, match="paths without a NUL"):
                call(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["replay"] and cut.read_bytes() == b"mine"


def test_names_that_are_no_utf8_work(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    path = tmp_path / "replay\udcff.per"
    buffer.save(path)
    assert per.ReplayBuffer.load(path).capacity == 100
