"""`grfleet oracle` says which splits were best, what moving gained, how sure that is, and when not to believe it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulate_inputs import event_csv, hbm_policy, manifest, pool, regulars, requests_file, run, strangers

from simulator.request_log import RowLaw


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results are kept in a folder of the user; tests must neither find nor leave any."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return manifest(tmp_path / "pool.yaml", pool(), hbm_policy(bounds={"fallbackEmbPercent": 50}))


@pytest.mark.usefixtures("plots")
def test_the_best_fixed_split_is_the_best_of_all_and_each_window_is_no_worse(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog", count=9000)

    ran = run("oracle", tmp_path / "out", "--trace", log, "--pool", plain, "--window", "30s", "--workers", "1")

    found = ran.result
    assert ran.code == 0, ran.said
    assert len(found["windows"]) == 3
    assert found["fleet"]["bestMs"] <= found["fleet"]["plannedMs"] <= found["fleet"]["staticMs"] <= found["fallbackObjectiveMs"]
    assert [each["embPercent"] for each in found["splits"]] == list(range(5, 96))
    for window in found["windows"]:
        assert window["bestP99Ms"] <= min(window["staticP99Ms"], window["fallbackP99Ms"], window["plannedP99Ms"])
    assert len(found["byInstance"]) == 2
    assert found["noise"]["regretPercent"] >= 0.0
    assert {path.name for path in ran.out.iterdir()} == {"result.json", "summary.md", "splits.png", "windows.png"}


def test_where_nobody_returns_memory_belongs_to_rows(tmp_path: Path, plain: Path) -> None:
    path = requests_file(tmp_path / "day.grlog", law=RowLaw(exponent=0.6, catalog_rows=20_000_000))
    log = event_csv(tmp_path / "log.csv", strangers(3000, every_ms=30.0))
    assert path.exists()

    found = run("oracle", tmp_path / "out", "--trace", log, "--pool", plain, "--workers", "1").result

    assert found["fleet"]["staticEmbPercent"] > 60
    assert found["splits"][0]["p99Ms"] > found["splits"][-1]["p99Ms"]


def test_the_same_question_has_the_same_bytes_for_an_answer_with_a_cache_or_without(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")
    arguments = ("--trace", log, "--pool", plain, "--window", "30s")

    first = run("oracle", tmp_path / "first", *arguments, "--workers", "1")
    kept = run("oracle", tmp_path / "kept", *arguments)
    fresh = run("oracle", tmp_path / "fresh", *arguments, "--workers", "1", "--fresh")

    texts = [(each.out / "result.json").read_text() for each in (first, kept, fresh)]
    assert texts[0] == texts[1] == texts[2]
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 1


def test_the_fallback_is_looked_at_also_where_it_is_no_usual_split(tmp_path: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(bounds={"minEmbPercent": 0, "fallbackEmbPercent": 2}))
    log = requests_file(tmp_path / "day.grlog")

    found = run("oracle", tmp_path / "out", "--trace", log, "--pool", manifests, "--workers", "1").result

    assert found["fallbackEmbPercent"] == 2
    assert found["fallbackP99Ms"] is not None


def test_windows_with_too_few_requests_are_not_trusted_and_all_the_same_written(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", regulars(300, users=10))

    ran = run("oracle", tmp_path / "out", "--trace", log, "--pool", plain, "--workers", "1")

    assert ran.code == 3
    assert "too few requests for a P99" in ran.result["notTrustedBecause"][0]
    assert "Not to be trusted" in (ran.out / "summary.md").read_text()


def test_more_load_than_any_split_carries_is_not_trusted_by_the_oracle_either(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", strangers(4000, every_ms=0.4, history=4000))

    ran = run("oracle", tmp_path / "out", "--trace", log, "--pool", plain, "--window", "500ms", "--workers", "1")

    assert ran.code == 3
    assert any("overload at every split" in reason for reason in ran.result["notTrustedBecause"])


def test_json_of_the_oracle_on_stdout_is_the_file(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")

    ran = run("oracle", tmp_path / "out", "--trace", log, "--pool", plain, "--workers", "1", "--json")

    assert json.loads(ran.outcome.stdout) == ran.result
