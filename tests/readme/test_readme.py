"""The first programs of README.md and of the pages for each language run as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PER_BUILD_DIR", ROOT / "build"))


def example(page: str, language: str) -> str:
    """The first block of a page in this language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no {language} example"
    return str(blocks[0])


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_c_example_compiles_as_c99_and_draws(tmp_path: Path) -> None:
    source = tmp_path / "tree.c"
    source.write_text(example("docs/start/c.md", "c"))
    compile_line = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", str(source)]
    run([*compile_line, f"-L{BUILD}", "-lper", f"-Wl,-rpath,{BUILD}", "-o", str(tmp_path / "tree")])
    lines = run([str(tmp_path / "tree")]).splitlines()
    matches = [re.fullmatch(r"index (\d), weight \d\.\d{3}", line) for line in lines]
    assert all(matches), lines
    drawn = [int(match[1]) for match in matches if match]
    # Eight strata of a total of 10 over priorities 1, 2, 3, 4: index 3 fills the last three of them.
    assert len(drawn) == 8 and drawn == sorted(drawn) and drawn[5:] == [3, 3, 3]


def test_cpp_example_compiles_as_cpp17_and_draws(tmp_path: Path) -> None:
    source = tmp_path / "buffer.cpp"
    source.write_text(example("docs/start/cpp.md", "cpp"))
    compile_line = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'include'}"]
    program = str(tmp_path / "buffer")
    run([*compile_line, str(source), f"-L{BUILD}", "-lper", f"-Wl,-rpath,{BUILD}", "-o", program])
    assert run([program]) == "32 transitions, 64 numbers\n"


def test_python_example_runs(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(
        example("README.md", "python") + "assert len(batch.ids) == 256 and buffer.stats().added == 1000\n"
    )
    run([sys.executable, str(script)])


def test_julia_example_runs(tmp_path: Path) -> None:
    julia = shutil.which("julia")
    if julia is None:
        pytest.skip("julia is not installed")
    script = tmp_path / "example.jl"
    script.write_text(example("docs/start/julia.md", "julia") + "@assert size(batch.observation) == (4, 32)\n")
    run([julia, f"--project={ROOT / 'bindings/julia/PER'}", str(script)], LIBPER_PATH=str(BUILD / "libper.so"))
