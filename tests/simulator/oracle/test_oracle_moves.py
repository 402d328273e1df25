"""A plan that pays for its moves is never worse than standing still and never better than moving for free."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core.physics import DEMO_ACCELERATOR
from simulator.fleet.config import FleetConfig, RefillMode
from simulator.oracle.choice import choose, noise_floor, warm_up_windows
from simulator.oracle.lindley import ASKED, BUSY, FIXED, KV_MISSED, MISSED, SUMS
from simulator.oracle.moves import Moves, cheapest_plan

WINDOW_MS = 60_000.0
SPLITS = 7


def problem(seed: int, windows: int, splits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    penalty = rng.exponential(2.0, (windows, splits, splits)) * (rng.random((windows, splits, splits)) < 0.8)
    penalty[:, np.arange(splits), np.arange(splits)] = 0.0
    return rng.exponential(10.0, (windows, splits)), rng.random(windows) + 0.1, penalty


def price(plan: tuple[int, ...], cost: np.ndarray, weight: np.ndarray, penalty: np.ndarray) -> float:
    total = cost[0, plan[0]] * weight[0]
    for window in range(1, len(plan)):
        total += weight[window] * (cost[window, plan[window]] + penalty[window, plan[window - 1], plan[window]])
    return float(total)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
def test_no_sequence_of_splits_is_cheaper_than_the_plan(seed: int, windows: int, splits: int) -> None:
    cost, weight, penalty = problem(seed, windows, splits)
    plan, total = cheapest_plan(cost, weight, penalty)
    assert price(tuple(plan.tolist()), cost, weight, penalty) == pytest.approx(total)
    assert total <= min(price(other, cost, weight, penalty) for other in product(range(splits), repeat=windows)) + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 12))
def test_a_plan_lies_between_standing_still_and_moving_for_free(seed: int, windows: int, splits: int) -> None:
    cost, _, penalty = problem(seed, windows, splits)
    count = np.random.default_rng(seed).integers(0, 5, windows)
    found = choose(
        np.where(count[:, None] > 0, cost, np.nan), count, np.ones(windows, dtype=bool), lambda window: penalty[window]
    )
    if not count.any():
        assert np.isnan(found.static_ms)
        return
    assert found.best_ms - 1e-9 <= found.planned_ms <= found.static_ms
    assert np.all((found.best >= 0) == (count > 0))
    assert np.all((found.planned >= 0) == (count > 0))


def test_free_moves_are_all_taken_and_prohibitive_ones_none() -> None:
    cost, weight, _ = problem(1, 20, 5)
    free, total = cheapest_plan(cost, weight, np.zeros((20, 5, 5)))
    assert free.tolist() == cost.argmin(axis=1).tolist()
    assert total == pytest.approx(float(weight @ cost.min(axis=1)))
    stay, total = cheapest_plan(cost, weight, np.full((20, 5, 5), 1e9) * (1 - np.eye(5)))
    assert len(set(stay.tolist())) == 1
    assert total == pytest.approx(float((weight @ cost).min()))


def a_window() -> tuple[np.ndarray, np.ndarray]:
    """P99 and sums of one window: EMB misses fall along the splits, KV misses rise."""
    sums = np.zeros((SUMS, SPLITS))
    sums[ASKED] = np.linspace(1e7, 2e7, SPLITS)
    sums[MISSED] = sums[ASKED] * np.linspace(0.3, 0.02, SPLITS)
    sums[FIXED] = np.linspace(8_000.0, 20_000.0, SPLITS)
    sums[BUSY] = sums[FIXED] + sums[MISSED] * 1e-3
    sums[KV_MISSED] = np.linspace(1e10, 4e10, SPLITS)
    return np.full(SPLITS, 50.0), sums


def moves(refill: RefillMode) -> Moves:
    emb = (np.arange(1, SPLITS + 1) << 28).astype(np.int64)
    config = FleetConfig(instances=1, pool_bytes=8 << 28, emb_percent=50, service=DEMO_ACCELERATOR, slo_ms=100.0, refill=refill)
    return Moves(config=config, emb_bytes=emb, kv_bytes=(8 << 28) - emb, window_ms=WINDOW_MS)


@pytest.mark.parametrize("refill", RefillMode)
def test_staying_costs_nothing_and_every_longer_way_costs_more(refill: RefillMode) -> None:
    penalty = moves(refill).penalty_ms(*a_window())
    assert np.all(np.diag(penalty) == 0.0)
    for split in range(SPLITS):
        assert np.all(np.diff(penalty[split:, split]) > 0.0)
        assert np.all(np.diff(penalty[split::-1, split]) > 0.0)


def test_a_capped_refill_loads_less_work_on_requests_than_misses_alone_and_a_stop_shows_in_p99() -> None:
    p99, sums = a_window()
    lazy, throttled, blocking = (moves(mode).penalty_ms(p99, sums) for mode in RefillMode)
    assert throttled[0, -1] < lazy[0, -1]
    assert blocking[0, -1] > lazy[0, -1]
    assert np.array_equal(np.tril(lazy), np.tril(throttled))


def test_an_idle_instance_moves_for_nothing_unless_refill_stops_it() -> None:
    p99, sums = np.zeros(SPLITS), np.zeros((SUMS, SPLITS))
    assert np.all(moves(RefillMode.THROTTLED).penalty_ms(p99, sums) == 0.0)
    assert np.all(np.isfinite(moves(RefillMode.BLOCKING).penalty_ms(p99, sums)))


def test_halves_that_agree_have_no_noise_floor_and_confirm_the_whole_gain() -> None:
    cost, _, _ = problem(3, 12, 9)
    floor = noise_floor(np.stack((cost, cost)), np.full(12, 1000), np.ones(12, dtype=bool))
    assert floor.regret_percent == floor.optimism_percent == 0.0
    static = cost.mean(axis=0).min()
    assert floor.confirmed_gain_percent == pytest.approx(100 * (static - cost.min(axis=1).mean()) / static)


def test_a_gain_that_is_all_noise_is_not_confirmed() -> None:
    rng = np.random.default_rng(5)
    halves = rng.normal(100.0, 5.0, (2, 200, 91))
    floor = noise_floor(halves, np.full(200, 1000), np.ones(200, dtype=bool))
    assert floor.regret_percent > 5.0
    assert abs(floor.confirmed_gain_percent) < 2.0


@pytest.mark.parametrize(
    ("first_visits", "expected"),
    [([90, 60, 30, 12, 10, 11, 9, 10], 3), ([10, 10, 10, 10, 10, 10, 10, 10], 0), ([50, 0, 0, 0, 0, 0, 0, 0], 1)],
)
def test_warm_up_ends_where_first_visits_are_as_rare_as_at_the_end(first_visits: list[int], expected: int) -> None:
    assert warm_up_windows(np.full(8, 100), np.array(first_visits)) == expected
