"""Checks of wrong calls, files, processes, threads and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import scenes
from contract import Array, Batch, Buffer, CannotTry, Library, NotClaimed, Options, check, expect
from law import PAPER, chi_square_limit

RATIOS = f"{PAPER}, equation 1: p_i > 0, and P(i) / P(k) depends on p_i and p_k only"
STORED = f"{PAPER}, algorithm 1: the transition that is replayed is the one that was stored"
FILES = "the library's documents of saving and loading"

VICTIM = 5  # the step that gets a wrong priority
PRIORITIES = np.array([1.0 + t % 4 for t in range(64)])


# ---- descriptions of faults


def error_of(call: Callable[[], object]) -> str:
    """The error that a call raises, in one line, or ""."""
    try:
        call()
    except NotClaimed:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def wrong_draws(buffer: Buffer, priorities: Array, free: tuple[int, ...] = (), alone: bool = False) -> str:
    """Describes the fault in 3,200 draws of steps with these priorities, or returns "". Those in `free` may differ.

    `alone` says that a step of `free` may be the only one that is drawn. The limit of chi-square is twice that of
    false alarms of 1e-6: small departures from equation 1 are the matter of other checks.
    """
    counts = np.zeros(len(priorities))
    for _ in range(100):
        try:
            batch = buffer.sample()
        except NotClaimed:
            raise
        except Exception as error:
            return f"sample() raises {type(error).__name__}: {error}".splitlines()[0]
        steps = batch.steps()
        if not ((steps >= 0) & (steps < len(priorities))).all():
            return f"a batch has rows that were never added: steps {steps}"
        if batch.weights is not None and not np.isfinite(np.asarray(batch.weights)).all():
            return f"a batch has weights {np.asarray(batch.weights)[:4]}..."
        counts += np.bincount(steps, minlength=len(priorities))
    others = np.setdiff1d(np.arange(len(priorities)), free)
    counts, masses = counts[others], priorities[others] ** 0.6
    if counts.sum() == 0:
        return "" if alone else f"3,200 draws: all of step {free[0]}, none of the others"
    expected = masses / masses.sum() * counts.sum()
    chi_square, limit = float(((counts - expected) ** 2 / expected).sum()), 2 * chi_square_limit(len(others))
    return "" if chi_square < limit else f"draws of the others: chi-square {chi_square:.0f}, limit {limit:.0f}"


def strange_row(buffer: Buffer, allowed: Iterable[int], batches: int = 60) -> list[object] | None:
    """A drawn observation that does not have one of the allowed numbers in all places, or None."""
    numbers = set(allowed)
    for _ in range(batches):
        rows = np.asarray(buffer.sample().observation)
        for row in rows.reshape(len(rows), -1).tolist():
            if row[0] not in numbers or any(value != row[0] for value in row):
                return row[:8]
    return None


def prioritized(library: Library, options: Options) -> tuple[Buffer, Array]:
    """A buffer with 64 steps and their priorities, or all 1 where the library has none."""
    buffer = scenes.filled(library, options, 64)
    try:
        buffer.set_all(PRIORITIES)
    except NotClaimed:
        return buffer, np.ones(64)
    return buffer, PRIORITIES


# ---- wrong priorities


def try_priority(library: Library, value: float, alone: bool = False, new_ones: bool = True) -> None:
    """Gives step 5 of 64 a wrong priority, then a right one, then adds a step."""
    buffer = scenes.filled(library, Options(capacity=128), 64, PRIORITIES)
    batch = buffer.sample()
    while VICTIM not in batch.steps():
        batch = buffer.sample()
    right = PRIORITIES[batch.steps()]
    given = np.where(batch.steps() == VICTIM, value, right)
    error = error_of(lambda: buffer.update(batch.handle, given))
    begin = f"update() of a batch in which step {VICTIM} gets {value:g}: {error or 'no error'}"
    found = wrong_draws(buffer, PRIORITIES, () if error else (VICTIM,), alone)
    expect(not found, f"{begin}\nthen: {found}")
    later = error_of(lambda: buffer.update(batch.handle, right))
    found = later or wrong_draws(buffer, PRIORITIES)
    expect(
        not found,
        f"{begin}\nthen update() of the same batch with its right priorities: {later or 'no error'}\nthen: {found}",
    )
    if new_ones:
        buffer.add(scenes.step(64, Options(), reward=1.0, terminated=True))
        found = wrong_draws(buffer, np.append(PRIORITIES, 1.0), (64,))
        expect(not found, f"{begin}\nthen right priorities again, and one new step, 64\nthen: {found}")


@check("robustness", RATIOS)
def a_nan_priority_does_no_harm(library: Library) -> None:
    """A priority of NaN is an error and changes nothing, or the other transitions are drawn by equation 1 as before,
    also when that transition has a number again, and when a new one comes: 3,200 draws each, false alarms 1e-6."""
    try_priority(library, float("nan"))


@check("robustness", RATIOS)
def a_negative_priority_does_no_harm(library: Library) -> None:
    """A priority of -2 is an error and changes nothing, or the other transitions are drawn by equation 1 as before,
    also when that transition has a positive one again: 3,200 draws each, false alarms 1e-6."""
    try_priority(library, -2.0)


@check("robustness", RATIOS)
def an_infinite_priority_does_no_harm(library: Library) -> None:
    """An infinite priority is an error and changes nothing, or only that transition is drawn, or the others by equation
    1, all with finite weights; once it has a finite one again, and a new one comes, draws follow equation 1: 3,200
    draws each, false alarms 1e-6."""
    try_priority(library, float("inf"), alone=True)


@check("robustness", RATIOS)
def a_huge_priority_does_no_harm(library: Library) -> None:
    """A priority of 1e30, which float32 holds, is an error and changes nothing, or only that transition is drawn, or
    the others by equation 1, all with finite weights; once it has its priority of 2 again, draws follow equation 1:
    3,200 draws each, false alarms 1e-6."""
    try_priority(library, 1e30, alone=True, new_ones=False)


@check("robustness", f"{PAPER}, algorithm 1, line 12: each transition of a batch gets its own priority")
def a_wrong_number_of_priorities_is_an_error(library: Library) -> None:
    """31, or 33, or 2 priorities for a batch of 32 are an error, and draws stay as they were (one for all is how some
    libraries write a scalar, and is not tried): 3,200 draws, false alarms 1e-6."""
    for n in (31, 33, 2):
        buffer = scenes.filled(library, Options(), 64, PRIORITIES)
        batch = buffer.sample()
        error = error_of(lambda batch=batch, buffer=buffer, n=n: buffer.update(batch.handle, np.full(n, 50.0)))
        expect(error, f"update() of a batch of 32 with {n} priorities: no error")
        found = wrong_draws(buffer, PRIORITIES)
        expect(not found, f"update() of a batch of 32 with {n} priorities: {error}\nthen: {found}")


# ---- wrong rows


@check("robustness", f"{PAPER}, equation 1 is a distribution of transitions that were stored")
def sampling_an_empty_buffer_is_an_error(library: Library) -> None:
    """sample() of an empty buffer raises an error or returns no rows within 10 s; it makes none up. The buffer then
    takes steps and draws them."""
    options = Options()
    buffer = library.create(options)
    outcome: list[object] = []

    def call() -> None:
        try:
            outcome.append(buffer.sample())
        except BaseException as error:
            outcome.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(10)
    expect(outcome, "sample() of an empty buffer did not return within 10 s")
    if isinstance(outcome[0], NotClaimed):
        raise outcome[0]
    if isinstance(outcome[0], Batch):
        rows = np.asarray(outcome[0].observation)
        expect(len(rows) == 0, f"sample() of an empty buffer returns {len(rows)} rows: {rows.reshape(-1)[:4]}...")
    buffer.extend([scenes.step(t, options, reward=1.0, terminated=True) for t in range(64)])
    row = strange_row(buffer, range(64))
    expect(row is None, f"after sample() of an empty buffer and 64 steps, a row is {row}")


def try_observation(library: Library, options: Options, given: Array, may_be_drawn: bool) -> None:
    """Adds an observation between steps 101 .. 108 and 110: it is an error, or is drawn as given where that may be."""
    buffer = library.create(options)
    steps = [scenes.step(t, options, reward=1.0, terminated=True) for t in range(101, 111)]
    buffer.extend(steps[:8])
    error = error_of(lambda: buffer.add(dataclasses.replace(steps[8], observation=given[None])))
    begin = f"{options.dtype} observation of shape {options.shape}, given {given.tolist()}: {error or 'no error'}"
    later = error_of(lambda: buffer.add(steps[9]))
    expect(not later, f"{begin}\nthen adding a right one: {later}")
    allowed = {*range(101, 109), 110}
    drawn: list[list[object]] = []
    later = error_of(
        lambda: drawn.extend(row for _ in range(60) for row in np.asarray(buffer.sample().observation).tolist())
    )
    expect(not later, f"{begin}\nthen sample() raises {later}")
    strange = [row for row in drawn if row[0] not in allowed or any(value != row[0] for value in row)]
    right = not strange if error else may_be_drawn and strange and all(row == given.tolist() for row in strange)
    expect(right, f"{begin}\nthen a row is {strange[0] if strange else 'never the given one'}")


@check("robustness", STORED)
def a_row_of_a_wrong_shape_is_an_error(library: Library) -> None:
    """Adding an observation of 1, 3 or 8 numbers to a buffer with 4 is an error, and draws return only added rows."""
    for n in (1, 3, 8):
        try_observation(library, Options(shape=(4,)), np.full(n, 109, np.float32), may_be_drawn=False)


@check("robustness", STORED)
def values_that_a_dtype_cannot_hold_are_errors(library: Library) -> None:
    """300, -1 and 1.5 as an observation of uint8 are errors, or are drawn as 300, -1 and 1.5."""
    for value in (300, -1, 1.5):
        try_observation(library, Options(dtype="uint8"), np.array([value]), may_be_drawn=True)


@check("robustness", STORED)
def integers_of_64_bits_are_stored_exactly(library: Library) -> None:
    """Observations of int64 from 2^53 + 1 are drawn as they were added, or adding them is an error."""
    options = Options(dtype="int64")
    numbers = [2**53 + 1 + 2 * k for k in range(32)]
    buffer = library.create(options)
    error = error_of(lambda: buffer.extend([scenes.step(t, options, reward=1.0, terminated=True) for t in numbers]))
    if not error:
        row = next((row for row in np.asarray(buffer.sample().observation)[:, 0] if int(row) not in numbers), None)
        expect(row is None, f"int64 observations {numbers[0]}, {numbers[1]}, ...: no error\nthen a row is {row!r}")


# ---- files and copies


def saved_and_loaded(library: Library, buffer: Buffer, options: Options) -> Buffer:
    """Saves the buffer and loads the file into a second buffer with the same options."""
    other = library.create(options)
    with tempfile.TemporaryDirectory() as folder:
        buffer.save(str(Path(folder, "buffer")))
        other.load(str(Path(folder, "buffer")))
    return other


def rows_of(buffer: Buffer) -> dict[int, tuple[int, float]]:
    """The action and the reward of each step that 9,600 draws show."""
    batches = [buffer.sample() for _ in range(300)]
    numbers = np.concatenate([batch.steps() for batch in batches]).tolist()
    actions = np.concatenate([np.asarray(batch.action).reshape(-1) for batch in batches]).tolist()
    rewards = np.concatenate([np.asarray(batch.reward).reshape(-1) for batch in batches]).tolist()
    return dict(zip(numbers, zip(actions, rewards, strict=True), strict=True))


def lost_and_strange(buffer: Buffer, other: Buffer) -> str:
    """How the rows of the other buffer differ from those of the first one, or "". False alarms are below 1e-6."""
    right, found = rows_of(buffer), rows_of(other)
    lost = [step for step in sorted(right) if found.get(step) != right[step]]
    strange = sorted(found.keys() - right.keys())
    return f"lost or changed: steps {lost[:12]}; too many: steps {strange[:12]}" if lost or strange else ""


@check("robustness", FILES)
def a_loaded_buffer_has_the_same_rows(library: Library) -> None:
    """A buffer that loads a file has the rows of the one that saved it: 100 steps into 60 rows, save and load; 9,600
    draws of each, false alarms 1e-6."""
    options = Options(capacity=60)
    buffer = library.create(options)
    buffer.extend([scenes.step(t, options, reward=t, terminated=True) for t in range(100)])
    differ = lost_and_strange(buffer, saved_and_loaded(library, buffer, options))
    expect(not differ, f"100 steps into 60 rows, save and load: {differ}")


@check("robustness", FILES)
def a_loaded_buffer_overwrites_the_oldest_rows(library: Library) -> None:
    """A buffer that loads a file overwrites the same rows next as the one that saved it: 100 steps into 60 rows, save
    and load, 10 more steps into both; 9,600 draws of each, false alarms 1e-6."""
    options = Options(capacity=60)
    buffer = library.create(options)
    buffer.extend([scenes.step(t, options, reward=t, terminated=True) for t in range(100)])
    other = saved_and_loaded(library, buffer, options)
    for which in (buffer, other):
        which.extend([scenes.step(t, options, reward=t, terminated=True) for t in range(100, 110)])
    differ = lost_and_strange(buffer, other)
    expect(not differ, f"100 steps into 60 rows, save and load, 10 more steps into both: {differ}")


@check("robustness", FILES)
def a_loaded_buffer_has_the_same_priorities(library: Library) -> None:
    """A buffer that loads a file draws by the priorities of the one that saved it: 3,200 draws, false alarms 1e-6."""
    options = Options()
    other = saved_and_loaded(library, scenes.filled(library, options, 64, PRIORITIES), options)
    found = wrong_draws(other, PRIORITIES)
    expect(not found, f"after save and load: {found}")


@check("robustness", f"{FILES}, and of its seed")
def a_loaded_buffer_continues_bit_for_bit(library: Library) -> None:
    """A buffer with a seed that loads a file draws the batches that the one that saved it draws, to the last bit, with
    5 rounds of a new step, a batch and new priorities after the file."""
    options = Options(capacity=60, seed=7)
    buffer = scenes.filled(library, options, 100)
    for _ in range(3):
        batch = buffer.sample()
        buffer.update(batch.handle, np.linspace(0.5, 2.0, 32))
    other = saved_and_loaded(library, buffer, options)
    for t in range(100, 105):
        batches = []
        for which in (buffer, other):
            which.add(scenes.step(t, options, reward=1.0, terminated=True))
            batches.append(which.sample())
            which.update(batches[-1].handle, np.linspace(0.1, 3.0, 32))
        for name in ("observation", "action", "reward", "next_observation", "weights"):
            one, two = (np.asarray(getattr(batch, name)) for batch in batches)
            other_rows = [k for k in range(32) if np.any(one[k] != two[k])] if one.ndim and two.ndim else []
            for k in other_rows:
                expect(
                    False, f"batch {t - 99} after the file, row {k}, {name}: {one[k]}, and {two[k]} of the loaded one"
                )


class Pickler(pickle.Pickler):
    """Takes an adapter that keeps a module, too."""

    def reducer_override(self, value: object) -> Any:
        return (importlib.import_module, (value.__name__,)) if isinstance(value, types.ModuleType) else NotImplemented


@check("robustness", "Python's pickle: what it takes, it gives back; what it cannot take is an error")
def a_pickled_buffer_is_the_same(library: Library) -> None:
    """pickle.loads(pickle.dumps(buffer)) draws by the priorities of the buffer, and steps that are added to it do not
    reach the buffer: 3,200 draws, false alarms 1e-6. An error of pickle.dumps() is not to claim it."""
    options = Options(capacity=128)
    buffer, priorities = prioritized(library, options)
    data = io.BytesIO()
    error = error_of(lambda: Pickler(data).dump(buffer))
    if error:
        raise NotClaimed(error)
    copy = pickle.loads(data.getvalue())
    found = wrong_draws(copy, priorities)
    expect(not found, f"the copy: {found}")
    copy.extend([scenes.step(t, options, reward=1.0, terminated=True) for t in range(64, 128)])
    found = wrong_draws(buffer, priorities)
    expect(not found, f"after 64 steps were added to the copy, the buffer: {found}")


# ---- processes and threads


def use_in_child(buffer: Buffer) -> str:
    """Describes the fault of a copy of 64 steps in a forked child, or returns "". An error is no fault."""
    found = error_of(lambda: buffer.extend([scenes.step(t, Options(), terminated=True) for t in range(64, 96)]))
    if found:
        return ""
    row = None if error_of(buffer.sample) else strange_row(buffer, range(96), 20)
    return "" if row is None else f"in the child, a row is {row}"


@check("robustness", "fork(2): the child has a copy of the parent's memory; multiprocessing's start method of Linux")
def a_forked_child_has_its_own_copy(library: Library) -> None:
    """A child made by os.fork() adds 32 steps to its copy of the buffer and draws 20 batches, or gets an error, within
    10 s; it does not end by a signal, and the parent's draws stay as they were: 3,200 draws, false alarms 1e-6."""
    if not hasattr(os, "fork"):
        raise CannotTry("the system has no fork")
    buffer, priorities = prioritized(library, Options(capacity=128))
    buffer.sample()
    child = os.fork()
    if child == 0:
        os._exit(1 if use_in_child(buffer) else 0)
    deadline = time.monotonic() + 10
    pid, status = os.waitpid(child, os.WNOHANG)
    while pid == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
        pid, status = os.waitpid(child, os.WNOHANG)
    if pid == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    expect(pid != 0, "the forked child adds 32 steps and draws 20 batches: it hangs, and was killed after 10 s")
    expect(not os.WIFSIGNALED(status), f"the forked child ended by signal {os.WTERMSIG(status)}")
    expect(os.waitstatus_to_exitcode(status) == 0, "the forked child drew rows that were never added")
    found = wrong_draws(buffer, priorities)
    expect(not found, f"after the child added 32 steps to its copy, the parent's buffer: {found}")


