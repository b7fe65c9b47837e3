#!/usr/bin/env python3
"""Builds libper for a CUDA device, and runs its tests, the benchmark, and NVIDIA's tools on it.

    scripts/gpu_check carry --architecture 90     builds all on a machine without a device, for another to run
    scripts/gpu_check [tests] [benchmark] [tools] [--no-build] [--only NAME...] [--results FOLDER]

Needs nvcc, CMake, a C and a C++ compiler, xxhash.h (of the system, or in xxhash/), and Python 3.10 or later; no network
and no Python package. With --no-build it needs no compiler, but a build-gpu made by `carry` from exactly this tree (see
README.md in this folder). Some parts need more: cffi and torch, CuPy or JAX for the Python package; GoogleTest;
TorchRL; ncu; compute-sanitizer. A part whose requirement is missing is skipped, and the report names it.

Each stage has a time limit: tests 7 minutes, benchmark 9, tools 7, not counting the build. A part of a stage has its
own time and the unused time of earlier parts. A program that exceeds it is cut, and the report says so. The report of a
stage is one file of JSON: device, driver, commit, figures, and the outcome of each program. It is written after each
program, and with --results also to that folder, where the logs follow after each part. With --only it extends the
report of the same sources, device and driver, if there is one. Exits with 1 if anything failed or was cut, and with 77
if there is no device or nothing could run. A device that libper cannot use, for example because its driver is too old,
is a failure.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import os
import pathlib
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from check_build import (
    BUILD,
    FLOAT_TREE,
    HOST_ARRAYS,
    LOGS,
    REPOSITORY,
    Builder,
    architecture_of_device,
    beside,
    build,
    c_tests,
    carry,
    library,
    nvcc_of_this_machine,
    packages,
)
from check_report import Report
from check_steps import NO_DEVICE, Check, Program, say

PYTHON = sys.executable
PYTHON_TESTS = REPOSITORY / "bindings" / "python" / "tests"
SECONDS = "0.2"  # of the benchmark, per figure
BUILD_LIMIT_S = 1800
START_S = 30  # before the first part begins

# Each program with its arguments under a sanitizer. Only a device can tell whether the driver accepts the captures.
DEVICE_PROGRAMS = {
    "tree_on_device": ["33000", "1"],
    "captures_on_device": ["5", "1"],
    "replay_on_device": ["1"],
    "loader_on_device": ["100", "64"],
    "large_replay_on_device": ["1", "60000", "600", "2000"],
}
# The arguments under a tool that makes a program a thousand times as slow.
ARGUMENTS_OF_TOOL = {("racecheck", "tree_on_device"): ["1100", "1"]}
# The distributions are left out: they take 160000 draws, each with its arrays copied.
MODEL_TESTS = {"replay_model_test": [], "replay_draw_test": ["--gtest_filter=-ReplayDistinct.*"]}


# ---------------------------------------------------------------------------------------------------------- tests


def run_device_programs(check: Check, names: list[str]) -> None:
    check.run_side_by_side([Program(name, [str(BUILD / name)], 60) for name in names], len(names))


def run_c_tests(check: Check) -> None:
    """Runs several at a time: each spends most of its time starting."""
    programs = {f"c_{name}": [str(BUILD / f"c_{name}")] for name in c_tests()}
    for name, arguments in MODEL_TESTS.items():
        if (BUILD / name).exists():
            programs[name] = [str(BUILD / name), *arguments]
        else:
            check.add(name, "skipped", "not built: it needs GoogleTest, or does not compile; see build.log")
    runs = [Program(name, words, 90, {"PER_TEST_DEVICE": "cuda"}) for name, words in programs.items()]
    check.run_side_by_side(runs, 8)


def missing_modules(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def python_environment() -> dict[str, str]:
    path = [str(REPOSITORY / "bindings/python"), str(packages()), *filter(None, [os.environ.get("PYTHONPATH")])]
    # JAX would reserve most of the device's memory.
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "LIBPER_PATH": str(library()),
    }


def run_python(check: Check) -> None:
    """Tests the package with the arrays of each library."""
    runs = []
    for kind in ("torch", "cupy", "jax"):
        if missing := missing_modules("_cffi_backend", "numpy", kind):
            check.add(f"python_{kind}", "skipped", f"missing: {', '.join(missing)}")
        else:
            command = [PYTHON, "tests/gpu/python_on_device.py", kind]
            runs.append(Program(f"python_{kind}", command, 60, python_environment()))
    calls_of_xla = REPOSITORY / "bindings" / "python" / "per" / "libper_xla.so"
    if missing := missing_modules("_cffi_backend", "numpy", "jax") + [calls_of_xla.name] * (not calls_of_xla.exists()):
        check.add("python_xla", "skipped", f"missing: {', '.join(missing)}")
    else:
        runs.append(Program("python_xla", [PYTHON, "tests/gpu/python_on_device.py", "xla"], 60, python_environment()))
    check.run_side_by_side(runs, 3)


def python_suite() -> tuple[str, ...]:
    """The files of test_cuda.SUITE. They are read from its source, as importing it would load libper."""
    for statement in ast.parse((PYTHON_TESTS / "test_cuda.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "SUITE":
            return tuple(ast.literal_eval(statement.value))
    raise LookupError("test_cuda.py has no SUITE")


def run_python_suite(check: Check) -> None:
    """Runs the package's tests with host arrays, which are copied to the device."""
    if missing := missing_modules("_cffi_backend", "numpy", "pytest", "torch", "jax"):
        check.add("python_suite", "skipped", f"missing: {', '.join(missing)}")
        return
    left_out = "not bridge and not test_every_pair_of_options"  # the bridge is compiled; the pairs take long
    # The examples in docstrings need gymnasium.
    files = [file for file in python_suite() if not file.endswith("examples_in_docstrings_work")]
    pytest = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", left_out]
    environment = {
        **python_environment(),
        "LIBPER_PATH": str(BUILD / HOST_ARRAYS),
        "PER_TEST_DEVICE": "cuda",
        "JAX_PLATFORMS": "cpu",
    }
    runs = [
        Program(
            f"python_{pathlib.Path(file.split('::')[0]).stem}", [*pytest, str(PYTHON_TESTS / file)], 90, environment
        )
        for file in files
    ]
    check.run_side_by_side(runs, 8)


