"""Finds places in C++ sources where a fault can be planted, and plants many of them in one program.

A mutant is a small change of one expression or statement, whose extent Clang's parser finds. Each mutant becomes a
choice at run time, `(PLANTED(7) ? (a <= b) : (a < b))`, so a single build contains all of them, and the environment
selects the active one: none needs a separate compilation.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence

from clang import cindex
from clang.cindex import Cursor, CursorKind

OTHER_OPERATOR = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "+",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "^": "&",
    "+=": "-=",
    "-=": "+=",
    "*=": "+=",
    "/=": "*=",
    "|=": "&=",
    "&=": "|=",
    "^=": "|=",
    "<<=": ">>=",
    ">>=": "<<=",
}
CONDITIONALS = (CursorKind.IF_STMT, CursorKind.WHILE_STMT, CursorKind.CONDITIONAL_OPERATOR)
BODIES = (
    CursorKind.COMPOUND_STMT,
    CursorKind.IF_STMT,
    CursorKind.FOR_STMT,
    CursorKind.WHILE_STMT,
    CursorKind.CXX_FOR_RANGE_STMT,
)
FUNCTIONS = (
    CursorKind.FUNCTION_DECL,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
    CursorKind.DESTRUCTOR,
    CursorKind.FUNCTION_TEMPLATE,
    CursorKind.CONVERSION_FUNCTION,
)
DROPPED = (
    CursorKind.CALL_EXPR,
    CursorKind.UNEXPOSED_EXPR,
    CursorKind.COMPOUND_ASSIGNMENT_OPERATOR,
    CursorKind.UNARY_OPERATOR,
    CursorKind.CXX_THROW_EXPR,
    CursorKind.CXX_DELETE_EXPR,
    CursorKind.BREAK_STMT,
    CursorKind.CONTINUE_STMT,
)
# Evaluated by the compiler.
CONSTANT = (
    CursorKind.STATIC_ASSERT,
    CursorKind.ENUM_CONSTANT_DECL,
    CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
    CursorKind.DECL_REF_EXPR,
    CursorKind.TYPE_REF,
    CursorKind.TYPE_ALIAS_DECL,
)

# Hints to the processor or the system change no result.
HINT = re.compile(r"\b(prefetch\w*|will_need|madvise)$")

Span = tuple[int, int]
Part = str | Span


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str  # relative to the root of the sources
    function: str
    kind: str
    begin: int
    end: int
    line: int
    original: tuple[Part, ...]  # parts of [begin, end), which keep their place; spans may hold other mutants
    planted: tuple[Part, ...]
    is_statement: bool
    text: str  # the change, on one line

    @property
    def name(self) -> str:
        return f"{self.file} {self.function}: {self.text}"


def on_one_line(text: str) -> str:
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def unwrapped(cursor: Cursor) -> Cursor:
    """Skips the implicit conversions."""
    while cursor.kind == CursorKind.UNEXPOSED_EXPR:
        children = list(cursor.get_children())
        if len(children) != 1:
            break
        cursor = children[0]
    return cursor


class Finder:
    """The mutants of one file."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.bytes = text.encode()
        self.found: dict[tuple[int, int, str], Mutant] = {}

    def text(self, span: Span) -> str:
        return self.bytes[span[0] : span[1]].decode()

    def add(
        self,
        kind: str,
        function: str,
        span: Span,
        original: Sequence[Part],
        planted: Sequence[Part],
        *,
        is_statement: bool = False,
    ) -> None:
        if "\n#" in self.text(span):
            return

        def flat(parts: Sequence[Part]) -> str:
            return on_one_line("".join(part if isinstance(part, str) else self.text(part) for part in parts))

        text = f"{flat(original)} -> {flat(planted) or 'nothing'}"
        line = self.bytes.count(b"\n", 0, span[0]) + 1
        mutant = Mutant(self.name, function, kind, *span, line, tuple(original), tuple(planted), is_statement, text)
        self.found.setdefault((*span, text), mutant)

    def visit(self, cursor: Cursor, parent: Cursor, function: str) -> None:
        if cursor.kind in FUNCTIONS:
            function = cursor.spelling.partition("<")[0]
        span = (cursor.extent.start.offset, cursor.extent.end.offset)
        is_call = cursor.kind == CursorKind.CALL_EXPR
        is_hint = HINT.search(function) or (is_call and HINT.search(self.text(span).partition("(")[0]))
        if is_hint or cursor.kind in CONSTANT:
            return
        if cursor.kind == CursorKind.VAR_DECL and re.search(r"\bconstexpr\b", self.text(span)[:200].split("=")[0]):
            return
        children = list(cursor.get_children())
        if function:
            self.visit_statement(cursor, parent, children, span, function)
            self.visit_expression(cursor, children, span, function)
        for child in children:
            is_constant = cursor.kind == CursorKind.CASE_STMT or self.bytes.startswith(b"if constexpr", span[0])
            if is_constant and child == children[0]:
                continue
            self.visit(child, cursor, function)

    def visit_statement(
        self, cursor: Cursor, parent: Cursor, children: list[Cursor], span: Span, function: str
    ) -> None:
        if parent.kind not in BODIES:
            return
        is_assignment = cursor.kind == CursorKind.BINARY_OPERATOR and self.operator(children) == "="
        is_return = cursor.kind == CursorKind.RETURN_STMT and (not children or parent.kind == CursorKind.IF_STMT)
        if not (cursor.kind in DROPPED or is_assignment or is_return):
            return
        end = span[1]
        while self.bytes[end : end + 1].isspace():
            end += 1
        before = self.bytes[: span[0]].rstrip()[-1:]
        if self.bytes[end : end + 1] != b";" or before not in (b";", b"{", b"}", b")", b"e", b":"):
            return  # a condition, or a step of a loop
        if parent.kind == CursorKind.FOR_STMT and list(parent.get_children())[-1] != cursor:
            return
        self.add("dropped statement", function, (span[0], end + 1), [span, ";"], [], is_statement=True)

    def operator(self, operands: list[Cursor]) -> str:
        if len(operands) != 2:
            return ""
        return on_one_line(self.text((operands[0].extent.end.offset, operands[1].extent.start.offset)))

    def visit_expression(self, cursor: Cursor, children: list[Cursor], span: Span, function: str) -> None:
        def of(child: Cursor) -> Span:
            return child.extent.start.offset, child.extent.end.offset

        if cursor.kind in (CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR):
            sign = self.operator(children)
            if sign in OTHER_OPERATOR:
                left, right = map(of, children)
                other = OTHER_OPERATOR[sign]
                self.add("operator", function, span, [left, f" {sign} ", right], [left, f" {other} ", right])
        elif cursor.kind == CursorKind.UNARY_OPERATOR and children:
            sign = on_one_line(self.text((span[0], children[0].extent.start.offset)))
            if sign in ("!", "-"):
                self.add("operator", function, span, [sign, of(children[0])], [of(children[0])])
        elif cursor.kind in (CursorKind.INTEGER_LITERAL, CursorKind.FLOATING_LITERAL):
            if re.fullmatch(r"[0-9][0-9a-fA-FxXpP.+\-uUlL]*", self.text(span)):
                self.add("constant", function, span, [span], [span, " + 1"])
        elif cursor.kind in (CursorKind.CALL_EXPR, CursorKind.INIT_LIST_EXPR):
            arguments = list(cursor.get_arguments()) if cursor.kind == CursorKind.CALL_EXPR else children
            name = re.match(r"std::(min|max)\b", self.text(span))
            if not name:  # the smaller of two is the same in either order
                self.visit_arguments(arguments, span, function)
            else:
                rest = (span[0] + name.end(), span[1])
                other = {"min": "std::max", "max": "std::min"}[name[1]]
                self.add("operator", function, span, [name[0], rest], [other, rest])
        if cursor.kind in CONDITIONALS and children and not self.bytes.startswith(b"if constexpr", span[0]):
            condition = unwrapped(children[0])
            sign = self.operator(list(condition.get_children())) if condition.kind == CursorKind.BINARY_OPERATOR else ""
            is_plain = condition.kind in (CursorKind.CALL_EXPR, CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR)
            if is_plain or sign == "&":
                inner = of(condition)
                self.add("condition", function, inner, [inner], ["!(", inner, ")"])

    def visit_arguments(self, arguments: list[Cursor], span: Span, function: str) -> None:
        for first, second in itertools.pairwise(arguments):
            spans = [(a.extent.start.offset, a.extent.end.offset) for a in (first, second)]
            if not span[0] < spans[0][0] < spans[0][1] < spans[1][0] < spans[1][1] <= span[1]:
                continue
            kinds = {a.type.get_canonical().spelling.removeprefix("const ") for a in (first, second)}
            texts = {self.text(a) for a in spans}
            if len(kinds) > 1 or len(texts) == 1 or "dependent" in "".join(kinds) or "lambda" in "".join(kinds):
                continue
            between = (spans[0][1], spans[1][0])
            whole = (spans[0][0], spans[1][1])
            self.add("swapped arguments", function, whole, [spans[0], between, spans[1]], [spans[1], between, spans[0]])


