"""Buffers whose rows lie in a file: what they hold, draw, save and refuse."""

import io
import os
import pathlib
import pickle

import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field((30, 20), "float32"), "action": per.Field((), "int16")}  # 2400 bytes a frame


def add(buffer, n, random):
    observations = random.normal(size=(n + 1, buffer.n_envs, 30, 20)).astype(np.float32)
    ends = random.random((n, buffer.n_envs)) < 0.1
    following = observations[1:].copy()
    following[ends] += 1  # a final observation, and that of another episode after it
    buffer.extend(
        observation=observations[:-1],
        next_observation=following,
        action=random.integers(0, 9, (n, buffer.n_envs)).astype(np.int16),
        reward=random.normal(size=(n, buffer.n_envs)),
        terminated=ends,
        truncated=np.zeros_like(ends),
    )


def filled(storage=None, n=300, **options):
    buffer = per.ReplayBuffer(500, FIELDS, n_envs=2, seed=5, storage=storage, **options)
    add(buffer, n, np.random.default_rng(3))
    return buffer


def same(batch, other):
    return all(np.array_equal(getattr(batch, name), getattr(other, name)) for name in vars(batch))


def test_draws_are_those_of_a_buffer_in_memory(tmp_path):
    buffer, twin = filled(tmp_path), filled()
    for _ in range(5):
        batch, other = buffer.sample(32), twin.sample(32)
        assert same(batch, other)
        for each in (buffer, twin):
            each.update_priorities(batch.ids, priorities=np.abs(batch.reward))
    ids = buffer.live_ids()[:7]
    assert same(buffer.get(ids), twin.get(ids)) and same(buffer.get_windows(ids), twin.get_windows(ids))
    with buffer.loader(16) as loader, twin.loader(16) as others:
        for _ in range(5):
            assert same(next(loader), next(others))
    assert bytes(buffer) == bytes(twin)
    assert os.listdir(tmp_path) == []


def test_a_row_takes_at_most_twelve_bytes_of_memory(tmp_path):
    buffer = per.ReplayBuffer(1_000_000, FIELDS, storage=tmp_path)  # 2.4 GB of a file that takes no room yet
    assert buffer.stats().memory_bytes <= 12 * buffer.capacity


@pytest.mark.parametrize("as_path", [str, pathlib.Path, os.fsencode])
def test_options_say_where_rows_lie(tmp_path, as_path):
    buffer = filled(as_path(tmp_path), storage_preallocated=True)
    assert buffer.options["storage"] == str(tmp_path) and buffer.options["storage_preallocated"] is True
    assert per.ReplayBuffer(**buffer.options).options == buffer.options
    assert filled().options["storage"] is None


@pytest.mark.parametrize("kind", ["save", "checkpoint"])
def test_what_was_saved_is_loaded_into_a_file(tmp_path, kind):
    twin = filled(n_step=2)
    getattr(twin, kind)(tmp_path / "saved")
    buffer = per.ReplayBuffer.load(tmp_path / "saved", storage=tmp_path)
    assert buffer.options["storage"] == str(tmp_path)
    assert buffer.stats().memory_bytes < twin.stats().memory_bytes
    assert bytes(buffer) == bytes(twin) and same(buffer.sample(50), twin.sample(50))
    assert per.ReplayBuffer.load(tmp_path / "saved").options["storage"] is None


def test_a_save_in_the_background_has_the_rows_of_its_moment(tmp_path):
    buffer = filled(tmp_path)
    expected = bytes(buffer)
    save = buffer.save(tmp_path / "saved", wait=False)
    add(buffer, 200, np.random.default_rng(4))
    save.wait()
    assert (tmp_path / "saved").read_bytes() == expected != bytes(buffer)


def test_copies_lie_in_memory(tmp_path):
    buffer = filled(tmp_path)
    for copy in (pickle.loads(pickle.dumps(buffer)), per.ReplayBuffer.from_bytes(bytes(buffer))):
        assert copy.options["storage"] is None and bytes(copy) == bytes(buffer)


def test_a_channel_writes_to_a_file(tmp_path):
    buffer = per.ReplayBuffer(50, {"observation": per.Field()}, storage=tmp_path)
    with buffer.channel() as channel, channel.writer() as writer:
        for t in range(20):
            writer.add(observation=t, reward=t, terminated=False, truncated=False)
        writer.flush()
        assert buffer.get(np.arange(19)).observation.tolist() == list(range(19))


def test_what_is_refused_is_named(tmp_path):
    for storage, error, text in [
        (tmp_path / "none", per.IoError, "none cannot be written: No such file or directory"),
        (3, per.InvalidArgument, "storage is 3; allowed: str, bytes, os.PathLike"),
        ("a\0b", per.InvalidArgument, "storage is 'a\\x00b'; allowed: paths without a NUL"),
    ]:
        with pytest.raises(error) as caught:
            per.ReplayBuffer(10, FIELDS, storage=storage)
        assert text in str(caught.value)
    with pytest.raises(per.InvalidArgument, match="storage_preallocated is 1; allowed: True or False"):
        per.ReplayBuffer(10, FIELDS, storage=tmp_path, storage_preallocated=1)
    with pytest.raises(per.InvalidArgument, match="storage_preallocated is 1: must be 0 where storage is not given"):
        per.ReplayBuffer(10, FIELDS, storage_preallocated=True)
    for name, value, allowed in [("storage", tmp_path, "None"), ("storage_preallocated", True, "False")]:
        with pytest.raises(per.InvalidArgument, match=f"^{name} is .*; allowed: {allowed}, as a file object is read"):
            per.ReplayBuffer.load(io.BytesIO(bytes(filled())), **{name: value})
    with pytest.raises(per.Unsupported, match="storage is given: on 'cuda' rows lie"):
        per.ReplayBuffer(10, FIELDS, storage=tmp_path, device="cuda")
    assert os.listdir(tmp_path) == []
