"""Where an HBMPolicy is in force: counts over the pools that resolve to it, and the rollout that needs a look most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import instance_object, pool_object

from controllers.allocation.policy_status import WORST_FIRST, PolicyStatusLoop, status_of
from controllers.runtime.loop import Context
from controllers.runtime.resources import HBM_POLICIES, INSTANCES, POOLS, Key
from controllers.runtime.store import EventType, Store, WatchEvent
from crds.hbm_policy import RolloutPhase

KINDS = {"GRServingPool": POOLS, "GRInstance": INSTANCES, "HBMPolicy": HBM_POLICIES}


def policy_object(name: str = "mine", namespace: str = "team", *, generation: int = 3) -> dict[str, Any]:
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "HBMPolicy",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "generation": generation},
        "spec": {},
    }


def ref(name: str = "mine", namespace: str = "team", generation: int = 3) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "generation": generation, "source": "Pool"}


def stored(*objects: dict[str, Any]) -> Store:
    store = Store((POOLS, INSTANCES, HBM_POLICIES))
    for each in objects:
        store.upsert(KINDS[each["kind"]], each)
    return store


def fleet(name: str = "pool", *, generations: tuple[int, ...] = (3, 3, 2), phase: str | None = None) -> list[dict[str, Any]]:
    pool = pool_object(name, policies={"hbm": "mine"})
    if phase is not None:
        pool["status"] = {"rollout": {"phase": phase, "policyRef": ref()}}
    return [
        pool,
        *(
            instance_object(f"{name}-{number}", pool, intent={"policyRef": ref(generation=generation)})
            for number, generation in enumerate(generations)
        ),
    ]


def counted(policy: dict[str, Any], *objects: dict[str, Any]) -> dict[str, Any]:
    return status_of(policy, stored(policy, *objects), operator_namespace="grfleet")


def test_instances_and_those_on_the_present_generation_are_counted() -> None:
    assert counted(policy_object(), *fleet()) == {"observedGeneration": 3, "pools": 1, "instances": 3, "current": 2}


def test_who_drains_does_not_count() -> None:
    objects = fleet()
    objects[1]["spec"]["drain"] = {"reason": "ScaleDown"}
    assert counted(policy_object(), *objects)["instances"] == 2


def test_a_pool_that_names_another_policy_does_not_count() -> None:
    assert counted(policy_object("other"), *fleet())["pools"] == 0


def test_the_default_of_the_operator_holds_for_pools_whose_namespace_has_none() -> None:
    theirs = policy_object("default", "grfleet")
    pool = pool_object()
    assert counted(theirs, pool)["pools"] == 1
    assert counted(theirs, pool, policy_object("default"))["pools"] == 0
    assert counted(policy_object("default"), pool)["pools"] == 1
    assert counted(policy_object("default", "elsewhere"), pool)["pools"] == 0


@pytest.mark.parametrize("phase", RolloutPhase)
def test_of_several_rollouts_the_worst_is_told(phase: RolloutPhase) -> None:
    status = counted(policy_object(), *fleet("pool", phase="Complete"), *fleet("pool-b", phase=phase.value))
    assert status["rollout"] == phase.value
    assert set(WORST_FIRST) == set(RolloutPhase)


def test_a_rollout_of_an_older_generation_is_not_told() -> None:
    assert "rollout" not in counted(policy_object(generation=4), *fleet(phase="RolledBack"))


@pytest.mark.parametrize(("strategy", "told"), [("Learned", "split-1"), ("Static", None), ("MissRatioCurve", None), (None, None)])
def test_only_the_model_that_the_strategy_runs_is_told_though_another_strategy_may_name_one(
    strategy: str | None, told: str | None
) -> None:
    policy = policy_object()
    policy["spec"] = {"learned": {"model": "split-1"}, **({"strategy": strategy} if strategy else {})}
    assert counted(policy, *fleet()).get("model") == told


def keys(event: WatchEvent, store: Store) -> set[Key]:
    return set(PolicyStatusLoop().keys_for(event, store))


def test_a_step_of_a_rollout_and_an_intent_of_another_generation_wake_the_policy_and_a_measurement_does_not() -> None:
    pool, instance, *_ = fleet(phase="Canary")
    store = stored(pool, instance)
    mine = {Key("team", "mine")}
    moved = {**pool, "status": {"rollout": {"phase": "Complete", "policyRef": ref()}}}
    assert keys(WatchEvent(EventType.MODIFIED, POOLS, Key("team", "pool"), moved, pool), store) == mine
    measured = {**pool, "status": {**pool["status"], "p99Ms": "41"}}
    assert keys(WatchEvent(EventType.MODIFIED, POOLS, Key("team", "pool"), measured, pool), store) == set()
    newer = {**instance, "spec": {**instance["spec"], "intent": {"policyRef": ref(generation=4)}}}
    at = Key("team", "pool-0")
    assert keys(WatchEvent(EventType.MODIFIED, INSTANCES, at, newer, instance), store) == mine
    assert keys(WatchEvent(EventType.MODIFIED, INSTANCES, at, {**instance, "status": {"p99Ms": "4"}}, instance), store) == set()
    assert keys(WatchEvent(EventType.DELETED, INSTANCES, at, instance, instance), store) == mine


def test_every_policy_is_counted_when_a_leader_begins_as_nobody_counted_before() -> None:
    policy = policy_object()
    event = WatchEvent(EventType.RESYNC, HBM_POLICIES, Key("team", "mine"), policy, policy)
    assert keys(event, stored(policy)) == {Key("team", "mine")}


@pytest.mark.parametrize("type_", [EventType.ADDED, EventType.DELETED])
async def test_a_default_that_comes_or_goes_concerns_that_of_the_operator_too(type_: EventType) -> None:
    own, operators = policy_object("default"), policy_object("default", "grfleet")
    loop = PolicyStatusLoop()
    await loop.start(cast(Context, SimpleNamespace(settings=SimpleNamespace(operator_namespace="grfleet"))))
    event = WatchEvent(type_, HBM_POLICIES, Key("team", "default"), own, None)
    assert set(loop.keys_for(event, stored(operators))) == {Key("team", "default"), Key("grfleet", "default")}
    named = WatchEvent(type_, HBM_POLICIES, Key("team", "mine"), policy_object(), None)
    assert set(loop.keys_for(named, stored(operators))) == {Key("team", "mine")}


class Written:
    """An API server that takes every status of one policy."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.statuses: list[dict[str, Any]] = []

    async def apply_status(self, resource: Any, desired: Any, **_: Any) -> dict[str, Any]:
        self.statuses.append(desired["status"])
        policy = self.store.get(resource, Key("team", "mine"))
        assert policy is not None
        return {**policy, "status": desired["status"]}


