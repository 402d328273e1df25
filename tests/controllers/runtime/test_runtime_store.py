"""The store follows events, keeps its indexes right, and a sweep removes ghosts without hurting what the watch just brought."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime.clock import FakeClock
from controllers.runtime.errors import Transient
from controllers.runtime.kube import Page
from controllers.runtime.resources import INSTANCES, POOLS, Key, ResourceType
from controllers.runtime.ssa import already_applied
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.runtime.sweep import Sweeper


def thing(name: str, version: int, *, uid: str = "", pool: str = "", owner: str = "") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner}]
    return {"metadata": metadata, "spec": {"poolRef": pool} if pool else {}}


def heard(store: Store) -> list[WatchEvent]:
    events: list[WatchEvent] = []
    store.subscribe(events.append)
    return events


def test_an_event_is_news_unless_the_store_has_that_version_or_a_newer_one() -> None:
    store = Store([INSTANCES])
    assert store.is_news(INSTANCES, None, thing("a", 10))
    store.upsert(INSTANCES, thing("a", 10))  # the answer to a write of ours
    assert not store.is_news(INSTANCES, "MODIFIED", thing("a", 10))
    assert not store.is_news(INSTANCES, "ADDED", thing("a", 9))
    assert store.is_news(INSTANCES, "MODIFIED", thing("a", 11))
    assert store.is_news(INSTANCES, "ADDED", thing("a", 11, uid="successor"))
    assert store.is_news(INSTANCES, "DELETED", thing("a", 10))


def test_an_event_that_is_older_than_what_is_known_changes_nothing() -> None:
    store = Store([INSTANCES])
    events = heard(store)
    store.observe(INSTANCES, "ADDED", thing("a", 10))
    store.observe(INSTANCES, "MODIFIED", thing("a", 9))
    store.observe(INSTANCES, None, thing("a", 10))
    assert [event.type for event in events] == [EventType.ADDED]


def test_a_recreated_object_is_told_as_deleted_and_added() -> None:
    store = Store([INSTANCES])
    store.observe(INSTANCES, "ADDED", thing("a", 1, uid="old"))
    events = heard(store)
    store.observe(INSTANCES, None, thing("a", 5, uid="new"))
    assert [(event.type, event.obj["metadata"]["uid"]) for event in events] == [
        (EventType.DELETED, "old"),
        (EventType.ADDED, "new"),
    ]


def test_the_late_deletion_of_a_predecessor_does_not_remove_the_successor() -> None:
    store = Store([INSTANCES])
    store.observe(INSTANCES, "ADDED", thing("a", 5, uid="new"))
    store.observe(INSTANCES, "DELETED", thing("a", 4, uid="old"))
    assert store.get(INSTANCES, Key("ns", "a")) is not None


def test_indexes_follow_changes_and_deletions() -> None:
    store = Store([INSTANCES])
    store.observe(INSTANCES, "ADDED", thing("a", 1, pool="p", owner="uid-p"))
    store.observe(INSTANCES, "ADDED", thing("b", 2, pool="p"))
    pool, owner = Key("ns", "p"), {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}}
    assert [obj["metadata"]["name"] for obj in store.of_pool(INSTANCES, pool)] == ["a", "b"]
    assert [obj["metadata"]["name"] for obj in store.owned_by(INSTANCES, owner)] == ["a"]
    store.observe(INSTANCES, "MODIFIED", thing("a", 3, pool="q"))
    assert [obj["metadata"]["name"] for obj in store.of_pool(INSTANCES, pool)] == ["b"]
    assert store.owned_by(INSTANCES, owner) == []
    store.observe(INSTANCES, "DELETED", thing("b", 4, pool="p"))
    assert store.of_pool(INSTANCES, pool) == []


def test_what_names_an_owner_in_another_namespace_is_not_its() -> None:
    """Its address would get into the owner's routing table, and the owner's users to it."""
    store = Store([INSTANCES])
    mine, theirs = thing("a", 1, owner="uid-p"), thing("b", 2, owner="uid-p")
    theirs["metadata"]["namespace"] = "other"
    for each in (mine, theirs):
        store.observe(INSTANCES, "ADDED", each)
    owner = {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}}
    assert [obj["metadata"]["name"] for obj in store.owned_by(INSTANCES, owner)] == ["a"]


def test_an_index_added_later_knows_the_objects_that_are_there() -> None:
    store = Store([INSTANCES])
    store.observe(INSTANCES, "ADDED", thing("a", 1))
    store.add_index(INSTANCES, "first letter", lambda obj: [obj["metadata"]["name"][0]])
    assert [obj["metadata"]["name"] for obj in store.by_index(INSTANCES, "first letter", "a")] == ["a"]


def test_only_our_own_field_ownership_is_kept() -> None:
    store = Store([INSTANCES])
    obj = thing("a", 1)
    obj["metadata"]["managedFields"] = [{"manager": "kubectl"}, {"manager": "grfleet-pool"}]
    store.observe(INSTANCES, "ADDED", obj)
    kept = store.get(INSTANCES, Key("ns", "a"))
    assert kept is not None
    assert kept["metadata"]["managedFields"] == [{"manager": "grfleet-pool"}]
    assert len(obj["metadata"]["managedFields"]) == 2


def test_what_the_store_keeps_of_field_ownership_still_tells_whether_an_apply_would_change_anything() -> None:
    store, obj = Store([INSTANCES]), thing("a", 1)
    obj["spec"] = {"poolRef": "p"}
    fields = {"f:spec": {"f:poolRef": {}}}
    obj["metadata"]["managedFields"] = [{"manager": "grfleet-pool", "operation": "Apply", "fieldsV1": fields}]
    store.observe(INSTANCES, "ADDED", obj)
    kept = store.get(INSTANCES, Key("ns", "a"))
    assert kept is not None
    wanted = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"poolRef": "p"}}
    assert already_applied(wanted, kept, field_manager="grfleet-pool")
    assert not already_applied({**wanted, "spec": {"poolRef": "q"}}, kept, field_manager="grfleet-pool")
    assert obj["metadata"]["managedFields"][0]["fieldsV1"] == fields


def test_what_instances_have_in_common_is_kept_once_and_nothing_of_it_changes() -> None:
    store = Store([INSTANCES])
    for name, moment in (("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-02T00:00:00Z")):
        obj = thing(name, 1)
        obj["metadata"]["labels"] = {"grfleet.dev/pool": "p"}
        obj["metadata"]["ownerReferences"] = [{"kind": "GRServingPool", "name": "p", "uid": "u"}]
        obj["metadata"]["managedFields"] = [
            {"manager": "grfleet-pool", "operation": "Apply", "time": moment, "fieldsV1": {"f:spec": {}}}
        ]
        obj["spec"] = {
            "poolRef": "p",
            "intent": {"strategy": "Static", "paused": False},
            "source": {"kind": "External", "agentURL": name},
        }
        if name == "a":
            store.observe(INSTANCES, "ADDED", obj)
        else:
            store.upsert(INSTANCES, obj)
        kept = store.get(INSTANCES, Key("ns", name))
        assert kept is not None
        assert kept["spec"] == obj["spec"]
        assert all(kept["metadata"][part] == obj["metadata"][part] for part in ("name", "uid", "labels", "ownerReferences"))
    one, other = store.all(INSTANCES)
    assert one["spec"]["intent"] is other["spec"]["intent"]
    for part in ("labels", "ownerReferences"):
        assert one["metadata"][part] is other["metadata"][part]
    assert one["metadata"]["managedFields"][0] is other["metadata"]["managedFields"][0]


def test_a_listener_that_fails_does_not_stop_the_others() -> None:
    store = Store([INSTANCES])

    def broken(event: WatchEvent) -> None:
        raise RuntimeError("broken")

    store.subscribe(broken)
    events = heard(store)
    store.observe(INSTANCES, "ADDED", thing("a", 1))
    assert len(events) == 1


def test_a_sweep_drops_ghosts_adds_the_unseen_and_spares_what_was_touched_meanwhile() -> None:
    store = Store([INSTANCES])
    for name in ("ghost", "stays", "deleted meanwhile"):
        store.observe(INSTANCES, "ADDED", thing(name, 1))
    sweep = store.begin_sweep(INSTANCES)
    store.observe(INSTANCES, "ADDED", thing("new meanwhile", 9))
    store.observe(INSTANCES, "DELETED", thing("deleted meanwhile", 8))
    listed = [thing("stays", 1), thing("deleted meanwhile", 1), thing("unseen", 5)]
    store.sweep_page(sweep, listed[:1])
    store.sweep_page(sweep, listed[1:])
    assert store.end_sweep(sweep) == 1
    assert [key.name for key in store.keys(INSTANCES)] == ["new meanwhile", "stays", "unseen"]


def test_a_sweep_of_some_namespaces_leaves_the_others_alone() -> None:
    store = Store([INSTANCES])
    store.observe(INSTANCES, "ADDED", thing("a", 1))
    assert store.end_sweep(store.begin_sweep(INSTANCES), frozenset({"elsewhere"})) == 0
    assert store.count(INSTANCES) == 1


class Listing:
    """A KubeApi that can only list; it counts."""

    def __init__(self) -> None:
        self.items: dict[ResourceType, list[dict[str, Any]]] = {INSTANCES: [], POOLS: []}
        self.calls: list[ResourceType] = []
        self.broken = False

    async def list(self, resource: ResourceType, namespace: str | None, *, limit: int = 500) -> AsyncIterator[Page]:
        self.calls.append(resource)
        if self.broken:
            raise Transient("ConnectFailed", "refused")
        yield Page(tuple(self.items[resource]), "1")


@pytest.fixture
def swept() -> tuple[Sweeper, Store, Listing, FakeClock]:
    store, kube, clock = Store([INSTANCES, POOLS]), Listing(), FakeClock()
    return Sweeper(kube, store, namespaces=(), clock=clock, rng=random.Random(1)), store, kube, clock  # type: ignore[arg-type] # lists only


async def test_the_store_is_synced_once_every_kind_was_listed_even_if_the_first_try_fails(
    swept: tuple[Sweeper, Store, Listing, FakeClock],
) -> None:
    sweeper, store, kube, clock = swept
    kube.broken = True
    running = asyncio.create_task(sweeper.run())
    await clock.advance(6)
    assert set(store.unsynced()) == {INSTANCES, POOLS}
    assert not sweeper.synced.is_set()
    kube.broken = False
    await clock.advance(6)
    assert sweeper.synced.is_set()
    running.cancel()


async def test_a_relist_brings_one_sweep_of_that_kind_soon_and_none_otherwise_for_minutes(
    swept: tuple[Sweeper, Store, Listing, FakeClock],
) -> None:
    sweeper, store, kube, clock = swept
    kube.items[INSTANCES] = [thing(name, 1) for name in "abc"]
    running = asyncio.create_task(sweeper.run())
    sweeper.request(INSTANCES)
    await clock.advance(0.1)
    assert kube.calls == [INSTANCES]
    await clock.advance(6)
    kube.calls.clear()
    await clock.advance(500)
    assert kube.calls == []
    kube.items[INSTANCES] = [thing("a", 1)]
    for _ in ["three", "namespaces"]:
        sweeper.request(INSTANCES)
    await clock.advance(3)
    assert kube.calls == [INSTANCES]
    assert [key.name for key in store.keys(INSTANCES)] == ["a"]
    await clock.advance(700)
    assert set(kube.calls) == {INSTANCES, POOLS}
    running.cancel()


@settings(max_examples=150, deadline=None)
@given(
    before=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=20),
    lost=st.sets(st.integers(0, 6)),
    during=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=10),
)
def test_after_a_sweep_the_store_equals_the_server_whatever_got_lost(
    before: list[tuple[int, bool]], lost: set[int], during: list[tuple[int, bool]]
) -> None:
    """Server and watch agree except for lost deletions; the list is taken at the start of the sweep."""
    store, server, version = Store([INSTANCES]), dict[str, dict[str, Any]](), 0

    def change(number: int, exists: bool, *, tell: bool) -> None:
        nonlocal version
        version += 1
        name = f"i{number}"
        obj = thing(name, version)
        if exists:
            known = name in server
            server[name] = obj
            if tell:
                store.observe(INSTANCES, "MODIFIED" if known else "ADDED", obj)
        elif server.pop(name, None) is not None and tell:
            store.observe(INSTANCES, "DELETED", obj)

    for number, exists in before:
        change(number, exists, tell=True)
    for number in lost:
        change(number, False, tell=False)
    sweep = store.begin_sweep(INSTANCES)
    listed = list(server.values())
    for number, exists in during:
        change(number, exists, tell=True)
    store.sweep_page(sweep, listed)
    store.end_sweep(sweep)
    assert {key.name for key in store.keys(INSTANCES)} == set(server)
