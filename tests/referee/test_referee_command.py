"""The command `python -m per referee`: adapters of strangers, failures, crashes, hangs, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "referee"))
import referee
import runner
from libraries import LIBRARIES

REFEREE = Path(referee.__file__).parent
NAIVE = REFEREE / "naive.py"
CHECKS = ("draws_follow_equation_1", "priority_0_is_never_drawn")

# Adapters in files of their own, as a stranger writes them.
FAULTY = """
from naive import Naive
class Faulty(Naive):
    name = "faulty"
    package = "numpy"
    def __init__(self):
        super().__init__("ignores_alpha")
"""
CRASHES = """
import os
from naive import Naive, NaiveBuffer
class Dying(NaiveBuffer):
    def sample(self):
        print("a line on stdout")
        if min(row.priority for row in self.lanes[0]) > 0:
            os.abort()
        return super().sample()
class Crashes(Naive):
    name = "crashes"
    def create(self, options):
        return Dying(options)
"""
MISSING = """
from contract import Library
class Missing(Library):
    name = "missing"
    package = "no-such-package"
    module = "no_such_package.part"
"""
BROKEN = """
from naive import Naive
class Broken(Naive):
    name = "broken"
    def __init__(self):
        if "--about" not in __import__("sys").argv:
            raise RuntimeError("no device")
        super().__init__()
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REFEREE / "referee.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def written(folder: Path, adapter: str) -> Path:
    path = folder / "adapter.py"
    path.write_text(adapter)
    return path


def test_a_failure_is_shown_with_promise_source_and_lines(tmp_path: Path) -> None:
    done = run("--library", written(tmp_path, FAULTY), NAIVE, "--check", *CHECKS)
    assert done.returncode == referee.CHECK_FAILS, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["law", "faulty", "naive"] in lines and [CHECKS[0], "FAILS", "holds"] in lines
    check = next(check for check in runner.checks() if check.name == CHECKS[0])
    shown = done.stdout.replace("\n  ", " ")  # long lines are wrapped
    assert f" fails {CHECKS[0]} {check.promise} Source: {check.source}     chi-square " in shown
    assert f"naive: {len(CHECKS)} hold" in done.stdout


def test_the_example_of_the_page_is_judged() -> None:
    done = run("--library", REFEREE / "example.py", "--check", *CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ring: 2 hold" in done.stdout


def test_a_crash_is_a_failure_of_its_check_alone(tmp_path: Path) -> None:
    done = run("--library", written(tmp_path, CRASHES), "--check", *CHECKS)
    assert done.returncode == referee.CHECK_FAILS
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [CHECKS[0], "FAILS"] in lines and [CHECKS[1], "holds"] in lines
    assert "the process ended with signal SIGABRT" in done.stdout


def test_a_call_that_no_signal_interrupts_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}), time.sleep(60)"
    hangs = CRASHES.replace("os.abort()", blocks).replace("import os", "import signal, time")
    monkeypatch.setattr(runner, "SECONDS", 1)
    monkeypatch.setattr(runner, "GRACE", 1)
    first, second = runner.judge(str(written(tmp_path, hangs)), list(CHECKS))
    assert (first.outcome, first.shown) == (runner.FAILS, "no result within 1 s")
    assert second.outcome == runner.HOLDS


def test_a_library_that_is_missing_is_skipped_with_a_line(tmp_path: Path) -> None:
    done = run("--library", written(tmp_path, MISSING), "--check", CHECKS[0])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "not installed: missing (pip install no-such-package)"


def test_a_library_that_lacks_another_one_is_skipped_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    adapter = MISSING.replace("no_such_package.part", "half_installed").replace("no-such-package", "pytest")
    done = run("--library", written(tmp_path, adapter), "--check", CHECKS[0])
    assert (done.returncode, done.stdout) == (1, "")
    assert "No module named 'no_such_dependency'" in done.stderr.splitlines()[0]


def test_a_library_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    done = run("--library", written(tmp_path, BROKEN), "--check", CHECKS[0])
    assert done.returncode == 0
    assert f"{CHECKS[0]} cannot be tried: the library cannot be used here: RuntimeError: no device" in done.stdout


def test_a_file_without_one_adapter_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run("--library", written(tmp_path, "from naive import Naive"), "--check", CHECKS[0])
    assert done.returncode == 1
    assert "defines 0 subclasses of contract.Library, not one" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "wrong", [["--library", "cpprv"], ["--check", "laws"], ["--python", "no-such-python"], ["--json", "none/a.json"]]
)
def test_wrong_arguments_are_named(wrong: list[str]) -> None:
    done = run(*wrong)
    assert done.returncode == 2 and f"{wrong[0]} is {wrong[1]}" in done.stderr


def test_list_names_every_check_and_library() -> None:
    done = run("--list")
    assert done.returncode == 0
    for check in runner.checks():
        promise = f"{check.name} ({check.group}) {check.promise} Source: {check.source}\n"
        assert promise in done.stdout.replace("\n    ", " ")
    assert all(f"    {name}: " in done.stdout for name in LIBRARIES)


def test_a_file_of_results_keeps_what_was_not_judged_again(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    run("--library", written(tmp_path, FAULTY), NAIVE, "--check", CHECKS[0], "--json", file)
    before = json.loads(file.read_text())
    assert list(before) == ["faulty", "naive"] and before["faulty"]["results"][CHECKS[0]]["outcome"] == "fails"
    assert {"processor", "cores", "python"} <= set(before["naive"]["machine"]) and before["naive"]["date"]
    run("--library", NAIVE, "--check", CHECKS[1], "--json", file)
    after = json.loads(file.read_text())
    assert after["faulty"] == before["faulty"] and set(after["naive"]["results"]) == set(CHECKS)


def test_results_of_another_version_are_not_kept() -> None:
    entry = {"machine": {}, "version": "1", "results": {"a": {"outcome": "holds", "shown": ""}}}
    later = {"machine": {}, "version": "2", "results": {"b": {"outcome": "fails", "shown": ""}}}
    assert referee.merged({"x": entry}, {"x": later})["x"]["results"] == later["results"]
    assert set(referee.merged({"x": entry}, {"x": later | {"version": "1"}})["x"]["results"]) == {"a", "b"}
