#!/usr/bin/env python3
"""Compares compressed fields with a buffer that stores the same frames uncompressed: memory, adds, batches.

    python bench/compression.py                                     # screens rendered here, and noise
    python bench/compression.py --games pong ms_pacman beam_rider   # and Atari's (pip install ale-py pillow)

Frames are 84 by 84 bytes, in stacks of four with their next observations. Atari's come from a random policy with the
usual preprocessing: every fourth frame, the maximum of the last two, grey, resized by area averaging. Both buffers get
the same steps and draw the same transitions, in alternating rounds. Before each batch 64 MiB of other memory are read,
as a learner's step would. Prints medians, for batches also the best, in microseconds, and bytes of memory per row,
including 23 bytes of other values.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import per

Frames = npt.NDArray[np.uint8]
SIDE = 84


def drawn_screens(n: int) -> Frames:
    """Two paddles, a ball and a score on a background with a pattern."""
    random = np.random.default_rng(0)
    background = np.where(random.random((SIDE, SIDE)) < 0.1, 110, 87).astype(np.uint8)
    frames = np.repeat(background[None], n, axis=0)
    for t, screen in enumerate(frames):
        screen[:8] = 236 if t % 100 < 50 else 60
        screen[abs(t % 120 - 60) + 8 :][:12, 8:11] = 148
        screen[random.integers(8, 72) :][:12, 72:75] = 213
        screen[abs(t * 3 % 140 - 70) + 10 :][:2, abs(t * 2 % 160 - 80) :][:, :2] = 236
    return frames


def noise(n: int) -> Frames:
    return np.random.default_rng(0).integers(0, 256, (n, SIDE, SIDE), np.uint8)


def atari(game: str, n: int) -> Frames:
    from ale_py import ALEInterface, LoggerMode, roms
    from PIL import Image

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 7)
    ale.loadROM(roms.get_rom_path(game))
    random, actions = np.random.default_rng(1), ale.getMinimalActionSet()
    frames = np.empty((n, SIDE, SIDE), np.uint8)
    for frame in frames:
        if ale.game_over():
            ale.reset_game()
        action = random.choice(actions)
        for _ in range(3):
            ale.act(action)
        before = ale.getScreenGrayscale()
        ale.act(action)
        screen = np.maximum(before, ale.getScreenGrayscale()).reshape(210, 160)
        frame[:] = np.asarray(Image.fromarray(screen).resize((SIDE, SIDE), Image.Resampling.BOX))
    return frames


class Buffers:
    """Buffers with the same steps, one compressed and one uncompressed."""

    KINDS = ("none", "delta")

    def __init__(self, frames: Frames, capacity: int) -> None:
        self.buffers = {}
        for kind in self.KINDS:
            fields = {"observation": per.Field((SIDE, SIDE), "uint8", stack=4, compression=kind)}
            self.buffers[kind] = per.ReplayBuffer(capacity, {**fields, "action": per.Field((), "int64")}, seed=1)
        add: dict[str, list[float]] = {kind: [] for kind in self.KINDS}
        n = min(64, len(frames))
        rest = {"action": np.zeros(n, np.int64), "reward": np.zeros(n, np.float32)}
        rest |= {"terminated": np.zeros(n, bool), "truncated": np.zeros(n, bool)}
        for first in range(0, capacity + capacity // 4, n):  # the ring wraps around
            begin = first % (len(frames) - n + 1)
            for kind, buffer in self.buffers.items():
                start = time.perf_counter()
                buffer.extend(observation=frames[begin : begin + n], **rest)
                add[kind].append((time.perf_counter() - start) / n * 1e6)
        late = capacity // n  # earlier adds write to untouched memory
        self.add = {kind: statistics.median(times[late:]) for kind, times in add.items()}
        self.bytes = {kind: buffer.stats().memory_bytes / capacity for kind, buffer in self.buffers.items()}

    def sample(self, batch: int, rounds: int, other: npt.NDArray[np.uint8]) -> dict[str, list[float]]:
        """Medians, and the best times."""
        drawn = {kind: buffer.sample(batch) for kind, buffer in self.buffers.items()}
        times: dict[str, list[float]] = {kind: [] for kind in self.KINDS}
        for _ in range(rounds):
            for kind, buffer in self.buffers.items():
                other.max()
                start = time.perf_counter()
                buffer.sample(batch, out=drawn[kind])
                times[kind].append((time.perf_counter() - start) * 1e6)
            assert all(
                np.array_equal(value, getattr(drawn["delta"], name)) for name, value in vars(drawn["none"]).items()
            )
        return {kind: [statistics.median(found), min(found)] for kind, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="*", default=[])
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--frames", type=int, default=5_000, help="that differ; they come again and again")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    other = np.ones(1 << 26, np.uint8)
    figures: list[dict[str, Any]] = []
    for name in ("screens", "noise", *arguments.games):
        make = {"screens": drawn_screens, "noise": noise}.get(name)
        frames = make(arguments.frames) if make else atari(name, arguments.frames)
        buffers = Buffers(frames, arguments.capacity)
        batches = {batch: buffers.sample(batch, arguments.rounds, other) for batch in arguments.batch}
        figures.append({"frames": name, "bytes": buffers.bytes, "add": buffers.add, "sample": batches})
        ratio = buffers.bytes["none"] / buffers.bytes["delta"]
        print(f"{name:<18} {buffers.bytes['delta']:7,.0f} bytes a row, {ratio:5.1f} times less", end="")
        print(f"   add {buffers.add['delta']:5.1f} us a step ({buffers.add['none']:.1f} as it is)", end="")
        for batch, found in batches.items():
            median, best = (delta / none for delta, none in zip(found["delta"], found["none"], strict=True))
            print(f"   sample({batch}) {found['delta'][0]:6,.0f} us, {median:.2f} times (best {best:.2f})", end="")
        print(flush=True)
        del buffers
    if arguments.json:
        load = {"load": os.getloadavg(), "capacity": arguments.capacity}
        arguments.json.write_text(json.dumps({**load, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
