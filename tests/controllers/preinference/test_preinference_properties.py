"""Whatever is measured, allowed and in force: budgets hold, doubt takes nothing away, and every word is a documented one."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from preinference_world import capacities, instance, load, metrics, observation, planned, policy, pool

from controllers.metrics_source.port import MOST
from controllers.preinference.observe import Memory
from crds import GRServingPool
from crds.reasons import check_condition
from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale
from policies.preinference.observed import InstanceLoad, Rates

NAMES = "abcd"
GAUGES = ("busy_slots", "live_prefix_bytes", "queue", "p99_ms")
NUMBERS = st.one_of(st.just(0.0), st.floats(0.0, 1e4), st.sampled_from([5e-324, 1e9, MOST]))
MEASURED: st.SearchStrategy[Measurement] = st.one_of(
    NUMBERS.map(lambda value: Fresh(value=value)),
    st.sampled_from([Missing(), NotANumber(), Stale(age_ms=9e4)]),
)


@st.composite
def loads(draw: Any, name: str) -> InstanceLoad:
    fine = load(name, offered=draw(st.floats(0.0, 12.0)), refused=draw(NUMBERS))
    broken = draw(st.lists(st.sampled_from([*GAUGES, *Rates.__struct_fields__]), max_size=3))
    for field in broken:
        value = draw(MEASURED)
        if field in Rates.__struct_fields__:
            fine = msgspec.structs.replace(fine, rates=msgspec.structs.replace(fine.rates, **{field: value}))
        else:
            fine = msgspec.structs.replace(fine, **{field: value})
    return msgspec.structs.replace(fine, ready=draw(st.booleans()))


@st.composite
def policies(draw: Any) -> Any:
    low, high = sorted((draw(st.integers(0, 8)), draw(st.integers(0, 32))))
    return policy(
        slotsPerInstance={"min": low, "max": high},
        budget={"prefixPercent": draw(st.integers(0, 90)), "maxInflight": draw(st.sampled_from([0, 1, 5, 64, 100_000]))},
    )


CAPACITY = st.none() | st.fixed_dictionaries({"slots": st.integers(0, 64), "bytes": st.integers(0, 1 << 37)})


@given(data=st.data(), mode=st.sampled_from(["External", "Manual", "HPA", "PreInference"]), replicas=st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_any_world_gives_a_plan_within_its_limits(data: Any, mode: str, replicas: int) -> None:
    stored = pool(mode, replicas=min(max(replicas, 1), 2) if mode == "External" else replicas)
    found, count = data.draw(policies()), data.draw(st.integers(0, len(NAMES)))
    standing = [
        instance(name, stored, spec={"preInfer": given} if (given := data.draw(CAPACITY)) is not None else {})
        for name in NAMES[:count]
    ]
    measured = metrics(*(data.draw(loads(name)) for name in NAMES[:count]))
    budget = GRServingPool.parse(stored).spec.memory.usable_bytes() * found.spec.budget.prefix_percent // 100
    memory, now_s = Memory(since_s=0.0, asked_s=0.0), 1000.0
    for _ in range(4):
        plan = planned(observation(stored, standing, measured, found=found, memory=memory, now_s=now_s))
        memory, now_s = plan.memory, now_s + 15.0
        written = capacities(plan)
        for position, each in enumerate(standing):
            if NAMES[position] in written:
                slots, bytes_ = written[NAMES[position]]
                each["spec"] = {**each["spec"], "preInfer": {"slots": slots, "bytes": bytes_}}
                assert 0 <= slots <= found.spec.slots_per_instance.max
                assert 0 <= bytes_ <= budget
        if written:
            assert sum(each["spec"]["preInfer"]["slots"] for each in standing) <= found.spec.budget.max_inflight
        if plan.replicas is not None:
            assert mode == "PreInference"
            assert replicas > 0
            assert 1 <= plan.replicas.after <= 8
        for item in (plan.status or {}).get("conditions", ()):
            check_condition(item["type"], item["status"], item["reason"])
            assert len(item["message"]) <= 1024
        if plan.status is not None:
            GRServingPool.parse({**stored, "status": dict(plan.status)})  # the API would take it


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_in_doubt_nothing_is_ever_taken_away(data: Any) -> None:
    stored = pool(replicas=3)
    standing = [instance(name, stored, spec={"preInfer": {"slots": 8, "bytes": 3 << 30}}) for name in "abc"]
    measured = metrics(*(data.draw(loads(name)) for name in "abc"))
    if measured.doubt is None:
        return
    memory = Memory(since_s=0.0, asked_s=0.0)
    for number in range(30):
        plan = planned(observation(stored, standing, measured, memory=memory, now_s=1000.0 + 30.0 * number))
        memory = plan.memory
        assert all(slots >= 8 and bytes_ >= 3 << 30 for slots, bytes_ in capacities(plan).values())
        assert plan.replicas is None or plan.replicas.after >= 3
