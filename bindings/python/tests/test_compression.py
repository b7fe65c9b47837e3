"""Buffers with compressed fields: contents, draws, files and errors."""

import io
import pickle

import numpy as np
import per
import pytest


def fields_of(compression):
    return {
        "observation": per.Field((30, 20), "float32", stack=2, compression=compression),
        "image": per.Field((16, 16, 3), "uint8", role="observation", compression=compression),
        "legal": per.Field((8, 8), "bool", default=False, compression=compression),
        "action": per.Field((), "int16"),
    }


def add(buffer, n, random):
    """Adds frames of which a few elements differ from the previous ones."""
    observations = np.zeros((n + 1, buffer.n_envs, 30, 20), np.float32)
    images = np.zeros((n + 1, buffer.n_envs, 16, 16, 3), np.uint8)
    for t in range(n + 1):
        observations[t, :, t % 30] = random.normal(size=20)
        images[t, :, t % 16, : t % 7] = random.integers(0, 256, 3)
    ends = random.random((n, buffer.n_envs)) < 0.1
    following = observations[1:].copy()
    following[ends] += 1  # a final observation, and that of another episode after it
    buffer.extend(
        observation=observations[:-1],
        next_observation=following,
        image=images[:-1],
        next_image=images[1:],
        legal=random.random((n, buffer.n_envs, 8, 8)) < 0.5,
        action=random.integers(0, 9, (n, buffer.n_envs)).astype(np.int16),
        reward=random.normal(size=(n, buffer.n_envs)),
        terminated=ends,
        truncated=np.zeros_like(ends),
    )


def filled(compression="delta", n=400, **options):
    buffer = per.ReplayBuffer(500, fields_of(compression), n_envs=2, seed=5, **options)
    add(buffer, n, np.random.default_rng(3))
    return buffer


def same(batch, other):
    return all(np.array_equal(getattr(batch, name), getattr(other, name)) for name in vars(batch))


