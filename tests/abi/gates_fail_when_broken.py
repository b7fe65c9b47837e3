#!/usr/bin/env python3
"""Breaks copies of per.h, libper.map and libper.so, each in one way, and sees a gate turn red; whole ones stay green.

The libraries are made here: every function of per.h, with a body that does nothing; only the _init do their work.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import tempfile
import unittest

import gates
from describe import HEADER, golden_path, parts_of, read_interface, sizes_in, text_of, write_xml

FIELDS = "    int64_t capacity;     /* number of leaves, 1", "    uint64_t seed;        /*"


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
        header = self.folder / HEADER.name
        shutil.copytree(HEADER.with_suffix(""), header.with_suffix(""))
        shutil.copy(HEADER, header)
        for old, new in replacements:
            (part,) = (part for part in (header, *parts_of(header)) if part.read_text().count(old) == 1)
            part.write_text(part.read_text().replace(old, new))
        return header

    def map_with(self, old: str, new: str) -> pathlib.Path:
        text = gates.MAP.read_text()
        self.assertEqual(text.count(old), 1, f"'{old}' is not once in libper.map")
        path = self.folder / "broken.map"
        path.write_text(text.replace(old, new))
        return path

    def library(
        self,
        header: pathlib.Path = HEADER,
        *flags: str,
        map_file: pathlib.Path = gates.MAP,
        code: str = "",
        without: str = "",
    ) -> pathlib.Path:
        functions = {name: text for name, text in read_interface(header).functions.items() if name != without}
        bodies = "\n".join(f"{text} {{ {body(name)} }}" for name, text in functions.items())
        source = self.folder / "library.c"
        source.write_text(f'#include "{header}"\n{bodies}\n{code}\n')
        path = self.folder / "libper.so"
        options = ["-g", "-fPIC", "-shared", "-w", "-Wl,--no-as-needed", f"-Wl,--version-script={map_file}"]
        subprocess.run(["cc", *options, str(source), *flags, "-o", str(path)], check=True)
        return path

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


class Layout(Broken):
    def test_whole_header_is_green(self) -> None:
        self.assert_green(gates.layout())
        self.assert_green(gates.padding())
        self.assert_green(gates.header())

    def test_swapped_option_fields(self) -> None:
        capacity, seed = FIELDS
        header = self.header_with((capacity, "@"), (seed, capacity), ("@", seed))
        self.assert_red(gates.layout(header), "int64_t capacity", "uint64_t seed")

    def test_swapped_option_fields_of_one_type(self) -> None:
        header = self.header_with(
            ("    double alpha;              /* exponent", "    double beta;               /* exponent"),
            ("    double beta;               /* exponent of weights", "    double alpha;              /* of weights"),
        )
        self.assert_red(gates.layout(header), "double alpha", "double beta")

    def test_changed_value_of_an_enum(self) -> None:
        header = self.header_with(("PER_ERROR_FULL = 4,", "PER_ERROR_FULL = 14,"))
        self.assert_red(gates.layout(header), "PER_ERROR_FULL = 14")

    def test_changed_parameter(self) -> None:
        header = self.header_with(
            (
                "per_replay_raise_max_priority(per_replay* replay, float",
                "per_replay_raise_max_priority(per_replay* replay, double",
            )
        )
        self.assert_red(gates.layout(header), "double priority")

    def test_another_abi_version(self) -> None:
        header = self.header_with(("PER_ABI_VERSION = 1 }", "PER_ABI_VERSION = 999 }"))
        self.assert_red(gates.layout(header), "per_abi_999.txt is missing")

    def test_padding_inside(self) -> None:
        capacity, _ = FIELDS
        header = self.header_with((capacity, f"    int32_t flag;\n{capacity}"))
        self.assert_red(gates.padding(header), "padding before 'int64_t capacity'")

    def test_padding_at_the_end(self) -> None:
        header = self.header_with(("} per_tree_options;", "    int32_t flag;\n} per_tree_options;"))
        self.assert_red(gates.padding(header), "per_tree_options: padding at its end")

    def test_size_that_is_no_multiple_of_8(self) -> None:
        header = self.header_with(
            ("typedef struct per_tree per_tree;", "typedef struct per_tree { char c[12]; } per_tree;")
        )
        self.assert_red(gates.padding(header), "per_tree: 12 bytes")

    def test_header_that_is_not_c99(self) -> None:
        header = self.header_with(("} per_tree_options;", "    struct { int64_t inner; };\n} per_tree_options;"))
        self.assert_red(gates.header(header), "-std=c99")

    def test_header_that_is_not_cpp(self) -> None:
        header = self.header_with(("per_tree_free(per_tree* tree);", "per_tree_free(per_tree* this);"))
        self.assert_red(gates.header(header), "-std=c++20")

    def test_header_with_a_macro(self) -> None:
        header = self.header_with(("#define PER_H\n", "#define PER_H\n#define PER_DEFAULT_ALPHA 0.6\n"))
        self.assert_red(gates.header(header), "PER_DEFAULT_ALPHA")

    def test_header_that_includes_more(self) -> None:
        header = self.header_with(("#include <stddef.h>\n", "#include <stddef.h>\n#include <stdbool.h>\n"))
        self.assert_red(gates.header(header), "stdbool.h")


class CppHeader(Broken):
    def with_replaced(self, old: str, new: str) -> pathlib.Path:
        text = gates.CPP_HEADER.read_text()
        self.assertEqual(text.count(old), 1, f"'{old}' is not once in per.hpp")
        path = self.folder / "per.hpp"
        path.write_text(text.replace(old, new))
        return path

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
        self.assert_red(gates.needed(self.library(HEADER, "-lstdc++")), "needs libstdc++.so.6")

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

    def test_changed_signature_seen_by_abidiff(self) -> None:
        reference = self.folder / "reference.xml"
        write_xml(self.library(), HEADER, reference)
        self.assert_green(gates.abidiff(self.library(), HEADER, reference))
        header = self.header_with(
            (
                "per_replay_raise_max_priority(per_replay* replay, float",
                "per_replay_raise_max_priority(per_replay* replay, double",
            )
        )
        self.assert_red(gates.abidiff(self.library(header), header, reference), "per_replay_raise_max_priority")

    def test_constructor(self) -> None:
        self.assert_green(gates.load_time(self.object_with("int x;")))
        path = self.object_with("int x; __attribute__((constructor)) static void start(void) { x = 1; }")
        self.assert_red(gates.load_time(path), "object.o has .init_array")

    def test_ifunc(self) -> None:
        path = self.object_with('static void* f(void) { return 0; } void chosen(void) __attribute__((ifunc("f")));')
        self.assert_red(gates.load_time(path), "the ifunc chosen")


if __name__ == "__main__":
    unittest.main()
