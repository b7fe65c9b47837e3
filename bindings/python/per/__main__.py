"""python -m per: inspects checkpoints, measures this machine, and demonstrates prioritized replay."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import io
import itertools
import os
import pathlib
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

import per
from per import _options
from per._handle import created
from per._library import NULL, lib

# Programs, by path in the source tree. A wheel carries them in per/programs.
BENCH = "bench/peers.py"
REFEREE = "bench/referee/referee.py"
DEMO = "examples/python/rare_reward.py"

BINS = 10
BENCH_SECONDS = 3  # for each capacity and batch size

HELP = {"-h", "--help"}


def info(file: str) -> None:
    """Prints the contents of a checkpoint."""
    buffer = per.ReplayBuffer.load(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # suspected resets are printed below
        stats = buffer.stats()
    drawn = "sequences" if buffer.options["sequence_length"] else "transitions"
    files = [file] if os.path.isfile(file) else [entry.path for entry in os.scandir(file) if entry.is_file()]
    print(f"{file}: {sum(map(os.path.getsize, files)):,} bytes")
    print("\nfields, beside reward, terminated and truncated")
    for name, field in buffer.fields.items():
        form = f", stacks of {field.stack}" if field.stack != 1 else ""
        if field.max_length is not None:
            form = f", up to {field.max_length:,} values a row"
        print(f"  {name}: {field.dtype}{list(field.shape)}, {field.role}{form}")
    print("\ncontents")
    print(f"  rows: {stats.capacity:,} in the rings of {buffer.options['n_envs']:,} environments")
    print(f"  live: {stats.live:,} {drawn} can be drawn")
    print(f"  added: {stats.added:,} transitions; {stats.dropped:,} steps of environments that reset were left out")
    print(
        f"  episodes: {stats.episodes:,} ended, {stats.cuts:,} of them cut; suspected resets {stats.suspected_resets:,}"
    )
    print(f"  draws: {stats.samples:,} batches")
    print(f"  priorities set: {stats.updates:,}; too late {stats.stale_updates:,}, refused {stats.rejected_updates:,}")
    print("\noptions that are not the defaults")
    defaults = inspect.signature(per.ReplayBuffer).parameters
    shown_above = ("capacity", "fields", "n_envs", "device", "arrays")
    given = {
        name: value
        for name, value in buffer.options.items()
        if name not in shown_above and value != defaults[name].default
    }
    for name, value in given.items():
        print(f"  {name}={value!r}")
    if not given:
        print("  none")
    print(f"\npriorities of live {drawn}, before the exponent alpha")
    for line in histogram(buffer.priorities(buffer.live_ids())):
        print(f"  {line}")


def histogram(priorities: npt.NDArray[np.float32]) -> Iterator[str]:
    """Lines with a bar for each of up to BINS ranges of equal ratio, and a separate line for priorities of 0.

    There are only as many ranges as have edges that print differently.
    """
    positive = priorities[priorities > 0].astype(np.float64)
    rows = []
    if positive.size < priorities.size:
        rows.append(("0", priorities.size - positive.size))
    if positive.size:
        low, high = positive.min(), positive.max()
        for bins in range(BINS, 0, -1):
            edges = np.geomspace(low, high, bins + 1)
            edges[0], edges[-1] = low, high
            labels = [f"{edge:.3g}" for edge in edges]
            if len(set(labels)) == len(labels):
                counts = np.histogram(positive, edges)[0]
                ranges = [f"{a} .. {b}" for a, b in itertools.pairwise(labels)]
                break
        else:
            counts, ranges = np.array([positive.size]), [labels[0]]
        rows += list(zip(ranges, map(int, counts), strict=True))
    most = max((count for _, count in rows), default=0)
    width = max(10, min(shutil.get_terminal_size().columns, 100) - 44)
    for label, count in rows:
        yield f"{label:>22} {count:>14,}  {'#' * -(-width * count // most)}".rstrip()
    if not rows:
        yield "none"


def verify(file: str) -> None:
    """Checks a whole checkpoint as loading does: its checksums, and that the state it holds is a valid one."""
    created(lib.per_replay_load, _options.path(file), NULL)
    print(f"{file}: whole")


def require(command: str, *modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise per.Unsupported(f"{command} needs {' and '.join(missing)}: pip install 'libper[{command}]'")


def run_program(path: str, command: str, arguments: list[str]) -> int:
    """Runs main() of a program of the source tree under the name of that command, and returns its exit status."""
    package = pathlib.Path(__file__).resolve().parent
    places = [root / path for root in (package / "programs", *package.parents[2:3])]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise per.Unsupported(f"{command} needs a program that is in none of: {', '.join(map(str, places))}")
    sys.argv = [f"python -m per {command}", *arguments]
    sys.path.insert(0, str(found.parent))
    return int(importlib.import_module(found.stem).main() or 0)


def bench(arguments: list[str]) -> int:
    """Measures libper beside the other libraries that are installed."""
    defaults = ["--seconds", str(BENCH_SECONDS)]
    if importlib.util.find_spec("matplotlib"):
        defaults += ["--picture", "peers.png"]
    elif HELP.isdisjoint(arguments):
        print("no picture: that needs matplotlib (pip install 'libper[plot]')", file=sys.stderr)
    return run_program(BENCH, "bench", [*defaults, *arguments])


def referee(arguments: list[str]) -> int:
    """Checks the promises of the installed replay libraries."""
    return run_program(REFEREE, "referee", arguments)


def demo(arguments: list[str]) -> int:
    """Trains agents with prioritized and uniform replay on a task with rare rewards."""
    if HELP.isdisjoint(arguments):
        require("demo", "matplotlib", "tqdm")
    return run_program(DEMO, "demo", arguments)


PROGRAMS: dict[str, Callable[[list[str]], int]] = {"bench": bench, "referee": referee, "demo": demo}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m per",
        description="Prioritized experience replay: inspects checkpoints, measures this machine, runs a demo.",
        epilog="Exit status: 0; 1 if a file is damaged, or a module or program is missing; 2 for wrong arguments; "
        "3 if a check of the referee fails.",
    )
    parser.add_argument("--version", action="version", version=f"libper {per.__version__} ({per.library_path})")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    of_file = {
        "info": (
            "what a checkpoint holds: fields, rows, episodes, options, and a histogram of its priorities",
            "To do so, it loads the checkpoint into memory.",
        ),
        "verify": (
            "check all of a checkpoint: exit status 0 if it is whole, else 1 and a line with the damaged section",
            "A checkpoint is whole if it can be loaded: all checksums are right, and the state in it is possible.",
        ),
    }
    for name, (says, more) in of_file.items():
        command = commands.add_parser(name, help=says, description=f"{says.capitalize()}. {more}")
        command.add_argument("file", metavar="FILE", help="what save() or checkpoint() wrote, a file or a directory")
    of_program = {
        "bench": "measure libper beside the replay libraries that are installed: a table, and peers.png",
        "referee": "check the promises of the installed replay libraries: a table, and the failures",
        "demo": "train agents with prioritized and with uniform replay where rewards are rare: rare_reward.png",
    }
    for name, says in of_program.items():
        commands.add_parser(name, add_help=False, help=f"{says}; {name} --help names its options")

    options, rest = parser.parse_known_args(arguments)
    if options.command is None:
        parser.exit(2, parser.format_help())
    if rest and options.command in of_file:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid UTF-8
    try:
        if options.command == "info":
            info(options.file)
        elif options.command == "verify":
            verify(options.file)
        else:
            return PROGRAMS[options.command](options.rest)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()  # the reader closed the pipe, as `| head` does
    except (per.Error, OSError) as error:
        print(f"python -m per {options.command}: {error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
        return 1
    return 0


def discard_output() -> None:
    """Sends to /dev/null what could not be written: Python's flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
