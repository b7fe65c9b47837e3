"""The table of docs/memory.md has the sizes that buffers report, within the promised limits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import per
import pytest

ROOT = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("memory_table", ROOT / "docs" / "memory_table.py")
assert specification is not None and specification.loader is not None
memory_table = importlib.util.module_from_spec(specification)
specification.loader.exec_module(memory_table)


def test_the_page_has_the_figures_of_the_library() -> None:
    page = memory_table.PAGE.read_text()
    try:
        renewed = memory_table.with_table(page)
    except per.OutOfMemory as error:
        pytest.skip(f"the machine has less memory than the largest buffer: {error}")
    assert renewed == page, "run docs/memory_table.py"


def test_a_million_stacked_frames_take_an_eighth() -> None:
    atari = memory_table.SHAPES[0]
    assert atari.options == {"frame_stack": 4, "n_step": 3} and atari.fields["observation"].shape == (84, 84)
    assert memory_table.libper_bytes(atari) <= 7.2e9
    assert memory_table.naive_bytes(atari) >= 56e9
