"""Runs checks in a separate process, so that a crash or a hang is an outcome like any other."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import libraries
from contract import CHECKS, CannotTry, Check, Failed, Library, NotClaimed

HOLDS, FAILS, NOT_CLAIMED, CANNOT = "holds", "fails", "does not claim it", "cannot be tried"
SECONDS = 120  # for a check
GRACE = 30  # until a worker is killed that is in a call which no signal interrupts
MOST_LINES = 10
WORKER = Path(__file__).with_name("worker.py")
PLACES = re.compile(r'File "[^"]*/(?=site-packages/|bench/referee/)')  # this machine's, in tracebacks
FEATURES = ("servers", "selectors", "gpu", "windows", "macos", "pure_python")  # attributes of a Library
GROUPS = ("law", "trajectories", "robustness", "cost")  # modules with checks


@dataclasses.dataclass
class Result:
    check: str
    outcome: str
    shown: str = ""  # the lines that show it, the reason, or a figure
    seconds: float = 0.0


def checks() -> list[Check]:
    """All checks, in the order of the page."""
    if not CHECKS:
        for module in GROUPS:
            importlib.import_module(module)
    return CHECKS


def shortened(text: str) -> str:
    text = PLACES.sub('File "', text.strip())
    lines = [line for line in text.splitlines() if line.strip(" ~^")]  # without those that underline parts of others
    return "\n".join(line[:160] for line in lines[-MOST_LINES:])


class _TooLong(BaseException):
    pass


def _alarm(*_: object) -> None:
    raise _TooLong


def try_check(check: Check, library: Library) -> Result:
    """Runs one check here. An error that the check does not expect is a failure, shown by its last lines."""
    started = os.times().elapsed
    previous = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if check.name in library.disclaims:
                raise NotClaimed(library.disclaims[check.name])
            outcome, shown = HOLDS, check.run(library) or ""
    except NotClaimed as reason:
        outcome, shown = NOT_CLAIMED, str(reason)
    except CannotTry as reason:
        outcome, shown = CANNOT, str(reason)
    except Failed as failure:
        outcome, shown = FAILS, str(failure)
    except _TooLong:
        outcome, shown = FAILS, f"no result within {SECONDS} s"
    except Exception:
        outcome, shown = FAILS, traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return Result(check.name, outcome, shortened(shown), round(os.times().elapsed - started, 2))


def serve(library: Library, names: list[str]) -> None:
    """In the child: prints a line before and after each check."""
    by_name = {check.name: check for check in checks()}
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout as they like
    for name in names:
        print(json.dumps({"begins": name}), file=out, flush=True)
        print(json.dumps(dataclasses.asdict(try_check(by_name[name], library))), file=out, flush=True)


def judge(
    name: str,
    chosen: list[str],
    python: str = sys.executable,
    report: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Runs the checks on a library in child processes: a new one after each that dies.

    `python` is the interpreter in whose environment the library is installed. report() gets each result as it arrives.
    """
    results: list[Result] = []
    left = list(chosen)

    def tell(result: Result) -> None:
        results.append(result)
        left.remove(result.check)
        report(result)

    while left:
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            begun, ending = _run_child([python, str(WORKER), name, *left], errors, tell)
            if begun is not None:
                tell(Result(begun, FAILS, ending))
            elif left:
                errors.seek(0)
                reason = (errors.read().strip().splitlines() or [ending])[-1][:160]
                for check in list(left):
                    tell(Result(check, CANNOT, f"the library cannot be used here: {reason}"))
    return results


def _run_child(command: list[str], errors: IO[str], tell: Callable[[Result], None]) -> tuple[str | None, str]:
    """Runs a worker until it ends. Returns the check that it did not finish, if any, and how it ended."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    assert child.stdout is not None
    too_long = threading.Event()

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # processes that a check started belong to the group, too

    def stop() -> None:
        too_long.set()
        kill()

    begun = None
    timer = threading.Timer(SECONDS + GRACE, stop)
    timer.start()
    try:
        for line in child.stdout:
            timer.cancel()
            timer = threading.Timer(SECONDS + GRACE, stop)
            timer.start()
            told: dict[str, Any] = json.loads(line)
            begun = told.get("begins")
            if begun is None:
                tell(Result(**told))
        status = child.wait()
    finally:
        timer.cancel()
        kill()
        child.wait()
        child.stdout.close()
    if too_long.is_set() and status == -signal.SIGKILL:
        return begun, f"no result within {SECONDS} s"
    death = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return begun, f"the process ended with {death}"


def about(names: list[str], python: str = sys.executable) -> dict[str, dict[str, Any]]:
    """What described() says of each library in the environment of an interpreter."""
    command = [python, str(WORKER), "--about", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{python} cannot describe the libraries: {(done.stderr.strip().splitlines() or [''])[-1]}")
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"'):  # libraries print to stdout as they like
            found |= json.loads(line)
    return found


def described(name: str) -> dict[str, Any]:
    """In the child: version and features of a library. "missing" says why it cannot be used."""
    try:
        library = libraries.find(name)
        if importlib.util.find_spec(library.module.partition(".")[0]) is None:
            return {"name": library.name, "missing": f"pip install {library.package}"}
        importlib.import_module(library.module)  # which may need more than the library's package
        version = version_of(library)
    except ImportError as error:
        return {"name": name, "missing": str(error)}
    return {
        "name": library.name,
        "package": library.package,
        "version": version,
        "documents": library.documents,
        "python": platform.python_version(),
        "features": {feature: bool(getattr(library, feature)) for feature in FEATURES},
    }


def version_of(library: Library) -> str:
    if not library.package:
        return ""
    try:
        return importlib.metadata.version(library.package)
    except importlib.metadata.PackageNotFoundError:  # used from its source tree
        return str(getattr(importlib.import_module(library.module), "__version__", ""))
