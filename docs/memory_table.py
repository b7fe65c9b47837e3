#!/usr/bin/env python3
"""Updates the table of memory.md: bytes as libper's buffers report them, beside a layout that stores every copy.

    .venv/bin/python docs/memory_table.py

It creates buffers of a million rows without filling them: they take address space, but hardly any memory.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import per

PAGE = Path(__file__).with_name("memory.md")
ROWS = 1_000_000


class Shape(NamedTuple):
    name: str
    fields: dict[str, per.Field]
    options: dict[str, int]


SHAPES = [
    Shape(
        "Atari: 84x84 uint8, stack 4, 3-step",
        {"observation": per.Field((84, 84), "uint8"), "action": per.Field((), "int32")},
        {"frame_stack": 4, "n_step": 3},
    ),
    Shape(
        "Control from pixels: 64x64x3 uint8, stack 3, 3-step",
        {"observation": per.Field((64, 64, 3), "uint8"), "action": per.Field(6)},
        {"frame_stack": 3, "n_step": 3},
    ),
    Shape("Locomotion: 17 float32", {"observation": per.Field(17), "action": per.Field(6)}, {}),
    Shape(
        "Simulator of 4096 robots: 48 float32",
        {"observation": per.Field(48), "action": per.Field(12)},
        {"n_envs": 4096},
    ),
]


def bytes_of(field: per.Field) -> int:
    return math.prod(field.shape) * np.dtype(field.dtype).itemsize


def libper_bytes(shape: Shape) -> int:
    with per.ReplayBuffer(ROWS, shape.fields, **shape.options) as buffer:
        return buffer.stats().memory_bytes


def naive_bytes(shape: Shape) -> int:
    """Stacked observation and next observation, action, reward, a flag, two float32 of a binary sum tree."""
    frames = {"observation": 2 * shape.options.get("frame_stack", 1)}
    row = sum(frames.get(name, 1) * bytes_of(field) for name, field in shape.fields.items())
    return ROWS * (row + 4 + 1 + 2 * 4)


def table() -> str:
    lines = ["| a million rows of | libper | every copy stored | |", "|---|--:|--:|--:|"]
    for shape in SHAPES:
        ours, naive = libper_bytes(shape), naive_bytes(shape)
        lines.append(f"| {shape.name} | {ours / 1e9:.3g} GB | {naive / 1e9:.3g} GB | {naive / ours:.1f}x |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    return re.sub(r"(?m)(^\|.*\n)+", lambda _: table(), page, count=1)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
