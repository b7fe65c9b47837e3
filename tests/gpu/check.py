#!/usr/bin/env python3
"""Builds libper for the CUDA device of this machine, and runs its tests and the benchmark there.

    scripts/gpu_check [--only NAME...] [--seconds S]

Needs nvcc, CMake, a C and a C++ compiler, and Python 3.10 or later; no network and no Python package. What wants more
(the Python package: cffi; GoogleTest; torch; TorchRL; compute-sanitizer) is left out where that is missing, and named.
Everything ends within ten minutes: what there is no time for is skipped, and named too.

One file of JSON: device, driver, commit, what passed, failed and was skipped, and the benchmark's figures.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build-gpu"
TIME_LIMIT_S = 580
NO_DEVICE = 77  # how a program says that it found none
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclasses.dataclass
class Result:
    name: str
    outcome: str  # passed, failed, skipped
    seconds: float
    why: str  # of what was skipped, and the last line of what failed


def say(text: str) -> None:
    print(f"gpu_check: {text}", flush=True)


class Check:
    def __init__(self, only: list[str]) -> None:
        self.start = time.monotonic()
        self.only = only
        self.results: list[Result] = []

    def time_left(self) -> float:
        return TIME_LIMIT_S - (time.monotonic() - self.start)

    def add(self, name: str, outcome: str, seconds: float = 0.0, why: str = "") -> None:
        self.results.append(Result(name, outcome, round(seconds, 1), why))
        say(f"{outcome}: {name}" + (f": {why}" if why else ""))

    def count(self, outcome: str) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def run(self, name: str, command: list[str], limit_s: float, **environment: str) -> str:
        """Runs it, unless there is a reason not to; what it printed, also in build-gpu/NAME.log."""
        if self.only and not any(wanted in name for wanted in self.only):
            return ""
        limit_s = min(limit_s, self.time_left())
        if limit_s < 1:
            self.add(name, "skipped", why="no time left")
            return ""
        begin = time.monotonic()
        log = BUILD / f"{name}.log"
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    command,
                    cwd=REPOSITORY,
                    env={**os.environ, **environment},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                ).returncode
                ended = True
            except subprocess.TimeoutExpired:
                status, ended = 1, False
        text = log.read_text(errors="replace")
        last = text.strip().splitlines()[-1] if text.strip() else f"exits with {status}"
        seconds = time.monotonic() - begin
        if status == 0:
            self.add(name, "passed", seconds)
        elif status == NO_DEVICE:
            self.add(name, "skipped", seconds, last.removeprefix("skipped: "))
        else:
            self.add(name, "failed", seconds, last if ended else f"does not end within {limit_s:.0f} s")
        return text


# ---------------------------------------------------------------------------------------------------------- build


def architecture() -> str:
    """Of the device, as CMake and nvcc name it; all that libper is built for where there is none to ask."""
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        command = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True).stdout
        if match := re.match(r"(\d+)\.(\d+)", answer):
            return f"{match[1]}{match[2]}"
    return ""


def c_tests() -> list[str]:
    """Those that run on CUDA."""
    lines = (REPOSITORY / "tests" / "c" / "on_cuda.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


class Builder:
    def __init__(self, nvcc: str) -> None:
        self.nvcc = nvcc
        self.architecture = architecture()
        self.log = (BUILD / "build.log").open("w")

    def call(self, *command: object) -> bool:
        words = [str(word) for word in command]
        print("+", *words, file=self.log, flush=True)
        return subprocess.run(words, cwd=REPOSITORY, stdout=self.log, stderr=subprocess.STDOUT).returncode == 0

    def library(self) -> bool:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        chosen = [f"-DCMAKE_CUDA_ARCHITECTURES={self.architecture}-real"] if self.architecture else []
        options = ["-DPER_CUDA=ON", f"-DPER_NVCC={self.nvcc}", "-DPER_BUILD_TESTS=OFF", "-DPER_BUILD_BENCH=OFF"]
        configure = [
            "cmake",
            "-S",
            ".",
            "-B",
            BUILD,
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            *options,
            *chosen,
            *generator,
        ]
        return self.call(*configure) and self.call("cmake", "--build", BUILD, "--parallel", os.cpu_count() or 1)

    def nvcc_program(self, target: pathlib.Path, *sources: object) -> bool:
        """From sources of CUDA, C++ and objects, with libper."""
        chosen = f"-arch=sm_{self.architecture or 80}"
        rpath = ["-Xlinker", f"-rpath={BUILD}"]
        flags = ["-std=c++20", "-O2", "-fmad=false", chosen, "-Iinclude", "-lineinfo"]
        return self.call(self.nvcc, *flags, *sources, "-o", target, BUILD / "libper.so", *rpath, "-lpthread", "-ldl")

    def c_object(self, name: str) -> pathlib.Path | None:
        golden = [f'-DPER_GOLDEN_{kind.upper()}="tests/golden/{kind}.csv"' for kind in ("draws", "epochs", "hindsight")]
        target = BUILD / f"{name}.o"
        command = ["cc", "-std=c99", "-O1", "-Iinclude", *golden, "-c", f"tests/c/{name}.c", "-o", target]
        return target if self.call(*command) else None


HOST_ARRAYS = ("tests/gpu/host_tree_arrays.cpp", "tests/gpu/host_replay_arrays.cpp")
# With what they are to do under a sanitizer.
DEVICE_PROGRAMS = {"tree_on_device": ["33000", "1"], "replay_on_device": ["1"], "loader_on_device": ["100", "64"]}
MODEL_TESTS = ("replay_model_test", "replay_draw_test")


def build(builder: Builder, check: Check) -> list[str]:
    """Builds everything; names of the model tests that could be built."""
    if not builder.library():
        check.add("build", "failed", why="libper does not build; see build-gpu/build.log")
        return []
    say("building the tests and the benchmark")
    programs = {BUILD / name: [f"tests/gpu/{name}.cu"] for name in DEVICE_PROGRAMS}
    programs[BUILD / "per_gpu_bench"] = ["bench/gpu/per_gpu_bench.cu", "bench/gpu/float_tree.cu"]
    objects = []
    for source in HOST_ARRAYS:
        objects.append(BUILD / f"{pathlib.Path(source).stem}.o")
        if not builder.call(builder.nvcc, "-std=c++20", "-O1", "-Iinclude", "-c", source, "-o", objects[-1]):
            check.add("build", "failed", why=f"{source} does not build; see build-gpu/build.log")
            return []
    for name in c_tests():
        programs[BUILD / f"c_{name}"] = [builder.c_object(name) or f"tests/c/{name}.c", *objects]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        built = pool.map(lambda program: builder.nvcc_program(program, *programs[program]), programs)
        failed = [program.name for program, is_built in zip(programs, built, strict=True) if not is_built]
    shared = [BUILD / "libfloat_tree.so", "-shared", "-Xcompiler=-fPIC", "bench/gpu/float_tree.cu"]
    if not builder.nvcc_program(*shared):
        failed.append("libfloat_tree.so")
    if failed:
        check.add("build", "failed", why=f"{', '.join(failed)}; see build-gpu/build.log")
    else:
        check.add("build", "passed", time.monotonic() - check.start)
    models = []
    for name in MODEL_TESTS:
        gtest = ["-lgtest", "-lgtest_main"]
        if builder.nvcc_program(BUILD / name, "-Isrc", f"tests/cpp/{name}.cpp", *objects, *gtest):
            models.append(name)
    return models


# ---------------------------------------------------------------------------------------------------------- tests


def run_tests(check: Check, models: list[str]) -> None:
    for name in ("replay_on_device", "loader_on_device"):
        check.run(name, [str(BUILD / name)], 120)
    for name in c_tests():
        check.run(f"c_{name}", [str(BUILD / f"c_{name}")], 60, PER_TEST_DEVICE="cuda")
    for name in MODEL_TESTS:
        if name in models:
            check.run(name, [str(BUILD / name)], 60, PER_TEST_DEVICE="cuda")
        else:
            check.add(name, "skipped", why="it needs GoogleTest, which is missing or does not build; see build.log")
    python = {"PYTHONPATH": str(REPOSITORY / "bindings/python"), "LIBPER_PATH": str(BUILD / "libper.so")}
    missing = [module for module in ("cffi", "numpy", "pytest") if importlib.util.find_spec(module) is None]
    if missing:
        check.add("python", "skipped", why=f"the Python package and its tests need {', '.join(missing)}")
    else:
        pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-k", "cuda", "bindings/python/tests"]
        check.run("python", pytest, 120, PER_TEST_DEVICE="cuda", **python)


def run_sanitizers(check: Check) -> None:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    for program, small in DEVICE_PROGRAMS.items():
        for tool in SANITIZERS:
            name = f"{program}_{tool}"
            if not pathlib.Path(found).exists():
                check.add(name, "skipped", why="compute-sanitizer is missing")
                continue
            sanitizer = [found, "--tool", tool, "--error-exitcode", "1", str(BUILD / program), *small]
            check.run(name, sanitizer, 60)


# ------------------------------------------------------------------------------------------------------ benchmark


def figures(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run_benchmark(check: Check, seconds: float) -> list[dict[str, object]]:
    measured = figures(
        check.run("benchmark", [str(BUILD / "per_gpu_bench"), "--seconds", str(seconds)], check.time_left() - 60)
    )
    if importlib.util.find_spec("torch") is None:
        check.add("torch_baselines", "skipped", why="torch is missing")
        return measured
    peers = [sys.executable, "bench/gpu/torch_baselines.py", "--float-tree", str(BUILD / "libfloat_tree.so")]
    return measured + figures(check.run("torch_baselines", [*peers, "--seconds", str(seconds)], 120))


# What the calls of libper are held against: case, capacity, batches, whose figure, how many times as fast.
TARGETS = (
    ("rows", 1_000_000, (256, 1024, 4096), "coursework, end to end", 10.0),
    ("sample", 1_000_000, (256, 1024, 4096), "float tree", 1.7),
    ("rows", 1_000_000, (256, 1024, 4096), "cumsum and searchsorted", 7.0),
    ("sample", 100_000_000, (256, 1024, 4096), "cumsum and searchsorted", 50.0),
    ("rows", 1_000_000, (256, 1024, 4096), "TorchRL", 15.0),
    ("update", 1_000_000, (256, 1024, 4096), "coursework, end to end", 5.0),
    ("update", 1_000_000, (256,), "TorchRL", 30.0),
    ("update", 1_000_000, (4096,), "TorchRL", 80.0),
)


def ratios(measured: list[dict[str, object]]) -> list[dict[str, object]]:
    """libper's eager calls against the others', of medians from the call until its work is done."""
    times = {
        (figure["case"], figure["variant"], figure["capacity"], figure["batch"]): figure["call_us"]
        for figure in measured
        if "call_us" in figure
    }
    found = []
    for case, capacity, batches, other, target in TARGETS:
        for batch in batches:
            own = times.get((case, "libper", capacity, batch))
            theirs = times.get((case, other, capacity, batch))
            if own and theirs:
                ratio = round(float(theirs) / float(own), 2)  # type: ignore[arg-type]
                key = {"case": case, "capacity": capacity, "batch": batch, "other": other}
                found.append({**key, "times_as_fast": ratio, "target": target})
    return found


# --------------------------------------------------------------------------------------------------------- report


def output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def write_report(check: Check, measured: list[dict[str, object]]) -> pathlib.Path:
    device = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    name, driver, memory = [*(part.strip() for part in device.split("\n")[0].split(",")), "", "", ""][:3]
    report = {
        "device": name,
        "driver": driver,
        "memory": memory,
        "nvcc": output_of("nvcc", "--version").split("\n")[-1],
        "python": sys.version.split()[0],
        "commit": output_of("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") or "unknown",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **{outcome: check.count(outcome) for outcome in ("passed", "failed", "skipped")},
        "results": [dataclasses.asdict(result) for result in check.results],
        "benchmark": measured,
        "ratios": ratios(measured),
    }
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown-device"
    path = REPOSITORY / "bench" / "results" / slug / "gpu_check.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="only what has one of these in its name; no report")
    parser.add_argument("--seconds", type=float, default=0.2, help="of the benchmark, for each figure")
    arguments = parser.parse_args()
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        say("nvcc is missing")
        return 1
    BUILD.mkdir(exist_ok=True)
    check = Check(arguments.only)
    say("building in build-gpu")
    models = build(Builder(nvcc), check)
    if check.count("failed"):
        return 1
    first = Check([])  # whether there is a device at all
    first.run("tree_on_device", [str(BUILD / "tree_on_device")], 120)
    check.results += first.results
    if first.count("skipped"):
        say(f"skipped: {first.results[0].why}; built, and nothing run")
        return NO_DEVICE
    run_tests(check, models)
    measured = run_benchmark(check, arguments.seconds) if not arguments.only else []
    run_sanitizers(check)
    counts = ", ".join(f"{check.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    say(counts if arguments.only else f"{counts}; {write_report(check, measured).relative_to(REPOSITORY)}")
    return 1 if check.count("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
