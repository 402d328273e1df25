"""The predicted P99 against simulated queues, its order under load, and the split that it leads to."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocation.anchor import predict_p99_ms, solve, split_grid, trust_of
from policies.allocation.examples import GIB, example_curve, example_inputs, pack_curve
from policies.allocation.hillclimb import hill_step
from policies.allocation.types import Bounds, Costs, EstimatorView

USABLE, GRANULE = 16 * GIB, 64 << 20
COSTS = Costs(
    ms_per_emb_miss_row=0.0007,
    ms_per_kv_miss_token=0.002,
    emb_rows_per_kv_miss_token=1.0,
    base_service_ms=1.5,
    service_variance_ms2=0.1,
    arrival_per_s=150.0,
    emb_rows_per_request=1500.0,
    kv_tokens_per_request=2000.0,
)


def simulated_p99_ms(costs: Costs, emb_miss: float, kv_miss: float, cv2: float) -> float:
    """A first-come-first-served queue of 300 000 requests with gamma histories."""
    rng = np.random.default_rng(4)
    n = 300_000
    arrival = np.cumsum(rng.exponential(1000.0 / costs.arrival_per_s, n))
    tokens = rng.gamma(1.0 / cv2, costs.kv_tokens_per_request * cv2, n) * (rng.random(n) < kv_miss)
    row_ms = costs.ms_per_emb_miss_row * emb_miss
    service = rng.normal(costs.base_service_ms, costs.service_variance_ms2**0.5, n) + costs.emb_rows_per_request * row_ms
    service = np.maximum(service + tokens * (costs.ms_per_kv_miss_token + costs.emb_rows_per_kv_miss_token * row_ms), 0.0)
    done = np.cumsum(service)
    return float(np.quantile(done + np.maximum.accumulate(arrival - (done - service)) - arrival, 0.99))


@pytest.mark.parametrize(
    ("emb_miss", "kv_miss", "cv2", "per_s"),
    [(0.2, 0.2, 0.5, 100), (0.1, 0.5, 1.0, 150), (0.4, 0.1, 0.2, 150), (0.3, 0.3, 0.5, 200), (0.05, 0.1, 1.0, 250)],
)
def test_the_prediction_is_within_a_tenth_of_a_simulated_queue(emb_miss: float, kv_miss: float, cv2: float, per_s: float) -> None:
    costs = msgspec.structs.replace(COSTS, arrival_per_s=float(per_s))
    predicted = predict_p99_ms(np.array([emb_miss]), np.array([kv_miss]), costs=costs, kv_size_cv2=cv2)[0]
    assert predicted == pytest.approx(simulated_p99_ms(costs, emb_miss, kv_miss, cv2), rel=0.1)


positive = st.floats(0.001, 5.0)


@settings(max_examples=200, deadline=None)
@given(
    row=st.floats(1e-5, 0.01),
    token=st.floats(1e-4, 0.03),
    base=positive,
    variance=st.floats(0.0, 2.0),
    per_s=st.floats(1.0, 2000.0),
    cv2=st.floats(0.0, 2.0),
    other=st.floats(0.0, 1.0),
)
def test_more_misses_or_more_load_never_predict_less_even_in_overload(
    row: float, token: float, base: float, variance: float, per_s: float, cv2: float, other: float
) -> None:
    changes = {"ms_per_emb_miss_row": row, "ms_per_kv_miss_token": token, "base_service_ms": base}
    costs = msgspec.structs.replace(COSTS, **changes, service_variance_ms2=variance, arrival_per_s=per_s)
    rising, fixed = np.linspace(0.0, 1.0, 51), np.full(51, other)
    by_emb = predict_p99_ms(rising, fixed, costs=costs, kv_size_cv2=cv2)
    by_kv = predict_p99_ms(fixed, rising, costs=costs, kv_size_cv2=cv2)
    by_load = np.array(
        [
            predict_p99_ms(
                fixed[:1], fixed[:1], costs=msgspec.structs.replace(costs, arrival_per_s=per_s * (1 + 4 * x)), kv_size_cv2=cv2
            )[0]
            for x in rising
        ]
    )
    for curve in (by_emb, by_kv, by_load):
        assert np.all(np.isfinite(curve))
        assert curve.min() > 0.0
        # The fit by two moments may dip by two percent where one family takes over from another.
        assert np.all(curve >= np.maximum.accumulate(curve) * 0.97)


def test_a_history_of_nothing_is_served_without_dividing_by_zero() -> None:
    costs = msgspec.structs.replace(COSTS, kv_tokens_per_request=0.0, arrival_per_s=0.0)
    assert np.isfinite(predict_p99_ms(np.zeros(3), np.zeros(3), costs=costs, kv_size_cv2=0.0)).all()


@given(
    granule=st.integers(1, 1 << 28),
    granules=st.integers(2, 400),
    rest=st.floats(0, 0.99),
    low=st.floats(0, 100),
    width=st.floats(0, 100),
)
def test_every_grid_point_is_whole_granules_with_room_for_both_sides(
    granule: int, granules: int, rest: float, low: float, width: float
) -> None:
    usable = int(granule * (granules + rest))
    bounds = Bounds(min_emb_percent=low, max_emb_percent=min(low + width, 100.0))
    grid = split_grid(usable_bytes=usable, granule_bytes=granule, bounds=bounds)
    assert len(grid) >= 1
    assert np.all(grid % granule == 0)
    assert grid.min() >= granule
    assert grid.max() <= usable - granule
    assert np.all(np.diff(grid) > 0)
    if len(grid) > 1:
        assert grid.min() >= low / 100 * usable * (1 - 1e-9)
        assert grid.max() <= bounds.max_emb_percent / 100 * usable * (1 + 1e-9)


def test_a_pool_without_room_for_two_granules_has_no_grid() -> None:
    with pytest.raises(ValueError):
        split_grid(usable_bytes=GRANULE, granule_bytes=GRANULE, bounds=Bounds())


@pytest.mark.parametrize(("low", "high"), [(-1.0, 95.0), (5.0, 1e300), (5.0, 101.0), (96.0, 95.0), (float("nan"), 95.0)])
def test_bounds_that_are_no_range_of_percents_have_no_grid(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="bounds"):
        split_grid(usable_bytes=16 * GRANULE, granule_bytes=GRANULE, bounds=Bounds(min_emb_percent=low, max_emb_percent=high))


def anchor_percent(**changes: Any) -> float:
    view = example_inputs().view
    assert view.emb
    assert view.kv
    assert view.costs
    costs = msgspec.structs.replace(view.costs, **changes)
    solved = solve(
        view.emb, view.kv, costs, usable_bytes=USABLE, granule_bytes=GRANULE, bounds=Bounds(), current_emb_bytes=USABLE // 2
    )
    return 100.0 * solved.target_emb_bytes / USABLE


def test_dearer_rows_move_the_anchor_towards_emb_and_dearer_tokens_towards_kv() -> None:
    assert anchor_percent(ms_per_emb_miss_row=0.002) > anchor_percent() > anchor_percent(ms_per_kv_miss_token=0.006)


def test_the_anchor_is_the_least_point_of_its_own_grid() -> None:
    view = example_inputs().view
    assert view.emb
    assert view.kv
    assert view.costs
    solved = solve(
        view.emb, view.kv, view.costs, usable_bytes=USABLE, granule_bytes=GRANULE, bounds=Bounds(), current_emb_bytes=0
    )
    assert solved.target_p99_ms <= solved.p99_ms.min() * 1.002
    assert solved.target_p99_ms < solved.current_p99_ms


def test_where_nothing_is_to_be_gained_the_anchor_stays_where_the_split_is() -> None:
    flat = pack_curve(capacity_bytes=np.array([0.0, 1e9]), miss_ratio=np.array([0.3, 0.3]))
    for current in (2 * GIB, 11 * GIB):
        solved = solve(flat, flat, COSTS, usable_bytes=USABLE, granule_bytes=GRANULE, bounds=Bounds(), current_emb_bytes=current)
        assert abs(solved.target_emb_bytes - current) <= USABLE / 100


def test_trust_names_the_worse_of_the_two_curves() -> None:
    view = example_inputs().view
    assert view.kv
    good = trust_of(view, emb_bytes=8 * GIB, kv_bytes=8 * GIB)
    assert good.trusted
    few = msgspec.structs.replace(view, kv=msgspec.structs.replace(view.kv, samples=10.0, age_ms=99.0))
    judged = trust_of(few, emb_bytes=8 * GIB, kv_bytes=8 * GIB)
    assert (judged.trusted, judged.samples, judged.age_ms) == (False, 10.0, 99.0)
    assert not trust_of(EstimatorView(), emb_bytes=1, kv_bytes=1).trusted


@pytest.mark.parametrize(("miss", "window_ms", "trusted"), [(0.5, 5e3, False), (0.5, 6.1e4, True), (0.01, 5e3, True)])
def test_a_curve_of_a_stream_not_yet_seen_through_is_not_trusted(miss: float, window_ms: float, trusted: bool) -> None:
    view = example_inputs().view
    kv = pack_curve(capacity_bytes=np.array([0.0, 1e9, 2e9]), miss_ratio=np.array([1.0, miss, miss]), window_ms=window_ms)
    judged = trust_of(msgspec.structs.replace(view, kv=kv), emb_bytes=8 * GIB, kv_bytes=8 * GIB)
    assert judged.trusted is trusted


def test_hill_climbing_stops_within_two_steps_of_the_split_with_the_least_mean_service() -> None:
    emb = example_curve(alpha=0.95, keys=1e8, bytes_per_key=512.0, per_s=400_000.0)
    kv = example_curve(alpha=0.6, keys=20_000, bytes_per_key=8_192_000.0, per_s=200.0)
    costs = msgspec.structs.replace(COSTS, ms_per_kv_miss_token=0.003, kv_tokens_per_request=1000.0)
    step = 512 << 20
    grid = np.arange(step, USABLE, step, dtype=np.float64)
    rows = costs.emb_rows_per_request + costs.kv_tokens_per_request * kv.at(USABLE - grid)
    mean = rows * costs.ms_per_emb_miss_row * emb.at(grid)
    mean += costs.kv_tokens_per_request * costs.ms_per_kv_miss_token * kv.at(USABLE - grid)
    best = grid[mean.argmin()]
    for start in (step, USABLE - step):
        current = start
        for _ in range(40):
            current = hill_step(emb, kv, costs, usable_bytes=USABLE, current_emb_bytes=current, step_bytes=step).goal_emb_bytes
        assert abs(current - best) <= 2 * step
