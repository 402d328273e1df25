"""Only requests at risk are pre-inferred, within memory and load, once per user; what is unknown is ranked in line."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale
from policies.preinference.flights import Flights, TokenBucket
from policies.preinference.littles_law import live_prefix_bytes, mean_life_ms, slots_within, sustainable_per_s
from policies.preinference.trigger import InlineCost, Load, Signal, TriggerRules, Verdict, inline_ms, judge, thresholds

MIB = 1 << 20
RULES = TriggerRules(
    min_prefix_tokens=2048,
    budget_ms=50.0,
    safety_percent=10.0,
    prefix_bytes=1024 * MIB,
    max_inflight=4,
    max_per_second=100.0,
    life_ms=300.0,
)
RISKY = Signal(tokens=8192, bytes=128 * MIB, inline_ms=Fresh(value=80.0))
IDLE = Load(computing_same_user=False, computing=0, live_bytes=0.0, starts_left=10.0)


def verdict(signal: dict[str, Any] | None = None, load: dict[str, Any] | None = None) -> Verdict:
    return judge(
        msgspec.structs.replace(RISKY, **(signal or {})), rules=RULES, load=msgspec.structs.replace(IDLE, **(load or {}))
    )


def test_a_request_at_risk_is_admitted() -> None:
    assert verdict() is Verdict.ADMIT


@pytest.mark.parametrize(
    ("signal", "load", "expected"),
    [
        ({"resident": True}, {}, Verdict.RESIDENT),
        ({}, {"computing_same_user": True}, Verdict.IN_FLIGHT),
        ({"tokens": 2047}, {}, Verdict.PREFIX_TOO_SHORT),
        ({"inline_ms": Fresh(value=45.0)}, {}, Verdict.NOT_AT_RISK),  # the budget less its safety
        ({"inline_ms": Fresh(value=45.1)}, {}, Verdict.ADMIT),
        ({"inline_ms": Missing()}, {}, Verdict.RISK_UNKNOWN),
        ({"inline_ms": Stale(age_ms=9e9)}, {}, Verdict.RISK_UNKNOWN),
        ({"inline_ms": NotANumber()}, {}, Verdict.RISK_UNKNOWN),
        ({"compute_ms": 90.0, "lead_ms": 80.0}, {}, Verdict.TOO_LATE),
        ({"compute_ms": 90.0}, {}, Verdict.ADMIT),  # an unknown lead is not judged
        ({}, {"live_bytes": 897.0 * MIB}, Verdict.MEMORY_FULL),
        ({}, {"live_bytes": 896.0 * MIB}, Verdict.ADMIT),
        ({}, {"computing": 4}, Verdict.SLOTS_BUSY),
        ({}, {"starts_left": 0.99}, Verdict.RATE_LIMITED),
    ],
)
def test_each_check_has_its_own_answer(signal: dict[str, Any], load: dict[str, Any], expected: Verdict) -> None:
    assert verdict(signal, load) is expected


def test_the_in_line_time_adds_waiting_and_work_and_is_unknown_without_costs() -> None:
    cost = InlineCost(base_ms=5.0, ms_per_token=0.01, ms_per_candidate=0.02)
    assert inline_ms(tokens=1000, candidates=100, wait_ms=Fresh(value=3.0), cost=cost) == Fresh(value=20.0)
    assert inline_ms(tokens=1000, candidates=100, wait_ms=Stale(age_ms=7.0), cost=cost) == Stale(age_ms=7.0)
    assert inline_ms(tokens=1000, candidates=100, wait_ms=Fresh(value=3.0), cost=None) == Missing()


def test_littles_law_in_its_three_directions() -> None:
    # 16 KiB a token, 2 048 tokens, 100 a second for 0.3 s: 30 prefixes, 0.94 GiB
    each = 2048 * 16 * 1024
    live = live_prefix_bytes(admitted_per_s=100.0, life_ms=300.0, bytes_per_prefix=each)
    assert live == pytest.approx(30 * each)
    assert sustainable_per_s(budget_bytes=live, life_ms=300.0, bytes_per_prefix=each) == pytest.approx(100.0)
    assert mean_life_ms(live_bytes=live, admitted_per_s=100.0, bytes_per_prefix=each) == pytest.approx(300.0)
    assert mean_life_ms(live_bytes=live, admitted_per_s=0.0, bytes_per_prefix=each) is None
    assert sustainable_per_s(budget_bytes=1.0, life_ms=0.0, bytes_per_prefix=each) == math.inf
    # 100 a second of 50 ms each keep 5 slots busy; twice the memory feeds 10
    assert slots_within(budget_bytes=2.0 * live, live_bytes=live, busy_slots=5.0) == 10
    assert slots_within(budget_bytes=live, live_bytes=0.0, busy_slots=5.0) is None


def test_published_thresholds_share_the_rate_and_keep_what_memory_sustains() -> None:
    def rate(mean_prefix_bytes: float | None) -> float:
        return thresholds(
            min_prefix_tokens=2048,
            budget_ms=50.0,
            safety_percent=10.0,
            prefix_bytes=1024 * MIB,
            slots=4,
            max_per_second=200.0,
            instances=4,
            life_ms=500.0,
            mean_prefix_bytes=mean_prefix_bytes,
        ).max_per_second

    assert rate(None) == 50.0
    assert rate(32.0 * MIB) == 50.0
    assert rate(64.0 * MIB) == pytest.approx(32.0)  # 1 GiB holds 16 that live half a second


# Flights


def ask(flights: Flights, user: str, now_ms: float, *, reported: Measurement | None = None, **rules: Any) -> Verdict:
    return flights.judge(
        user,
        RISKY,
        rules=msgspec.structs.replace(RULES, **rules),
        reported_live_bytes=reported or Fresh(value=0.0),
        now_ms=now_ms,
    )


def test_a_user_is_computed_once_until_it_is_ranked() -> None:
    flights = Flights()
    assert ask(flights, "u", 0.0) is Verdict.ADMIT
    assert ask(flights, "u", 1.0) is Verdict.IN_FLIGHT
    flights.computed("u")
    assert ask(flights, "u", 2.0) is Verdict.IN_FLIGHT  # waits for its ranking request
    flights.ended("u")
    assert ask(flights, "u", 3.0) is Verdict.ADMIT


def test_slots_are_free_again_when_computed_and_memory_when_ended() -> None:
    flights = Flights()
    assert [ask(flights, f"u{k}", 0.0) for k in range(5)] == [Verdict.ADMIT] * 4 + [Verdict.SLOTS_BUSY]
    for k in range(4):
        flights.computed(f"u{k}")
    assert [ask(flights, f"v{k}", 0.0) for k in range(5)] == [Verdict.ADMIT] * 4 + [Verdict.MEMORY_FULL]
    flights.ended("u0")
    flights.computed("v0")
    assert ask(flights, "w", 0.0) is Verdict.ADMIT


def test_what_is_never_ranked_is_forgotten_after_its_lifetime() -> None:
    flights = Flights()
    assert ask(flights, "u", 0.0) is Verdict.ADMIT
    assert ask(flights, "u", 299.0) is Verdict.IN_FLIGHT
    assert ask(flights, "u", 300.0) is Verdict.ADMIT
    assert len(flights) == 1


def test_the_larger_of_own_count_and_report_fills_the_memory() -> None:
    assert ask(Flights(), "u", 0.0, reported=Fresh(value=1000.0 * MIB)) is Verdict.MEMORY_FULL
    assert ask(Flights(), "u", 0.0, reported=Stale(age_ms=60_000.0)) is Verdict.ADMIT
    flights = Flights()
    for k in range(8):
        assert ask(flights, f"u{k}", 0.0, max_inflight=100) is Verdict.ADMIT
    assert ask(flights, "u8", 0.0, max_inflight=100, reported=Fresh(value=0.0)) is Verdict.MEMORY_FULL


def test_the_rate_holds_over_any_time_and_an_idle_second_saves_one_second_of_starts() -> None:
    flights = Flights()
    free = {"max_inflight": 10_000, "prefix_bytes": 1 << 50, "life_ms": 1e9, "max_per_second": 10.0}
    admitted = [t for t in range(3000) if ask(flights, f"u{t}", float(t), **free) is Verdict.ADMIT]
    assert 38 <= len(admitted) <= 40  # 10 at once, then 10 a second
    assert ask(Flights(), "u", 0.0, max_per_second=0.0) is Verdict.RATE_LIMITED


def test_a_clock_that_goes_back_gives_no_starts() -> None:
    bucket = TokenBucket(tokens=0.0, at_ms=1000.0).refilled(per_second=10.0, now_ms=0.0)
    assert bucket == TokenBucket(tokens=0.0, at_ms=1000.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "computed", "ended"]),
            st.integers(0, 12),
            st.floats(0.0, 200.0),
            st.sampled_from([Fresh(value=0.0), Missing(), NotANumber(), Fresh(value=500.0 * MIB)]),
        ),
        max_size=60,
    )
)
def test_no_history_of_calls_breaks_the_budgets(calls: list[tuple[str, int, float, Measurement]]) -> None:
    flights, now_ms = Flights(), 0.0
    living: dict[str, float] = {}
    computing: set[str] = set()
    for call, number, step, reported in calls:
        now_ms += step
        user = f"u{number}"
        for gone in [u for u, since in living.items() if now_ms - since >= RULES.life_ms]:
            del living[gone]
            computing.discard(gone)
        if call == "computed":
            flights.computed(user)
            computing.discard(user)
        elif call == "ended":
            flights.ended(user)
            living.pop(user, None)
            computing.discard(user)
        elif ask(flights, user, now_ms, reported=reported) is Verdict.ADMIT:
            assert user not in living, "single flight"
            living[user] = now_ms
            computing.add(user)
        assert len(living) * RISKY.bytes <= RULES.prefix_bytes
        assert len(computing) <= RULES.max_inflight
