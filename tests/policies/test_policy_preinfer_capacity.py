"""Slots first, instances second, from live counters; they grow at once and shrink late."""

from __future__ import annotations

import msgspec
import pytest
from capacity_world import MIB, RULES, instance, plan, pool, settle
from hypothesis import given
from hypothesis import strategies as st

from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale
from policies.preinference.capacity import CapacityHistory, Outcome, SlotLimit
from policies.preinference.erlang import fewest_slots, refused_share
from policies.preinference.observed import CounterSample, InstanceLoad, Rates, offered_slots, ranking_usage, rates_between
from policies.scaling.types import AbleToScale, Bounds

# Arithmetic


@pytest.mark.parametrize(
    ("offered", "slots", "share"),
    [(0.0, 3, 0.0), (1.0, 1, 0.5), (1.0, 2, 0.2), (2.0, 2, 0.4), (10.0, 10, 0.21458), (0.5, 0, 1.0)],
)
def test_the_refused_share_is_erlang_b(offered: float, slots: int, share: float) -> None:
    assert refused_share(offered, slots=slots) == pytest.approx(share, abs=1e-5)


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=6), st.floats(0.0, 100.0))
def test_the_fewest_slots_suffice_and_one_less_does_not(offered: list[float], percent: float) -> None:
    slots = fewest_slots(offered, refused_percent=percent, most=200)

    def refused(count: int) -> float:
        return sum(a * refused_share(a, slots=count) for a in offered)

    allowed = sum(offered) * percent / 100.0
    assert refused(slots) <= allowed + 1e-9
    assert slots <= 1 or refused(slots - 1) > allowed - 1e-9


def test_rates_do_not_cross_a_restart() -> None:
    before = CounterSample(start_id="s1", at_ms=0.0, requests=10, accepted=5, rejected=0, used=4, wasted=0, late=1)
    after = msgspec.structs.replace(before, at_ms=10_000.0, requests=110, accepted=25)
    rates = rates_between(before, after, age_ms=1.0, stale_after_ms=100.0)
    assert rates.requests == Fresh(value=10.0, age_ms=1.0)
    assert rates.accepted == Fresh(value=2.0, age_ms=1.0)
    assert rates.late == Fresh(value=0.0, age_ms=1.0)
    assert rates_between(before, after, age_ms=101.0, stale_after_ms=100.0).used == Stale(age_ms=101.0)
    for broken in ({"start_id": "s2"}, {"at_ms": 0.0}, {"used": 3}):
        other = msgspec.structs.replace(after, **broken)
        assert rates_between(before, other, age_ms=1.0, stale_after_ms=100.0) == Rates()


def test_what_was_refused_counts_as_load() -> None:
    assert offered_slots(instance(offered=6.0, slots=4), slots=4) == Fresh(value=pytest.approx(6.0))
    none = Rates(accepted=Fresh(value=0.0), rejected=Fresh(value=9.0))
    assert offered_slots(instance(busy_slots=Fresh(value=4.0), rates=none), slots=4) == Fresh(value=5.0)
    assert offered_slots(instance(busy_slots=Fresh(value=0.0), rates=none), slots=0) == Fresh(value=1.0)
    assert offered_slots(instance(busy_slots=NotANumber()), slots=4) == NotANumber()


def test_refusals_beside_idle_slots_are_no_reason_to_grow() -> None:
    strange = Rates(
        requests=Fresh(value=9.0),
        accepted=Fresh(value=0.0),
        rejected=Fresh(value=9.0),
        **dict.fromkeys(("used", "late", "wasted"), Fresh(value=0.0)),
    )
    decided = plan(pool(instance("a", busy_slots=Fresh(value=0.0), rates=strange)))
    assert (decided.slots, decided.replicas, decided.outcome) == (4, 1, Outcome.HOLDING_STALE)


def test_a_goal_of_all_prefixes_in_time_is_a_thousandth_and_not_infinite_slots() -> None:
    assert plan(pool(instance("a", offered=0.5)), hit_before_rank_percent=100.0).slots < RULES.slots.maximum


def test_slots_come_back_from_none() -> None:
    wanting = Rates(
        requests=Fresh(value=9.0),
        accepted=Fresh(value=0.0),
        rejected=Fresh(value=9.0),
        **dict.fromkeys(("used", "late", "wasted"), Fresh(value=0.0)),
    )
    load = pool(instance("a", busy_slots=Fresh(value=0.0), live_prefix_bytes=Fresh(value=0.0), rates=wanting), slots=0)
    assert plan(load, slots=Bounds(minimum=0, maximum=8)).slots > 0


