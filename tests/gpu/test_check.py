"""What scripts/gpu_check does around the programs that it runs: here with programs that need no device."""

from __future__ import annotations

import json
import pathlib
import sys
import time

import check_report
import pytest
from check_report import Report
from check_steps import Check

PYTHON = sys.executable


@pytest.fixture
def check(tmp_path: pathlib.Path) -> Check:
    return Check(tmp_path, tmp_path, 60, [])


def run(check: Check, name: str, program: str, limit_s: float = 20, **options: object) -> str:
    return check.run(name, [PYTHON, "-c", program], limit_s, **options)  # type: ignore[arg-type]


def outcomes(check: Check) -> list[tuple[str, str]]:
    return [(result.outcome, result.why) for result in check.results]


def test_how_a_program_ends_is_its_outcome(check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(check, "good", "print('fine')") == "fine\n"
    run(check, "none", "print('skipped: no device'); raise SystemExit(77)")
    run(check, "bad", "print('first\\nlast'); raise SystemExit(3)")
    run(check, "killed", "import os; print('here', flush=True); os.kill(os.getpid(), 11)")
    run(check, "refused", "print('Error: Device not supported'); raise SystemExit(1)", refusal="Device not supported")
    check.run("missing", [str(check.logs / "no such program")], 20)
    assert outcomes(check)[:5] == [
        ("passed", ""),
        ("skipped", "no device"),
        ("failed", "last"),
        ("failed", "SIGSEGV: here"),
        ("skipped", "Device not supported"),
    ]
    assert outcomes(check)[5][0] == "failed" and "no such program" in outcomes(check)[5][1]
    assert "    | first\n    | last\n" in capfd.readouterr().out


def test_what_takes_too_long_is_killed_with_all_that_it_started(check: Check) -> None:
    child = check.logs / "child"
    write = f"import time; time.sleep(2); open({str(child)!r}, 'w')"
    run(check, "slow", f"import subprocess; subprocess.run([{PYTHON!r}, '-c', {write!r}])", limit_s=1)
    run(check, "next", "print('on it goes')")
    assert outcomes(check) == [("failed", "does not end within 1 s"), ("passed", "")]
    time.sleep(2.5)
    assert not child.exists()


def test_what_there_is_no_time_for_is_skipped(check: Check) -> None:
    run(check, "no room", "raise SystemExit(1)", keep_s=60)
    check.limit_s = 0
    run(check, "no time", "raise SystemExit(1)")
    assert outcomes(check) == [("skipped", "no time left")] * 2


def test_only_what_is_wanted_runs_and_a_build_that_fails_is_told_all_the_same(check: Check) -> None:
    check.only = ["tree"]
    run(check, "replay", "raise SystemExit(1)")
    check.add("other", "skipped")
    check.add("build", "failed")
    run(check, "a_tree", "")
    assert [result.name for result in check.results] == ["build", "a_tree"]


@pytest.fixture
def report(tmp_path: pathlib.Path) -> Report:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cu").write_text("first")
    return Report(tmp_path, "no such nvcc")


def written(report: Report) -> dict[str, object]:
    return json.loads(report.path.read_text())


FIGURES = [
    {"case": "sample", "variant": variant, "capacity": 1_000_000, "batch": 256, "call_us": us}
    for variant, us in (("libper", 4.0), ("float tree", 10.0))
]


def test_a_report_tells_what_came_out(check: Check, report: Report) -> None:
    check.add("one", "passed", 1.25)
    check.add("two", "failed", why="this")
    report.write(check, FIGURES)
    told = written(report)
    assert (told["passed"], told["failed"], told["skipped"]) == (1, 1, 0)
    assert told["results"][1] == {"name": "two", "outcome": "failed", "seconds": 0.0, "why": "this"}
    assert told["ratios"][0]["times_as_fast"] == 2.5
    assert len(told["sources"]) == 16


def test_a_check_of_a_part_goes_on_from_the_report_of_the_same_sources(
    check: Check, report: Report, tmp_path: pathlib.Path
) -> None:
    check.add("one", "passed")
    check.add("two", "failed")
    report.write(check, FIGURES)
    part = Check(tmp_path, tmp_path, 60, ["two"])
    part.add("two", "passed")
    report.write(part, [])
    told = written(report)
    assert (told["passed"], told["failed"], told["benchmark"]) == (2, 0, FIGURES)
    (tmp_path / "src" / "a.cu").write_text("second")
    changed = Report(tmp_path, "no such nvcc")
    changed.write(part, [])
    assert written(changed)["passed"] == 1


def test_the_digest_is_that_of_the_sources(tmp_path: pathlib.Path) -> None:
    for place in ("src/cuda", "src/__pycache__", "bindings/python/build", "docs"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "src" / "a.cpp").write_text("a")
    before = check_report.digest_of_sources(tmp_path)
    for other in ("src/__pycache__/x", "src/x.so", "bindings/python/build/x", "docs/x"):
        (tmp_path / other).write_text("not a source")
    assert check_report.digest_of_sources(tmp_path) == before
    (tmp_path / "src" / "a.cpp").rename(tmp_path / "src" / "b.cpp")
    assert check_report.digest_of_sources(tmp_path) != before
