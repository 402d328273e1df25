"""The demonstration's summary: its shape, and that it says what it should when the result is not flattering."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from grfleet.demo import summary
from grfleet.demo.served import PoolRun, Run, Served, read_run, write_run
from simulator.replay import statistics_of


def served(index: int, *, latency_ms: float = 10.0, lag_ms: float = 0.5, error: str = "") -> Served:
    return Served(
        index=index,
        arrival_ms=float(index),
        instance="" if error else "ranker-0",
        latency_ms=0.0 if error else latency_ms,
        service_ms=0.0 if error else latency_ms / 2,
        history_tokens=100,
        kv_tokens_hit=25,
        emb_rows_asked=50,
        emb_rows_missed=5,
        lag_ms=lag_ms,
        wall_ms=1.0,
        error=error,
    )


def run_of(*rows: Served) -> Run:
    pool = PoolRun(pool="adaptive", instances=["ranker-0"], slots="", served=list(rows))
    return Run(started_unix_s=0.0, cpu_seconds=1.0, pools=[pool])


def figures(p99_ms: float) -> dict[str, Any]:
    return {"p99_ms": p99_ms, "affinity_percent": 100.0, "phases": {"first": {"p99_ms": p99_ms}}}


def result(*, adaptive: float, static: float, replayed: dict[str, float], reliable: bool = True) -> dict[str, Any]:
    return {
        "pools": {"adaptive": figures(adaptive), "static": figures(static)},
        "replayed": {percent: figures(p99) for percent, p99 in replayed.items()},
        "phases": ["first"],
        "gateway": None,
        "reliable": reliable,
        "health": {"lag_p99_ms": 1.0 if reliable else 9.0, "lag_max_ms": 20.0, "failed": 0},
    }


def test_affinity_is_the_share_of_answers_that_the_owner_gave_at_once() -> None:
    rows = [served(0), served(1), msgspec.structs.replace(served(2), retried=True), served(4, error="gone")]
    rows.append(msgspec.structs.replace(served(3), elsewhere=True))

    assert summary.affinity_percent(rows) == 50.0
    assert summary.affinity_percent([served(0, error="gone")]) is None


def test_latencies_leave_out_what_was_answered_elsewhere() -> None:
    rows = [served(0, latency_ms=10.0), msgspec.structs.replace(served(1, latency_ms=0.0), elsewhere=True)]

    assert summary.outcomes_of(rows, instances=1).latency_ms.tolist() == [10.0]


def test_losing_to_the_best_fixed_split_is_said() -> None:
    lines = summary.verdict(result(adaptive=150.0, static=200.0, replayed={"20": 120.0, "50": 200.0}))

    assert "25 % below the pool that stays at 50 %, 25 % above the best fixed split (20 %)" in " ".join(lines)


def test_a_difference_below_half_a_percent_is_called_level() -> None:
    lines = summary.verdict(result(adaptive=200.0, static=200.4, replayed={"50": 200.0}))

    assert "level with the pool that stays at 50 %, level with the best fixed split" in " ".join(lines)


def test_a_run_that_was_late_is_called_unreliable() -> None:
    late = summary.health(run_of(*(served(i, lag_ms=20.0 if i % 50 == 0 else 0.1) for i in range(1000))))
    on_time = summary.health(run_of(*(served(i, lag_ms=20.0 if i % 500 == 0 else 0.1) for i in range(1000))))

    assert not late["reliable"]
    assert late["lag_p99_ms"] == pytest.approx(20.0)
    assert on_time["reliable"]
    assert on_time["lag_max_ms"] == pytest.approx(20.0)
    assert "NOT RELIABLE" in summary.verdict(result(adaptive=1.0, static=1.0, replayed={"50": 1.0}, reliable=False))[-1]


def test_a_failed_request_makes_the_run_unreliable_and_is_no_latency() -> None:
    run = run_of(served(0), served(1, error="ranker-0: ClientConnectorError"))

    assert not summary.health(run)["reliable"]
    outcomes = summary.outcomes_of(run.pools[0].served, instances=1)
    assert list(outcomes.latency_ms) == [10.0]


def test_a_quieter_machine_is_advised_only_where_nothing_failed() -> None:
    unreliable = result(adaptive=1.0, static=1.0, replayed={"50": 1.0}, reliable=False)
    assert "quieter" in summary.verdict(unreliable)[-1]
    unreliable["health"]["failed"] = 949
    assert "949 failed. The logs" in summary.verdict(unreliable)[-1]


def test_figures_of_a_pool_are_exact() -> None:
    run = run_of(*(served(i, latency_ms=float(i + 1)) for i in range(100)))

    found = statistics_of(summary.outcomes_of(run.pools[0].served, instances=1), slo_ms=90.0)

    assert (found.requests, found.slo_percent) == (100, 90.0)
    assert found.p50_ms == pytest.approx(50.5)
    assert found.p99_ms == pytest.approx(99.01)
    assert found.kv_hit_percent == 25.0
    assert found.emb_hit_percent == 90.0


def test_what_the_driver_wrote_is_read_back(tmp_path: Path) -> None:
    run = run_of(served(0), served(1, error="x"))

    write_run(tmp_path / "run.bin", run)

    assert read_run(tmp_path / "run.bin") == run


def test_the_best_split_is_that_with_the_least_p99_and_missing_figures_never_win() -> None:
    replayed: dict[str, Any] = {
        "20": figures(5.0),
        "50": {"p99_ms": None, "phases": {"first": {"p99_ms": None}}},
        "80": figures(4.0),
    }

    assert summary.best_split(replayed) == 80
    assert summary.best_split(replayed, "first") == 80
    assert json.dumps(replayed, allow_nan=False)
