"""Checks of the package's sources: types, examples, generated declarations."""

import doctest
import importlib
import importlib.util
import pathlib
import pkgutil
import re
import subprocess
import sys

import per
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Written in C++, or dependent on a package that is installed where tests/integrations need it.
NOT_HERE = "per._bridge", "per.libper_xla", "per.ray"
MODULES = [name for _, name, _ in pkgutil.iter_modules(per.__path__, "per.") if name not in NOT_HERE]
MODULES += ["per.llm.groups", "per.llm.prompts"]


@pytest.mark.parametrize("name", ["per", *MODULES])
def test_examples_in_docstrings_work(name):
    failures, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


def test_classes_have_examples():
    for thing in (per.SumTree, per.ReplayBuffer, per.Field, per.Error):
        assert ">>>" in thing.__doc__


def test_public_functions_have_docstrings():
    for name in per.__all__:
        thing = getattr(per, name)
        if isinstance(thing, type):
            own = [vars(each) for each in thing.__mro__ if each.__module__.partition(".")[0] == "per"]
            public = [value for members in own for key, value in members.items() if not key.startswith("_")]
            documented = [value for value in public if callable(value) or isinstance(value, property)]
            assert all(value.__doc__ for value in [thing, *documented]), name


def test_type_hints_are_complete_and_right():
    command = [sys.executable, "-m", "mypy", "--config-file", "bindings/python/pyproject.toml", "bindings/python/per"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_wrong_uses_are_found_by_type_checkers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import per\n"
        "tree = per.SumTree(4, sed=1)\n"
        "buffer = per.ReplayBuffer('4', {})\n"
        "length: str = len(buffer)\n"
        "batch = buffer.sample(4)\n"
        "reward = batch.reward\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)]
    result = subprocess.run(command, cwd=ROOT / "bindings/python", capture_output=True, text=True)
    errors = [line for line in result.stdout.splitlines() if line.startswith(str(program))]
    lines = [int(line.split(":")[1]) for line in errors if ": error:" in line]
    assert sorted(set(lines)) == [2, 3, 4], result.stdout


# The rooms of src/, in order: each may only use those before it. CPU and CUDA share only what is below both.
BELOW = ["rules", "base", "system", "rows", "threads", "backend", "file"]
ROOMS = [*BELOW, "cpu/memory", "cpu/kernels", "cpu/rows", "cpu/tree", "cpu/draw", "cpu/replay", "cpu", "cuda", "core"]
ROOMS += ["loader", "process", "shards", "api"]


def test_no_source_includes_one_of_a_room_above_or_beside_its_own():
    def room_of(path):
        return max((room for room in ROOMS if path.startswith(room + "/")), key=len)

    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".h", ".cpp", ".cu")]
    found = {room_of(path.relative_to(ROOT / "src").as_posix()) for path in sources}
    assert found == set(ROOMS)
    for path in sources:
        room = room_of(path.relative_to(ROOT / "src").as_posix())
        for name in re.findall(r'#include "(\w+/.*)"', path.read_text()):
            other = room_of(name)
            is_below = ROOMS.index(other) < ROOMS.index(room) and not (room in ("cuda", "core") and other not in BELOW)
            assert other == room or is_below, f"{path} includes a file of {other}"


# Headers with .h that files outside src/system may include: those of C, compilers, POSIX threads and libraries.
ALLOWED = {"float.h", "stdint.h", "arm_neon.h", "cpuid.h", "cxxabi.h", "immintrin.h", "unwind.h", "xmmintrin.h"}
ALLOWED |= {"pthread.h", "cuda.h", "cuda_runtime.h", "xxhash.h", "zstd.h", "zstd_errors.h"}


def test_only_src_system_includes_headers_of_the_operating_system():
    for path in (ROOT / "src").rglob("*.*"):
        headers = set(re.findall(r"#\s*include <(.*\.h)>", path.read_text()))
        assert path.parent.name == "system" or headers <= ALLOWED, f"{path} includes {headers - ALLOWED}"


@pytest.mark.parametrize("file", ["tests/cuda/mutations.py", "tests/fuzz/faults.py"])
def test_planted_faults_have_a_place_in_the_sources(file, monkeypatch):
    # Most of them are planted by hand: one that has lost its place shows nothing any more.
    name = pathlib.Path(file).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str((ROOT / file).parent))
    spec.loader.exec_module(module)
    folder = ROOT / "src" if name == "mutations" else ROOT
    lost = [fault.name for fault in module.FAULTS if fault.original not in (folder / fault.file).read_text()]
    assert module.FAULTS and not lost


def test_words_of_the_source_name_places_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    words = text[text.index("## Words of the source") : text.index("## The path of a call")]
    places = [
        place for cell in re.findall(r" \| ([^|]*) \|$", words, re.MULTILINE) for place in re.findall(r"`(.*?)`", cell)
    ]
    assert places
    for place in places:
        assert (ROOT / "src" / place).exists(), place


def documents():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / path for path in listed.stdout.splitlines()]


def test_links_of_documents_lead_to_a_page_where_they_are_read_in_the_repository():
    for document in documents():
        text = re.sub(r"(?ms)^```.*?^```$", "", document.read_text())  # code has such brackets, too
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        for link in links:
            assert "://" in link or (document.parent / link).is_file(), f"{document}: {link}"


def test_files_that_a_page_includes_are_linked_from_it():
    included = 0
    for document in documents():
        text = document.read_text()
        for path in re.findall(r"```\{literalinclude\} (\S+)", text):
            assert f"]({path})" in text, f"{document}: {path}"
            included += 1
    assert included > 5


def test_generated_declarations_are_those_of_the_header():
    result = subprocess.run(
        [sys.executable, "bindings/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
