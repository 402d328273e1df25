"""The compiled fleet does request by request what the model of one instance does, which is the reference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleet_logs import MIB, SERVICE, Scripted, a_fleet, a_log, as_rank_requests, core_config

from contract.engine import SplitRequest
from simulator.core.emb_cache import EmbCache
from simulator.core.instance import GRInstanceCore
from simulator.fleet import ring, state
from simulator.fleet.config import FleetConfig, Level, RefillMode
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.fleet.state import Rows
from simulator.replay import Outcomes, even_slots, replay
from simulator.request_log import RequestLog

#: Off-load takes longer than there is between two requests, and halves what comes in.
BUSY_LINK = replace(SERVICE, to_host_bytes_per_second=1_000_000_000, duplex_to_device_share=0.45, duplex_to_host_share=0.97)


def the_core(log: RequestLog, fleet: FleetConfig, *, every_ms: float = np.inf, wanted: Sequence[int] = ()) -> Outcomes:
    """Replay a log on cores, with the splits that a policy would have wanted at the ends of its intervals."""
    return the_cores(log, fleet, every_ms=every_ms, wanted=wanted)[0]


def the_cores(
    log: RequestLog, fleet: FleetConfig, *, every_ms: float, wanted: Sequence[int]
) -> tuple[Outcomes, list[GRInstanceCore]]:
    """As `the_core`, and the cores as the replay left them."""
    cores = [GRInstanceCore(core_config(fleet, log.laws[0]), number + 1) for number in range(fleet.instances)]
    for core in cores:
        core.warm()
    left = [(every_ms * (place + 1), emb) for place, emb in enumerate(wanted)]

    def before(now_ms: float) -> None:
        while left and left[0][0] <= now_ms:
            at_ms, emb = left.pop(0)
            for core in cores:
                split = SplitRequest(
                    start_id=core.start_id,
                    revision=core.split.revision + 1,
                    emb_bytes=emb,
                    kv_bytes=fleet.pool_bytes - emb,
                    refill_bytes_per_second=fleet.refill_bytes_per_second,
                )
                core.put_split(split, now_ms=at_ms)

    return replay(as_rank_requests(log), even_slots(fleet.instances), cores, before_request=before), cores


def test_without_rows_every_hit_and_every_latency_is_the_cores() -> None:
    log, fleet = a_log(rows_per_token=0), a_fleet()
    core, mine = the_core(log, fleet), simulate(log, fleet, level=Level.EXACT, seed=1)
    assert 0.2 < core.kv_tokens_hit.sum() / core.history_tokens.sum() < 0.9
    np.testing.assert_array_equal(mine.kv_hit_tokens, core.kv_tokens_hit)
    np.testing.assert_allclose(mine.latency_ms, core.latency_ms, rtol=1e-9)
    np.testing.assert_allclose(mine.service_ms, core.service_ms, rtol=1e-9)


@pytest.mark.parametrize("per_second", [100.0, 700.0])
def test_shrinking_below_what_is_in_use_evicts_and_waits_as_the_core_does(per_second: float) -> None:
    log, fleet = a_log(rows_per_token=0, per_second=per_second), a_fleet()
    wanted = [emb * MIB for emb in (200, 252, 256, 10, 100, 255, 5, 256, 250, 128)]
    every_ms = log.duration_ms / 11
    core = the_core(log, fleet, every_ms=every_ms, wanted=wanted)
    mine = simulate(log, fleet, level=Level.EXACT, split=Scripted(every_ms, wanted), seed=1)
    np.testing.assert_array_equal(mine.kv_hit_tokens, core.kv_tokens_hit)
    np.testing.assert_allclose(mine.latency_ms, core.latency_ms, rtol=1e-9)


@pytest.mark.parametrize("to_host", [None, 1_500_000_000])
@pytest.mark.parametrize(
    "tiers",
    [
        {"host_bytes": 512 * MIB},
        {"host_bytes": 512 * MIB, "offload_queue_bytes": 24 * MIB},
        {"host_bytes": 60 * MIB, "ssd_bytes": 400 * MIB, "offload_queue_bytes": 12 * MIB},
        {"host_bytes": 60 * MIB, "ssd_bytes": 400 * MIB, "ssd_bytes_per_second": 500_000_000, "reload_fixed_ms": 0.3},
        {"host_bytes": 5 * MIB, "ssd_bytes": 20 * MIB},
    ],
)
def test_what_lies_below_hbm_is_found_and_loaded_or_computed_anew_as_in_the_core(
    tiers: dict[str, Any], to_host: int | None
) -> None:
    # A fast way in, or computing anew would always be faster; a slow way out, so that off-load waits and slows what comes in.
    link = replace(SERVICE, link_bytes_per_second=24_800_000_000, to_host_bytes_per_second=to_host, duplex_to_device_share=0.45)
    log, fleet = a_log(rows_per_token=0), a_fleet(service=replace(link, duplex_to_host_share=0.9), **tiers)
    wanted = [emb * MIB for emb in (200, 250, 20)]
    every_ms = log.duration_ms / 4
    core, cores = the_cores(log, fleet, every_ms=every_ms, wanted=wanted)
    mine = simulate(log, fleet, level=Level.EXACT, split=Scripted(every_ms, wanted), seed=1)
    told = [each.observe(each.clock_ms).counters for each in cores]
    assert 0 < mine.bytes_by_class["reload"] == sum(each.bytes.reload for each in told)
    assert 0 < mine.bytes_by_class["offload"] == sum(each.bytes.offload for each in told)
    dropped = sum(each.offload_drops for each in told)
    assert mine.counts.get("offloadDrops", 0) == dropped
    assert (dropped > 0) == (fleet.offload_queue_bytes is not None)
    assert mine.host_hit_tokens.sum() == sum(each.kv.tokens_hit_dram for each in told)
    assert mine.ssd_hit_tokens.sum() == sum(each.kv.tokens_hit_ssd for each in told)
    np.testing.assert_array_equal(mine.kv_hit_tokens, core.kv_tokens_hit)
    np.testing.assert_allclose(mine.latency_ms, core.latency_ms, rtol=1e-9)


@pytest.mark.parametrize(
    "how",
    [
        {"refill": RefillMode.LAZY},
        {"refill": RefillMode.THROTTLED},
        {"refill": RefillMode.THROTTLED, "refill_yields": True},
        {"refill": RefillMode.THROTTLED, "refill_yields": True, "host_bytes": 256 * MIB, "service": BUSY_LINK},
    ],
)
def test_with_rows_the_fleet_agrees_with_the_core_but_for_the_draws(how: dict[str, Any]) -> None:
    log, fleet = a_log(), a_fleet(**how)
    wanted = [emb * MIB for emb in (12, 40, 12)]
    every_ms = log.duration_ms / 4
    core = the_core(log, fleet, every_ms=every_ms, wanted=wanted)
    mine = simulate(log, fleet, level=Level.EXACT, split=Scripted(every_ms, wanted), seed=1)
    asked = core.emb_rows_asked.sum()
    assert mine.rows_asked.sum() == pytest.approx(asked, rel=0.002)
    assert mine.rows_missed.sum() / asked == pytest.approx(core.emb_rows_missed.sum() / asked, abs=0.002)
    assert mine.kv_hit_tokens.sum() == pytest.approx(core.kv_tokens_hit.sum(), rel=0.01)
    for share, error in ((50, 0.01), (99, 0.05)):
        assert np.percentile(mine.latency_ms, share) == pytest.approx(np.percentile(core.latency_ms, share), rel=error)
    assert mine.service_ms.mean() == pytest.approx(core.service_ms.mean(), rel=0.005)


def test_requests_that_hit_enough_go_on_with_default_vectors_as_in_the_core() -> None:
    log = a_log()
    waiting = simulate(log, a_fleet(emb_percent=4), level=Level.EXACT, seed=1)
    missing = waiting.rows_missed > 0
    usual = round(100 * float(np.median(1.0 - waiting.rows_missed[missing] / waiting.rows_asked[missing])))

    def served(percent: int) -> tuple[Outcomes, FleetResult]:
        fleet = a_fleet(emb_percent=4, load_behind_percent=percent)
        return the_core(log, fleet), simulate(log, fleet, level=Level.EXACT, seed=1)

    core, nobody_waits = served(0)  # so the draws, which differ, do not matter
    np.testing.assert_allclose(nobody_waits.latency_ms, core.latency_ms, rtol=1e-9)
    assert nobody_waits.counts["rowsDefaulted"] == nobody_waits.rows_missed.sum() == waiting.rows_missed.sum()
    core, some_wait = served(usual)
    assert 0.1 < some_wait.counts["rowsDefaulted"] / some_wait.rows_missed.sum() < 0.9
    assert some_wait.service_ms.mean() == pytest.approx(core.service_ms.mean(), rel=0.01)
    _, all_wait = served(100)
    np.testing.assert_array_equal(all_wait.latency_ms, waiting.latency_ms)


def test_the_row_cache_is_the_cores_through_resizes_and_refills() -> None:
    random = np.random.default_rng(3)
    reference = EmbCache(one_in=1, row_bytes=1, limit_bytes=300, max_bytes=1000)
    ints = np.zeros(state.INTS, dtype=np.int64)
    ints[state.GHOST_LIMIT], ints[state.ROWS_CAPACITY] = 1000, 300
    nothing = np.zeros(0)
    rows = Rows(
        last=np.full(3000, -1, dtype=np.int32),
        ring=np.zeros(4000, dtype=np.int32),
        misses=nothing,
        expected=nothing,
        sampled_at=nothing,
        memory=nothing,
        window=nothing,
        window_law=np.zeros(0, dtype=np.int64),
        oldest=nothing,
        youngest=nothing,
        sampled=np.zeros(0, dtype=np.int32),
        sampled_ms=nothing,
    )
    for _ in range(400):
        cells = np.minimum(random.zipf(1.2, 200), 3000) - 1
        assert ring.touch(ints, rows, cells) == reference.access(cells.tolist())
        action, size = random.integers(4), int(random.integers(1, 1000))
        if action == 0:
            reference.set_limit(size)
            ints[state.ROWS_CAPACITY] = size
            assert ring.trim(ints, rows) == reference.trim()
        elif action == 1 and ring.backlog(ints):
            assert ring.backlog(ints) == reference.backlog_bytes
            assert ring.refill(ints, rows, size) == reference.refill(size)
        assert ints[state.ROWS_USED] == reference.used_bytes
    held = rows.ring[ints[state.TAIL] : ints[state.HEAD]]
    live = held[rows.last[held] == np.arange(ints[state.TAIL], ints[state.HEAD])]
    assert live.tolist() == reference.rows_oldest_first()