def torn_row(buffer: Buffer, seconds: float) -> str:
    """Draws until a row is torn, a call fails, or the time is over. Returns a description of the fault, or ""."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batches: list[Batch] = []
        error = error_of(lambda batches=batches: batches.append(buffer.sample()))
        if error:
            return f"sample() raises {error}"
        rows, rewards = np.asarray(batches[0].observation), np.asarray(batches[0].reward).reshape(-1)
        rows = rows.reshape(len(rows), -1)
        for k in np.flatnonzero((rows.min(1) != rows.max(1)) | (rows[:, 0] != rewards)):
            return f"a row has observations {rows[k].min():g} to {rows[k].max():g}, reward {rewards[k]:g}"
    return ""


@check("robustness", f"the library's documents: threads may share a buffer; {STORED}")
def rows_are_never_torn(library: Library) -> None:
    """One thread adds steps whose 4,096 numbers and reward are all equal, another draws for 3 s: so is each row drawn,
    and no call fails."""
    if not library.threads:
        raise NotClaimed("its documents do not promise that threads may share a buffer")
    options = Options(capacity=60, shape=(4096,))
    buffer = library.create(options)
    buffer.extend([scenes.step(t, options, reward=t, terminated=True) for t in range(60)])
    stop, errors = threading.Event(), []

    def write() -> None:
        steps = (scenes.step(t, options, reward=t, terminated=True) for t in itertools.count(60))
        while not stop.is_set() and not errors:
            error = error_of(lambda: buffer.add(next(steps)))
            errors.extend([f"add() raises {error}"] if error else [])

    writer, before = threading.Thread(target=write, daemon=True), sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        writer.start()
        torn = torn_row(buffer, 3)
    finally:
        stop.set()
        sys.setswitchinterval(before)
        writer.join(10)
    found = torn or "".join(errors)
    expect(not found, f"a thread adds while another draws: {found}")


def save_until_killed(library: Library, options: Options, path: str, ready: Connection) -> None:
    """In a child: saves steps 100 .. 163 over a file again and again."""
    buffer = library.create(options)
    buffer.extend([scenes.step(t, options, terminated=True) for t in range(100, 164)])
    ready.send(None)
    while True:
        buffer.save(path)


def kill_during_a_save(library: Library, options: Options, path: str, seconds: float) -> None:
    """Kills a child some time after it began to save."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(library.preloaded or [library.module]))
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=save_until_killed, args=(library, options, path, sender), daemon=True)
    child.start()
    sender.close()
    ready = receiver.poll(90) and not error_of(receiver.recv)
    time.sleep(seconds)
    child.kill()
    child.join()
    if not ready:
        raise CannotTry("a process that creates a buffer ended, or was not ready after 90 s")


