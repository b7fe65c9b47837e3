#!/usr/bin/env python3
"""Translates PTX, the output of nvcc's front end, into C++ that runs on the fibers of tests/simulator.

    translate.py [--counted] FILE.ptx OUTPUT.cpp

Each kernel and each function called by kernels becomes a C++ function whose variables are the PTX registers. An
instruction becomes a call of the function of the same name in ptx.h, which implements it: `mul.hi.u64` is
`mul_hi<U64>()`. An unknown instruction, modifier or operand is an error. With --counted the output records which
instructions have been executed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterator

TYPE = re.compile(r"(?:[busf](?:8|16|32|64)|pred)$")
TYPE_OF_REGISTERS = {"pred": "Pred", "b16": "B16", "b32": "B32", "b64": "B64", "f32": "B32", "f64": "B64"}
SPECIAL_REGISTERS = {
    "%tid.x": "place().thread.x",
    "%ntid.x": "place().block_size.x",
    "%ctaid.x": "place().block.x",
    "%nctaid.x": "place().grid_size.x",
}

# Instructions that read registers and write one, by their names without types. `T` is the instruction's type; other
# operands have the types given here.
OPERANDS_OF_ONE_TYPE = {
    *("add", "sub", "mul", "mul_lo", "mul_hi", "mul_wide", "mad_lo", "mad_hi"),
    *("div", "rem", "min", "max", "neg", "abs", "rcp"),
    *("and", "or", "xor", "not", "popc", "clz", "brev", "bfind_shiftamt", "mov"),
    *(f"setp_{relation}" for relation in ("eq", "ne", "lt", "le", "gt", "ge", "num", "nan")),
    *(f"setp_{relation}" for relation in ("equ", "neu", "ltu", "leu", "gtu", "geu")),
}
OTHER_OPERANDS = {
    "shl": ("T", "u32"),
    "shr": ("T", "u32"),
    "shf_l_wrap": ("T", "T", "u32"),
    "bfe": ("T", "u32", "u32"),
    "bfi": ("T", "T", "u32", "u32"),
    "prmt": ("T", "T", "T"),
    "selp": ("T", "T", "pred"),
}
WITH_CARRY = {"add_cc", "addc", "addc_cc", "sub_cc", "subc", "subc_cc", "mad_lo_cc", "madc_hi", "madc_hi_cc"}
WITH_CARRY |= {"mad_hi_cc", "madc_lo", "madc_lo_cc"}
# Rounding to nearest is C++'s own; ptx.h has rcp_approx as rcp.
ROUNDING = {"rn", "approx"}

SPACES = ("global", "shared", "param")
ATOMICS = ("add", "exch", "max", "min", "and", "or", "cas")
ORDERS = ("relaxed", "acquire", "release", "acq_rel")


class Unknown(Exception):
    """Raised for PTX that this translator does not support."""


@dataclasses.dataclass
class Parameter:
    name: str
    n_bytes: int
    alignment: int


@dataclasses.dataclass
class Function:
    name: str
    is_kernel: bool
    returns: list[Parameter]
    parameters: list[Parameter]
    body: str

    @property
    def declaration(self) -> str:
        if self.is_kernel:
            return f"void {identifier(self.name)}(const unsigned char* parameters)"
        pointers = [f"unsigned char* {identifier(p.name)}" for p in [*self.returns, *self.parameters]]
        return f"void {identifier(self.name)}({', '.join(['const Shared& shared', *pointers])})"


@dataclasses.dataclass
class Module:
    architecture: str
    functions: list[Function]
    n_shared_bytes: dict[str, int]  # by the name of the variable

    def names_reached_from(self, function: Function) -> set[str]:
        """The names in a function, and in the functions that it calls, which may name variables of their callers."""
        functions = {function.name: function for function in self.functions}
        reached: set[str] = set()
        left = [function.name]
        while left:
            if called := functions.get(left.pop()):
                names = set(re.findall(r"\w+", called.body)) - reached
                reached |= names
                left += names
        return reached


def identifier(name: str) -> str:
    """The C++ name for a PTX name."""
    return re.sub(r"\W", "_", name)


def cpp_type(name: str) -> str:
    """The type's name in ptx.h."""
    return name.capitalize()


