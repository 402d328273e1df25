"""What a result keeps to whatever the log: one seed, one digest; more cache, more hits; closed forms; and its doubts."""

import json
import math
from typing import Any

import numpy as np
import pytest
from oracle_logs import SERVICE, a_fleet, a_log

from simulator.fleet.build import WarmUsers
from simulator.oracle.result import OracleResult
from simulator.oracle.run import best_splits
from simulator.physics.batching import BatchRules
from simulator.request_log import RequestLog

WINDOW_MS = 30_000.0
SPLITS = tuple(range(5, 96, 10))


def look(log: RequestLog | None = None, config: Any = None, **changes: Any) -> OracleResult:
    values: dict[str, Any] = {"window_ms": WINDOW_MS, "seed": 1, "splits": SPLITS}
    return best_splits(log or a_log(), config or a_fleet(), **{**values, **changes})


def test_one_seed_gives_one_digest_whatever_the_number_of_processes_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = look()
    assert look().digest == alone.digest
    assert look(seed=2).digest != alone.digest
    assert look(workers=2).digest == alone.digest
    monkeypatch.setattr("simulator.oracle.windows.CHUNK_BYTES", 1)
    assert look().digest == alone.digest


def test_progress_rises_to_the_number_of_windows() -> None:
    seen: list[tuple[int, int]] = []
    result = look(progress=lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1] == (result.count.shape[1], result.count.shape[1])


@pytest.mark.parametrize("seed", range(3))
def test_more_of_a_cache_never_lowers_its_hits(seed: int) -> None:
    result = look(a_log(4_000, seed=seed))
    assert np.all(np.diff(result.kv_users_found_percent, axis=2) <= 1e-9)
    # Random numbers are shared, so that misses fall with the ratio up to rounding.
    assert np.all(np.diff(result.emb_hit_percent, axis=2) >= -0.05)
    assert np.array_equal(result.count.sum(axis=1).sum(), 4_000)


def mean_wait_of_md1(rate: float, service: float) -> float:
    return rate * service * service / (2.0 * (1.0 - rate * service))


def p99_wait_of_md1(rate: float, service: float) -> float:
    """Erlang's distribution of the wait in M/D/1, inverted by bisection."""
    rho = rate * service

    def below(x: float) -> float:
        terms = (
            (rate * (k * service - x)) ** k / math.factorial(k) * math.exp(rate * (x - k * service))
            for k in range(int(x / service) + 1)
        )
        return (1.0 - rho) * math.fsum(terms)

    low, high = 0.0, 12.0 * service
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.99 else (low, middle)
    return high


@pytest.mark.parametrize("found", [True, False], ids=["every user found", "no user found"])
def test_equal_requests_at_random_times_wait_as_in_md1(found: bool) -> None:
    requests, history, candidates = 60_000, 512, 50
    service = SERVICE.compute_ms(history=history, candidates=candidates, cached=history if found else 0)
    rate = 0.6 / service
    user = np.zeros(requests) if found else np.arange(requests)
    log = a_log(
        requests,
        per_second=rate * 1e3,
        users=requests,
        user=user.astype(np.uint32),
        history_tokens=np.full(requests, history, dtype=np.int32),
        candidates=np.full(requests, candidates, dtype=np.int32),
        rows_per_token=0,
        seed=4,
    )
    warm = WarmUsers(user=np.zeros(1, dtype=np.uint32), tokens=np.array([history], dtype=np.int32)) if found else None
    result = look(log, a_fleet(instances=1), window_ms=1e9, splits=(20, 80), warm=warm)
    assert result.fleet_mean_ms[0].tolist() == pytest.approx([service + mean_wait_of_md1(rate, service)] * 2, rel=0.03)
    assert result.fleet_p99_ms[0].tolist() == pytest.approx([service + p99_wait_of_md1(rate, service)] * 2, rel=0.05)
    assert result.kv_users_found_percent[0, 0].tolist() == ([100.0, 100.0] if found else [0.0, 0.0])


def test_choices_lie_between_standing_still_and_moving_for_free() -> None:
    result = look(a_log(12_000))
    for choice in (result.fleet, *result.instances):
        assert choice.best_ms <= choice.planned_ms <= choice.static_ms
        assert choice.gain_percent >= choice.planned_gain_percent >= 0.0