@check("robustness", "the library's documents: a save that is cut off leaves the previous file")
def a_kill_during_a_save_leaves_a_whole_file(library: Library) -> None:
    """While a process saves 8 MB over a file again and again, SIGKILL at 8 moments spread over the time of one save:
    each time the file loads, with the rows of the previous one or of the new one."""
    if not library.atomic_saves:
        raise NotClaimed("its documents do not promise that a save that is cut off leaves the previous file")
    options = Options(shape=(16384,))
    buffer = scenes.filled(library, options, 64)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "buffer"))
        for k in range(8):
            started = time.monotonic()
            buffer.save(path)
            moment = (time.monotonic() - started) * (k + 0.5) / 8
            kill_during_a_save(library, options, path, moment)
            other = library.create(options)
            error = error_of(lambda other=other: other.load(path))
            shown = f"SIGKILL {1000 * moment:.0f} ms after save() over an older file began; load(): {error or 'works'}"
            expect(not error, shown)
            steps = set(scenes.drawn(other, 10).tolist())
            old, new = steps & set(range(64)), steps & set(range(100, 164))
            found = f"draws have {len(old)} old steps, {len(new)} new ones, others: {sorted(steps - old - new)[:8]}"
            expect(steps in (old, new), f"{shown}\n{found}")


