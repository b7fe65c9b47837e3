"""The rate limiter: adds and draws that wait for each other, in threads, loaders and checkpoints."""

from __future__ import annotations

import copy
import io
import pathlib
import pickle
import sys
import threading
import time

import numpy as np
import per
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
import read_buffer

LIMITS = {"samples_per_insert": 4.0, "samples_tolerance": 64, "min_size_to_sample": 10}


def limited(**options):
    fields = {"observation": per.Field(2), "goal": per.Field(2)}
    return per.ReplayBuffer(200, fields, seed=3, **LIMITS | options)


def add(buffer, n=1):
    zeros = np.zeros((n, 2), np.float32)
    flags = np.zeros(n, bool)
    fields = {"observation": zeros, "next_observation": zeros, "goal": zeros}
    return buffer.extend(**fields, reward=flags, terminated=flags, truncated=flags)


def counts(buffer):
    return read_buffer.Buffer(bytes(buffer)).rate_limiter


@pytest.mark.parametrize("timeout", [-1, np.nan, "long"])
def test_a_timeout_is_seconds(timeout):
    for wait in (limited().wait_to_add, lambda timeout: limited().wait_to_sample(8, timeout=timeout)):
        with pytest.raises(per.InvalidArgument, match="timeout is"):
            wait(timeout=timeout)


def test_threads_that_wait_for_each_other_end():
    buffer, errors = limited(), []

    def repeat(wait, call, n):
        try:
            for _ in range(n):
                while True:
                    wait()
                    try:
                        call()
                        break
                    except per.Busy:  # another thread came first
                        continue
        except Exception as error:
            errors.append(error)

    # 2 * 200 + 10 steps are followed by 4 * 400 = 25 * 64 transitions.
    adders = [threading.Thread(target=repeat, args=(buffer.wait_to_add, lambda: add(buffer), 205)) for _ in range(2)]
    drawers = [
        threading.Thread(target=repeat, args=(lambda: buffer.wait_to_sample(16), lambda: buffer.sample(16), 50))
        for _ in range(2)
    ]
    for thread in adders + drawers:
        thread.start()
    for thread in adders + drawers:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == [] and counts(buffer) == {"added": 410, "drawn": 1600}


def waiting(call):
    """A thread inside call(), and its result so far."""
    result = []

    def run():
        try:
            result.append(call())
        except per.Error as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.05)
    assert result == []
    return thread, result


@pytest.mark.parametrize("end", ["stop_limiting", "clear", "close"])
def test_who_waits_goes_on_where_the_other_side_ends(end):
    buffer = limited()
    add(buffer, 26)
    thread, result = waiting(lambda: buffer.wait_to_add(4))
    getattr(buffer, end)()
    thread.join(30)
    if end == "close":
        assert isinstance(result[0], per.InvalidArgument) and "closed" in str(result[0])
    else:
        assert result == [None]
    if end == "stop_limiting":
        add(buffer, 100)
        assert buffer.options["samples_per_insert"] == buffer.options["min_size_to_sample"] == 0
        assert counts(buffer) is None


def test_a_loader_waits_for_adds():
    buffer = limited()
    with buffer.loader(32, slots=2) as batches:
        thread, result = waiting(lambda: len(batches.take().ids))
        for timeout in (0, 0.02):
            with pytest.raises(per.Busy):
                batches.take(timeout=timeout)
        for _ in range(10):
            add(buffer)
        thread.join(30)
        assert result == [32]
    # It draws ahead as far as allowed: 64 transitions.
    assert counts(buffer) == {"added": 10, "drawn": 64}


@pytest.mark.parametrize("which", ["loader", "buffer"])
def test_a_close_ends_the_wait_for_the_next_batch(which):
    buffer = limited()
    batches = buffer.loader(32)
    thread, result = waiting(batches.take)
    (batches if which == "loader" else buffer).close()
    thread.join(30)
    assert isinstance(result[0], per.InvalidArgument) and "closed" in str(result[0])


