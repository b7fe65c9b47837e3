"""Tests of scripts/gpu_check with programs that need no device."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
from typing import Any

import check as gpu_check
import check_build
import check_report
import check_steps
import pytest
import rehearse
from check_report import Report
from check_steps import Check, Program

PYTHON = sys.executable


@pytest.fixture
def check(tmp_path: pathlib.Path) -> Check:
    return Check(tmp_path, tmp_path, 60, [])


def program(name: str, text: str, limit_s: float = 20, **more: Any) -> Program:
    """A program in Python."""
    return Program(name, [PYTHON, "-c", text], limit_s, **more)


def outcomes(check: Check) -> list[tuple[str, str]]:
    return [(result.outcome, result.why) for result in check.results]


def test_how_a_program_ends_is_its_outcome(check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    assert check.run(program("good", "print('fine')")) == "fine\n"
    check.run(program("none", "print('skipped: no device'); raise SystemExit(77)"))
    check.run(program("bad", "print('first\\nlast'); raise SystemExit(3)"))
    check.run(program("killed", "import os; print('here', flush=True); os.kill(os.getpid(), 11)"))
    refused = "print('Error: Device not supported'); raise SystemExit(1)"
    check.run(program("refused", refused, refusals=("Device not supported",)))
    check.run(program("seen", "print('Duration 3 us')", evidence="Duration"))
    check.run(program("nothing seen", "print('No kernels were profiled.')", evidence="Duration"))
    check.run(Program("missing", [str(check.logs / "no such program")], 20))
    assert outcomes(check)[:7] == [
        ("passed", ""),
        ("skipped", "no device"),
        ("failed", "last"),
        ("failed", "SIGSEGV: here"),
        ("skipped", "Device not supported"),
        ("passed", ""),
        ("failed", 'exits with 0, but prints no "Duration": No kernels were profiled.'),
    ]
    assert outcomes(check)[7][0] == "failed" and "no such program" in outcomes(check)[7][1]
    assert "    | first\n    | last\n" in capfd.readouterr().out


def test_what_takes_too_long_is_killed_with_all_that_it_started(check: Check) -> None:
    child = check.logs / "child"
    write = f"import time; time.sleep(2); open({str(child)!r}, 'w')"
    check.run(program("slow", f"import subprocess; subprocess.run([{PYTHON!r}, '-c', {write!r}])", limit_s=1))
    check.run(program("next", "print('on it goes')"))
    assert outcomes(check) == [("failed", "does not end within 1 s"), ("passed", "")]
    time.sleep(2.5)
    assert not child.exists()


def test_what_the_time_of_a_part_does_not_suffice_for_is_cut(check: Check) -> None:
    printed = """print('{no}\\n{"case": "a", "call_us": 2}\\n{"case": ', flush=True); import time; time.sleep(60)"""
    with check.part(time.monotonic() + 2):
        check.run(program("long", printed))
        check.run(program("late", "raise SystemExit(1)"))
    check.run(program("next part", "print('on it goes')"))
    assert outcomes(check) == [
        ("cut", "the time of its part was over after 2 s"),
        ("cut", "the time of its part was over before it began"),
        ("passed", ""),
    ]
    assert check.results[0].figures == [{"case": "a", "call_us": 2}]
    assert check.status() == 1


def test_only_what_is_wanted_runs_and_a_build_that_fails_is_told_all_the_same(check: Check) -> None:
    check.only = ["tree"]
    check.run(program("replay", "raise SystemExit(1)"))
    check.add("other", "skipped")
    check.add("build", "failed")
    check.run(program("a_tree", ""))
    assert [result.name for result in check.results] == ["build", "a_tree"]


# ---- the report


def report_in(folder: pathlib.Path, results: pathlib.Path | None = None) -> Report:
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "a.cu").write_text("first")
    return Report(folder, "no such nvcc", "tests", results)


@pytest.fixture
def report(tmp_path: pathlib.Path) -> Report:
    return report_in(tmp_path)


def written(report: Report) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(report.path.read_text())
    return told


def figure(case: str, variant: str, **us: Any) -> dict[str, object]:
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
    check.add("one", "passed", seconds=1.25)
    check.add("two", "failed", "this")
    check.add("three", "cut", "that", figures=FIGURES[:1])
    report.write(check)
    told = written(report)
    assert (told["passed"], told["failed"], told["cut"], told["skipped"]) == (1, 1, 1, 0)
    assert told["results"][1] == {"name": "two", "outcome": "failed", "seconds": 0.0, "why": "this", "figures": []}
    assert told["results"][2]["figures"] == FIGURES[:1]
    assert len(told["sources"]) == 16


def test_a_check_of_a_part_goes_on_from_the_report_of_the_same_sources(
    check: Check, report: Report, tmp_path: pathlib.Path
) -> None:
    check.add("one", "passed", figures=FIGURES)
    check.add("two", "failed")
    report.write(check)
    part = Check(tmp_path, tmp_path, 60, ["two"])
    part.add("two", "passed")
    report.write(part)
    told = written(report)
    assert (told["passed"], told["failed"], told["results"][0]["figures"]) == (2, 0, FIGURES)
    (tmp_path / "src" / "a.cu").write_text("second")
    changed = Report(tmp_path, "no such nvcc", "tests")
    changed.write(part)
    assert written(changed)["passed"] == 1


def test_the_digest_is_that_of_the_sources(tmp_path: pathlib.Path) -> None:
    def digest() -> str:
        return check_report.digest_of(tmp_path, check_report.SOURCES)

    for place in ("src/cuda", "src/__pycache__", "bindings/python/build", "docs"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "src" / "a.cpp").write_text("a")
    before = digest()
    for other in ("src/__pycache__/x", "src/x.so", "bindings/python/build/x", "docs/x"):
        (tmp_path / other).write_text("not a source")
    assert digest() == before
    (tmp_path / "src" / "a.cpp").rename(tmp_path / "src" / "b.cpp")
    assert digest() != before


def test_like_is_compared_with_like(check: Check, report: Report) -> None:
    check.add("benchmark", "passed", figures=FIGURES)
    report.write(check)
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


# ---- building


@pytest.fixture
def built_from(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A repository in which things are built."""
    for name in ("BUILD", "OBJECTS", "LOGS"):
        monkeypatch.setattr(check_build, name, tmp_path / name)
        (tmp_path / name).mkdir()
    monkeypatch.setattr(check_build, "REPOSITORY", tmp_path)
    (tmp_path / "source").write_text("first")
    return tmp_path