# ---- memory


@check("robustness", "the library's documents of its capacity: new transitions replace old ones")
def memory_stays_once_the_ring_is_full(library: Library) -> str:
    """The process grows by less than 8 MB while a full ring of 500 rows of 8 kB gets a million steps, or as many as it
    takes in 8 s, and at least 2,000, with a batch and new priorities after each 500."""
    options = Options(capacity=500, shape=(1024,))
    buffer = library.create(options)

    def add_500(first: int) -> None:
        buffer.extend([scenes.step(t, options, terminated=t % 10 == 9) for t in range(first, first + 500)])
        batch = buffer.sample()
        with contextlib.suppress(NotClaimed):
            buffer.update(batch.handle, np.linspace(0.5, 2.0, 32))

    n, started, begin, grown = 0, time.monotonic(), 0, 0
    while n < 1_000_000 and grown < 8e6 and (time.monotonic() - started < 8 or n < 3000):
        add_500(n)
        n += 500
        if n == 1000:  # libraries allocate and compile before
            begin = scenes.resident()
        elif n % 1000 == 0:
            grown = scenes.resident() - begin
    shown = f"{n - 1000:,} steps into a full ring of 500: {grown / 1e6:+.1f} MB, {grown / (n - 1000):.0f} bytes a step"
    expect(grown < 8e6, shown)
    return shown
