#!/usr/bin/env python3
"""Plots the figures of per_bench and peers.py: one panel per operation, cost against N above, against B below.

The row against B is omitted if only one batch size was measured.

python bench/picture.py results/NAME/per_bench.json results/NAME/per_bench.png
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable
from typing import Any

BATCH, CAPACITY = 256, 1_000_000  # fixed while the other varies; the nearest measured value is used


@dataclasses.dataclass(frozen=True)
class Point:
    series: str
    panel: str
    capacity: int
    batch: int
    cost: float


@dataclasses.dataclass(frozen=True)
class Picture:
    title: str
    cost: str  # label of the cost axis
    panels: tuple[str, ...]
    without_batch: tuple[str, ...]  # panels whose cost does not depend on the batch
    colours: dict[str, str]  # by series, in the order of the legend; the first is libper's


PEERS = Picture(
    title="From Python to arrays, transitions of 165 bytes",
    cost="microseconds a call",
    panels=("add", "sample", "update", "sample + update"),
    without_batch=("add",),
    colours={
        "libper": "#c1272d",
        "cpprb": "#0072b2",
        "tianshou": "#009e73",
        "TorchRL": "#e69f00",
        "Flashbax": "#7a5195",
        "Reverb": "#56b4e9",
        "RLlib": "#8c564b",
        "stable-baselines3": "#999999",
        "numpy cumsum": "#333333",
    },
)
STRUCTURES = Picture(
    title="Sum trees",
    cost="nanoseconds an element",
    panels=("sample", "update", "cycle", "without_replacement"),
    without_batch=(),
    colours={
        "libper": "#c1272d",
        "binary_float32": "#0072b2",
        "binary_branch_free": "#56b4e9",
        "cumsum": "#e69f00",
        "linear": "#7a5195",
        "floor": "#333333",
    },
)


def of_peers(report: dict[str, Any]) -> list[Point]:
    """The points of a report of peers.py."""
    return [
        Point(result["library"], result["operation"], result["capacity"], result["batch"], result["us"])
        for result in report["results"]
        if result["rows"] == "vector"
    ]


def of_structures(report: dict[str, Any]) -> list[Point]:
    """The points of a report of per_bench; only those of the first isa if there are several."""
    isa = report["results"][0]["isa"]
    return [
        Point(result["variant"], result["case"], result["capacity"], result["batch"], result["ns_per_element"])
        for result in report["results"]
        if result["isa"] == isa
    ]


def draw(picture: Picture, points: list[Point], machine: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [p for p in points if p.panel in picture.panels]
    held_batch = _nearest(BATCH, {p.batch for p in points})
    held_capacity = _nearest(CAPACITY, {p.capacity for p in points})
    batches = sorted({p.batch for p in points if p.capacity == held_capacity})
    columns, rows = len(picture.panels), 2 if len(batches) > 1 else 1
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.3 * columns, 3.3 * rows), layout="constrained", squeeze=False
    )
    for column, panel in enumerate(picture.panels):
        of_panel = [p for p in points if p.panel == panel]
        upper = axes[0, column]
        _lines(upper, picture, ((p.series, p.capacity, p.cost) for p in of_panel if p.batch == held_batch))
        upper.set_title(panel.replace("_", " "))
        upper.set_xscale("log")
        upper.set_xlabel(f"N, batch of {held_batch}")
        if rows == 1:
            continue
        lower = axes[1, column]
        if panel in picture.without_batch:
            lower.axis("off")
            continue
        _lines(lower, picture, ((p.series, p.batch, p.cost) for p in of_panel if p.capacity == held_capacity))
        lower.set_xscale("log", base=2)
        lower.set_xticks(batches, [str(batch) for batch in batches])
        lower.set_xlabel(f"B, N = {held_capacity:,}")
    axes[0, 0].set_ylabel(picture.cost)
    if rows == 2:
        axes[1, len(picture.without_batch)].set_ylabel(picture.cost)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(f"{picture.title} ({machine['processor']}, {machine['cores']} cores)", fontsize=12)
    figure.savefig(path, dpi=110)


def _nearest(wanted: int, measured: Iterable[int]) -> int:
    return min(measured, key=lambda value: abs(math.log(value / wanted)))


def _lines(axis: Any, picture: Picture, points: Iterable[tuple[str, int, float]]) -> None:
    points = list(points)
    own = next(iter(picture.colours))
    for series, colour in picture.colours.items():
        line = sorted((x, cost) for name, x, cost in points if name == series)
        if not line:
            continue
        emphasis = {"linewidth": 2.6, "markersize": 5, "zorder": 3} if series == own else {"linewidth": 1.3}
        axis.plot(
            *zip(*line, strict=True), **{"marker": "o", "markersize": 3.5, **emphasis}, color=colour, label=series
        )
    axis.set_yscale("log")
    axis.grid(True, which="major", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path, help="JSON that per_bench or peers.py wrote")
    parser.add_argument("picture", type=pathlib.Path)
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    if "library" in report["results"][0]:
        draw(PEERS, of_peers(report), report["machine"], arguments.picture)
    else:
        draw(STRUCTURES, of_structures(report), report["machine"], arguments.picture)


if __name__ == "__main__":
    main()
