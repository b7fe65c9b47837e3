#!/usr/bin/env python3
"""Measures the overhead of the calls of per.ReplayBuffer over the functions of per.h that they call.

    python bench/overhead.py            numpy's arrays, and torch's if installed

Prints median microseconds per call, for rows of 165 bytes. Python's overhead does not depend on the size of the buffer,
so the buffer is small. The functions of per.h are also called from Python, with prepared pointers: cffi's 0.1 to 0.3 us
count as theirs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import libper_buffers
import numpy as np
import peers
import transitions

CAPACITY = 10_000
CALLS = 20  # of each variant per round


class Torch:
    """Steps and TD errors as torch tensors, in batches."""

    def __init__(self, batch: int) -> None:
        import per
        import torch

        shape = transitions.VECTOR
        fields = {
            "observation": per.Field(shape.observation, "float32"),
            "action": per.Field(shape.action, "float32"),
        }
        self.tensor = torch.from_numpy
        self.buffer = per.ReplayBuffer(CAPACITY, fields, seed=1, arrays="torch")
        self.batch = batch

    def fill(self, arrays: transitions.Arrays, priorities: Any) -> None:
        self.buffer.extend(**libper_buffers.flags_of(arrays))

    def prepare(self, step: transitions.Arrays, priorities: Any) -> None:
        step = libper_buffers.flags_of(step)
        self.step = {name: self.tensor(np.ascontiguousarray(value)) for name, value in step.items()}
        self.priorities = self.tensor(priorities)
        self.drawn = self.buffer.sample(self.batch)

    def add(self) -> None:
        self.buffer.add(**self.step)

    def sample(self) -> None:
        self.drawn = self.buffer.sample(self.batch)

    def sample_out(self) -> None:
        self.buffer.sample(self.batch, out=self.drawn)

    def update(self) -> None:
        self.buffer.update_priorities(self.drawn.ids, self.priorities)


class Numpy(libper_buffers.Libper):
    """Steps and TD errors as arrays of numpy, in batches."""

    def __init__(self, batch: int) -> None:
        super().__init__(transitions.VECTOR, CAPACITY, batch)

    def prepare(self, step: transitions.Arrays, priorities: Any) -> None:
        super().prepare(step, priorities)
        self.sample()

    def sample_out(self) -> None:
        self.buffer.sample(self.batch, out=self.drawn)


class Calls(libper_buffers.LibperCalls):
    """The functions of per.h."""

    def __init__(self, batch: int) -> None:
        super().__init__(transitions.VECTOR, CAPACITY, batch)

    def sample_out(self) -> None:
        self.sample()


OPERATIONS = {"sample": "sample", "sample, out=": "sample_out", "update_priorities": "update", "add": "add"}
KINDS: dict[str, Callable[[int], Any]] = {"C": Calls, "numpy": Numpy, "torch": Torch}


def prepared(make: Callable[[int], Any], batch: int) -> Any:
    buffer = make(batch)
    feed = peers.Feed(transitions.VECTOR, 0, batch)
    buffer.fill(feed.run(CAPACITY), feed.td_errors(CAPACITY))
    step = feed.step()
    step["next_observation"] = step["observation"]  # repeating this step then forms a trajectory
    buffer.prepare(step, feed.td_errors(batch))
    return buffer


def measure(buffers: dict[str, Any], seconds: float) -> dict[tuple[str, str], float]:
    """Microseconds of each kind and operation: bursts of calls, in random order."""
    calls = {
        (kind, operation): getattr(buffer, method)
        for kind, buffer in buffers.items()
        for operation, method in OPERATIONS.items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    order, keys = random.Random(5), list(calls)
    start = time.perf_counter()
    while not times[keys[0]] or time.perf_counter() - start < seconds:
        order.shuffle(keys)
        for key in keys:
            call, into = calls[key], times[key]
            for _ in range(CALLS):
                began = time.perf_counter()
                call()
                into.append(time.perf_counter() - began)
    return {key: 1e6 * statistics.median(values) for key, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=pathlib.Path, help="file to write the results to")
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if kind != "torch" or importlib.util.find_spec("torch")]
    buffers = {kind: prepared(KINDS[kind], arguments.batch) for kind in kinds}
    with peers.without_garbage_collection():
        times = measure(buffers, arguments.seconds)

    print(f"microseconds a call beyond the C function, B = {arguments.batch}, median")
    print(f"{'':20}{'C':>8}" + "".join(f"{kind:>8}" for kind in kinds[1:]))
    results = []
    for operation in OPERATIONS:
        alone = times["C", operation]
        beyond = {kind: times[kind, operation] - alone for kind in kinds[1:]}
        print(f"{operation:20}{alone:8.2f}" + "".join(f"{value:8.2f}" for value in beyond.values()))
        for kind, value in beyond.items():
            place = {"operation": operation, "arrays": kind, "batch": arguments.batch}
            results.append(place | {"us_beyond_c": value, "us_of_c": alone})
    if arguments.json:
        place = {"machine": peers.machine(), "commit": peers.commit(), "versions": peers.versions(["libper"])}
        arguments.json.write_text(json.dumps(place | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
