"""docs/fleet.md quotes figures of the saved benchmark, names what there is, and its command works."""

import json
import re
import sys
from pathlib import Path

import pytest

from simulator.fleet.config import Level

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "fleet.md").read_text()
SAVED = {row["name"]: row for row in json.loads((ROOT / "docs" / "results" / "simulator.json").read_text())["results"]}
SHOWN = ("serving loop", "whole run", "error of the row hit ratio", "error of P50", "error of P99", "error of P99.9")


def cells(level: Level) -> list[float]:
    """The row of a level in the table of speed and error."""
    table = PAGE.split("### Speed and error", 1)[1]
    (row,) = re.findall(rf"^\| `{level}` \|(.*)\|$", table.split("###", 1)[0], re.MULTILINE)
    return [float(cell.replace("%", "").strip()) for cell in row.split("|")]


@pytest.mark.parametrize("level", [Level.SAMPLED, Level.SAMPLED_64, Level.REDUCED])
def test_the_page_quotes_what_was_measured(level: Level) -> None:
    for quoted, what in zip(cells(level), SHOWN, strict=True):
        last_digit = 1e-5 if "hit ratio" in what else 1e-3
        assert quoted == pytest.approx(SAVED[f"{level}, {what}"]["value"], rel=0.01, abs=0.51 * last_digit)


def test_several_processes_are_quicker_by_what_the_page_says() -> None:
    row = SAVED["sampled-64 in 2 processes"]
    assert row["ratio"] == pytest.approx(row["value"] / row["baseline"], abs=1e-4)
    assert row["ratio"] < 0.7
    assert f"takes {row['ratio']:.2f} of\nthe processor time of one process" in PAGE


def test_every_goal_of_the_saved_run_is_met() -> None:
    assert [name for name, row in SAVED.items() if row["met"] is False] == []


def test_the_page_names_every_level() -> None:
    table = PAGE.split("## Levels", 1)[1].split("### Speed", 1)[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)`", table, re.MULTILINE)) == {level.value for level in Level}


@pytest.mark.slow
def test_the_command_of_the_page_works() -> None:
    from documented import commands, environment, run

    (command,) = commands("docs/fleet.md")
    within = environment(kubeconfig=ROOT / "none", programs=Path(sys.executable).parent)
    done = run(command, within=within, timeout_seconds=280.0)
    assert done.returncode == 0, done.stderr
    assert "sampled, whole run" in done.stdout
