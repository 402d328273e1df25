"""A fleet with a batching window does what the batching server of the physics does, batch by batch."""

from typing import Any

import numpy as np
import pytest
from fleet_logs import MIB, SERVICE, Scripted, a_fleet, a_log

from simulator.core.physics import ServiceModel
from simulator.fleet.config import FleetConfig, Level, RefillMode
from simulator.fleet.run import simulate
from simulator.physics.accelerator import load_accelerator
from simulator.physics.batching import Arrival, Batch, BatchRules, serve
from simulator.physics.model_shape import HSTU_PUBLISHED
from simulator.physics.profiled import profiled_service
from simulator.physics.service import Work

RULES = BatchRules(window_ms=4.0, max_requests=4, bucket_edges_tokens=(128, 512, 1024))


def latencies(fleet: FleetConfig, log: Any, cached: np.ndarray) -> np.ndarray:
    """What the batching server of the physics makes of one instance's requests."""
    assert fleet.batching is not None
    arrivals = [
        Arrival(
            request=place,
            arrival_ms=float(log.arrival_ms[place]),
            work=Work(
                history_tokens=int(log.history_tokens[place]),
                cached_tokens=int(cached[place]),
                candidate_tokens=int(log.candidates[place]),
            ),
        )
        for place in range(len(log))
    ]

    def batch_ms(batch: Batch) -> float:
        return fleet.service.batch_ms(batch.works, padded_tokens=batch.padded_tokens)

    out = np.zeros(len(log))
    for one in serve(arrivals, rules=fleet.batching, batch_ms=batch_ms):
        for arrival in one.batch.arrivals:
            out[arrival.request] = one.finish_ms - arrival.arrival_ms
    return out


@pytest.mark.parametrize("service", [SERVICE, profiled_service(load_accelerator("l20"), HSTU_PUBLISHED)])
@pytest.mark.parametrize("rules", [RULES, BatchRules(window_ms=0.0, max_requests=8), BatchRules(window_ms=20.0, max_requests=2)])
def test_each_request_leaves_when_its_batch_does(service: ServiceModel, rules: BatchRules) -> None:
    # Half of all tokens are found, so that lengths differ from histories; nothing crosses the link.
    log = a_log(3000, rows_per_token=0, per_second=200.0)
    fleet = a_fleet(instances=1, service=service, batching=rules)
    mine = simulate(log, fleet, level=Level.EXACT, seed=1)
    assert mine.kv_hit_tokens.any()
    np.testing.assert_allclose(mine.latency_ms, latencies(fleet, log, mine.kv_hit_tokens), rtol=1e-9)


def test_the_server_is_busy_for_as_long_as_its_batches_take() -> None:
    log, alone = a_log(3000, rows_per_token=0, per_second=100.0), a_fleet(instances=1, emb_percent=0)
    one_by_one = BatchRules(window_ms=0.0, max_requests=1, bucket_edges_tokens=(1,))
    usual, single = (simulate(log, fleet, seed=1) for fleet in (alone, a_fleet(instances=1, emb_percent=0, batching=one_by_one)))
    assert single.service_ms.sum() == pytest.approx(usual.service_ms.sum())
    np.testing.assert_array_equal(single.kv_hit_tokens, usual.kv_hit_tokens)
    together = simulate(log, a_fleet(instances=1, emb_percent=0, batching=BatchRules(window_ms=30.0)), seed=1)
    assert together.latency_ms.mean() > usual.latency_ms.mean()


def test_a_batch_of_one_takes_the_link_as_a_request_alone_does() -> None:
    changes: dict[str, Any] = {"host_bytes": 512 * MIB, "refill": RefillMode.LAZY, "instances": 1}
    log = a_log(2000, per_second=20.0)  # hardly anybody waits, so that order of arrival is order of service
    one_by_one = BatchRules(window_ms=0.0, max_requests=1, bucket_edges_tokens=(1,))
    usual = simulate(log, a_fleet(**changes), level=Level.EXACT, seed=1)
    single = simulate(log, a_fleet(**changes, batching=one_by_one), level=Level.EXACT, seed=1)
    assert usual.bytes_by_class["reload"] > 0
    np.testing.assert_array_equal(single.rows_missed, usual.rows_missed)
    np.testing.assert_allclose(single.latency_ms, usual.latency_ms, rtol=1e-9)
    assert single.bytes_by_class == usual.bytes_by_class


