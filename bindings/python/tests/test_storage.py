"""Buffers with rows in a file: contents, draws, files and errors."""

import io
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import time

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
    buffer = per.ReplayBuffer(1_000_000, FIELDS, storage=tmp_path)  # a sparse file of 2.4 GB
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


def test_the_directory_is_made_if_the_one_above_it_is_there(tmp_path):
    filled().save(tmp_path / "saved")
    filled(storage=tmp_path / "created")
    per.ReplayBuffer.load(tmp_path / "saved", storage=tmp_path / "loaded")
    assert sorted(os.listdir(tmp_path)) == ["created", "loaded", "saved"]
    assert os.listdir(tmp_path / "created") == os.listdir(tmp_path / "loaded") == []


def test_what_is_refused_is_named(tmp_path):
    for storage, error, text in [
        (tmp_path / "none" / "at all", per.IoError, "at all cannot be written: No such file or directory"),
        (3, per.InvalidArgument, "storage is 3; allowed: str, bytes, os.PathLike"),
        ("a\0b", per.InvalidArgument, "storage is 'a\\x00b'; allowed: paths without a NUL"),
    ]:
        with pytest.raises(error) as caught:
            per.ReplayBuffer(10, FIELDS, storage=storage)
        assert text in str(caught.value)
    with pytest.raises(per.InvalidArgument, match="storage_preallocated is 1; allowed: True or False"):
        per.ReplayBuffer(10, FIELDS, storage=tmp_path, storage_preallocated=1)
    with pytest.raises(
        per.InvalidArgument, match="storage_preallocated is True: must be False where storage is not given"
    ):
        per.ReplayBuffer(10, FIELDS, storage_preallocated=True)
    for name, value, allowed in [("storage", tmp_path, "None"), ("storage_preallocated", True, "False")]:
        with pytest.raises(per.InvalidArgument, match=f"^{name} is .*; allowed: {allowed}, as a file object is read"):
            per.ReplayBuffer.load(io.BytesIO(bytes(filled())), **{name: value})
    with pytest.raises(per.Unsupported, match="storage is given: on 'cuda' rows lie"):
        per.ReplayBuffer(10, FIELDS, storage=tmp_path, device="cuda")
    assert os.listdir(tmp_path) == []


# ---- checkpoints that leave the rows where they are


def test_a_checkpoint_leaves_rows_where_they_are(tmp_path):
    buffer = filled(tmp_path)
    written = buffer.checkpoint(tmp_path)
    assert written < 40_000 < buffer.stats().added * 2400
    names = sorted(os.listdir(tmp_path))
    assert [name.partition("-")[0] for name in names] == ["manifest.per", "pack", "rows"]
    inode = (tmp_path / names[-1]).stat().st_ino
    add(buffer, 20, np.random.default_rng(4))
    buffer.checkpoint(tmp_path)
    assert (tmp_path / names[-1]).stat().st_ino == inode and len(os.listdir(tmp_path)) == 3
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(buffer)
    (tmp_path / "other").mkdir()
    elsewhere = per.ReplayBuffer.load(tmp_path, storage=tmp_path / "other")
    assert bytes(elsewhere) == bytes(buffer)
    assert elsewhere.checkpoint(tmp_path) > 300 * 2400  # the rows are not in that directory
    assert sorted(name.partition("-")[0] for name in os.listdir(tmp_path)) == ["manifest.per", "other", "pack"]
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(elsewhere)
    # A file that lost its name cannot get it back, but the checkpoint is complete all the same.
    add(buffer, 20, np.random.default_rng(5))
    assert buffer.checkpoint(tmp_path) > 40 * 2400
    assert not list(tmp_path.glob("rows-*"))
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(buffer)


