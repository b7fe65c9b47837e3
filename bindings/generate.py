#!/usr/bin/env python3
"""Generates the low layers of the bindings from include/per.h.

    generate.py            writes the generated files
    generate.py --check    writes nothing; exits with 1 and a list if one of them is stale

Reads the output of the C preprocessor ($CC, else cc) with pycparser, so that no declaration is copied by hand. Needs
cffi and pycparser.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

import cffi
from pycparser import c_ast, c_generator, c_parser

BINDINGS = pathlib.Path(__file__).resolve().parent
HEADER = BINDINGS.parent / "include" / "per.h"
PYTHON_OUTPUT = BINDINGS / "python" / "per" / "_declarations.py"
FIGURES_OUTPUT = BINDINGS / "python" / "per" / "_figures.py"
JULIA_OUTPUT = BINDINGS / "julia" / "PER" / "src" / "declarations.jl"

NOTICE = "Generated from include/per.h by bindings/generate.py; do not edit."

# The statistics structs, and the names of the base classes of their dataclasses.
STATISTICS = {
    "per_replay_statistics": "Figures",
    "per_channel_statistics": "ChannelFigures",
    "per_shared_loader_statistics": "SharedLoaderFigures",
}

# C's own types with their names in Julia. cffi knows them; pycparser needs declarations.
JULIA_TYPES = {
    "void": "Cvoid",
    "char": "UInt8",
    "float": "Float32",
    "double": "Float64",
    "uint8_t": "UInt8",
    "int32_t": "Int32",
    "int64_t": "Int64",
    "uint64_t": "UInt64",
    "size_t": "Csize_t",
}


def parts_of(header: pathlib.Path) -> list[pathlib.Path]:
    """The headers that per.h includes, in order."""
    return [header.parent / name for name in re.findall(r'^#include "(.*)"$', header.read_text(), re.MULTILINE)]


class Declarations:
    """The enums, structs and functions of a header and its parts, in order."""

    def __init__(self, header: pathlib.Path) -> None:
        syntax = c_parser.CParser().parse(preprocess(header), str(header))
        own = [node for node in syntax.ext if pathlib.Path(node.coord.file).is_relative_to(header.parent)]
        self.enums: list[tuple[str | None, list[tuple[str, int]]]] = []
        self.structs: list[tuple[str, list[c_ast.Decl] | None]] = []
        self.functions: list[c_ast.Decl] = []
        for node in own:
            if isinstance(node, c_ast.Typedef) or isinstance(node.type, c_ast.Enum):
                self._add_type(node)
            elif isinstance(node.type, c_ast.FuncDecl):
                self.functions.append(node)
            else:
                raise SystemExit(f"{node.coord}: neither a type nor a function")
        self.text = "".join(f"{c_generator.CGenerator().visit(node)};\n" for node in own)
        self.layouts = cffi.FFI()
        self.layouts.cdef(self.text)

    def _add_type(self, node: c_ast.Typedef | c_ast.Decl) -> None:
        declared = node.type.type if isinstance(node, c_ast.Typedef) else node.type
        if isinstance(declared, c_ast.Enum):
            self.enums.append((declared.name, enum_values(declared)))
        elif isinstance(declared, c_ast.Struct):
            self.structs.append((declared.name, declared.decls))
        else:
            raise SystemExit(f"{node.coord}: only enums and structs are named by typedefs")


def comments_of(header: pathlib.Path, struct: str) -> dict[str, str]:
    """The comment on each field of a struct, except struct_size; functions have the names that the packages use."""
    text = "".join(part.read_text() for part in parts_of(header))
    (body,) = re.findall(rf"typedef struct {struct} \{{\n(.*?)\n\}} {struct};", text, re.DOTALL)
    lines = re.findall(r"^ *\w+ (\w+);(?: */\*(.*?)\*/)?$", body, re.DOTALL | re.MULTILINE)
    comments = {
        name: re.sub(r"\bper_replay_(\w+\(\))", r"\1", " ".join(comment.split())).replace(
            "n_step_min", "a range for n_step"
        )
        for name, comment in lines
        if name != "struct_size"
    }
    missing = [name for name, comment in comments.items() if not comment]
    if missing:
        raise SystemExit(f"{header.name}: no comment beside {', '.join(missing)} of {struct}")
    return comments


def preprocess(header: pathlib.Path) -> str:
    """The header's text after the C preprocessor, preceded by declarations of C's own types."""
    with tempfile.TemporaryDirectory() as empty_headers:
        for name in ("stddef.h", "stdint.h"):
            pathlib.Path(empty_headers, name).touch()
        command = [
            *os.environ.get("CC", "cc").split(),
            "-E",
            "-nostdinc",
            "-DPER_API=",
            "-I",
            empty_headers,
            str(header),
        ]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    own_types = [name for name in JULIA_TYPES if name.endswith("_t")]
    return '# 1 "stdint.h"\n' + "".join(f"typedef int {name};\n" for name in own_types) + text


def enum_values(enum: c_ast.Enum) -> list[tuple[str, int]]:
    """Names and values of an enum; each value must be a literal number."""
    values = []
    for enumerator in enum.values.enumerators:
        if not isinstance(enumerator.value, c_ast.Constant):
            raise SystemExit(f"{enumerator.coord}: {enumerator.name} needs a number of its own")
        values.append((enumerator.name, int(enumerator.value.value, 0)))
    return values


def python_module(declarations: Declarations) -> str:
    """The module of declarations, which cffi loads without a parser or a compiler."""
    ffi = cffi.FFI()
    ffi.cdef(declarations.text)
    ffi.set_source("per._declarations", None)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "_declarations.py")
        with contextlib.redirect_stdout(None):
            ffi.emit_python_code(str(path))
        lines = path.read_text().splitlines()
    return "\n".join([f"# {NOTICE}", *lines[1:]]) + "\n"


def figures_module(declarations: Declarations) -> str:
    """The bases of per.Statistics and the like: the fields of the structs, documented by the comments of per.h."""
    lines = [
        f"# {NOTICE}",
        '"""What per.h says of the fields of its statistics."""',
        "",
        "import dataclasses",
    ]
    for struct, base in STATISTICS.items():
        layout = dict(declarations.layouts.typeof(struct).fields)
        listed, fields = [], []
        for name, comment in comments_of(HEADER, struct).items():
            kind = "float" if layout[name].type.cname == "double" else "int"
            listed += [f"    {name} : {kind}"]
            listed += textwrap.wrap(comment, 120, initial_indent=" " * 8, subsequent_indent=" " * 8)
            said = textwrap.wrap(f'"""{comment}"""', 120, initial_indent=" " * 4, subsequent_indent=" " * 4)
            fields += [f"    {name}: {kind}", *said]
        lines += [
            "",
            "",
            "@dataclasses.dataclass(frozen=True)",
            f"class {base}:",
            '    """',
            "    Attributes",
            "    ----------",
            *listed,
            '    """',
            "",
            *fields,
        ]
    return "\n".join(lines) + "\n"