# ------------------------------------------------------------------------------------------------------ benchmark


def run_bench(check: Check, name: str, limit_s: float, *arguments: str) -> None:
    check.run(Program(name, [str(BUILD / "per_gpu_bench"), "--seconds", SECONDS, *arguments], limit_s))


def run_torch(check: Check, capacity: str) -> None:
    name = f"torch_{capacity}"
    if missing := missing_modules("_cffi_backend", "numpy", "torch"):
        check.add(name, "skipped", f"missing: {', '.join(missing)}")
        return
    command = [PYTHON, "bench/gpu/torch_baselines.py", "--float-tree", str(BUILD / FLOAT_TREE)]
    command += ["--capacity", capacity, "--seconds", SECONDS, "--build-torchrl"]
    check.run(Program(name, command, 150, python_environment()))


# ---------------------------------------------------------------------------------------------------------- tools

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Regular expressions for the mangled names of libper's kernels of each call. Those that fill buffers are left out.
PROFILED = {
    "sample": "draw_kernel.*Device(Tree|Replay)",
    "update": "update_kernel.*(Device|Plain)(Tree|Replay)",
    "add": "add_(at_once|plain)",
}


def profile(check: Check) -> None:
    """Summarises how the kernels of a training step spend their time."""
    ncu = beside(nvcc_of_this_machine(), "ncu")
    sections = ["SpeedOfLight", "MemoryWorkloadAnalysis", "WarpStateStats", "InstructionStats", "Occupancy"]
    sections += ["LaunchStats"]
    work = ["--capacity", "1e6", "--batch", "256", "--update", "4096", "--images", "0", "--seconds", "0"]
    for call, kernels in PROFILED.items():
        if not ncu:
            check.add(f"profile_{call}", "skipped", "ncu is missing")
            continue
        command = [ncu, "--clock-control", "none", "--print-summary", "per-kernel"]
        command += [word for section in sections for word in ("--section", section)]
        command += ["--kernel-name-base", "mangled", "--kernel-name", f"regex:{kernels}", "--launch-count", "24"]
        command += [str(BUILD / "per_gpu_bench"), *work]
        refusals = ("LibraryNotLoaded", "ERR_NVGPUCTRPERM")
        check.run(Program(f"profile_{call}", command, 60, refusals=refusals, evidence="Duration"))


def run_sanitizers(check: Check, tools: tuple[str, ...], programs: list[str]) -> None:
    sanitizer = beside(nvcc_of_this_machine(), "compute-sanitizer")
    runs = []
    for tool in tools:
        for name in programs:
            if not sanitizer:
                check.add(f"{name}_{tool}", "skipped", "compute-sanitizer is missing")
                continue
            command = [sanitizer, "--tool", tool, "--error-exitcode", "1", str(BUILD / name)]
            command += ARGUMENTS_OF_TOOL.get((tool, name), DEVICE_PROGRAMS[name])
            refusals = ("Device not supported",)
            runs.append(Program(f"{name}_{tool}", command, 150, refusals=refusals, evidence="SUMMARY: 0 "))
    check.run_side_by_side(runs, 4)


def of_replay(is_replay: bool) -> list[str]:
    return [name for name in DEVICE_PROGRAMS if ("replay" in name) == is_replay]


# --------------------------------------------------------------------------------------------------------- stages

Part = Callable[[Check], None]