@pytest.mark.parametrize("n_bytes", [65_535, 65_536, 200_000])
def test_long_frames_come_back(n_bytes):
    """Frames like the first one, packed by it to a few bytes or to more than 2^16, and another one that is not."""
    random = np.random.default_rng(4)
    frames = np.tile(random.integers(0, 256, n_bytes, np.uint8), (4, 1))
    frames[1, 7] ^= 1
    frames[2, : n_bytes // 2] = random.integers(0, 256, n_bytes // 2)
    frames[3] = random.integers(0, 256, n_bytes)
    buffer = per.ReplayBuffer(
        4, {"observation": per.Field(n_bytes, "uint8", compression="delta")}, store_next_observation=True
    )
    for frame in [*frames, *frames[::-1]]:  # also over rows of another kind
        buffer.add(observation=frame, next_observation=frame, reward=0.0, terminated=True, truncated=False)
    np.testing.assert_array_equal(buffer.get(np.arange(4, 8)).observation, frames[::-1])


def test_more_frames_are_alike_than_a_key_can_count():
    n, frame = 20_000, np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    fields = {"observation": per.Field(len(frame), "uint8", compression="delta")}
    buffer = per.ReplayBuffer(n, fields, store_next_observation=True)
    # The frames of later calls take the places of a part of the first ones, whose key must stay.
    for change, count in (0, n), (1, 6000), (2, 6000):
        for _ in range(count):
            seen = frame ^ np.uint8(change)
            buffer.add(observation=seen, next_observation=seen, reward=0.0, terminated=True, truncated=False)
    assert (buffer.get([*range(12_000, n, 1000), n - 1]).observation == frame).all()


def test_draws_are_those_of_a_buffer_without_compression():
    buffer, twin = filled(n_step=3), filled("none", n_step=3)
    assert buffer.stats().memory_bytes < twin.stats().memory_bytes
    for _ in range(5):
        batch, other = buffer.sample(32), twin.sample(32)
        assert same(batch, other)
        for each in (buffer, twin):
            each.update_priorities(batch.ids, priorities=np.abs(batch.reward))
            each.set(batch.ids, legal=np.broadcast_to(batch.reward[:, None, None] > 0, (32, 8, 8)))
    ids = buffer.live_ids()[:7]
    assert same(buffer.get(ids), twin.get(ids)) and same(buffer.get_windows(ids), twin.get_windows(ids))
    with buffer.loader(16) as loader, twin.loader(16) as others:
        for _ in range(5):
            assert same(next(loader), next(others))
            for each in (buffer, twin):
                add(each, 3, np.random.default_rng(1))
    for batch, other in zip(buffer.epochs(1, 50), twin.epochs(1, 50), strict=True):
        assert same(batch, other)


def test_sequences_are_those_of_a_buffer_without_compression():
    buffer, twin = filled(sequence_length=6, burn_in=2), filled("none", sequence_length=6, burn_in=2)
    for _ in range(5):
        assert same(buffer.sample(16), twin.sample(16))


def test_a_copy_of_any_kind_is_compressed(tmp_path):
    buffer = filled()
    buffer.save(tmp_path / "saved")
    buffer.save(tmp_path / "saved in the background", wait=False).wait()
    buffer.checkpoint(tmp_path / "checkpoints")
    content = bytes(buffer)
    for copy in (
        per.ReplayBuffer.load(tmp_path / "saved"),
        per.ReplayBuffer.load(tmp_path / "saved in the background"),
        per.ReplayBuffer.load(tmp_path / "checkpoints"),
        per.ReplayBuffer.load(io.BytesIO(content)),
        pickle.loads(pickle.dumps(buffer)),
    ):
        assert copy.fields == buffer.fields and copy.fields["observation"].compression == "delta"
        assert bytes(copy) == content
        assert same(copy.sample(8), pickle.loads(pickle.dumps(buffer)).sample(8))


def test_what_is_loaded_into_a_file_is_not_compressed(tmp_path):
    buffer = filled()
    buffer.save(tmp_path / "saved")
    loaded = per.ReplayBuffer.load(tmp_path / "saved", storage=tmp_path)
    assert {field.compression for field in loaded.fields.values()} == {"none"}
    assert bytes(loaded) == bytes(filled("none"))
    state = loaded.state_dict()
    loaded.load_state_dict(buffer.state_dict())
    buffer.load_state_dict(state)
    assert bytes(buffer) == bytes(filled("none")) and loaded.fields["image"].compression != "none"


def test_a_checkpoint_of_compressed_frames_goes_on_as_one_that_leaves_rows_in_their_file(tmp_path):
    buffer = filled()
    expected = bytes(filled("none"))
    packs = buffer.checkpoint(tmp_path)
    stored = per.ReplayBuffer.load(tmp_path, storage=tmp_path)  # rows are copied, and no longer compressed
    assert bytes(stored) == expected and not list(tmp_path.glob("rows-*"))
    assert stored.checkpoint(tmp_path) < packs / 4 and len(list(tmp_path.glob("rows-*"))) == 1
    for _ in range(2):
        stored.close()
        stored = per.ReplayBuffer.load(tmp_path, storage=tmp_path)
        assert bytes(stored) == expected == bytes(per.ReplayBuffer.load(tmp_path))
        assert {field.compression for field in stored.fields.values()} == {"none"}
    assert buffer.checkpoint(tmp_path) > packs / 2 and not list(tmp_path.glob("rows-*"))
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(buffer)


def test_what_is_refused(tmp_path):
    with pytest.raises(per.InvalidArgument, match=r"^compression is 'zip'; allowed: 'none', 'delta'$"):
        per.Field(100, "uint8", compression="zip")
    with pytest.raises(per.InvalidArgument, match="its frame has 7 bytes, and must have 8"):
        per.Field(7, "uint8", compression="delta")
    with pytest.raises(per.Unsupported, match=r"'delta': a file \(storage\) has the frames as they are$"):
        per.ReplayBuffer(500, fields_of("delta"), storage=tmp_path)
    with pytest.raises(per.Unsupported, match="on 'cuda' frames are kept as they are"):
        per.ReplayBuffer(500, fields_of("delta"), device="cuda")


def test_frames_of_games_take_a_fifth_of_the_memory():
    """Screens like those of test_file_format.py, whose background is a random pattern."""
    random = np.random.default_rng(0)
    background = np.where(random.random((84, 84)) < 0.1, 110, 87).astype(np.uint8)
    buffers = [
        per.ReplayBuffer(2000, {"observation": per.Field((84, 84), "uint8", stack=4, compression=compression)})
        for compression in ("none", "delta")
    ]
    for t in range(2000):
        screen = background.copy()
        screen[:8] = 236 if t % 100 < 50 else 60
        screen[abs(t % 120 - 60) + 8 :][:12, 8:11] = 148
        screen[random.integers(8, 72) :][:12, 72:75] = 213
        screen[abs(t * 3 % 140 - 70) + 10 :][:2, abs(t * 2 % 160 - 80) :][:, :2] = 236
        for buffer in buffers:
            buffer.add(observation=screen, reward=0, terminated=False, truncated=False)
    plain, compressed = (buffer.stats().memory_bytes for buffer in buffers)
    assert 5 * compressed < plain


def test_the_memory_for_frames_has_a_limit():
    frame = per.Field((64, 64), "uint8", compression="delta")
    buffer = per.ReplayBuffer(1000, {"observation": frame}, max_heap_bytes=1_000_000)
    noise = np.random.default_rng(2).integers(0, 256, (400, 1, 64, 64), np.uint8)
    with pytest.raises(per.Full, match="of max_heap_bytes, 1000000, are left"):
        for t in range(399):
            buffer.add(
                observation=noise[t], next_observation=noise[t + 1], reward=0.0, terminated=False, truncated=False
            )
    added = buffer.stats().added
    assert 100 < added < 245  # of 4096 bytes each
    np.testing.assert_array_equal(buffer.get([added - 1]).observation, noise[added - 1])
