"""Runs the programs of a check, each with a time limit, and keeps their results."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

NO_DEVICE = 77  # exit status of a program that found no device
TAIL_LINES = 15  # lines of a log shown after a failure

Figure = dict[str, Any]


@dataclasses.dataclass
class Result:
    name: str
    outcome: str  # passed, failed, skipped, or cut when the time of its part was over
    seconds: float
    why: str  # the reason, unless it passed; for a failure, the last printed line
    figures: list[Figure] = dataclasses.field(default_factory=list)  # the printed lines of JSON


@dataclasses.dataclass
class Program:
    """A program to run, and how to interpret its outcome."""

    name: str
    command: list[str]
    limit_s: float
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    # A program that fails and prints one of these cannot work on this machine, and is skipped.
    refusals: tuple[str, ...] = ()
    # A program that does not print this has not passed, whatever its status.
    evidence: str = ""


def say(text: str) -> None:
    print(f"gpu_check: {text}", flush=True)


def tail(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.strip().splitlines()[-TAIL_LINES:])


def figures(text: str) -> list[Figure]:
    """Finds the lines of JSON in a program's output. Other lines may resemble them."""
    found = []
    for line in text.splitlines():
        if line.startswith("{") and line.endswith("}"):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def run_to_the_end(
    command: list[str], folder: pathlib.Path, log: pathlib.Path, limit_s: float, environment: dict[str, str]
) -> int | None:
    """Runs a command. Returns its status, or None if it timed out and was killed with all of its children."""
    with log.open("w") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            output.write(f"{error}\n")
            return 127
        try:
            return process.wait(max(limit_s, 0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            output.write("cannot be killed\n")
        return None


class Check:
    """The results so far, and the time left. Threads may share it."""

    def __init__(self, repository: pathlib.Path, logs: pathlib.Path, limit_s: float, only: list[str]) -> None:
        self.repository = repository
        self.logs = logs
        self.only = only
        self.start = time.monotonic()
        self.end = self.start + limit_s
        self.part_end = self.end
        self.results: list[Result] = []
        self.when_added: Callable[[Check], None] = lambda check: None
        self._lock = threading.Lock()

    def time_left(self) -> float:
        """Seconds until the running part must end."""
        return self.part_end - time.monotonic()

    @contextlib.contextmanager
    def part(self, end: float) -> Iterator[None]:
        """A context. Programs that run in it must end by `end`, so that later parts have time."""
        self.part_end = min(self.end, end)
        try:
            yield
        finally:
            self.part_end = self.end

    def is_wanted(self, name: str) -> bool:
        return not self.only or name in ("build", "bridge") or any(wanted in name for wanted in self.only)

    def add(self, name: str, outcome: str, why: str = "", seconds: float = 0.0, log: str = "", **more: Any) -> None:
        """Adds a requested result. Unless it passed, shows the end of `log`, the program's output."""
        if not self.is_wanted(name):
            return
        with self._lock:
            self.results.append(Result(name, outcome, round(seconds, 1), why[:300], **more))
            took = f" ({seconds:.1f} s)" if seconds else ""
            say(f"{outcome}: {name}{took}" + (f": {why[:300]}" if why else ""))
            if outcome in ("failed", "cut") and log.strip():
                print(tail(log), flush=True)
            self.when_added(self)

    def count(self, outcome: str) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def status(self, n_preparing: int = 0) -> int:
        """The exit status. A cut program did not pass, and a check passes only if a program passed after the first
        n_preparing results."""
        if self.count("failed") or self.count("cut"):
            return 1
        return 0 if any(result.outcome == "passed" for result in self.results[n_preparing:]) else NO_DEVICE

    def run(self, program: Program) -> str:
        """Runs a requested program. Returns its output, which is also in NAME.log."""
        name = program.name
        if not self.is_wanted(name):
            return ""
        time_left = self.time_left()
        if time_left < 1:
            self.add(name, "cut", "the time of its part was over before it began")
            return ""
        limit_s = min(program.limit_s, time_left)
        begin = time.monotonic()
        log = self.logs / f"{name}.log"
        status = run_to_the_end(program.command, self.repository, log, limit_s, program.environment)
        text = log.read_text(errors="replace")
        outcome, why = self._outcome(program, status, text, limit_s)
        self.add(name, outcome, why, time.monotonic() - begin, text, figures=figures(text))
        return text

    def _outcome(self, program: Program, status: int | None, text: str, limit_s: float) -> tuple[str, str]:
        last = text.strip().splitlines()[-1] if text.strip() else f"exits with {status}"
        if status is None and limit_s < program.limit_s:
            return "cut", f"the time of its part was over after {limit_s:.0f} s"
        if status is None:
            return "failed", f"does not end within {limit_s:.0f} s"
        if status != 0:
            for refusal in program.refusals:
                if refusal in text:
                    return "skipped", refusal
        if status == NO_DEVICE:
            return "skipped", last.removeprefix("skipped: ")
        if status < 0:
            return "failed", f"{signal.Signals(-status).name}: {last}"
        if status > 0:
            return "failed", last
        if program.evidence not in text:
            return "failed", f'exits with 0, but prints no "{program.evidence}": {last}'
        return "passed", ""

    def run_side_by_side(self, programs: list[Program], n_at_a_time: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(n_at_a_time) as pool:
            for run in [pool.submit(self.run, program) for program in programs]:
                run.result()