def make(repository: pathlib.Path, may_build: bool = True, architecture: str = "90") -> tuple[bool, list[str]]:
    builder = check_build.Builder("", Check(repository, repository, 60, []), architecture, may_build)
    copied = repository / "BUILD" / "copied"
    return builder.make("copied", ["source"], ["cp", "source", copied]), builder.made


def test_what_is_up_to_date_is_not_built_again(built_from: pathlib.Path) -> None:
    assert make(built_from) == (True, ["copied"])
    os.utime(built_from / "source")  # like carried files
    assert make(built_from) == (True, [])
    assert make(built_from, architecture="100") == (True, ["copied"])
    (built_from / "source").write_text("second")
    assert make(built_from, architecture="100") == (True, ["copied"])
    assert (built_from / "BUILD" / "copied").read_text() == "second"
    (built_from / "BUILD" / "copied").unlink()
    assert make(built_from, architecture="100") == (True, ["copied"])


def test_without_building_what_is_out_of_date_is_missing_and_never_run(built_from: pathlib.Path) -> None:
    assert make(built_from) == (True, ["copied"])
    assert make(built_from, may_build=False) == (True, [])
    (built_from / "source").write_text("second")
    assert make(built_from, may_build=False) == (False, [])
    assert not (built_from / "BUILD" / "copied").exists()


def test_a_build_that_fails_leaves_nothing_that_looks_up_to_date(built_from: pathlib.Path) -> None:
    builder = check_build.Builder("", Check(built_from, built_from, 60, []), "90", True)
    copied = built_from / "BUILD" / "copied"
    assert not builder.make("copied", ["source"], ["cp", "source", copied], ["false"])
    assert make(built_from, may_build=False) == (False, [])