@pytest.mark.parametrize(
    "options",
    [{}, {"n_envs": 3, "n_step": 3}, {"store_next_observation": True, "save_compression": 1}, {"sequence_length": 4}],
    ids=["plain", "environments", "next observations", "sequences"],
)
def test_rows_that_a_checkpoint_names_stay_until_the_next_one(tmp_path, options):
    """The rings wrap around several times between some checkpoints."""
    random = np.random.default_rng(8)
    fields = FIELDS | {name: per.Field(default=0.0) for name in ("value", "advantage")}
    buffer = per.ReplayBuffer(330, fields, seed=5, storage=tmp_path, **options)
    expected = None
    for _ in range(60):
        for _ in range(int(random.integers(1, 4))):
            what = random.integers(8)
            if what < 4:
                add(buffer, int(random.integers(1, 90)), random)
            elif what == 4 and len(buffer):
                ids = random.permutation(buffer.live_ids())[:20]
                buffer.set(ids, action=random.integers(0, 9, len(ids)).astype(np.int16))
                buffer.update_priorities(ids, priorities=random.random(len(ids)))
            elif what == 5:
                buffer.advantages(bootstrap=lambda batch: np.zeros(len(batch.ids), np.float32))
            elif what == 6 and random.random() < 0.3:
                buffer.clear()
            elif what == 7:
                buffer.cut()
        if expected is not None:
            assert bytes(per.ReplayBuffer.load(tmp_path)) == expected
        if random.random() < 0.4:
            buffer.checkpoint(tmp_path)
            expected = bytes(buffer)
        if random.random() < 0.1 and expected is not None:  # as after a crash
            buffer.close()
            buffer = per.ReplayBuffer.load(tmp_path, storage=tmp_path)
            assert bytes(buffer) == expected


def test_rows_that_a_buffer_has_are_given_to_no_other(tmp_path):
    buffer = filled(tmp_path)
    buffer.checkpoint(tmp_path)
    expected = bytes(buffer)
    for run in (load_here, load_in_another_process):
        assert "a buffer has its rows already (rows-0000000000000000.per), which must be freed first" in run(tmp_path)
    assert bytes(buffer) == expected == bytes(per.ReplayBuffer.load(tmp_path))
    buffer.close()
    assert load_in_another_process(tmp_path) == "" == load_here(tmp_path)
    # Another buffer may write its own checkpoint there. It continues from its rows, and the first one from its own.
    first = per.ReplayBuffer.load(tmp_path, storage=tmp_path)
    second = filled(tmp_path, 100)
    second.checkpoint(tmp_path)
    add(first, 400, np.random.default_rng(4))
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(second)
    assert len(os.listdir(tmp_path)) == 3
    first.checkpoint(tmp_path)
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(first)


def load_here(directory):
    try:
        per.ReplayBuffer.load(directory, storage=directory)
    except per.Busy as error:
        return str(error)
    return ""


def load_in_another_process(directory):
    code = f"import per; per.ReplayBuffer.load({str(directory)!r}, storage={str(directory)!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("is_preallocated", [False, True])
def test_a_buffer_goes_on_from_its_rows_as_one_in_memory(tmp_path, is_preallocated):
    buffer, twin = filled(tmp_path, n=700), filled(n=700)
    inode = None
    for turn in range(6):
        buffer.checkpoint(tmp_path)
        (rows,) = tmp_path.glob("rows-*")
        assert inode in (None, rows.stat().st_ino)
        inode = rows.stat().st_ino
        buffer.close()
        buffer = per.ReplayBuffer.load(tmp_path, storage=tmp_path, storage_preallocated=is_preallocated)
        assert buffer.options["storage_preallocated"] is is_preallocated
        for _ in range(5):
            batch, other = buffer.sample(32), twin.sample(32)
            assert same(batch, other)
            for each in (buffer, twin):
                each.update_priorities(batch.ids, priorities=np.abs(batch.reward))
        for each in (buffer, twin):
            add(each, 40, np.random.default_rng(turn))
        with buffer.loader(16) as loader, twin.loader(16) as others:
            for _ in range(5):
                assert same(next(loader), next(others))
        assert bytes(buffer) == bytes(twin)


