"""Draws what peers.py measured: one panel an operation, cost against the number of rows and against the batch size."""

from __future__ import annotations

import pathlib
from typing import Any

BATCH, CAPACITY = 256, 1_000_000  # what is held while the other varies
OPERATIONS = ("add", "sample", "update", "sample + update")
OWN = "libper"
LEFT_OUT = ("libper, out=", "libper, C calls", "Flashbax flat")
COLOURS = {
    "libper": "#c1272d",
    "cpprb": "#0072b2",
    "tianshou": "#009e73",
    "TorchRL": "#e69f00",
    "Flashbax": "#7a5195",
    "Reverb": "#56b4e9",
    "RLlib": "#8c564b",
    "stable-baselines3": "#999999",
    "numpy cumsum": "#333333",
}


def _line(results: list[dict[str, Any]], library: str, operation: str, axis: str, held: tuple[str, int]) -> Any:
    """Sorted (x, microseconds) of a library."""
    points = [
        (result[axis], result["us"])
        for result in results
        if (result["library"], result["operation"], result[held[0]]) == (library, operation, held[1])
    ]
    return sorted(points)


def draw(report: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = [result for result in report["results"] if result["rows"] == "vector"]
    libraries = [name for name in dict.fromkeys(r["library"] for r in results) if name not in LEFT_OUT]
    libraries.sort(key=lambda name: name != OWN)
    figure, panels = pyplot.subplots(2, len(OPERATIONS), figsize=(13, 6.4), sharey="row", layout="constrained")
    for column, operation in enumerate(OPERATIONS):
        _panel(panels[0][column], results, libraries, operation, "capacity", ("batch", BATCH))
        panels[0][column].set_title(operation)
        panels[0][column].set_xlabel(f"rows N (batch {BATCH})")
        if operation == "add":
            continue  # one transition, whatever the batch
        _panel(panels[1][column], results, libraries, operation, "batch", ("capacity", CAPACITY))
        panels[1][column].set_xlabel(f"batch B ({CAPACITY:,} rows)")
    panels[0][0].set_ylabel("microseconds a call")
    panels[1][1].set_ylabel("microseconds a call")
    panels[1][1].tick_params(labelleft=True)
    corner = panels[1][0]
    corner.axis("off")
    corner.legend(*panels[0][1].get_legend_handles_labels(), loc="center", frameon=False, fontsize=10)
    machine = report["machine"]
    figure.suptitle(
        f"From Python to arrays: transitions of 165 bytes, {machine['processor']}, {machine['cores']} cores",
        fontsize=11,
    )
    figure.savefig(path, dpi=120)


def _panel(
    panel: Any, results: list[dict[str, Any]], libraries: list[str], operation: str, axis: str, held: tuple[str, int]
) -> None:
    for library in libraries:
        points = _line(results, library, operation, axis, held)
        if not points:
            continue
        own = library == OWN
        panel.plot(
            *zip(*points, strict=True),
            label=library,
            color=COLOURS.get(library),
            marker="o",
            markersize=5 if own else 3.5,
            linewidth=2.6 if own else 1.3,
            zorder=3 if own else 2,
        )
    panel.set_xscale("log", base=2 if axis == "batch" else 10)
    panel.set_yscale("log")
    panel.grid(True, which="major", alpha=0.3)
    if axis == "batch":
        panel.set_xticks([32, 256, 1024, 4096], ["32", "256", "1024", "4096"])
    panel.spines[["top", "right"]].set_visible(False)
