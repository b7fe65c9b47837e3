#!/usr/bin/env python3
"""Measures draws of batches whose rows lie on the disk, compared with fio on the same disk (apt install fio).

    python bench/storage.py --folder DIRECTORY --bytes 165 7056 --gigabytes 8 --batch 32 256 4096
    python bench/storage.py --folder DIRECTORY --gigabytes 1 --steps 10000     the cost of checkpoints

A transition is a row and the next one, contiguous in the file: one read. Rounds alternate between sample(), with the
file's page cache dropped before; a loader of the same batch size; and fio on the same file with direct reads of the
same size in whole pages: at the maximum queue depth, and in batches that each complete before the next begins. The last
is what io_uring could achieve for sample(). Prints median transitions per second, and the bytes of memory per row.

With --steps: rounds of a checkpoint in the directory of the rows, then of one in another directory, each after that
many new steps and new priorities of as many rows. Prints the duration of these steps and of the call, the bytes that
the call wrote (its result), and the bytes that the process has written since the last one, including copies of pieces
(/proc/self/io). Also the time to load either checkpoint with rows in a file, with the file in the page cache. All are
medians.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import time
from typing import Any

import numpy as np
import per

PAGE = 4096
MADV_DONTNEED = 4


def maps() -> list[str]:
    return pathlib.Path("/proc/self/maps").read_text().splitlines()


class Stored:
    """A full buffer, and its file."""

    def __init__(self, folder: str, row_bytes: int, n_bytes: int) -> None:
        self.row_bytes, self.n_rows = row_bytes, n_bytes // row_bytes
        # The reward takes four bytes.
        fields = {"observation": per.Field((row_bytes - 4,), "uint8")}
        self.buffer = per.ReplayBuffer(self.n_rows, fields, storage=folder)
        self.random = np.random.default_rng(1)
        self.renew_noise()
        self.add(self.n_rows)
        self.mapping = next(line for line in maps() if " (deleted)" in line and folder in line)
        self.file = next(
            int(number)
            for number in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{number}")
            and os.stat(f"/proc/self/fd/{number}").st_ino == int(self.mapping.split()[4])
        )
        os.fsync(self.file)

    def renew_noise(self) -> None:
        n = max(1, (1 << 25) // self.row_bytes)
        self.noise = self.random.integers(0, 256, (n, self.row_bytes - 4), np.uint8)

    def add(self, n_steps: int) -> None:
        n = len(self.noise)
        flags, rewards = np.zeros(n, bool), np.zeros(n, np.float32)
        for first in range(0, n_steps, n):
            size = min(n, n_steps - first)
            self.buffer.extend(
                observation=self.noise[:size], reward=rewards[:size], terminated=flags[:size], truncated=flags[:size]
            )

    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.file}"

    def drop_caches(self) -> None:
        """Drops the file's pages from the cache. Mapped pages would stay, so they are unmapped first."""
        libc = ctypes.CDLL(None, use_errno=True)
        for line in maps():
            if line.split()[4] == self.mapping.split()[4]:
                first, last = (int(number, 16) for number in line.split()[0].split("-"))
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def drawn(self, batch: int, seconds: float) -> float:
        """Transitions per second."""
        self.drop_caches()
        begin, n = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            self.buffer.sample(batch)
            n += batch
        return n / (time.perf_counter() - begin)

    def loaded(self, batch: int, seconds: float) -> float:
        self.drop_caches()
        with self.buffer.loader(batch) as loader:
            begin, n = time.perf_counter(), 0
            while time.perf_counter() < begin + seconds:
                next(loader).release()
                n += batch
            return n / (time.perf_counter() - begin)

    def read_by_fio(self, seconds: float, *options: str) -> float:
        """Reads per second."""
        self.drop_caches()
        n_bytes = -(-2 * self.row_bytes // PAGE) * PAGE
        result = subprocess.run(
            [
                "fio",
                "--name=reads",
                f"--filename={self.path()}",
                "--rw=randread",
                "--direct=1",
                f"--bs={n_bytes}",
                f"--size={self.n_rows * self.row_bytes // n_bytes * n_bytes}",
                "--norandommap",
                "--time_based",
                f"--runtime={seconds}",
                "--output-format=json",
                *options,
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        return float(json.loads(result.stdout)["jobs"][0]["read"]["iops"])


def measured(stored: Stored, batch: int, seconds: float, rounds: int) -> dict[str, float]:
    """Median rates per second, by way."""
    together = [f"--iodepth={batch}", f"--iodepth_batch={batch}", f"--iodepth_batch_complete_min={batch}"]
    ways = {
        "sample": lambda: stored.drawn(batch, seconds),
        "loader": lambda: stored.loaded(batch, seconds),
        "fio, 256 at once": lambda: stored.read_by_fio(seconds, "--ioengine=libaio", "--iodepth=256"),
        "fio, io_uring in batches": lambda: stored.read_by_fio(seconds, "--ioengine=io_uring", *together),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            rates[name].append(way())
    return {name: statistics.median(values) for name, values in rates.items()}


def bytes_written() -> int:
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def measured_checkpoints(stored: Stored, folder: str, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds and bytes, by the directory of the checkpoint."""
    places = {"in place": folder, "elsewhere": f"{folder}/elsewhere"}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in places}
    for name, place in places.items():
        for turn in range(rounds + 1):  # the first writes all rows elsewhere
            stored.renew_noise()
            before, begin = bytes_written(), time.perf_counter()
            stored.add(steps)
            added = time.perf_counter()
            ids = stored.random.choice(stored.buffer.live_ids(), steps)
            stored.buffer.update_priorities(ids, priorities=stored.random.random(steps))
            called = time.perf_counter()
            result = stored.buffer.checkpoint(place)
            ended = time.perf_counter()
            figures = {"steps": added - begin, "call": ended - called, "result": float(result)}
            if turn > 0:
                found[name].append(figures | {"written": float(bytes_written() - before)})
    stored.buffer.close()
    for name, place in places.items():
        for figures in found[name]:
            begin = time.perf_counter()
            loaded = per.ReplayBuffer.load(place, storage=folder)
            figures["load"] = time.perf_counter() - begin
            loaded.close()
    return {
        name: {key: statistics.median(each[key] for each in figures) for key in figures[0]}
        for name, figures in found.items()
    }


def print_checkpoints(stored: Stored, folder: str, steps: int, rounds: int) -> list[dict[str, Any]]:
    lines = []
    for name, figures in measured_checkpoints(stored, folder, steps, rounds).items():
        lines.append({"row_bytes": stored.row_bytes, "checkpoint": name, **figures})
        print(
            f"  {name:<10} steps {figures['steps']:8.3f} s, checkpoint {figures['call']:8.3f} s, it writes "
            f"{figures['result'] / 1e6:9.2f} MB, all {figures['written'] / 1e6:9.2f} MB, load {figures['load']:8.3f} s",
            flush=True,
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--bytes", type=int, nargs="+", default=[165, 7056])
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256, 4096])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="between two checkpoints, which are measured in place of batches")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for row_bytes in arguments.bytes:
        stored = Stored(os.path.abspath(arguments.folder), row_bytes, int(arguments.gigabytes * 1e9))
        in_memory = stored.buffer.stats().memory_bytes / stored.buffer.capacity
        print(f"rows of {row_bytes} bytes: {stored.n_rows:,}, {in_memory:.1f} bytes of memory each")
        if arguments.steps:
            figures += print_checkpoints(stored, os.path.abspath(arguments.folder), arguments.steps, arguments.rounds)
        for batch in arguments.batch if not arguments.steps else []:
            medians = measured(stored, batch, arguments.seconds, arguments.rounds)
            figures.append({"row_bytes": row_bytes, "batch": batch, "memory_bytes_a_row": in_memory, **medians})
            for name, rate in medians.items():
                share = rate / medians["fio, 256 at once"]
                print(f"  batch {batch:>5}  {name:<26} {rate:>10,.0f} a second {share:>7.0%}", flush=True)
        del stored
    if arguments.json:
        arguments.json.write_text(json.dumps({"load": os.getloadavg(), "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
