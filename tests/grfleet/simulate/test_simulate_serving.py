"""How instances serve and who serves whom, where the command line says it: batches, bounded off-load, routing, lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulate_inputs import manifest, pool, pre_inference, requests_file, run

from simulator.request_log import RequestLog, RowLaw
from simulator.traces import save_request_log

TIERED = {"hbmBytes": "1Gi", "hbmReservedBytes": "0", "hostBytes": "8Gi"}


@pytest.fixture
def day(tmp_path: Path) -> Path:
    return requests_file(tmp_path / "day.grlog")


def simulated(tmp_path: Path, log: Path, name: str, *options: object, of: dict[str, Any] | None = None) -> dict[str, Any]:
    """The result of one run of a static split."""
    file = manifest(tmp_path / f"{name}.yaml", of or pool())
    ran = run(
        "simulate", tmp_path / name, "--trace", log, "--pool", file, "--policy", "static:30", "--level", "reduced", *options
    )
    assert ran.code == 0, ran.said
    return ran.result


def crowd(path: Path) -> Path:
    """Users who come in pairs at the same moment, more often than one at a time can be served."""
    count, rng = 3000, np.random.default_rng(2)
    log = RequestLog(
        arrival_ms=np.repeat(np.arange(count // 2) * 5.0, 2),
        user=rng.integers(0, 200, count).astype(np.uint32),
        history_tokens=np.full(count, 1024, dtype=np.int32),
        candidates=np.full(count, 200, dtype=np.int32),
        signal_lead_ms=np.zeros(count, dtype=np.float32),
        law=np.zeros(count, dtype=np.uint8),
        user_slots=rng.integers(0, 4096, 200).astype(np.uint16),
        laws=(RowLaw(exponent=0.9, catalog_rows=4_000_000),),
        rows_per_token=8,
    )
    save_request_log(path, log, {"regime": "test"})
    return path


def test_requests_that_run_together_keep_instances_less_busy(tmp_path: Path) -> None:
    log = crowd(tmp_path / "crowd.grlog")

    alone = simulated(tmp_path, log, "alone")
    together = simulated(tmp_path, log, "together", "--batching", "8:3ms")

    assert alone["batching"] is None
    assert together["batching"] == {"maxRequests": 8, "windowMs": 3.0}
    assert together["run"]["utilisationPercent"] < alone["run"]["utilisationPercent"]
    assert any(each.startswith("batching: ") for each in together["assumptions"])


def test_what_may_not_wait_for_the_link_is_dropped_and_counted(tmp_path: Path, day: Path) -> None:
    tiers = pool(memory=TIERED)

    free = simulated(tmp_path, day, "free", of=tiers)
    none = simulated(tmp_path, day, "none", "--offload-queue", "0", of=tiers)

    assert free["offloadQueueBytes"] is None
    assert "offloadDrops" not in free["run"]["counts"]
    assert free["run"]["bytesByClass"]["offload"] > 0
    assert none["offloadQueueBytes"] == 0
    assert none["run"]["counts"]["offloadDrops"] > 0
    assert none["run"]["bytesByClass"]["offload"] == 0
    assert none["run"]["kvHitPercent"]["host"] == 0 < free["run"]["kvHitPercent"]["host"]
    assert "without a copy" in (tmp_path / "none" / "summary.md").read_text()


def test_state_expires_and_ages_with_the_embeddings(tmp_path: Path, day: Path) -> None:
    free = simulated(tmp_path, day, "free")
    aged = simulated(tmp_path, day, "aged", "--ttl", "20s", "--emb-versions", "10s:1")
    stale = simulated(tmp_path, day, "stale", "--emb-versions", "10s")

    assert (free["ttlMs"], free["embVersionMs"], free["maxEmbLag"]) == (None, None, None)
    assert (aged["ttlMs"], aged["embVersionMs"], aged["maxEmbLag"]) == (20_000.0, 10_000.0, 1)
    assert (stale["embVersionMs"], stale["maxEmbLag"]) == (10_000.0, None)
    assert all(aged["run"]["counts"][name] > 0 for name in ("expired", "tooStale", "staleHits"))
    assert aged["run"]["kvHitPercent"]["hbm"] < free["run"]["kvHitPercent"]["hbm"] == stale["run"]["kvHitPercent"]["hbm"]
    assert stale["run"]["counts"]["staleHits"] > 0 == stale["run"]["counts"]["tooStale"]
    assert "had expired" in (tmp_path / "aged" / "summary.md").read_text()


def test_under_the_operators_routing_nobody_moves_while_everybody_stays(tmp_path: Path, day: Path) -> None:
    still = simulated(tmp_path, day, "still")
    routed = simulated(tmp_path, day, "routed", "--routing", "table")

    assert still["routing"] is None
    assert routed["routing"]["name"] == "table"
    assert routed["run"]["counts"]["requestsMoved"] == 0
    assert routed["run"]["p99Ms"] == still["run"]["p99Ms"]
    assert [each["requests"] for each in routed["run"]["byInstance"]] == [each["requests"] for each in still["run"]["byInstance"]]


@pytest.mark.parametrize("name", ["random", "least-loaded", "bounded-hash", "score", "overrides"])
def test_other_routings_run_and_say_what_moving_cost(tmp_path: Path, day: Path, name: str) -> None:
    result = simulated(tmp_path, day, name, "--routing", name)

    assert result["routing"]["name"] == name
    assert sum(each["requests"] for each in result["run"]["byInstance"]) == result["run"]["requests"]
    assert (result["run"]["counts"]["requestsMoved"] > 0) == (name in {"random", "least-loaded"})
    assert f"Routing {name}" in (tmp_path / name / "summary.md").read_text()


def test_churn_and_warm_up_are_those_of_the_policy_that_the_pool_names(tmp_path: Path, day: Path) -> None:
    spec = {"churn": {"maxMovedPercent": 3, "windowSeconds": 7}, "warmup": {"maxSeconds": 11, "hitPercent": 60}}
    named = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "RoutingPolicy", "metadata": {"name": "default"}, "spec": spec}
    other = {**named, "metadata": {"name": "another"}, "spec": {}}
    file = manifest(tmp_path / "p.yaml", pool(), other, named)

    ran = run("simulate", tmp_path / "out", "--trace", day, "--pool", file, "--level", "reduced", "--routing", "table")

    said = {"name": "table", "maxMovedPercent": 3, "windowSeconds": 7, "warmSeconds": 11, "warmHitPercent": 60}
    assert ran.result["routing"] == said


def test_users_of_an_instance_that_dies_are_served_by_the_others(tmp_path: Path, day: Path) -> None:
    dies = simulated(tmp_path, day, "dies", "--life", "feed-a:dies=60s,noticed=2s")
    drains = simulated(tmp_path, day, "drains", "--life", "1:drains=60s")

    assert dies["routing"]["name"] == "table"
    assert dies["lives"] == [{"name": "feed-a", "joinsMs": 0.0, "drainsMs": None, "diesMs": 60_000.0, "noticedMs": 2000.0}]
    assert dies["run"]["counts"]["requestsRetried"] > 0
    assert dies["run"]["counts"]["tokensMissedAfterMoves"] > 0
    assert drains["run"]["counts"]["requestsRetried"] == 0
    assert drains["lives"][0]["name"] == "feed-b"
    for result in (dies, drains):
        assert sum(each["requests"] for each in result["run"]["byInstance"]) == result["run"]["requests"]


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--batching", "8"), 2, "--batching"),
        (("--batching", "0:3ms"), 2, "max_requests"),
        (("--batching", "8:3"), 2, "3 is no length of time"),
        (("--offload-queue", "many"), 2, "--offload-queue"),
        (("--offload-queue", "1Gi"), 1, "host"),
        (("--ttl", "soon"), 2, "--ttl"),
        (("--ttl", "0s"), 1, "--ttl"),
        (("--emb-versions", "10m:few"), 2, "--emb-versions"),
        (("--emb-versions", "0s"), 1, "--emb-versions"),
        (("--routing", "nearest"), 2, "--routing"),
        (("--life", "feed-a"), 2, "--life"),
        (("--life", "feed-a:leaves=3s"), 2, "leaves=3s"),
        (("--life", "feed-a:dies=3s,dies=4s"), 2, "dies=4s"),
        (("--life", "feed-a:joins=3s,dies=2s"), 2, "joins at 3000.0"),
        (("--life", "feed-z:dies=3s"), 1, "feed-a to feed-b"),
        (("--life", "7:dies=3s"), 1, "feed-a to feed-b"),
        (("--life", "0:dies=3s", "--life", "1:dies=3s"), 1, "no instance is there to serve"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_option(
    tmp_path: Path, day: Path, options: tuple[str, ...], code: int, named: str
) -> None:
    ran = run("simulate", tmp_path / "out", "--trace", day, "--pool", manifest(tmp_path / "p.yaml", pool()), *options)

    assert ran.code == code, ran.said
    assert named in ran.outcome.stderr
    assert not ran.out.exists()


@pytest.mark.parametrize("option", [("--batching", "8:3ms"), ("--routing", "score"), ("--life", "0:dies=50s")])
def test_beside_prefixes_that_are_computed_ahead_neither_is_possible(tmp_path: Path, option: tuple[str, str]) -> None:
    log = requests_file(tmp_path / "day.grlog", lead_ms=100.0)
    policy = pre_inference(trigger={"minPrefixTokens": 1, "riskBudgetMs": 1}, budget={"prefixPercent": 25})
    file = manifest(tmp_path / "p.yaml", pool(), policy)

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", file, *option)

    assert ran.code == 1
    assert "leave the policy out of the file" in ran.outcome.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--batching", "8:3ms"),
        ("--offload-queue", "1Gi"),
        ("--ttl", "1m"),
        ("--emb-versions", "1m"),
        ("--routing", "table"),
        ("--life", "0:dies=3s"),
    ],
)
def test_the_oracle_has_none_of_it(tmp_path: Path, option: tuple[str, str]) -> None:
    ran = run("oracle", tmp_path / "out", "--trace", "steady", "--pool", manifest(tmp_path / "p.yaml", pool()), *option)

    assert ran.code == 2
    assert option[0] in ran.outcome.stderr