def test_windows_and_instances_without_requests_have_no_figures_and_no_choice() -> None:
    log = a_log(3_000)
    late = np.where(np.arange(3_000) < 1_500, log.arrival_ms, log.arrival_ms + 90_000.0)
    gap = RequestLog(**{**vars_of(log), "arrival_ms": late, "user_slots": np.zeros(log.users, dtype=np.uint16)})
    result = look(gap)
    empty = result.count.sum(axis=0) == 0
    assert empty.any()
    assert np.isnan(result.fleet_p99_ms[empty]).all()
    assert np.array_equal(result.fleet.best == -1, empty)
    assert result.count[1].sum() == 0
    assert np.isnan(result.instances[1].static_ms)
    assert np.isfinite(result.fleet.static_ms)
    assert result.summary()["byInstance"][1]["staticMs"] is None


def vars_of(log: RequestLog) -> dict[str, Any]:
    return {name: getattr(log, name) for name in RequestLog.__dataclass_fields__}


@pytest.mark.parametrize(
    ("doubt", "log", "config", "changes"),
    [
        ("overload", a_log(per_second=2_000.0), a_fleet(), {"window_ms": 1_000.0}),
        ("windows of 5 s", a_log(), a_fleet(), {"window_ms": 5_000.0}),
        ("too few requests:", a_log(), a_fleet(), {"window_ms": 5_000.0}),
        ("too few requests by instance", a_log(per_second=40.0), a_fleet(), {"window_ms": 30_000.0}),
        (
            "warm-up",
            a_log(user=np.minimum(np.arange(8_000), 6_000).astype(np.uint32), users=8_000),
            a_fleet(),
            {"window_ms": 1e4},
        ),
        ("large users", a_log(), a_fleet(pool_bytes=64 << 20), {}),
        ("granules", a_log(), a_fleet(granule_bytes=1 << 27), {}),
        ("no history", a_log(history_tokens=np.zeros(8_000, dtype=np.int32)), a_fleet(), {}),
        ("gain within the noise", a_log(), a_fleet(), {}),
    ],
)
def test_a_result_that_cannot_be_trusted_says_why(doubt: str, log: RequestLog, config: Any, changes: dict[str, Any]) -> None:
    result = look(log, config, **changes)
    assert any(said.startswith(doubt) for said in result.doubts), result.doubts
    assert result.summary()["doubts"] == list(result.doubts)


def test_a_log_that_gives_no_reason_for_doubt_has_none_but_that_one_split_suits_it_throughout() -> None:
    result = look(a_log(16_000, user=np.tile(np.arange(1_000, dtype=np.uint32), 16)), window_ms=40_000.0)
    assert all(said.startswith("gain within the noise") for said in result.doubts), result.doubts


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("window_ms", {"window_ms": 0.0}),
        ("window_ms", {"window_ms": math.nan}),
        ("window_ms", {"window_ms": math.inf}),
        ("window_ms", {"window_ms": 1e-3}),
        ("splits", {"splits": ()}),
        ("splits", {"splits": (50, 50)}),
        ("splits", {"splits": (90, 101)}),
        ("routing", {"routing": [0] * 4095}),
        ("routing", {"routing": [2] * 4096}),
        ("workers", {"workers": 0}),
        ("seed", {"seed": -1}),
        ("load_behind_percent", {"config": a_fleet(load_behind_percent=90)}),
        ("batching", {"config": a_fleet(batching=BatchRules())}),
        ("refill_yields", {"config": a_fleet(refill_yields=True)}),
        ("offload_queue_bytes", {"config": a_fleet(host_bytes=1 << 30, offload_queue_bytes=0)}),
        ("ttl_ms", {"config": a_fleet(ttl_ms=1e3)}),
        ("emb_version_ms", {"config": a_fleet(emb_version_ms=1e3)}),
        ("warm", {"warm": WarmUsers(user=np.array([10**6], dtype=np.uint32), tokens=np.array([1], dtype=np.int32))}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        look(a_log(100), **changes)


@pytest.mark.parametrize(("kv_mib", "expected"), [((15, 20, 40), 1), ((17, 20, 40), 0), ((1, 2, 17), 2), ((1, 2, 3), 3)])
def test_splits_too_small_for_the_largest_user_are_counted(kv_mib: tuple[int, ...], expected: int) -> None:
    log = a_log(500, users=50, history_tokens=np.full(500, 2_000, dtype=np.int32))
    result = look(log, a_fleet(pool_bytes=100 << 20), splits=tuple(100 - mib for mib in reversed(kv_mib)))
    said = [doubt for doubt in result.doubts if doubt.startswith("large users")]
    assert bool(said) == bool(expected)
    assert not said or said[0].startswith(f"large users: at {expected} of 3 splits")


def test_a_routing_of_ones_own_is_followed() -> None:
    result = look(a_log(2_000), routing=[1] * 4096)
    assert result.count.sum(axis=1).tolist() == [0, 2_000]


def test_a_summary_is_plain_json() -> None:
    summary = look().summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