def host_name(name: str) -> str:
    """The C++ compiler's name for nvcc's `name`: its unnamed namespaces are those of the file."""
    return re.sub(r"\d+_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}", "12_GLOBAL__N_1", name)


def parameters_of(listed: str | None) -> list[Parameter]:
    found = []
    for text in filter(None, (text.strip() for text in (listed or "").split(","))):
        match = re.fullmatch(
            r"\.param (?:\.align (\d+) )?\.[busf](\d+) (?:\.ptr (?:\.align \d+ )?)?(\w+)(?:\[(\d+)\])?", text
        )
        if not match:
            raise Unknown(f"parameter {text}")
        n_bytes = int(match[2]) // 8
        found.append(Parameter(match[3], n_bytes * int(match[4] or 1), int(match[1] or n_bytes)))
    return found


def parse(ptx: str) -> Module:
    ptx = re.sub(r"[ \t\n]+", " ", re.sub(r"//[^\n]*", "", ptx))
    functions = []
    for match in re.finditer(r"\.(entry|func)\b([^;{]*)([;{])", ptx):
        if match[3] == ";":
            continue  # a declaration
        header = re.match(r"\s*(?:\(([^)]*)\))?\s*(\w+)\s*(?:\(([^)]*)\))?", match[2])
        if not header:
            raise Unknown(f"function {match[2]}")
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(ptx[end], 0)
            end += 1
        functions.append(
            Function(
                header[2],
                match[1] == "entry",
                parameters_of(header[1]),
                parameters_of(header[3]),
                ptx[match.end() : end - 1],
            )
        )
    target = re.search(r"\.target sm_(\d+)", ptx)
    if not target:
        raise Unknown("a file without .target")
    shared = {m[1]: int(m[2]) for m in re.finditer(r"\.shared \.align \d+ \.b8 (\w+)\[(\d+)\];", ptx)}
    return Module(target[1], functions, shared)


def statements_of(body: str) -> Iterator[str]:
    """Labels end with a colon; braces around statements are statements."""
    at = 0
    while match := re.compile(r"\s*(?:([{}])|(\$?\w+:)|([^;]+);)").match(body, at):
        yield (match[1] or match[2] or match[3]).strip()
        at = match.end()
    if body[at:].strip():
        raise Unknown(body[at:].strip())


def operands_of(text: str) -> list[str]:
    """The operands of an instruction: the text between commas outside of brackets."""
    return [operand.strip() for operand in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,])+", text)]


