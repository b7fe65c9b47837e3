"""The report of a stage: one file of JSON, written again after each program, so that a crash loses nothing."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable

from check_steps import Check, Figure

# The sources on which the results depend.
SOURCES = (
    *("CMakeLists.txt", "cmake", "include", "src", "bindings/python"),
    *("tests/c", "tests/cpp", "tests/gpu", "tests/golden", "bench/gpu"),
)

# The time from a call until its work is done, the same for launches of its graph, and the device's time for its
# kernels.
CALL, GRAPH, KERNEL = "call_us", "graph_call_us", "kernel_us"
IN_PYTHON = "libper from Python"
BATCHES = (256, 1024, 4096)

# libper's rivals. Only like figures are compared: calls from Python, graphs, kernels. The columns are: case, capacity,
# batches, unit, whose figure, which figure, and the target speed-up, if there is one.
TARGETS = (
    ("draw", 1_000_000, BATCHES, "libper", "float tree", KERNEL, 1.7),
    ("rows", 1_000_000, BATCHES, IN_PYTHON, "coursework, end to end", CALL, 10.0),
    ("rows", 1_000_000, BATCHES, IN_PYTHON, "coursework, end to end", GRAPH, None),
    ("rows", 1_000_000, BATCHES, IN_PYTHON, "cumsum and searchsorted", CALL, 7.0),
    ("rows", 1_000_000, BATCHES, IN_PYTHON, "cumsum and searchsorted", GRAPH, None),
    ("sample", 100_000_000, BATCHES, IN_PYTHON, "cumsum and searchsorted", CALL, 50.0),
    ("rows", 1_000_000, BATCHES, IN_PYTHON, "TorchRL", CALL, 15.0),
    ("update", 1_000_000, BATCHES, IN_PYTHON, "coursework, end to end", CALL, 5.0),
    ("update", 1_000_000, (256,), IN_PYTHON, "TorchRL", CALL, 30.0),
    ("update", 1_000_000, (4096,), IN_PYTHON, "TorchRL", CALL, 80.0),
)


def output_of(*command: str, folder: pathlib.Path | None = None) -> str:
    """Returns the output of a command, or nothing if the command is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def digest_of(repository: pathlib.Path, places: Iterable[str]) -> str:
    """Hashes names and contents of the files at these places: files, folders or patterns. Works without git."""
    digest = hashlib.sha256()
    for place in places:
        found = sorted(repository.glob(place))
        for file in sorted(file for path in found for file in (path.rglob("*") if path.is_dir() else [path])):
            path = file.relative_to(repository)
            is_made = any(part in ("__pycache__", "build") or part[0] == "." or ".egg-" in part for part in path.parts)
            if file.is_file() and not is_made and file.suffix not in (".so", ".o"):
                digest.update(f"{path}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def commit(repository: pathlib.Path) -> str:
    # The folder may belong to another user; git then refuses it by default.
    git = ("git", "-c", f"safe.directory={repository}", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    carried = repository / "build-gpu" / "commit"  # for a copy without .git
    return output_of(*git, folder=repository) or (carried.read_text() if carried.exists() else "unknown")


def ratios(measured: list[Figure]) -> list[Figure]:
    """libper's figures compared with the others', as paired by TARGETS."""
    figures_of = {
        (figure["case"], figure["variant"], figure["capacity"], figure["batch"]): figure
        for figure in measured
        if "call_us" in figure
    }
    found = []
    for case, capacity, batches, own, other, which, target in TARGETS:
        for batch in batches:
            us, theirs = (figures_of.get((case, of, capacity, batch), {}).get(which) for of in (own, other))
            if us and theirs:
                key = {"case": case, "capacity": capacity, "batch": batch, "of": own, "other": other, "figure": which}
                found.append({**key, "times_as_fast": round(float(theirs) / float(us), 2), "target": target})
    return found


class Report:
    """The results and figures of one stage, in one file."""

    def __init__(self, repository: pathlib.Path, nvcc: str, stage: str, results: pathlib.Path | None = None) -> None:
        device = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        name, driver, memory = [*(part.strip() for part in device.split("\n")[0].split(",")), "", "", ""][:3]
        self.about = {
            "device": name,
            "driver": driver,
            "memory": memory,
            "nvcc": output_of(nvcc, "--version").split("\n")[-1],
            "python": sys.version.split()[0],
            "commit": commit(repository),
            "sources": digest_of(repository, SOURCES),
        }
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown-device"
        self.path = repository / "bench" / "results" / slug / f"gpu_{stage}.json"
        self.results = results

    def has_device(self) -> bool:
        """Returns True if the machine has a device, usable or not."""
        return bool(self.about["device"]) or any(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))

    def before(self) -> Figure:
        """The earlier report of the same sources on the same device, which a partial check extends."""
        try:
            report: Figure = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        is_same = all(report.get(key) == self.about[key] for key in ("device", "driver", "nvcc", "sources"))
        return report if is_same else {}

    def write(self, check: Check) -> None:
        before = self.before() if check.only else {}
        results = {result["name"]: result for result in before.get("results", [])}
        results.update({result.name: dataclasses.asdict(result) for result in check.results})
        measured = [figure for result in results.values() for figure in result["figures"]]
        report = {
            **self.about,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            **{
                outcome: sum(result["outcome"] == outcome for result in results.values())
                for outcome in ("passed", "failed", "cut", "skipped")
            },
            "results": list(results.values()),
            "ratios": ratios(measured),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(report, indent=1) + "\n")
        beside.replace(self.path)
        if self.results is not None:
            self.results.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.path, self.results / self.path.name)

    def write_logs(self, check: Check) -> None:
        """Writes a single archive, as the number of files that can be carried may be limited."""
        if self.results is None:
            return
        with tarfile.open(self.results / f"{self.path.stem}_logs.tar.gz", "w:gz") as archive:
            for name in ("build", *(result.name for result in check.results)):
                if (check.logs / f"{name}.log").exists():
                    archive.add(check.logs / f"{name}.log", f"{name}.log")
