"""Costs of whole columns are those of the service law, request by request."""

import numpy as np
import pytest

from simulator.core.physics import DEMO_ACCELERATOR, L20_HSTU, ServiceModel
from simulator.fleet.config import FleetConfig
from simulator.oracle.costs import HBM, HOST, NOWHERE, SSD, costs
from simulator.physics.accelerator import load_accelerator
from simulator.physics.model_shape import HSTU_PUBLISHED
from simulator.physics.profiled import profiled_service

SERVICES = {
    "demo": DEMO_ACCELERATOR,
    "L20": L20_HSTU,
    "profiled": profiled_service(load_accelerator("a100"), HSTU_PUBLISHED, slow_down=3),
}


def requests() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    history = np.concatenate(([0, 0, 5, 4096], rng.integers(0, 20_000, 60)))
    candidates = np.concatenate(([0, 3, 0, 0], rng.integers(0, 500, 60)))
    cached = np.minimum(history, np.concatenate(([0, 0, 5, 4096], rng.integers(0, 20_000, 60))))
    return {"history": history, "candidates": candidates, "cached": cached}


def config(service: ServiceModel, **changes: int) -> FleetConfig:
    return FleetConfig(instances=1, pool_bytes=1 << 32, emb_percent=50, service=service, slo_ms=100.0, **changes)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_found_and_missing_state_cost_what_the_service_law_says(service: ServiceModel) -> None:
    columns = requests()
    found = costs(config(service), rows_per_token=3, miss_ratio=0.2, **columns)
    for place, (history, candidates, cached) in enumerate(zip(*columns.values(), strict=True)):
        for row, hit in ((HBM, int(cached)), (HOST, 0), (SSD, 0), (NOWHERE, 0)):
            expected = service.compute_ms(history=int(history), candidates=int(candidates), cached=hit)
            assert found.fixed_ms[row, place] == pytest.approx(expected)
            assert found.rows[row, place] == 3 * (history - hit + candidates)


def test_state_below_hbm_is_loaded_where_that_is_faster_than_computing_it_and_looking_its_rows_up_again() -> None:
    columns = requests()
    tiers = config(DEMO_ACCELERATOR, host_bytes=1 << 30, ssd_bytes=1 << 33, ssd_bytes_per_second=100_000_000)
    found = costs(tiers, rows_per_token=3, miss_ratio=0.0, **columns)
    assert np.all(np.diff(found.fixed_ms, axis=0) >= 0.0)
    for tier in (HOST, SSD):
        loaded = found.rows[tier] < found.rows[NOWHERE]
        assert np.all(found.rows[tier][loaded] == found.rows[HBM][loaded])
        assert np.all(found.fixed_ms[tier][~loaded] == found.fixed_ms[NOWHERE][~loaded])
    assert np.any(found.rows[HOST] < found.rows[SSD])
