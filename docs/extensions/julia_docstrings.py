"""The reference of the Julia package: its docstrings, which are Markdown, in the order of its files."""

from __future__ import annotations

import pathlib
import re

from myst_parser.mocking import MockState
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "julia" / "PER" / "src"
TEXT = re.compile(r'^const (\w+) = raw"""\n(.*?)^"""$', re.MULTILINE | re.DOTALL)
DOCSTRING = re.compile(r'^"""\n(.*?)^"""$', re.MULTILINE | re.DOTALL)


def docstrings(source: pathlib.Path = SOURCE) -> list[str]:
    """In the order in which the package includes its files; those of the generated low layer have no place here."""
    package = (source / "PER.jl").read_text()
    low_layer = "declarations.jl"
    parts = dict(TEXT.findall((source / low_layer).read_text()))
    texts = DOCSTRING.findall(package)
    for name in re.findall(r'^include\("(\w+\.jl)"\)', package, re.MULTILINE):
        if name != low_layer:
            texts += DOCSTRING.findall((source / name).read_text())
    return [re.sub(r"\$(\w+)", lambda word: parts[word[1]], text).replace(r"\"", '"') for text in texts]


def markdown_of(text: str) -> str:
    """A docstring under its first line's name as a heading, with Julia's links as code."""
    lines = text.splitlines()
    signatures = [line.strip() for line in lines[: next((i for i, x in enumerate(lines) if not x), len(lines))]]
    is_signature = bool(lines) and lines[0].startswith("    ")
    name = re.match(r"[\w.!]+", signatures[0])[0] if is_signature else "PER"
    body = "\n".join(lines[len(signatures) :] if is_signature else lines)
    body = re.sub(r"\[(`[^`]+`)\]\(@ref\)", r"\1", body)
    body = re.sub(r"\[(`[^`]+`)s\]\(@ref\)", r"\1s", body)
    body = body.replace("```jldoctest", "```julia")
    head = f"## {name}\n\n"
    if is_signature:
        head += "```julia\n" + "\n".join(signatures) + "\n```\n"
    return head + body + "\n"


class JuliaDirective(SphinxDirective):
    """Puts the reference where it stands, in a page of Markdown."""

    def run(self) -> list:
        assert isinstance(self.state, MockState), "per-julia stands in pages of Markdown"
        for path in SOURCE.glob("*.jl"):
            self.env.note_dependency(str(path))
        text = "\n".join(map(markdown_of, docstrings()))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("per-julia", JuliaDirective)
    return {"parallel_read_safe": True}
