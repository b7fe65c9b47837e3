"""Builds the programs of a check into build-gpu, which can be carried to another machine."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable

from check_report import commit, digest_of, output_of
from check_steps import Check, Program, run_to_the_end, say, tail

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build-gpu"  # carried
OBJECTS = REPOSITORY / "build-gpu-objects"
LOGS = REPOSITORY / "build-gpu-logs"
PYTHON_THERE = "3.12"  # on the machine with the device
MOST_BYTES = 64 << 20  # that can be carried, the tree included

HOST_ARRAYS = "libper_host_arrays.so"
SOURCES_OF_HOST_ARRAYS = ("tests/gpu/host_tree_arrays.cpp", "tests/gpu/host_replay_arrays.cpp")
FLOAT_TREE = "libfloat_tree.so"


def nvcc_of_this_machine() -> str:
    """The path of nvcc; empty if there is none."""
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return found if pathlib.Path(found).exists() else ""


def beside(nvcc: str, name: str) -> str:
    """Another program of the CUDA toolkit; empty if it is missing."""
    folder = pathlib.Path(nvcc).resolve().parent
    places = (
        shutil.which(name),
        folder / name,
        folder.parent / "compute-sanitizer" / name,
        f"/usr/local/cuda/bin/{name}",
    )
    return next((str(place) for place in places if place and pathlib.Path(place).exists()), "")


def architecture_of_device(nvcc: str) -> str:
    """The architecture of the device, as CMake and nvcc name it; empty without a device to query."""
    answer = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if match := re.match(r"(\d+)\.(\d+)", answer):
        return f"{match[1]}{match[2]}"
    query = beside(nvcc, "__nvcc_device_query")
    match = re.match(r"\d+", output_of(query)) if query else None
    return match[0] if match else ""


def c_tests() -> list[str]:
    """Names of the C tests that can run on a real device."""
    lines = (REPOSITORY / "tests" / "c" / "on_cuda.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#") and not line.endswith(" simulated")]


def packages(version: str = ".".join(map(str, sys.version_info[:2]))) -> pathlib.Path:
    """The folder of the packages carried for a version of Python. It need not exist."""
    return BUILD / f"python{version}"


def library() -> pathlib.Path:
    """libper, under the name that programs load it by."""
    header = (REPOSITORY / "include" / "per" / "base.h").read_text()
    return BUILD / f"libper.so.{re.findall(r'PER_ABI_VERSION = ([0-9]+)', header)[0]}"


class Builder:
    """Calls compilers from several threads. Their output is in build.log, and its end is shown if they fail.

    Each product has a digest of its sources. A product whose digest is unchanged is up to date, and is not rebuilt.
    """

    def __init__(self, nvcc: str, check: Check, architecture: str, may_build: bool) -> None:
        self.nvcc = nvcc
        self.check = check
        self.architecture = architecture
        self.may_build = may_build
        self.made: list[str] = []
        self.digests = BUILD / "digests"
        for folder in (OBJECTS, self.digests):
            folder.mkdir(parents=True, exist_ok=True)
        self.log = (LOGS / "build.log").open("w")
        self._lock = threading.Lock()

    def call(self, *command: object, is_shown: bool = True) -> bool:
        words = [str(word) for word in command]
        own_log = OBJECTS / f"{threading.get_ident()}.log"
        is_built = run_to_the_end(words, REPOSITORY, own_log, self.check.time_left(), {}) == 0
        text = own_log.read_text(errors="replace")
        own_log.unlink()
        with self._lock:
            print("+", *words, file=self.log)
            print(text, file=self.log, flush=True)
            if not is_built and is_shown:
                print(f"    + {' '.join(words)}\n{tail(text)}", flush=True)
        return is_built

    def make(self, name: str, of: list[str], *commands: list[object], is_shown: bool = True) -> bool:
        """Makes BUILD/name with the commands unless it is up to date. `of`: its sources, as digest_of() takes them."""
        digest = f"{self.architecture} {digest_of(REPOSITORY, [*of, 'tests/gpu/check_build.py'])}"
        stamp = self.digests / name
        if stamp.exists() and stamp.read_text() == digest and (BUILD / name).exists():
            return True
        for earlier in (stamp, BUILD / name):  # a stale program must not run
            earlier.unlink(missing_ok=True)
        if not self.may_build or not all(self.call(*command, is_shown=is_shown) for command in commands):
            return False
        stamp.write_text(digest)
        with self._lock:
            self.made.append(name)
        return True

    def library(self) -> bool:
        name = library().name
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        chosen = [f"-DCMAKE_CUDA_ARCHITECTURES={self.architecture}-real"] if self.architecture else []
        # Warnings of other compilers must not prevent the check.
        options = ["-DPER_CUDA=ON", "-DPER_WERROR=OFF", "-DPER_BUILD_TESTS=OFF", "-DPER_BUILD_BENCH=OFF"]
        options += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CUDA_FLAGS=-lineinfo", f"-DPER_NVCC={self.nvcc}"]
        options += [f"-DCMAKE_INCLUDE_PATH={BUILD}/include"]
        return self.make(
            name,
            ["CMakeLists.txt", "cmake", "include", "src"],
            ["cmake", "-S", ".", "-B", OBJECTS, *options, *chosen, *generator],
            ["cmake", "--build", OBJECTS, "--parallel", os.cpu_count() or 1],
            ["strip", "-o", BUILD / name, OBJECTS / name],
        )

    def cuda_program(self, name: str, sources: list[str], *more: object) -> bool:
        """Compiles CUDA sources, and links libper."""
        flags = ["-std=c++20", "-O2", "-fmad=false", f"-arch=sm_{self.architecture or 80}", "-Iinclude", "-lineinfo"]
        linker = [f"-L{BUILD}", f"-l:{library().name}", "-rpath=$ORIGIN", "-s"]
        linked = ["-o", BUILD / name, *(f"-Xlinker={word}" for word in linker), "-lpthread", "-ldl"]
        of = ["include", "tests/gpu/*.h", "tests/c/struct_calls.h", "bench/gpu/*.h", *sources]
        return self.make(name, of, [self.nvcc, *flags, *more, *sources, *linked])

    def host_arrays_library(self) -> bool:
        """Builds a library for tests in C and Python: libper's functions, but for host arrays."""
        shared = ["-shared", "-Xcompiler=-fPIC", f'-DPER_LIBRARY="{library().name}"']
        return self.cuda_program(HOST_ARRAYS, list(SOURCES_OF_HOST_ARRAYS), *shared)

    def host_program(self, name: str, of: list[str], *words: str, is_shown: bool = True) -> bool:
        """Compiles C or C++, and links the library whose functions replace libper's."""
        libraries = [f"-L{BUILD}", f"-l:{HOST_ARRAYS}", f"-l:{library().name}", "-lm", "-lpthread"]
        linked = ["-o", BUILD / name, *libraries, "-Wl,-rpath,$ORIGIN"]
        of = ["include", "tests/gpu/*.h", *of]
        return self.make(name, of, [*words[:1], "-s", "-O1", "-Iinclude", *words[1:], *linked], is_shown=is_shown)

    def c_program(self, name: str) -> bool:
        kinds = ("draws", "epochs", "hindsight", "n_steps")
        golden = [f'-DPER_GOLDEN_{kind.upper()}="tests/golden/{kind}.csv"' for kind in kinds]
        source = f"tests/c/{name}.c"
        return self.host_program(f"c_{name}", ["tests/c/*.h", source], "cc", "-std=c99", *golden, source)

    def bridge(self) -> None:
        """Builds the package's bridge, without which it is slower, into the package.

        It is for one version of Python, so that each machine builds its own.
        """
        headers = [pathlib.Path(sysconfig.get_path("include")), packages() / "pybind11" / "include"]
        if missing := [str(folder) for folder in headers if not folder.is_dir()]:
            return self.check.add("bridge", "skipped", f"missing: {', '.join(missing)}")
        numpy = output_of(sys.executable, "-c", "import numpy; print(numpy.get_include())")
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        flags = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Iinclude"]
        flags += [f"-I{folder}" for folder in (*headers, numpy)]
        sources = sorted((REPOSITORY / "bindings" / "python" / "bridge").glob("*.cpp"))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [OBJECTS / f"{source.stem}.o" for source in sources]
            calls = [
                pool.submit(self.call, "c++", *flags, "-c", source, "-o", of)
                for source, of in zip(sources, objects, strict=True)
            ]
        place = REPOSITORY / "bindings" / "python" / "per" / f"_bridge{suffix}"
        linked = ["-shared", "-Wl,--wrap=__gxx_personality_v0", "-o", place]
        are_compiled = all(call.result() for call in calls)
        is_built = are_compiled and self.call("c++", *objects, *linked)
        self.check.add(
            "bridge", "passed" if is_built else "failed", "" if is_built else "does not build; see build.log"
        )

    def model_test(self, name: str) -> bool:
        source = f"tests/cpp/{name}.cpp"
        words = ["c++", "-std=c++20", "-ffp-contract=off", "-Isrc", f"-I{BUILD}/include", f"-L{BUILD}", source]
        of = ["src", "tests/cpp/*.h", source]
        return self.host_program(name, of, *words, "-lgtest", "-lgtest_main", is_shown=False)