def test_an_instance_without_requests_is_idle_and_one_without_a_latency_is_unknown() -> None:
    silent = instance(p99_ms=0.0, rates=Rates(requests=Fresh(value=0.0)))
    assert ranking_usage(msgspec.structs.replace(silent, p99_ms=Missing()), goal_ms=50.0) == Fresh(value=0.0)
    assert ranking_usage(instance(p99_ms=0.0, rates=Rates()), goal_ms=50.0) == Fresh(value=0.0)
    assert ranking_usage(msgspec.structs.replace(instance(), p99_ms=Missing()), goal_ms=50.0) == Missing()
    assert ranking_usage(instance(p99_ms=5000.0), goal_ms=50.0) == Fresh(value=2.0)


# Slots first


def test_more_load_gets_more_slots_before_it_gets_instances() -> None:
    decided = plan(pool(instance("a", offered=3.2), instance("b", offered=3.2)))
    assert decided.slots == 7  # 5 to be 70 percent busy, 7 to refuse no more than 5 percent
    assert decided.replicas == 2
    assert decided.outcome is Outcome.SCALING_UP


def test_load_beyond_the_slots_of_an_instance_gets_instances() -> None:
    decided = plan(pool(instance("a", offered=12.0, slots=8), instance("b", offered=12.0, slots=8), slots=8))
    assert decided.slots == 8
    assert decided.replicas > 3
    assert decided.slot_limit is SlotLimit.RANGE
    assert decided.outcome is Outcome.SCALING_UP


def test_when_somebody_else_scales_only_slots_move() -> None:
    load = pool(instance("a", offered=12.0, slots=8), slots=8)
    decided = plan(load, scale_replicas=False)
    assert decided.replicas == 1
    assert decided.replica_decision is None
    assert decided.outcome is Outcome.LIMIT_REACHED


def test_instances_on_their_way_are_not_asked_for_again() -> None:
    starting = [InstanceLoad(name=f"s{k}", ready=False) for k in range(2)]
    ready = [instance("a", offered=8.0, slots=8), instance("b", offered=8.0, slots=8)]
    assert plan(pool(*ready, slots=8)).replicas == 4
    assert plan(pool(*ready, *starting, slots=8, replicas=4)).replicas == 4
    assert plan(pool(*ready, slots=8, replicas=4)).replicas == 4  # their pods do not exist yet


def test_an_uneven_pool_gets_slots_for_its_busy_instances() -> None:
    even = plan(pool(*[instance(n, offered=1.0, slots=3) for n in "abcd"], slots=3)).slots
    uneven = plan(pool(instance("a", offered=4.0, slots=3), *[instance(n, offered=0.0, slots=3) for n in "bcd"], slots=3)).slots
    assert uneven > even


# Shared budgets


def test_the_pools_limit_holds_exactly_and_is_shared_out() -> None:
    load = pool(*[instance(n, offered=6.0, slots=8) for n in "abc"], slots=8)
    decided = plan(load, max_inflight=10)
    assert [decided.slots_of(k, instances=3) for k in range(3)] == [4, 3, 3]
    assert decided.total_slots == 10
    assert decided.slot_limit is SlotLimit.MAX_INFLIGHT
    assert decided.replicas == 3, "more instances may not compute more at once"


def test_slots_do_not_grow_beyond_the_memory_that_feeds_them() -> None:
    load = pool(instance("a", offered=3.8, live_each=2048.0 * MIB), instance("b", offered=3.8, live_each=2048.0 * MIB))
    decided = plan(load)
    assert (decided.slots, decided.slot_limit) == (4, SlotLimit.MEMORY)
    assert decided.replicas > 2, "memory of more instances feeds more slots"
    assert plan(load, prefix_budget_bytes=65536 * MIB).slots > 4


def test_without_a_budget_there_is_no_pre_inference() -> None:
    decided = plan(pool(instance("a"), slots=4), prefix_budget_bytes=0)
    assert (decided.slots, decided.prefix_bytes, decided.slot_limit) == (0, 0, SlotLimit.NO_BUDGET)


def test_memory_starts_with_the_longest_prefix_in_every_slot_and_moves_in_eighths() -> None:
    first = plan(pool(instance("a", offered=1.0, slots=1), slots=None, memory=None))
    assert first.prefix_bytes == 1024 * MIB
    filled = plan(pool(instance("a", offered=3.0, live_each=600.0 * MIB)))
    assert filled.prefix_bytes % (1024 * MIB) == 0
    assert filled.prefix_bytes >= filled.slots * 600 * MIB


