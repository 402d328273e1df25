"""Doubt holds, budgets hold whatever is measured, and a pool settles where its targets want it."""

from __future__ import annotations

import msgspec
import pytest
from capacity_world import DOUBTFUL, FIELDS, MIB, RULES, instance, plan, pool, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.measurement import Fresh, Measurement, Missing
from policies.preinference.capacity import CapacityHistory, CapacityPlan, Outcome, SlotLimit
from policies.preinference.erlang import refused_share
from policies.preinference.observed import InstanceLoad, Rates
from policies.preinference.rules import PoolLoad
from policies.scaling.types import Bounds, Doubt, ScalingLimited

QUIET = 0.5  # P99 over its goal at one slot of load and half the pool


@pytest.mark.parametrize("value", DOUBTFUL)
@pytest.mark.parametrize("field", FIELDS)
def test_any_doubt_about_one_instance_keeps_the_pool_from_shrinking(field: str, value: Measurement) -> None:
    fields = {"offered": 0.0, "p99_ms": 1.0}
    doubtful = msgspec.structs.replace(instance("c", **fields), **{field: value})
    load = pool(instance("a", **fields), instance("b", **fields), doubtful, memory=8192 * MIB)
    last = settle(load, 40)[-1]
    if field != "queue":
        assert last.replicas == 3
        assert last.outcome in (Outcome.HOLDING_STALE, Outcome.SCALING_DOWN)
    if field in ("busy_slots", "live_prefix_bytes"):
        assert last.prefix_bytes == 8192 * MIB
    if field == "busy_slots":
        assert last.slots == 4
        assert last.doubt is not None


def test_slots_do_not_grow_into_memory_or_a_queue_that_nobody_sees() -> None:
    for field in ("live_prefix_bytes", "queue", "p99_ms"):
        decided = plan(pool(msgspec.structs.replace(instance("a", offered=3.8), **{field: Missing()})))
        assert (decided.slots, decided.slot_limit) == (4, SlotLimit.DOUBT)
        assert decided.outcome is Outcome.HOLDING_STALE


def test_a_silent_source_holds_everything_and_says_so() -> None:
    blind = [InstanceLoad(name=n, ready=True) for n in "abc"]
    last = settle(pool(*blind, slots=3, memory=2048 * MIB), 100)[-1]
    assert (last.replicas, last.slots, last.prefix_bytes) == (3, 3, 2048 * MIB)
    assert (last.outcome, last.doubt) == (Outcome.HOLDING_STALE, Doubt.MISSING)


# Properties

value = st.one_of(st.builds(lambda v: Fresh(value=v), st.floats(0.0, 1e5)), st.sampled_from(DOUBTFUL))
rates = st.builds(Rates, requests=value, accepted=value, rejected=value, used=value, late=value, wasted=value)
instances = st.lists(
    st.builds(
        InstanceLoad,
        name=st.just("x"),
        ready=st.booleans(),
        rates=rates,
        busy_slots=value,
        live_prefix_bytes=st.one_of(st.builds(lambda v: Fresh(value=v), st.floats(0.0, 1e11)), st.sampled_from(DOUBTFUL)),
        queue=value,
        p99_ms=value,
    ),
    max_size=6,
)
pools = st.builds(
    lambda xs, replicas, slots, memory: pool(*xs, replicas=replicas, slots=slots, memory=memory),
    instances,
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(0, 8)),
    st.one_of(st.none(), st.integers(0, 8192 * MIB)),
)


@settings(max_examples=150)
@given(pools, st.integers(0, 40), st.booleans())
def test_no_measurement_breaks_a_budget_or_a_bound(load: PoolLoad, max_inflight: int, ours: bool) -> None:
    decided = plan(load, max_inflight=max_inflight, scale_replicas=ours)
    shares = [decided.slots_of(k, instances=len(load.instances)) for k in range(len(load.instances))]
    assert sum(shares) <= max_inflight
    assert all(0 <= share <= RULES.slots.maximum for share in shares)
    assert 0 <= decided.prefix_bytes <= RULES.prefix_budget_bytes
    assert RULES.replicas.minimum <= decided.replicas <= RULES.replicas.maximum
    if not ours:
        assert decided.replicas == load.replicas


@settings(max_examples=100)
@given(pools, st.sampled_from(FIELDS[:2]), st.sampled_from(DOUBTFUL))
def test_doubt_about_the_load_never_shrinks_anything(load: PoolLoad, field: str, doubt: Measurement) -> None:
    blind = msgspec.structs.replace(instance("z"), **{field: doubt})
    load = msgspec.structs.replace(load, instances=(*load.instances, blind), replicas=max(load.replicas, len(load.instances) + 1))
    decided = plan(load)
    if load.replicas <= RULES.replicas.maximum:
        assert decided.replicas >= load.replicas
    if field == "busy_slots":
        assert decided.slots >= min(load.slots or 0, RULES.slots.maximum)


# A pool in a closed loop: the loss formula answers each plan; instances need a minute to start


@pytest.mark.parametrize("offered", [0.5, 3.0, 12.0, 40.0])
def test_a_pool_settles_where_its_targets_hold_and_stays_there(offered: float) -> None:
    replicas, slots, memory = 2, 1, 1024 * MIB
    born = dict.fromkeys(range(20), -1e9)
    load = pool()
    history: CapacityHistory | None = None
    plans: list[CapacityPlan] = []
    for tick in range(160):
        now_s = 15.0 * tick
        ready = [k for k in range(replicas) if now_s - born[k] >= 60.0]
        fleet = [
            instance(str(k), offered=offered / len(ready), slots=slots, p99_ms=50.0 * min(2.0, QUIET * 2.0 / len(ready)))
            if k in ready
            else InstanceLoad(name=str(k), ready=False)
            for k in range(replicas)
        ]
        load = pool(*fleet, slots=slots, replicas=replicas, memory=memory)
        history = history or CapacityHistory.starting_at(load, RULES, now_s=now_s)
        decided = plan(load, history=history, now_s=now_s)
        changed = decided.history.replicas.changed(before=replicas, after=decided.replicas, now_s=now_s, behavior=RULES.behavior)
        history = msgspec.structs.replace(decided.history, replicas=changed)
        for k in range(replicas, decided.replicas):
            born[k] = now_s
        replicas, slots, memory = decided.replicas, decided.slots, decided.prefix_bytes
        plans.append(decided)
    end = plans[-60:]
    assert len({(p.replicas, p.slots, p.prefix_bytes) for p in end}) == 1, "it stays"
    assert refused_share(offered / replicas, slots=slots) <= 0.05
    assert end[-1].outcome in (Outcome.AT_TARGET, Outcome.STABILIZING)
    assert end[-1].slot_decision.limited is ScalingLimited.DESIRED_WITHIN_RANGE


def test_a_wish_below_the_minimum_is_at_its_target_there() -> None:
    idle = pool(instance("a", offered=0.0), instance("b", offered=0.0), slots=1)
    assert plan(idle, replicas=Bounds(minimum=2, maximum=4)).outcome is Outcome.AT_TARGET
    assert plan(idle, slots=Bounds(minimum=0, maximum=0), replicas=Bounds(minimum=2, maximum=4)).outcome is Outcome.SCALING_DOWN
    assert plan(pool(instance("a", offered=0.0), slots=0), slots=Bounds(minimum=0, maximum=0)).outcome is Outcome.AT_TARGET