def test_a_bridge_that_lacks_headers_is_skipped_and_one_that_does_not_build_fails(
    built_from: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check(built_from, built_from, 60, [])
    builder = check_build.Builder("", check, "90", True)
    monkeypatch.setattr(check_build, "packages", lambda: built_from / "packages")
    builder.bridge()
    (built_from / "packages" / "pybind11" / "include").mkdir(parents=True)
    monkeypatch.setattr(builder, "call", lambda *words: False)
    builder.bridge()
    missing = f"missing: {built_from / 'packages' / 'pybind11' / 'include'}"
    assert outcomes(check) == [("skipped", missing), ("failed", "does not build; see build.log")]


# ---- host arrays

# Calls that take a stream, and no array that a device could have to read or write.
WITHOUT_ARRAYS = {
    *("per_tree_reset", "per_tree_synchronize", "per_loader_release"),
    *("per_replay_change_settings", "per_replay_clear", "per_replay_cut", "per_replay_raise_max_priority"),
    "per_replay_synchronize",
}


def test_host_arrays_are_copied_for_every_call_that_takes_some() -> None:
    header = "".join(file.read_text() for file in check_build.REPOSITORY.glob("include/per/*.h"))
    sources = "".join((check_build.REPOSITORY / name).read_text() for name in check_build.SOURCES_OF_HOST_ARRAYS)
    calls = set(re.findall(r"PER_API per_status (\w+)\([^;]*void\* stream[^;]*\);", header))
    replaced = set(re.findall(r"^per_status (\w+)\(", sources, re.MULTILINE))
    assert calls > WITHOUT_ARRAYS and calls - replaced == WITHOUT_ARRAYS
    batch = re.findall(r"typedef struct per_batch \{(.*?)\} per_batch;", header, re.DOTALL)[0]
    arrays = re.findall(r"^ *\w+(?: \w+)?\* (\w+);", re.sub(r"/\*.*?\*/", "", batch, flags=re.DOTALL), re.MULTILINE)
    assert {"ids", "times_sampled", "gamma_m"} < set(arrays)
    assert not {name for name in arrays if f"put(batch_.{name}," not in sources}


# ---- stages


def shell_program(path: pathlib.Path, text: str, status: int = 0) -> None:
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def built(check: Check, monkeypatch: pytest.MonkeyPatch) -> Check:
    """A check whose stages are programs that do nothing."""
    monkeypatch.setattr(gpu_check, "BUILD", check.logs)
    monkeypatch.setattr(gpu_check, "missing_modules", lambda *names: list(names))
    monkeypatch.setattr(gpu_check, "c_tests", list)
    for name in (*gpu_check.DEVICE_PROGRAMS, "per_gpu_bench"):
        shell_program(check.logs / name, "fine")
    return check


NO_USE = "skipped: device is PER_CUDA: the driver of this machine is for CUDA 12.4"


@pytest.mark.parametrize("stage", gpu_check.STAGES)
@pytest.mark.parametrize("device", ["", "NVIDIA H100"])
def test_a_device_that_libper_cannot_use_is_a_failure(
    built: Check, report: Report, device: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device:
        report.about["device"] = device
    else:  # this machine may have one
        monkeypatch.setattr(report, "has_device", lambda: False)
    shell_program(built.logs / "tree_on_device", NO_USE, 77)
    built.add("build", "passed")
    assert gpu_check.run_stage(built, report, stage) == (1 if device else 77)
    assert outcomes(built)[1:] == [("failed" if device else "skipped", NO_USE.removeprefix("skipped: "))]
    assert not device or written(report)["failed"] == 1


def test_a_program_that_fails_fails_the_stage_and_the_next_ones_run(built: Check, report: Report) -> None:
    shell_program(built.logs / "captures_on_device", "capture.cu:7: not so", 1)
    assert gpu_check.run_stage(built, report, "tests") == 1
    told = {result["name"]: (result["outcome"], result["why"]) for result in written(report)["results"]}
    assert told["captures_on_device"] == ("failed", "capture.cu:7: not so")
    assert told["loader_on_device"] == ("passed", "")
    assert written(report)["failed"] == 1


def test_results_are_in_the_folder_before_the_next_program_begins(
    built: Check, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that is killed leaves its results."""
    folder = tmp_path / "out" / "results"
    report = report_in(tmp_path, folder)
    seen = []

    def names() -> list[str]:
        told = json.loads((folder / report.path.name).read_text())
        return [result["name"] for result in told["results"] if result["name"] not in ("device", "context_held")]

    def logs() -> dict[str, bytes]:
        with tarfile.open(folder / "gpu_tests_logs.tar.gz") as archive:
            return {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]

    def first(check: Check) -> None:
        check.run(program("one", "print('of one')"))
        seen.append(names())
        check.run(program("two", "print('of two'); raise SystemExit(1)"))

    def second(check: Check) -> None:
        seen.append(names())
        assert {name: log for name, log in logs().items() if name != "device.log"} == {
            "one.log": b"of one\n",
            "two.log": b"of two\n",
        }

    monkeypatch.setitem(gpu_check.STAGES, "tests", [(first, 10), (second, 10)])
    gpu_check.run_stage(built, report, "tests")
    assert seen == [["one"], ["one", "two"]]
    assert len(list(folder.iterdir())) == 2


def test_a_part_that_hangs_is_cut_and_the_next_has_its_time(
    built: Check, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(check: Check) -> None:
        check.run(program("hangs", "import time; time.sleep(60)", limit_s=60))

    def is_fine(check: Check) -> None:
        check.run(program("is_fine", "import time; time.sleep(1.5)"))

    monkeypatch.setitem(gpu_check.STAGES, "tests", [(hangs, 2), (is_fine, 10)])
    assert gpu_check.run_stage(built, report, "tests") == 1
    told = {result["name"]: result["outcome"] for result in written(report)["results"]}
    assert (told["hangs"], told["is_fine"]) == ("cut", "passed")


def test_a_part_has_what_those_before_it_leave(built: Check, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    part = lambda check: left.append(check.time_left())  # noqa: E731
    monkeypatch.setitem(gpu_check.STAGES, "tests", [(part, 5), (part, 6)])
    gpu_check.run_stage(built, report, "tests")
    assert 4 < left[0] <= 5 and 10 < left[1] <= 11


@pytest.mark.parametrize(("stage", "minutes"), [("tests", 7), ("benchmark", 9), ("tools", 7)])
def test_a_stage_ends_within_its_minutes(stage: str, minutes: int) -> None:
    assert gpu_check.limit_of(stage) <= 60 * minutes


def test_tools_that_are_missing_are_named_and_nothing_passes(
    built: Check, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "beside", lambda *names: "")
    assert gpu_check.run_stage(built, report, "tools") == 77
    told = {result.name: (result.outcome, result.why) for result in built.results}
    assert told["profile_sample"] == ("skipped", "ncu is missing")
    assert told["replay_on_device_racecheck"] == ("skipped", "compute-sanitizer is missing")
    assert {outcome for name, (outcome, _) in told.items() if name != "device"} == {"skipped"}


def test_tools_find_something_or_pass(built: Check, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = built.logs / "tool"
    shell_program(tool, "Duration 3 us, ERROR SUMMARY: 0 errors")
    monkeypatch.setattr(gpu_check, "beside", lambda *names: str(tool))
    assert gpu_check.run_stage(built, report, "tools") == 0
    checks = [f"{name}_{kind}" for name in gpu_check.DEVICE_PROGRAMS for kind in gpu_check.SANITIZERS]
    passed = {result.name for result in built.results if result.outcome == "passed"}
    assert passed - {"device", "context_held"} == {*checks, "profile_sample", "profile_update", "profile_add"}


def test_a_context_is_held_until_the_stage_ends(check: Check) -> None:
    (check.repository / "tests" / "gpu").mkdir(parents=True)
    holder = check.repository / "tests" / "gpu" / "hold_context.py"
    ended = check.repository / "ended"
    holder.write_text(f"import sys; print('held', flush=True); sys.stdin.read(); open({str(ended)!r}, 'w')")
    with gpu_check.context_held(check):
        assert not ended.exists()
    assert ended.exists()
    holder.write_text("print('no driver')")
    with gpu_check.context_held(check):
        pass
    assert outcomes(check) == [("passed", ""), ("skipped", "no driver")]


@pytest.mark.skipif(not rehearse.SIMULATED.exists(), reason="no build/libper_simulated.so: it needs Boost.Context")
def test_what_is_rehearsed_is_there() -> None:
    rehearse.lay_out()
    named = [word for file in rehearse.FOLDER.iterdir() if file.is_file() for word in scripted(file)]
    assert len(named) > 60
    assert [word for word in named if not pathlib.Path(word).exists()] == []


def scripted(file: pathlib.Path) -> list[str]:
    """The programs of build/ that a script runs."""
    text = file.read_bytes()[:4096].decode(errors="ignore")
    return re.findall(rf"{re.escape(str(rehearse.SIMULATOR))}/\w+", text) if text.startswith("#!/bin/sh") else []


# ---- rivals


def run_rivals(modules: pathlib.Path, *capacities: str) -> subprocess.CompletedProcess[str]:
    """The program of the rivals on the CPU, with the modules of a folder in front of all others."""
    arguments = ["--device", "cpu", "--capacity", *capacities, "--batch", "8", "--seconds", "0"]
    return subprocess.run(
        [PYTHON, "bench/gpu/torch_baselines.py", *arguments],
        cwd=gpu_check.REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_rival_that_fails_ends_nothing_else(tmp_path: pathlib.Path) -> None:
    """The whole program on the CPU except graphs and the float tree, beside a TorchRL that fails."""
    (tmp_path / "tensordict.py").write_text("TensorDict = None")
    (tmp_path / "torchrl").mkdir()
    (tmp_path / "torchrl" / "__init__.py").write_text("raise RuntimeError('of another version')")
    done = run_rivals(tmp_path, "1000", "2000")
    assert done.returncode == 0, done.stderr
    told = check_steps.figures(done.stdout)
    assert [line["left_out"] for line in told if "left_out" in line] == ["RuntimeError: of another version"] * 2
    expected = {
        ("sample", "libper from Python"),
        ("add", "libper from Python"),
        ("rows", "libper from Python"),
        ("rows", "libper from Python, out="),
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


def test_libper_that_fails_fails_its_benchmark(tmp_path: pathlib.Path) -> None:
    (tmp_path / "per.py").write_text("raise RuntimeError('no libper')")
    done = run_rivals(tmp_path, "1000")
    told = check_steps.figures(done.stdout)
    left_out = [line["left_out"] for line in told if line["variant"] == "libper from Python"]
    assert (done.returncode, left_out) == (1, ["RuntimeError: no libper"] * 2)
    assert any(line["variant"] == "multinomial" for line in told)
