"""Each level of detail keeps its stated distance from the exact one, follows drift, and repeats itself to the byte."""

from dataclasses import replace

import numpy as np
import pytest
from fleet_logs import MIB, SERVICE, Scripted, a_fleet, a_log

from simulator.fleet.build import constants_of, instance_of, placed, rendezvous_owners, requests_of
from simulator.fleet.config import Level, RefillMode
from simulator.fleet.laws import cumulative_share, law_tables
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.request_log import RowLaw

LARGE = RowLaw(exponent=0.95, catalog_rows=2_000_000)
#: Instances whose EMB cache holds a tenth of the catalogue.
FLEET = a_fleet(instances=2, pool_bytes=1024 * MIB, emb_percent=10, refill=RefillMode.LAZY)
CHEAP = [Level.SAMPLED, Level.SAMPLED_64, Level.REDUCED]


def hit(result: FleetResult, part: slice = slice(None)) -> float:
    return 1.0 - float(result.rows_missed[part].sum()) / float(result.rows_asked[part].sum())


@pytest.mark.parametrize("level", CHEAP)
@pytest.mark.parametrize("exponent", [0.7, 0.95, 1.2])
def test_hits_and_latencies_are_close_to_the_exact_level(level: Level, exponent: float) -> None:
    log = a_log(4000, laws=(replace(LARGE, exponent=exponent),), rows_per_token=3, per_second=400.0)
    exact, mine = (simulate(log, FLEET, level=one, seed=1) for one in (Level.EXACT, level))
    np.testing.assert_array_equal(mine.rows_asked, exact.rows_asked)
    assert hit(mine) == pytest.approx(hit(exact), abs=0.006)
    assert np.percentile(mine.latency_ms, 50) == pytest.approx(np.percentile(exact.latency_ms, 50), rel=0.02)
    assert np.percentile(mine.latency_ms, 99) == pytest.approx(np.percentile(exact.latency_ms, 99), rel=0.03)


@pytest.mark.parametrize("level", CHEAP)
def test_a_drifting_head_costs_about_the_same_hits_at_every_level(level: Level) -> None:
    drift = replace(LARGE, drift_percent_per_hour=20_000.0)
    log = a_log(4000, laws=(drift,), rows_per_token=12, per_second=200.0)
    still, late = replace(log, laws=(LARGE,)), slice(2000, None)
    exact, mine = (
        hit(simulate(still, FLEET, level=one, seed=1), late) - hit(simulate(log, FLEET, level=one, seed=1), late)
        for one in (Level.EXACT, level)
    )
    assert exact > 0.008
    assert mine == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("level", CHEAP)
def test_other_popular_rows_empty_the_cache_at_every_level(level: Level) -> None:
    laws = (LARGE, replace(LARGE, offset=700_000))
    log = a_log(4000, laws=laws, rows_per_token=12, law=np.repeat([0, 1], 2000).astype(np.uint8))
    exact, mine = (simulate(log, FLEET, level=one, seed=1) for one in (Level.EXACT, level))
    before, after = slice(0, 2000), slice(2000, None)
    assert hit(exact, after) < hit(exact, before) - 0.02
    assert hit(mine, after) == pytest.approx(hit(exact, after), abs=0.025)
    assert hit(mine) == pytest.approx(hit(exact), abs=0.015)


@pytest.mark.parametrize("level", CHEAP)
def test_a_resize_is_followed_at_every_level(level: Level) -> None:
    log = a_log(6000, laws=(LARGE,), rows_per_token=12)
    wanted = [20 * MIB, 400 * MIB]
    exact, mine = (simulate(log, FLEET, level=one, split=Scripted(5000.0, wanted), seed=1) for one in (Level.EXACT, level))
    for start, end in ((0.0, 5000.0), (5000.0, 10_000.0), (10_000.0, 12_000.0), (14_000.0, 30_000.0)):
        part = slice(*np.searchsorted(log.arrival_ms, [start, end]).tolist())
        assert hit(mine, part) == pytest.approx(hit(exact, part), abs=0.003 if level is Level.REDUCED else 0.015)


def test_neighbouring_seeds_have_nothing_in_common() -> None:
    log, fleet = a_log(10, laws=(replace(LARGE, exponent=0.0),)), a_fleet(instances=1, pool_bytes=2048 * MIB, emb_percent=50)
    tables = law_tables(log.laws, Level.SAMPLED, head=True)
    placement = placed(log, [0] * 4096, instances=1)
    constants, requests = constants_of(fleet, log, tables, Level.SAMPLED, seen_one_in=None), requests_of(log, placement)
    common = {"config": fleet, "requests": requests, "placement": placement, "tables": tables, "fleet": constants}
    ages = np.array([instance_of(0, seed=seed, **common).rows.last for seed in range(4)], dtype=np.float64)
    for shift in range(3):
        left, right = ages[:, shift:], ages[:, : ages.shape[1] - shift]
        assert np.abs(np.corrcoef(left[:-1], right[1:])[:3, 3:].diagonal()).max() < 0.06


