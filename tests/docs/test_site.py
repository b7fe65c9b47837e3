"""The site builds without warnings, its links work, its programs run, and its references are complete."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import per
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RECIPES = sorted(DOCS.glob("recipes/*.py"))
MIGRATIONS = sorted(path for path in DOCS.glob("migration/*.md") if path.stem != "index")
SHORT = {"python": ["600"], "atari": ["600"]}  # arguments for programs that would otherwise take long

sys.path.insert(0, str(DOCS / "extensions"))
import c_header  # noqa: E402
import julia_docstrings  # noqa: E402
import plain_pages  # noqa: E402


def blocks_of(page: str) -> list[str]:
    """The blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run(program: Path, folder: Path) -> str:
    search = os.pathsep.join([str(Path(per.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::UserWarning:__main__", str(program), *SHORT.get(program.stem, [])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Page(html.parser.HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.words: list[str] = []
        self.feed(path.read_text())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """The pages of the site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run([str(ROOT / "scripts" / "docs"), str(folder)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return {path: Page(path) for path in folder.rglob("*.html")}


def page(pages: dict[Path, Page], name: str) -> Page:
    return next(found for path, found in pages.items() if str(path).endswith(f"/{name}.html"))


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_links_within_the_site_lead_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 35
    for path, found in pages.items():
        for link in found.links + found.loaded:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or (not parts.path and not parts.fragment):
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert urllib.parse.unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


def test_pages_load_nothing_from_the_network(pages: dict[Path, Page]) -> None:
    loaded = {source for found in pages.values() for source in found.loaded}
    assert not [source for source in loaded if re.match(r"(\w+:)?//", source)]


def test_search_knows_what_the_pages_say(pages: dict[Path, Page]) -> None:
    (folder,) = (path.parent for path in pages if path.name == "search.html")
    index = (folder / "searchindex.js").read_text()
    assert all(word in index for word in ("per_replay_add", "capacity_for", "cliffwal", "stratifi"))


def test_reference_of_c_has_every_declaration_and_every_word_of_its_comments(pages: dict[Path, Page]) -> None:
    text = page(pages, "reference/c").text
    headers = "".join(re.sub(r"#endif /.*", "", path.read_text()) for path in c_header.HEADERS)
    functions = re.findall(r"^PER_API [^;]*?(\w+)\(", headers, re.MULTILINE)
    anchors = page(pages, "reference/c").anchors
    assert len(functions) > 50 and all(f"c.{name}" in anchors for name in functions)
    kept = set(words(text))
    items = c_header.items_of_all()
    said = [item.comment for item in items] + [comment for item in items for _, comment in item.members]
    missing = {word for comment in said for word in words(comment)} - kept
    assert not missing
    # No comment of the headers is lost: each word is in an item.
    comments = " ".join(re.findall(r"/\*(.*?)\*/", headers, re.DOTALL))
    titles = [item.text for item in items if item.kind in ("part", "title", "program")]
    lost = {word.lower() for word in words(comments)} - {word.lower() for word in words(" ".join(said + titles))}
    assert lost <= {"version", "prioritization"}, lost  # titles of a section, and of a group of members


def test_reference_of_python_has_every_public_name(pages: dict[Path, Page]) -> None:
    anchors = page(pages, "reference/python").anchors
    names = [name for name in per.__all__ if name not in ("coordinator", "library_path", "plot", "typing")]
    assert not [name for name in names if f"per.{name}" not in anchors]
    methods = [name for name in vars(per.ReplayBuffer) if not name.startswith("_")]
    assert not [name for name in methods if f"per.ReplayBuffer.{name}" not in anchors]


def test_reference_of_julia_has_every_docstring(pages: dict[Path, Page]) -> None:
    package = (julia_docstrings.SOURCE / "PER.jl").read_text()
    exported = [name for line in re.findall(r"^export (.*)$", package, re.MULTILINE) for name in line.split(", ")]
    shown = len(julia_docstrings.docstrings())
    sources = [path for path in julia_docstrings.SOURCE.glob("*.jl") if path.name != "declarations.jl"]
    found = set(words(page(pages, "reference/julia").text))
    assert len(exported) > 25 and {name.rstrip("!") for name in exported} <= found
    assert shown == sum(path.read_text().count('"""\n') // 2 for path in sources)
    assert "memory_bytes" in found  # the package inserts this part of a docstring


def test_page_of_options_has_every_option() -> None:
    structs = ("per_replay_options", "per_freshness", "per_memory", "per_rate_limit")
    members = [member for item in c_header.items_of_all() if item.text in structs for member in item.members]
    names = {re.findall(r"\(\*(\w+)\)|(\w+)$", text)[0] for text, _ in members}  # a function, or a number
    names = {name for pair in names for name in pair if name} - {"struct_size", "n_fields", "field_size", "reserved"}
    table = (DOCS / "options.md").read_text()
    assert not [name for name in names if f"`{name}`" not in table]


def test_guarantees_name_tests_that_exist() -> None:
    page = (DOCS / "guarantees.md").read_text()
    for row in re.findall(r"^\| (?!promise)(.*) \|$", page, re.MULTILINE):
        assert re.search(r"\| `(?:tests|bindings)/", row), row
    named = re.findall(r"`((?:tests|bindings)/[^`]+)`", page)
    assert len(named) > 30
    for name in named:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert not function or f"def {function}(" in (ROOT / path).read_text(), name


def test_every_program_has_its_page() -> None:
    shown = {
        (path.parent / name).resolve()
        for path in DOCS.rglob("*.md")
        for name in plain_pages.programs_of(path.read_text())
    }
    assert set(RECIPES) <= shown
    assert blocks_of("start/python.md")[0] == (DOCS / "start" / "python.py").read_text()


@pytest.mark.parametrize(
    "page, block, output",
    [
        ("start/python.md", 1, ""),
        ("start/python.md", 2, ""),
        ("recipes/vector_environments.md", 0, ""),
        ("llm.md", 0, r"Counts\(issued=168, open=0, sealed=8, leased=0, consumed=160, retired=0, retired_by={}\)\n"),
        ("llm.md", 1, ""),
        ("llm.md", 2, ""),
        ("llm.md", 3, ""),
        ("many.md", 0, r"[89]\d{3} steps added, mean length of the last episodes \d+\n"),
    ],
)
def test_program_within_a_page_runs(page: str, block: int, output: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(blocks_of(page)[block].replace("UPDATES = 2, 10_000", "UPDATES = 2, 1000"))
    assert re.fullmatch(output, run(file, tmp_path))


@pytest.mark.parametrize("program", [DOCS / "start" / "python.py", *RECIPES], ids=lambda path: path.stem)
def test_program_runs(program: Path, tmp_path: Path) -> None:
    run(program, tmp_path)


def programs_of(path: Path) -> Iterator[str]:
    """The programs with libper on a page."""
    yield from re.findall(r"^libper\n\n```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.stem)
def test_program_of_a_migration_runs(path: Path, tmp_path: Path) -> None:
    (program,) = programs_of(path)
    file = tmp_path / "program.py"
    file.write_text(program)
    run(file, tmp_path)
