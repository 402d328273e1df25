"""Items of an event log decide how popular embedding rows are: the result says which law was taken, and when to doubt it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulate_inputs import manifest, pool, run
from typer.testing import CliRunner

from grfleet.cli import app
from simulator.traces import load_request_log

REQUESTS, ITEMS = 1400, 4000


def log_with_items(path: Path, *, exponent: float) -> Path:
    rng = np.random.default_rng(3)
    weights = np.arange(1, ITEMS + 1, dtype=float) ** -exponent
    with path.open("w") as file:
        for place in range(REQUESTS):
            drawn = rng.choice(ITEMS, size=40, p=weights / weights.sum())
            event = {"user": f"ann{place % 30}@example.com", "time_ms": place * 40.0, "history_tokens": 512}
            file.write(json.dumps(event | {"items": [f"sku-{item}" for item in drawn]}) + "\n")
    return path


@pytest.mark.parametrize("command", ["simulate", "oracle"])
def test_the_law_of_the_items_is_in_the_result(tmp_path: Path, command: str) -> None:
    log = log_with_items(tmp_path / "log.jsonl", exponent=0.9)
    ran = run(command, tmp_path / "out", "--trace", log, "--pool", manifest(tmp_path / "pool.yaml", pool()))

    assert ran.code == 0, ran.said
    rows = [each for each in ran.result["assumptions"] if each.startswith("embedding rows")]
    assert len(rows) == 1
    assert "law of the whole log's items" in rows[0]
    assert "+-" in rows[0]
    assert ran.result["trace"]["manifest"]["parameters"]["law"]["exponent"] == pytest.approx(0.9, abs=0.05)
    assert "sku-" not in (ran.out / "result.json").read_text()


def test_items_that_are_alike_in_popularity_miss_more(tmp_path: Path) -> None:
    hits = {}
    manifests = manifest(tmp_path / "pool.yaml", pool(model=pool()["spec"]["model"] | {"embRowBytes": 16384}))
    for exponent in (0.0, 1.2):
        log = log_with_items(tmp_path / f"{exponent}.jsonl", exponent=exponent)
        chosen = ("--level", "exact", "--policy", "static:3")
        ran = run("simulate", tmp_path / f"out-{exponent}", "--trace", log, "--pool", manifests, *chosen)
        hits[exponent] = ran.result["run"]["embHitPercent"]
    assert hits[1.2] > hits[0.0] + 20.0


def test_a_doubt_of_the_law_is_in_the_result_also_after_a_conversion(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for place in range(1500):  # every item comes three times within a second, and never again
            items = [place // 3 * 10 + each for each in range(10)]
            file.write(json.dumps({"user": place % 9, "time_ms": place * 300.0, "history_tokens": 64, "items": items}) + "\n")
    converted = tmp_path / "log.grlog"
    assert CliRunner().invoke(app, ["trace", "convert", str(log), str(converted)]).exit_code == 0
    manifests = manifest(tmp_path / "pool.yaml", pool())

    doubts = [
        run("simulate", tmp_path / f"out-{name.suffix}", "--trace", name, "--pool", manifests).result["doubts"]
        for name in (log, converted)
    ]

    assert doubts[0] == doubts[1]
    assert any("embedding rows: rare items come back sooner" in doubt for doubt in doubts[0])


@pytest.mark.parametrize("told", [None, 7, "text", [1, None, {}], ["x" * 5000] * 99, {"a": 1}])
def test_doubts_of_a_file_from_elsewhere_are_bounded(tmp_path: Path, told: Any) -> None:
    from grfleet.simulate.replayed import MOST_DOUBT, MOST_DOUBTS, _doubts_of

    found = _doubts_of({"parameters": {"row_law_doubts": told}})
    assert len(found) <= MOST_DOUBTS
    assert all(len(each) <= MOST_DOUBT for each in found)
    assert _doubts_of({"parameters": told}) == ()


def test_check_says_the_law_and_convert_takes_another(tmp_path: Path) -> None:
    log = log_with_items(tmp_path / "log.jsonl", exponent=0.9)
    said = CliRunner().invoke(app, ["trace", "check", str(log)])
    assert "popularity of the items: Zipf 0.9" in said.stdout

    out = tmp_path / "own.grlog"
    told = CliRunner().invoke(app, ["trace", "convert", str(log), str(out), "--row-exponent", "1.3"])
    assert "popularity" not in told.stdout
    law = load_request_log(out)[0].laws[0]
    assert (law.exponent, law.catalog_rows) == (1.3, 40_000_000)