def test_a_save_in_the_background_meets_a_checkpoint(tmp_path):
    buffer = filled(tmp_path)
    buffer.checkpoint(tmp_path)
    add(buffer, 20, np.random.default_rng(6))
    expected = bytes(buffer)
    save = buffer.save(tmp_path / "saved", wait=False)
    for turn in range(5):
        add(buffer, 100, np.random.default_rng(turn))
        buffer.checkpoint(tmp_path)
    save.wait()
    assert (tmp_path / "saved").read_bytes() == expected
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(buffer)


def test_damaged_rows_are_refused(tmp_path):
    buffer = filled(tmp_path)
    buffer.checkpoint(tmp_path)
    buffer.close()
    rows = next(tmp_path.glob("rows-*"))
    good = rows.read_bytes()
    rows.write_bytes(good[:70_000] + bytes([good[70_000] ^ 1]) + good[70_001:])
    with pytest.raises(per.CorruptFile, match=r"is damaged in rows-0000000000000000\.per: the hash is wrong"):
        per.ReplayBuffer.load(tmp_path)
    rows.write_bytes(good[:70_000])
    with pytest.raises(per.CorruptFile, match=r"rows-0000000000000000\.per: it ends early"):
        per.ReplayBuffer.load(tmp_path)
    with pytest.raises(per.CorruptFile, match=r"rows-0000000000000000\.per: it ends early"):
        per.ReplayBuffer.load(tmp_path, storage=tmp_path)
    # Rows that stay in their file are not verified.
    rows.write_bytes(good[:70_000] + bytes([good[70_000] ^ 1]) + good[70_001:])
    assert len(per.ReplayBuffer.load(tmp_path, storage=tmp_path)) > 0
    rows.unlink()
    with pytest.raises(per.IoError):
        per.ReplayBuffer.load(tmp_path, storage=tmp_path)
    with pytest.raises(per.IoError):
        per.ReplayBuffer.load(tmp_path)


RUN = """
    import sys
    import numpy as np
    import per

    directory = sys.argv[1]
    random = np.random.default_rng(int(sys.argv[2]))
    try:
        buffer = per.ReplayBuffer.load(directory, storage=directory)
    except per.IoError:
        fields = {"observation": per.Field(300, "int64")}
        buffer = per.ReplayBuffer(4000, fields, n_envs=2, storage=directory)
    t = buffer.stats().added // 2
    print(t, flush=True)
    while True:
        n = int(random.integers(1, 300))
        steps = np.arange(t, t + n + 1)[:, None, None] * 2 + np.arange(2)[:, None] + np.arange(300) * 10**9
        flags = np.zeros((n, 2), bool)
        buffer.extend(observation=steps[:-1], next_observation=steps[1:], reward=flags, terminated=flags,
                      truncated=flags)
        t += n
        if random.random() < 0.3:
            buffer.checkpoint(directory)
            print(t, flush=True)
"""


def test_a_run_that_is_killed_goes_on_from_its_rows(tmp_path):
    random = np.random.default_rng(11)
    reached = 0
    for run in range(5):
        command = [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), str(run)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(int(random.integers(1, 12)))]
            time.sleep(random.random() * 0.02)
            process.kill()
            lines += process.stdout.readlines()
        told = int([line for line in lines if line.endswith("\n")][-1])
        if told == 0:
            continue
        buffer = per.ReplayBuffer.load(tmp_path)
        reached, before = buffer.stats().added // 2, reached
        assert reached >= told >= before
        ids = buffer.live_ids()
        rows = buffer.get(ids)
        assert np.array_equal(rows.observation, ids[:, None] + np.arange(300) * 10**9)
        assert np.array_equal(rows.next_observation, rows.observation + 2) and ids.max() >= 2 * reached - 4
    assert reached > 1000
    assert bytes(per.ReplayBuffer.load(tmp_path, storage=tmp_path)) == bytes(per.ReplayBuffer.load(tmp_path))
    assert len(os.listdir(tmp_path)) <= 4  # at most one unreferenced pack
