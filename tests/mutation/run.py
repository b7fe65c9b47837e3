#!/usr/bin/env python3
"""Plants hundreds of small faults in the sources of the CPU side, and reports those that no test catches.

    run.py WORK [--mutants N] [--seed S] [--also REGEX] [--jobs J] [--again] [--list]

    WORK     a folder outside of the repository: a copy of the sources with the mutants, its build, and the results.
             A second run with the same sources resumes where the first ended
    --also   also the mutants that match this in "FILE FUNCTION: EXPRESSION -> WHAT IT BECOMES"
    --again  tries the survivors again, after a test was added
    --list   lists the survivors and exits

The seed draws N mutants from all that mutants.py finds in the rooms below. They are built into one copy of the library,
with AddressSanitizer; the environment selects the active ones. Every test program in C and C++, and every Python test
file of the core, runs once to record the mutants that it reaches. Then each mutant runs with a few of the closest tests
that reach it, until one fails or does not end. This kills most of them. The others run with all tests that reach them,
many mutants at a time: if a test fails, it runs again with halves of them, down to a single one, so each mutant is
killed alone. Survivors that are not in equivalent.txt are printed, with exit status 1.

Needs clang++ and the environment of scripts/setup, whose Python runs this. On two idle cores, 600 mutants take about
forty minutes.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import pathlib
import pickle
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import mutants
from mutants import Mutant

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
# Excludes the C interface, code shared with CUDA, and CUDA itself.
ROOMS = sorted({path.name for path in (REPOSITORY / "src").iterdir() if path.is_dir()} - {"api", "backend", "cuda"})
SUITES = re.compile(r"^(c|cpp)\.")
LEFT_OUT = re.compile(r"dlclose")
# Excludes tests of the Python side, of devices and of programs, and slow ones whose models also exist in C++.
PYTHON_LEFT_OUT = re.compile(r"cuda|device|arrays|examples|package|torch|sources|plot|command|messages|threads|_model")
N_CLOSEST = 5
SAVE_EVERY_S = 10
COMPILER = "clang++"
ASAN_OPTIONS = "hard_rss_limit_mb=6000:detect_stack_use_after_return=0"
DEFINES = "-D_GLIBCXX_ASSERTIONS -D_GLIBCXX_SANITIZE_VECTOR"
FLAGS = f"-O1 -gline-tables-only -w -Wno-c++11-narrowing {DEFINES} -include {HERE / 'planted.h'}"


def output_of(*command: object, **options: object) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def without_overlaps(chosen: list[Mutant]) -> list[Mutant]:
    """Mutants may be nested or disjoint. If two overlap otherwise, the second is left out."""

    def overlap(a: Mutant, b: Mutant) -> bool:
        return a.file == b.file and (a.begin < b.begin < a.end < b.end or b.begin < a.begin < b.end < a.end)

    kept: list[Mutant] = []
    for mutant in chosen:
        if not any(overlap(mutant, other) for other in kept):
            kept.append(mutant)
    return kept


def unique_names(found: list[Mutant]) -> dict[Mutant, str]:
    """The names of mutants in equivalent.txt. Equal names in a function are numbered from the second on."""
    counts: collections.Counter[str] = collections.Counter()
    names = {}
    for mutant in found:
        counts[mutant.name] += 1
        n = counts[mutant.name]
        names[mutant] = mutant.name if n == 1 else f"{mutant.name} #{n}"
    return names


class Work:
    """The folder of a run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.build = folder / "build"
        self.state_file = folder / "state.json"
        folder.mkdir(parents=True, exist_ok=True)

    def copy_sources(self) -> None:
        listed = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY)
        for name in filter(None, listed.split("\0")):
            path = REPOSITORY / name
            if path.is_file() and not name.startswith("src/"):
                put(self.source / name, path.read_bytes())

    def configure(self) -> None:
        options = {
            "CMAKE_BUILD_TYPE": "Debug",
            "CMAKE_C_COMPILER": "clang",
            "CMAKE_CXX_COMPILER": COMPILER,
            "CMAKE_C_FLAGS_DEBUG": "-O1 -w",
            "CMAKE_CXX_FLAGS_DEBUG": FLAGS,
            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
            "PER_SANITIZE": "address",
            **dict.fromkeys(("PER_CUDA", "PER_BUILD_BENCH", "PER_WERROR", "PER_INSTALL"), "OFF"),
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        output_of("cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", *defined)

    def commands(self) -> dict[pathlib.Path, list[str]]:
        """The options with which libclang parses each source of the library, without mutants."""
        found = {}
        said = output_of(COMPILER, "-E", "-x", "c++", "-v", os.devnull, stderr=subprocess.STDOUT)
        system = [f"-isystem{folder}" for folder in re.findall(r"^ (/\S+)$", said, re.MULTILINE)]
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            path = pathlib.Path(entry["file"])
            if "per_objects.dir" not in entry["command"] or path.name == "planted.cpp":
                continue
            words = shlex.split(entry["command"].replace(str(self.source), str(REPOSITORY)))[1:]
            kept = [w for w in words if w.startswith(("-D", "-I", "-std", "-m"))]
            options = [*kept, "-nostdinc", "-nostdinc++", *system, "-x", "c++"]
            found[REPOSITORY / path.relative_to(self.source)] = options
        return found

    def find(self) -> list[Mutant]:
        """The mutants of the current sources; parsing takes a minute."""
        digest = hashlib.sha256()
        for path in sorted([*(REPOSITORY / "src").rglob("*"), HERE / "mutants.py"]):
            if path.is_file():
                digest.update(path.read_bytes())
        kept = self.folder / f"found-{digest.hexdigest()[:16]}.pickle"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(mutants.find(REPOSITORY, ROOMS, self.commands())))
        return pickle.loads(kept.read_bytes())

    def plant(self, chosen: dict[int, Mutant]) -> None:
        by_file: dict[str, dict[int, Mutant]] = {}
        for number, mutant in chosen.items():
            by_file.setdefault(mutant.file, {})[number] = mutant
        for path in (REPOSITORY / "src").rglob("*"):
            if path.is_file():
                name = str(path.relative_to(REPOSITORY))
                text = path.read_text()
                put(self.source / name, mutants.planted_text(text, by_file.get(name, {})).encode())
        put(self.source / "src/rows/planted.cpp", (HERE / "planted.cpp").read_bytes())

    def compile(self) -> set[tuple[str, int]]:
        """The positions of errors, as files and lines."""
        known = output_of("ninja", "-C", self.build, "-t", "targets", "all")
        targets = re.findall(r"^(tests/(?:c|cpp)_\w+): ", known, re.MULTILINE)
        targets.append("libper.so")
        result = subprocess.run(["ninja", "-C", self.build, "-k", "0", *targets], capture_output=True, text=True)
        if result.returncode == 0:
            return set()
        pattern = re.compile(r"^\S*?/source/(src/\S+?):(\d+):\d+: (?:fatal )?error", re.MULTILINE)
        places = {(file, int(line)) for file, line in pattern.findall(result.stdout)}
        if not places:
            raise SystemExit(result.stdout[-4000:])
        return places

    def tests(self) -> dict[str, dict]:
        shown = output_of("ctest", "--test-dir", self.build, "--show-only=json-v1")
        found = {}
        for test in json.loads(shown)["tests"]:
            if not SUITES.match(test["name"]) or LEFT_OUT.search(test["name"]) or "command" not in test:
                continue
            properties = {p["name"]: p["value"] for p in test["properties"]}
            environment = dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))
            found[test["name"]] = {"command": test["command"], "environment": environment}
        return {**found, **self.tests_in_python()}

    def tests_in_python(self) -> dict[str, dict]:
        runtime = output_of(COMPILER, "--print-file-name=libclang_rt.asan-x86_64.so").strip()
        environment = {
            "LIBPER_PATH": str(self.build / "libper.so"),
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": f"{ASAN_OPTIONS}:detect_leaks=0",  # Python leaks
        }
        pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        bad_arguments = [sys.executable, str(REPOSITORY / "tests/abi/bad_arguments.py"), str(self.build / "libper.so")]
        return {
            f"python.{path.stem}": {"command": [*pytest, str(path)], "environment": environment}
            for path in sorted((REPOSITORY / "bindings/python/tests").glob("test_*.py"))
            if not PYTHON_LEFT_OUT.search(path.stem)
        } | {"abi.bad_arguments": {"command": bad_arguments, "environment": environment}}


