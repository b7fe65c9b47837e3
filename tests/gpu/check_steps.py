"""Running the programs of a check one by one, each with a limit of time, and keeping what came of them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import threading
import time

NO_DEVICE = 77  # how a program says that it found none
TAIL_LINES = 15  # of a log that are shown where something fails


@dataclasses.dataclass
class Result:
    name: str
    outcome: str  # passed, failed, skipped
    seconds: float
    why: str  # of what was skipped, and the last line of what failed


def say(text: str) -> None:
    print(f"gpu_check: {text}", flush=True)


def tail(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.strip().splitlines()[-TAIL_LINES:])


def run_to_the_end(
    command: list[str], folder: pathlib.Path, log: pathlib.Path, limit_s: float, environment: dict[str, str]
) -> int | None:
    """Its status; None where it took longer, and was killed with all that it had started."""
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
    """What was checked so far, and the time that is left for more. Threads may share it."""

    def __init__(self, repository: pathlib.Path, logs: pathlib.Path, limit_s: float, only: list[str]) -> None:
        self.repository = repository
        self.logs = logs
        self.limit_s = limit_s
        self.only = only
        self.start = time.monotonic()
        self.results: list[Result] = []
        self._lock = threading.Lock()

    def time_left(self) -> float:
        return self.limit_s - (time.monotonic() - self.start)

    def is_wanted(self, name: str) -> bool:
        return not self.only or name == "build" or any(wanted in name for wanted in self.only)

    def add(self, name: str, outcome: str, seconds: float = 0.0, why: str = "", log: str = "") -> None:
        """Of what is wanted. `log`: what the program printed, whose end is shown if it failed."""
        if not self.is_wanted(name):
            return
        with self._lock:
            self.results.append(Result(name, outcome, round(seconds, 1), why[:300]))
            say(f"{outcome}: {name}" + (f": {why[:300]}" if why else ""))
            if outcome == "failed" and log.strip():
                print(tail(log), flush=True)

    def count(self, outcome: str) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def run(
        self, name: str, command: list[str], limit_s: float, keep_s: float = 0, refusal: str = "", **environment: str
    ) -> str:
        """Runs it, unless there is a reason not to; what it printed, also in NAME.log.

        keep_s: seconds at the end that are for others. refusal: what it prints where it cannot work on this machine.
        """
        if not self.is_wanted(name):
            return ""
        limit_s = min(limit_s, self.time_left() - keep_s)
        if limit_s < 1:
            self.add(name, "skipped", why="no time left")
            return ""
        begin = time.monotonic()
        log = self.logs / f"{name}.log"
        status = run_to_the_end(command, self.repository, log, limit_s, environment)
        text = log.read_text(errors="replace")
        last = text.strip().splitlines()[-1] if text.strip() else f"exits with {status}"
        seconds = time.monotonic() - begin
        if status == 0:
            self.add(name, "passed", seconds)
        elif refusal and refusal in text:
            self.add(name, "skipped", seconds, refusal)
        elif status == NO_DEVICE:
            self.add(name, "skipped", seconds, last.removeprefix("skipped: "))
        elif status is None:
            self.add(name, "failed", seconds, f"does not end within {limit_s:.0f} s", text)
        elif status < 0:
            self.add(name, "failed", seconds, f"{signal.Signals(-status).name}: {last}", text)
        else:
            self.add(name, "failed", seconds, last, text)
        return text
