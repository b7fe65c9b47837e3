"""The table of counts in docs/maintainers/cuda.md has the numbers of tests/cuda/counted."""

from __future__ import annotations

import pathlib
import re

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def rows_of_table() -> dict[str, list[str]]:
    text = (REPOSITORY / "docs" / "maintainers" / "cuda.md").read_text()
    table = text[text.index("| | launches | instructions | waits |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[1:6] for row in rows}


def row_of(launches: int, instructions: int, phases: int, round_trips: int, barriers: int, n_bytes: int) -> list[str]:
    waits = f"{phases} - {round_trips}"
    return [f"{launches}", f"{instructions}", waits, f"{barriers}", f"{(n_bytes + 500) // 1000}"]


def rows_of_test() -> dict[str, list[str]]:
    text = (REPOSITORY / "tests" / "cuda" / "counted" / "accesses_of_calls_test.cpp").read_text()
    found = {}
    for name, counts in re.findall(r'expect\("([^"]+)", \{([^}]+)\}', text):
        launches, phases, round_trips, barriers, _, n_bytes, instructions, *_ = map(int, counts.split(","))
        found[name] = row_of(launches, instructions, phases, round_trips, barriers, n_bytes)
    return found


def test_a_row_by_hand() -> None:
    assert row_of(2, 800, 5, 10, 7, 12_345) == ["2", "800", "5 - 10", "7", "12"]


def test_the_table_has_the_counts_that_are_tested() -> None:
    assert rows_of_table() == rows_of_test()
