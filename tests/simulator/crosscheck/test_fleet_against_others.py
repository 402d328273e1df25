"""The compiled fleet against what was not made with it: libcachesim, the Python core, Che's approximation, queueing theory."""

from dataclasses import replace

import numpy as np
import pytest
from fleet_of_one import SERVICE, che_miss_ratio, fleet_of, key_of, log_of
from other_caches import hits
from queue_formulas import md1_wait_quantile, mean_wait_ms, waits
from real_streams import spread, visits

from contract.engine import RankRequest
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.fleet.config import Level
from simulator.fleet.run import simulate
from simulator.replay import even_slots, replay
from simulator.request_log import RowLaw


@pytest.mark.parametrize("share", [0.005, 0.02, 0.05, 0.1, 0.2])
def test_users_who_come_one_at_a_time_hit_one_instance_as_they_hit_libcachesims_lru(share: float) -> None:
    seen = visits()
    tokens = round(share * seen.final_bytes)
    log = log_of(np.arange(len(seen)) * 1e5, seen.user, seen.state_bytes)  # nobody is in service when the next one comes
    config = fleet_of(pool_bytes=tokens * SERVICE.kv_bytes_per_token, page_tokens=1)
    found = simulate(log, config, level=Level.REDUCED, seed=1).kv_hit_tokens > 0
    np.testing.assert_array_equal(found, hits("LRU", seen.user.tolist(), tokens, sizes=seen.state_bytes.tolist(), growing=True))


def test_tiers_of_equal_users_hit_together_as_one_lru_of_their_joint_size_does() -> None:
    """What HBM evicts goes to the host and comes back when it is used, and likewise below: one list in three places."""
    users = visits().user
    page = 32 * SERVICE.kv_bytes_per_token
    log = log_of(np.arange(len(users)) * 1e3, users, np.full(len(users), 32))
    config = fleet_of(
        pool_bytes=100 * page,
        host_bytes=400 * page,
        ssd_bytes=1000 * page,
        ssd_bytes_per_second=1 << 40,
        service=replace(SERVICE, link_bytes_per_second=1 << 40),  # what is dearer to load than to compute is computed
    )
    result = simulate(log, config, level=Level.REDUCED, seed=1)
    upper = result.kv_hit_tokens > 0
    np.testing.assert_array_equal(upper, hits("LRU", users.tolist(), 100))
    middle = upper | (result.host_hit_tokens > 0)
    np.testing.assert_array_equal(middle, hits("LRU", users.tolist(), 500))
    np.testing.assert_array_equal(middle | (result.ssd_hit_tokens > 0), hits("LRU", users.tolist(), 1500))


@pytest.mark.parametrize("level", [Level.EXACT, Level.REDUCED])
def test_a_busy_fleet_serves_the_conversation_trace_request_by_request_as_the_core_does(level: Level) -> None:
    seen, instances = visits(), 3
    arrival = spread(seen.time_ms) / 5.0
    history = np.minimum(seen.state_bytes, 30_000)
    config = fleet_of(instances=instances, pool_bytes=8 << 30, emb_percent=1)
    result = simulate(log_of(arrival, seen.user, history), config, level=level, seed=1)
    requests = [
        RankRequest(
            request_id=f"r{place}",
            user_key=key_of(user),
            model_version="1",
            history_tokens=int(history[place]),
            candidates=100,
            rows_per_token=0,
            arrival_ms=float(arrival[place]),
        )
        for place, user in enumerate(seen.user.tolist())
    ]
    core = InstanceConfig(pool_bytes=config.pool_bytes, emb_percent=1, service=SERVICE, granule_bytes=1)
    outcomes = replay(requests, even_slots(instances), [GRInstanceCore(core, seed=1) for _ in range(instances)])
    np.testing.assert_array_equal(result.kv_hit_tokens, outcomes.kv_tokens_hit)
    np.testing.assert_allclose(result.service_ms, outcomes.service_ms, rtol=1e-9)
    np.testing.assert_allclose(result.latency_ms, outcomes.latency_ms, atol=1e-6)
    assert (result.queue_ms > 0).mean() > 0.2
    assert 0.1 < (result.kv_hit_tokens > 0).mean() < 0.35


@pytest.mark.parametrize("exponent", [0.8, 0.95, 1.05])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
@pytest.mark.parametrize(
    ("level", "error"), [(Level.EXACT, 0.001), (Level.SAMPLED_64, 0.002), (Level.SAMPLED, 0.004), (Level.REDUCED, 0.0005)]
)
def test_rows_of_a_still_catalogue_miss_as_che_says(exponent: float, share: float, level: Level, error: float) -> None:
    """Within four standard errors of as many misses; the sampled levels look at one row in 64 and in 256."""
    law = RowLaw(exponent=exponent, catalog_rows=1_000_000)
    count = 1000 if level is Level.EXACT else 20_000
    log = log_of(np.arange(count) * 1e3, np.arange(count) % 10, np.zeros(count), candidates=3000, rows_per_token=1, law=law)
    rows = round(share * law.catalog_rows)
    config = fleet_of(pool_bytes=rows * SERVICE.row_bytes, emb_percent=100)
    result = simulate(log, config, level=level, seed=3)
    assert int(result.rows_asked.sum()) == 3000 * count
    missed = float(result.rows_missed.sum() / result.rows_asked.sum())
    assert missed == pytest.approx(che_miss_ratio(law, rows), abs=error)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_instances_whose_users_always_hit_wait_like_md1(load: float) -> None:
    instances, each = 32, 40_000
    service = SERVICE.compute_ms(history=2000, candidates=100, cached=2000)
    rng = np.random.default_rng(4)
    # One user per instance, found through the slots; arrivals of each are Poisson, so those of all are.
    owners, residents = even_slots(instances), {}
    for user in range(2000):
        residents.setdefault(owners[int(log_of(np.zeros(1), np.array([user]), np.zeros(1)).user_slots[user])], user)
    arrival = np.cumsum(rng.exponential(service / load / instances, instances * each))
    owner = rng.integers(0, instances, instances * each)
    user = np.array([residents[number] for number in range(instances)])[owner]
    result = simulate(log_of(arrival, user, np.full(len(user), 2000)), fleet_of(instances=instances), level=Level.REDUCED, seed=1)
    first = np.unique(owner, return_index=True)[1]  # the first request of each user finds nothing
    assert np.delete(result.kv_hit_tokens, first).min() == 2000
    for number in (0, 31):
        mine = owner == number
        np.testing.assert_allclose(result.queue_ms[mine], waits(arrival[mine], result.service_ms[mine]), atol=1e-5)
    queues = np.array([result.queue_ms[owner == number].mean() for number in range(instances)]) / service
    error = queues.std(ddof=1) / instances**0.5
    assert abs(queues.mean() - mean_wait_ms(load=load, mean_ms=1.0, second_moment=1.0)) <= 4.0 * error
    tails = np.array([np.quantile(result.queue_ms[owner == number], 0.99) for number in range(instances)]) / service
    assert abs(tails.mean() - md1_wait_quantile(0.99, load)) <= 4.0 * tails.std(ddof=1) / instances**0.5
    assert error <= 0.02 * queues.mean()
