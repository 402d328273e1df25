"""Slots, memory and instances of a pool, and what is said about them, for everything that can be seen."""

from __future__ import annotations

import msgspec
import pytest
from preinference_world import (
    BUDGET,
    GIB,
    STEP,
    capacities,
    instance,
    load,
    message,
    metrics,
    observation,
    planned,
    policy,
    pool,
    words,
)

from controllers.lookup import Found, NotFound, Unreadable
from controllers.metrics_source.port import InstanceName, unreachable
from controllers.preinference.decide import MOST_WRITES, QUIET_SECONDS, REST_SECONDS
from controllers.preinference.observe import Memory
from crds import PreInferencePolicySpec
from crds.instance import PolicySource
from policies.measurement import Missing, NotANumber, Stale
from policies.preinference.observed import InstanceLoad, Rates

DEFAULTS = Found(spec=PreInferencePolicySpec(), name="default", source=PolicySource.DEFAULTS)
MODES = ("External", "Manual", "HPA", "PreInference")


def two(of: dict[str, object], **spec: object) -> list[dict[str, object]]:
    return [instance("a", of, spec=spec), instance("b", of, spec=spec)]


# A pool that nobody asks for prefixes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("found", [policy(), DEFAULTS])
def test_a_pool_without_any_pre_inference_loses_no_memory_and_no_instance_is_written(mode: str, found: Found) -> None:
    stored = pool(mode)
    plan = planned(observation(stored, two(stored), metrics(load("a"), load("b")), found=found))
    assert capacities(plan) == {}
    assert plan.replicas is None
    ours = mode == "PreInference"
    assert words(plan) == {
        "MetricsFresh": ("True", "Fresh"),
        "PreInferenceScaled": ("True", "AtTarget" if ours else "NotManaged"),
    }
    assert plan.status is not None
    assert plan.status.get("preInference") == ({"slots": 0, "demandSlots": 0, "desiredReplicas": 2} if ours else None)
    assert "no prefix has been asked for" in message(plan)
    assert ("built-in defaults" in message(plan)) == (found is DEFAULTS)


@pytest.mark.parametrize("sign", ["accepted", "refused", "alive"])
def test_the_first_prefix_that_was_asked_for_sets_slots_and_memory(sign: str) -> None:
    stored = pool("Manual")
    first = {
        "accepted": load("a", offered=0.2),
        "refused": load("a", refused=1.0),
        "alive": load("a", live_prefix_bytes=load("a", offered=0.1).live_prefix_bytes),
    }[sign]
    plan = planned(observation(stored, two(stored), metrics(first, load("b"))))
    written = capacities(plan)
    assert set(written) == {"a", "b"}
    assert all(slots >= 1 and bytes_ == STEP for slots, bytes_ in written.values())


@pytest.mark.parametrize(
    "spec", [{"budget": {"prefixPercent": 0}}, {"budget": {"maxInflight": 0}}, {"slotsPerInstance": {"min": 0, "max": 0}}]
)
def test_pre_inference_that_people_forbid_is_forbidden_at_once(spec: dict[str, object]) -> None:
    stored = pool("External")
    plan = planned(observation(stored, two(stored), metrics(load("a"), load("b")), found=policy(**spec)))
    assert {slots for slots, _ in capacities(plan).values()} == {0}
    assert {bytes_ for _, bytes_ in capacities(plan).values()} == {0}


@pytest.mark.parametrize("least", [0, 1])
def test_a_pool_that_has_become_quiet_gives_everything_back_and_a_refusal_brings_it_again(least: int) -> None:
    stored, found = pool("Manual"), policy(slotsPerInstance={"min": least, "max": 8})
    quiet, memory = metrics(load("a"), load("b")), Memory(since_s=1000.0, asked_s=1000.0)
    standing = two(stored, preInfer={"slots": 2, "bytes": 2 * STEP})
    given_back = {}
    for second in range(1000, 5000, 15):
        plan = planned(observation(stored, standing, quiet, found=found, memory=memory, now_s=float(second)))
        memory = plan.memory
        for name, (slots, bytes_) in capacities(plan).items():
            given_back.setdefault((slots, bytes_), second - 1000)
            standing = two(stored, preInfer={"slots": slots, "bytes": bytes_})
            assert name in "ab"
    assert (memory.slots, memory.prefix_bytes) == (0, 0)
    first = min(given_back.values())
    assert first >= 300, "the highest of the window holds"
    if least:
        assert given_back[(0, STEP)] >= QUIET_SECONDS, "the minimum holds while somebody might come back soon"
    refused = metrics(load("a", refused=2.0), load("b"))
    woken = planned(observation(stored, standing, refused, found=found, memory=memory, now_s=6000.0))
    assert all(slots >= 1 and bytes_ == STEP for slots, bytes_ in capacities(woken).values())
    assert set(capacities(woken)) == {"a", "b"}


