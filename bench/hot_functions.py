#!/usr/bin/env python3
"""Writes cmake/hot_functions.txt: the functions that draws, updates and adds run, those of the commonest use first.

CMake lays out libper.so in this order. Run it after such functions were added or renamed. Needs build/per_bench and
valgrind.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
LIST = ROOT / "cmake/hot_functions.txt"
CALLS = (
    "per_replay_sample",
    "per_replay_update_priorities",
    "per_replay_add",
    "per_sample",
    "per_update",
    "per_mixture_sample",
)
USES = (
    ("freshness", "gather", "add"),
    ("sample", "update"),
    ("mixture",),
    ("n_step", "frame_stack", "sequence", "uniform"),
)


def functions_of(cases: tuple[str, ...]) -> set[str]:
    """Mangled names of the library's functions that run within CALLS."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--demangle=no", "--compress-strings=no"]
        command += [f"--callgrind-out-file={folder}/%p", *(f"--toggle-collect={call}" for call in CALLS)]
        command += [str(ROOT / "build/per_bench"), "--case", *cases]
        command += ["--capacity", "1e4", "--batch", "32", "--seconds", "0"]
        subprocess.run(command, check=True, capture_output=True)
        profile = "\n".join(file.read_text() for file in pathlib.Path(folder).iterdir())
    found, is_library = set(), False
    for line in profile.splitlines():
        key, _, value = line.partition("=")
        if key == "ob":
            is_library = "/libper.so" in value or value == "???"  # valgrind knows .text only, not .text.hot
        elif key == "fn" and is_library:
            found.add(re.sub(r"[.'].*", "", value))  # without the suffix of a clone, or of a recursive call
    return found


def main() -> None:
    names: list[str] = []
    for cases in USES:
        names += sorted(functions_of(cases) - set(names))
    LIST.write_text("# Written by bench/hot_functions.py.\n" + "".join(f"{name}\n" for name in names))
    print(f"{len(names)} functions")


if __name__ == "__main__":
    main()
