#!/usr/bin/env python3
"""Builds libper for the CUDA device of this machine, and runs its tests and the benchmark there.

    scripts/gpu_check [--only NAME...] [--results FOLDER] [--seconds S] [--limit S]

Needs nvcc, CMake, a C and a C++ compiler, xxhash.h (of the system, or in xxhash/), and Python 3.10 or later; no network
and no Python package. What wants more (the Python package: cffi, and the library of whose arrays it is; GoogleTest;
torch; TorchRL; compute-sanitizer) is left out where that is missing, and named. So is what there is no time for:
everything ends within the limit.

One file of JSON: device, driver, commit, what passed, failed and was skipped, and the benchmark's figures. It is
written after each part, with --results also to that folder, and all logs beside it. With --only it goes on from the one
of the same sources, device and driver, if there is one. Without a device it exits with 77; a device that libper cannot
use, such as one with a driver that is too old, is a failure.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import threading
import time

import check_report
from check_report import Figure, Report
from check_steps import NO_DEVICE, Check, run_to_the_end, say, tail

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build-gpu"
PYTHON_TESTS = REPOSITORY / "bindings" / "python" / "tests"
TIME_LIMIT_S = 580
SANITIZERS_S = 150  # kept for them while the benchmark runs
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")

HOST_ARRAYS = ("tests/gpu/host_tree_arrays.cpp", "tests/gpu/host_replay_arrays.cpp")
# With what they are to do under a sanitizer.
DEVICE_PROGRAMS = {
    "tree_on_device": ["33000", "1"],
    "replay_on_device": ["1"],
    "loader_on_device": ["100", "64"],
    "large_replay_on_device": ["1", "60000", "600", "2000"],
}
# Left out are distributions that take 160000 draws, each with its arrays copied.
MODEL_TESTS = {"replay_model_test": [], "replay_draw_test": ["--gtest_filter=-ReplayDistinct.*"]}


# ---------------------------------------------------------------------------------------------------------- build


def beside(nvcc: str, name: str) -> str:
    """Another program of the CUDA toolkit; empty where it is missing."""
    folder = pathlib.Path(nvcc).resolve().parent
    places = (
        shutil.which(name),
        folder / name,
        folder.parent / "compute-sanitizer" / name,
        f"/usr/local/cuda/bin/{name}",
    )
    return next((str(place) for place in places if place and pathlib.Path(place).exists()), "")


def architecture(nvcc: str) -> str:
    """Of the device, as CMake and nvcc name it; empty where there is none to ask."""
    answer = check_report.output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if match := re.match(r"(\d+)\.(\d+)", answer):
        return f"{match[1]}{match[2]}"
    query = beside(nvcc, "__nvcc_device_query")
    match = re.match(r"\d+", check_report.output_of(query)) if query else None
    return match[0] if match else ""


def c_tests() -> list[str]:
    """Those that run on a device that is there."""
    lines = (REPOSITORY / "tests" / "c" / "on_cuda.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#") and not line.endswith(" simulated")]


class Builder:
    """Calls compilers, from several threads; what they say is in build.log, and shown where they fail."""

    def __init__(self, nvcc: str, check: Check) -> None:
        self.nvcc = nvcc
        self.check = check
        self.architecture = architecture(nvcc)
        self.log = (BUILD / "build.log").open("w")
        self._lock = threading.Lock()

    def call(self, *command: object, is_shown: bool = True) -> bool:
        words = [str(word) for word in command]
        own_log = BUILD / f"build.{threading.get_ident()}.log"
        is_built = run_to_the_end(words, REPOSITORY, own_log, self.check.time_left(), {}) == 0
        text = own_log.read_text(errors="replace")
        own_log.unlink()
        with self._lock:
            print("+", *words, file=self.log)
            print(text, file=self.log, flush=True)
            if not is_built and is_shown:
                print(f"    + {' '.join(words)}\n{tail(text)}", flush=True)
        return is_built

    def library(self) -> bool:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        chosen = [f"-DCMAKE_CUDA_ARCHITECTURES={self.architecture}-real"] if self.architecture else []
        # Another compiler's new warnings are no reason to check nothing.
        options = ["-DPER_CUDA=ON", "-DPER_WERROR=OFF", "-DPER_BUILD_TESTS=OFF", "-DPER_BUILD_BENCH=OFF"]
        options += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CUDA_FLAGS=-lineinfo", f"-DPER_NVCC={self.nvcc}"]
        configured = self.call("cmake", "-S", ".", "-B", BUILD, *options, *chosen, *generator)
        return configured and self.call("cmake", "--build", BUILD, "--parallel", os.cpu_count() or 1)

    def nvcc_program(self, target: pathlib.Path, *sources: object, is_shown: bool = True) -> bool:
        """From sources of CUDA, C++ and objects, with libper."""
        target.unlink(missing_ok=True)  # of an earlier check
        chosen = f"-arch=sm_{self.architecture or 80}"
        rpath = ["-Xlinker", f"-rpath={BUILD}"]
        flags = ["-std=c++20", "-O2", "-fmad=false", chosen, "-Iinclude", "-lineinfo"]
        command = [self.nvcc, *flags, *sources, "-o", target, BUILD / "libper.so", *rpath, "-lpthread", "-ldl"]
        return self.call(*command, is_shown=is_shown)

    def c_program(self, name: str, objects: list[pathlib.Path]) -> bool:
        golden = [f'-DPER_GOLDEN_{kind.upper()}="tests/golden/{kind}.csv"' for kind in ("draws", "epochs", "hindsight")]
        compiled = BUILD / f"{name}.o"
        compile_it = ["cc", "-std=c99", "-O1", "-Iinclude", *golden, "-c", f"tests/c/{name}.c", "-o", compiled]
        return self.call(*compile_it) and self.nvcc_program(BUILD / f"c_{name}", compiled, *objects)

    def host_arrays_library(self) -> bool:
        """libper whose functions take arrays of the host: for tests in Python."""
        shared = ["-shared", "-Xcompiler=-fPIC", f'-DPER_LIBRARY="{BUILD}/libper.so"']
        return self.nvcc_program(BUILD / "libper_host_arrays.so", *shared, *HOST_ARRAYS)

    def model_test(self, name: str, objects: list[pathlib.Path]) -> bool:
        sources = ["-Isrc", f"tests/cpp/{name}.cpp", *objects, "-lgtest", "-lgtest_main"]
        return self.nvcc_program(BUILD / name, *sources, is_shown=False)


def build(builder: Builder, check: Check) -> bool:
    """Whether libper was built. A program that was not fails when it is to run."""
    if not builder.library():
        check.add("build", "failed", why="libper does not build; see build-gpu/build.log")
        return False
    say("building the tests and the benchmark")
    objects = [BUILD / f"{pathlib.Path(source).stem}.o" for source in HOST_ARRAYS]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = [
            pool.submit(builder.call, builder.nvcc, "-std=c++20", "-O1", "-Iinclude", "-c", source, "-o", target)
            for source, target in zip(HOST_ARRAYS, objects, strict=True)
        ]
        bench = [BUILD / "per_gpu_bench", *sorted((REPOSITORY / "bench" / "gpu").glob("*.cu"))]
        peer = [BUILD / "libfloat_tree.so", "-shared", "-Xcompiler=-fPIC", "bench/gpu/float_tree.cu"]
        built = {
            "per_gpu_bench": pool.submit(builder.nvcc_program, *bench),
            "libfloat_tree.so": pool.submit(builder.nvcc_program, *peer),
            "libper_host_arrays.so": pool.submit(builder.host_arrays_library),
        }
        for name in (*DEVICE_PROGRAMS, "captures_on_device"):
            built[name] = pool.submit(builder.nvcc_program, BUILD / name, f"tests/gpu/{name}.cu")
        concurrent.futures.wait(compiled)
        models = [pool.submit(builder.model_test, name, objects) for name in MODEL_TESTS]
        for name in c_tests():
            built[f"c_{name}"] = pool.submit(builder.c_program, name, objects)
    for future in models:
        future.result()  # which may be missing
    missing = [name for name, future in built.items() if not future.result()]
    seconds = time.monotonic() - check.start
    why = f"{', '.join(missing)}; see build-gpu/build.log"
    check.add("build", "failed" if missing else "passed", seconds, why if missing else "")
    return True


# ---------------------------------------------------------------------------------------------------------- tests


def run_c_tests(check: Check) -> None:
    """Some at a time: most of what each takes is the beginning."""
    programs = {f"c_{name}": [str(BUILD / f"c_{name}")] for name in c_tests()}
    for name, arguments in MODEL_TESTS.items():
        if (BUILD / name).exists():
            programs[name] = [str(BUILD / name), *arguments]
        else:
            check.add(name, "skipped", why="it needs GoogleTest, which is missing or does not build; see build.log")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(check.run, name, words, 90, PER_TEST_DEVICE="cuda") for name, words in programs.items()]
    for run in runs:
        run.result()


def missing_modules(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def python_environment() -> dict[str, str]:
    path = [str(REPOSITORY / "bindings/python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    # JAX would take most of the device's memory for itself.
    return {"PYTHONPATH": os.pathsep.join(path), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def run_python(check: Check) -> None:
    """The package, with the arrays of each library."""
    environment = {**python_environment(), "LIBPER_PATH": str(BUILD / "libper.so")}
    for library in ("torch", "cupy", "jax"):
        if missing := missing_modules("_cffi_backend", "numpy", library):
            check.add(f"python_{library}", "skipped", why=f"missing: {', '.join(missing)}")
            continue
        check.run(f"python_{library}", [sys.executable, "tests/gpu/python_on_device.py", library], 90, **environment)


def run_python_suite(check: Check) -> None:
    """The package's tests, with arrays of the host that are copied to the device."""
    if missing := missing_modules("_cffi_backend", "numpy", "pytest", "torch", "jax"):
        check.add("python_suite", "skipped", why=f"missing: {', '.join(missing)}")
        return
    sys.path.insert(0, str(PYTHON_TESTS))
    from test_cuda import SUITE

    left_out = "not bridge and not test_every_pair_of_options"  # it is compiled; these are long
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", left_out]
    pytest += [str(PYTHON_TESTS / name) for name in SUITE]
    library = {"LIBPER_PATH": str(BUILD / "libper_host_arrays.so"), "PER_TEST_DEVICE": "cuda"}
    check.run("python_suite", pytest, 400, **python_environment(), **library, JAX_PLATFORMS="cpu")