# Who writes what


@pytest.mark.parametrize("mode", MODES)
def test_slots_follow_the_demand_in_every_mode_and_replicas_in_ours_only(mode: str) -> None:
    stored = pool(mode)
    standing = two(stored, preInfer={"slots": 8, "bytes": BUDGET})
    busy = metrics(load("a", offered=14.0, refused=100.0), load("b", offered=14.0, refused=100.0))
    plan = planned(observation(stored, standing, busy))
    if mode == "PreInference":
        assert plan.replicas is not None
        assert (plan.replicas.before, plan.replicas.after) == (2, 6)  # four pods in 15 s
        assert words(plan)["PreInferenceScaled"] == ("False", "ScalingUp")
    else:
        assert plan.replicas is None
        assert words(plan)["PreInferenceScaled"] == ("False", "LimitReached")
        assert "slotsPerInstance.max" in message(plan)
    grown = planned(observation(stored, two(stored, preInfer={"slots": 2, "bytes": STEP}), busy))
    assert {slots for slots, _ in capacities(grown).values()} == {6}  # 100 percent or four in 15 s, whichever is more


def test_the_number_of_instances_in_force_is_that_of_the_spec_whoever_wrote_it() -> None:
    stored = pool(replicas=5)
    instances = [instance(n, stored) for n in "abcde"]
    idle = [load(n, p99_ms=load(n).p99_ms) for n in "abcde"]
    plan = planned(observation(stored, instances, metrics(*idle)))
    assert plan.replicas is None  # the first recommendation of a new scaler is what runs
    assert plan.memory.history is not None
    assert plan.memory.history.replicas.recommendations[0].count == 5


def test_a_mode_that_becomes_ours_lets_what_runs_hold_for_a_window() -> None:
    low = 10.0
    quiet = metrics(*(load(n, p99_ms=msgspec.structs.replace(load(n).p99_ms, value=low)) for n in "abcd"))
    memory = Memory(since_s=0.0, asked_s=0.0)
    theirs = pool("HPA", replicas=4)
    for number in range(30):
        seen = observation(theirs, [instance(n, theirs) for n in "abcd"], quiet, memory=memory, now_s=1000.0 + 15.0 * number)
        memory = planned(seen).memory
    ours = pool("PreInference", replicas=4)
    first = planned(observation(ours, [instance(n, ours) for n in "abcd"], quiet, memory=memory, now_s=1450.0))
    assert first.replicas is None
    later = planned(observation(ours, [instance(n, ours) for n in "abcd"], quiet, memory=first.memory, now_s=1450.0 + 301.0))
    assert later.replicas is not None
    assert later.replicas.after == 3


def test_the_bounds_of_the_pool_hold_at_once_whatever_is_measured() -> None:
    stored = pool(replicas=12)
    plan = planned(observation(stored, [instance("a", stored)], metrics(InstanceLoad(name="pool-a", ready=True))))
    assert plan.replicas is not None
    assert plan.replicas.after == 8


def test_no_replicas_switch_the_scaler_off_as_with_an_autoscaler() -> None:
    stored = pool(replicas=0)
    plan = planned(observation(stored, [], metrics()))
    assert plan.replicas is None
    assert words(plan) == {"MetricsFresh": ("Unknown", "NoInstances"), "PreInferenceScaled": ("False", "ScalingDisabled")}


@pytest.mark.parametrize("mode", ["Manual", "HPA"])
def test_a_pool_of_nobody_has_nothing_to_size(mode: str) -> None:
    plan = planned(observation(pool(mode, replicas=0), [], metrics()))
    assert words(plan) == {"MetricsFresh": ("Unknown", "NoInstances"), "PreInferenceScaled": ("Unknown", "NoInstances")}


def test_instances_that_leave_are_neither_measured_nor_written() -> None:
    stored = pool("Manual")
    drain = {"reason": "ScaleDown", "startedAt": "2026-05-01T12:00:00Z", "deadlineSeconds": 60}
    standing = [
        instance("a", stored, spec={"preInfer": {"slots": 1, "bytes": STEP}}),
        instance("b", stored, spec={"preInfer": {"slots": 8, "bytes": STEP}, "drain": drain}),
    ]
    plan = planned(observation(stored, standing, metrics(load("a", offered=0.1))))
    assert "b" not in capacities(plan)
    all_leave = [instance(n, stored, spec={"drain": drain}) for n in "ab"]
    gone = planned(observation(stored, all_leave, metrics()))
    assert words(gone)["PreInferenceScaled"] == ("Unknown", "NoInstances")
    assert "the 2 instances that there are leave" in message(gone)


