"""Time and memory of a step of replay in LeRobot: its online buffer, and libper's.

.venvs/lerobot/bin/python bench/integrations/lerobot_steps.py
"""

from __future__ import annotations

import itertools

import lerobot.rl.buffer
import torch
from interleaved import microseconds, print_table
from per.integrations.lerobot import ReplayBuffer

CAPACITY, SIZE = 2000, 128
IMAGES, STATE = ("observation.images.front", "observation.images.wrist"), "observation.state"


def main() -> None:
    torch.set_num_threads(1)
    given = {"capacity": CAPACITY, "device": "cpu", "state_keys": [*IMAGES, STATE], "use_drq": False}
    buffers = {
        "LeRobot": lerobot.rl.buffer.ReplayBuffer(**given),
        "LeRobot, optimize_memory": lerobot.rl.buffer.ReplayBuffer(**given, optimize_memory=True),
        "libper": ReplayBuffer(**given),
    }
    observations = [
        {STATE: torch.rand(1, 18), **{image: torch.rand(1, 3, SIZE, SIZE) for image in IMAGES}} for _ in range(20)
    ]
    action = torch.zeros(1, 3)
    steps = {name: itertools.count() for name in buffers}

    def add(name: str) -> None:
        t = next(steps[name])
        buffers[name].add(observations[t % 20], action, 0.0, observations[(t + 1) % 20], False, False)

    def train(name: str) -> None:
        batch = buffers[name].sample(128)
        if name == "libper":
            buffers[name].update_priorities(batch["complementary_info"]["ids"], torch.rand(128))

    for name in buffers:
        for _ in range(CAPACITY):
            add(name)
    rows = {"add": add, "sample 128; libper: and set priorities": train}
    taken = {
        row: microseconds({name: lambda step=step, name=name: step(name) for name in buffers}, seconds=8)
        for row, step in rows.items()
    }
    print_table(f"microseconds, 2 images of 3 x {SIZE} x {SIZE}", taken)
    for name, buffer in buffers.items():
        if name == "libper":
            bytes_ = buffer.replay.stats().memory_bytes
        else:
            arrays = {id(array): array for states in (buffer.states, buffer.next_states) for array in states.values()}
            bytes_ = sum(array.nbytes for array in arrays.values())
        print(f"{name}: {bytes_ / CAPACITY / 1e3:.0f} kB a transition")


if __name__ == "__main__":
    main()
