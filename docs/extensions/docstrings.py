"""Converts the docstrings of the Python package to RST: escapes markup characters and renders names as code. Overloads,
which are for type checkers, are not shown."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer


def escape(app: Sphinx, what: str, name: str, of: object, options: Any, lines: list[str]) -> None:
    in_example = False
    for i, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            line = re.sub(r"`([^`]+)`", r"``\1``", line)
            parts = re.split(r"(``.*?``)", line)
            lines[i] = "".join(part if part.startswith("``") else escaped(part) for part in parts)
    # An indented block outside a section is a program.
    for i in range(len(lines) - 1, 1, -1):
        above = lines[i - 2]
        if lines[i].startswith("    ") and not lines[i - 1] and re.match(r"\S.*[^:]$", above):
            lines[i:i] = ["::", ""]


def escaped(text: str) -> str:
    text = re.sub(r"[|]", r"\\|", text)
    text = re.sub(r"(?<!\\)\*", r"\\*", text)
    return re.sub(r"(\w)_(?!\w)", r"\1\\_", text)


analyze = ModuleAnalyzer.analyze


def analyze_without_overloads(analyzer: ModuleAnalyzer) -> None:
    analyze(analyzer)
    analyzer.overloads = {}


def setup(app: Sphinx) -> dict[str, bool]:
    # Before napoleon, which reads the sections.
    app.connect("autodoc-process-docstring", escape, priority=400)
    ModuleAnalyzer.analyze = analyze_without_overloads  # type: ignore[method-assign]
    return {"parallel_read_safe": True}
