"""Costs of whole columns are those of the service law, request by request."""

import numpy as np
import pytest

from simulator.core.physics import DEMO_ACCELERATOR, L20_HSTU, ServiceModel
from simulator.fleet.config import FleetConfig
from simulator.oracle.costs import costs
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
    found = costs(config(service), rows_per_token=3, **columns)
    for place, (history, candidates, cached) in enumerate(zip(*columns.values(), strict=True)):
        for row, hit in ((0, int(cached)), (2, 0)):
            expected = service.compute_ms(history=int(history), candidates=int(candidates), cached=hit)
            assert found.fixed_ms[row, place] == pytest.approx(expected)
            assert found.rows[row, place] == 3 * (history - hit + candidates)


def test_state_on_the_host_is_loaded_where_that_is_faster_and_never_costs_more_than_computing() -> None:
    columns = requests()
    found = costs(config(DEMO_ACCELERATOR, host_bytes=1 << 30), rows_per_token=3, **columns)
    assert np.all(found.fixed_ms[1] <= found.fixed_ms[2])
    assert np.all(found.fixed_ms[1] >= found.fixed_ms[0])
    loaded = found.fixed_ms[1] < found.fixed_ms[2]
    assert np.any(loaded)
    assert np.all(found.rows[1][loaded] == found.rows[0][loaded])
