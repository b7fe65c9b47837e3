"""The first programs in README.md, in the page of each language and in the C headers run as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PER_BUILD_DIR", ROOT / "build"))


def example(page: str, language: str) -> str:
    """The first block of code of a page in this language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no {language} example"
    return str(blocks[0])


def run(command: list[str], folder: Path | None = None, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def output_of(program: str, compiler: list[str], suffix: str, folder: Path) -> str:
    """Compiles a program with warnings as errors and runs it in the folder."""
    source = folder / f"program{suffix}"
    source.write_text(program)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}"]
    run([*compiler, *flags, str(source), "-lper", "-o", str(folder / "program")])
    return run([str(folder / "program")], folder)


def output_of_c(program: str, folder: Path) -> str:
    return output_of(program, ["cc", "-std=c99"], ".c", folder)


def output_of_cpp(program: str, folder: Path) -> str:
    return output_of(program, ["c++", "-std=c++17", "-Wpedantic"], ".cpp", folder)


def test_c_example_compiles_as_c99_and_draws(tmp_path: Path) -> None:
    lines = output_of_c(example("docs/start/c.md", "c"), tmp_path).splitlines()
    matches = [re.fullmatch(r"index (\d), weight \d\.\d{3}", line) for line in lines]
    assert all(matches), lines
    drawn = [int(match[1]) for match in matches if match]
    # Eight strata of a total of 10 over priorities 1, 2, 3, 4: index 3 fills the last three strata.
    assert len(drawn) == 8 and drawn == sorted(drawn) and drawn[5:] == [3, 3, 3]


def program_of(header: str) -> str:
    """The program in the comment at the beginning of a header."""
    text = (ROOT / "include" / header).read_text()
    program = re.search(r"^ \*     #include .*^ \*     \}$", text[: text.index("*/")], re.MULTILINE | re.DOTALL)
    assert program, f"{header} has no program"
    return "".join(f"{line[7:]}\n" for line in program[0].splitlines())


def lines_of_drawn(lines: list[str]) -> None:
    numbers = [re.fullmatch(r"index (\d), weight (\d\.\d\d)", line) for line in lines]
    assert len(lines) == 4 and all(numbers), lines
    # Four strata of a total of 8 over priorities 1, 2, 5: the last two are within index 2, the first is before it.
    assert [int(match[1]) for match in numbers if match][2:] == [2, 2] and lines[0][6] != "2"
    assert "weight 1.00" in lines[0]  # the first draw is the least likely


def lines_of_rewards(lines: list[str]) -> None:
    rows = [re.fullmatch(r"(\d) -> (\d+), reward (\d), weight 1.00", line) for line in lines]
    assert len(lines) == 4 and all(rows), lines  # all priorities are equal
    assert all(int(row[2]) == int(row[1]) + 1 and (row[3] == "1") == (row[1] == "9") for row in rows if row)


def lines_of_goals(lines: list[str]) -> None:
    rows = [re.fullmatch(r"at (\d), goal (\d+), reward (-?\d)", line) for line in lines]
    assert len(lines) == 4 and all(rows), lines
    for row in filter(None, rows):
        at, goal, reward = map(int, row.groups())
        assert goal == 100 or at < goal <= 10
        assert reward == (0 if goal == at + 1 else -1)


def lines_of_advantages(lines: list[str]) -> None:
    # With V = 0 and rewards 1: A_3 = 1, A_t = 1 + 0.99 * 0.95 A_(t+1).
    expected = [f"step {t}, advantage {a}" for t, a in enumerate(("3.657", "2.825", "1.941", "1.000"))]
    assert [sorted(lines[i : i + 4]) for i in (0, 4, 8)] == [expected] * 3 and len(lines) == 12


def lines_of_batches(lines: list[str]) -> None:
    assert len(lines) == 3 and all(re.fullmatch(r"rewards( \d){4}", line) for line in lines), lines


def lines_of_shards(lines: list[str]) -> None:
    # Each shard has one environment and half of the mass: two of the four strata.
    rows = [re.fullmatch(r"id (\d+), reward ([01]), weight 1.00", line) for line in lines]
    assert all(rows) and [row[2] for row in rows if row] == ["0", "0", "1", "1"], lines
    assert all(int(row[1]) % 2 == int(row[2]) for row in rows if row)  # id: k * n_envs + environment


def lines_of_sources(lines: list[str]) -> None:
    # 100 and 10 transitions of equal priority: each of the second is ten times as likely to be drawn.
    rows = [re.fullmatch(r"source (\d): observation (\d+), weight ([\d.]+)", line) for line in lines]
    assert [row[1] for row in rows if row] == ["0", "0", "1", "1"], lines
    assert all((int(row[2]) >= 1000) == (row[1] == "1") for row in rows if row)
    assert [float(row[3]) for row in rows if row] == pytest.approx([1, 1, 10**-0.4, 10**-0.4], rel=1e-5)


HEADER_PROGRAMS: dict[str, Callable[[list[str]], None] | str] = {
    "base": "PER_ERROR_INVALID_ARGUMENT: capacity is -1: allowed are 1 .. 1099511627776",
    "tree": lines_of_drawn,
    "replay": lines_of_rewards,
    "files": "9 transitions",
    "hindsight": lines_of_goals,
    "on_policy": lines_of_advantages,
    "mixture": lines_of_sources,
    "loader": lines_of_batches,
    "process": "100 transitions, 4 new priorities",
    "shards": lines_of_shards,
}


def test_every_header_has_a_program() -> None:
    assert {path.stem for path in (ROOT / "include" / "per").glob("*.h")} == set(HEADER_PROGRAMS)


@pytest.mark.parametrize("name", HEADER_PROGRAMS)
def test_program_of_a_header_compiles_as_c99_and_runs(name: str, tmp_path: Path) -> None:
    output, expected = output_of_c(program_of(f"per/{name}.h"), tmp_path), HEADER_PROGRAMS[name]
    if isinstance(expected, str):
        assert output == f"{expected}\n"
    else:
        expected(output.splitlines())


def test_program_of_the_cpp_header_compiles_as_cpp17_and_runs(tmp_path: Path) -> None:
    lines = output_of_cpp(program_of("per.hpp"), tmp_path).splitlines()
    lines_of_rewards([line.replace("weight 1", "weight 1.00") for line in lines])


def test_cpp_example_compiles_as_cpp17_and_draws(tmp_path: Path) -> None:
    assert output_of_cpp(example("docs/start/cpp.md", "cpp"), tmp_path) == "32 transitions, 64 numbers\n"


def test_python_example_learns(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example("README.md", "python"))
    lines = run([sys.executable, str(script)]).splitlines()
    means = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert len(means) == 10 and max(means[-3:]) > 200, lines  # a random policy has about 22


def test_julia_example_runs(tmp_path: Path) -> None:
    julia = shutil.which("julia")
    if julia is None:
        pytest.skip("julia is not installed")
    script = tmp_path / "example.jl"
    script.write_text(example("docs/start/julia.md", "julia") + "@assert size(batch.observation) == (4, 32)\n")
    run([julia, f"--project={ROOT / 'bindings/julia/PER'}", str(script)], LIBPER_PATH=str(BUILD / "libper.so"))