def test_a_new_instance_gets_what_the_others_have_although_it_is_not_ready() -> None:
    stored = pool(replicas=3)
    standing = [*two(stored, preInfer={"slots": 4, "bytes": STEP}), instance("c", stored, ready=False)]
    measured = metrics(load("a", offered=1.0), load("b", offered=1.0), InstanceLoad(name="pool-c", ready=False))
    assert capacities(planned(observation(stored, standing, measured))) == {"c": (4, STEP)}


def test_the_limit_of_the_pool_is_dealt_out_in_the_order_of_names() -> None:
    stored, found = pool("Manual", replicas=3), policy(budget={"maxInflight": 7, "prefixPercent": 20})
    standing = [instance(n, stored, spec={"preInfer": {"slots": 3, "bytes": STEP}}) for n in "abc"]
    busy = metrics(*(load(n, offered=3.0, refused=60.0) for n in "abc"))
    plan = planned(observation(stored, standing, busy, found=found))
    assert capacities(plan) == {"b": (2, STEP), "c": (2, STEP)}
    assert "budget.maxInflight" in message(plan)


def test_an_instance_that_got_no_slot_shows_its_refusals_as_load_and_not_as_doubt() -> None:
    stored, found = pool("Manual", replicas=3), policy(budget={"maxInflight": 2})
    standing = [instance(n, stored, spec={"preInfer": {"slots": int(n != "c"), "bytes": STEP}}) for n in "abc"]
    busy = metrics(load("a", offered=0.9, refused=20.0), load("b", offered=0.9, refused=20.0), load("c", refused=40.0))
    plan = planned(observation(stored, standing, busy, found=found))
    assert words(plan) == {"MetricsFresh": ("True", "Fresh"), "PreInferenceScaled": ("False", "LimitReached")}
    assert "budget.maxInflight" in message(plan)


