"""docs/decision-core.md quotes what was measured, and its commands work."""

import json
import re
import sys
from pathlib import Path

import pytest
from documented import commands, environment, run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "decision-core.md").read_text()
SAVED = {row["name"]: row for row in json.loads((ROOT / "docs" / "results" / "decision.json").read_text())["results"]}
ROWS = re.findall(r"^\| ([a-z]\w+[\w ,]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_page_quotes_what_was_measured(row: tuple[str, ...]) -> None:
    name, *quoted = row
    for text, what in zip(quoted, ("hot, p50", "hot, p99", "cold at 10/s, p50", "cold at 10/s, p99"), strict=True):
        digits = len(text.partition(".")[2])
        assert float(text) == pytest.approx(SAVED[f"{name}, {what}"]["value"], abs=0.51 * 10.0**-digits)


def test_the_table_shows_both_kernels_the_baseline_and_the_whole_decision() -> None:
    assert {"path, compiled", "path, numpy", "matrix product", "nothing", "decide, Learned"} <= {row[0] for row in ROWS}


def test_the_commands_of_the_page_work() -> None:
    within = environment(kubeconfig=ROOT / "none", programs=Path(sys.executable).parent)
    for command in commands("docs/decision-core.md"):
        done = run(command, within=within)
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "numpy"