def put(path: pathlib.Path, content: bytes) -> None:
    """Writes a file unless it has this content, which avoids rebuilding."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def run_test(test: dict, limit_s: float, cpu_limit_s: float, **environment: str) -> tuple[int | None, str, float]:
    """The exit status or None if it did not end, its output, and its CPU time."""
    command = list(test["command"])
    if "/cpp_" in command[0]:
        command.append("--gtest_fail_fast")
    options = {"ASAN_OPTIONS": ASAN_OPTIONS}
    with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder) / "printed", "w+b") as printed:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **options, **test["environment"], **environment, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            process_group=0,
        )
        cpu_limit = math.ceil(cpu_limit_s)
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_limit, cpu_limit))
        end = time.monotonic() + limit_s
        pid = 0
        while pid == 0 and time.monotonic() < end:
            time.sleep(0.005)
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        if pid == 0:
            _, _, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status) if pid != 0 else -signal.SIGKILL
        is_over = pid != 0 and process.returncode not in (-signal.SIGKILL, -signal.SIGXCPU)
        printed.seek(0)
        said = printed.read()[:200_000].decode(errors="replace")
        return process.returncode if is_over else None, said, usage.ru_utime + usage.ru_stime


def why(status: int | None, printed: str) -> str:
    if status is None:
        return "does not end"
    lines = printed.splitlines()
    said = [line for line in lines if "ERROR: AddressSanitizer" in line or "runtime error:" in line]
    failed = [line for line in lines if line.startswith("[  FAILED  ]")] or lines[-1:]
    return (said or failed or [f"exits with {status}"])[0][:160]


def measure(tests: dict[str, dict], n_mutants: int, jobs: int) -> None:
    """Runs each test without a mutant, to measure its time and record the mutants that it reaches."""

    def one(name: str) -> None:
        test = tests[name]
        if "seconds" in test:
            return
        with tempfile.NamedTemporaryFile() as reached:
            begin = time.monotonic()
            status, printed, test["cpu_seconds"] = run_test(test, 900, 600, PER_REACHED=reached.name)
            test["seconds"] = time.monotonic() - begin
            if status != 0:
                print(f"{name} fails without a mutant and is left out: {why(status, printed)}", flush=True)
                test["reaches"] = []
                return
            marks = pathlib.Path(reached.name).read_bytes()[:n_mutants]
            test["reaches"] = [number for number, mark in enumerate(marks) if mark]

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, tests))


class Trial:
    """Runs mutants against the tests that reach them. `outcomes` is by name; save() stores them."""

    def __init__(
        self,
        chosen: dict[int, Mutant],
        names: dict[int, str],
        tests: dict[str, dict],
        outcomes: dict[str, dict],
        save: Callable[[], None],
    ) -> None:
        self.chosen, self.names, self.tests, self.outcomes, self.save = chosen, names, tests, outcomes, save
        self.kills: collections.Counter[tuple[str, str]] = collections.Counter()  # by file and test
        self.lock = threading.Lock()
        self.saved_at = time.monotonic()
        for number in chosen:
            outcome = "survived" if self.reaching(number) else "not reached"
            outcomes.setdefault(names[number], {"outcome": outcome, "by": "", "how": "", "met": []})

    def reaching(self, number: int) -> list[str]:
        is_kernel = self.chosen[number].file.startswith("src/cpu/kernels/")  # only kernels depend on PER_ISA
        return [
            name
            for name, test in self.tests.items()
            if number in test["reached"] and (is_kernel or "PER_ISA" not in test["environment"])
        ]

    def is_left(self, number: int, test: str) -> bool:
        outcome = self.outcomes[self.names[number]]
        return outcome["outcome"] == "survived" and test not in outcome["met"]

    def how_fails(self, test: str, numbers: list[int]) -> str:
        """The reason of the failure with these mutants active, or "" if the test passes."""
        of = self.tests[test]
        limits = 60 + 10 * of["seconds"], 5 + 10 * of["cpu_seconds"]
        status, printed, _ = run_test(of, *limits, PER_MUTANT=",".join(map(str, numbers)))
        return why(status, printed) if status != 0 else ""

    def note(self, number: int, test: str, how: str) -> None:
        with self.lock:
            outcome = self.outcomes[self.names[number]]
            outcome["met"].append(test)
            if how and outcome["outcome"] != "killed":
                outcome.update(outcome="killed", by=test, how=how)
                self.kills[self.chosen[number].file, test] += 1
                print(f"{number} killed: {self.names[number]} {test} {how}", flush=True)
            if time.monotonic() > self.saved_at + SAVE_EVERY_S:
                self.save()
                self.saved_at = time.monotonic()

    def meet_closest(self, number: int) -> None:
        def distance(name: str) -> float:
            """Tests that reach few mutants, or have killed neighbours of this one, are close."""
            test = self.tests[name]
            return test["cpu_seconds"] * len(test["reached"]) / (1 + self.kills[self.chosen[number].file, name])

        for name in sorted(self.reaching(number), key=distance)[:N_CLOSEST]:
            if self.is_left(number, name):
                self.note(number, name, self.how_fails(name, [number]))

    def meet_many(self, test: str) -> None:
        left = [number for number in self.chosen if test in self.reaching(number) and self.is_left(number, test)]
        killed = dict(self.killed_among(test, left))
        for number in left:
            self.note(number, test, killed.get(number, ""))

    def killed_among(self, test: str, numbers: list[int]) -> Iterator[tuple[int, str]]:
        how = self.how_fails(test, numbers) if numbers else ""
        if not how:
            return
        if len(numbers) == 1:
            yield numbers[0], how
            return
        half = len(numbers) // 2
        yield from self.killed_among(test, numbers[:half])
        yield from self.killed_among(test, numbers[half:])

    def run(self, jobs: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.meet_closest, self.chosen))
        print(f"{time.strftime('%H:%M:%S')} the others meet all tests", flush=True)
        by_time = sorted(self.tests, key=lambda name: self.tests[name].get("cpu_seconds", 0))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.meet_many, by_time))
        self.save()


def equivalents() -> set[str]:
    """The names of mutants that no test can see; see equivalent.txt."""
    lines = (HERE / "equivalent.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith(("#", "    "))}


def build(work: Work, by_number: dict[int, Mutant], names: dict[int, str], uncompiled: set[str]) -> None:
    """Builds the tests without the mutants that do not compile, whose names it adds to `uncompiled`."""
    while True:
        work.plant({number: mutant for number, mutant in by_number.items() if names[number] not in uncompiled})
        places = work.compile()
        if not places:
            return
        for number, mutant in by_number.items():
            last = mutant.line + on_lines(mutant)
            if any(file == mutant.file and mutant.line <= line <= last for file, line in places):
                uncompiled.add(names[number])
        print(f"{len(uncompiled)} do not compile", flush=True)


def report(names: dict[int, str], outcomes: dict[str, dict], n_uncompiled: int) -> bool:
    """Prints the mutants that no test catches, and the totals. True if all are killed."""
    known = equivalents()
    by_outcome: dict[str, list[str]] = {"killed": [], "survived": [], "not reached": [], "equivalent": []}
    for name in names.values():
        if name in outcomes:
            outcome = outcomes[name]["outcome"]
            by_outcome["equivalent" if outcome != "killed" and name in known else outcome].append(name)
    for outcome in ("survived", "not reached"):
        for name in by_outcome[outcome]:
            print(f"{outcome}: {name}")
    killed = len(by_outcome["killed"])
    counted = killed + len(by_outcome["survived"]) + len(by_outcome["not reached"])
    print(
        f"mutants: {len(names)}, of which {n_uncompiled} do not compile and {len(by_outcome['equivalent'])} are "
        f"equivalent; {killed} of {counted} killed, {100 * killed / max(counted, 1):.1f} %"
    )
    return killed == counted > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--mutants", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    work = Work(arguments.work.resolve())
    state = json.loads(work.state_file.read_text()) if work.state_file.exists() else {}

    work.copy_sources()
    print(time.strftime("%H:%M:%S"), flush=True)
    if not (work.build / "build.ninja").exists():
        work.plant({})
    work.configure()
    found = work.find()
    sample = random.Random(arguments.seed).sample(found, min(arguments.mutants, len(found)))
    named = [m for m in found if arguments.also and re.search(arguments.also, m.name) and m not in sample]
    chosen = without_overlaps(sample + named)
    print(f"{len(found)} places in {', '.join(ROOMS)}; {len(chosen)} mutants, seed {arguments.seed}", flush=True)
    uncompiled = set(state.get("uncompiled", []))
    by_number = dict(enumerate(chosen))
    names = unique_names(found)
    names = {number: names[mutant] for number, mutant in by_number.items()}
    if not arguments.list:
        build(work, by_number, names, uncompiled)
    tests = work.tests()
    for name, test in tests.items():
        test.update(state.get("tests", {}).get(name, {}))
    outcomes = state.get("outcomes", {})

    def save() -> None:
        of_tests = ("seconds", "cpu_seconds", "reaches")
        kept = {name: {k: t[k] for k in of_tests if k in t} for name, t in tests.items()}
        new = work.state_file.with_suffix(".new")
        new.write_text(json.dumps({"uncompiled": sorted(uncompiled), "tests": kept, "outcomes": outcomes}))
        new.replace(work.state_file)

    if not arguments.list:
        measure(tests, len(chosen), arguments.jobs)
        save()
        for test in tests.values():
            test["reached"] = set(test["reaches"])
        if arguments.again:
            for name in [name for name, outcome in outcomes.items() if outcome["outcome"] != "killed"]:
                del outcomes[name]
        due = {number: mutant for number, mutant in by_number.items() if names[number] not in uncompiled}
        Trial(due, names, tests, outcomes, save).run(arguments.jobs)

    return 0 if report(names, outcomes, len(uncompiled)) else 1


def on_lines(mutant: Mutant) -> int:
    return (REPOSITORY / mutant.file).read_bytes().count(b"\n", mutant.begin, mutant.end)


if __name__ == "__main__":
    sys.exit(main())
