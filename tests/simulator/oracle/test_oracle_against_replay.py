"""One pass over all splits finds what a replay at each split finds: every KV hit, and P99 to within a bin or two."""

from dataclasses import replace

import numpy as np
import pytest
from oracle_logs import SERVICE, a_fleet, a_log

from simulator.fleet.build import WarmUsers
from simulator.fleet.config import Level
from simulator.fleet.run import simulate
from simulator.oracle.check import users_found
from simulator.oracle.run import best_splits
from simulator.request_log import RowLaw

WINDOW_MS = 25_000.0
SPLITS = tuple(range(10, 91, 10))
REPLAYED = (10, 50, 80)
STILL = (RowLaw(exponent=0.9, catalog_rows=500_000),)
TWO = (*STILL, RowLaw(exponent=1.1, catalog_rows=500_000, offset=250_000))
DRIFTING = (RowLaw(exponent=0.9, catalog_rows=500_000, drift_percent_per_hour=3_000.0),)


def some_warm_users() -> WarmUsers:
    user = np.arange(400, dtype=np.uint32)[::-1].copy()
    return WarmUsers(user=user, tokens=np.full(400, 300, dtype=np.int32))


@pytest.mark.parametrize("percent", REPLAYED)
@pytest.mark.parametrize("warm", [None, some_warm_users()], ids=["empty", "warm"])
@pytest.mark.parametrize("shrinking", [False, True])
def test_every_request_finds_its_user_where_a_replay_finds_him(percent: int, warm: WarmUsers | None, shrinking: bool) -> None:
    log = a_log(4_000)
    if shrinking:
        log = replace(log, history_tokens=np.random.default_rng(1).integers(30, 1_500, 4_000).astype(np.int32))
    config = a_fleet(emb_percent=percent)
    replayed = simulate(log, config, level=Level.REDUCED, seed=1, warm=warm)
    (found,), (rows,) = users_found(log, config, splits=(percent,), warm=warm)
    assert np.array_equal(found, replayed.kv_hit_tokens > 0)
    assert np.array_equal(rows, replayed.rows_asked)


@pytest.mark.parametrize("percent", REPLAYED)
def test_users_larger_than_the_cache_are_found_where_a_replay_finds_them(percent: int) -> None:
    # Two thousand tokens take 16 MiB; the pool is 24 MiB.
    log, config = a_log(3_000, per_second=20.0, users=40), a_fleet(pool_bytes=24 << 20, emb_percent=percent)
    replayed = simulate(log, config, level=Level.REDUCED, seed=1)
    (found,), _ = users_found(log, config, splits=(percent,))
    # The fleet never evicts the user in service, the oracle does: in a cache of two or three users that shows now and then.
    assert np.mean(found != (replayed.kv_hit_tokens > 0)) < 0.01


@pytest.mark.parametrize("case", ["still", "two laws", "drifting"])
def test_p99_and_means_are_those_of_a_replay_that_looks_every_row_up(case: str) -> None:
    laws, law_of = {"still": (STILL, None), "two laws": (TWO, lambda at: (at // 40_000.0) % 2), "drifting": (DRIFTING, None)}[
        case
    ]
    log, config = a_log(8_000, laws=laws, law_of=law_of), a_fleet()
    found = best_splits(log, config, window_ms=WINDOW_MS, seed=1, splits=SPLITS)
    window = (log.arrival_ms // WINDOW_MS).astype(np.int64)
    for percent in REPLAYED:
        split = SPLITS.index(percent)
        replayed = simulate(log, replace(config, emb_percent=percent), level=Level.EXACT, seed=3)
        for number in range(found.count.shape[1]):
            latency = replayed.latency_ms[window == number]
            if len(latency) < 1_000:
                continue
            assert found.fleet_p99_ms[number, split] == pytest.approx(np.percentile(latency, 99), rel=0.04)
            assert found.fleet_mean_ms[number, split] == pytest.approx(latency.mean(), rel=0.01)
        asked, missed = replayed.rows_asked.sum(), replayed.rows_missed.sum()
        misses = 1.0 - np.nanmean(found.emb_hit_percent[:, :, split]) / 100.0
        # The pace of drift is that of the middle split, where fewer rows are looked up than at 80 %.
        assert misses == pytest.approx(missed / asked, abs=0.007 if case == "drifting" else 0.004)


def test_the_best_split_of_the_oracle_is_as_good_in_a_replay_as_the_best_replayed() -> None:
    log, config = a_log(8_000), a_fleet()
    found = best_splits(log, config, window_ms=WINDOW_MS, seed=1, splits=SPLITS)
    window = (log.arrival_ms // WINDOW_MS).astype(np.int64)
    replays = {p: simulate(log, replace(config, emb_percent=p), level=Level.SAMPLED_64, seed=3) for p in SPLITS}
    regret = []
    for number in range(found.count.shape[1]):
        if (window == number).sum() < 1_000:
            continue
        p99 = [float(np.percentile(replays[p].latency_ms[window == number], 99)) for p in SPLITS]
        regret.append(p99[int(found.fleet.best[number])] / min(p99) - 1.0)
    assert np.mean(regret) < 0.02


def test_tiers_below_hbm_are_worth_what_they_are_worth_in_a_replay() -> None:
    fast = replace(SERVICE, link_bytes_per_second=8_000_000_000, flops_per_second=1e12)
    log, small = a_log(6_000), a_fleet(emb_percent=80, pool_bytes=1 << 28, service=fast)
    tiers = replace(small, host_bytes=1 << 28, ssd_bytes=1 << 29)
    split = SPLITS.index(80)
    means = []
    for config in (small, tiers):
        replayed = simulate(log, config, level=Level.REDUCED, seed=1)
        found = best_splits(log, config, window_ms=1e6, seed=1, splits=SPLITS)
        assert found.fleet_mean_ms[0, split] == pytest.approx(replayed.latency_ms.mean(), rel=0.01)
        means.append(float(found.fleet_mean_ms[0, split]))
    assert means[1] < 0.9 * means[0]
