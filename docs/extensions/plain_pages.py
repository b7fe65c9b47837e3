"""Lets pages be plain Markdown, which also reads well on GitHub and in a clone. The site adds to them

- the code of a program under a paragraph that names it, such as "The program: [python.py](python.py)";
- the table of contents in a comment, "<!-- toctree", a page a line, and "-->".
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

LANGUAGES = {"py": "python", "c": "c", "cpp": "cpp", "jl": "julia"}
PROGRAM = re.compile(rf"^The program: \[[^]\n]+\]\(([^)\s]+\.({'|'.join(LANGUAGES)}))\)$\n(?!.)", re.MULTILINE)
CONTENTS = re.compile(r"^<!-- toctree\n(.*?)^-->$", re.MULTILINE | re.DOTALL)


def programs_of(text: str) -> list[str]:
    """The files that the site shows on a page."""
    return [path for path, _ in PROGRAM.findall(text)]


def with_directives(text: str) -> str:
    def included(match: re.Match[str]) -> str:
        return f"{match[0]}\n```{{literalinclude}} {match[1]}\n:language: {LANGUAGES[match[2]]}\n```\n"

    return CONTENTS.sub(r"```{toctree}\n:hidden:\n\n\1```", PROGRAM.sub(included, text))


def read(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = with_directives(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
