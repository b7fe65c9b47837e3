"""Checkpoints in a directory, each of which writes only what the previous one lacks."""

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import per
import pytest

FIELDS = {"observation": per.Field(25, "float32"), "action": per.Field((), "int64")}


def size_of(directory):
    return sum(entry.stat().st_size for entry in os.scandir(directory))


def add(buffer, steps, random):
    """Adds steps of all environments, some of which end episodes. A call begins with a cut."""
    shape = (steps, buffer.n_envs) if buffer.n_envs > 1 else (steps,)
    terminated, truncated = random.random(shape) < 0.05, random.random(shape) < 0.02
    fields = {}
    for name, field in buffer.fields.items():
        values = random.integers(0, 200, (steps + 1, *shape[1:], *field.shape)).astype(field.dtype)
        fields[name] = values[:-1]
        if field.role == "observation":
            following = values[1:].copy()
            following[terminated | truncated] += 1  # a final observation, and that of another episode after it
            fields[f"next_{name}"] = following
    buffer.cut()
    buffer.extend(**fields, reward=random.normal(size=shape), terminated=terminated, truncated=truncated)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_envs": 3, "n_step": 3},
        {"sequence_length": 4, "burn_in": 1},
        {"store_next_observation": True, "prioritization": "rank"},
        {"n_envs": 2, "image": True},
        {"n_envs": 2, "image": True, "save_compression": 3},
    ],
    ids=["plain", "environments", "sequences", "ranks", "image", "compressed"],
)
def test_loaded_buffer_is_the_one_of_the_last_checkpoint(tmp_path, options):
    options = dict(options)
    fields = FIELDS | ({"screen": per.Field((40, 40), "uint8", role="observation")} if options.pop("image", 0) else {})
    random = np.random.default_rng(5)
    buffer = per.ReplayBuffer(400, fields, seed=2, **options)
    for steps in (0, 1, 20, 30, 300, 10, 0, 1, 150, 700, 3):  # the ring is full from the fifth on
        if steps:
            add(buffer, steps, random)
        if len(buffer) > 20:
            batch = buffer.sample(20)
            buffer.update_priorities(batch.ids, priorities=random.random(20).astype(np.float32))
            buffer.set(batch.ids[:3], action=[7, 8, 9])
        written = buffer.checkpoint(tmp_path / "run")
        assert written > 0
        assert bytes(per.ReplayBuffer.load(tmp_path / "run")) == bytes(buffer)
    buffer.clear()
    buffer.checkpoint(tmp_path / "run")
    assert bytes(per.ReplayBuffer.load(tmp_path / "run")) == bytes(buffer)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_checkpoint_writes_what_is_new(tmp_path, n_envs):
    random = np.random.default_rng(6)
    n = 200_000
    buffer = per.ReplayBuffer(n, FIELDS, n_envs=n_envs)
    row_bytes, n_arrays, chunk_bytes = 25 * 4 + 8 + 4 + 4 + 1, 5, 2**16
    add(buffer, n * 9 // 10 // n_envs, random)
    whole = buffer.checkpoint(tmp_path)
    assert whole > n * 4 // 5 * row_bytes
    # For each array and environment, the chunk that rows are added to and the one whose rows are overwritten; and the
    # same amount again for the live remainder of a pack that is rewritten.
    most = 2 * (4000 * row_bytes + n_arrays * n_envs * 2 * chunk_bytes) + 60_000
    assert most < whole / 3
    for _ in range(10):  # the rows overwrite each other from the fourth on
        add(buffer, 4000 // n_envs, random)
        assert buffer.checkpoint(tmp_path) < most
        assert size_of(tmp_path) < 2 * whole + most
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(buffer)
    buffer.checkpoint(tmp_path)
    assert buffer.checkpoint(tmp_path) < 60_000  # the manifest


def test_another_buffer_may_go_on_in_the_directory(tmp_path):
    random = np.random.default_rng(7)
    buffer = per.ReplayBuffer(5000, FIELDS, seed=1)
    add(buffer, 5000, random)
    whole = buffer.checkpoint(tmp_path)
    resumed = per.ReplayBuffer.load(tmp_path)
    assert resumed.checkpoint(tmp_path) < whole / 20
    other = per.ReplayBuffer(10, FIELDS)
    other.checkpoint(tmp_path)
    assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(other)
    assert size_of(tmp_path) < 10_000


def test_compressed_checkpoints_are_small(tmp_path):
    sizes = {}
    for level in (0, 3):
        buffer = per.ReplayBuffer(2000, FIELDS, save_compression=level)
        add(buffer, 1800, np.random.default_rng(9))
        buffer.checkpoint(tmp_path)  # the second time into the directory of the first
        sizes[level] = buffer.checkpoint(tmp_path / str(level))
        assert bytes(per.ReplayBuffer.load(tmp_path / str(level))) == bytes(buffer)
        assert bytes(per.ReplayBuffer.load(tmp_path)) == bytes(buffer)
    assert sizes[3] < sizes[0] / 2  # numbers from 0 to 199 as float32


KILLED = """
    import sys
    import numpy as np
    import per

    buffer = per.ReplayBuffer(3000, {"observation": per.Field(100, "int64")})
    buffer.checkpoint(sys.argv[1])
    print("ready", flush=True)
    for t in range(100_000):
        observation = np.arange(50 * t, 50 * (t + 1))[:, None].repeat(100, 1)
        buffer.extend(observation=observation, reward=np.arange(50 * t, 50 * (t + 1)), terminated=np.zeros(50),
                      truncated=np.zeros(50))
        buffer.checkpoint(sys.argv[1])
"""


def test_a_killed_run_leaves_a_whole_checkpoint(tmp_path):
    random = np.random.default_rng(8)
    newest = -1
    for _ in range(12):
        run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED), tmp_path], stdout=subprocess.PIPE)
        assert run.stdout.readline() == b"ready\n"
        try:
            run.wait(random.uniform(0.0, 0.25))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        buffer = per.ReplayBuffer.load(tmp_path)
        rows = buffer.get(buffer.live_ids(), next_observations=False)
        assert (rows.observation == rows.reward[:, None]).all() and buffer.stats().added % 50 == 0
        assert (np.diff(rows.reward) == 1).all()
        newest = max(newest, buffer.stats().added)
    assert newest > 0
    buffer.checkpoint(tmp_path)
    assert size_of(tmp_path) < 3 * 3000 * 820  # killed runs leave no files behind