@pytest.mark.parametrize("level", list(Level))
def test_one_seed_gives_one_digest_and_another_gives_another(level: Level) -> None:
    log = a_log(1000)
    first, again, other = (simulate(log, a_fleet(), level=level, seed=seed) for seed in (1, 1, 2))
    assert first.digest == again.digest
    assert first.digest != other.digest


def test_instances_do_not_see_each_other() -> None:
    log = a_log(2000)
    whole = simulate(log, a_fleet(), level=Level.SAMPLED_64, seed=1)
    mine = whole.instance == 2
    columns = ("arrival_ms", "user", "history_tokens", "candidates", "signal_lead_ms", "law")
    alone = simulate(
        replace(log, **{name: getattr(log, name)[mine] for name in columns}), a_fleet(), level=Level.SAMPLED_64, seed=1
    )
    np.testing.assert_array_equal(alone.latency_ms, whole.latency_ms[mine])
    np.testing.assert_array_equal(alone.rows_missed, whole.rows_missed[mine])


@pytest.mark.parametrize("level", list(Level))
def test_nothing_is_lost_and_nothing_invented(level: Level) -> None:
    log, fleet = a_log(2000), a_fleet(host_bytes=512 * MIB, ssd_bytes=1024 * MIB)
    result = simulate(log, fleet, level=level, seed=1)
    hits = result.kv_hit_tokens + result.host_hit_tokens + result.ssd_hit_tokens
    assert (hits <= log.history_tokens).all()
    np.testing.assert_array_equal(result.rows_asked, log.history_tokens + log.candidates - hits)
    assert ((result.rows_missed >= 0) & (result.rows_missed <= result.rows_asked)).all()
    assert (result.latency_ms >= result.service_ms).all()
    assert result.bytes_by_class["demand"] == 512 * result.rows_missed.sum()
    for number in range(fleet.instances):
        mine = result.instance == number
        ends = log.arrival_ms[mine] + result.latency_ms[mine]
        starts = ends - result.service_ms[mine]
        assert (starts[1:] >= ends[:-1] - 1e-6).all()  # one server, in order
    assert result.windows.kv_used_bytes.max() <= fleet.pool_bytes - fleet.first_emb_bytes


def test_users_that_left_hbm_are_loaded_where_that_is_cheaper() -> None:
    log, fast = a_log(4000, rows_per_token=0), replace(SERVICE, link_bytes_per_second=100_000_000_000)
    bare = simulate(log, a_fleet(service=fast), level=Level.REDUCED, seed=1)
    below = {"host_bytes": 128 * MIB, "ssd_bytes": 2048 * MIB, "ssd_bytes_per_second": 50_000_000_000}
    tiers = simulate(log, a_fleet(service=fast, **below), level=Level.REDUCED, seed=1)
    np.testing.assert_array_equal(tiers.kv_hit_tokens, bare.kv_hit_tokens)
    assert tiers.host_hit_tokens.sum() > 0
    assert tiers.ssd_hit_tokens.sum() > 0
    assert tiers.service_ms.mean() < bare.service_ms.mean()
    slow = simulate(log, a_fleet(service=fast, host_bytes=2048 * MIB, reload_fixed_ms=1e6), level=Level.REDUCED, seed=1)
    assert slow.host_hit_tokens.sum() == 0
    np.testing.assert_array_equal(slow.latency_ms, bare.latency_ms)


def test_a_table_of_the_routing_loop_can_be_given() -> None:
    log, owners = a_log(1000), rendezvous_owners(4)
    result = simulate(log, a_fleet(), level=Level.REDUCED, routing=owners, seed=1)
    np.testing.assert_array_equal(result.instance, np.array(owners)[log.user_slots[log.user]])


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.4])
def test_shares_of_a_law_are_those_of_its_sum(exponent: float) -> None:
    law = RowLaw(exponent=exponent, catalog_rows=400_000)
    mass = np.arange(1, 400_001, dtype=np.float64) ** -exponent
    ranks = np.array([0, 1, 10, 1000, 131_072, 131_073, 300_000, 400_000])
    exact = np.concatenate(([0.0], np.cumsum(mass)))[ranks] / mass.sum()
    np.testing.assert_allclose(cumulative_share(law, ranks), exact, rtol=1e-9)
    for level in Level:
        tables = law_tables((law,), level, head=True)
        head = cumulative_share(law, np.array([tables.head_ranks]))[0]
        assert tables.bin_mass[0].sum() == pytest.approx(1.0 - head, rel=1e-9)
