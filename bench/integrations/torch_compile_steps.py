"""Microseconds of a whole training step of DQN, compiled by torch and eager, interleaved.

    .venv/bin/python bench/integrations/torch_compile_steps.py [--seconds S]

The step is that of examples/integrations/torch_compile.py. "two breaks" draws and sets priorities outside the graph,
with the buffer itself; "libper" has everything in one graph, with per.torch.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections import namedtuple
from collections.abc import Callable

import per
import torch
from interleaved import microseconds, print_table

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "integrations"))
from torch_compile import BATCH_SIZE, Learner


def buffer_of(rows: int = 50_000) -> per.ReplayBuffer:
    fields = {"observation": per.Field(4), "action": per.Field((), "int64")}
    buffer = per.ReplayBuffer(rows, fields, arrays="torch", seed=1)
    seen, flags = torch.randn(rows, 4), torch.zeros(rows, dtype=torch.bool)
    buffer.extend(observation=seen, action=flags.long(), reward=torch.ones(rows), terminated=flags, truncated=flags)
    return buffer


class Outside:
    """Replaces the buffer in a graph that begins after the draw and ends before the update."""

    batch: tuple[torch.Tensor, ...]
    errors: torch.Tensor

    def sample(self, batch_size: int) -> tuple[torch.Tensor, ...]:
        return self.batch

    def update_priorities(self, ids: torch.Tensor, errors: torch.Tensor) -> None:
        self.errors = errors


def with_breaks() -> Callable[[], None]:
    buffer = buffer_of()
    learner = Learner(buffer, torch.device("cpu"))
    outside = learner.replay = Outside()
    kind = namedtuple("Batch", buffer.sample(1))
    learn = torch.compile(learner.step, fullgraph=True)

    def step() -> None:
        batch = buffer.sample(BATCH_SIZE)
        outside.batch = kind(*batch.values())
        learn()
        buffer.update_priorities(batch.ids, outside.errors)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = {
        "not compiled": Learner(buffer_of(), torch.device("cpu")).step,
        "two breaks": with_breaks(),
        "libper": torch.compile(Learner(buffer_of(), torch.device("cpu")).step, fullgraph=True),
    }
    print_table("microseconds", {"training step": microseconds(steps, seconds=arguments.seconds)})


if __name__ == "__main__":
    main()
