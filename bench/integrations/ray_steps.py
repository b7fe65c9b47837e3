"""A batch of 256 rows of HalfCheetah's 165 bytes from shards on Ray, with its priorities set: per.ray and others.

.venvs/ray/bin/python bench/integrations/ray_steps.py [--seconds 8]

All actors are on this machine. If RLlib is installed, its prioritized buffers in actors are measured, too; each batch
comes from a random one, as in its Ape-X. If TorchRL is installed, so is its RayReplayBuffer. Actors that do nothing
measure Ray's cost of a message and of a byte; actors that are objects of this process measure the time without Ray.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import per
import per.ray.coordination
import per.ray.loader
import per.ray.replay
import per.ray.writer
import ray
from interleaved import microseconds

ENVS, ROWS, BATCH = 64, 100_000, 256
FIELDS = {"observation": per.Field(17), "action": per.Field(6)}

Step = Callable[[], object]


def steps(k: int) -> dict[str, np.ndarray]:
    """One long episode; only the shapes matter."""
    given = np.random.default_rng(1)
    return {
        "observation": given.standard_normal((k, ENVS, 17), np.float32),
        "action": given.standard_normal((k, ENVS, 6), np.float32),
        "reward": given.standard_normal((k, ENVS), np.float32),
        "terminated": np.zeros((k, ENVS), bool),
        "truncated": np.zeros((k, ENVS), bool),
    }


def learn(buffer: Any, draw: Callable[[], Any]) -> Step:
    errors = np.random.default_rng(2).exponential(size=BATCH).astype(np.float32)

    def step() -> None:
        buffer.update_priorities(draw().ids, errors)

    return step


def filled(buffer: Any) -> Any:
    for _ in range(10):
        buffer.extend(**steps(ROWS // ENVS // 10))
    return buffer


def of_libper() -> dict[str, Step]:
    options = {"n_envs": ENVS, "seed": 7}
    one = filled(per.ReplayBuffer(ROWS, FIELDS, **options))
    ways = {"one buffer in this process, without Ray": learn(one, lambda: one.sample(BATCH))}
    for n in (1, 2, 4):
        buffer = filled(per.ray.ReplayBuffer(ROWS, FIELDS, shards=n, **options))
        ways[f"per.ray, {n} shards: sample()"] = learn(buffer, lambda buffer=buffer: buffer.sample(BATCH))
        for exact in (True, False):
            batches = buffer.loader(BATCH, slots=4, exact=exact)
            name = f"per.ray, {n} shards: loader(exact={exact})"
            ways[name] = learn(buffer, lambda batches=batches: next(batches))
    return ways


def of_rllib(n: int) -> dict[str, Step]:
    try:
        from ray.rllib.policy.sample_batch import SampleBatch
        from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer
    except ImportError:
        return {}
    actors = [ray.remote(PrioritizedReplayBuffer).options(num_cpus=0).remote(ROWS // n, alpha=0.6) for _ in range(n)]
    given = steps(ROWS // ENVS)
    count = ROWS // n
    rows = {name: array.reshape(-1, *array.shape[2:])[:count] for name, array in given.items()}
    rows["new_obs"] = rows["observation"]
    for actor in actors:
        for at in range(0, count, 1000):
            part = SampleBatch({name: array[at : at + 1000] for name, array in rows.items()})
            ray.get(actor.add.remote(part))
    errors = np.random.default_rng(2).exponential(size=BATCH)

    def step() -> None:
        actor = random.choice(actors)
        batch = ray.get(actor.sample.remote(BATCH, beta=0.4))
        ray.get(actor.update_priorities.remote(batch["batch_indexes"], errors))

    return {f"RLlib's buffers in {n} actors, one at random": step}


def of_torchrl() -> dict[str, Step]:
    try:
        from functools import partial

        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedSampler, RayReplayBuffer
    except ImportError:
        return {}
    buffer = RayReplayBuffer(
        storage=partial(LazyTensorStorage, ROWS),
        sampler=partial(PrioritizedSampler, ROWS, alpha=0.6, beta=0.4),
        batch_size=BATCH,
        remote_config={"num_cpus": 0},
    )
    rows = {name: torch.from_numpy(array.reshape(-1, *array.shape[2:])) for name, array in steps(ROWS // ENVS).items()}
    rows["next_observation"] = rows["observation"]
    try:
        buffer.extend(TensorDict(rows, batch_size=[len(rows["reward"])]))
    except ray.exceptions.RayError:  # its sum trees load with one version of torch only
        return {}
    errors = torch.from_numpy(np.random.default_rng(2).exponential(size=BATCH).astype(np.float32))

    def step() -> None:
        buffer.update_priority(buffer.sample()["index"], errors)

    return {"TorchRL's RayReplayBuffer": step}


def of_stand_ins() -> dict[str, float]:
    """Shards whose actors are objects of this process. Must be measured before Ray starts."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "integrations" / "ray"))
    import stand_ins

    modules = (per.ray.coordination, per.ray.loader, per.ray.replay, per.ray.writer)
    for module in modules:
        module.ray = stand_ins.RAY
    ways = {}
    for n in (1, 2, 4):
        buffer = filled(per.ray.ReplayBuffer(ROWS, FIELDS, shards=n, n_envs=ENVS, seed=7))
        ways[f"{n} shards in this process, without Ray"] = learn(buffer, lambda buffer=buffer: buffer.sample(BATCH))
    taken = microseconds(ways, seconds=2, round_seconds=0.02)
    for module in modules:
        module.ray = ray
    return taken


class Idle:
    """An actor that does nothing, or returns bytes."""

    def nothing(self) -> None:
        """A message."""

    def give(self, n: int) -> np.ndarray:
        return np.ones(n, np.uint8)


def of_ray() -> dict[str, Step]:
    actors = [ray.remote(Idle).options(num_cpus=0).remote() for _ in range(4)]
    return {
        "a call of an actor, and its answer": lambda: ray.get(actors[0].nothing.remote()),
        "a call of four actors, and their answers": lambda: ray.get([actor.nothing.remote() for actor in actors]),
        "the same for 1 MiB": lambda: ray.get(actors[0].give.remote(2**20)),
        "the same for 16 MiB": lambda: ray.get(actors[0].give.remote(2**24)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8, help="that each way is measured")
    seconds = parser.parse_args().seconds
    taken = of_stand_ins()
    ray.init(num_cpus=4, object_store_memory=500 * 2**20, include_dashboard=False, log_to_driver=False)
    ways = {**of_ray(), **of_libper(), **of_rllib(2), **of_torchrl()}
    taken |= microseconds(ways, seconds=seconds * len(ways), round_seconds=0.1)
    print(f"| {BATCH} of {ROWS:,} rows, on one machine | us | a second |")
    print("|---|---|---|")
    for name, us in taken.items():
        print(f"| {name} | {us:.0f} | {1e6 / us:,.0f} |")
    ray.shutdown()


if __name__ == "__main__":
    main()
