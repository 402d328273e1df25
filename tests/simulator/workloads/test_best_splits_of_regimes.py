"""What the regimes are for: on one accelerator, the best split in hindsight stays in Steady and moves far in Trend."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.core.physics import ServiceModel
from simulator.fleet.config import FleetConfig
from simulator.oracle.result import OracleResult
from simulator.oracle.run import best_splits
from simulator.workloads import Part, Traffic, steady, trend

INSTANCES = 4
ACCELERATOR = ServiceModel(
    layers=2,
    width=1024,
    flops_per_second=170e12,
    row_bytes=4096,
    link_bytes_per_second=20_000_000_000,
    gather_efficiency=0.3,
    gather_fixed_ms=0.05,
    base_ms=0.5,
)
FLEET = FleetConfig(instances=INSTANCES, pool_bytes=48 << 30, emb_percent=50, service=ACCELERATOR, slo_ms=100.0)


def hindsight(regime: object, *, per_instance: float, part: Part) -> OracleResult:
    traffic = Traffic(seed=1, duration_s=600.0, requests_per_second=per_instance * INSTANCES, instances=INSTANCES, part=part)
    log, _ = (steady if regime is steady else trend)(traffic)
    return best_splits(log, FLEET, window_ms=60_000.0, seed=1, splits=tuple(range(5, 96, 5)))


@pytest.mark.parametrize("part", [Part.TRAIN, Part.TEST])
def test_the_best_split_moves_from_kv_to_emb_through_trend(part: Part) -> None:
    found = hindsight(trend, per_instance=140.0, part=part)
    best = [percent for percent in found.percents(found.fleet.best) if percent is not None]

    assert np.mean(best[1:4]) + 35 <= np.mean(best[-3:])  # 35 points are what was published for real regimes
    assert 15 <= found.splits[int(np.argmin(found.whole_p99_ms))] <= 85


def test_steady_has_its_best_split_inside_and_it_stays() -> None:
    found = hindsight(steady, per_instance=115.0, part=Part.TRAIN)
    whole = found.splits[int(np.argmin(found.whole_p99_ms))]

    assert 30 <= whole <= 80
    assert found.whole_p99_ms[0] > 1.3 * found.whole_p99_ms.min()
    assert found.whole_p99_ms[-1] > found.whole_p99_ms.min()
