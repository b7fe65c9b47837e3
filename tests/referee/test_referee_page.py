"""docs/referee.md and the page of migrations show what bench/results/referee has."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("referee_page", ROOT / "docs" / "referee_page.py")
assert specification is not None and specification.loader is not None
referee_page = importlib.util.module_from_spec(specification)
specification.loader.exec_module(referee_page)


def entry(**outcomes: tuple[str, str]) -> dict:
    return {
        "name": "cpprb",
        "package": "cpprb",
        "version": "11.0.0",
        "documents": "https://example.org/",
        "features": dict.fromkeys(referee_page.FEATURES, False) | {"windows": True},
        "machine": {"processor": "Xeon", "cores": 2, "system": "Linux 6", "python": "3.11.7"},
        "date": "2026-11-27",
        "results": {check: {"outcome": outcome, "shown": shown} for check, (outcome, shown) in outcomes.items()},
    }


@pytest.fixture
def report(tmp_path: Path) -> dict:
    """cpprb with each outcome, and tianshou, which is judged in two files."""
    one = {
        "cpprb": entry(
            draws_follow_equation_1=("fails", "chi-square 900\nlimit *131*"),
            priority_0_is_never_drawn=("does not claim it", "no [zeros]"),
            weights_follow_section_3_4=("holds", "12 µs, 3 times that of 10"),
            a_check_that_is_no_more=("fails", "gone"),
        ),
        "tianshou": entry(draws_follow_equation_1=("holds", "")) | {"name": "tianshou", "version": "2.0.0"},
    }
    two = {
        "tianshou": entry(draws_follow_equation_1=("cannot be tried", "no memory"))
        | {"name": "tianshou", "version": "2.0.1", "date": "2026-11-28"}
    }
    for name, results in (("b", one), ("a", two)):
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    return referee_page.report_of(tmp_path.glob("*.json"))


@pytest.mark.parametrize("page", referee_page.PAGES, ids=lambda page: page.parent.name)
def test_the_pages_show_the_results(page: Path) -> None:
    report = referee_page.report_of(referee_page.RESULTS.glob("*.json"))
    assert referee_page.renewed(page.read_text(), report) == page.read_text(), "run docs/referee_page.py"


def test_every_block_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in referee_page.PAGES)
    assert sorted(re.findall(r"<!-- from the results: (\w+) -->", pages)) == sorted(referee_page.BLOCKS)


def test_a_cell_has_the_outcome_or_the_figure(report: dict) -> None:
    rows = [line.split(" | ") for line in referee_page.outcomes(report).splitlines()]
    cells = {row[0].strip("| "): [cell.strip("| ") for cell in row[1:]] for row in rows if len(row) > 2}
    assert cells[""] == ["cpprb", "tianshou"]
    assert cells["draws follow equation 1"] == ["[**fails**](#cpprb)", "?"]
    assert cells["priority 0 is never drawn"][0] == "–" and cells["weights follow section 3 4"][0] == "holds"
    assert "a check that is no more" not in cells


def test_figures_of_costs_are_shown_in_the_table(report: dict) -> None:
    cost = dataclasses.replace(referee_page.runner.checks()[0], name="weights_follow_section_3_4", group="cost")
    assert referee_page.cell(cost, "cpprb", report["cpprb"]) == "12 µs"
    assert referee_page.cell(dataclasses.replace(cost, group="law"), "cpprb", report["cpprb"]) == "holds"


def test_a_failure_has_its_lines_and_its_issue(report: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {("cpprb", "draws_follow_equation_1"): "https://example.org/issues/1"}
    monkeypatch.setattr(referee_page.referee, "known_issues", lambda: known)
    text = referee_page.libraries(report)
    link = "([public issue](https://example.org/issues/1))"
    assert f"**Fails: draws follow equation 1** {link}\n\n```text\nchi-square 900\nlimit *131*\n```\n" in text
    assert "1 of 3 checks hold, 1 fail, and 1 test what it does not claim." in text
    assert "Measured:\n\n- weights follow section 3 4: 12 µs, 3 times that of 10\n" in text
    assert "Does not claim:\n\n- no \\[zeros\\]: priority 0 is never drawn\n" in text
    assert "Cannot be tried:\n\n- no memory: draws follow equation 1\n" in text
    assert "gone" not in text


def test_known_issues_are_of_failures() -> None:
    judged = referee_page.report_of(referee_page.RESULTS.glob("*.json"))
    for (library, check), url in referee_page.referee.known_issues().items():
        assert url.startswith("https://"), url
        if library in judged:
            assert judged[library]["results"][check]["outcome"] == "fails", f"{library}, {check}: remove it"


def test_a_library_is_shown_as_it_was_judged_last(report: dict) -> None:
    assert report["tianshou"]["version"] == "2.0.1"
    assert "| tianshou | cpprb 2.0.1 | 3.11.7 | 2026-11-28 | Xeon, 2 cores, Linux 6 |" in referee_page.versions(report)


def test_features_that_others_have_are_rows(report: dict) -> None:
    lines = referee_page.features(report).splitlines()
    assert "| Windows | yes | yes |" in lines and "| macOS | – | – |" in lines
    assert set(referee_page.FEATURES) == set(referee_page.runner.FEATURES)


def test_the_page_of_migrations_counts_what_is_claimed(report: dict) -> None:
    assert "| [law](../referee.md#law) | 1 of 2 | – |" in referee_page.summary(report)


def test_headings_have_the_anchors_of_myst() -> None:
    assert referee_page.anchor("CleanRL's copy") == "cleanrls-copy"
    assert referee_page.anchor("stable-baselines3") == "stable-baselines3"


def test_each_library_has_one_environment() -> None:
    folder = ROOT / "bench" / "referee" / "environments"
    lines = [path.read_text().splitlines()[0] for path in folder.glob("*/requirements.txt")]
    named = [name for line in lines for name in line.removeprefix("# libraries: ").split("; ")]
    assert len(named) == len(set(named)) and set(referee_page.LIBRARIES) <= set(named)
