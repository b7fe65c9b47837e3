"""What scripts/gpu_check does around the programs that it runs: here with programs that need no device."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time

import check as gpu_check
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


def figure(case: str, variant: str, **us: float) -> dict[str, object]:
    return {"case": case, "variant": variant, "capacity": 1_000_000, "batch": 256, **us}


FIGURES = [
    figure("draw", "libper", call_us=9.0, kernel_us=4.0),
    figure("draw", "float tree", call_us=9.0, kernel_us=10.0),
    figure("rows", "libper", call_us=1.0),
    figure("rows", "libper from Python", call_us=20.0, graph_call_us=5.0),
    figure("rows", "cumsum and searchsorted", call_us=60.0, graph_call_us=45.0),
    figure("rows", "TorchRL", call_us=400.0),
]


def test_a_report_tells_what_came_out(check: Check, report: Report) -> None:
    check.add("one", "passed", 1.25)
    check.add("two", "failed", why="this")
    report.write(check, FIGURES)
    told = written(report)
    assert (told["passed"], told["failed"], told["skipped"]) == (1, 1, 0)
    assert told["results"][1] == {"name": "two", "outcome": "failed", "seconds": 0.0, "why": "this"}
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


def test_like_is_compared_with_like(check: Check, report: Report) -> None:
    report.write(check, FIGURES)
    told = [
        (ratio["of"], ratio["other"], ratio["figure"], ratio["times_as_fast"], ratio["target"])
        for ratio in written(report)["ratios"]
    ]
    assert told == [
        ("libper", "float tree", "kernel_us", 2.5, 1.7),
        ("libper from Python", "cumsum and searchsorted", "call_us", 3.0, 7.0),
        ("libper from Python", "cumsum and searchsorted", "graph_call_us", 9.0, None),
        ("libper from Python", "TorchRL", "call_us", 20.0, 15.0),
    ]


def test_results_are_copied_to_a_folder_after_each_part(check: Check, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out" / "results"
    report = Report(tmp_path, "no such nvcc", folder)
    run(check, "one", "print('of one')")
    report.write(check, [])
    assert json.loads((folder / "gpu_check.json").read_text())["passed"] == 1
    run(check, "two", "print('of two'); raise SystemExit(1)")
    report.write(check, FIGURES)
    assert json.loads((folder / "gpu_check.json").read_text()) == written(report)
    with tarfile.open(folder / "logs.tar.gz") as archive:
        logs = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    assert logs == {"one.log": b"of one\n", "two.log": b"of two\n"}
    assert len(list(folder.iterdir())) == 2


# ---- the order of the parts


def program(path: pathlib.Path, text: str, status: int) -> None:
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def built(check: Check, monkeypatch: pytest.MonkeyPatch) -> Check:
    """A check whose parts are programs that do nothing."""
    monkeypatch.setattr(gpu_check, "BUILD", check.logs)
    monkeypatch.setattr(gpu_check, "missing_modules", lambda *names: list(names))
    monkeypatch.setattr(gpu_check, "c_tests", list)
    for name in (*gpu_check.DEVICE_PROGRAMS, "captures_on_device", "per_gpu_bench"):
        program(check.logs / name, "fine", 0)
    return check


NO_USE = "skipped: device is PER_CUDA: the driver of this machine is for CUDA 12.4"


@pytest.mark.parametrize("device", ["", "NVIDIA H100"])
def test_a_device_that_libper_cannot_use_is_a_failure(
    built: Check, report: Report, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "has_device", lambda: device != "")
    program(built.logs / "tree_on_device", NO_USE, 77)
    assert gpu_check.run_all(built, report, "nvcc", 0.0) == (1 if device else 77)
    assert outcomes(built) == [("failed" if device else "skipped", NO_USE.removeprefix("skipped: "))]
    assert report.path.exists() == (device != "")
    if device:
        assert written(report)["failed"] == 1


def test_a_machine_has_a_device_if_it_is_named(report: Report) -> None:
    report.about["device"] = "NVIDIA H100"
    assert report.has_device()


def test_the_benchmark_comes_before_the_sanitizers(
    built: Check, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(built.logs / "compute-sanitizer", "fine", 0)
    monkeypatch.setattr(gpu_check, "beside", lambda *names: str(built.logs / "compute-sanitizer"))
    assert gpu_check.run_all(built, report, "nvcc", 0.0) == 0
    order = [result.name for result in built.results]
    assert order.index("benchmark") < min(order.index(name) for name in order if name.endswith("memcheck"))
    assert {result.outcome for result in built.results if "check" in result.name} == {"passed"}


# ---- what libper is compared with


def test_a_rival_that_fails_ends_nothing_else(tmp_path: pathlib.Path) -> None:
    """Everything of the program but graphs and the float tree, on the CPU, beside a TorchRL that fails."""
    (tmp_path / "tensordict.py").write_text("TensorDict = None")
    (tmp_path / "torchrl").mkdir()
    (tmp_path / "torchrl" / "__init__.py").write_text("raise RuntimeError('of another version')")
    arguments = ["--device", "cpu", "--capacity", "1000", "2000", "--batch", "8", "--seconds", "0"]
    done = subprocess.run(
        [PYTHON, "bench/gpu/torch_baselines.py", *arguments],
        cwd=gpu_check.REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = check_report.figures(done.stdout)
    assert [line["left_out"] for line in told if "left_out" in line] == ["RuntimeError: of another version"] * 2
    expected = {
        ("sample", "libper from Python"),
        ("rows", "libper from Python"),
        ("update", "libper from Python"),
        ("sample", "multinomial"),
        ("sample", "cumsum and searchsorted"),
        ("rows", "cumsum and searchsorted"),
    }
    for capacity in (1000, 2000):
        measured = {
            (line["case"], line["variant"]): line for line in told if "case" in line and line["capacity"] == capacity
        }
        assert set(measured) == expected
        assert all(line["call_us"] > 0 and line["in_burst_us"] > 0 for line in measured.values())
