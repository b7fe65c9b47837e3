#!/usr/bin/env python3
"""Gates of the binary interface. Each prints the problems that it finds and exits with 1 if there are any.

gates.py layout                 per.h has the layouts, values and signatures of per_abi_N.txt
gates.py padding                no struct has padding; each size is a multiple of 8 bytes
gates.py header                 per.h and each of its parts compile alone, as C99 to C17 and C++98 to C++20
gates.py cpp_header             per.hpp compiles alone and uses every function of per.h
gates.py exports    LIBRARY     exported symbols = functions of per.h = libper.map
gates.py needed     LIBRARY     LIBRARY needs the C library only
gates.py glibc      LIBRARY     no symbol needs a GLIBC above 2.34
gates.py sizes      LIBRARY     every _init accepts the sizes that the struct has had and no other smaller size;
                                bad_arguments.py checks the same of calls that fill a struct
gates.py versions   LIBRARY     LIBRARY, the changelog, the Julia package and per.h have the same versions
gates.py abidiff    LIBRARY     the debug information of LIBRARY has the types and signatures of per.h
gates.py load_time  OBJECT...   no code of the library runs when it is loaded
gates.py hot        LIBRARY     LIBRARY has the functions of cmake/hot_functions.txt, next to each other
gates.py fetches    COMMANDS    compilers keep the prefetches of hot loops; COMMANDS: compile_commands.json
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

from describe import (
    HEADER,
    REPOSITORY,
    abi_version,
    golden_path,
    parts_of,
    read_interface,
    sizes_in,
    text_of,
)

MAP = REPOSITORY / "src" / "libper.map"
CPP_HEADER = HEADER.with_suffix(".hpp")
# The unwinder of static libgcc asks ld-linux, the loader, for frames.
NEEDED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
GLIBC_CEILING = (2, 34)
STATUS_OK, STATUS_INVALID_ARGUMENT = 0, 1
# Patterns of the names of functions that are slow unless they prefetch memory, for each source file.
FETCHING = {
    "src/cpu/kernels/baseline.cpp": (r"::descend\(", r"::apply(_fetching<|\()"),
    "src/cpu/tree/priority_store.cpp": (r"PriorityStore::update\(",),
    "src/cpu/replay/rows_by_id.cpp": (r"RowsById::read_update\(", r"RowsById::priorities\("),
    "src/cpu/replay/gather.cpp": ("write_transitions|TransitionWriter::write",),
}
COMPILERS = ("g++-11", "g++-12", "clang++")

Problems = list[str]


def output_of(*command: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


# ------------------------------------------------------------------------------------------------------- per.h


def layout(header: pathlib.Path = HEADER) -> Problems:
    interface = read_interface(header)
    golden = golden_path(interface)
    if not golden.exists():
        return [f"{golden.name} is missing; see tests/abi/describe.py"]
    text = golden.read_text()
    texts = text.splitlines(), text_of(interface, text).splitlines()
    return list(difflib.unified_diff(*texts, golden.name, "per.h", lineterm="", n=3))


def padding(header: pathlib.Path = HEADER) -> Problems:
    """Rejects padding: older libraries would read garbage from a field that is added in its place."""
    problems = []
    for struct in read_interface(header).structs:
        end = 0
        for member in struct.members:
            if member.offset != end:
                problems.append(f"{struct.name}: padding before '{member.text}'")
            end = member.offset + member.size
        if end != struct.size:
            problems.append(f"{struct.name}: padding at its end")
        if struct.size % 8 != 0:
            problems.append(f"{struct.name}: {struct.size} bytes are no multiple of 8")
    return problems


def header(header: pathlib.Path = HEADER) -> Problems:
    problems = []
    parts = [header, *parts_of(header)]
    with tempfile.TemporaryDirectory() as folder:
        for language, standards in {"c": ["c99", "c17"], "c++": ["c++98", "c++11", "c++20"]}.items():
            for part in parts:
                source = pathlib.Path(folder, "alone.c" if language == "c" else "alone.cpp")
                source.write_text(f'#include "{part}"\n#include "{part}"\n')
                for standard in standards:
                    for compiler in ("gcc", "clang"):
                        problems += compile_alone(compiler, language, standard, source)
    macros = re.findall(r"^#define (\w*per\w*)", preprocessed(header), re.MULTILINE | re.IGNORECASE)
    own = re.compile(r"PER_(API|H|[A-Z_]+_H)")
    problems += [f"per.h defines the macro {macro}" for macro in macros if not own.fullmatch(macro)]
    includes = {name for part in parts for name in re.findall(r"^#include (<.*>)$", part.read_text(), re.MULTILINE)}
    if includes != {"<stddef.h>", "<stdint.h>"}:
        problems.append(f"per.h includes {', '.join(sorted(includes))}")
    return problems


# Instances of templates that per.hpp does not instantiate.
INSTANCES = """
template class per::Span<float>;
template class per::Span<const int64_t>;
template per::Field per::field<int8_t>(std::string, std::vector<int64_t>);
template per::Field& per::Field::set_default<float>(float);
template per::Span<float> per::Batch::field<float>(std::string_view) const;
template per::Ragged<float> per::Batch::ragged<float>(std::string_view) const;
template per::Ragged<float> per::Batch::next_ragged<float>(std::string_view) const;
template per::Hindsight per::ReplayBuffer::hindsight<float>(std::string_view, std::string_view,
                                                            per::Hindsight::Reward<float>) const;
