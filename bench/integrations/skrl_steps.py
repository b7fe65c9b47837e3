"""A step of replay in skrl: its random memory, and libper's prioritized memory.

.venvs/skrl/bin/python bench/integrations/skrl_steps.py
"""

from __future__ import annotations

import torch
from interleaved import microseconds, print_table
from per.integrations.skrl import PrioritizedMemory
from skrl.memories.torch import RandomMemory

STEPS, N_ENVS = 25_000, 8
NAMES = ["observations", "actions", "rewards", "next_observations", "terminated"]


def main() -> None:
    torch.set_num_threads(1)
    given = {"memory_size": STEPS, "num_envs": N_ENVS, "device": "cpu"}
    memories = {
        "skrl, uniform": RandomMemory(**given),
        "skrl, with replacement": RandomMemory(**given, replacement=True),
        "libper": PrioritizedMemory(**given),
    }
    step = {
        "observations": torch.ones(N_ENVS, 17),
        "next_observations": torch.ones(N_ENVS, 17),
        "actions": torch.ones(N_ENVS, 6),
        "rewards": torch.ones(N_ENVS, 1),
        "terminated": torch.zeros(N_ENVS, 1, dtype=torch.bool),
    }
    for memory in memories.values():
        for name, tensor in step.items():
            memory.create_tensor(name, size=tensor.shape[1], dtype=tensor.dtype)
        for _ in range(STEPS):
            memory.add_samples(**step)
    errors = torch.rand(256)

    def train(memory, length: int = 1) -> None:
        memory.sample(NAMES, batch_size=256 // length, sequence_length=length)
        if isinstance(memory, PrioritizedMemory):
            memory.update_priorities(errors)

    def ways(function):
        return {name: lambda memory=memory: function(memory) for name, memory in memories.items()}

    rows = {
        "sample 256; libper: and set priorities": ways(train),
        "32 sequences of 8, the same": ways(lambda memory: train(memory, 8)),
        f"add a step of {N_ENVS}": ways(lambda memory: memory.add_samples(**step)),
    }
    taken = {name: microseconds(row, seconds=5, round_seconds=0.002) for name, row in rows.items()}
    print_table(f"microseconds, {STEPS * N_ENVS:,} rows", taken)


if __name__ == "__main__":
    main()