def build(builder: Builder, device_programs: Iterable[str], model_tests: Iterable[str]) -> bool:
    """Returns True if libper is up to date. A stale program counts as missing, and fails when it is to run."""
    check = builder.check
    say(f"{'building' if builder.may_build else 'looking at'} {BUILD.name}")
    if not builder.library():
        why = (
            "libper does not build; see build.log" if builder.may_build else f"{BUILD.name} has no libper of this tree"
        )
        check.add("build", "failed", why)
        return False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        host_arrays = pool.submit(builder.host_arrays_library)
        bench = sorted(str(source.relative_to(REPOSITORY)) for source in (REPOSITORY / "bench" / "gpu").glob("*.cu"))
        shared = ["-shared", "-Xcompiler=-fPIC"]
        built = {
            HOST_ARRAYS: host_arrays,
            "per_gpu_bench": pool.submit(builder.cuda_program, "per_gpu_bench", bench),
            FLOAT_TREE: pool.submit(builder.cuda_program, FLOAT_TREE, ["bench/gpu/float_tree.cu"], *shared),
        }
        for name in device_programs:
            built[name] = pool.submit(builder.cuda_program, name, [f"tests/gpu/{name}.cu"])
        if host_arrays.result():
            models = [pool.submit(builder.model_test, name) for name in model_tests]
            for name in c_tests():
                built[f"c_{name}"] = pool.submit(builder.c_program, name)
            for model in models:
                model.result()  # the program may be missing
    missing = [name for name, future in built.items() if not future.result()]
    seconds = time.monotonic() - check.start
    if missing:
        reason = "not built; see build.log" if builder.may_build else "not those of this tree"
        check.add("build", "failed", f"{reason}: {', '.join(missing)}", seconds)
    else:
        check.add("build", "passed", "", seconds)
        say(f"{len(builder.made)} programs and libraries were built, the others were up to date")
    return True


