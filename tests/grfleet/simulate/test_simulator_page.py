"""docs/simulator.md: its commands work in their order, its options are those of the program, its example files are shown."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from documented import ROOT, read, run_away

from grfleet.cli import app
from simulator.fleet.config import Level

PAGE = "docs/simulator.md"


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_documented_commands_work_in_their_order_and_fill_their_folders(tmp_path: Path) -> None:
    within = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert len(run_away(PAGE, within=within, at=tmp_path, timeout_seconds=180.0)) >= 4

    listed = set(re.findall(r"`([\w.-]+\.(?:json|md|png))`", read(PAGE).split("| file | holds |", 1)[1].split("\n\n", 1)[0]))
    written = {path.name for folder in ("rehearsal", "oracle") for path in (tmp_path / "out" / folder).iterdir()}
    assert written == listed
    rehearsed, fixed, oracle = (
        json.loads((tmp_path / "out" / name / "result.json").read_text()) for name in ("rehearsal", "static-20", "oracle")
    )
    assert rehearsed["policy"]["strategy"] == "MissRatioCurve"
    assert rehearsed["baseline"]["p99Ms"] == pytest.approx(fixed["baseline"]["p99Ms"], rel=0.01)
    shown = [
        [cell.strip() for cell in row.split("|")[2:5]]
        for row in read(PAGE).splitlines()
        if row.startswith(("| P99 |", "| within 25"))
    ]
    found = [rehearsed["baseline"], rehearsed["run"], fixed["run"]]
    assert [float(cell.split()[0]) for cell in shown[0]] == pytest.approx([each["p99Ms"] for each in found], rel=0.02)
    assert [float(cell.split()[0]) for cell in shown[1]] == pytest.approx([each["sloPercent"] for each in found], abs=0.05)
    assert [each["sloMet"] for each in found] == [False, True, True]
    assert oracle["fleet"]["gainPercent"] == pytest.approx(oracle["noise"]["regretPercent"], abs=1.0)


def options(command: str) -> set[str]:
    found: Any = typer.main.get_command(app)
    return {name for parameter in found.commands[command].params for name in parameter.opts if name.startswith("--")}


def test_every_option_is_in_the_page_and_none_that_is_not_there() -> None:
    known = options("simulate") | options("oracle")
    table = read(PAGE).split("## What goes in", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"`(--[a-z-]+)", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))))
    elsewhere = {"--out", "--force", "--duration", "--rate", "--help"}

    assert named - known == set()
    assert known - named - elsewhere - {"--name"} == set()
    assert set(re.findall(r"`(--[a-z-]+)", read(PAGE))) <= known | {"--row-exponent", "--catalog-rows"}


def test_the_levels_are_those_of_the_simulator() -> None:
    section = read(PAGE).split("## Levels", 1)[1].split("\n## ", 1)[0]
    assert [level for level in Level if f"`{level}`" not in section] == []


@pytest.mark.parametrize("name", ["rehearsal.yaml", "rehearsal-change.yaml"])
def test_every_example_of_a_rehearsal_is_in_the_page(name: str) -> None:
    assert f"docs/examples/{name}" in read(PAGE)
    assert (ROOT / "docs/examples" / name).exists()
