"""The reference of the Julia package: its docstrings, which are Markdown, in the order of its files."""

from __future__ import annotations

import pathlib
import re

from myst_parser.mocking import MockState
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "julia" / "PER" / "src"
TEXT = re.compile(r'^const (\w+) = raw"""\n(.*?)^"""$', re.MULTILINE | re.DOTALL)
# A docstring, and the line below it.
DOCSTRING = re.compile(r'^"""\n(.*?)^"""\n([^\n]*)', re.MULTILINE | re.DOTALL)


def docstrings(source: pathlib.Path = SOURCE) -> list[tuple[str, str]]:
    """Docstrings, each with the line below it, in the order in which the package includes its files.

    Docstrings of the generated low layer are left out.
    """
    package = (source / "PER.jl").read_text()
    low_layer = "declarations.jl"
    parts = dict(TEXT.findall((source / low_layer).read_text()))
    texts = DOCSTRING.findall(package)
    for name in re.findall(r'^include\("(\w+\.jl)"\)', package, re.MULTILINE):
        if name != low_layer:
            texts += DOCSTRING.findall((source / name).read_text())

    def whole(text: str) -> str:
        return re.sub(r"\$(\w+)", lambda word: parts[word[1]], text).replace(r"\"", '"')

    return [(whole(text), below) for text, below in texts]


def markdown_of(text: str, below: str) -> str:
    """A docstring under the name of its object as a heading, with Julia's links as code."""
    lines = text.splitlines()
    signatures = [line.strip() for line in lines[: next((i for i, x in enumerate(lines) if not x), len(lines))]]
    is_signature = bool(lines) and lines[0].startswith("    ")
    named = signatures[0] if is_signature else re.sub(r"^(mutable )?(struct|module|abstract type) ", "", below)
    name = re.match(r"[\w.!]+", named)[0]
    body = "\n".join(lines[len(signatures) :] if is_signature else lines)
    body = re.sub(r"\[(`[^`]+`)\]\(@ref\)", r"\1", body)
    body = re.sub(r"\[(`[^`]+`)s\]\(@ref\)", r"\1s", body)
    body = body.replace("```jldoctest", "```julia")
    head = f"## {name}\n\n"
    if is_signature:
        head += "```julia\n" + "\n".join(signatures) + "\n```\n"
    return head + body + "\n"


class JuliaDirective(SphinxDirective):
    """Inserts the reference into a page of Markdown."""

    def run(self) -> list:
        assert isinstance(self.state, MockState), "per-julia stands in pages of Markdown"
        for path in SOURCE.glob("*.jl"):
            self.env.note_dependency(str(path))
        text = "\n".join(markdown_of(*docstring) for docstring in docstrings())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("per-julia", JuliaDirective)
    return {"parallel_read_safe": True}