def run_sanitizers(check: Check, found: str) -> None:
    reason = "" if found else "compute-sanitizer is missing"
    refusal = "Device not supported"
    for tool in SANITIZERS:
        for program, small in DEVICE_PROGRAMS.items():
            name = f"{program}_{tool}"
            if reason:
                check.add(name, "skipped", why=reason)
                continue
            sanitizer = [found, "--tool", tool, "--error-exitcode", "1", str(BUILD / program), *small]
            if refusal in check.run(name, sanitizer, 90, refusal=refusal):
                reason = f"compute-sanitizer: {refusal}"


# ------------------------------------------------------------------------------------------------------ benchmark


def run_benchmark(check: Check, seconds: float) -> list[Figure]:
    keep_s = 0 if check.only else SANITIZERS_S
    program = [str(BUILD / "per_gpu_bench"), "--seconds", str(seconds)]
    measured = check_report.figures(check.run("benchmark", program, 240, keep_s))
    if missing_modules("torch"):
        check.add("torch_baselines", "skipped", why="torch is missing")
        return measured
    peers = [sys.executable, "bench/gpu/torch_baselines.py", "--float-tree", str(BUILD / "libfloat_tree.so")]
    peers += ["--seconds", str(seconds)]
    libper = {**python_environment(), "LIBPER_PATH": str(BUILD / "libper.so")}
    return measured + check_report.figures(check.run("torch_baselines", peers, 120, keep_s, **libper))


