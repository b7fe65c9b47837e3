#!/usr/bin/env python3
"""Breaks copies of per.h, libper.map and libper.so, each in one way: a gate turns red. Unbroken copies stay green.

The libraries are stubs in which only the _init functions work.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import tempfile
import unittest
from typing import Any

import gates
from describe import HEADER, golden_path, parts_of, read_interface, sizes_in, text_of


def body(name: str) -> str:
    if not name.endswith("_init"):
        return "__builtin_trap();"
    struct = name.removesuffix("_init")
    variable = struct.removeprefix("per_").rpartition("_")[2]
    sizes = sizes_in(golden_path(read_interface(HEADER)).read_text())[struct]
    unknown = " && ".join(f"struct_size != {size}" for size in sizes)
    return f"if ({unknown}) return 1; {variable}->struct_size = struct_size; return 0;"


class Broken(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def header_with(self, *replacements: tuple[str, str]) -> pathlib.Path:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        header = folder / HEADER.name
        shutil.copytree(HEADER.with_suffix(""), header.with_suffix(""))
        shutil.copy(HEADER, header)
        for old, new in replacements:
            (part,) = (part for part in (header, *parts_of(header)) if part.read_text().count(old) == 1)
            part.write_text(part.read_text().replace(old, new))
        return header

    def copy_with(self, original: pathlib.Path, old: str, new: str) -> pathlib.Path:
        text = original.read_text()
        self.assertEqual(text.count(old), 1, f"{original.name} does not have '{old}' once")
        path = self.folder / f"broken{original.suffix}"
        path.write_text(text.replace(old, new))
        return path

    def library(self, *flags: str, **options: Any) -> pathlib.Path:
        return gates.stub_library(self.folder, options.pop("header", HEADER), *flags, body=body, **options)

    def object_with(self, code: str) -> pathlib.Path:
        source = self.folder / "object.c"
        source.write_text(code)
        path = self.folder / "object.o"
        subprocess.run(["cc", "-c", str(source), "-o", str(path)], check=True)
        return path

    def assert_red(self, problems: gates.Problems, *words: str) -> None:
        self.assertTrue(problems, "the gate is green")
        for word in words:
            self.assertIn(word, "\n".join(problems))

    def assert_green(self, problems: gates.Problems) -> None:
        self.assertEqual(problems, [])


CAPACITY, SEED = "    int64_t capacity;     /* number of leaves, 1", "    uint64_t seed;        /*"
PARAMETER = "per_replay_raise_max_priority(per_replay* replay, "
ANOTHER_PARAMETER = (f"{PARAMETER}float", f"{PARAMETER}double")
# The gate that sees each broken header, the replacements that break it, and the words that the gate prints.
BROKEN_HEADERS = {
    "swapped option fields": (
        gates.layout,
        [(CAPACITY, "@"), (SEED, CAPACITY), ("@", SEED)],
        ["int64_t capacity", "uint64_t seed"],
    ),
    "swapped option fields of one type": (
        gates.layout,
        [
            ("    double alpha;              /* exponent", "    double beta;               /* exponent"),
            ("    double beta;               /* exponent of weights", "    double alpha;              /* of weights"),
        ],
        ["double alpha", "double beta"],
    ),
    "changed value of an enum": (
        gates.layout,
        [("PER_ERROR_FULL = 4,", "PER_ERROR_FULL = 14,")],
        ["PER_ERROR_FULL = 14"],
    ),
    "changed parameter": (gates.layout, [ANOTHER_PARAMETER], ["double priority"]),
    "another ABI version": (
        gates.layout,
        [("PER_ABI_VERSION = 1 }", "PER_ABI_VERSION = 999 }")],
        ["per_abi_999.txt is missing"],
    ),
    "padding inside": (
        gates.padding,
        [(CAPACITY, f"    int32_t flag;\n{CAPACITY}")],
        ["padding before 'int64_t capacity'"],
    ),
    "padding at the end": (
        gates.padding,
        [("} per_tree_options;", "    int32_t flag;\n} per_tree_options;")],
        ["per_tree_options: padding at its end"],
    ),
    "size that is no multiple of 8": (
        gates.padding,
        [("typedef struct per_tree per_tree;", "typedef struct per_tree { char c[12]; } per_tree;")],
        ["per_tree: 12 bytes"],
    ),
    "not C99": (
        gates.header,
        [("} per_tree_options;", "    struct { int64_t inner; };\n} per_tree_options;")],
        ["-std=c99"],
    ),
    "not C++": (
        gates.header,
        [("per_tree_free(per_tree* tree);", "per_tree_free(per_tree* this);")],
        ["-std=c++20"],
    ),
    "a macro": (
        gates.header,
        [("#define PER_H\n", "#define PER_H\n#define PER_DEFAULT_ALPHA 0.6\n")],
        ["PER_DEFAULT_ALPHA"],
    ),
    "another include": (
        gates.header,
        [("#include <stddef.h>\n", "#include <stddef.h>\n#include <stdbool.h>\n")],
        ["stdbool.h"],
    ),
}


class Header(Broken):
    def test_whole_header_is_green(self) -> None:
        for gate in (gates.layout, gates.padding, gates.header):
            self.assert_green(gate())

    def test_broken_header_is_red(self) -> None:
        for name, (gate, replacements, words) in BROKEN_HEADERS.items():
            with self.subTest(name):
                self.assert_red(gate(self.header_with(*replacements)), *words)


class CppHeader(Broken):
    def with_replaced(self, old: str, new: str) -> pathlib.Path:
        return self.copy_with(gates.CPP_HEADER, old, new)

    def test_whole_header_is_green(self) -> None:
        self.assert_green(gates.cpp_header())

    def test_function_that_is_not_used(self) -> None:
        header = self.with_replaced("check(per_replay_clear(get(), stream));", "/* per_replay_clear() */")
        self.assert_red(gates.cpp_header(header), "per.hpp does not use per_replay_clear")

    def test_header_that_is_not_cpp17(self) -> None:
        header = self.with_replaced(
            "struct Steps {\n", "struct Steps {\n    bool operator==(const Steps&) const = default;\n"
        )
        self.assert_red(gates.cpp_header(header), "gcc -std=c++17", "clang -std=c++17")

    def test_header_that_narrows(self) -> None:
        header = self.with_replaced("return static_cast<int64_t>(size);", "return size;")
        self.assert_red(gates.cpp_header(header), "clang -std=c++20")

    def test_header_that_leans_on_another(self) -> None:
        header = self.with_replaced("#include <functional>\n", "")
        self.assert_red(gates.cpp_header(header), "std::function")


class Library(Broken):
    def map_with(self, old: str, new: str) -> pathlib.Path:
        return self.copy_with(gates.MAP, old, new)

    def test_whole_library_is_green(self) -> None:
        library = self.library()
        self.assert_green(gates.exports(library))
        self.assert_green(gates.needed(library))
        self.assert_green(gates.sizes(library))

    def test_export_that_is_not_in_the_header(self) -> None:
        map_file = self.map_with("    per_version;", "    per_version;\n    per_extra;")
        library = self.library(map_file=map_file, code="void per_extra(void) {}")
        self.assert_red(gates.exports(library), "exported, not in per.h: per_extra@@per_1")

    def test_export_that_is_missing(self) -> None:
        library = self.library(without="per_version")
        self.assert_red(gates.exports(library), "in per.h, not exported: per_version@@per_1")

    def test_function_that_is_not_in_the_map(self) -> None:
        map_file = self.map_with("    per_version;", "")
        self.assert_red(gates.exports(self.library(), map_file=map_file), "not in broken.map: per_version")

    def test_map_with_a_pattern(self) -> None:
        map_file = self.map_with("    per_version;", "    per_*;")
        self.assert_red(gates.exports(self.library(), map_file=map_file), "is not one list of names")

    def test_needed_runtime(self) -> None:
        self.assert_red(gates.needed(self.library("-lstdc++")), "needs libstdc++.so.6")

    def test_glibc_above_the_ceiling(self) -> None:
        library = self.library(code="#include <stdlib.h>\nint per_version_of_libc(void) { return rand(); }")
        self.assert_green(gates.glibc(library))
        self.assert_red(gates.glibc(library, ceiling=(2, 1)), "rand is of GLIBC 2.")

    def test_init_that_takes_any_size(self) -> None:
        library = self.library(
            without="per_tree_options_init",
            code="per_status per_tree_options_init(per_tree_options* o, uint64_t s) { o->struct_size = s; return 0; }",
        )
        self.assert_red(gates.sizes(library), "per_tree_options_init of 31 bytes: status 0, not 1")

    def test_init_that_sets_no_size(self) -> None:
        library = self.library(
            without="per_tree_options_init",
            code="per_status per_tree_options_init(per_tree_options* o, uint64_t s) { return s != sizeof *o; }",
        )
        self.assert_red(gates.sizes(library), "per_tree_options_init: struct_size is 0, not 32")

    def test_init_that_does_not_take_an_earlier_size(self) -> None:
        interface = read_interface(HEADER)
        golden = self.folder / "per_abi.txt"
        golden.write_text(text_of(interface, "struct per_tree_options, 24 bytes (before: 16)\n"))
        self.assertEqual(sizes_in(golden.read_text())["per_tree_options"], [16, 24, 32])
        problems = gates.sizes(self.library(), golden=golden)
        self.assert_red(problems, "_init of 16 bytes: status 1, not 0", "_init of 24 bytes: status 1, not 0")

    def test_versions_that_disagree(self) -> None:
        bodies = 'const char* per_version(void) { return "7.0.0"; } int32_t per_abi_version(void) { return 7; }'
        library = self.folder / "libper.so"
        source = self.folder / "versions.c"
        source.write_text(f'#include "{HEADER}"\n{bodies}\n')
        subprocess.run(["cc", "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
        self.assert_red(gates.versions(library), "CHANGELOG.md", "Project.toml", "PER_ABI_VERSION 1, libper.so 7")

    def test_library_of_another_header_seen_by_abidiff(self) -> None:
        self.assert_green(gates.abidiff(self.library()))
        header = self.header_with(ANOTHER_PARAMETER)
        self.assert_red(gates.abidiff(self.library(header=header)), "per_replay_raise_max_priority")
        header = self.header_with((CAPACITY, f"    int64_t first;\n{CAPACITY}"))
        self.assert_red(gates.abidiff(self.library(header=header)), "per_tree_options")

    def test_library_without_debug_information(self) -> None:
        self.assert_red(gates.abidiff(self.library("-g0")), "has no debug information")

    def test_hot_functions_that_are_not_laid_out(self) -> None:
        names = self.folder / "names.txt"
        names.write_text("# A comment.\nper_version\n")
        self.assert_red(gates.hot(self.library(), names), "no section .text.hot")
        script = self.folder / "layout.ld"
        script.write_text("SECTIONS { .text.hot : { *(.text.per_version) } } INSERT BEFORE .text;")
        library = self.library("-ffunction-sections", f"-Wl,-T,{script}")
        self.assert_green(gates.hot(library, names))
        names.write_text("per_version\nper_renamed\n")
        self.assert_red(gates.hot(library, names), "per_renamed is not in .text.hot")

    def test_constructor(self) -> None:
        self.assert_green(gates.load_time(self.object_with("int x;")))
        path = self.object_with("int x; __attribute__((constructor)) static void start(void) { x = 1; }")
        self.assert_red(gates.load_time(path), "object.o has .init_array")

    def test_ifunc(self) -> None:
        path = self.object_with('static void* f(void) { return 0; } void chosen(void) __attribute__((ifunc("f")));')
        self.assert_red(gates.load_time(path), "the ifunc chosen")


if __name__ == "__main__":
    unittest.main()
