#!/usr/bin/env python3
"""Compares checkpoints of per.ReplayBuffer with the limits of the disk, and with those of installed libraries.

    python bench/files.py                               a million rows of 100 bytes; in /dev/shm and in this folder
    python bench/files.py --rows image --folder DIR     90,000 frames of 32x32x3 float32

    raw          the bytes of the file in one piece: written, synced and renamed, or read into new memory
    save, load   the same bytes, from the buffer and to one
    save_to_memory   save without a disk: to a file object that only counts
    compressed   save_compression 3
    background   save(wait=False): its duration, and the longest training step meanwhile
    checkpoint   after 10,000 new steps and as many new priorities, as in a minute of training: the call's duration, the
                 bytes that it writes, and its share of that minute
    TorchRL      dumps() and loads() of the same transitions; Reverb's client.checkpoint(), of at most 1e5 of them

Prints medians in milliseconds and ratios to raw, of wall-clock time and of processor time, which a busy disk does not
change. All variants are interleaved.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import libper_buffers
import numpy as np
import peer_buffers
import peers
import torchrl_extension
import transitions

SHAPES = {"vector": (transitions.VECTOR, 1_000_000), "image": (transitions.IMAGE, 90_000)}
BATCH = 256
STEPS_A_MINUTE = 10_000
PIECE = 1 << 20
FILL_ROWS = 50_000


def filled(make: Callable[..., Any], shape: transitions.RowShape, capacity: int) -> Any:
    buffer, feed = make(shape, capacity, BATCH), peers.Feed(shape, 0, BATCH)
    for first in range(0, capacity, FILL_ROWS):
        count = min(FILL_ROWS, capacity - first)
        buffer.fill(feed.run(count), feed.td_errors(count))
    buffer.prepare(feed.step(), feed.td_errors(BATCH))
    buffer.feed = feed
    return buffer


class Files:
    """The variants to measure in one folder, by name."""

    def __init__(self, folder: pathlib.Path, rows: str, capacity: int) -> None:
        import per

        self.load_buffer = per.ReplayBuffer.load
        self.folder, self.shape = folder, SHAPES[rows][0]
        self.own = filled(libper_buffers.Libper, self.shape, capacity)
        self.buffer = self.own.buffer
        self.path, self.copy = folder / "buffer.per", folder / "copy.per"
        self.buffer.save(self.path)
        self.bytes = np.fromfile(self.path, np.uint8)
        self.directory = folder / "checkpoints"
        self.buffer.checkpoint(self.directory)
        self.found: dict[str, float] = {"bytes": self.bytes.size}
        self.variants = {
            "raw write": self.raw_write,
            "save": lambda: self.buffer.save(self.path),
            "save_to_memory": lambda: self.buffer.save(Counting()),
            "raw read": self.raw_read,
            "load": lambda: self.load_buffer(self.path),
            "compressed": self.compressed,
            "background": self.background,
            "checkpoint": self.checkpoint,
        }
        peer = peer_of(self.shape, capacity, folder)
        self.variants |= peer

    def raw_write(self) -> None:
        with open(self.folder / "raw.new", "wb", buffering=0) as file:
            for at in range(0, self.bytes.size, PIECE):
                file.write(self.bytes[at : at + PIECE].data)
            os.fsync(file.fileno())
        os.replace(self.folder / "raw.new", self.folder / "raw")

    def raw_read(self) -> None:
        into = np.empty(self.bytes.size, np.uint8)
        with open(self.folder / "raw", "rb", buffering=0) as file:
            for at in range(0, into.size, PIECE):
                file.readinto(into[at : at + PIECE].data)

    def compressed(self) -> None:
        self.buffer.save_compression = 3
        self.buffer.save(self.copy)
        self.buffer.save_compression = 0
        self.found["compressed bytes"] = self.copy.stat().st_size

    def step(self) -> float:
        began = time.perf_counter()
        self.own.sample()
        self.own.update()
        return time.perf_counter() - began

    def background(self) -> None:
        longest_alone = max(self.step() for _ in range(1000))
        began = time.perf_counter()
        save = self.buffer.save(self.copy, wait=False)
        started = time.perf_counter() - began
        longest = 0.0
        while not save.done:
            longest = max(longest, self.step())
        save.wait()
        for name, seconds in (("start", started), ("longest step", longest), ("longest step alone", longest_alone)):
            self.found[name] = 1e3 * seconds

    def checkpoint(self) -> tuple[float, float]:
        """The call alone, without the steps before it."""
        self.own.prepare_run(self.own.feed.run(STEPS_A_MINUTE))
        self.own.extend()
        for _ in range(STEPS_A_MINUTE // BATCH):
            self.step()
        clock, processor = time.perf_counter(), time.process_time()
        self.found["checkpoint bytes"] = self.buffer.checkpoint(self.directory)
        return time.perf_counter() - clock, time.process_time() - processor


class Counting:
    def write(self, memory: Any) -> int:
        return len(memory)


def peer_of(shape: transitions.RowShape, capacity: int, folder: pathlib.Path) -> dict[str, Callable[[], Any]]:
    variants: dict[str, Callable[[], Any]] = {}
    if importlib.util.find_spec("torchrl"):
        torchrl = filled(peer_buffers.TorchRL, shape, capacity).buffer
        again = filled(peer_buffers.TorchRL, shape, capacity).buffer
        variants["TorchRL dumps"] = lambda: torchrl.dumps(folder / "torchrl")
        variants["TorchRL loads"] = lambda: again.loads(folder / "torchrl")
    if importlib.util.find_spec("reverb"):
        reverb = filled(peer_buffers.Reverb, shape, min(capacity, peer_buffers.Reverb.largest_capacity))
        variants["Reverb checkpoint"] = lambda: reverb.client.checkpoint()  # the server lives as long as `reverb`
    return variants


def measure(files: Files, rounds: int) -> dict[str, dict[str, float]]:
    """Median wall-clock and processor time in seconds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in files.variants}
    for turn in range(rounds + 1):
        for name, call in files.variants.items():
            clock, processor = time.perf_counter(), time.process_time()
            own = call()
            spent = (time.perf_counter() - clock, time.process_time() - processor)
            if isinstance(own, tuple):
                spent = own
            if turn > 0:
                times[name].append(spent)
    return {
        name: {
            "ms": 1e3 * statistics.median(t[0] for t in spent),
            "cpu_ms": 1e3 * statistics.median(t[1] for t in spent),
        }
        for name, spent in times.items()
    }