def end_without_device(check: Check, report: Report) -> int:
    """libper found none that it can use."""
    found = check.results[-1]
    if not report.has_device():
        say(f"skipped: {found.why}; built, and nothing run")
        return NO_DEVICE
    found.outcome = "failed"
    report.write(check, [])
    say(f"failed: a device is there, which libper cannot use: {found.why}")
    return 1


def run_all(check: Check, report: Report, nvcc: str, seconds: float) -> int:
    measured: list[Figure] = []
    first = Check(REPOSITORY, BUILD, check.time_left(), [])  # whether there is a device at all
    first.run("tree_on_device", [str(BUILD / "tree_on_device")], 120)
    check.results += first.results
    if first.count("skipped"):
        return end_without_device(check, report)
    for name in ("replay_on_device", "loader_on_device", "captures_on_device"):
        check.run(name, [str(BUILD / name)], 120)
    report.write(check, measured)
    for part in (run_c_tests, run_python):
        part(check)
        report.write(check, measured)
    measured = run_benchmark(check, seconds)
    report.write(check, measured)
    run_sanitizers(check, beside(nvcc, "compute-sanitizer"))
    report.write(check, measured)
    run_python_suite(check)
    report.write(check, measured)
    counts = ", ".join(f"{check.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    say(f"{counts}; {report.path}")
    return 1 if check.count("failed") else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="only what has one of these in its name")
    parser.add_argument("--results", type=pathlib.Path, help="a folder that report and logs are copied to")
    parser.add_argument("--seconds", type=float, default=0.2, help="of the benchmark, for each figure")
    parser.add_argument("--limit", type=float, default=TIME_LIMIT_S, help="seconds that all of it takes at most")
    arguments = parser.parse_args()
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        say("nvcc is missing")
        return 1
    BUILD.mkdir(exist_ok=True)
    check = Check(REPOSITORY, BUILD, arguments.limit, arguments.only)
    report = Report(REPOSITORY, nvcc, arguments.results)
    say("building in build-gpu")
    if build(Builder(nvcc, check), check):
        return run_all(check, report, nvcc, arguments.seconds)
    report.write(check, [])
    return 1


if __name__ == "__main__":
    sys.exit(main())
