#!/usr/bin/env python3
"""Plants faults in a copy of the sources, and shows that the fuzzers find each of them.

    faults.py WORK [--seconds 120] [NAME ...]

    WORK  a folder outside of the repository, for the copy and its build
    NAME  only faults of these fuzzers

Run by hand; takes minutes. Exits with 1 if a fault is not found, or its text is no longer in the sources.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

import run


class Fault(NamedTuple):
    fuzzer: str
    name: str
    file: str
    original: str
    planted: str


FAULTS = [
    Fault(
        "calls",
        "a late update reaches the row that took the place",
        "src/rules/window.h",
        "is_issued && k >= oldest_row(lane, rules)};",
        "is_issued};",
    ),
    Fault(
        "calls",
        "a window runs over the end of its episode",
        "src/rules/n_step.h",
        "if (flags & row_ends_episode) break;",
        "",
    ),
    Fault(
        "files",
        "priorities of a file may be anything",
        "src/file/checkpoint_state.cpp",
        'if (!are_priorities_) reader_.refuse("a priority in it cannot be");',
        "",
    ),
    Fault(
        "files",
        "lanes of a file may be anything",
        "src/file/checkpoint_state.cpp",
        'if (!is_possible(lane, rules)) reader.refuse("a lane in it cannot be");',
        "",
    ),
    Fault(
        "files",
        "all that is left of a compressed piece is taken, however little is wanted",
        "src/file/checkpoint_file.cpp",
        "const std::size_t n = std::min(size, n_left_of_piece_);",
        "const std::size_t n = n_left_of_piece_;",
    ),
    Fault(
        "files",
        "rows that are overwritten, and so not in the file, are counted as if they were there",
        "src/file/checkpoint_state.cpp",
        "return first_[lane] + static_cast<size_t>(row - saved_rows(lanes_[lane], rules_).first);",
        "return first_[lane] + static_cast<size_t>(row - lanes_[lane].first);",
    ),
    Fault(
        "instruction_sets",
        "prefix sums of four lanes lose one",
        "src/cpu/kernels/draw.h",
        "return shuffle<0, 4, 5, 6>(zero, x);",
        "return shuffle<0, 4, 5, 5>(zero, x);",
    ),
    Fault(
        "devices",
        "the age of a transition on the device counts the row that comes next, too",
        "src/cuda/batch/write_rows.h",
        "return head - 1 - k;",
        "return head - k;",
    ),
    Fault(
        "devices",
        "a sequence on the device has no observation to bootstrap from",
        "src/cuda/batch/copy_frames.h",
        "copy.is_observation ? has_observation(span, entry, row.n_step) : entry < row.n_steps;",
        "copy.is_observation ? entry < span.n_steps : entry < row.n_steps;",
    ),
]


def found(fault: Fault, source: pathlib.Path, build: pathlib.Path, seconds: int) -> str:
    """A description of how the fuzzer found the fault, or "" if it did not."""
    path = source / fault.file
    text = path.read_text()
    if fault.original not in text:
        return ""
    path.write_text(text.replace(fault.original, fault.planted, 1))
    try:
        subprocess.run(["ninja", "-C", build, "--quiet", f"fuzz_{fault.fuzzer}"], check=True)
    finally:
        path.write_text(text)
    with tempfile.TemporaryDirectory() as folder:
        result = run.search(build, fault.fuzzer, seconds, pathlib.Path(folder) / fault.fuzzer)
    lines = [line for line in result.stdout.splitlines() if "ERROR: " in line or "runtime error" in line]
    return (lines or ["the program ended"])[0] if result.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=int, default=120)
    arguments = parser.parse_intermixed_args()
    work = arguments.work.resolve()
    source, build = work / "source", work / "build"
    source.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=run.REPOSITORY, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    subprocess.run(
        ["cmake", "--preset", "fuzz", "-B", build, "-DPER_WERROR=OFF"],
        cwd=source,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    missed = 0
    for fault in FAULTS:
        if arguments.names and fault.fuzzer not in arguments.names:
            continue
        how = found(fault, source, build, arguments.seconds)
        missed += not how
        print(f"{'found' if how else 'MISSED'}: {fault.fuzzer}: {fault.name}: {how}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