def test_a_round_writes_a_bounded_number_of_instances_and_the_next_one_goes_on_with_the_same_plan() -> None:
    stored = pool("Manual", replicas=100)
    found = policy(
        behavior={"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}
    )
    names = [f"i{n:03}" for n in range(100)]
    found = Found(
        spec=found.spec.model_copy(update={"budget": found.spec.budget.model_copy(update={"max_inflight": 1000})}),
        name="p",
        namespace="team",
        source=PolicySource.POOL,
    )
    standing = {n: instance(n, stored, spec={"preInfer": {"slots": 5, "bytes": STEP}}) for n in names}
    quiet = metrics(*(load(n, offered=0.5) for n in names))
    first = planned(observation(stored, list(standing.values()), quiet, found=found))
    assert len(first.capacities) == MOST_WRITES
    assert first.requeue_after == REST_SECONDS
    for name, (slots, bytes_) in capacities(first).items():
        assert slots == 4
        standing[name]["spec"]["preInfer"] = {"slots": slots, "bytes": bytes_}
    second = planned(observation(stored, list(standing.values()), quiet, found=found, memory=first.memory, now_s=1005.0))
    assert len(second.capacities) == 100 - MOST_WRITES
    assert {slots for slots, _ in capacities(second).values()} == {4}


# Doubt


STALE, NAN = Stale(age_ms=90_000.0), NotANumber()


@pytest.mark.parametrize(("doubt", "reason"), [(STALE, "Stale"), (Missing(), "Missing"), (NAN, "NotANumber")])
@pytest.mark.parametrize("which", ["busy_slots", "queue", "live_prefix_bytes", "p99_ms", "accepted", "used", "requests"])
def test_in_doubt_about_anything_that_matters_nothing_moves(which: str, doubt: object, reason: str) -> None:
    stored = pool()
    standing = two(stored, preInfer={"slots": 8, "bytes": 3 * STEP})  # twice as much as is needed

    def broken(name: str) -> InstanceLoad:
        fine = load(name, offered=1.0)
        if which in Rates.__struct_fields__:
            return msgspec.structs.replace(fine, rates=msgspec.structs.replace(fine.rates, **{which: doubt}))
        return msgspec.structs.replace(fine, **{which: doubt})

    memory = Memory(since_s=0.0, asked_s=0.0)
    for number in range(30):  # long past every window
        seen = observation(stored, standing, metrics(broken("a"), broken("b")), memory=memory, now_s=1000.0 + 15.0 * number)
        plan = planned(seen)
        assert capacities(plan) == {}, number
        assert plan.replicas is None, number
        memory = plan.memory
    assert words(plan)["MetricsFresh"] == ("False", reason)


def test_a_source_that_cannot_be_reached_holds_and_is_named() -> None:
    stored = pool()
    standing = two(stored, preInfer={"slots": 4, "bytes": 3 * STEP})
    names = [InstanceName(name="pool-a", uid="1"), InstanceName(name="pool-b", uid="2")]
    plan = planned(observation(stored, standing, unreachable(names, "Prometheus: no connection", window_s=60.0)))
    assert capacities(plan) == {}
    assert plan.replicas is None
    assert words(plan) == {"MetricsFresh": ("False", "SourceUnreachable"), "PreInferenceScaled": ("Unknown", "HoldingStale")}
    assert message(plan, "MetricsFresh") == "Prometheus: no connection"
    assert plan.status is not None
    assert plan.status["preInference"] == {"slots": 8, "desiredReplicas": 2}


def test_one_instance_in_doubt_among_several_names_it_and_keeps_the_pool_from_shrinking() -> None:
    stored = pool(replicas=3)
    standing = [instance(n, stored) for n in "abc"]
    measured = metrics(load("a"), load("b"), load("c", queue=STALE))
    plan = planned(observation(stored, standing, measured))
    assert words(plan)["MetricsFresh"] == ("False", "Stale")
    assert "queue of pool-c: Stale" in message(plan, "MetricsFresh")


# Holds


@pytest.mark.parametrize(
    ("spec", "found", "reason"),
    [
        ({"paused": True}, policy(), "PausedByUser"),
        ({}, NotFound(name="mine", namespace="team"), "PolicyNotFound"),
        ({}, Unreadable(name="mine", namespace="team", why="spec.trigger: no"), "PolicyInvalid"),
    ],
)
def test_a_held_pool_keeps_its_capacity_while_its_measurements_are_still_reported(
    spec: dict[str, object], found: object, reason: str
) -> None:
    stored = pool(**spec)
    standing = two(stored, preInfer={"slots": 1, "bytes": STEP})
    busy = metrics(load("a", offered=6.0, refused=50.0), load("b", offered=6.0, refused=50.0))
    plan = planned(observation(stored, standing, busy, found=found))
    assert capacities(plan) == {}
    assert plan.replicas is None
    assert words(plan) == {"MetricsFresh": ("True", "Fresh"), "PreInferenceScaled": ("False", reason)}
    assert plan.memory.history is None


def test_after_a_hold_what_is_in_force_holds_for_a_window() -> None:
    stored = pool(replicas=4)
    standing = [instance(n, stored, spec={"preInfer": {"slots": 6, "bytes": BUDGET}}) for n in "abcd"]
    quiet = metrics(*(load(n, offered=0.01, p99_ms=load(n).rates.late) for n in "abcd"))
    held = planned(observation(pool(replicas=4, paused=True), standing, quiet, memory=Memory(since_s=0.0, asked_s=0.0)))
    on = planned(observation(stored, standing, quiet, memory=held.memory, now_s=5000.0))
    assert capacities(on) == {}
    assert on.replicas is None


# Words


def test_while_instances_come_the_pool_is_not_at_its_target_and_one_too_many_in_a_rollout_is_no_news() -> None:
    few = pool(replicas=3)
    plan = planned(observation(few, two(few), metrics(load("a"), load("b"))))
    assert words(plan)["PreInferenceScaled"] == ("False", "ScalingUp")
    assert message(plan).endswith("wanted; 2 there")
    many = pool(replicas=1)
    plan = planned(observation(many, two(many), metrics(load("a"), load("b"))))
    assert words(plan)["PreInferenceScaled"][0] == "True"


def test_what_stands_already_is_not_written_again() -> None:
    stored = pool("Manual")
    standing = two(stored, preInfer={"slots": 3, "bytes": STEP})
    measured = metrics(load("a", offered=0.5), load("b", offered=0.5))
    first = planned(observation(stored, standing, measured))
    assert first.status is not None
    again = {**stored, "status": dict(first.status)}
    assert planned(observation(again, standing, measured, memory=first.memory, now_s=1015.0)).status is None


def test_a_number_that_changes_waits_its_turn() -> None:
    stored = pool("Manual")
    standing = two(stored, preInfer={"slots": 3, "bytes": STEP})
    first = planned(observation(stored, standing, metrics(load("a", offered=0.5), load("b", offered=0.5))))
    assert first.status is not None
    stale = {**first.status, "preInference": {"slots": 4, "demandSlots": 9, "hitBeforeRankPercent": 100}}
    seen = observation(
        {**stored, "status": stale},
        standing,
        metrics(load("a", offered=0.5), load("b", offered=0.5)),
        memory=first.memory,
        write_ages_s=(4.0,),
    )
    plan = planned(seen)
    assert plan.status is None
    assert plan.requeue_after == pytest.approx(6.0)


def test_a_policy_spec_of_another_size_changes_the_memory_in_its_own_eighths() -> None:
    stored = pool("Manual", memory={"hbmBytes": "100Gi", "hbmReservedBytes": "20Gi"})
    standing = two(stored, preInfer={"slots": 2, "bytes": STEP})
    plan = planned(observation(stored, standing, metrics(load("a", offered=0.5), load("b", offered=0.5))))
    assert {bytes_ for _, bytes_ in capacities(plan).values()} == {2 * GIB}