def test_errors_name_the_directory(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(per.IoError, match="file cannot be written"):
        buffer.checkpoint(tmp_path / "file")
    with pytest.raises(per.IoError, match="cannot be written: No such file"):
        buffer.checkpoint(tmp_path / "none" / "below")
    with pytest.raises(per.InvalidArgument, match=r"directory is .*; allowed: paths without a NUL"):
        buffer.checkpoint("a\0b")
    with pytest.raises(per.InvalidArgument, match=r"directory is 3\.5; allowed: str, bytes, os\.PathLike$"):
        buffer.checkpoint(3.5)
    with pytest.raises(per.IoError, match="the directory holds no checkpoint"):
        per.ReplayBuffer.load(tmp_path)
    run = tmp_path / "run"
    buffer.checkpoint(run)
    (pack,) = run.glob("pack-*.per")
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.write_bytes(content)
    with pytest.raises(per.CorruptFile, match=r"run is damaged in pack-0000000000000000\.per: the hash is wrong"):
        per.ReplayBuffer.load(run)
    (run / "manifest.per").write_bytes(b"\x89PER\r\n\x1a\n" + bytes(40))
    with pytest.raises(per.CorruptFile, match=r"run is damaged in manifest\.per: it is not a manifest"):
        buffer.checkpoint(run)


def locked(directory, kind):
    """Opens the directory's lock as another program would."""
    directory.mkdir(exist_ok=True)
    folder = os.open(directory, os.O_RDONLY)
    fcntl.flock(folder, kind)
    return folder


@pytest.mark.parametrize("timeout", [0, 0.15])
def test_calls_say_which_directory_is_not_free_in_time(tmp_path, timeout):
    directory, buffer = tmp_path / "run", per.ReplayBuffer(100, FIELDS)
    buffer.checkpoint(directory)
    folder = locked(directory, fcntl.LOCK_SH)
    with pytest.raises(per.Busy, match=f"path {directory} cannot be written yet"):
        buffer.checkpoint(directory, timeout=timeout)
    per.ReplayBuffer.load(directory, timeout=timeout)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(per.Busy, match=f"path {directory} cannot be read yet"):
        per.ReplayBuffer.load(directory, timeout=timeout)
    os.close(folder)
    assert buffer.checkpoint(directory, timeout=timeout) > 0
    with pytest.raises(per.InvalidArgument, match="timeout is -1"):
        buffer.checkpoint(directory, timeout=-1)


@pytest.mark.parametrize("call", ["checkpoint", "load"])
def test_ctrl_c_ends_a_wait_for_a_directory_and_others_use_the_buffer_meanwhile(tmp_path, call):
    buffer = per.ReplayBuffer(100, FIELDS)
    wait = buffer.checkpoint if call == "checkpoint" else per.ReplayBuffer.load
    folder = locked(tmp_path / "run", fcntl.LOCK_EX)

    def interrupt():
        time.sleep(0.2)
        len(buffer)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell lack it
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        wait(tmp_path / "run", timeout=60)
    thread.join()
    signal.signal(signal.SIGINT, before)
    os.close(folder)


def test_what_no_wait_would_end_is_busy_at_once(tmp_path):
    buffer = per.ReplayBuffer(100, FIELDS, storage=tmp_path)
    buffer.checkpoint(tmp_path)
    with pytest.raises(per.Busy, match="a buffer has its rows already"):
        per.ReplayBuffer.load(tmp_path, storage=tmp_path, timeout=None)

    class File:
        def write(self, data):
            with pytest.raises(per.Busy, match="the buffer is being saved"):
                buffer.checkpoint(tmp_path, timeout=None)
            return len(data)

    buffer.save(File())
