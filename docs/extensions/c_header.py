"""The reference of the C interface: the declarations of include/per.h in order, each with its comment.

Paragraphs of a comment are reflowed. An indented block is a list of terms, a program, or text that keeps its lines.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap

from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADERS = [INCLUDE / name for name in re.findall(r'#include "(.*)"', (INCLUDE / "per.h").read_text())]
SECTION = re.compile(r"/\* -{10,} (.+?) \*/")
COMMENT = r"/\*(?P<comment>.*?)\*/\s*"
DECLARATION = re.compile(
    rf"(?:{COMMENT})?(?:"
    r"typedef (?P<kind>enum|struct) (?P<name>\w+) \{(?P<body>.*?)\} (?P=name);"
    r"|typedef struct (?P<opaque>\w+) \w+;"
    r"|enum \{ (?P<constant>\w+) = (?P<value>\d+) \};"
    r"|PER_API (?P<function>[^;]+);)",
    re.DOTALL,
)
# A member or constant with its trailing comment; a function pointer has its parameters in brackets.
MEMBER = re.compile(r"(?P<before>(?:\s*/\*.*?\*/)?)\s*(?P<text>[^;/]+);(?:[ \t]*/\*(?P<after>.*?)\*/)?", re.DOTALL)
ENUMERATOR = re.compile(r"\s*(?P<text>\w+) = (?P<value>\d+),?(?:\s*/\*(?P<after>.*?)\*/)?", re.DOTALL)


@dataclasses.dataclass
class Item:
    kind: str  # part, title, text, program, function, struct, enum, macro
    text: str  # the title, the declaration or the program
    comment: str = ""
    members: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def prose_of(comment: str) -> str:
    """A comment without its stars."""
    lines = [re.sub(r"^\s*\* ?", "", line) if i else line.strip() for i, line in enumerate(comment.splitlines())]
    return "\n".join(line.rstrip() for line in lines).strip("\n ")


def one_line(text: str) -> str:
    return " ".join(text.split())


def items_of(header: str) -> list[Item]:
    """The declarations of the header, section by section."""
    introduction = re.match(r"/\*\n \* (per/\w+\.h) - (.*?)\n \*\n(.*?)\*/", header, re.DOTALL)
    assert introduction
    name, summary, rest = introduction.groups()
    before, program, after = re.split(r"^( \*     #include .*^ \*     \}\n)", rest, flags=re.DOTALL | re.MULTILINE)
    items = [Item("part", name)]
    items += [Item("text", "", prose_of(f"\n{text}")) for text in (f" * {summary[0].upper()}{summary[1:]}", before)]
    items += [
        Item("program", "\n".join(line[7:] for line in program.splitlines())),
        Item("text", "", prose_of(f"\n{after}")),
    ]
    body = header[header.index('extern "C" {') : header.rindex("#ifdef __cplusplus")]
    for section in re.split(r"(?=/\* -{10,})", body.removeprefix('extern "C" {\n#endif\n')):
        title = SECTION.match(section)
        if title:
            items.append(Item("title", title[1].capitalize()))
        items += declarations_of(section[title.end() :] if title else section)
    return items


def declarations_of(section: str) -> list[Item]:
    items = []
    # A blank line separates declarations; a comment without a declaration is a text.
    for block in filter(None, map(str.strip, re.split(r"\n\n(?=/\*|typedef|PER_API|enum)", section.strip()))):
        found = DECLARATION.fullmatch(block)
        if found is None:
            assert re.fullmatch(r"/\*.*\*/", block, re.DOTALL), f"per.h: not understood: {block}"
            items.append(Item("text", "", prose_of(block[2:-2])))
            continue
        comment = prose_of(found["comment"] or "")
        if found["function"]:
            items.append(Item("function", one_line(found["function"]), comment))
        elif found["constant"]:
            items.append(Item("macro", found["constant"], comment))
        elif found["opaque"]:
            items.append(Item("struct", found["opaque"], comment))
        elif found["kind"] == "enum":
            members = [(m["text"], prose_of(m["after"] or "")) for m in ENUMERATOR.finditer(found["body"])]
            items.append(Item("enum", found["name"], comment, members))
        else:
            items.append(Item("struct", found["name"], comment, members_of(found["body"])))
    return items


def members_of(body: str) -> list[tuple[str, str]]:
    members = []
    for m in MEMBER.finditer(body):
        heads_group = m["before"].startswith("\n\n")  # and does not belong to this member alone
        before = "" if heads_group else prose_of(m["before"].strip().removeprefix("/*").removesuffix("*/"))
        comment = " ".join(filter(None, (before, prose_of(m["after"] or ""))))
        members.append((one_line(m["text"]), one_line(comment)))
    return members


# ------------------------------------------------------------------------------------------------------- as RST


class Writer:
    def __init__(self, items: list[Item]) -> None:
        self.lines: list[str] = []
        self.functions = {re.search(r"(\w+)\(", item.text)[1] for item in items if item.kind == "function"}
        self.types = {item.text: item.kind for item in items if item.kind in ("struct", "enum")}
        self.constants = {name for item in items if item.kind == "enum" for name, _ in item.members}
        for item in items:
            self.write(item)

    def write(self, item: Item) -> None:
        if item.kind == "part":
            self.lines += [item.text, "-" * len(item.text), ""]
        elif item.kind == "title":
            self.lines += [item.text, "~" * len(item.text), ""]
        elif item.kind == "text":
            self.prose(item.comment, "")
        elif item.kind == "program":
            self.lines += [".. code-block:: c", "", *(f"   {line}" for line in item.text.splitlines()), ""]
        elif item.kind == "function":
            self.directive("function", item.text, item.comment, "")
        elif item.kind == "macro":
            self.directive("macro", item.text, item.comment, "")
        else:
            self.directive(item.kind, item.text, item.comment, "")
            for text, comment in item.members:
                kind = "enumerator" if item.kind == "enum" else "member"
                self.directive(kind, text, comment, "   ")

    def directive(self, kind: str, signature: str, comment: str, indent: str) -> None:
        self.lines += [f"{indent}.. c:{kind}:: {signature}", ""]
        self.prose(comment, indent + "   ")

    def prose(self, comment: str, indent: str) -> None:
        """Writes paragraphs and the indented blocks between them."""
        for paragraph in re.split(r"\n\s*\n", comment):
            if not paragraph.strip():
                continue
            groups: list[tuple[bool, list[str]]] = []
            for line in paragraph.splitlines():
                kept = line.startswith(" ") or is_entry(line)
                if groups and groups[-1][0] == kept:
                    groups[-1][1].append(line)
                else:
                    groups.append((kept, [line]))
            for kept, lines in groups:
                if kept:
                    self.kept(textwrap.dedent("\n".join(lines)).splitlines(), indent)
                else:
                    self.lines += [indent + self.linked(" ".join(lines)), ""]

    def kept(self, lines: list[str], indent: str) -> None:
        """Writes an indented block: a list of terms, each with its explanation beside it, or a formula."""
        entries: list[tuple[str, str]] = []
        for line in lines:
            entry = re.match(r"(\S.*?)(?:  +)(\S.*)", line)
            if line.startswith(" ") and entries:
                entries[-1] = entries[-1][0], f"{entries[-1][1]} {line.strip()}"
            elif entry and not re.search(r"[=<]", entry[1]):
                entries.append((entry[1], entry[2]))
            else:
                self.lines += [f"{indent}.. code-block:: text", "", *(f"{indent}   {line}" for line in lines), ""]
                return
        for term, explanation in entries:
            self.lines += [indent + self.linked(term), f"{indent}   {self.linked(explanation)}", ""]

    def linked(self, text: str) -> str:
        """The text with RST markup escaped, and with links to the declarations of per.h."""

        def word(match: re.Match[str]) -> str:
            if match[0].startswith("`"):
                return f"`{match[0]}`"
            name = match[0].removesuffix("()")
            if name in self.functions:
                return f":c:func:`{name}`"
            if name in self.types:
                return f":c:{self.types[name]}:`{name}`"
            if name in self.constants:
                return f":c:enumerator:`{name}`"
            return re.sub(r"([*|`_])", r"\\\1", match[0])

        return re.sub(r"`\w+`|[A-Za-z_]\w*(?:\(\))?|[*|`]", word, text)


def is_entry(line: str) -> bool:
    """True for a line such as "Threads.  A handle ...", which begins an entry; its other lines are indented."""
    return bool(re.match(r"\w+\.  +\S", line))


def items_of_all() -> list[Item]:
    return [item for header in HEADERS for item in items_of(header.read_text())]


class HeaderDirective(SphinxDirective):
    """Inserts the reference."""

    def run(self) -> list:
        for header in HEADERS:
            self.env.note_dependency(str(header))
        return self.parse_text_to_nodes("\n".join(Writer(items_of_all()).lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("per-header", HeaderDirective)
    return {"parallel_read_safe": True}