def test_memory_is_not_taken_from_prefixes_that_live() -> None:
    full = instance("a", offered=0.1, live_prefix_bytes=Fresh(value=5000.0 * MIB))
    history = CapacityHistory()
    load = pool(full, memory=8192 * MIB)
    for tick in range(40):
        decided = plan(load, history=history, now_s=15.0 * tick)
        history = decided.history
        assert decided.prefix_bytes >= 5000 * MIB
        load = msgspec.structs.replace(load, prefix_bytes=decided.prefix_bytes)
    assert load.prefix_bytes == 5120 * MIB


# What slots cannot cure


def test_late_prefixes_ask_for_instances_and_not_for_slots() -> None:
    decided = plan(pool(*[instance(n, offered=3.8, late_share=0.3) for n in "ab"]))
    assert (decided.slots, decided.slot_limit) == (4, SlotLimit.LATE)
    assert decided.replicas == 3
    assert decided.shares.hit_percent == Fresh(value=pytest.approx(70.0))


@pytest.mark.parametrize(("goal", "wanted"), [(60.0, 2), (75.0, 2), (90.0, 3), (99.0, 3)])
def test_how_much_lateness_is_too_much_says_the_goal(goal: float, wanted: int) -> None:
    decided = plan(pool(*[instance(n, offered=3.8, late_share=0.2) for n in "ab"]), hit_before_rank_percent=goal)
    assert (decided.shares.too_late, decided.replicas) == (wanted > 2, wanted)


def test_a_little_lateness_may_be_chance() -> None:
    rare = Rates(
        requests=Fresh(value=100.0),
        accepted=Fresh(value=0.05),
        rejected=Fresh(value=0.0),
        used=Fresh(value=0.0333),
        late=Fresh(value=0.0167),  # one of three in the minute
        wasted=Fresh(value=0.0),
    )
    decided = plan(pool(instance("a", rates=rare, busy_slots=Fresh(value=0.1))))
    assert not decided.shares.too_late
    assert decided.replicas == 1


def test_wasted_prefixes_stop_slots_from_growing() -> None:
    decided = plan(pool(instance("a", offered=3.8, wasted_share=0.8)))
    assert (decided.slots, decided.slot_limit) == (4, SlotLimit.WASTED)


@pytest.mark.parametrize("behind", [{"p99_ms": Fresh(value=70.0)}, {"queue": Fresh(value=6.0)}])
def test_slots_do_not_grow_while_ranking_is_behind(behind: dict[str, Measurement]) -> None:
    decided = plan(pool(msgspec.structs.replace(instance("a", offered=3.8), **behind)))
    assert (decided.slots, decided.slot_limit) == (4, SlotLimit.RANKING)


def test_ranking_above_its_goal_asks_for_instances() -> None:
    assert plan(pool(*[instance(n, p99_ms=75.0) for n in "abcd"])).replicas == 6
    assert plan(pool(instance("a", p99_ms=40_000.0), *[instance(n) for n in "bcdefghij"])).replicas == 10, "one sick instance"


# Down


def test_capacity_shrinks_only_after_the_window_and_only_one_instance_at_a_time() -> None:
    plans = settle(pool(*[instance(n, offered=0.3, p99_ms=10.0) for n in "abcdef"]), 21)
    assert {p.replicas for p in plans[:19]} == {6}
    assert plans[10].outcome is Outcome.STABILIZING
    assert plans[10].replica_decision is not None
    assert plans[10].replica_decision.able is AbleToScale.SCALE_DOWN_STABILIZED
    assert plans[-1].replicas == 5


def test_instances_stay_while_ranking_needs_them() -> None:
    assert settle(pool(*[instance(n, offered=0.1, p99_ms=41.0) for n in "abc"]), 30)[-1].replicas == 3


def test_a_pool_without_any_traffic_shrinks_to_its_minimum() -> None:
    idle = {"rates": Rates(**{name: Fresh(value=0.0) for name in Rates.__struct_fields__}), "p99_ms": Missing()}
    gone = [instance(n, offered=0.0, **idle) for n in "abc"]
    decided = settle(pool(*gone), 30)[-1]
    assert (decided.replicas, decided.slots, decided.doubt) == (2, 1, None)


def test_load_of_instances_that_leave_is_counted_for_those_that_stay() -> None:
    load = pool(*[instance(n, offered=0.8, slots=8, p99_ms=5.0) for n in "abcde"], slots=8)
    shrunk = next(p for p in settle(load, 30) if p.replicas < 5)
    alone = settle(load, 30, scale_replicas=False)[-1]
    assert shrunk.slots >= alone.slots