class Translator:
    """Translates the body of one function.

    `n_of_blocks` gets the number of instructions of each of its blocks, or is None. A block has no jump but at its end,
    and no label but at its beginning.
    """

    def __init__(self, module: Module, function: Function, n_of_blocks: list[int] | None = None) -> None:
        self.module = module
        self.function = function
        self.n_of_blocks = n_of_blocks
        self.begins_block = True
        # Registers without a percent sign, of inline assembly.
        self.bare_registers: set[str] = set()

    def translate(self) -> Iterator[str]:
        yield f"{self.function.declaration} {{"
        if self.function.is_kernel:
            yield from self.kernel_begins()
        yield "    Pred carry = false;"
        for statement in statements_of(self.function.body):
            try:
                yield "    " + self.statement(statement)
            except (Unknown, ValueError, IndexError, KeyError) as error:
                raise Unknown(f"{self.function.name}: {statement}: {error}") from error
        yield "}"

    def kernel_begins(self) -> Iterator[str]:
        for parameter, offset in zip(self.function.parameters, offsets_of(self.function.parameters), strict=True):
            yield f"    const unsigned char* const {identifier(parameter.name)} = parameters + {offset};"
        names = self.module.n_shared_bytes.keys() & self.module.names_reached_from(self.function)
        if len(names) > 1:
            raise Unknown(f"{self.function.name}: two variables in shared memory, whose places are ptxas's choice")
        if names:
            yield "    static const char key = 0;"
            yield f"    const Shared shared = shared_of_block(&key, {self.module.n_shared_bytes[names.pop()]});"
        else:
            yield "    const Shared shared = {nullptr, 0};"

    def statement(self, text: str) -> str:
        if text in ("{", "}"):
            return text
        if text.endswith(":"):
            self.begins_block = True
            return f"{identifier(text[:-1])}:;"
        if text.startswith("."):
            return self.directive(text)
        return self.count(text) + self.guarded(text)

    def count(self, text: str) -> str:
        """Code before an instruction that records the execution of its block."""
        if self.n_of_blocks is None:
            return ""
        recorded = f"executed[{len(self.n_of_blocks)}] = true; " if self.begins_block else ""
        if self.begins_block:
            self.n_of_blocks.append(0)
        self.n_of_blocks[-1] += 1
        self.begins_block = re.match(r"(@\S+ )?(bra|ret|exit|call)\b", text) is not None
        return recorded

    def guarded(self, text: str) -> str:
        guard = ""
        if match := re.match(r"@(!?)(%p\d+|\w+) (.*)$", text):
            guard, text = f"if ({match[1]}{self.register(match[2])}) ", match[3]
        name, _, operands = text.partition(" ")
        if name == "call.uni":
            return guard + self.call(operands)
        opcode, *modifiers = name.split(".")
        return guard + self.instruction(opcode, modifiers, operands_of(operands))

    def directive(self, text: str) -> str:
        if re.match(r"\.(pragma|shared) ", text):
            return ""
        if match := re.fullmatch(r"\.reg \.(\w+) %(\w+)<(\d+)>", text):
            names = ", ".join(f"{match[2]}{i} = unset" for i in range(int(match[3])))
            return f"{TYPE_OF_REGISTERS[match[1]]} {names};"
        if match := re.fullmatch(r"\.reg \.(\w+) %?(\w+)", text):
            self.bare_registers.add(match[2])
            return f"{TYPE_OF_REGISTERS[match[1]]} {match[2]} = unset;"
        if text.startswith(".param "):
            (parameter,) = parameters_of(text)
            return f"alignas(16) unsigned char {parameter.name}[{parameter.n_bytes}];"
        raise Unknown("directive")

    def register(self, operand: str) -> str:
        if operand.removeprefix("%") in self.bare_registers or re.fullmatch(r"%[a-z]+\d+", operand):
            return operand.removeprefix("%")
        raise Unknown(f"{operand} is no register")

    def bits(self, operand: str) -> str:
        """The bits of a source operand."""
        if operand in SPECIAL_REGISTERS:
            return SPECIAL_REGISTERS[operand]
        if operand.startswith("%") or operand in self.bare_registers:
            return self.register(operand)
        if re.fullmatch(r"0[df][0-9A-F]+", operand):
            return f"B{64 if operand[1] == 'd' else 32}{{0x{operand[2:]}u}}"
        if re.fullmatch(r"-?\d+|0x[0-9A-Fa-f]+U?", operand):
            return f"{int(operand.removesuffix('U'), 0) & (1 << 64) - 1:#x}u"
        if operand in self.module.n_shared_bytes:
            return "B64{0}"  # the only variable there
        if re.fullmatch(r"[A-Za-z_]\w*", operand):
            return f"reinterpret_cast<B64>({identifier(operand)})"
        raise Unknown(f"operand {operand}")

    def read(self, operand: str, type_name: str) -> str:
        return f"as<{cpp_type(type_name)}>({self.bits(operand)})"

    def write(self, operand: str, value: str) -> str:
        return f"static_cast<void>({value});" if operand == "_" else f"put({self.register(operand)}, {value});"

    def memory(self, space: str, operand: str, n_bytes: int) -> str:
        """A pointer to n_bytes of memory that are accessed together."""
        match = re.fullmatch(r"\[\s*(\S+?)\s*(?:\+\s*(-?\d+))?\s*\]", operand)
        if not match:
            raise Unknown(f"address {operand}")
        address = f"{self.bits(match[1])} + {int(match[2] or 0)}"
        return f"in_shared(shared, {address}, {n_bytes})" if space == "shared" else f"in_memory({address}, {n_bytes})"

    def instruction(self, opcode: str, modifiers: list[str], operands: list[str]) -> str:
        special = {
            "ld": self.load,
            "st": self.store,
            "atom": self.atomic,
            "mov": self.move,
            "cvt": self.convert,
            "cvta": self.convert_address,
            "shfl": self.shuffle,
        }
        if opcode in special:
            return special[opcode](modifiers, operands)
        whole = ".".join([opcode, *modifiers])
        if opcode in ("ret", "exit"):
            return "return;"
        if opcode == "bra":
            return f"goto {identifier(operands[0])};"
        if whole == "bar.sync" and operands == ["0"]:
            return "block_barrier();"
        if whole == "bar.warp.sync":
            return f"warp_barrier({self.read(operands[0], 'u32')});"
        if whole == "vote.sync.ballot.b32":
            return self.write(operands[0], f"ballot({self.read(operands[1], 'pred')}, {self.read(operands[2], 'u32')})")
        if opcode == "redux" and modifiers[0] == "sync" and modifiers[2] == "u32":
            lanes = f"{self.read(operands[1], 'u32')}, {self.read(operands[2], 'u32')}"
            return self.write(operands[0], f"redux_{modifiers[1]}({lanes})")
        return self.computation(opcode, modifiers, operands)

    def computation(self, opcode: str, modifiers: list[str], operands: list[str]) -> str:
        type_name = modifiers[-1]
        if not TYPE.match(type_name):
            raise Unknown("no type")
        name = "_".join([opcode, *(word for word in modifiers[:-1] if word not in ROUNDING)])
        if name in OPERANDS_OF_ONE_TYPE:
            types = ["T"] * (len(operands) - 1)
        elif name in WITH_CARRY and type_name[1:] == "32":
            arguments = ", ".join(self.read(operand, "u32") for operand in operands[1:])
            return self.write(operands[0], f"{name}(carry, {arguments})")
        else:
            types = list(OTHER_OPERANDS[name])
        arguments = ", ".join(
            self.read(operand, type_name if operand_type == "T" else operand_type)
            for operand, operand_type in zip(operands[1:], types, strict=True)
        )
        return self.write(operands[0], f"{cpp_name(name)}<{cpp_type(type_name)}>({arguments})")

    def move(self, modifiers: list[str], operands: list[str]) -> str:
        (type_name,) = modifiers
        to, value = operands
        if to.startswith("{"):
            parts = ", ".join(map(self.register, operands_of(to[1:-1])))
            return f"unpack({self.read(value, 'b' + type_name[1:])}, {parts});"
        if value.startswith("{"):
            parts = ", ".join(self.bits(part) for part in operands_of(value[1:-1]))
            return self.write(to, f"pack<B{type_name[1:]}>({parts})")
        return self.write(to, self.read(value, type_name))

    def convert(self, modifiers: list[str], operands: list[str]) -> str:
        *rounding, to, source = modifiers
        name = {(): "cvt", ("rn",): "cvt", ("rzi",): "cvt_rzi", ("rpi",): "cvt_rpi"}[tuple(rounding)]
        return self.write(operands[0], f"{name}<{cpp_type(to)}>({self.read(operands[1], source)})")

    def convert_address(self, modifiers: list[str], operands: list[str]) -> str:
        """Addresses are host addresses, except in shared memory, where they start at 0."""
        address = self.read(operands[1], "u64")
        if modifiers == ["shared", "u64"]:
            address = f"address_of(shared, {address})"
        elif modifiers == ["to", "shared", "u64"]:
            address = f"place_in(shared, {address})"
        elif modifiers not in (["to", "global", "u64"], ["global", "u64"], ["param", "u64"]):
            raise Unknown("space")
        return self.write(operands[0], address)

    def shuffle(self, modifiers: list[str], operands: list[str]) -> str:
        sync, mode, _ = modifiers
        if sync != "sync":
            raise Unknown("shuffle")
        to, _, is_in_range = operands[0].partition("|")
        arguments = ", ".join(self.read(operand, "u32") for operand in operands[1:])
        text = self.write(to, f"shfl_{mode}({arguments}).value")
        if is_in_range and is_in_range != "_":
            text = (
                f"{{ const Shuffled shuffled = shfl_{mode}({arguments}); {self.write(to, 'shuffled.value')} "
                f"{self.write(is_in_range, 'shuffled.is_in_range')} }}"
            )
        return text

    def vector(self, modifiers: list[str], registers: str) -> tuple[str, list[str], str]:
        """The space of a load or store, its registers, and its memory ordering."""
        space = next((word for word in modifiers if word in SPACES), "generic")
        names = operands_of(registers[1:-1]) if registers.startswith("{") else [registers]
        left = [word for word in modifiers[:-1] if word not in (space, f"v{len(names)}")]
        order = {(): "", ("volatile",): "volatile_", ("acquire", "gpu"): "acquire_"}[tuple(left)]
        return space, names, order

    def load(self, modifiers: list[str], operands: list[str]) -> str:
        type_name = modifiers[-1]
        space, registers, order = self.vector(modifiers, operands[0])
        n_bytes = int(type_name[1:]) // 8
        memory = self.memory(space, operands[1], n_bytes * len(registers))
        loads = " ".join(
            self.write(register, f"{order}load<{cpp_type(type_name)}>(at + {i * n_bytes})")
            for i, register in enumerate(registers)
            if register != "_"
        )
        return f"{{ const unsigned char* const at = {memory}; {loads} }}"

    def store(self, modifiers: list[str], operands: list[str]) -> str:
        type_name = modifiers[-1]
        space, registers, order = self.vector(modifiers, operands[1])
        n_bytes = int(type_name[1:]) // 8
        memory = self.memory(space, operands[0], n_bytes * len(registers))
        stores = " ".join(
            f"{order}store<{cpp_type(type_name)}>(at + {i * n_bytes}, {self.read(register, type_name)});"
            for i, register in enumerate(registers)
        )
        return f"{{ unsigned char* const at = {memory}; {stores} }}"

    def atomic(self, modifiers: list[str], operands: list[str]) -> str:
        *words, type_name = modifiers
        space = next((word for word in words if word in SPACES), "generic")
        (what,) = (word for word in words if word in ATOMICS)
        left = [word for word in words if word not in (space, what, "gpu")]
        (order,) = left or ["relaxed"]
        if order not in ORDERS:
            raise Unknown("order")
        values = ", ".join(self.read(operand, type_name) for operand in operands[2:])
        memory = self.memory(space, operands[1], int(type_name[1:]) // 8)
        return self.write(
            operands[0], f"atom_{what}<{cpp_type(type_name)}>({memory}, std::memory_order_{order}, {values})"
        )

    def call(self, text: str) -> str:
        match = re.fullmatch(r"\s*(?:\(\s*(\w+)\s*\)\s*,\s*)?(\w+)\s*(?:,\s*\(([^)]*)\)\s*)?", text)
        if not match:
            raise Unknown("call")
        arguments = ["shared", *filter(None, [match[1]]), *operands_of((match[3] or "").strip())]
        return f"{identifier(match[2])}({', '.join(arguments)});"


def cpp_name(name: str) -> str:
    """Some names are keywords of C++."""
    return f"{name}_" if name in ("and", "or", "xor", "not") else name


def offsets_of(parameters: list[Parameter]) -> list[int]:
    offsets = []
    end = 0
    for parameter in parameters:
        end = -(-end // parameter.alignment) * parameter.alignment
        offsets.append(end)
        end += parameter.n_bytes
    return offsets


def registration(module: Module, kernel: Function) -> str:
    offsets = offsets_of(kernel.parameters)
    n_bytes = offsets[-1] + kernel.parameters[-1].n_bytes if offsets else 0
    name = identifier(kernel.name)
    return (
        f'const Registered registered_{name}({module.architecture}, {{"{host_name(kernel.name)}", {name}, {n_bytes}}});'
    )


def blocks(n_of_blocks: list[int]) -> list[str]:
    n = len(n_of_blocks)
    return [
        f"bool executed[{n}];",
        f"const unsigned n_of_blocks[{n}] = {{{', '.join(map(str, n_of_blocks))}}};",
        f"const Blocks blocks({n}, executed, n_of_blocks);",
    ]


def main() -> int:
    *options, source, output = sys.argv[1:]
    source, output = pathlib.Path(source), pathlib.Path(output)
    n_of_blocks: list[int] | None = [] if options == ["--counted"] else None
    try:
        module = parse(source.read_text())
        # Each file has a namespace, as functions in several files are weak symbols in PTX.
        lines = ['#include "ptx.h"', f"namespace ptx_{source.stem} {{", "using namespace ptx;"]
        lines += [f"static {function.declaration};" for function in module.functions]
        translated = []
        for function in module.functions:
            translated += ["static", *Translator(module, function, n_of_blocks).translate()]
            if function.is_kernel:
                translated.append(registration(module, function))
        lines += (blocks(n_of_blocks) if n_of_blocks else []) + translated
    except Unknown as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 1
    output.write_text("\n".join([*lines, "}"]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
