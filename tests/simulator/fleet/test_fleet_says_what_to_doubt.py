"""A fleet refuses what no fleet could be, by name, and says when its figures are not to be trusted."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from fleet_logs import LAW, MIB, SERVICE, Scripted, a_fleet, a_log

from simulator.core.physics import ServiceModel
from simulator.fleet.build import WarmUsers
from simulator.fleet.config import Level
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.fleet.service import compute_ms, fleet_floats
from simulator.physics.accelerator import load_accelerator
from simulator.physics.model_shape import HSTU_PUBLISHED, QWEN3_1_7B
from simulator.physics.profiled import profiled_service
from simulator.request_log import RowLaw


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instances", 0),
        ("instances", 1.5),
        ("pool_bytes", 0),
        ("pool_bytes", MIB // 2),
        ("emb_percent", 101),
        ("emb_percent", -1),
        ("slo_ms", float("nan")),
        ("slo_ms", 0.0),
        ("page_tokens", 0),
        ("granule_bytes", 0),
        ("host_bytes", -1),
        ("ssd_bytes", MIB),
        ("ssd_bytes_per_second", 0),
        ("reload_fixed_ms", float("inf")),
        ("refill", "lazy-ish"),
        ("refill_link_percent", 91),
        ("offload_queue_bytes", -1),
        ("offload_queue_bytes", MIB),
        ("ttl_ms", 0.0),
        ("ttl_ms", float("nan")),
        ("emb_version_ms", float("inf")),
        ("max_emb_lag", -1),
        ("max_emb_lag", 1),
        ("service", object()),
    ],
)
def test_an_impossible_fleet_is_refused_by_the_name_of_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        a_fleet(**{field: value})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("seed", {"seed": -1}),
        ("routing", {"routing": [0] * 4095}),
        ("routing", {"routing": [4] * 4096}),
        ("split", {"split": Scripted(0.0, [])}),
        ("split", {"split": Scripted(float("nan"), [])}),
        ("measured_from_ms", {"measured_from_ms": float("nan")}),
        ("window_ms", {"window_ms": 1e-9}),
        ("warm", {"warm": WarmUsers(user=np.array([10**6], dtype=np.uint32), tokens=np.array([1], dtype=np.int32))}),
    ],
)
def test_an_impossible_run_is_refused_by_name(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        simulate(a_log(50), a_fleet(), **({"seed": 1, "level": Level.REDUCED} | arguments))


def test_more_rows_in_one_request_than_a_column_holds_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^rows_per_token: "):
        simulate(replace(a_log(50), rows_per_token=10_000_000), a_fleet(), level=Level.REDUCED, seed=1)


def test_a_catalogue_too_large_for_a_level_names_the_level() -> None:
    huge = a_log(50, laws=(RowLaw(exponent=1.0, catalog_rows=10**9),))
    with pytest.raises(ValueError, match=r"^level: exact keeps"):
        simulate(huge, a_fleet(), level=Level.EXACT, seed=1)
    assert simulate(huge, a_fleet(), level=Level.REDUCED, seed=1).rows_missed.sum() > 0


def test_a_service_model_with_a_law_of_its_own_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(ServiceModel):
        pass

    fields = {name: getattr(SERVICE, name) for name in SERVICE.__dataclass_fields__}
    with pytest.raises(ValueError, match=r"^service: the fleet does not know"):
        fleet_floats(a_fleet(service=Other(**fields)))


@pytest.mark.parametrize("shape", [None, HSTU_PUBLISHED, QWEN3_1_7B])
def test_the_compiled_service_law_is_the_one_it_stands_for(shape: Any) -> None:
    service = SERVICE if shape is None else profiled_service(load_accelerator("a100"), shape, slow_down=20)
    physics = fleet_floats(a_fleet(service=service))
    for history, candidates, cached in (
        (0, 0, 0),
        (1, 0, 0),
        (4096, 256, 0),
        (4096, 256, 4000),
        (4096, 0, 4096),
        (100_000, 1, 7),
    ):
        expected = service.compute_ms(history=history, candidates=candidates, cached=cached)
        assert compute_ms(physics, history, candidates, cached) == pytest.approx(expected, rel=1e-12)


def a_run(count: int = 12_000, **changes: Any) -> FleetResult:
    log = a_log(count, per_second=200.0, laws=changes.pop("laws", (LAW,)))
    start = WarmUsers(user=np.tile(np.arange(300, dtype=np.uint32), 2), tokens=np.full(600, 1000, dtype=np.int32))
    arguments: dict[str, Any] = {"level": Level.REDUCED, "seed": 1, "warm": start, "measured_from_ms": 5000.0}
    return simulate(log, changes.pop("config", a_fleet()), **(arguments | changes))


def test_a_warm_run_of_enough_requests_raises_no_doubt() -> None:
    assert a_run().doubts == ()


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("too few for a P99,", {"count": 1500}),
        ("too few for a P99.9,", {"count": 5000}),
        ("utilisation is", {"config": a_fleet(instances=1, service=replace(SERVICE, flops_per_second=3e11))}),
        ("never filled", {"config": a_fleet(pool_bytes=64 * 1024 * MIB)}),
        ("figures count from", {"warm": None, "measured_from_ms": 0.0}),
        ("simulated rows fit", {"level": Level.SAMPLED}),
        ("are taken to share no row", {"laws": (LAW, replace(LAW, offset=7))}),
        ("replaced nearly as often", {"laws": (replace(LAW, drift_percent_per_hour=50_000.0),)}),
    ],
)
def test_what_cannot_be_trusted_says_so(said: str, changes: dict[str, Any]) -> None:
    assert any(said in doubt for doubt in a_run(**changes).doubts)


def test_a_summary_is_plain_json_with_units_in_its_names() -> None:
    result = a_run()
    summary = json.loads(json.dumps(result.summary()))
    assert summary["requests"] == len(result.latency_ms[result.measured])
    assert summary["p50Ms"] < summary["p99Ms"] < summary["p999Ms"]
    assert 0.0 < summary["kvHitPercent"]["hbm"] < 100.0
    assert 0.0 < summary["embHitPercent"] < 100.0
    assert 0.0 < summary["utilisationPercent"] < 100.0
    assert sum(bucket["requests"] for bucket in summary["byHistoryLength"]) == summary["requests"]
    assert summary["digest"] == result.digest