def walk(root: Cursor, finders: dict[str, Finder], visited: set[str]) -> None:
    for cursor in root.get_children():
        file = str(cursor.location.file)
        if file not in finders:
            continue
        if cursor.kind in (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC):
            walk(cursor, finders, visited)
        else:
            visited.add(file)
            finders[file].visit(cursor, root, "")


def find(root: pathlib.Path, rooms: Sequence[str], commands: dict[pathlib.Path, list[str]]) -> list[Mutant]:
    """The mutants of the sources below root/src/ROOM, in the order of files and places. `commands` compile the
    sources."""
    finders = {}
    for room in rooms:
        for path in sorted((root / "src" / room).rglob("*")):
            if path.suffix in (".cpp", ".h"):
                finders[str(path)] = Finder(str(path.relative_to(root)), path.read_text())
    index = cindex.Index.create()
    left = dict(finders)
    for path, arguments in commands.items():
        unit = index.parse(str(path), arguments)
        errors = [str(said) for said in unit.diagnostics if said.severity >= cindex.Diagnostic.Error]
        if errors:
            raise SystemExit(f"clang cannot read {path}: {errors[0]}")
        visited: set[str] = set()
        walk(unit.cursor, left, visited)
        for name in visited:
            if "/kernels/" not in name:  # which other instruction sets do not use
                del left[name]
    found = [mutant for finder in finders.values() for mutant in finder.found.values()]
    return sorted(found, key=lambda mutant: (mutant.file, mutant.begin, -mutant.end, mutant.text))


