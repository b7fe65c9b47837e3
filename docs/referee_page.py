#!/usr/bin/env python3
"""Renews what referee.md and migration/index.md show of bench/results/referee/*.json.

    .venv/bin/python docs/referee_page.py

It replaces the text between the comments "from the results: NAME" and "end" of each page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "referee"))
import referee
import runner
from libraries import LIBRARIES
from runner import CANNOT, FAILS, HOLDS, NOT_CLAIMED

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "bench" / "results" / "referee"
PAGES = (DOCS / "referee.md", DOCS / "migration" / "index.md")
MIGRATED = ("libper", "TorchRL", "cpprb", "Reverb", "Flashbax", "tianshou", "stable-baselines3")
FEATURES = {
    "servers": "buffers in servers, which clients reach over a network",
    "selectors": "several tables or selectors over the same rows",
    "gpu": "rows and priorities on a GPU",
    "windows": "Windows",
    "macos": "macOS",
    "pure_python": "pure Python: nothing is compiled",
}

Report = dict[str, dict[str, Any]]


def report_of(files: Iterable[Path]) -> Report:
    """Each library as it was judged last, in the order of LIBRARIES, without checks that are no more."""
    latest: Report = {}
    names = {check.name for check in runner.checks()}
    for file in sorted(files):
        for library, entry in json.loads(file.read_text()).items():
            if library not in latest or entry["date"] > latest[library]["date"]:
                latest[library] = entry
    for entry in latest.values():
        entry["results"] = {check: result for check, result in entry["results"].items() if check in names}
    places = {name: place for place, name in enumerate(LIBRARIES)}
    return dict(sorted(latest.items(), key=lambda item: (places.get(item[0], len(places)), item[0])))


def words(check: str) -> str:
    return check.replace("_", " ")


def anchor(heading: str) -> str:
    """As MyST and GitHub make it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def escaped(text: str) -> str:
    """Text in a table's cell or in a paragraph: nothing in it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#$])", r"\\\1", " ".join(text.split()))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def cell(check: runner.Check, library: str, entry: dict[str, Any]) -> str:
    result = entry["results"].get(check.name)
    if result is None:
        return ""
    shown = {HOLDS: referee.figure(check, result) or "holds", NOT_CLAIMED: "–", CANNOT: "?"}
    return shown.get(result["outcome"], f"[**fails**](#{anchor(library)})")


def groups() -> list[str]:
    return list(dict.fromkeys(check.group for check in runner.checks()))


def outcomes(report: Report) -> str:
    """A table for each group of checks."""
    parts = []
    for group in groups():
        rows = [
            [words(check.name), *(cell(check, name, entry) for name, entry in report.items())]
            for check in runner.checks()
            if check.group == group
        ]
        parts.append(f"### {group.capitalize()}\n\n{table(['', *report], rows)}")
    return "\n".join(parts)


def features(report: Report) -> str:
    rows = [
        [says, *("yes" if entry["features"][feature] else "–" for entry in report.values())]
        for feature, says in FEATURES.items()
    ]
    return table(["", *report], rows)


def promises(report: Report) -> str:
    rows = [[f"`{check.name}`", escaped(check.promise), escaped(check.source)] for check in runner.checks()]
    return table(["check", "promise", "source"], rows)


def reasons(entry: dict[str, Any], outcome: str) -> str:
    """The reasons of an outcome, each with its checks."""
    checks: dict[str, list[str]] = {}
    for check in runner.checks():
        result = entry["results"].get(check.name)
        if result is not None and result["outcome"] == outcome:
            checks.setdefault(result["shown"], []).append(words(check.name))
    return "".join(f"- {escaped(reason)}: {', '.join(names)}\n" for reason, names in checks.items())


def figures(entry: dict[str, Any]) -> str:
    """What checks that hold have measured."""
    shown = ((check.name, entry["results"].get(check.name)) for check in runner.checks())
    return "".join(
        f"- {words(name)}: {escaped(result['shown'])}\n"
        for name, result in shown
        if result is not None and result["outcome"] == HOLDS and result["shown"]
    )


def counted(entry: dict[str, Any]) -> str:
    outcomes = [result["outcome"] for result in entry["results"].values()]
    holds, fails, unclaimed, untried = map(outcomes.count, (HOLDS, FAILS, NOT_CLAIMED, CANNOT))
    text = f"{holds} of {len(outcomes)} checks hold, {fails} fail, and {unclaimed} test what it does not claim"
    return f"{text}; {untried} cannot be tried here." if untried else f"{text}."


def libraries(report: Report) -> str:
    """A section for each library: its failures with their lines, then what it does not claim."""
    known = referee.known_issues()
    parts = []
    for name, entry in report.items():
        documents = f" ([documents]({entry['documents']}))" if entry["documents"] else ""
        parts.append(f"### {name}\n\n{referee.titled(name, entry)}{documents}: {counted(entry)}\n")
        for check in runner.checks():
            result = entry["results"].get(check.name)
            if result is None or result["outcome"] != FAILS:
                continue
            issue = f" ([public issue]({known[name, check.name]}))" if (name, check.name) in known else ""
            lines = result["shown"].replace("```", "'''")
            parts.append(f"**Fails: {words(check.name)}**{issue}\n\n```text\n{lines}\n```\n")
        if found := figures(entry):
            parts.append(f"Measured:\n\n{found}")
        for outcome, says in ((NOT_CLAIMED, "Does not claim"), (CANNOT, "Cannot be tried")):
            if found := reasons(entry, outcome):
                parts.append(f"{says}:\n\n{found}")
    return "\n".join(parts)


def versions(report: Report) -> str:
    rows = [
        [
            name,
            f"{entry['package']} {entry['version']}",
            entry["machine"]["python"],
            entry["date"],
            escaped("{processor}, {cores} cores, {system}".format_map(entry["machine"])),
        ]
        for name, entry in report.items()
    ]
    return table(["library", "version", "Python", "date", "machine"], rows)


def numbers(report: Report) -> str:
    count = sum(len(entry["results"]) for entry in report.values())
    return f"{len(runner.checks())} checks, {len(report)} libraries, {count:,} outcomes.\n"


def summary(report: Report) -> str:
    """Of the checks of what each library claims, how many hold; for the page of migrations."""
    shown = {name: report[name] for name in MIGRATED if name in report}
    rows = []
    for group in groups():
        cells = []
        for entry in shown.values():
            checks = [check.name for check in runner.checks() if check.group == group]
            outcomes = [entry["results"][check]["outcome"] for check in checks if check in entry["results"]]
            claimed = [outcome for outcome in outcomes if outcome in (HOLDS, FAILS)]
            cells.append(f"{claimed.count(HOLDS)} of {len(claimed)}" if claimed else "–")
        rows.append([f"[{group}](../referee.md#{group})", *cells])
    return table(["", *shown], rows)


BLOCKS = {
    "numbers": numbers,
    "outcomes": outcomes,
    "features": features,
    "libraries": libraries,
    "promises": promises,
    "versions": versions,
    "summary": summary,
}


def renewed(page: str, report: Report) -> str:
    """A page with the text of each of its blocks made of the results."""
    return re.sub(
        r"(?s)(<!-- from the results: (\w+) -->\n).*?(<!-- end -->\n)",
        lambda found: f"{found[1]}\n{BLOCKS[found[2]](report)}\n{found[3]}",
        page,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text(), report_of(RESULTS.glob("*.json"))))