# The parts of each stage, with their seconds. The most informative part comes first.
STAGES: dict[str, list[tuple[Part, float]]] = {
    "tests": [
        (lambda check: run_device_programs(check, [name for name in DEVICE_PROGRAMS if "large" not in name]), 120),
        (lambda check: run_device_programs(check, [name for name in DEVICE_PROGRAMS if "large" in name]), 60),
        (run_c_tests, 90),
        (run_python, 50),
        (run_python_suite, 70),
    ],
    "benchmark": [
        (lambda check: run_bench(check, "benchmark_1e6", 60, "--capacity", "1e6", "--images", "0"), 60),
        (lambda check: run_bench(check, "benchmark_images", 90, "--capacity"), 60),
        (lambda check: run_torch(check, "1e6"), 120),
        (lambda check: run_bench(check, "benchmark_1e8", 120, "--capacity", "1e8", "--images", "0"), 80),
        (lambda check: run_torch(check, "1e8"), 50),
        (lambda check: run_bench(check, "benchmark_1e9", 120, "--capacity", "1e9", "--images", "0"), 70),
    ],
    "tools": [
        (profile, 100),
        (lambda check: run_sanitizers(check, SANITIZERS[:2], of_replay(True)), 120),
        (lambda check: run_sanitizers(check, SANITIZERS[2:], [*of_replay(True), *of_replay(False)]), 110),
        (lambda check: run_sanitizers(check, SANITIZERS[:2], of_replay(False)), 60),
    ],
}


def limit_of(stage: str) -> float:
    return START_S + sum(limit_s for _, limit_s in STAGES[stage])


@contextlib.contextmanager
def context_held(check: Check) -> Iterator[None]:
    """Keeps a CUDA context open beside the programs of a stage: see hold_context.py."""
    command = [PYTHON, "tests/gpu/hold_context.py"]
    holder = subprocess.Popen(
        command, cwd=check.repository, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        is_heard = bool(select.select([holder.stdout], [], [], START_S)[0])
        said = holder.stdout.readline().strip() if is_heard else f"not within {START_S} s"
        is_held = said == "held"
        check.add("context_held", "passed" if is_held else "skipped", "" if is_held else said or "it ended")
        yield
    finally:
        holder.stdin.close()
        try:
            holder.wait(10)
        except subprocess.TimeoutExpired:
            holder.kill()


def has_usable_device(check: Check, report: Report) -> bool:
    """Returns True if a program of libper finds a device, and adds its outcome to the results."""
    first = Check(check.repository, check.logs, START_S, [])
    first.run(Program("device", [str(BUILD / "tree_on_device"), "1", "1"], START_S))
    found = first.results[0]
    check.results.append(found)
    if found.outcome != "skipped":
        return True  # also if it failed: later programs are more informative
    if report.has_device():
        found.outcome = "failed"
        report.write(check)
        say(f"failed: a device is there, which libper cannot use: {found.why}")
    return False


def run_stage(check: Check, report: Report, stage: str) -> int:
    check.when_added = report.write
    if not has_usable_device(check, report):
        return check.status(len(check.results))
    with context_held(check):
        n_before = len(check.results)
        part_end = time.monotonic()
        for part, limit_s in STAGES[stage]:
            part_end += limit_s  # unused time of earlier parts is kept
            with check.part(part_end):
                part(check)
            report.write_logs(check)
    outcomes = ("passed", "failed", "cut", "skipped")
    say(f"{', '.join(f'{check.count(outcome)} {outcome}' for outcome in outcomes)}; {report.path}")
    return check.status(n_before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="*", default=[*STAGES], help=f"carry, or any of {', '.join(STAGES)}")
    parser.add_argument(
        "--architecture", default="", help="of the device, such as 90; default: that of this machine's device"
    )
    parser.add_argument("--no-build", action="store_true", help="a program that is not up to date is a failure")
    parser.add_argument("--only", nargs="+", default=[], help="only what has one of these in its name")
    parser.add_argument("--results", type=pathlib.Path, help="a folder that reports and logs are copied to")
    arguments = parser.parse_args()
    if unknown := set(arguments.stage) - {"carry", *STAGES}:
        parser.error(f"no stage: {', '.join(sorted(unknown))}")
    nvcc = nvcc_of_this_machine()
    if not nvcc and not arguments.no_build:
        say("nvcc is missing")
        return 1
    sys.path.insert(0, str(packages()))
    for folder in (BUILD, LOGS):
        folder.mkdir(exist_ok=True)
    first = Check(REPOSITORY, LOGS, BUILD_LIMIT_S, [])
    architecture = arguments.architecture or architecture_of_device(nvcc)
    builder = Builder(nvcc, first, architecture, may_build=not arguments.no_build)
    is_built = build(builder, DEVICE_PROGRAMS, MODEL_TESTS)
    if "carry" in arguments.stage:
        carry(first)
        return first.status()
    builder.bridge()
    statuses = set()
    for stage in arguments.stage:
        check = Check(REPOSITORY, LOGS, limit_of(stage), arguments.only)
        check.results += first.results
        report = Report(REPOSITORY, nvcc, stage, arguments.results)
        if is_built:
            statuses.add(run_stage(check, report, stage))
        else:
            report.write(check)
            statuses.add(1)
    return max(statuses, key=[0, NO_DEVICE, 1].index)


if __name__ == "__main__":
    sys.exit(main())
