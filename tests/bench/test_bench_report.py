"""What every benchmark shares: figures, goals, the JSON line, and results that name no machine and no date."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import report
from bench.report import Result, publish, single, summarise

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"name", "value", "unit", "min", "max", "runs", "baseline", "ratio", "goal", "met"}


def test_a_figure_is_the_median_with_its_extremes_beside_the_baseline_of_the_same_run() -> None:
    figure = summarise("x", [3.0, 1.0, 2.0], unit="ms", baseline=4.0, goal=2.0)
    assert (figure.value, figure.min, figure.max, figure.runs) == (2.0, 1.0, 3.0, 3)
    assert figure.ratio == 0.5
    assert figure.met is True


@pytest.mark.parametrize(("value", "goal", "met"), [(2.0, 2.0, True), (2.1, 2.0, False), (0.0, 0.0, True), (1.0, None, None)])
def test_a_goal_is_an_upper_bound_and_none_is_neither_met_nor_missed(value: float, goal: float | None, met: bool | None) -> None:
    assert summarise("x", [value], unit="", goal=goal).met is met


def test_without_a_baseline_there_is_no_ratio() -> None:
    assert summarise("x", [1.0], unit="").ratio is None
    assert summarise("x", [1.0], unit="", baseline=0.0).ratio is None


def test_the_last_line_on_stdout_is_one_json_array_and_a_missed_goal_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    results = [summarise("slow", [9.0], unit="ms", goal=1.0)]
    publish("x", results, seed=1, quick=True, as_json=True, notes="because")
    out, err = capsys.readouterr()
    (row,) = json.loads(out.splitlines()[-1])
    assert set(row) == FIELDS
    assert row["met"] is False
    assert "NO" in err
    assert "because" in err


def test_a_full_run_is_saved_with_seed_versions_and_cores_and_a_quick_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    results = [Result(name="x", value=1, unit="s", min=1, max=1, runs=1)]
    publish("x", results, seed=7, quick=True, as_json=False)
    assert not list(tmp_path.iterdir())
    publish("x", results, seed=7, quick=False, as_json=False)
    saved = json.loads((tmp_path / "x.json").read_text())
    assert set(saved) == {"benchmark", "seed", "cores", "versions", "notes", "results"}
    assert saved["seed"] == 7
    assert [set(row) for row in saved["results"]] == [FIELDS]


def test_the_decision_benchmark_runs_and_ends_in_one_json_array() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "decision", "--quick", "--json"], capture_output=True, text=True, cwd=ROOT, timeout=200
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {frozenset(row) for row in rows} == {frozenset(FIELDS)}
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    baselines = [row for row in rows if row["name"].startswith("matrix product")]
    assert baselines
    assert all(row["baseline"] is None for row in baselines)
    assert all(row["ratio"] > 0 for row in rows if row not in baselines)


def test_a_goal_is_an_upper_bound_unless_higher_is_better() -> None:
    assert [single("x", value, "ms", goal=2.0).met for value in (1.0, 2.0, 3.0)] == [True, True, False]
    assert [single("x", value, "share", goal=2.0, at_least=True).met for value in (1.0, 2.0, 3.0)] == [False, True, True]
    assert single("x", 1.0, "share", at_least=True).met is None
