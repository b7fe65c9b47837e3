#!/usr/bin/env python3
"""Plants faults in copies of the CUDA sources and of their PTX, and shows that the tests on the simulated GPU catch
each.

    mutations.py BUILD [--tsan BUILD] [--pitfalls] [--unseen] [--jobs N] [NAME...]

    BUILD       a build folder in which the target `simulated` has been built; --tsan: another one, with ThreadSanitizer
    --pitfalls  only one or two faults of each kind that CUDA kernels of sum trees have had: a minute, for the gate
    --unseen    only faults that were not caught in BUILD since they, their sources or their tests last changed
    NAME        only faults with this in their names

A fault gets a separate test program: the file with the fault, or the files that include it, are compiled with BUILD's
commands. The fault is caught if that program fails or does not end. Exits with 1 if a fault is not caught, does not
compile, or its text is no longer in the sources. Faults and the tests that must catch them are listed in faults.diff. A
fault in PTX is planted in nvcc's output in BUILD, which tests/ptx then translates; it represents a compiler error in a
kernel whose source is right.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "src"
TESTS = REPOSITORY / "tests" / "cuda"
TRANSLATE = REPOSITORY / "tests" / "ptx" / "translate.py"
TIME_LIMIT_S = 60  # of processor time: a busy machine does not count as a catch
WAIT_LIMIT_S = 600

# The source of most kernels that a test runs. A fault in a header is planted there first, and in the other sources only
# if the test does not catch it there.
MAIN_SOURCES = {
    "add_calls_test": "cuda/add/add_kernels.cu",
    "add_test": "cuda/add/add_kernels.cu",
    "drawn_loader_test": "cuda/draw/live_draw.cu",
    "loader_test": "cuda/runtime/device.cu",
    "priorities_test": "cuda/replay/priorities.cu",
    "rated_adds_test": "cuda/add/add_kernels.cu",
    "replay_calls_test": "cuda/replay/priorities.cu",
    "replay_graphs_test": "cuda/draw/live_draw.cu",
    "sample_test": "cuda/draw/live_draw.cu",
    "times_sampled_test": "cuda/add/add_kernels.cu",
    "units_test": "cuda/replay/priorities.cu",
}


@dataclasses.dataclass
class Fault:
    name: str
    file: str
    original: str = ""
    planted: str = ""
    test: str = "tree_model_test"
    is_pitfall: bool = False
    needs_tsan: bool = False
    environment: dict[str, str] = dataclasses.field(default_factory=dict)  # of the test

    def set_option(self, option: str) -> None:
        """Sets the parameters in the brackets of a fault in faults.diff."""
        name, _, value = option.partition("=")
        if value:
            self.environment[name] = value
        elif name == "pitfall":
            self.is_pitfall = True
        elif name == "tsan":
            self.needs_tsan = True
        else:
            self.test = name


@dataclasses.dataclass
class PtxFault(Fault):
    """A fault in the PTX of the last architecture: in one place of a function, or in all of them."""

    # file lacks its suffix; original is a regular expression, as names of registers change with the sources
    function: str = dataclasses.field(default="", kw_only=True)  # part of the mangled name
    place: int | None = dataclasses.field(default=0, kw_only=True)  # which match in the function; None: all

    def set_option(self, option: str) -> None:
        name, _, value = option.partition("=")
        if name == "place":
            self.place = None if value == "all" else int(value)
        else:
            super().set_option(option)

    def plant(self, ptx: str) -> str | None:
        """The file with the fault; None if its text is not there."""
        for header in re.finditer(r"^\.(?:entry|func)[^;{]*\{", ptx, re.MULTILINE):
            if self.function not in header[0]:
                continue
            end = ptx.index("\n}", header.end())
            body = ptx[header.end() : end]
            found = list(re.finditer(self.original, body))
            chosen = found if self.place is None else found[self.place :][:1]
            for match in reversed(chosen):
                body = body[: match.start()] + match.expand(self.planted) + body[match.end() :]
            return ptx[: header.end()] + body + ptx[end:] if chosen else None
        return None


def read_faults(text: str) -> list[Fault]:
    """The faults of a text in the format of faults.diff, whose beginning describes it."""
    faults: list[Fault] = []
    file, function = "", ""
    for line in text.splitlines():
        kind, rest = line[:1], line[1:]
        if line.startswith("=== "):
            file, _, function = line.removeprefix("=== ").partition(" ")
        elif line.startswith("@@ "):
            name, _, options = line.removeprefix("@@ ").removesuffix("]").partition(" [")
            if function:
                faults.append(PtxFault(name, file.removesuffix(".ptx"), function=function))
            else:
                faults.append(Fault(name, file))
            for option in options.split(", ") if options else []:
                faults[-1].set_option(option)
        elif kind in (" ", "-", "+"):
            fault = faults[-1]
            if kind != "+":
                fault.original += rest + "\n"
            if kind != "-":
                fault.planted += rest + "\n"
    for fault in faults:
        fault.original = fault.original.removesuffix("\n")
        fault.planted = fault.planted.removesuffix("\n")
    return faults


ALL_FAULTS = read_faults((TESTS / "faults.diff").read_text())
FAULTS = [fault for fault in ALL_FAULTS if not isinstance(fault, PtxFault)]
PTX_FAULTS = [fault for fault in ALL_FAULTS if isinstance(fault, PtxFault)]


class Build:
    """The compile and link commands of the tests, for sources with a fault."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.commands = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            if "per_simulated_objects" in entry["command"] or "/per_ptx_" in entry["command"]:
                self.commands[pathlib.Path(entry["file"])] = shlex.split(entry["command"])

    def link_command(self, target: str) -> list[str]:
        listed = subprocess.run(
            ["ninja", "-C", str(self.folder), "-t", "commands", "-s", target],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return shlex.split(listed.strip().splitlines()[-1].removeprefix(": && ").removesuffix(" && :"))

    @functools.cached_property
    def ptx_folder(self) -> pathlib.Path | None:
        """The PTX of the last architecture that this build translates; None without nvcc."""
        libraries = (self.folder / "tests" / "ptx").glob("libper_ptx_*.so")
        architectures = [int(library.stem.removeprefix("libper_ptx_")) for library in libraries]
        return self.folder / "tests" / "ptx" / str(max(architectures)) if architectures else None

    def ptx_of(self, fault: PtxFault) -> pathlib.Path:
        assert self.ptx_folder is not None
        return self.ptx_folder / f"{fault.file}.ptx"

    def run(self, fault: Fault, work: pathlib.Path) -> str:
        """How the test failed, or "" if it passed."""
        return self.run_ptx(fault, work) if isinstance(fault, PtxFault) else self.run_source(fault, work)

    def run_ptx(self, fault: PtxFault, work: pathlib.Path) -> str:
        original = self.ptx_of(fault)
        planted = fault.plant(original.read_text())
        assert planted is not None
        ptx, translated, target = (work / f"{fault.file}.{suffix}" for suffix in ("ptx", "cpp", "o"))
        library = work / "kernels.so"
        ptx.write_text(planted)
        subprocess.run([sys.executable, TRANSLATE, ptx, translated], check=True, capture_output=True)
        source = original.with_suffix(".cpp")
        compiler = self.commands[source]
        built = compiler[compiler.index("-o") + 1]
        replaced = {str(source): str(translated), built: str(target)}
        command = [replaced.get(word, word) for word in compiler]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        link = self.link_command(f"tests/ptx/libper_ptx_{original.parent.name}.so")
        command = [replaced.get(word, word) for word in link]
        command[command.index("-o") + 1] = str(library)
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        program = self.folder / "tests" / "simulator" / f"cuda_{fault.test}"
        return self.run_test(program, {**fault.environment, "PER_SIMULATOR_KERNELS": str(library)})

    def run_source(self, fault: Fault, work: pathlib.Path) -> str:
        shutil.copytree(SOURCES / "cuda", work / "src" / "cuda")
        path = work / "src" / fault.file
        path.write_text(path.read_text().replace(fault.original, fault.planted, 1))
        sources = sources_of(fault)
        main = SOURCES / MAIN_SOURCES.get(fault.test, fault.file)
        recompiled: dict[str, str] = {}
        if main in sources:
            sources.remove(main)
            self.compile(main, work, recompiled)
            if seen := self.run_linked(fault, work, recompiled):
                return seen
        for source in sources:
            self.compile(source, work, recompiled)
        return self.run_linked(fault, work, recompiled) if sources else ""

    def compile(self, source: pathlib.Path, work: pathlib.Path, recompiled: dict[str, str]) -> None:
        command = self.commands[source]
        built = command[command.index("-o") + 1]
        target = work / f"{source.name}.o"
        copy = work / "src" / source.relative_to(SOURCES)
        changed = [str(copy) if word == str(source) else word for word in command]
        changed[changed.index("-o") + 1] = str(target)
        # Headers with the fault come before those without.
        changed[1:1] = [f"-I{work / 'src'}"]
        changed += ["-w", "-O1", "-g0"]  # a variable that only the fault leaves unused must not count as a catch
        subprocess.run(changed, cwd=self.folder, check=True, capture_output=True)
        recompiled[built] = str(target)

    def run_linked(self, fault: Fault, work: pathlib.Path, recompiled: dict[str, str]) -> str:
        program = work / "program"
        # The linker takes the first of several copies of a function: objects with the fault come before the others.
        link = [word for word in self.link_command(f"tests/simulator/cuda_{fault.test}") if word not in recompiled]
        first = next(i for i, word in enumerate(link) if word.endswith(".o"))
        link[first:first] = recompiled.values()
        link[link.index("-o") + 1] = str(program)
        link.append("-Wl,--strip-debug")
        subprocess.run(link, cwd=self.folder, check=True, capture_output=True)
        return self.run_test(program, fault.environment)

    def run_test(self, program: pathlib.Path, added: dict[str, str]) -> str:
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", **added}
        try:
            result = subprocess.run(
                ["sh", "-c", f'ulimit -c 0; ulimit -t {TIME_LIMIT_S}; exec "$0" --gtest_fail_fast', program],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=WAIT_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return "waits for ever"
        if result.returncode == 0:
            return ""
        if result.returncode == -signal.SIGXCPU:
            return "does not end"
        printed = (result.stdout + result.stderr).splitlines()
        said = [line for line in printed if "simulator:" in line or "WARNING: ThreadSanitizer" in line]
        failed = [line for line in printed if line.startswith("[  FAILED  ]")]
        return (said or failed or [f"exits with {result.returncode}"])[0]


@functools.cache
def with_headers(path: pathlib.Path) -> set[pathlib.Path]:
    """A source, and all headers of the library and of its tests that it includes, directly or indirectly."""
    found = {path}
    left = [path]
    while left:
        for name in re.findall(r'^#include "(.+)"$', left.pop().read_text(), re.MULTILINE):
            for header in (SOURCES / name, TESTS / name):
                if header not in found and header.exists():
                    found.add(header)
                    left.append(header)
    return found


def sources_of(fault: Fault) -> list[pathlib.Path]:
    """The sources to compile. A test of the tree runs no kernels but those of the tree's own files."""
    found = []
    for source in sorted((SOURCES / "cuda").rglob("*.cu")):
        is_run = not fault.test.startswith("tree_") or source.name.startswith("tree_")
        if source == SOURCES / fault.file or (is_run and SOURCES / fault.file in with_headers(source)):
            found.append(source)
    return found


def digest_of(fault: Fault, build: Build) -> str:
    """A digest of the fault, of the sources that it is planted in and of its test."""
    digest = hashlib.sha256(repr(fault).encode())
    read = with_headers(TESTS / f"{fault.test}.cpp")
    if isinstance(fault, PtxFault):
        read = read | {TRANSLATE, TRANSLATE.with_name("ptx.h"), build.ptx_of(fault)}
    else:
        read = read.union(*map(with_headers, sources_of(fault)))
    for path in sorted(read):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class SeenFaults:
    """The faults that this build folder has caught earlier, by name, each with its digest."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.file = build.folder / "faults_seen.json"
        self.digests = json.loads(self.file.read_text()) if self.file.exists() else {}

    def has(self, fault: Fault) -> bool:
        return fault.name in self.digests and self.digests[fault.name] == digest_of(fault, self.build)

    def note(self, fault: Fault, is_caught: bool) -> None:
        self.digests.pop(fault.name, None)
        if is_caught:
            self.digests[fault.name] = digest_of(fault, self.build)
        self.file.write_text(json.dumps(self.digests, indent=1))


def has_place(fault: Fault, build: Build) -> bool:
    if isinstance(fault, PtxFault):
        return fault.plant(build.ptx_of(fault).read_text()) is not None
    return fault.original in (SOURCES / fault.file).read_text()


def outcome(fault: Fault, build: Build) -> tuple[bool, str]:
    """True if the fault was caught, and how."""
    if not has_place(fault, build):
        return False, f"{fault.file} has no longer the text that the fault replaces"
    with tempfile.TemporaryDirectory() as work:
        try:
            seen = build.run(fault, pathlib.Path(work))
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").splitlines()
            return False, next((line for line in lines if "error:" in line), "it does not compile or link")
    return bool(seen), seen or "the test passes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--tsan", type=pathlib.Path)
    parser.add_argument("--pitfalls", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_intermixed_args()
    build = Build(arguments.build.resolve())
    tsan = Build(arguments.tsan.resolve()) if arguments.tsan else None

    seen = SeenFaults(build)

    def is_chosen(fault: Fault) -> bool:
        is_named = not arguments.names or any(name in fault.name for name in arguments.names)
        is_asked = is_named and (fault.is_pitfall or not arguments.pitfalls)
        return is_asked and not (arguments.unseen and seen.has(fault))

    chosen = [fault for fault in ALL_FAULTS if is_chosen(fault)]

    def why_left_out(fault: Fault) -> str:
        if fault.needs_tsan and tsan is None:
            return "needs --tsan"
        chosen_build = tsan if fault.needs_tsan and tsan else build
        return "needs nvcc" if isinstance(fault, PtxFault) and chosen_build.ptx_folder is None else ""

    left_out = [fault for fault in chosen if why_left_out(fault)]
    planted = [fault for fault in chosen if fault not in left_out]
    n_caught = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        builds = [tsan if fault.needs_tsan and tsan else build for fault in planted]
        for fault, (is_caught, how) in zip(planted, pool.map(outcome, planted, builds), strict=True):
            print(f"{'caught' if is_caught else 'MISSED'}: {fault.name}: {how}", flush=True)
            n_caught += is_caught
            seen.note(fault, is_caught)
    for fault in left_out:
        print(f"left out, as it {why_left_out(fault)}: {fault.name}")
    print(f"mutations: {n_caught} of {len(planted)} caught")
    return 0 if n_caught == len(planted) and (planted or arguments.unseen) else 1


if __name__ == "__main__":
    sys.exit(main())
