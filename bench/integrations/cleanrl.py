"""Microseconds of calls of CleanRL's replay buffers and of per.integrations.cleanrl, in turns.

    .venvs/cleanrl/bin/python bench/integrations/cleanrl.py PATH/cleanrl/rainbow_atari.py [--capacity N] [--seconds S]

Uses only the buffer classes of CleanRL's file. cleanrl_utils.buffers is a copy of the buffers of stable-baselines3,
which are measured instead.
"""

from __future__ import annotations

import argparse
import ast
import collections
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from gymnasium import spaces
from interleaved import microseconds, print_table
from per.integrations import cleanrl
from stable_baselines3.common.buffers import ReplayBuffer

STATES = spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)
IMAGE = (4, 84, 84)
NAMES = ("PrioritizedBatch", "SumSegmentTree", "MinSegmentTree", "PrioritizedReplayBuffer")


def their_buffer(path: Path) -> type:
    """The class PrioritizedReplayBuffer of rainbow_atari.py."""
    program = ast.parse(path.read_text())
    defined = {node: getattr(node, "name", None) for node in program.body if isinstance(node, ast.ClassDef)}
    defined |= {node: node.targets[0].id for node in program.body if isinstance(node, ast.Assign)}
    program.body = [node for node, name in defined.items() if name in NAMES]
    program.body.sort(key=lambda node: node.lineno)
    names = {"np": np, "torch": torch, "collections": collections, "deque": collections.deque}
    exec(compile(program, str(path), "exec"), names)
    return names["PrioritizedReplayBuffer"]


def measure_plain(capacity: int, seconds: float) -> dict[str, dict[str, float]]:
    made = {"CleanRL": ReplayBuffer, "libper": cleanrl.ReplayBuffer}
    made = {name: kind(capacity, STATES, ACTIONS, "cpu") for name, kind in made.items()}
    random = np.random.default_rng(0)
    seen = random.random((64, 1, 17), np.float32)
    rest = random.random((1, 6), np.float32), np.ones(1, np.float32), np.zeros(1, bool), [{}]
    at = SimpleNamespace(**dict.fromkeys(made, 0))

    def add(name: str) -> None:
        i = getattr(at, name)
        made[name].add(seen[i], seen[(i + 1) % 64], *rest)
        setattr(at, name, (i + 1) % 64)

    for name in made:
        for _ in range(capacity):
            add(name)
    return {
        "add": microseconds({name: lambda name=name: add(name) for name in made}, seconds=seconds),
        "sample 256": microseconds(
            {name: lambda buffer=buffer: buffer.sample(256) for name, buffer in made.items()}, seconds=seconds
        ),
    }


def measure_rainbow(kind: type, capacity: int, seconds: float) -> dict[str, dict[str, float]]:
    made = {"CleanRL": kind, "libper": cleanrl.PrioritizedReplayBuffer}
    made = {name: kind(capacity, IMAGE, torch.device("cpu"), 3, 0.99) for name, kind in made.items()}
    random = np.random.default_rng(0)
    seen = random.integers(0, 256, (64, 1, *IMAGE), np.uint8)
    at = SimpleNamespace(**dict.fromkeys(made, 0))

    def add(name: str) -> None:
        i = getattr(at, name)
        made[name].add(seen[i], 1, 1.0, seen[(i + 1) % 64], False)
        setattr(at, name, (i + 1) % 64)

    def learn(name: str) -> None:
        made[name].update_priorities(made[name].sample(32).indices, errors)

    for name in made:
        for _ in range(capacity):
            add(name)
    errors = random.random(32).astype(np.float32)
    return {
        "Rainbow: add": microseconds({name: lambda name=name: add(name) for name in made}, seconds=seconds),
        "Rainbow: sample 32, set priorities": microseconds(
            {name: lambda name=name: learn(name) for name in made}, seconds=seconds
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rainbow", type=Path, help="rainbow_atari.py of CleanRL")
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure_plain(arguments.capacity, arguments.seconds)
    rows |= measure_rainbow(their_buffer(arguments.rainbow), arguments.capacity // 20, arguments.seconds)
    print_table(f"microseconds, {arguments.capacity} transitions", rows)


if __name__ == "__main__":
    main()