def julia_type(node: c_ast.Node, *, parameter: bool) -> str:
    """The Julia type with the layout of a C type. Strings passed to a call are Cstring, which checks and keeps them."""
    if isinstance(node, c_ast.PtrDecl) and isinstance(node.type, c_ast.FuncDecl):
        return "Ptr{Cvoid}"
    if isinstance(node, c_ast.PtrDecl):
        target = julia_type(node.type, parameter=False)
        is_string = isinstance(node.type, c_ast.TypeDecl) and node.type.type.names == ["char"]
        return "Cstring" if parameter and is_string else f"Ptr{{{target}}}"
    if isinstance(node, c_ast.ArrayDecl):
        return f"NTuple{{{int(node.dim.value)}, {julia_type(node.type, parameter=False)}}}"
    if isinstance(node, c_ast.TypeDecl) and isinstance(node.type, c_ast.IdentifierType):
        (name,) = node.type.names
        return JULIA_TYPES.get(name, name)
    raise SystemExit(f"{node.coord}: a type that the Julia layer has no word for")


def julia_function(function: c_ast.Decl) -> list[str]:
    """A function with the same name and arguments that calls the one looked up by bind!()."""
    name = function.name
    parameters = [p for p in (function.type.args.params if function.type.args else []) if p.name is not None]
    names = [p.name for p in parameters]
    types = [julia_type(p.type, parameter=True) for p in parameters]
    result = julia_type(function.type.type, parameter=True)
    type_tuple = f"({', '.join(types)}{',' if len(types) == 1 else ''})"
    return [
        "",
        f"const {name}_pointer = Ref{{Ptr{{Cvoid}}}}(C_NULL)",
        f"{name}({', '.join(names)}) =",
        f"    @gc_safe ccall({', '.join([f'{name}_pointer[]', result, type_tuple, *names])})",
    ]


