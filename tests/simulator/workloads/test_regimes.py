"""Regimes: the same seed gives the same requests, columns keep their laws, and the manifest says what is real."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.request_log import RequestLog
from simulator.workloads import BurstKind, Manifest, Part, Signals, Traffic, burst, generated, steady, trend
from simulator.workloads.sources import load_sources, traces_folder

Regime = Callable[[Traffic], tuple[RequestLog, Manifest]]
REGIMES: tuple[Regime, ...] = (steady, trend, burst, generated)
SMALL = Traffic(seed=3, duration_s=120.0, requests_per_second=50.0, instances=4)


@settings(max_examples=25, deadline=None)
@given(
    regime=st.sampled_from(REGIMES),
    seed=st.integers(0, 1 << 32),
    duration_s=st.floats(5.0, 400.0),
    rate=st.floats(1.0, 200.0),
    instances=st.integers(1, 64),
    part=st.sampled_from(Part),
    arrivals=st.sampled_from(["conversation", "code"]),
)
def test_any_traffic_is_sorted_within_its_duration_and_the_same_again(
    regime: Regime, seed: int, duration_s: float, rate: float, instances: int, part: Part, arrivals: str
) -> None:
    traffic = Traffic(
        seed=seed, duration_s=duration_s, requests_per_second=rate, instances=instances, part=part, arrivals=arrivals
    )
    log, manifest = regime(traffic)

    assert len(log) >= traffic.requests
    assert 0.0 <= log.arrival_ms[0] <= log.arrival_ms[-1] <= traffic.duration_ms
    assert log.history_tokens.max() <= traffic.max_history_tokens
    assert np.all(log.signal_lead_ms <= log.arrival_ms + 1e-3)
    assert (manifest.requests, manifest.users, manifest.digest) == (len(log), log.users, log.digest)
    again, same = regime(traffic)
    assert (again.digest, same) == (log.digest, manifest)


@pytest.mark.parametrize("regime", REGIMES)
def test_another_seed_gives_other_requests(regime: Regime) -> None:
    assert regime(SMALL)[0].digest != regime(Traffic(seed=4, duration_s=120.0, requests_per_second=50.0, instances=4))[0].digest


def test_users_return_in_steady_after_as_many_requests_of_their_copy_as_were_recorded() -> None:
    one, _ = steady(Traffic(seed=1, duration_s=60.0, requests_per_second=100.0, instances=1))
    visits = load_sources(traces_folder()).visits

    places = [start for start in range(len(visits)) if visits.history_tokens[start] == one.history_tokens[0]]
    recorded = np.minimum(np.concatenate([visits.history_tokens] * 2), 16_384)

    assert any(np.array_equal(recorded[start : start + len(one)], one.history_tokens) for start in places)


def test_trend_moves_from_returning_users_to_newcomers() -> None:
    log, manifest = trend(SMALL)
    third = len(log) // 3

    def returns(part: RequestLog) -> float:
        return 1.0 - len(np.unique(part.user)) / len(part)

    assert returns(log.rows(0, third)) > 2.0 * returns(log.rows(len(log) - third, len(log)))
    assert log.law[:third].mean() < 0.4 < 0.6 < log.law[-third:].mean()
    assert log.candidates[:third].mean() < log.candidates[-third:].mean()
    assert [each.visits for each in manifest.cloning] == ["returning users", "newcomers"]


def test_a_trend_may_begin_to_turn_later_and_is_as_at_its_start_until_then() -> None:
    begins_s = SMALL.duration_s / 2
    log, manifest = trend(SMALL, begins_s=begins_s)
    before = log.arrival_ms < 1000.0 * begins_s

    assert log.law[before].mean() == pytest.approx(0.05, abs=0.03)
    assert log.law[~before].mean() == pytest.approx(0.5, abs=0.08)
    assert manifest.to_json()["parameters"]["begins_s"] == begins_s
    assert trend(SMALL, begins_s=0.0)[0].digest == trend(SMALL)[0].digest
    with pytest.raises(ValueError, match="begins_s"):
        trend(SMALL, begins_s=SMALL.duration_s)


def window(log: RequestLog, manifest: Manifest) -> RequestLog:
    """The middle of the only burst."""
    (event,) = manifest.events
    width = event.end_ms - event.start_ms
    return log.rows(*np.searchsorted(log.arrival_ms, [event.start_ms + 0.3 * width, event.end_ms - 0.3 * width]))


def one_burst(kind: BurstKind, **more: Any) -> tuple[RequestLog, Manifest]:
    return burst(Traffic(seed=1, duration_s=200.0, requests_per_second=100.0, instances=4), kinds=(kind,), every_s=200.0, **more)


def test_a_flash_crowd_brings_users_that_nobody_saw_before() -> None:
    log, manifest = one_burst(BurstKind.FLASH_CROWD, strength=4.0)
    (event,) = manifest.events
    before = log.rows(0, int(np.searchsorted(log.arrival_ms, event.start_ms)))
    during = window(log, manifest)

    new = ~np.isin(during.user, before.user)

    assert len(log) - 20_000 == event.requests > 0
    assert len(during) / during.duration_ms > 1.3 * 0.1
    assert new.mean() > 0.5


def test_a_hot_item_is_wanted_by_users_that_are_there_and_gathers_their_rows() -> None:
    log, manifest = one_burst(BurstKind.HOT_ITEM)
    during = window(log, manifest)

    assert (during.law == 1).mean() > 0.5
    assert log.laws[1].exponent > log.laws[0].exponent
    assert len(log) > 20_000
    base, _ = one_burst(BurstKind.HOT_ITEM, strength=0.0)
    assert log.users == base.users


def test_long_histories_are_longer_than_the_others() -> None:
    log, manifest = one_burst(BurstKind.LONG_HISTORIES, strength=4.0)
    (event,) = manifest.events

    before = log.rows(0, int(np.searchsorted(log.arrival_ms, event.start_ms)))

    assert window(log, manifest).history_tokens.mean() > 1.1 * before.history_tokens.mean()


def test_a_catalogue_that_churned_stays_so_and_adds_no_request() -> None:
    log, manifest = one_burst(BurstKind.CATALOGUE_CHURN)
    (event,) = manifest.events

    assert len(log) == 20_000
    assert log.laws[1].offset != log.laws[0].offset
    assert set(log.law[log.arrival_ms < event.start_ms]) == {0}
    assert set(log.law[log.arrival_ms > event.end_ms]) == {1}


def test_every_kind_of_burst_comes_equally_often() -> None:
    _, manifest = burst(Traffic(seed=1, duration_s=800.0, requests_per_second=20.0, instances=2), every_s=100.0)

    assert sorted(event.kind for event in manifest.events) == sorted(2 * [str(kind) for kind in BurstKind])
    assert all(a.end_ms <= b.start_ms for a, b in zip(manifest.events, manifest.events[1:], strict=False))


def test_parts_share_no_user_and_no_moment() -> None:
    parts = {part: load_sources(traces_folder(), part) for part in (Part.TRAIN, Part.VALIDATION, Part.TEST)}
    whole = load_sources(traces_folder())

    kept = sum(len(each.visits) for each in parts.values())
    left_out = sum(each.visits.left_out for each in parts.values())

    assert sum(each.visits.users for each in parts.values()) == whole.visits.users
    assert kept + left_out == len(whole.visits)
    assert 0 < left_out < 0.15 * kept
    for name, series in whole.arrivals_ms.items():
        assert sum(len(each.arrivals_ms[name]) for each in parts.values()) == len(series)


def test_one_seed_gives_other_users_in_each_part() -> None:
    digests = {steady(Traffic(seed=1, duration_s=20.0, requests_per_second=50.0, part=part))[0].digest for part in Part}
    assert len(digests) == len(Part)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_manifest_is_plain_json_and_names_origin_and_source_of_every_part(regime: Regime) -> None:
    _, manifest = regime(SMALL)
    told = json.loads(json.dumps(manifest.to_json(), allow_nan=False))

    assert told["format"] == "grfleet-workload/1"
    assert {each["origin"] for each in told["ingredients"]} <= {"real", "scaled", "generated"}
    assert all(each["source"] and each["rule"] for each in told["ingredients"])
    assert (told["held"] is None) == (regime is generated)


def test_a_recorded_rate_curve_keeps_its_peaks_when_there_are_more_requests_than_were_recorded() -> None:
    calm, _ = steady(Traffic(seed=1, duration_s=3000.0, requests_per_second=20.0, instances=2))
    wild, _ = steady(Traffic(seed=1, duration_s=3000.0, requests_per_second=20.0, instances=2, arrivals="code"))

    def peak(log: RequestLog) -> float:
        counts, _ = np.histogram(log.arrival_ms, bins=50, range=(0.0, 3_000_000.0))
        return float(counts.max() / counts.mean())

    assert peak(calm) < 2.0 < peak(wild)


def test_a_day_has_its_peak_and_its_trough() -> None:
    log, _ = generated(Traffic(seed=1, duration_s=86_400.0, requests_per_second=2.0), users=1000, peak_to_trough=3.0)
    counts, _ = np.histogram(log.arrival_ms, bins=12, range=(0.0, 86_400_000.0))
    assert 2.3 < counts.max() / counts.min() < 3.3


def test_histories_of_generated_users_grow_with_every_request() -> None:
    log, _ = generated(Traffic(seed=1, duration_s=600.0, requests_per_second=100.0), users=500, tokens_per_visit=7)
    for user in range(20):
        lengths = log.history_tokens[log.user == user].astype(int)
        assert np.all((np.diff(lengths) == 7) | (lengths[1:] == 16_384))


def test_signals_come_as_often_and_as_early_as_asked() -> None:
    signals = Signals(percent=40.0, median_ms=200.0, sigma=0.3)
    log, _ = steady(Traffic(seed=1, duration_s=60.0, requests_per_second=200.0, signals=signals))
    announced = log.signal_lead_ms[log.signal_lead_ms > 0]
    assert abs(len(announced) / len(log) - 0.4) < 0.03
    assert abs(np.median(announced) - 200.0) < 10.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"duration_s": 0.0},
        {"duration_s": float("nan")},
        {"requests_per_second": -1.0},
        {"requests_per_second": 1e6, "duration_s": 1e6},
        {"instances": 0},
        {"arrivals": "poisson"},
        {"max_history_tokens": 1 << 25},
        {"rows_per_token": -1},
        {"seed": -1},
    ],
)
def test_traffic_that_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^({'|'.join(wrong)}|requests): "):
        Traffic(**{"seed": 1, **wrong})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Signals(percent=101.0), "signals"),
        (lambda: burst(SMALL, kinds=()), "kinds"),
        (lambda: burst(SMALL, lasts_s=(50.0, 10.0)), "lasts_s"),
        (lambda: burst(SMALL, strength=float("nan")), "strength"),
        (lambda: trend(SMALL, returning_percent=(120.0, 0.0)), "returning_percent"),
        (lambda: generated(SMALL, users=0), "users"),
        (lambda: generated(SMALL, candidates=(5, 4)), "candidates"),
        (lambda: generated(SMALL, peak_to_trough=0.5), "peak_to_trough"),
    ],
)
def test_a_regime_that_cannot_be_is_refused_by_name(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()