def test_a_batch_fetches_the_rows_of_all_at_once_and_pads_to_its_longest() -> None:
    log = a_log(4, per_second=300.0, arrival_ms=np.full(4, 5.0))
    rules = BatchRules(window_ms=50.0, max_requests=4, bucket_edges_tokens=(1,))
    mine = simulate(log, a_fleet(instances=1, batching=rules), level=Level.EXACT, seed=1)
    works = [
        Work(history_tokens=int(history), cached_tokens=int(cached), candidate_tokens=int(candidates))
        for history, cached, candidates in zip(log.history_tokens, mine.kv_hit_tokens, log.candidates, strict=True)
    ]
    compute = SERVICE.batch_ms(works, padded_tokens=4 * max(work.new_tokens for work in works))
    assert (mine.rows_missed > 0).all()
    gather = SERVICE.gather_ms(missed_rows=int(mine.rows_missed.sum()))
    np.testing.assert_allclose(mine.latency_ms, compute + gather)
    np.testing.assert_allclose(mine.service_ms, (compute + gather) / 4)


def test_a_split_moves_while_a_batch_runs_and_never_takes_more_than_the_pool() -> None:
    log = a_log(3000, per_second=700.0)
    fleet = a_fleet(instances=2, batching=RULES)
    every_ms = log.duration_ms / 9
    policy = Scripted(every_ms, [emb * MIB for emb in (200, 252, 256, 10, 100, 255, 5, 256)])
    mine = simulate(log, fleet, split=policy, seed=1)
    for seen in policy.seen:
        for one in seen:
            assert max(one.emb_bytes, one.emb_used_bytes) + max(one.kv_bytes, one.kv_used_bytes) <= one.pool_bytes
    assert sum(one.requests for seen in policy.seen for one in seen) < len(log)
    assert min(mine.latency_ms.min(), mine.service_ms.min()) > 0.0
    assert mine.digest == simulate(log, fleet, split=Scripted(every_ms, policy.wanted), seed=1).digest


def test_users_of_a_running_batch_stay_until_it_has_finished() -> None:
    """Everything is to go to EMB while a batch of two runs: one user that waits goes at once, those two when they are done."""
    log = a_log(
        4,
        users=4,
        rows_per_token=0,
        arrival_ms=np.array([0.0, 0.0, 0.1, 500.0]),
        user=np.arange(4, dtype=np.uint32),
        history_tokens=np.array([4000, 4000, 4000, 32], dtype=np.int32),
        candidates=np.full(4, 10, dtype=np.int32),
    )
    fleet = a_fleet(instances=1, emb_percent=0, batching=BatchRules(window_ms=0.0, max_requests=2, bucket_edges_tokens=(1,)))
    policy = Scripted(5.0, [fleet.pool_bytes])
    mine = simulate(log, fleet, level=Level.REDUCED, split=policy, seed=1)
    one = -(-4000 // fleet.page_tokens) * fleet.page_bytes
    assert mine.latency_ms[0] > 10.0
    used = [seen[0].kv_used_bytes for seen in policy.seen]
    limits = [(seen[0].emb_bytes, seen[0].kv_bytes) for seen in policy.seen]
    assert used[:2] == [3 * one, 2 * one]
    assert limits[1] == (0, 0), "EMB waits for what is still in use"
    assert (mine.windows.kv_used_bytes[-1, 0], mine.windows.emb_limit_bytes[-1, 0]) == (0, fleet.pool_bytes)


def test_processes_share_instances_that_batch() -> None:
    log, fleet = a_log(2000), a_fleet(batching=RULES)
    assert simulate(log, fleet, seed=1, workers=2).digest == simulate(log, fleet, seed=1).digest


def test_batching_must_be_rules() -> None:
    with pytest.raises(ValueError, match=r"^batching: "):
        a_fleet(batching=3)
