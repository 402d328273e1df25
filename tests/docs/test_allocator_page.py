"""docs/allocator.md and docs/results/allocator.md quote the saved study, and name every row, layer and world that there is."""

import json
import sys
from pathlib import Path

import pytest
from documented import ROOT, commands, environment, run

from bench.allocator import goals
from bench.allocator_report import BEGIN, END, page, with_summary
from bench.allocator_rows import ROWS
from bench.allocator_site import LOAD_PERCENT, POOL_BYTES, SLO_FACTOR, START_UP_S, WINDOW_S
from bench.allocator_study import FULL

PAGE = ROOT / "docs" / "allocator.md"
RESULTS = ROOT / "docs" / "results"
SAVED = json.loads((RESULTS / "allocator.json").read_text())


def test_the_tables_of_the_page_are_those_of_the_saved_study() -> None:
    text = PAGE.read_text()
    assert with_summary(text, SAVED["study"]) == text


def test_the_page_of_results_is_that_of_the_saved_study() -> None:
    assert (RESULTS / "allocator.md").read_text() == page(SAVED["study"])


def test_the_goals_that_are_saved_follow_from_the_saved_figures() -> None:
    assert [result.row() for result in goals(SAVED["study"])] == SAVED["results"]


def test_the_prose_quotes_the_rules_as_they_are() -> None:
    text = PAGE.read_text()
    assert (LOAD_PERCENT, SLO_FACTOR, POOL_BYTES >> 30) == (65.0, 1.25, 48)
    assert all(said in text for said in ("65 percent busy", "1.25 times the oracle's Steady P99", "48 GiB", "48 a regime"))
    assert (START_UP_S, WINDOW_S, FULL.episodes) == (90.0, 30.0, 48)
    assert SAVED["study"]["setting"]["part"] == FULL.part.value == "test"


def test_every_row_is_explained() -> None:
    rows = PAGE.read_text().split("## The rows", 1)[1].split("##", 1)[0]
    assert [row.title for row in ROWS.values() if row.title.split(",")[0] not in rows] == []


def test_nothing_but_the_tables_stands_between_the_marks() -> None:
    inside = PAGE.read_text().split(BEGIN, 1)[1].split(END, 1)[0]
    assert all(line.startswith("|") for line in inside.splitlines() if line)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_quick_command_of_the_page_works() -> None:
    (quick,) = commands("docs/allocator.md")
    within = environment(kubeconfig=ROOT / "none", programs=Path(sys.executable).parent)
    done = run(quick, within=within, timeout_seconds=380.0)
    assert done.returncode == 0, done.stderr
    assert "steady" in done.stdout
