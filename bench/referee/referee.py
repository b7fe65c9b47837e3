#!/usr/bin/env python3
"""Judges replay libraries: checks their promises, in the same way for all.

    python -m per referee                                          all checks of all libraries that are installed
    python -m per referee --library cpprb tianshou --check law     a group of checks; or name single ones
    python -m per referee --library my_library.py                  an adapter of yours, which defines a contract.Library
    python -m per referee --library Reverb --python tf/bin/python  a library that is installed in another environment

Installs nothing. Each library runs in processes of its own, so that a crash is an outcome, too. An outcome is holds,
fails, - (the library does not claim it) or ? (it cannot be tried here).

Exit status: 0; 1 if nothing can be judged; 2 for wrong arguments; 3 if a check fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import runner
from libraries import LIBRARIES
from runner import CANNOT, FAILS, HOLDS, NOT_CLAIMED

HERE = Path(__file__).resolve().parent
KNOWN = HERE / "known.json"
CHECK_FAILS = 3  # exit status
COUNTS = {HOLDS: "hold", FAILS: "fail", NOT_CLAIMED: "not claimed", CANNOT: "cannot be tried"}
CELLS = {HOLDS: "holds", FAILS: "FAILS", NOT_CLAIMED: "-", CANNOT: "?"}

Report = dict[str, dict[str, Any]]  # by library: what runner.described() says, and its results by check


def known_issues() -> dict[tuple[str, str], str]:
    """URLs of public issues, by library and check."""
    return {(entry["library"], entry["check"]): entry["url"] for entry in json.loads(KNOWN.read_text())}


def circumstances() -> dict[str, Any]:
    """Machine, commit and date, as bench/peers.py records them."""
    sys.path.append(str(HERE.parent))
    import peers

    return {"machine": peers.machine(), "commit": peers.commit(), "date": datetime.date.today().isoformat()}


def judged(names: list[str], checks: list[str], python: str) -> Iterator[Report]:
    """Judges the libraries that are installed, one by one. Prints the others, and the progress, to stderr."""
    place = circumstances()
    for name, about in runner.about(names, python).items():
        if "missing" in about:
            print(f"not installed: {about['name']} ({about['missing']})", file=sys.stderr)
            continue
        print(f"{titled(about['name'], about)}: ", end="", file=sys.stderr, flush=True)

        def tick(result: runner.Result) -> None:
            print(
                {HOLDS: ".", FAILS: "F"}.get(result.outcome, CELLS[result.outcome]), end="", file=sys.stderr, flush=True
            )

        results = runner.judge(name, checks, python, tick)
        print(file=sys.stderr)
        place["machine"] = place["machine"] | {"python": about.pop("python")}
        by_check = {result.check: {"outcome": result.outcome, "shown": result.shown} for result in results}
        yield {about["name"]: about | place | {"results": by_check}}


def merged(earlier: Report, later: Report) -> Report:
    """Later results replace earlier ones; those of other checks stay if they are of the same version and machine."""
    together = dict(earlier)
    for name, entry in later.items():
        before = earlier.get(name, {})
        same = all(before.get(key) == entry[key] for key in ("version", "machine"))
        kept = before["results"] if same else {}
        together[name] = entry | {"results": dict(sorted((kept | entry["results"]).items()))}
    return dict(sorted(together.items(), key=lambda item: item[0].lower()))


def titled(name: str, entry: dict[str, Any]) -> str:
    return f"{name} {entry['version']}".strip()


def figure(check: runner.Check, result: dict[str, str]) -> str:
    """The number and the unit with which a check of costs ends, or nothing."""
    words = result["shown"].split()[:2]
    measured = check.group == "cost" and result["outcome"] == HOLDS and words and words[0][0].isdigit()
    return " ".join(words).rstrip(",;:") if measured else ""


def cell(check: runner.Check, entry: dict[str, Any]) -> str:
    """The figure or the outcome of a check, or nothing if it was not tried."""
    result = entry["results"].get(check.name)
    return "" if result is None else figure(check, result) or CELLS[result["outcome"]]


def print_table(report: Report, names: list[str]) -> None:
    """Checks as rows and libraries as columns, in as many tables as the terminal needs."""
    checks = [check for check in runner.checks() if check.name in names]
    first = max(map(len, names)) + 2
    widths = {
        name: max(len(name), *(len(cell(check, entry)) for check in checks)) + 2 for name, entry in report.items()
    }
    left = list(report)
    while left:
        room, names = shutil.get_terminal_size().columns - first, []
        while left and (not names or widths[left[0]] <= room):
            room -= widths[left[0]]
            names.append(left.pop(0))
        group = ""
        for check in checks:
            if check.group != group:
                group = check.group
                print(f"\n{group:{first}}" + "".join(f"{name:>{widths[name]}}" for name in names))
            cells = (f"{cell(check, report[name]):>{widths[name]}}" for name in names)
            print(f"{check.name:{first}}" + "".join(cells))


def print_lines(report: Report) -> None:
    """The lines of failures, then for each library its reasons and figures, and how many checks have which outcome."""
    by_name, known = {check.name: check for check in runner.checks()}, known_issues()
    for name, entry in report.items():
        for check, result in entry["results"].items():
            if result["outcome"] != FAILS:
                continue
            print(f"\n{titled(name, entry)} fails {check}")
            print(wrapped(by_name[check].promise, "  "))
            print(wrapped(f"Source: {by_name[check].source}", "  "))
            print(textwrap.indent(result["shown"], "      "))
            if (name, check) in known:
                print(f"  Known: {known[name, check]}")
    print()
    for name, entry in report.items():
        outcomes = [result["outcome"] for result in entry["results"].values()]
        counts = (f"{outcomes.count(outcome)} {word}" for outcome, word in COUNTS.items() if outcome in outcomes)
        print(f"{titled(name, entry)}: {', '.join(counts)}")
        for check, result in entry["results"].items():
            if result["outcome"] == CANNOT:
                print(f"  {check} cannot be tried: {result['shown']}")
            elif result["outcome"] == HOLDS and result["shown"]:
                print(f"  {check}: {result['shown']}")


def wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent)


def print_list(python: str) -> None:
    for check in runner.checks():
        print(f"{check.name} ({check.group})")
        print(wrapped(check.promise, "    "))
        print(wrapped(f"Source: {check.source}", "    "))
    print("\nlibraries")
    for name, about in runner.about(list(LIBRARIES), python).items():
        print(f"    {name}: {about.get('version') or 'not installed'}")


def chosen_checks(asked: list[str] | None) -> list[str]:
    """Names of checks, in their order, from names of checks and groups."""
    every = runner.checks()
    return [check.name for check in every if asked is None or {check.name, check.group} & set(asked)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    libraries = ", ".join(LIBRARIES)
    parser.add_argument("--library", nargs="+", metavar="NAME", help=f"of {libraries}; or the file of an adapter")
    parser.add_argument("--check", nargs="+", metavar="NAME", help="checks or groups of checks; --list names them")
    parser.add_argument(
        "--python", default=sys.executable, metavar="EXECUTABLE", help="where the libraries are installed"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results; FILE keeps those of other libraries"
    )
    parser.add_argument("--list", action="store_true", help="judge nothing: print checks with promises and sources")
    arguments = parser.parse_args()
    for name in arguments.library or ():
        if name not in LIBRARIES and not (name.endswith(".py") and Path(name).is_file()):
            parser.error(f"--library is {name}; allowed: {libraries}, or a file that ends with .py")
    groups = {check.group for check in runner.checks()}
    for name in arguments.check or ():
        if name not in groups | {check.name for check in runner.checks()}:
            parser.error(f"--check is {name}; allowed: names that --list prints, {', '.join(sorted(groups))}")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json is {arguments.json}, in a directory that does not exist")
    if shutil.which(arguments.python) is None:
        parser.error(f"--python is {arguments.python}, which cannot be executed")
    return arguments


def main() -> int:
    arguments = parse()
    if arguments.list:
        print_list(arguments.python)
        return 0
    checks = chosen_checks(arguments.check)
    report: Report = {}
    for one in judged(arguments.library or list(LIBRARIES), checks, arguments.python):
        report |= one
        if arguments.json:
            earlier = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
            arguments.json.write_text(json.dumps(merged(earlier, one), indent=1) + "\n")
    if not report:
        print("nothing is judged: no library is installed", file=sys.stderr)
        return 1
    print_table(report, checks)
    print_lines(report)
    outcomes = {result["outcome"] for entry in report.values() for result in entry["results"].values()}
    return CHECK_FAILS if FAILS in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
