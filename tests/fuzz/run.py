#!/usr/bin/env python3
"""Builds the fuzzers and runs them, one per processor at a time.

    run.py [--seconds 60] [--merge] [NAME ...]
    run.py --coverage [NAME ...]

Each starts with its corpus, tests/fuzz/corpus/NAME, and searches for inputs that reach more of the source. A failing
input is left in build-fuzz/found; the fuzzer reproduces the failure if the input is its argument. --merge adds inputs
that reached more to the corpus, and removes those that no longer contribute. --coverage searches for nothing: it
reports how many lines of each room of src the corpora and the found inputs reach (needs llvm-profdata and llvm-cov).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

FUZZ = pathlib.Path(__file__).resolve().parent
REPOSITORY = FUZZ.parent.parent
BUILD = REPOSITORY / "build-fuzz"
FOUND = BUILD / "found"
COVERAGE = REPOSITORY / "build-fuzz-coverage"
# The longest input of each target, in bytes: a checkpoint for "files", otherwise the choices of a walk of a few
# seconds.
LONGEST = {"calls": 600, "devices": 300, "files": 4000, "instruction_sets": 600}
OPTIONS = [
    "-timeout=120",
    "-len_control=0",
    "-rss_limit_mb=4000",
    "-malloc_limit_mb=1000000",
    "-print_final_stats=1",
    "-verbosity=1",
]
# Files may request more memory than exists. Each call of the simulated GPU runs its work at once.
ENVIRONMENT = os.environ | {"ASAN_OPTIONS": "allocator_may_return_null=1", "PER_SIMULATOR_SEED": "0"}


class Outcome(NamedTuple):
    name: str
    passed: bool
    output: str

    def line(self) -> str:
        runs = re.findall(r"number_of_executed_units: (\d+)", self.output)
        edges = re.findall(r"cov: (\d+) ft: (\d+)", self.output)
        reached = f"{edges[-1][0]:>6} edges {edges[-1][1]:>7} features" if edges else ""
        return f"{self.name:18} {runs[-1] if runs else '-':>9} runs {reached}  {'passed' if self.passed else 'FAILED'}"


def build() -> None:
    subprocess.run(["cmake", "--preset", "fuzz"], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "fuzz", "--", "--quiet"], cwd=REPOSITORY, check=True)


def command_of(build: pathlib.Path, name: str, *arguments: object) -> list[str]:
    program = build / "tests" / "fuzz" / f"fuzz_{name}"
    return [str(program), f"-max_len={LONGEST[name]}", *OPTIONS, *map(str, arguments)]


def search(build: pathlib.Path, name: str, seconds: int, found: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Searches for some time for inputs that reach more, or fail. They are stored in `found` and beside it."""
    found.mkdir(parents=True, exist_ok=True)
    options = f"-max_total_time={seconds}", f"-artifact_prefix={found}-"
    command = command_of(build, name, *options, found, FUZZ / "corpus" / name)
    # GoogleTest prints failed checks to stdout.
    return subprocess.run(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def fuzz(name: str, seconds: int) -> Outcome:
    result = search(BUILD, name, seconds, FOUND / name)
    return Outcome(name, result.returncode == 0, result.stdout)


def merge(name: str) -> None:
    merged = BUILD / "merged" / name
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    corpus = FUZZ / "corpus" / name
    command = command_of(BUILD, name, "-merge=1", "-use_counters=0", merged, corpus, FOUND / name)
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    shutil.rmtree(corpus)
    shutil.copytree(merged, corpus)


def lines_reached(profiles: list[pathlib.Path], programs: list[pathlib.Path]) -> dict[str, tuple[int, int]]:
    """The number of lines reached in each room, and their total."""
    merged = COVERAGE / "merged.profdata"
    subprocess.run(["llvm-profdata", "merge", "-sparse", *profiles, "-o", merged], check=True)
    objects = [word for program in programs[1:] for word in ("-object", program)]
    command = ["llvm-cov", "export", "-summary-only", programs[0], *objects, f"-instr-profile={merged}"]
    files = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["data"][0]["files"]
    rooms: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for file in files:
        room = re.search(r"(?:^|/)src/(\w+)/", file["filename"])
        if room:
            rooms[room[1]].update({key: file["summary"]["lines"][key] for key in ("covered", "count")})
    return {room: (lines["covered"], lines["count"]) for room, lines in sorted(rooms.items())}


def print_coverage(names: list[str]) -> None:
    flags = "-fprofile-instr-generate -fcoverage-mapping"
    configure = ["cmake", "--preset", "fuzz", "-B", COVERAGE, "-DPER_SANITIZE=fuzzer-no-link"]
    subprocess.run(
        [*configure, f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", COVERAGE, "--target", "fuzzers", "--", "--quiet"], check=True)
    programs = [COVERAGE / "tests" / "fuzz" / f"fuzz_{name}" for name in names]
    profiles = [COVERAGE / f"{name}.profraw" for name in names]
    table = {}
    for name, program, profile in zip(names, programs, profiles, strict=True):
        inputs = [folder for folder in (FUZZ / "corpus" / name, FOUND / name) if folder.exists()]
        command = command_of(COVERAGE, name, "-runs=0", *inputs)
        subprocess.run(command, env=ENVIRONMENT | {"LLVM_PROFILE_FILE": str(profile)}, check=True, capture_output=True)
        table[name] = lines_reached([profile], [program])
    table["together"] = lines_reached(profiles, programs)
    print(f"{'lines of src/':18}" + "".join(f"{room:>17}" for room in table["together"]))
    for name, rooms in table.items():
        shown = [f"{rooms[room][0]:7} of {rooms[room][1]:5}" if room in rooms else "" for room in table["together"]]
        print(f"{name:18}" + "".join(f"{text:>17}" for text in shown))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz libper.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LONGEST)}; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each (60)")
    parser.add_argument("--merge", action="store_true", help="add what was found to the corpora")
    parser.add_argument("--coverage", action="store_true", help="say which lines are reached")
    arguments = parser.parse_args()
    names = arguments.names or list(LONGEST)
    if arguments.coverage:
        return print_coverage(names)
    build()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda name: fuzz(name, arguments.seconds), names))
    for outcome in outcomes:
        if not outcome.passed:
            print(outcome.output[-6000:], file=sys.stderr)
        elif arguments.merge:
            merge(outcome.name)
    for outcome in outcomes:
        print(outcome.line())
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"fuzzers: {len(outcomes)} fuzzers, {len(outcomes) - passed} failed")
    sys.exit(passed != len(outcomes))


if __name__ == "__main__":
    main()
