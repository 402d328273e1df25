"""Split policies move the splits of a fleet: by the agent's own code, inside the pool, with what shrinking and growing costs."""

from typing import Any

import numpy as np
import pytest
from fleet_logs import MIB, Scripted, a_fleet, a_log

from policies.allocation.types import AllocationIntent, Bounds, Step, Strategy
from simulator.fleet.allocation import AgentSplit, UserCurves
from simulator.fleet.config import Level, RefillMode
from simulator.fleet.run import simulate
from simulator.physics.accelerator import load_accelerator
from simulator.physics.remap import move
from simulator.request_log import RowLaw

WIDE = RowLaw(exponent=0.8, catalog_rows=1_000_000)
LEVELS = [Level.EXACT, Level.SAMPLED_64, Level.REDUCED]


def an_intent(**changes: Any) -> AllocationIntent:
    step = Step(max_percent_per_second=10.0, deadband_percent=1.0, interval_ms=500.0)
    return AllocationIntent(step=step, freeze_on_backlog=False, **changes)


@pytest.mark.parametrize("level", LEVELS)
def test_the_anchor_leaves_a_bad_split_and_serves_better(level: Level) -> None:
    log, fleet = a_log(8000, users=100, laws=(WIDE,), rows_per_token=4), a_fleet(emb_percent=90)
    held = simulate(log, fleet, level=level, seed=1, measured_from_ms=10_000.0)
    policy = AgentSplit(an_intent(strategy=Strategy.MISS_RATIO_CURVE))
    steered = simulate(log, fleet, level=level, split=policy, seed=1, measured_from_ms=10_000.0)
    assert steered.moves
    assert policy.reasons["AnchorTarget"] > 0
    assert steered.latency_ms[steered.measured].mean() < 0.95 * held.latency_ms[held.measured].mean()


def test_a_static_split_is_walked_to_at_the_pace_allowed_and_held() -> None:
    log, fleet = a_log(3000), a_fleet(emb_percent=90)
    policy = AgentSplit(an_intent(strategy=Strategy.STATIC, bounds=Bounds(fallback_emb_percent=50.0)))
    limits = simulate(log, fleet, level=Level.REDUCED, split=policy, seed=1).windows.emb_limit_bytes[:, 0]
    assert limits[-1] == 128 * MIB
    assert np.diff(limits).min() >= -0.1 * 256 * MIB


def test_hill_climbing_moves_too() -> None:
    log, fleet = a_log(6000, users=100, laws=(WIDE,), rows_per_token=4), a_fleet(emb_percent=90)
    result = simulate(log, fleet, level=Level.SAMPLED_64, split=AgentSplit(an_intent(strategy=Strategy.HILL_CLIMB)), seed=1)
    assert result.moves


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("refill", list(RefillMode))
def test_the_caches_stay_inside_the_pool_whatever_is_wanted(level: Level, refill: RefillMode) -> None:
    log, fleet = a_log(2000, per_second=500.0), a_fleet(refill=refill)
    wanted = [emb * MIB for emb in np.random.default_rng(2).integers(0, 257, 40).tolist()]
    policy = Scripted(100.0, wanted)
    windows = simulate(log, fleet, level=level, split=policy, seed=1).windows
    assert (windows.emb_used_bytes + windows.kv_used_bytes).max() <= fleet.pool_bytes
    for seen in (one for all_of_them in policy.seen for one in all_of_them):
        assert max(seen.emb_bytes, seen.emb_used_bytes) + max(seen.kv_bytes, seen.kv_used_bytes) <= fleet.pool_bytes


