"""Steps from a worker to a shard on Ray: by a writer of per.ray, whose calls are messages, and through a channel.

.venvs/ray/bin/python bench/integrations/ray_writers.py [--rounds 5]

A worker, a Ray actor on the shard's node, writes HalfCheetah's steps of 165 bytes of one environment, and waits until
they are in the buffer. The two ways alternate. There are no draws meanwhile: both ways make the shard move steps into
the buffer when too many are pending. Prints wall-clock time and the worker's processor time for each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np
import per
import per.ray
import ray

ROWS = 100_000
FIELDS = {"observation": per.Field(17), "action": per.Field(6)}


def steps(k: int | None) -> dict[str, np.ndarray]:
    """One long episode; only the shapes matter."""
    given = np.random.default_rng(1)
    shape = (1,) if k is None else (k, 1)
    return {
        "observation": given.standard_normal((*shape, 17), np.float32),
        "action": given.standard_normal((*shape, 6), np.float32),
        "reward": given.standard_normal(shape, np.float32),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
        "next_observation": given.standard_normal((*shape, 17), np.float32),
    }


@ray.remote(num_cpus=0)
class Worker:
    """Writes to a shard in both ways."""

    def __init__(self, writer: Any, channel: Any) -> None:
        self.writers = {"writer": writer, "channel": channel.writer()}

    def write(self, way: str, k: int | None, n_calls: int) -> tuple[float, float]:
        """Wall-clock and processor seconds per step."""
        writer, given = self.writers[way], steps(k)
        call = writer.add if k is None else writer.extend
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(n_calls):
            call(**given)
        writer.flush()
        count = n_calls * (k or 1)
        return (time.perf_counter() - clock) / count, (time.process_time() - processor) / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ray.init(num_cpus=2, log_to_driver=False, object_store_memory=200 * 2**20, include_dashboard=False)
    buffer = per.ray.ReplayBuffer(ROWS, FIELDS, n_envs=2, seed=7)
    worker = Worker.remote(buffer.writer([0]), buffer.channel([1]))
    ways = [("writer", None, 500), ("channel", None, 50_000), ("writer", 100, 200), ("channel", 100, 2000)]
    taken: dict[tuple[str, int | None], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for way, k, n_calls in ways:
            taken.setdefault((way, k), []).append(ray.get(worker.write.remote(way, k, n_calls)))
    for (way, k), each in taken.items():
        clock, processor = (1e6 * statistics.median(seconds) for seconds in zip(*each, strict=True))
        called = "add()" if k is None else f"extend() of {k} steps"
        print(f"{way}, {called}: {clock:.2f} us a step, {processor:.2f} us of the worker's processor")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
