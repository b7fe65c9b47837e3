"""Checks of time and memory. Times include the conversion of batches to numpy arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time

import numpy as np
import scenes
from contract import Array, Buffer, CannotTry, Library, NotClaimed, Options, Step, check, expect
from law import PAPER

BATCH = 256
MOST_FILLING = 90.0  # seconds
FRAME = (84, 84)
ATARI_STEPS = 4000
clock = time.perf_counter  # the tests of the referee count work instead


def filled(library: Library, n: int) -> Buffer:
    """A full buffer of n transitions of 17 numbers, in episodes of 200 steps. Their contents do not matter."""
    options = Options(capacity=n, batch_size=BATCH, alpha=0.6, beta=0.4, shape=(17,))
    buffer = library.create(options)
    steps = [step for first in range(0, 1000, 200) for step in scenes.episode(first, 200, options)]
    started = time.monotonic()
    for done in range(0, n, 1000):
        buffer.extend(steps)
        taken = time.monotonic() - started
        total = taken / (done + 1000) * n
        if taken > 5 and total > MOST_FILLING:  # the first may take longer
            raise CannotTry(f"to add {n:,} steps would take {total:.0f} s")
    return buffer


def seconds_of_a_batch(buffer: Buffer, random: np.random.Generator) -> float:
    """The time to draw a batch and, if the library has priorities, to set those of the batch."""
    priorities = random.uniform(0.1, 2.0, BATCH)
    started = clock()
    batch = buffer.sample()
    observation = np.asarray(batch.observation)
    with contextlib.suppress(NotClaimed):
        buffer.update(batch.handle, priorities)
    taken = clock() - started
    expect(len(observation) == BATCH, f"a batch of {BATCH} has observations of shape {observation.shape}")
    return taken


def measure(library: Library, n: int) -> str:
    """Rounds take turns with a buffer of 1,000: 100 rounds, or as many as fit into 4 s, after three that do not count.
    The figure is a median; the fastest rounds are compared, in which other programs disturb least."""
    random, small, large = np.random.default_rng(1), filled(library, 1000), filled(library, n)
    times: list[tuple[float, float]] = []
    until = time.monotonic() + 4
    while len(times) < 103 and (len(times) < 8 or time.monotonic() < until):
        times.append((seconds_of_a_batch(small, random), seconds_of_a_batch(large, random)))
    fast, slow = (min(column) for column in zip(*times[3:], strict=True))
    ratio, limit = slow / fast, (n / 1000) ** (2 / 3)
    expect(
        ratio < limit,
        f"{1e6 * slow:.0f} µs a batch of {BATCH} of {n:,} transitions, {1e6 * fast:.0f} µs of 1,000:\n"
        f"{ratio:.1f} times as long; the limit is {limit:.1f}",
    )
    median = statistics.median(time for _, time in times[3:])
    return f"{1e6 * median:.0f} µs a batch of {BATCH}, {ratio:.1f} times that of 1,000"


GROWTH = f"{PAPER}, appendix B.2.1: a sum tree allows O(log N) updates and sampling"


@check("cost", GROWTH)
def batches_of_10_000(library: Library) -> str:
    """To draw 256 of 10,000 transitions and to set their priorities, if there are any, takes less than 4.6 times as
    long as with 1,000: a limit of N^(2/3), between log N and N."""
    return measure(library, 10**4)


@check("cost", GROWTH)
def batches_of_100_000(library: Library) -> str:
    """To draw 256 of 100,000 transitions and to set their priorities, if there are any, takes less than 22 times as
    long as with 1,000: a limit of N^(2/3), between log N and N."""
    return measure(library, 10**5)


@check("cost", GROWTH)
def batches_of_1_000_000(library: Library) -> str:
    """To draw 256 of 1,000,000 transitions and to set their priorities, if there are any, takes less than 100 times as
    long as with 1,000: a limit of N^(2/3), between log N and N."""
    return measure(library, 10**6)


def atari_step(t: int, frames: Array, stacked: bool) -> Step:
    """Step t of episodes of 500 steps, in arrays that are the step's own."""
    options = Options(shape=FRAME, dtype="uint8")
    step = scenes.step(t % 200, options, terminated=t % 500 == 499)
    stack = np.take(frames, np.arange(t - 3, t + 2), axis=0, mode="wrap")
    step.observation = stack[None, :4].copy() if stacked else stack[None, 3].copy()
    step.next_observation = stack[None, 1:].copy() if stacked else stack[None, 4].copy()
    return step


@check("cost", "Mnih et al. 2015, Nature 518: states of four frames of 84 x 84 bytes")
def bytes_of_an_atari_transition(library: Library) -> str:
    """A transition takes at most a quarter more memory than eight frames, two stacks of four: growth of the process
    over 4,000 steps that fill the buffer, of random frames, which no compression shrinks. If the library forms stacks,
    a step is given with a single frame and the next one, otherwise with stacks of four."""
    frames = np.random.default_rng(1).integers(0, 256, (97, *FRAME), np.uint8)
    stacked = Options(capacity=64, frame_stack=4, shape=FRAME, dtype="uint8")
    given = Options(capacity=64, shape=(4, *FRAME), dtype="uint8")
    try:
        options, buffer = stacked, library.create(stacked)
    except NotClaimed:
        options, buffer = given, library.create(given)
    for t in range(64):  # what a library allocates only once is not counted
        buffer.add(atari_step(t, frames, options is given))
    buffer.sample()
    del buffer
    before = scenes.resident()
    buffer = library.create(dataclasses.replace(options, capacity=ATARI_STEPS))
    for first in range(0, ATARI_STEPS, 50):
        buffer.extend([atari_step(t, frames, options is given) for t in range(first, first + 50)])
    each = (scenes.resident() - before) / ATARI_STEPS
    most = 8 * 84 * 84
    expect(each < 1.25 * most, f"{each:,.0f} bytes a transition; eight frames have {most:,}")
    return f"{each:,.0f} bytes, " + ("stacks as given" if options is given else "stacks formed by the library")