@pytest.mark.parametrize(
    ("news", "hurries"),
    [
        ({"spec": {"strategy": "Learned", "learned": {"model": "split-2"}}}, True),
        ({"phase": "RolledBack"}, True),
        ({"generations": (3, 3, 3)}, False),
    ],
    ids=["model", "rollout", "numbers"],
)
async def test_another_model_and_a_step_of_a_rollout_are_told_within_a_second_and_numbers_within_ten(
    news: dict[str, Any], hurries: bool
) -> None:
    policy = policy_object()
    policy["metadata"]["resourceVersion"] = "1"
    policy["spec"] = {"strategy": "Learned", "learned": {"model": "split-1"}}
    store = stored(policy, *fleet(phase="Canary"))
    kube, now_s = Written(store), [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    settings = SimpleNamespace(operator_namespace="grfleet")
    ctx = cast(Context, SimpleNamespace(kube=kube, store=store, clock=clock, settings=settings))
    loop = PolicyStatusLoop()
    await loop.reconcile(Key("team", "mine"), ctx)
    assert [status["model"] for status in kube.statuses] == ["split-1"]

    changed = fleet(phase=news.get("phase", "Canary"), generations=news.get("generations", (3, 3, 2)))
    changed.append(
        {**policy, "metadata": dict(policy["metadata"]), "status": kube.statuses[0], "spec": news.get("spec", policy["spec"])}
    )
    for each in changed:
        each["metadata"]["resourceVersion"] = "1000"
        store.upsert(KINDS[each["kind"]], each)
    now_s[0] += 1.5
    later = await loop.reconcile(Key("team", "mine"), ctx)
    assert len(kube.statuses) == (2 if hurries else 1)
    if not hurries:
        assert later is not None
        now_s[0] += 8.6
        await loop.reconcile(Key("team", "mine"), ctx)
    assert kube.statuses[1] != kube.statuses[0]