def print_table(folder: pathlib.Path, rows: str, capacity: int, times: Any, found: dict[str, float]) -> None:
    print(f"{folder}, {rows} rows, N = {capacity:,}, {found['bytes'] / 1e6:.0f} MB: milliseconds, and of raw")
    print(f"{'':20}{'clock':>9}{'':7}{'processor':>11}")
    for name, spent in times.items():
        raw = times["raw read" if "load" in name or name == "raw read" else "raw write"]
        of_raw = [f"{raw[key] / spent[key]:6.2f}" if spent[key] > 0 else "" for key in ("ms", "cpu_ms")]
        print(f"{name:20}{spent['ms']:9.1f} {of_raw[0]:6}{spent['cpu_ms']:11.1f} {of_raw[1]:6}")
    share = 100 * times["checkpoint"]["ms"] / 60_000
    print(
        f"compressed {found['compressed bytes'] / 1e6:.1f} MB; checkpoint {found['checkpoint bytes'] / 1e6:.1f} MB, "
        f"{share:.2f} % of a minute\nbackground: starts in {found['start']:.2f} ms, longest step "
        f"{found['longest step']:.2f} ms, without a save {found['longest step alone']:.2f}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", choices=list(SHAPES), default="vector")
    parser.add_argument("--capacity", type=lambda text: int(float(text)), help="of transitions")
    parser.add_argument("--folder", type=pathlib.Path, nargs="*", default=[pathlib.Path("/dev/shm"), pathlib.Path()])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--build-torchrl", action="store_true", help="compile TorchRL's priority trees")
    parser.add_argument("--json", type=pathlib.Path, help="file to write the results to")
    arguments = parser.parse_args()
    if arguments.build_torchrl and importlib.util.find_spec("torchrl"):
        torchrl_extension.build()
    capacity = arguments.capacity or SHAPES[arguments.rows][1]
    results = []
    for place in arguments.folder:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="per_bench_", dir=place))
        try:
            files = Files(folder, arguments.rows, capacity)
            with peers.without_garbage_collection():
                times = measure(files, arguments.rounds)
        finally:
            shutil.rmtree(folder)
        print_table(place, arguments.rows, capacity, times, files.found)
        results.append(
            {"folder": str(place), "rows": arguments.rows, "capacity": capacity, **files.found, "times": times}
        )
    if arguments.json:
        place = {"machine": peers.machine(), "commit": peers.commit(), "versions": peers.versions(["libper"])}
        arguments.json.write_text(json.dumps(place | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
