"""docs/tiers.md and decision 12 quote figures of the saved benchmark; the page's command works and meets every goal."""

import json
import re
import sys
from pathlib import Path

import pytest

from bench.tiers_known import EVICTION
from simulator.tiers.replaying import POLICIES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tiers.md").read_text()
DECISION = (ROOT / "docs" / "decisions" / "0012-eviction-that-knows-sizes.md").read_text()
SAVED = {row["name"]: row for row in json.loads((ROOT / "docs" / "results" / "tiers.json").read_text())["results"]}


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("look-ahead 1000 where LRU hits 0.60 (6.8 %)", ".876"),
        ("DRAM hit, DRAM 1 % + SSD 20 %, 1 request ahead", "94.8 %"),
        ("DRAM hit, 300 ms ahead, SSD of 6 GB/s", "95.3 %"),
        ("DRAM hit, DRAM 0.5 %, 200 ahead, budgeted", ".955"),
        ("tokens hit in HBM 20 GiB + DRAM 192 GiB", "99.4 %"),
        ("tokens hit in HBM 20 GiB + DRAM 128 GiB", "99.2 %"),
        ("tokens hit in HBM 20 GiB + DRAM 96 GiB", "97.8 %"),
    ],
)
def test_the_page_quotes_what_was_measured(name: str, quoted: str) -> None:
    value = SAVED[name]["value"]
    shown = f"{value * 100:.1f} %" if quoted.endswith("%") else f"{value:.3f}".removeprefix("0")
    assert shown == quoted
    assert quoted in PAGE


@pytest.mark.parametrize("percent", ["2 %", "6.8 %", "20 %"])
def test_the_decision_quotes_the_held_out_part_as_measured(percent: str) -> None:
    rows = [SAVED[f"{policy} 1000, {percent}, held-out 40 %"] for policy in ("size-aware", "balanced")]
    own, balanced = (f"{row['value']:.3f}".removeprefix("0") for row in rows)
    blind = f"{rows[0]['baseline']:.3f}".removeprefix("0")
    assert f"{percent} {blind} / {balanced} / {own}" in DECISION.replace("\n", " ")


def test_every_goal_of_the_saved_run_is_met() -> None:
    assert [name for name, row in SAVED.items() if row["met"] is False] == []
    assert SAVED["largest distance from the known eviction table"]["value"] < 0.006
    assert sum(len(row) for row in EVICTION.values()) == 56
    assert "All 56 known figures come out within 0.006" in PAGE


def test_the_page_names_every_module_of_the_room() -> None:
    table = PAGE.split("## What is modelled", 1)[1].split("\n\n", 2)[1]
    named = set(re.findall(r"`(\w+)`", "".join(row.split("|")[2] for row in table.splitlines()[2:])))
    helpers = {"__init__", "visits", "replaying", "store_types", "store_replay", "ssd"}
    modules = {path.stem for path in (ROOT / "simulator" / "tiers").glob("*.py")}
    assert named | helpers == modules
    assert {"size-aware", "size-aware-balanced"} < set(POLICIES)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_of_the_page_works() -> None:
    from documented import commands, environment, run

    (command,) = commands("docs/tiers.md")
    within = environment(kubeconfig=ROOT / "none", programs=Path(sys.executable).parent)
    done = run(command, within=within, timeout_seconds=500.0)
    assert done.returncode == 0, done.stderr
    assert " NO " not in done.stdout
