#!/usr/bin/env python3
"""Measures libper's Python package and the replay libraries that are installed.

    python -m per bench                                     1e4, 1e5 and 1e6 rows, batches of 32 to 4096
    python -m per bench --rows image                        Flashbax's published configuration
    python -m per bench --draw results/*.json               table and picture from earlier runs

Installs nothing: requirements.txt and requirements-reverb.txt of the source tree name compatible versions, and its
README.md describes the method.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import peer_buffers
import picture
import torchrl_extension
import transitions

OPERATIONS = ("add", "extend", "sample", "update")
EXTEND_ROWS = 1000
WARM_UP, TIMED = 2, 4
EVICTED_BYTES = 8 << 20
FILL_ROWS = 50_000
FEWEST_BURSTS = 3
IMAGE_CAPACITY, IMAGE_BATCH = 500_000, 256

Timings = dict[str, list[float]]


class Feed:
    """The input of buffers: steps in order, and exponentially distributed TD errors."""

    def __init__(self, shape: transitions.RowShape, first: int, batch: int) -> None:
        self.shape, self.next_step, self.batch = shape, first, batch
        self.random = np.random.default_rng(3)

    def td_errors(self, count: int) -> npt.NDArray:
        return self.random.exponential(size=count).astype(np.float32)

    def step(self) -> transitions.Arrays:
        arrays = self.run(1)
        return {name: array[0] for name, array in arrays.items()}

    def run(self, count: int) -> transitions.Arrays:
        arrays = transitions.transitions(self.shape, self.next_step, count)
        self.next_step += count
        return arrays


def evict() -> Callable[[], None]:
    """A function that fills the caches with unrelated memory."""
    other = np.ones(EVICTED_BYTES // 8)
    return lambda: (other.sum(), None)[1]


def timed(operation: Callable[[], Any], into: list[float]) -> None:
    start = time.perf_counter()
    operation()
    into.append(time.perf_counter() - start)


def burst(buffer: Any, feed: Feed, times: Timings) -> None:
    """A few steps of a learner: a transition added, a batch drawn, its priorities set; then runs of transitions."""
    for i in range(WARM_UP + TIMED):
        into: Timings = times if i >= WARM_UP else {name: [] for name in times}
        buffer.prepare(feed.step(), feed.td_errors(feed.batch))
        for name in ("add", "sample", "update"):
            if name in times:
                timed(getattr(buffer, name), into[name])
    for i in range(WARM_UP + TIMED if "extend" in times else 0):
        buffer.prepare_run(feed.run(EXTEND_ROWS))
        timed(buffer.extend, times["extend"] if i >= WARM_UP else [])


def measure(buffers: dict[str, Any], feeds: dict[str, Feed], seconds: float) -> dict[str, Timings]:
    """Bursts of all buffers in random order for about that long; slow ones sit out after their share."""
    times: dict[str, Timings] = {
        name: {operation: [] for operation in OPERATIONS if getattr(buffer, operation, None) is not None}
        for name, buffer in buffers.items()
    }
    spent = dict.fromkeys(buffers, 0.0)
    share = seconds / len(buffers)
    order = random.Random(5)
    names = list(buffers)
    clear_caches = evict()
    start = time.perf_counter()
    rounds = 0
    while rounds < FEWEST_BURSTS or time.perf_counter() - start < seconds:
        order.shuffle(names)
        for name in names:
            if rounds >= FEWEST_BURSTS and spent[name] > share:
                continue
            clear_caches()
            began = time.perf_counter()
            burst(buffers[name], feeds[name], times[name])
            spent[name] += time.perf_counter() - began
        rounds += 1
    return times


def filled(make: Callable[..., Any], shape: transitions.RowShape, capacity: int, batch: int) -> tuple[Any, Feed]:
    """A buffer that holds `capacity` transitions, and its next input."""
    buffer = make(shape, capacity, batch)
    feed = Feed(shape, 0, batch)
    rows = min(FILL_ROWS, max(1, (64 << 20) // shape.step_bytes))
    while feed.next_step < capacity:
        count = min(rows, capacity - feed.next_step)
        buffer.fill(feed.run(count), feed.td_errors(count))
    return buffer, feed


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def results_of(names: list[str], rows: str, capacity: int, batch: int, seconds: float) -> list[dict[str, Any]]:
    shape = transitions.IMAGE if rows == "image" else transitions.VECTOR
    buffers, feeds = {}, {}
    for name in names:
        make = peer_buffers.BUFFERS[name]
        if capacity > getattr(make, "largest_capacity", capacity):
            continue
        buffers[name], feeds[name] = filled(make, shape, capacity, batch)
    with without_garbage_collection():
        times = measure(buffers, feeds, seconds)
    for name, buffer in buffers.items():
        try:
            transitions.check(shape, buffer.sampled())
        except ValueError as error:
            raise SystemExit(f"{name}: {error}") from error
    results = []
    for name, timings in times.items():
        if "update" in timings:
            timings["sample + update"] = [sum(pair) for pair in zip(timings["sample"], timings["update"], strict=True)]
        for operation, values in timings.items():
            place = {"library": name, "operation": operation, "rows": rows, "capacity": capacity, "batch": batch}
            cost = {"us": 1e6 * statistics.median(values), "best_us": 1e6 * min(values), "calls": len(values)}
            results.append(place | cost)
    return results


def installed(asked: list[str] | None, rows: str, build_torchrl: bool) -> list[str]:
    """The libraries to measure. Prints the missing ones with the reason."""
    names = []
    for name, make in peer_buffers.BUFFERS.items():
        if asked and name not in asked:
            continue
        if rows == "image" and not make.stores_observations_once:
            continue  # 12 GB each if next observations are stored
        if rows == "vector" and name == "Flashbax flat" and not asked:
            continue  # its pairs cross episodes; the item buffer is the comparable one
        if importlib.util.find_spec(make.package.partition(".")[0]) is None:
            print(f"not installed: {make.version_of}")
        elif name == "TorchRL" and not build_torchrl and torchrl_extension.is_missing():
            print("left out: TorchRL's priority trees do not load with this torch; --build-torchrl compiles them")
        else:
            names.append(name)
    return names


def machine() -> dict[str, Any]:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(models),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit of the source tree, with "-dirty" if files differ; results, which bench/run writes, do not count."""
    folder = pathlib.Path(__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return "unknown"  # a wheel's copy, possibly inside an unrelated repository

    def of_git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()

    changed = of_git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return (of_git("rev-parse", "--short=12", "HEAD") or "unknown") + "-dirty" * bool(changed)


def versions(names: list[str]) -> dict[str, str]:
    found = {}
    for package in {peer_buffers.BUFFERS[name].version_of for name in names} | {"torch", "jax"}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return dict(sorted(found.items()))


def print_table(results: list[dict[str, Any]]) -> None:
    """Median microseconds per call; the last column is the ratio to libper's."""
    columns = (*OPERATIONS, "sample + update")
    for rows, capacity, batch in sorted({(r["rows"], r["capacity"], r["batch"]) for r in results}):
        here = [r for r in results if (r["rows"], r["capacity"], r["batch"]) == (rows, capacity, batch)]
        costs = {(r["library"], r["operation"]): r["us"] for r in here}
        own = costs.get(("libper", "sample + update"))
        print(f"\n{rows} rows, N = {capacity:,}, B = {batch}: microseconds a call, median")
        print(f"{'':20}" + "".join(f"{column:>17}" for column in columns) + f"{'/ libper':>12}")
        for library in dict.fromkeys(r["library"] for r in here):
            cells = (costs.get((library, column)) for column in columns)
            both = costs.get((library, "sample + update"))
            ratio = f"{both / own:12.2f}" if both and own else f"{'-':>12}"
            print(f"{library:20}" + "".join(f"{'-':>17}" if c is None else f"{c:17.1f}" for c in cells) + ratio)


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges reports; a library in several of them keeps the figures of the first."""
    together = dict(reports[0], versions={}, results=[])
    for report in reports:
        seen = {result["library"] for result in together["results"]}
        together["results"] += [result for result in report["results"] if result["library"] not in seen]
        together["versions"] = report["versions"] | together["versions"]
    return together


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", choices=("vector", "image"), default="vector")
    parser.add_argument("--capacity", type=float, nargs="+", help="rows; 1e4 1e5 1e6 if not given")
    parser.add_argument("--batch", type=int, nargs="+", help="32 256 1024 4096 if not given")
    libraries = list(peer_buffers.BUFFERS)
    parser.add_argument("--library", nargs="+", metavar="NAME", choices=libraries, help=f"of {'; '.join(libraries)}")
    parser.add_argument("--seconds", type=float, default=20, help="for each capacity and batch size")
    parser.add_argument("--build-torchrl", action="store_true", help="compile TorchRL's priority trees if need be")
    parser.add_argument("--json", type=pathlib.Path, help="file to write the results to")
    parser.add_argument("--picture", type=pathlib.Path, help="file to draw them to")
    parser.add_argument("--draw", type=pathlib.Path, nargs="+", help="measure nothing: take the results of these files")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install 'libper[plot]'")
    return arguments


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.build_torchrl:
        torchrl_extension.build()
    names = installed(arguments.library, arguments.rows, arguments.build_torchrl)
    is_image = arguments.rows == "image"
    capacities = arguments.capacity or ([IMAGE_CAPACITY] if is_image else [1e4, 1e5, 1e6])
    batches = arguments.batch or ([IMAGE_BATCH] if is_image else [32, 256, 1024, 4096])
    results = []
    for capacity in capacities:
        for batch in batches:
            results += results_of(names, arguments.rows, int(capacity), batch, arguments.seconds)
            print(f"measured: N = {int(capacity):,}, B = {batch}", file=sys.stderr)
    today = datetime.date.today().isoformat()
    place = {"machine": machine(), "commit": commit(), "date": today, "versions": versions(names)}
    return place | {"results": results}


def main() -> None:
    warnings.filterwarnings("ignore")  # the libraries warn about each other's versions
    arguments = parse()
    reports = [json.loads(path.read_text()) for path in arguments.draw or []]
    report = merged(reports) if reports else run(arguments)
    print_table(report["results"])
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.picture:
        picture.draw(picture.PEERS, picture.of_peers(report), report["machine"], arguments.picture)


if __name__ == "__main__":
    main()
