"""Whose a pod is, and which pools hear of an event; with a store, without a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from loop_objects import instance_object, pool_object
from pod_objects import deployment, managed_pool, pod_instance, raw_pod

from controllers.parsed import ParsedObjects
from controllers.pool.pod_world import PodWorld, look_at_pods
from controllers.pool.wake import pools_for
from controllers.runtime.loop import Context
from controllers.runtime.resources import (
    DEPLOYMENTS,
    INSTANCES,
    PODS,
    POOLS,
    ROUTING_POLICIES,
    ROUTING_TABLES,
    Key,
    Object,
    ResourceType,
)
from controllers.runtime.settings import Settings
from controllers.runtime.store import EventType, Store, WatchEvent
from crds import GRServingPool


def store_with(*pools: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> Store:
    store = Store([POOLS, INSTANCES, PODS, DEPLOYMENTS, ROUTING_TABLES, ROUTING_POLICIES])
    for pool in pools:
        store.upsert(POOLS, pool)
    for pod in pods:
        store.upsert(PODS, pod)
    return store


def world(store: Store, name: str) -> PodWorld:
    context = cast(Context, SimpleNamespace(store=store, settings=Settings(operator_namespace="op", agent_image="agent:1")))
    stored = store.get(POOLS, Key("team", name))
    assert stored is not None
    found = look_at_pods(
        context,
        Key("team", name),
        GRServingPool.parse(stored),
        ("uid-a",),
        parsed=ParsedObjects(),
        resident_bytes=lambda uid: 7,
        refusal=None,
        applied=None,
    )
    assert found is not None
    return found


def names(found: PodWorld) -> list[str]:
    return [pod.name for pod in found.pods]


def adopting(name: str, **labels: str) -> dict[str, Any]:
    return pool_object(name, instances={"adopted": {"matchLabels": labels}})


def stray(name: str, **labels: str) -> dict[str, Any]:
    return raw_pod(name, pool=None, labels=labels)


def test_a_label_alone_makes_nobody_a_pod_of_a_managed_pool() -> None:
    mine, forged = raw_pod("mine"), raw_pod("forged")
    forged["metadata"]["ownerReferences"][0]["name"] = "other-5c9"
    bare = raw_pod("bare")
    del bare["metadata"]["ownerReferences"]
    over = raw_pod("over")
    over["status"]["phase"] = "Failed"
    assert names(world(store_with(managed_pool(), pods=(mine, forged, bare, over)), "pool")) == ["mine"]


def test_an_adopted_pod_has_all_the_labels_and_lives_in_the_namespace_of_the_pool() -> None:
    elsewhere = stray("elsewhere", app="x", tier="y")
    elsewhere["metadata"]["namespace"] = "other"
    store = store_with(
        adopting("pool", app="x", tier="y"), pods=(stray("both", app="x", tier="y"), stray("one", app="x"), elsewhere)
    )
    assert names(world(store, "pool")) == ["both"]


def test_of_two_adopted_pools_the_first_by_name_has_the_pod_and_both_know_of_the_other() -> None:
    store = store_with(adopting("first", app="x"), adopting("second", tier="y"), pods=(stray("both", app="x", tier="y"),))
    assert names(world(store, "first")) == ["both"]
    assert world(store, "first").shared == {"both": "second"}
    assert names(world(store, "second")) == []
    assert world(store, "second").elsewhere == {"both": "first"}


def test_a_new_pool_takes_no_pod_that_another_one_has_already() -> None:
    first, second = adopting("first", app="x"), adopting("second", tier="y")
    store = store_with(first, second, pods=(stray("both", app="x", tier="y"),))
    store.upsert(INSTANCES, pod_instance("both", second))
    assert world(store, "first").elsewhere == {"both": "second"}
    assert names(world(store, "second")) == ["both"]


def test_a_pod_of_a_managed_pool_is_adopted_by_nobody() -> None:
    store = store_with(managed_pool(), adopting("a-first", app="x"), pods=(raw_pod("p", labels={"app": "x"}),))
    assert names(world(store, "pool")) == ["p"]
    assert world(store, "a-first").elsewhere == {"p": "pool"}


def test_values_of_instances_and_weights_of_the_pools_own_table_are_seen() -> None:
    store = store_with(managed_pool())
    owner = {"kind": "GRServingPool", "name": "pool", "uid": "uid-pool"}
    table: dict[str, Any] = {
        "metadata": {"name": "pool", "namespace": "team", "uid": "t", "resourceVersion": "1", "ownerReferences": [owner]},
        "spec": {"poolRef": "pool"},
        "status": {"instances": [{"uid": "uid-a", "weightPercent": 100}, {"uid": "uid-b", "weightPercent": 25}]},
    }
    store.upsert(ROUTING_TABLES, table)
    assert world(store, "pool").weights == {"uid-a": 100, "uid-b": 25}
    assert world(store, "pool").resident == {"uid-a": 7}
    owner["uid"] = "uid-of-somebody"
    store.upsert(ROUTING_TABLES, {**table, "metadata": {**table["metadata"], "resourceVersion": "2"}})
    assert world(store, "pool").weights == {}


def heard(store: Store, resource: ResourceType, obj: Object, old: Object | None = None, *, gone: bool = False) -> set[str]:
    kind = EventType.DELETED if gone else EventType.MODIFIED if old else EventType.ADDED
    key = Key(obj["metadata"]["namespace"], obj["metadata"]["name"])
    return {each.name for each in pools_for(WatchEvent(kind, resource, key, obj, old), store)}


def test_a_pod_wakes_the_pool_of_its_label_and_those_that_ask_for_labels_it_has_or_had() -> None:
    store = store_with(managed_pool(), adopting("x", app="x"), adopting("y", app="y"))
    assert heard(store, PODS, raw_pod("p")) == {"pool"}
    assert heard(store, PODS, stray("p", app="x")) == {"x"}
    assert heard(store, PODS, stray("p", app="y"), stray("p", app="x")) == {"x", "y"}
    assert heard(store, PODS, stray("p", app="z")) == set()


def test_deployments_instances_tables_and_policies_wake_their_pool() -> None:
    pool = managed_pool()
    external = pool_object("outside")
    store = store_with(pool, external)
    assert heard(store, DEPLOYMENTS, deployment()) == {"pool"}
    assert heard(store, INSTANCES, instance_object("a", pool)) == {"pool"}
    for name, expected in (("pool", {"pool"}), ("outside", set())):
        table = {"metadata": {"name": name, "namespace": "team"}, "spec": {"poolRef": name}}
        assert heard(store, ROUTING_TABLES, table) == expected
    policy = {"metadata": {"name": "default", "namespace": "team"}, "spec": {}}
    assert heard(store, ROUTING_POLICIES, policy) == {"pool"}


def test_adopted_pools_hear_of_each_other_when_labels_are_asked_for_anew() -> None:
    first, second = adopting("first", app="x"), adopting("second", app="y")
    store = store_with(first, second, managed_pool())
    changed = {**second, "metadata": {**second["metadata"], "generation": 2}}
    assert heard(store, POOLS, changed, second) == {"first", "second"}
    assert heard(store, POOLS, second, gone=True) == {"first", "second"}
    assert heard(store, POOLS, {**second, "status": {}}, second) == {"second"}