def test_a_draw_that_a_clear_has_forgotten_is_not_taken_back():
    buffer = limited()
    add(buffer, 26)

    def reward(achieved, goals):
        buffer.clear()
        add(buffer, 20)
        buffer.sample(24)
        raise KeyError("reward")

    with pytest.raises(KeyError):
        buffer.sample(64, hindsight=per.Hindsight("observation", "goal", reward))
    assert counts(buffer) == {"added": 20, "drawn": 24}


def test_a_loader_of_a_buffer_that_is_being_saved_does_not_wait():
    buffer, errors = limited(), []
    batches = buffer.loader(32)

    class File(io.BytesIO):
        def write(self, data):
            for call in (batches.take, buffer.wait_to_add, lambda: buffer.wait_to_sample(8)):
                try:
                    call()
                except per.Busy as error:
                    errors.append(str(error))
            return super().write(data)

    buffer.save(File())
    assert len(errors) >= 3 and all("is being saved" in error for error in errors)
    batches.close()


def test_a_draw_whose_reward_function_fails_does_not_count():
    buffer = limited()
    add(buffer, 26)

    def reward(achieved, goals):
        raise KeyError("reward")

    hindsight = per.Hindsight("observation", "goal", reward, k=50)
    with pytest.raises(KeyError):
        buffer.sample(64, hindsight=hindsight)
    assert counts(buffer) == {"added": 26, "drawn": 0}
    buffer.sample(64, hindsight=per.Hindsight("observation", "goal", lambda achieved, goals: np.zeros(len(goals))))
    assert counts(buffer) == {"added": 26, "drawn": 64}
    buffer.get_windows(buffer.live_ids()[:5])
    assert counts(buffer) == {"added": 26, "drawn": 64}


@pytest.mark.parametrize("way", ["file", "background", "folder", "pickle", "copy"])
def test_a_checkpoint_keeps_the_counts(way, tmp_path):
    buffer = limited()
    add(buffer, 26)
    buffer.sample(40)
    if way == "file":
        buffer.save(tmp_path / "buffer")
    elif way == "background":
        buffer.save(tmp_path / "buffer", wait=False).wait()
    elif way == "folder":
        buffer.checkpoint(tmp_path / "buffer")
    if way == "pickle":
        loaded = pickle.loads(pickle.dumps(buffer))
    elif way == "copy":
        loaded = copy.deepcopy(buffer)
    else:
        loaded = per.ReplayBuffer.load(tmp_path / "buffer")
    assert loaded.options == buffer.options
    for each in (buffer, loaded):
        add(each, 10)
        with pytest.raises(per.Busy, match="36 steps are added, 40 transitions drawn"):
            add(each)
        assert counts(each) == {"added": 36, "drawn": 40}


def test_a_checkpoint_without_limits_has_no_counts():
    buffer = limited(samples_per_insert=0.0, samples_tolerance=0, min_size_to_sample=0)
    add(buffer, 5)
    assert counts(buffer) is None
    assert counts(limited(samples_per_insert=0.0, samples_tolerance=0)) == {"added": 0, "drawn": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples_tolerance": 0}, "samples_tolerance is 0: must be at least samples_per_insert 4 times n_envs 1"),
        ({"samples_tolerance": 3}, "samples_tolerance is 3: must be at least samples_per_insert 4 times n_envs 1"),
        ({"samples_tolerance": 15, "n_envs": 4}, "samples_tolerance is 15: must be .* 4 times n_envs 4"),
        ({"samples_per_insert": 0.0}, "samples_tolerance is 64: must be 0 where samples_per_insert is not given"),
        ({"samples_per_insert": -1.0}, "samples_per_insert is -1"),
        ({"min_size_to_sample": -1}, "min_size_to_sample is -1"),
    ],
)
def test_limits_that_would_stop_both_sides_are_refused(options, message):
    with pytest.raises(per.InvalidArgument, match=message):
        limited(**options)