"""


def cpp_header(cpp_header: pathlib.Path = CPP_HEADER) -> Problems:
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.cpp")
        source.write_text(f'#include "{cpp_header}"\n#include "{cpp_header}"\n{INSTANCES}')
        flags = [f"-I{HEADER.parent}", "-Wconversion", "-Wshadow"]
        for standard in ("c++17", "c++20", "c++2b"):
            for compiler in ("gcc", "clang"):
                problems += compile_alone(compiler, "c++", standard, source, *flags)
    code = re.sub(r"/\*.*?\*/", "", cpp_header.read_text(), flags=re.DOTALL)
    functions = read_interface(HEADER).functions
    problems += [f"per.hpp does not use {name}" for name in functions if not re.search(rf"\b{name}\b", code)]
    return problems


def compile_alone(compiler: str, language: str, standard: str, source: pathlib.Path, *more: str) -> Problems:
    flags = ["-x", language, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", *more]
    result = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True)
    return [f"{compiler} -std={standard}:\n{result.stderr}"] if result.returncode != 0 else []


def preprocessed(header: pathlib.Path) -> str:
    return output_of(os.environ.get("CC", "cc"), "-E", "-dD", header)


# --------------------------------------------------------------------------------------------------- libper.so


def exports(library: pathlib.Path, header: pathlib.Path = HEADER, map_file: pathlib.Path = MAP) -> Problems:
    """Every symbol has the version of the interface, so programs never bind to a function of another version."""
    interface = read_interface(header)
    version = f"per_{abi_version(interface)}"
    promised = {version, *(f"{name}@@{version}" for name in interface.functions)}  # nm lists the version itself too
    exported = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", library).splitlines()}
    node = re.fullmatch(r"(\w+) \{\s*global:\s*([\w;\s]*?)\s*local:\s*\*;\s*\};\s*", map_file.read_text())
    if node is None:
        return [f"{map_file.name} is not one list of names and 'local: *'"]
    mapped = {node[1], *(f"{name}@@{node[1]}" for name in re.findall(r"\w+", node[2]))}
    return [
        *(f"in per.h, not exported: {name}" for name in sorted(promised - exported)),
        *(f"exported, not in per.h: {name}" for name in sorted(exported - promised)),
        *(f"in per.h, not in {map_file.name}: {name}" for name in sorted(promised - mapped)),
        *(f"in {map_file.name}, not in per.h: {name}" for name in sorted(mapped - promised)),
    ]


def needed(library: pathlib.Path) -> Problems:
    names = re.findall(r"^\s*NEEDED\s+(\S+)$", output_of("objdump", "-p", library), re.MULTILINE)
    return [f"{library.name} needs {name}" for name in names if name not in NEEDED]


def glibc(library: pathlib.Path, ceiling: tuple[int, int] = GLIBC_CEILING) -> Problems:
    symbols = re.findall(r"\(?GLIBC_(\d+)\.(\d+)[.\d]*\)?\s+(\S+)$", output_of("objdump", "-T", library), re.MULTILINE)
    if not symbols:
        return [f"{library.name}: no version of GLIBC found"]
    above = [(name, major, minor) for major, minor, name in symbols if (int(major), int(minor)) > ceiling]
    return [f"{name} is of GLIBC {major}.{minor}" for name, major, minor in above]


def sizes(library: pathlib.Path, header: pathlib.Path = HEADER, golden: pathlib.Path | None = None) -> Problems:
    """Programs built with any size of the golden text work with every later library."""
    interface = read_interface(header)
    golden = golden or golden_path(interface)
    had = sizes_in(golden.read_text())
    loaded = ctypes.CDLL(str(library))
    problems = []
    for name in (name for name in interface.functions if name.endswith("_init")):
        init = getattr(loaded, name)
        init.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        struct = name.removesuffix("_init")
        if struct not in had:
            problems.append(f"{name}: no struct {struct} in {golden.name}")
            continue
        for size in range(had[struct][-1] + 1):
            buffer = (ctypes.c_uint64 * 1024)()
            expected = STATUS_OK if size in had[struct] else STATUS_INVALID_ARGUMENT
            status = init(buffer, size)
            if status != expected:
                problems.append(f"{name} of {size} bytes: status {status}, not {expected}")
            elif status == STATUS_OK and buffer[0] != size:
                problems.append(f"{name}: struct_size is {buffer[0]}, not {size}")
    return problems


def versions(library: pathlib.Path, repository: pathlib.Path = REPOSITORY) -> Problems:
    loaded = ctypes.CDLL(str(library))
    loaded.per_version.restype = ctypes.c_char_p
    version = loaded.per_version().decode()
    patterns = {"CHANGELOG.md": r"^## (\S+)", "bindings/julia/PER/Project.toml": r'^version = "(.*)"$'}
    problems = []
    for name, pattern in patterns.items():
        found = re.search(pattern, (repository / name).read_text(), re.MULTILINE)
        if found is None or found[1] != version:
            problems.append(f"{name} says {found and found[1]}, {library.name} {version}")
    header_abi = abi_version(read_interface(repository / "include" / "per.h"))
    if loaded.per_abi_version() != header_abi:
        problems.append(f"per.h says PER_ABI_VERSION {header_abi}, {library.name} {loaded.per_abi_version()}")
    return problems


def abidiff(library: pathlib.Path) -> Problems:
    """Compares the debug information of a library with that of a stub in C, compiled from per.h.

    The gate `layout` compares per.h with the golden text, so the library matches the golden text, too.
    """
    if ".debug_info" not in output_of("readelf", "-SW", library):
        return [f"{library.name} has no debug information"]
    with tempfile.TemporaryDirectory() as folder:
        stub = stub_library(pathlib.Path(folder))
        command = ["abidiff", "--no-added-syms", "--exported-interfaces-only", str(stub), str(library)]
        result = subprocess.run(command, capture_output=True, text=True)
    return [] if result.returncode == 0 else [f"abidiff: {result.returncode}", result.stdout + result.stderr]


def stub_library(
    folder: pathlib.Path,
    header: pathlib.Path = HEADER,
    *flags: str,
    body: Callable[[str], str] = lambda _name: "__builtin_trap();",
    map_file: pathlib.Path = MAP,
    code: str = "",
    without: str = "",
) -> pathlib.Path:
    """Builds a library with every function of the header but `without`; body gives the body of each function."""
    interface = read_interface(header)
    functions = {name: text for name, text in interface.functions.items() if name != without}
    bodies = "\n".join(f"{text} {{ {body(name)} }}" for name, text in functions.items())
    source = folder / "library.c"
    source.write_text(f'#include "{header}"\n{bodies}\n{code}\n')
    path = folder / "libper.so"
    links = ["--no-as-needed", f"--version-script={map_file}", f"-soname=libper.so.{abi_version(interface)}"]
    options = ["-g", "-fPIC", "-shared", "-w", *(f"-Wl,{link}" for link in links)]
    subprocess.run(["cc", *options, str(source), *flags, "-o", str(path)], check=True)
    return path


def load_time(*objects: pathlib.Path) -> Problems:
    """Programs pay for the library when they create a handle, not when they load it."""
    problems = []
    for path in objects:
        sections = re.findall(r"\.(?:init_array|ctors)\S*", output_of("readelf", "-SW", path))
        problems += [f"{path.name} has {section}" for section in sections]
        ifuncs = re.findall(r"\bIFUNC\b.*?(\S+)$", output_of("readelf", "-sW", path), re.MULTILINE)
        problems += [f"{path.name} has the ifunc {name}" for name in ifuncs]
    return problems


def hot(library: pathlib.Path, names: pathlib.Path = REPOSITORY / "cmake" / "hot_functions.txt") -> Problems:
    """The functions of a training step are in the section .text.hot.

    A compiler of another version may inline a few, or emit them under other names.
    """
    section = re.search(r"^ *\[ *(\d+)\] \.text\.hot\b", output_of("readelf", "-SW", library), re.MULTILINE)
    if section is None:
        return [f"{library.name} has no section .text.hot"]
    functions = rf"\bFUNC\b +\S+ +\S+ +{section[1]} ([^\s.]+)"
    present = set(re.findall(functions, output_of("readelf", "-sW", library)))
    wanted = {line for line in names.read_text().splitlines() if not line.startswith("#")}
    if len(wanted & present) >= 0.95 * len(wanted):
        return []
    return [f"{name} is not in .text.hot: run bench/hot_functions.py" for name in sorted(wanted - present)]


def fetches(commands: pathlib.Path) -> Problems:
    """Every installed compiler keeps the prefetch instructions of the functions in FETCHING."""
    entries = {entry["file"]: entry for entry in json.loads(commands.read_text()) if "per_objects" in entry["command"]}
    problems = []
    for compiler in filter(shutil.which, COMPILERS):
        for source, functions in FETCHING.items():
            entry = entries[str(REPOSITORY / source)]
            with tempfile.NamedTemporaryFile(suffix=".o") as compiled:
                words = [compiler, *shlex.split(entry["command"])[1:]]
                if compiler == "clang++":  # rejects the option
                    words = [w for w in words if w != "-fno-ipa-modref"]
                words[words.index("-o") + 1] = compiled.name
                subprocess.run([*words, "-g0", "-w"], check=True, cwd=entry["directory"])
                code = output_of("objdump", "-d", "-C", "--no-show-raw-insn", compiled.name)
            bodies = re.split(r"^[0-9a-f]+ <(.*)>:$", code, flags=re.MULTILINE)[1:]
            fetching = [
                name
                for name, body in zip(bodies[::2], bodies[1::2], strict=True)
                if re.search(r"\b(prefetch|prfm)", body)
            ]
            problems += [
                f"{source}, compiled by {compiler}: no prefetch in {function}"
                for function in functions
                if not any(re.search(function, name) for name in fetching)
            ]
    return problems


ALL = (
    *(layout, padding, header, cpp_header),
    *(exports, needed, glibc, sizes, versions, abidiff, hot),
    *(load_time, fetches),
)
GATES: dict[str, Callable[..., Problems]] = {gate.__name__: gate for gate in ALL}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gate", choices=GATES)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    problems = GATES[arguments.gate](*arguments.files)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