@pytest.mark.parametrize("level", LEVELS)
def test_a_grown_cache_fills_slower_by_misses_than_by_a_refill(level: Level) -> None:
    log, wanted = a_log(6000, laws=(WIDE,), rows_per_token=2), [200 * MIB]
    missed, refilled, latency = {}, {}, {}
    for mode in RefillMode:
        result = simulate(log, a_fleet(refill=mode), level=level, split=Scripted(2000.0, wanted), seed=1)
        after = log.arrival_ms > 2000.0
        missed[mode], refilled[mode] = int(result.rows_missed[after].sum()), result.bytes_by_class["refill"]
        latency[mode] = float(result.latency_ms[after].max())
    assert missed[RefillMode.BLOCKING] < missed[RefillMode.THROTTLED] < missed[RefillMode.LAZY]
    assert refilled[RefillMode.LAZY] == 0 < refilled[RefillMode.THROTTLED]
    assert latency[RefillMode.BLOCKING] > latency[RefillMode.LAZY]


def test_a_shrunk_cache_loses_what_a_fresh_small_one_would_not_have() -> None:
    log = a_log(4000, laws=(WIDE,), rows_per_token=2)
    small = simulate(log, a_fleet(emb_percent=4), level=Level.EXACT, seed=1)
    shrunk = simulate(log, a_fleet(emb_percent=40), level=Level.EXACT, split=Scripted(2000.0, [10 * MIB]), seed=1)
    after = log.arrival_ms > 4000.0
    assert shrunk.rows_missed[after].sum() == pytest.approx(small.rows_missed[after].sum(), rel=0.05)
    assert shrunk.bytes_by_class["resizeEvicted"] >= 4 * 80 * MIB


def test_moves_that_come_five_times_as_late_as_remapping_takes_change_next_to_nothing() -> None:
    # The fleet remaps in no time. Here all of a move waits, the shrink too, which in truth only has to unmap.
    late_ms = 10.0
    assert late_ms > 4.9 * move(load_accelerator("a100"), 64 * MIB).total_ms
    log = a_log(3000, laws=(WIDE,), rows_per_token=2)
    walk = [20 * MIB if place % 200 else 84 * MIB for place in range(0, 1000, 100)]
    wanted = [step for emb in walk for step in (emb, *[None] * 99)]
    mean, p99 = [], []
    for waits in ([], [None]):
        result = simulate(log, a_fleet(), level=Level.REDUCED, split=Scripted(late_ms, [*waits, *wanted]), seed=1)
        assert len(result.moves) >= 36
        mean.append(result.latency_ms.mean())
        p99.append(np.percentile(result.latency_ms, 99))
    assert mean[1] == pytest.approx(mean[0], rel=0.001)
    assert p99[1] == pytest.approx(p99[0], rel=0.01)


def test_a_policy_that_wants_more_than_the_pool_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^split: .* not within the pool"):
        simulate(a_log(500), a_fleet(), level=Level.REDUCED, split=Scripted(100.0, [257 * MIB]), seed=1)


def test_what_a_policy_sees_adds_up_to_what_happened() -> None:
    log, policy = a_log(3000), Scripted(200.0, [])
    result = simulate(log, a_fleet(), level=Level.SAMPLED_64, split=policy, seed=1)
    before_end = log.arrival_ms < 200.0 * len(policy.seen)
    seen = [one for all_of_them in policy.seen for one in all_of_them]
    assert sum(one.requests for one in seen) == before_end.sum()
    assert sum(one.emb_rows_asked for one in seen) == result.rows_asked[before_end].sum()
    assert sum(one.kv_tokens_hit for one in seen) == result.kv_hit_tokens[before_end].sum()
    assert sum(len(one.user_keys) for one in seen) == before_end.sum()
    sampled = sum(len(one.row_keys) for one in seen) * 64
    assert sampled == pytest.approx(result.rows_asked[before_end].sum(), rel=0.05)


def test_curves_of_users_do_not_depend_on_who_chooses_the_splits() -> None:
    log, fleet = a_log(6000, users=100, laws=(WIDE,), rows_per_token=4), a_fleet(emb_percent=90)
    users = UserCurves()
    simulate(log, fleet, level=Level.SAMPLED_64, split=AgentSplit(an_intent(strategy=Strategy.HILL_CLIMB), users=users), seed=1)
    users.complete = True
    digests = {
        simulate(log, fleet, level=Level.SAMPLED_64, split=AgentSplit(an_intent(), users=known), seed=1).digest
        for known in (None, users)
    }
    assert len(digests) == 1
