"""The pre-inference loop over time: it sizes, holds, speaks rarely, and shares the number of instances with nobody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from preinference_world import READY, STEP, World, busy, instance, load, pool, world

from controllers.metrics_source.port import InstanceName, unreachable
from controllers.runtime.resources import INSTANCES, POOLS, PRE_INFERENCE_POLICIES, Key
from controllers.runtime.store import EventType, WatchEvent
from policies.measurement import Fresh, Missing, Stale


async def test_slots_and_memory_are_written_once_and_then_there_is_nothing_to_say() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(8)
    assert w.capacity("a") == w.capacity("b")
    assert w.capacity("a") is not None
    settled = w.writes
    await w.looks(40)
    assert w.writes == settled
    assert w.condition("PreInferenceScaled") == ("True", "NotManaged")
    assert w.condition("MetricsFresh") == ("True", "Fresh")


async def test_a_pool_without_prefixes_is_said_once_and_never_written_to() -> None:
    w = world("External")
    w.source.set(load("a"), load("b"))
    await w.lead()
    await w.looks(60)
    assert w.capacity("a") is None
    assert len(w.kube.applied) == 1
    assert w.posted == []


async def test_noise_around_a_border_writes_nothing() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b", offered=2.0))
    await w.lead()
    await w.looks(10)
    settled = w.writes
    for number in range(120):
        w.source.set(*busy("a", "b", offered=1.9 if number % 2 else 2.1, refused=0.0))
        await w.look()
    assert w.writes - settled <= 3


async def test_a_word_about_measurements_that_comes_and_goes_is_never_said_but_holds_at_once() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(10)
    settled = w.writes
    for number in range(60):
        broken = Stale(age_ms=90_000.0) if number % 2 else Fresh(value=0.0)
        w.source.set(*busy("a", "b", queue=broken))
        await w.look()
    assert w.writes == settled
    w.source.set(*busy("a", "b", queue=Stale(age_ms=90_000.0)))
    await w.looks(2)
    assert w.condition("MetricsFresh") == ("False", "Stale")
    assert w.condition("PreInferenceScaled") == ("Unknown", "HoldingStale")
    await w.looks(1)
    said = w.writes
    await w.looks(40)
    assert w.writes == said


async def test_after_an_outage_the_pool_goes_on_where_it_was_without_a_jump() -> None:
    w = world("PreInference", "a", "b", "c")
    w.source.set(*busy("a", "b", "c", p99_ms=Fresh(value=30.0)))
    await w.lead()
    await w.looks(10)
    slots, replicas = w.capacity("a"), w.pool["spec"]["replicas"]
    names = [InstanceName(name=f"pool-{n}", uid=n) for n in "abc"]
    w.source.broken = unreachable(names, "Prometheus: no connection", window_s=60.0)
    await w.looks(40)  # ten minutes: longer than every window
    assert w.condition("MetricsFresh") == ("False", "SourceUnreachable")
    w.source.broken = None
    w.source.set(load("a", p99_ms=Fresh(value=1.0)), load("b", p99_ms=Fresh(value=1.0)), load("c", p99_ms=Fresh(value=1.0)))
    await w.looks(3)
    assert (w.capacity("a"), w.pool["spec"]["replicas"]) == (slots, replicas), "the first readings are not a window of evidence"
    assert w.condition("MetricsFresh") == ("True", "Fresh")
    await w.looks(25)
    assert w.pool["spec"]["replicas"] < replicas


async def test_missing_rates_of_a_new_leader_are_no_news_and_move_nothing() -> None:
    w = world("PreInference")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(10)
    before = w.writes
    w.source.set()  # nothing is known yet
    await w.lead()
    await w.looks(3)
    w.source.set(*busy("a", "b"))
    await w.looks(10)
    assert w.writes == before


async def test_a_new_leader_starts_from_what_is_in_force_and_lets_it_hold_for_a_window() -> None:
    w = world("PreInference", "a", "b", "c", "d")
    w.source.set(*busy("a", "b", "c", "d", offered=3.0, p99_ms=Fresh(value=30.0)))
    await w.lead()
    await w.looks(10)
    slots = w.capacity("a")
    w.source.set(*[load(n, p99_ms=Fresh(value=1.0)) for n in "abcd"])
    await w.lead()
    await w.looks(19)
    assert (w.capacity("a"), w.pool["spec"]["replicas"]) == (slots, 4)
    await w.looks(3)
    assert w.pool["spec"]["replicas"] == 3
    assert w.capacity("a") != slots


# Holds and ends


async def test_a_paused_pool_is_left_alone_and_goes_on_afterwards() -> None:
    w = world("PreInference", paused=True)
    w.source.set(*busy("a", "b", offered=7.5, refused=500.0))
    await w.lead()
    await w.looks(5)
    assert w.capacity("a") is None
    assert w.kube.scaled == []
    assert w.condition("PreInferenceScaled") == ("False", "PausedByUser")
    assert w.condition("MetricsFresh") == ("True", "Fresh")
    w.kube.edit(POOLS, w.key, paused=False)
    await w.look()
    assert w.capacity("a") is not None
    assert w.kube.scaled == [6]


async def test_a_policy_that_does_not_exist_holds_until_it_does() -> None:
    w = world("Manual", policies={"preInference": "mine"})
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(3)
    assert w.condition("PreInferenceScaled") == ("False", "PolicyNotFound")
    assert w.capacity("a") is None
    made = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "PreInferencePolicy", "spec": {}}
    w.store.upsert(
        PRE_INFERENCE_POLICIES, {**made, "metadata": {"name": "mine", "namespace": "team", "uid": "u", "resourceVersion": "3"}}
    )
    await w.look()
    assert w.capacity("a") is not None
    assert w.condition("PreInferenceScaled")[0] == "False", "it grows, and says so"


async def test_an_engine_that_never_admitted_a_prefix_leaves_its_pool_as_it_is() -> None:
    w = world("Manual")
    w.source.set(load("a"), load("b", busy_slots=Missing()))  # does not count its slots
    await w.lead()
    await w.looks(10)
    assert w.capacity("a") is None


async def test_events_in_a_crowd_cost_one_measurement_and_one_look_at_the_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world("Manual")
    w.source.set(load("a"), load("b"))
    looks: list[Any] = []
    owned_by = w.store.owned_by
    monkeypatch.setattr(w.store, "owned_by", lambda *what: looks.append(what) or owned_by(*what))
    await w.lead()
    await w.look()
    once = len(looks)
    for _ in range(20):
        await w.look(after=0.1)
    assert w.source.reads == 1
    assert len(looks) == once  # with hundreds of instances, whose events all come here, looks were most of what a start cost


async def test_a_pool_that_is_gone_is_forgotten_by_its_source_too() -> None:
    w = world("Manual")
    w.source.set(load("a"), load("b"))
    await w.lead()
    await w.look()
    w.store.drop(POOLS, w.key)
    assert (await w.look()) is not None
    assert [each.name for each in w.source.forgotten] == ["pool"]


# Wakes


def event(kind: EventType, resource: Any, obj: dict[str, Any], old: dict[str, Any] | None = None) -> WatchEvent:
    return WatchEvent(kind, resource, Key("team", obj["metadata"]["name"]), obj, old)


async def test_a_pool_made_anew_before_the_loop_looked_again_begins_without_what_was_decided_for_the_other() -> None:
    """`kubectl replace --force`: deleted and made again within one look."""
    w = world("Manual")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(8)
    assert w.capacity("a") is not None
    anew = pool("Manual")
    anew["metadata"]["uid"] = "uid-second"
    for name in "ab":
        w.store.drop(INSTANCES, Key("team", f"pool-{name}"))
    w.store.drop(POOLS, w.key)
    w.store.upsert(POOLS, anew)
    for name in "ab":
        made = instance(name, anew)
        made["metadata"]["uid"] = f"uid-second-{name}"
        w.store.upsert(INSTANCES, made)
    w.source.set(load("a"), load("b"))
    await w.looks(8)
    assert w.capacity("a") is None, "nobody has asked this pool for a prefix"


def test_only_what_changes_who_is_measured_or_what_is_allowed_wakes_the_loop() -> None:
    w = world("Manual")
    stored, one = dict(w.pool), instance("a", dict(w.pool))
    asked = {**one, "metadata": {**one["metadata"], "generation": 2}}
    worse = {**one, "status": {"conditions": [{**one["status"]["conditions"][0], "status": "False"}]}}
    louder = {**one, "status": {**one["status"], "p99Ms": "12"}}
    named = {"metadata": {"name": "default", "namespace": "team", "generation": 1}, "spec": {}}
    pools = {
        "a report": event(EventType.MODIFIED, INSTANCES, louder, one),
        "a status": event(EventType.MODIFIED, POOLS, {**stored, "status": {"replicas": 2}}, stored),
    }
    for what, each in pools.items():
        assert list(w.loop.keys_for(each, w.store)) == [], what
    wakes = {
        "readiness": event(EventType.MODIFIED, INSTANCES, worse, one),
        "a new intent": event(EventType.MODIFIED, INSTANCES, asked, one),
        "an instance": event(EventType.ADDED, INSTANCES, one),
        "no instance": event(EventType.DELETED, INSTANCES, one),
        "a policy": event(EventType.ADDED, PRE_INFERENCE_POLICIES, named),
        "a resync": event(EventType.RESYNC, POOLS, stored, stored),
        "no pool": event(EventType.DELETED, POOLS, stored),
    }
    for what, each in wakes.items():
        assert list(w.loop.keys_for(each, w.store)) == [w.key], what


async def test_demand_that_falls_gives_memory_back_in_steps_and_late() -> None:
    w = world("Manual")
    w.source.set(
        *[msgspec.structs.replace(each, live_prefix_bytes=Fresh(value=4.0 * STEP)) for each in busy("a", "b", offered=3.0)]
    )
    await w.lead()
    await w.looks(10)
    high = w.capacity("a")
    assert high is not None
    assert high["bytes"] >= 4 * STEP
    w.source.set(*busy("a", "b", offered=0.5))
    await w.looks(18)
    assert w.capacity("a") == high
    seen = set()
    for _ in range(60):
        await w.look()
        now = w.capacity("a")
        assert now is not None
        assert now["bytes"] % STEP == 0
        seen.add(now["bytes"])
    assert min(seen) == STEP
    assert len(seen) <= 3


async def test_engines_that_do_not_take_their_limits_are_named_once_that_has_lasted() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(2)
    for name in "ab":
        key = Key("team", f"pool-{name}")
        stored = w.store.get(INSTANCES, key)
        assert stored is not None
        enforced = stored["spec"]["preInfer"] if name == "a" else {"slots": 4, "bytes": 1}
        agent = {"reachable": True, "intentGeneration": stored["metadata"]["generation"]}
        w.kube.report(INSTANCES, key, agent=agent, preInfer=enforced)
    await w.looks(3)
    assert w.condition("PreInferenceScaled") == ("True", "NotManaged")
    await w.looks(3)
    assert w.condition("PreInferenceScaled") == ("False", "NotEnforced")
    assert "1 of 2 engines do not have them: pool-b" in w.message("PreInferenceScaled")
    b = Key("team", "pool-b")
    w.kube.report(INSTANCES, b, preInfer=w.capacity("b"))
    await w.looks(2)
    assert w.condition("PreInferenceScaled") == ("True", "NotManaged")


async def test_a_pool_whose_instances_come_a_moment_after_it_is_not_said_to_have_none() -> None:
    stored = pool("Manual")
    w = World(stored)
    await w.lead()
    await w.looks(2)
    assert w.writes == 0
    for name in "ab":
        w.store.upsert(INSTANCES, instance(name, stored))
    w.source.set(load("a"), load("b"))
    await w.looks(2)
    assert w.condition("MetricsFresh") == ("True", "Fresh")
    assert len(w.kube.applied) == 1


async def test_a_pool_that_stays_without_instances_says_so() -> None:
    w = World(pool("Manual"))
    await w.lead()
    await w.looks(6)
    assert w.condition("PreInferenceScaled") == ("Unknown", "NoInstances")


async def test_an_instance_that_has_just_become_ready_puts_nobody_in_doubt() -> None:
    w = world("PreInference", "a", "b", "c")
    w.source.set(*busy("a", "b"))
    for name, since in (("a", "2025-12-31T00:00:00Z"), ("b", "2025-12-31T00:00:00Z"), ("c", "2026-01-01T00:05:00Z")):
        w.kube.report(INSTANCES, Key("team", f"pool-{name}"), conditions=[{**READY, "lastTransitionTime": since}])
    await w.lead()
    await w.clock.advance(300.0)
    await w.looks(3)
    assert w.condition("MetricsFresh") == ("True", "Fresh")
    await w.looks(4)
    assert w.condition("MetricsFresh") == ("False", "Missing"), "a minute is long enough"