# ---------------------------------------------------------------------------------------------------------- carrying

# Needed to build on the machine with the device. Debian's packages install them at these paths.
HEADERS = ("/usr/include/xxhash.h", "/usr/include/gtest")
LIBRARIES = ("/usr/lib/x86_64-linux-gnu/libgtest.a", "/usr/lib/x86_64-linux-gnu/libgtest_main.a")


def bytes_of(files: list[pathlib.Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())


def carry(check: Check) -> None:
    """Adds packages that a machine without network may lack, and checks that everything fits."""
    carried = packages(PYTHON_THERE)
    shutil.rmtree(carried, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"]
    for glibc in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        pip += ["--platform", f"{glibc}_x86_64"]
    of_there = ["--python-version", PYTHON_THERE, "--implementation", "cp", "--target", str(carried)]
    check.run(Program("packages", [*pip, *of_there, "-r", "tests/gpu/requirements.txt"], 300))
    for file in map(pathlib.Path, (*HEADERS, *LIBRARIES)):
        place = BUILD / ("include" if str(file) in HEADERS else "") / file.name
        place.parent.mkdir(exist_ok=True)
        if file.is_dir():
            shutil.copytree(file, place, dirs_exist_ok=True)
        elif file.exists():
            shutil.copyfile(file, place)
        else:
            check.add(file.name, "skipped", "not found on this machine")
    (BUILD / "commit").write_text(commit(REPOSITORY))
    tracked = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=REPOSITORY).split("\n")
    tree, built = bytes_of([REPOSITORY / name for name in tracked]), bytes_of([*BUILD.rglob("*")])
    how_much = f"{built / 2**20:.1f} MiB of {BUILD.name} and {tree / 2**20:.1f} MiB of the tree"
    fits = built + tree <= MOST_BYTES
    check.add("carried", "passed" if fits else "failed", how_much + ("" if fits else ": more than travels"))
