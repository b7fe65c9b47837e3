"""Interleaved timing of several ways to make the same step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def microseconds(steps: dict[str, Callable[[], object]], *, seconds: float = 10, round_seconds: float = 0.05) -> dict:
    """The median time of a call of each way, in microseconds.

    Rounds of `round_seconds` alternate between the ways, so that other load on the machine affects all of them alike.
    The first round of each is a warm-up.
    """
    calls = {}
    for name, step in steps.items():
        begin = time.perf_counter()
        step()
        calls[name] = max(1, round(round_seconds / (time.perf_counter() - begin)))
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds[next(iter(steps))]) < 4:
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(calls[name]):
                step()
            rounds[name].append((time.perf_counter() - begin) / calls[name] * 1e6)
    return {name: statistics.median(taken[1:]) for name, taken in rounds.items()}


def print_table(title: str, rows: dict[str, dict[str, float]], *, ours: str = "libper") -> None:
    """A Markdown table: a row for each kind of step, a column for each way, and the speed-up of `ours`."""
    names = list(next(iter(rows.values())))
    others = [name for name in names if name != ours]
    print(f"| {title} | {' | '.join(names)} | ratio |")
    print(f"|---|{'---|' * len(names)}---|")
    for row, taken in rows.items():
        ratio = min(taken[name] for name in others) / taken[ours]
        print(f"| {row} | {' | '.join(f'{taken[name]:.1f}' for name in names)} | {ratio:.1f} |")
