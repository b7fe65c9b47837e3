#!/usr/bin/env python3
"""Rehearses the stages of scripts/gpu_check on the simulated GPU, with their time limits.

    tests/gpu/rehearse.py [tests] [benchmark] [tools]

Programs of build/ with little work replace those of build-gpu; everything else is gpu_check's code. Parts whose
requirements are missing here, such as NVIDIA's tools, CuPy or a driver, are skipped with the reason. Reports and logs
are in build-gpu-rehearsal.
"""

from __future__ import annotations

import re
import shlex
import sys
import time

import check as gpu_check
import check_build
from check_build import REPOSITORY
from check_report import Report
from check_steps import Check, say

FOLDER = REPOSITORY / "build-gpu-rehearsal"
SIMULATOR = REPOSITORY / "build" / "tests" / "simulator"
SIMULATED = REPOSITORY / "build" / "libper_simulated.so"

BENCH = "--capacity 2e3 --batch 40 --update 4200 --images 100 --seconds 0"


def arguments_of_device_programs() -> dict[str, str]:
    """The arguments of each program in ctest on the simulated GPU."""
    text = (REPOSITORY / "tests" / "simulator" / "CMakeLists.txt").read_text()
    return dict(re.findall(r"^per_add_device_check\((\w+) (.*)\)$", text, re.MULTILINE))


def script(name: str, *lines: str) -> None:
    path = FOLDER / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def lay_out() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():  # such as those of tests that are gone
        if not old.is_dir():
            old.unlink()
    arguments = arguments_of_device_programs()
    for name in gpu_check.DEVICE_PROGRAMS:
        script(name, f"exec {SIMULATOR}/cuda_{name} {arguments[name]}")
    for name in check_build.c_tests():
        script(f"c_{name}", f"PER_SIMULATOR_SEED=0 exec {SIMULATOR}/cuda_c_{name}")
    for name in gpu_check.MODEL_TESTS:
        script(name, f'exec {SIMULATOR}/cuda_cpp_{name} "$@"')
    script("per_gpu_bench", f"exec {SIMULATOR}/cuda_gpu_bench {BENCH}")
    for name in (check_build.library().name, check_build.HOST_ARRAYS):
        (FOLDER / name).symlink_to(SIMULATED)
    torch = "bench/gpu/torch_baselines.py --device cpu --capacity 1000 --batch 8 --seconds 0"
    python = shlex.quote(sys.executable)
    script(
        "python",
        "export PER_SIMULATOR_SEED=0",
        'case "$1" in',
        f'*python_on_device.py) exec {python} "$@" --stand-ins ;;',
        f"*torch_baselines.py) exec {python} {torch} ;;",
        "esac",
        f'exec {python} "$@"',
    )


def main() -> int:
    stages = sys.argv[1:] or [*gpu_check.STAGES]
    for module in (gpu_check, check_build):
        module.BUILD = FOLDER  # type: ignore[attr-defined]
    gpu_check.PYTHON = str(FOLDER / "python")
    lay_out()
    statuses = []
    for stage in stages:
        begin = time.monotonic()
        check = Check(REPOSITORY, FOLDER, gpu_check.limit_of(stage), [])
        report = Report(REPOSITORY, "", stage, FOLDER / "results")
        report.path = FOLDER / report.path.name
        report.about["device"] = "simulated"
        statuses.append(gpu_check.run_stage(check, report, stage))
        say(f"{stage}: {time.monotonic() - begin:.0f} s of {gpu_check.limit_of(stage):.0f}, exits with {statuses[-1]}")
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