def julia_struct(declarations: Declarations, name: str, fields: list[c_ast.Decl]) -> list[str]:
    """An isbits struct with the C layout, and the layout as numbers for the tests."""
    layout = declarations.layouts.typeof(name)
    offsets = ", ".join(str(field.offset) for _, field in layout.fields)
    return [
        "",
        f"struct {name}",
        *(f"    {field.name}::{julia_type(field.type, parameter=False)}" for field in fields),
        "end",
        f"const {name}_layout = (size = {declarations.layouts.sizeof(name)}, offsets = ({offsets},))",
    ]


def julia_module(declarations: Declarations) -> str:
    """Constants, structs and a thin wrapper of each function of the header."""
    lines = [
        f"# {NOTICE}",
        "#",
        "# Names are those of per.h. Each function calls the pointer in the Ref of its name, which bind!() fills.",
    ]
    for name, values in declarations.enums:
        lines.append("")
        if name is not None:
            lines.append(f"const {name} = Int32")
        lines += [f"const {value_name} = Int32({value})" for value_name, value in values]
    lines += ["", "const enums = ("]
    for name, values in declarations.enums:
        if name is not None:
            lines += [
                f"    {name} = (",
                *(f"        {value_name} = {value_name}," for value_name, _ in values),
                "    ),",
            ]
    lines.append(")")
    for name, fields in declarations.structs:
        lines += julia_struct(declarations, name, fields) if fields else ["", f"struct {name} end"]
    for function in declarations.functions:
        lines += julia_function(function)
    for struct in STATISTICS:
        lines += ["", f"# What per.h says of the fields of {struct}.", f'const {struct}_docs = raw"""']
        for name, comment in comments_of(HEADER, struct).items():
            lines += textwrap.wrap(f"- `{name}`: {comment}", 120, subsequent_indent="  ")
        lines += ['"""']
    lines += [
        "",
        '"""',
        "    bind!(library)",
        "",
        "Look up every function in a library opened with `Libdl.dlopen`. Throws if it lacks one; then none is changed.",
        '"""',
        "function bind!(library)",
        "    pointers = map(name -> Libdl.dlsym(library, name), function_names)",
        "    foreach((target, pointer) -> target[] = pointer, function_pointers, pointers)",
        "    return nothing",
        "end",
        "",
        "const function_names = [",
        *(f"    :{function.name}," for function in declarations.functions),
        "]",
        "const function_pointers = [",
        *(f"    {function.name}_pointer," for function in declarations.functions),
        "]",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the low layers of the bindings from include/per.h.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is stale")
    check = parser.parse_args().check
    declarations = Declarations(HEADER)
    outputs = {
        PYTHON_OUTPUT: python_module(declarations),
        FIGURES_OUTPUT: figures_module(declarations),
        JULIA_OUTPUT: julia_module(declarations),
    }
    stale = [path for path, text in outputs.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"stale: {path.relative_to(BINDINGS.parent)}; run bindings/generate.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(outputs[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