def planted_text(text: str, mutants: dict[int, Mutant]) -> str:
    """The text of a file with these numbered mutants of it. Line numbers do not change."""
    source = text.encode()
    edits = sorted(
        mutants.items(), key=lambda entry: (entry[1].begin, -entry[1].end, not entry[1].is_statement, entry[0])
    )

    def render(begin: int, end: int, first: int) -> Iterator[str]:
        position = begin
        for rank in range(first, len(edits)):
            mutant = edits[rank][1]
            if mutant.begin < position or mutant.end > end:
                continue
            yield source[position : mutant.begin].decode()
            yield with_choice(rank)
            position = mutant.end
        yield source[position:end].decode()

    def with_choice(rank: int) -> str:
        number, mutant = edits[rank]

        def side(parts: tuple[Part, ...]) -> str:
            rendered = (part if isinstance(part, str) else "".join(render(*part, rank + 1)) for part in parts)
            return on_one_line("".join(rendered))

        if mutant.is_statement:
            chosen = f"{{ if (!PLANTED({number})) {side(mutant.original)} }}"
        elif mutant.kind == "swapped arguments":
            first, second = side(mutant.original[:1]), side(mutant.original[2:])
            chosen = f"(PLANTED({number}) ? ({second}) : ({first})), (PLANTED({number}) ? ({first}) : ({second}))"
        else:
            chosen = f"(PLANTED({number}) ? ({side(mutant.planted)}) : ({side(mutant.original)}))"
        return chosen + "\n" * source.count(b"\n", mutant.begin, mutant.end)

    return "".join(render(0, len(source), 0))
