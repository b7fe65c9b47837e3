#!/usr/bin/env python3
"""The binary interface of per.h as a text: layouts, values of enums, signatures.

    describe.py            prints it
    describe.py --write    writes it to per_abi_N.txt; N is PER_ABI_VERSION

Names come from the parser, numbers from a compiler: $CC, else cc.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

from pycparser import c_ast, c_generator

ABI = pathlib.Path(__file__).resolve().parent
REPOSITORY = ABI.parent.parent
HEADER = REPOSITORY / "include" / "per.h"

sys.path.insert(0, str(REPOSITORY / "bindings"))
from generate import Declarations, parts_of  # noqa: E402, F401 -- the gates take parts_of from here


class Member(NamedTuple):
    offset: int
    size: int
    text: str


class Struct(NamedTuple):
    name: str
    size: int
    members: list[Member]


class Interface(NamedTuple):
    enums: dict[str, dict[str, int]]
    structs: list[Struct]
    opaque: list[str]
    functions: dict[str, str]


def read_interface(header: pathlib.Path) -> Interface:
    declarations = Declarations(header)
    structs = [(name, fields) for name, fields in declarations.structs if fields]
    expressions = []
    for name, fields in structs:
        expressions.append(f"sizeof({name})")
        for field in fields:
            expressions += [f"offsetof({name}, {field.name})", f"sizeof((({name}*)0)->{field.name})"]
    expressions += [value for _, values in declarations.enums for value, _ in values]
    numbers = iter(compile_numbers(header, expressions))
    described = [
        Struct(name, next(numbers), [Member(next(numbers), next(numbers), c_text(field)) for field in fields])
        for name, fields in structs
    ]
    enums: dict[str, dict[str, int]] = {}  # enums without a name are merged
    for name, values in declarations.enums:
        enums.setdefault(name or "", {}).update({value: next(numbers) for value, _ in values})
    return Interface(
        structs=described,
        enums=enums,
        opaque=[name for name, fields in declarations.structs if not fields],
        functions={function.name: c_text(function) for function in declarations.functions},
    )


def c_text(node: c_ast.Node) -> str:
    return str(c_generator.CGenerator().visit(node))


def compile_numbers(header: pathlib.Path, expressions: list[str]) -> list[int]:
    """Evaluates C expressions with a program that prints them."""
    prints = "\n".join(f'    printf("%lld\\n", (long long)({expression}));' for expression in expressions)
    program = f'#include "{header}"\n#include <stdio.h>\nint main(void) {{\n{prints}\n    return 0;\n}}\n'
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "numbers.c")
        source.write_text(program)
        compiler = os.environ.get("CC", "cc").split()
        subprocess.run([*compiler, "-std=c99", str(source), "-o", f"{folder}/numbers"], check=True)
        output = subprocess.run([f"{folder}/numbers"], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in output.split()]


def abi_version(interface: Interface) -> int:
    return next(values["PER_ABI_VERSION"] for values in interface.enums.values() if "PER_ABI_VERSION" in values)


def sizes_in(text: str) -> dict[str, list[int]]:
    """The sizes that each struct has had, in order, read from a text of text_of()."""
    lines = re.findall(r"^struct (\w+), (\d+) bytes(?: \(before: ([\d, ]+)\))?$", text, re.MULTILINE)
    return {name: [*(int(size) for size in before.split(", ") if size), int(last)] for name, last, before in lines}


def text_of(interface: Interface, golden: str = "") -> str:
    """The interface as a text, with earlier sizes of the structs taken from the golden text."""
    had = sizes_in(golden)
    lines = [
        "# The binary interface. Lines may be added here, at the ends of structs and enums; a change of any other",
        "# needs another PER_ABI_VERSION. Written by tests/abi/describe.py --write.",
    ]
    for name, values in interface.enums.items():
        lines += ["", f"enum {name}".rstrip(), *(f"    {value} = {number}" for value, number in values.items())]
    for struct in interface.structs:
        before = ", ".join(str(size) for size in had.get(struct.name, []) if size < struct.size)
        lines += ["", f"struct {struct.name}, {struct.size} bytes" + (f" (before: {before})" if before else "")]
        lines += [f"    {member.offset:3} + {member.size:2}  {member.text}" for member in struct.members]
    lines += ["", *(f"opaque {name}" for name in interface.opaque)]
    lines += ["", *(f"{signature};" for signature in interface.functions.values())]
    return "\n".join(lines) + "\n"


def golden_path(interface: Interface) -> pathlib.Path:
    return ABI / f"per_abi_{abi_version(interface)}.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Describe the binary interface of per.h.")
    parser.add_argument("--write", action="store_true", help="write the text that the gate compares with")
    arguments = parser.parse_args()
    interface = read_interface(HEADER)
    path = golden_path(interface)
    text = text_of(interface, path.read_text() if path.exists() else "")
    if arguments.write:
        path.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
