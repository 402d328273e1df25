"""The pre-inference loop is the one writer of what it writes: replicas in its mode alone, and the capacity of each instance."""

from __future__ import annotations

from typing import Any

import pytest
from preinference_world import busy, instance, load, world

from controllers.preinference.decide import REST_SECONDS
from controllers.runtime.resources import INSTANCES, POOLS, Key
from policies.measurement import Fresh


async def test_a_leader_that_was_stopped_between_two_writes_leaves_a_pool_that_comes_together() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b", offered=2.0, refused=20.0))
    w.kube.moved = {"pool-b"}
    await w.lead()
    await w.look()
    assert w.capacity("a") is not None
    assert w.capacity("b") is None
    await w.lead()
    await w.looks(2)
    assert w.capacity("a") == w.capacity("b")


async def test_an_instance_that_has_moved_on_does_not_hold_up_the_others_and_is_written_next_time() -> None:
    w = world("Manual", "a", "b", "c")
    w.source.set(*busy("a", "b", "c"))
    w.kube.moved = {"pool-a"}
    await w.lead()
    await w.look()
    assert (w.capacity("a"), w.kube.refused) == (None, ["pool-a"])
    assert w.capacity("b") == w.capacity("c") is not None
    await w.look(after=REST_SECONDS)
    assert w.capacity("a") == w.capacity("b")


async def test_only_the_mode_that_names_us_lets_us_write_replicas_and_a_change_of_mode_counts_at_once() -> None:
    w = world("HPA")
    pressed = busy("a", "b", offered=7.5, refused=500.0, p99_ms=Fresh(value=90.0))
    w.source.set(*pressed)
    await w.lead()
    await w.looks(20)
    assert w.kube.scaled == []
    assert w.condition("PreInferenceScaled") == ("False", "LimitReached")
    w.kube.edit(POOLS, w.key, scaling={"mode": "PreInference", "minReplicas": 1, "maxReplicas": 8})
    await w.look()
    assert w.kube.scaled == [6]
    w.kube.edit(POOLS, w.key, scaling={"mode": "Manual", "minReplicas": 1, "maxReplicas": 8}, replicas=3)
    await w.looks(20)
    assert w.kube.scaled == [6]
    assert w.pool["spec"]["replicas"] == 3


@pytest.mark.parametrize("by_hand", [1, 7])
async def test_a_person_who_scales_by_hand_in_our_mode_gives_us_a_new_start_and_no_fight(by_hand: int) -> None:
    w = world("PreInference", "a", "b", "c")
    for each in "abc":
        w.source.loads[f"pool-{each}"] = load(each, offered=2.0)
    await w.lead()
    await w.looks(30)
    assert w.kube.scaled == []
    w.kube.edit(POOLS, w.key, replicas=by_hand)
    await w.looks(3)
    assert w.kube.scaled == ([] if by_hand == 7 else w.kube.scaled)
    assert w.pool["spec"]["replicas"] == (w.kube.scaled[-1] if w.kube.scaled else by_hand)


async def test_a_scale_that_was_decided_from_an_older_pool_is_refused_and_decided_anew() -> None:
    w = world("PreInference")
    w.source.set(*busy("a", "b", offered=7.5, refused=500.0))
    await w.lead()
    await w.looks(3)
    scaled = list(w.kube.scaled)
    original = w.source.read

    async def slow(*args: Any) -> Any:
        w.kube.edit(POOLS, w.key, replicas=5)  # somebody writes while we measure
        return await original(*args)

    w.kube.edit(POOLS, w.key, replicas=2)
    w.source.read = slow
    await w.look()
    assert w.kube.scaled == scaled, "decided from 2, and there are 5 by now"
    assert w.pool["spec"]["replicas"] == 5


async def test_what_was_not_written_does_not_count_as_a_change() -> None:
    w = world("PreInference")
    w.source.set(*busy("a", "b", offered=7.5, refused=500.0))
    await w.lead()
    await w.look()
    w.kube.scaled.clear()
    w.kube.edit(POOLS, w.key, replicas=2)
    await w.look(after=60.0)
    assert w.kube.scaled == [6]


async def test_capacity_that_somebody_else_wrote_is_written_back() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(5)
    ours = w.capacity("a")
    w.kube.edit(INSTANCES, Key("team", "pool-a"), preInfer={"slots": 99, "bytes": 0})
    await w.look()
    assert w.capacity("a") == ours


async def test_an_instance_of_the_same_name_is_another_one_and_gets_its_capacity_anew() -> None:
    w = world("Manual")
    w.source.set(*busy("a", "b"))
    await w.lead()
    await w.looks(5)
    fresh = instance("a", dict(w.pool), ready=False)
    w.kube.version += 1
    fresh["metadata"] |= {"uid": "another", "resourceVersion": str(w.kube.version)}
    w.store.upsert(INSTANCES, fresh)
    assert w.capacity("a") is None
    await w.look()
    assert w.capacity("a") == w.capacity("b") is not None
