"""Microseconds of a training step's calls with TorchRL's prioritized buffer, with libper's sampler in it, and with
libper's buffer, in turns.

    .venvs/torchrl/bin/python bench/integrations/torchrl_steps.py [--capacity N] [--seconds S]

TorchRL's trees are compiled first, for this version of torch (bench/torchrl_extension.py): a minute, once.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from interleaved import microseconds, print_table

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
importlib.import_module("torchrl_extension").build()  # before TorchRL is imported

import torch  # noqa: E402
from per.integrations.torchrl import PrioritizedSampler, ReplayBuffer  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl import data as torchrl  # noqa: E402

ALPHA, BETA = 0.6, 0.4


def transitions(count: int) -> TensorDict:
    """Steps of one running episode, with 17 + 6 numbers."""
    seen = torch.randn(count + 1, 17)
    false = torch.zeros(count, 1, dtype=torch.bool)
    following = {"observation": seen[1:], "reward": torch.randn(count, 1)}
    flags = {"done": false, "terminated": false, "truncated": false}
    step = {"observation": seen[:-1], "action": torch.randn(count, 6), "next": {**following, **flags}}
    return TensorDict(step, [count])


def calls_of(buffer: Any, data: TensorDict) -> dict[str, Callable[[], object]]:
    buffer.extend(data.clone())
    batch = buffer.sample(256)
    batch["td_error"] = torch.rand(256)
    buffer.update_tensordict_priority(batch)
    pieces, one = data[:64], data[0]

    def step() -> None:
        buffer.extend(pieces.clone())
        for _ in range(4):
            drawn = buffer.sample(256)
            drawn["td_error"] = batch["td_error"]
            buffer.update_tensordict_priority(drawn)

    return {
        "sample 256": lambda: buffer.sample(256),
        "update_tensordict_priority, 256": lambda: buffer.update_tensordict_priority(batch),
        "add": lambda: buffer.add(one.clone()),
        "extend by 64": lambda: buffer.extend(pieces.clone()),
        "extend by 64, and 4 x sample and update": step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    capacity = arguments.capacity
    data = transitions(capacity)
    samplers = {
        "TorchRL": torchrl.PrioritizedSampler(capacity, ALPHA, BETA),
        "its buffer, libper's sampler": PrioritizedSampler(capacity, ALPHA, BETA, seed=1),
    }
    buffers = {
        name: torchrl.TensorDictReplayBuffer(storage=torchrl.LazyTensorStorage(capacity), sampler=sampler)
        for name, sampler in samplers.items()
    }
    buffers["libper"] = ReplayBuffer(capacity, alpha=ALPHA, beta=BETA, seed=1)
    calls = {name: calls_of(buffer, data) for name, buffer in buffers.items()}
    rows = {
        row: microseconds({name: of[row] for name, of in calls.items()}, seconds=arguments.seconds)
        for row in calls["libper"]
    }
    storage = next(iter(buffers.values())).storage
    draws = {name: lambda sampler=sampler: sampler.sample(storage, 256) for name, sampler in samplers.items()}
    draws["libper"] = lambda: buffers["libper"].buffer.sample(256)
    rows = {"draw 256 indices, weights": microseconds(draws, seconds=arguments.seconds), **rows}
    print_table(f"microseconds, {capacity} transitions", rows)


if __name__ == "__main__":
    main()
