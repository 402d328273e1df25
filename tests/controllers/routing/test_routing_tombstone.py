"""What a deleted pool leaves: who gets a tombstone, in which order it is written, that followers obey it, and when it goes."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import NOW, at, condition_item, instance_object, pool_object

from contract.errors import ProtocolViolation
from controllers.holder import Holder
from controllers.lookup import Found
from controllers.parsed import ParsedObjects
from controllers.routing import controller as routing_controller
from controllers.routing.controller import RoutingLoop
from controllers.routing.decide import Plan, decide
from controllers.routing.observe import Observation, table_holder
from controllers.routing.tombstone import (
    COLLECTOR_SECONDS,
    TOMBSTONE_SECONDS,
    Burial,
    LastGenerations,
    decide_burial,
    generation_of,
    tombstone_status,
)
from controllers.runtime.conditions import find_condition
from controllers.runtime.errors import Conflict, Gone
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, ROUTING_POLICIES, ROUTING_TABLES, Key, uid_of
from controllers.runtime.store import Store
from crds import GRInstance, GRRoutingTable, GRServingPool, RoutingPolicySpec
from crds.instance import PolicySource
from dataplane.fence import Fence, is_tombstone
from dataplane.follow import table_from
from dataplane.gateway.tables import EMPTY, want_of
from grfleet.client.errors import NoInstance
from grfleet.client.router import Router

KEY = Key("team", "pool")
POOL_OWNER = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "GRServingPool",
    "name": "pool",
    "uid": "uid-pool",
    "controller": True,
}
FIELDS = {"f:metadata": {"f:labels": {"f:grfleet.dev/pool": {}}}, "f:spec": {"f:poolRef": {}}}
OURS = [{"manager": "grfleet-routing", "operation": "Apply", "fieldsV1": FIELDS}]


def table_object(
    status: dict[str, Any] | None,
    *,
    owners: tuple[dict[str, Any], ...] = (POOL_OWNER,),
    ours: bool = True,
    pool_ref: str = "pool",
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "pool", "namespace": "team", "uid": "uid-table", "generation": 1, "resourceVersion": "30"}
    if owners:
        metadata["ownerReferences"] = list(owners)
    if ours:
        metadata["managedFields"] = OURS
    body = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRRoutingTable", "metadata": metadata, "spec": {"poolRef": pool_ref}}
    return {**body, **({"status": status} if status else {})}


def observed(*names: str, table: dict[str, Any] | None = None, pool: dict[str, Any] | None = None) -> Observation:
    stored = pool or pool_object()
    ready = [condition_item("Ready", "True", "InstanceReady")]
    return Observation(
        pool=GRServingPool.parse(stored),
        stored=stored,
        policy=Found(spec=RoutingPolicySpec(), name="default", source=PolicySource.DEFAULTS),
        instances=tuple(GRInstance.parse(instance_object(f"pool-{each}", stored, conditions=ready)) for each in names),
        table=GRRoutingTable.parse(table) if table is not None else None,
        stored_table=table,
        holder=table_holder(table, stored),
        started=at(-3600),
    )


def live_status() -> dict[str, Any]:
    status = decide(observed("a", "b"), NOW).table_status
    assert status is not None
    return dict(status)


def buried(generation: int = 8) -> dict[str, Any]:
    return table_object(tombstone_status(table_object(None), generation=generation, now=NOW), owners=())


STRANGER = {**POOL_OWNER, "kind": "Team", "name": "other"}


@pytest.mark.parametrize(
    ("table", "known", "expected"),
    [
        (table_object({"generation": 7, "instances": [{"name": "a"}]}), 7, Burial(generation=8)),
        (table_object({"generation": 7, "instances": [{"name": "a"}]}), None, Burial(generation=8)),
        (table_object({"generation": 7, "instances": [{"name": "a"}]}), 9, Burial(generation=10)),
        (None, 7, Burial(generation=8)),
        (None, None, Burial()),
        (table_object(None, owners=()), None, Burial(generation=1)),
        (table_object({"generation": 7}, owners=(STRANGER,)), 7, Burial()),
        (table_object({"generation": 7}, pool_ref="other"), 7, Burial()),
        (table_object({"generation": 7, "instances": [{"name": "a"}]}, owners=()), 7, Burial()),
        (table_object({"generation": 7}, owners=(), ours=False), 7, Burial()),
    ],
    ids=[
        "its table",
        "its table, after a restart of the operator",
        "its table, of which the store is behind",
        "the collector was first",
        "nothing known",
        "half made",
        "a stranger's",
        "of another pool",
        "cascade orphan",
        "made by hand",
    ],
)
def test_only_the_table_of_the_deleted_pool_becomes_a_tombstone(
    table: dict[str, Any] | None, known: int | None, expected: Burial
) -> None:
    assert decide_burial(pool=None, table=table, known=known, now=NOW) == expected


def test_a_pool_deleted_with_cascade_orphan_leaves_its_table_as_it_is() -> None:
    pool = pool_object()
    pool["metadata"] |= {"deletionTimestamp": "2026-05-01T12:00:00Z", "finalizers": ["orphan"]}
    assert decide_burial(pool=pool, table=table_object(live_status()), known=1, now=NOW) == Burial()


def test_a_tombstone_stands_for_a_week_and_then_goes() -> None:
    assert timedelta(days=7).total_seconds() == TOMBSTONE_SECONDS, "as docs/routing.md and docs/operations.md have it"
    assert decide_burial(pool=None, table=buried(), known=None, now=NOW).requeue_after == TOMBSTONE_SECONDS
    almost = decide_burial(pool=None, table=buried(), known=8, now=at(TOMBSTONE_SECONDS - 10))
    assert almost == Burial(requeue_after=10)
    assert decide_burial(pool=None, table=buried(), known=None, now=at(TOMBSTONE_SECONDS)) == Burial(remove=True)
    assert decide_burial(pool=None, table=buried(), known=None, now=at(-9e8)).requeue_after == pytest.approx(
        TOMBSTONE_SECONDS, abs=300.0
    ), "one that a clock far ahead wrote does not stand for decades"


def test_a_stamp_that_nobody_can_read_stops_no_look_at_a_tombstone() -> None:
    table = buried()
    table["status"]["publishedAt"] = "2026-12-31T23:59:60Z"
    assert decide_burial(pool=None, table=table, known=None, now=NOW).requeue_after == TOMBSTONE_SECONDS


def test_a_tombstone_is_one_to_the_api_the_gateway_and_the_client_and_empties_both() -> None:
    document = buried(8)
    GRRoutingTable.parse(document)
    living = table_from(json.dumps(table_object(live_status())).encode())
    dead = table_from(json.dumps(document).encode())
    assert is_tombstone(dead.table)
    assert want_of(dead.table) == EMPTY

    fence, router = Fence(), Router()
    assert fence.admits(living.table)
    assert router.accept(living.table, incarnation=living.uid)
    assert fence.admits(dead.table)
    assert router.accept(dead.table, incarnation=dead.uid)
    assert router.status().withdrawn
    with pytest.raises(NoInstance):
        router.pick("0" * 32)


def test_a_pool_made_anew_takes_the_tombstone_over_with_a_higher_generation_and_followers_go_on() -> None:
    anew = pool_object(uid="uid-second")
    seen = observed("a", table=buried(8), pool=anew)
    assert seen.holder is Holder.ORPHAN
    plan = decide(seen, at(5))
    assert plan.apply_table
    assert plan.table_status is not None
    assert plan.table_status["generation"] == 9
    assert plan.table_status["movedPercent"] == "0", "nobody was anywhere"
    fence, router = Fence(), Router()
    for status in (live_status(), dict(buried(8)["status"]), dict(plan.table_status)):
        published = table_from(json.dumps(table_object(status)).encode())
        assert fence.admits(published.table)
        assert router.accept(published.table, incarnation=published.uid)
    assert router.pick("0" * 32).name == "pool-a"


def test_the_first_table_after_a_tombstone_waits_for_all_instances_as_the_first_of_all_does() -> None:
    anew = pool_object(uid="uid-second")
    plan = decide(
        Observation(
            pool=GRServingPool.parse(anew),
            stored=anew,
            policy=Found(spec=RoutingPolicySpec(), name="default", source=PolicySource.DEFAULTS),
            instances=(GRInstance.parse(instance_object("pool-a", anew)),),
            table=GRRoutingTable.parse(buried()),
            stored_table=buried(),
            holder=Holder.ORPHAN,
            started=at(-1),
        ),
        NOW,
    )
    assert plan.pool_status is not None
    said = find_condition(plan.pool_status["conditions"], "TablePublished")
    assert said is not None
    assert said["reason"] == "Pending"


def test_no_look_before_the_first_table_makes_a_tombstone_count_as_one_that_users_follow() -> None:
    anew, ready = pool_object(uid="uid-second"), [condition_item("Ready", "True", "InstanceReady")]
    instances = [instance_object("pool-a", anew, conditions=ready), instance_object("pool-b", anew)]

    def look(*present: dict[str, Any]) -> Plan:
        seen = Observation(
            pool=GRServingPool.parse(anew),
            stored=anew,
            policy=Found(spec=RoutingPolicySpec(), name="default", source=PolicySource.DEFAULTS),
            instances=tuple(GRInstance.parse(each) for each in present),
            table=GRRoutingTable.parse(buried()),
            stored_table=buried(),
            holder=Holder.ORPHAN,
            started=at(-1),
        )
        plan = decide(seen, NOW)
        anew["status"] = plan.pool_status or anew["status"]
        return plan

    for present in ((), (instances[0],), instances):
        plan = look(*present)
        assert not plan.apply_table, "who comes later would start with a quarter of a share"
        assert "tableGeneration" not in anew["status"], "the pool would count as ready while nobody has a user"
    instances[1]["status"] = instances[0]["status"]
    plan = look(*instances)
    assert plan.apply_table
    assert plan.table_status is not None
    assert plan.table_status["generation"] == anew["status"]["tableGeneration"] == 9
    assert [row["weightPercent"] for row in plan.table_status["instances"]] == [100, 100]


def test_a_generation_is_remembered_while_the_pool_lives_and_a_moment_after() -> None:
    known = LastGenerations()
    known.note(KEY, 7)
    assert known.of(KEY, now_s=1e6) == 7
    known.buried(KEY, 8, now_s=1e6)
    assert known.of(KEY, now_s=1e6 + COLLECTOR_SECONDS - 1) == 8
    assert known.of(KEY, now_s=1e6 + COLLECTOR_SECONDS + 1) is None
    known.buried(KEY, 9, now_s=1e6)
    assert known.of(KEY, now_s=1e6 + 600.0) is None, "who deletes a tombstone ten minutes later is obeyed"
    known.note(KEY, None)
    assert known.of(KEY, now_s=2e6) is None


class OneTable:
    """An API server with at most one table, and a garbage collector that comes when the test says so."""

    def __init__(self, store: Store, table: dict[str, Any] | None) -> None:
        self.store, self.table, self.log = store, table, list[str]()
        self.refuses: Exception | None = None
        self.version = 100

    async def apply(self, resource: Any, desired: Any, *, resource_version: str, uid: str | None, **_: Any) -> Any:
        self.log.append("owner" if "ownerReferences" in desired["metadata"] else "no owner")
        if self.refuses is not None:
            raise self.refuses
        if self.table is None:
            if uid is not None:
                raise Gone("NotFound", "table")
            self.table = table_object(None, owners=())
            self.table["metadata"]["uid"] = "uid-made"
        self._check(resource_version if uid is not None else None)
        self.table = copy.deepcopy(self.table)
        self.table["metadata"].pop("ownerReferences", None)
        return self._written()

    async def apply_status(self, resource: Any, desired: Any, *, resource_version: str, **_: Any) -> Any:
        self.log.append("status")
        if self.table is None:
            raise Gone("NotFound", "table")
        self._check(resource_version)
        self.table = {**copy.deepcopy(self.table), "status": desired["status"]}
        return self._written()

    async def delete(self, resource: Any, key: Key, *, uid: str, resource_version: str) -> bool:
        self.log.append("delete")
        assert self.table is not None
        assert uid == uid_of(self.table)
        self._check(resource_version)
        self.collect()
        return True

    def collect(self) -> None:
        self.table = None
        self.store.drop(ROUTING_TABLES, KEY)

    def _check(self, version: str | None) -> None:
        assert self.table is not None
        if version is not None and version != self.table["metadata"]["resourceVersion"]:
            raise Conflict("Conflict", "table")

    def _written(self) -> dict[str, Any]:
        assert self.table is not None
        self.version += 1
        self.table["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.table)


class Scene:
    """The routing loop with one pool that is deleted."""

    def __init__(self, table: dict[str, Any] | None) -> None:
        self.store = Store([POOLS, INSTANCES, ROUTING_TABLES, ROUTING_POLICIES])
        if table is not None:
            self.store.upsert(ROUTING_TABLES, table)
        self.kube = OneTable(self.store, copy.deepcopy(table))
        self.seconds = 0.0
        clock = SimpleNamespace(now=lambda: at(self.seconds), monotonic=lambda: self.seconds)
        settings = SimpleNamespace(operator_namespace="grfleet-system")
        self.ctx = cast(Context, SimpleNamespace(kube=self.kube, store=self.store, clock=clock, settings=settings))
        self.loop = RoutingLoop(ParsedObjects())

    async def look(self) -> float | None:
        result = await self.loop.reconcile(KEY, self.ctx)
        return None if result is None else result.requeue_after


async def test_the_status_is_emptied_before_the_owner_goes_so_that_a_crash_between_leaves_it_to_the_collector() -> None:
    scene = Scene(table_object(live_status()))
    await scene.look()
    assert scene.kube.log == ["status", "no owner"]
    assert scene.kube.table is not None
    assert not scene.kube.table["status"].get("instances")
    assert scene.kube.table["status"]["generation"] == 2
    assert await scene.look() == TOMBSTONE_SECONDS
    assert scene.kube.log == ["status", "no owner"], "at rest nothing is written"


async def test_when_the_collector_was_first_the_tombstone_is_a_new_object() -> None:
    scene = Scene(table_object(live_status()))
    scene.kube.table = None  # the store does not know yet, and nobody has seen the pool alive
    with pytest.raises(Conflict):
        await scene.look()
    scene.kube.collect()
    await scene.look()
    assert scene.kube.table is not None
    assert scene.kube.table["metadata"]["uid"] == "uid-made"
    assert scene.kube.table["status"]["generation"] == 3


async def test_a_tombstone_that_the_collector_takes_comes_again_but_one_that_somebody_deletes_later_does_not() -> None:
    scene = Scene(table_object(live_status()))
    await scene.look()
    scene.kube.collect()
    await scene.look()
    assert scene.kube.table is not None
    assert scene.kube.table["status"]["generation"] == 3
    scene.seconds = COLLECTOR_SECONDS + 1
    scene.kube.collect()
    assert await scene.look() is None
    assert scene.kube.table is None


async def test_a_pool_that_goes_right_after_its_first_table_and_the_collector_with_it_leaves_a_tombstone_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, pool = Scene(None), pool_object()
    scene.store.upsert(POOLS, pool)

    async def publish(*_: Any) -> bool:
        metadata = {**pool["metadata"], "resourceVersion": "11"}
        scene.store.upsert(POOLS, {**pool, "metadata": metadata, "status": {"tableGeneration": 1}})  # no event follows
        return True

    monkeypatch.setattr(routing_controller, "execute", publish)
    await scene.look()
    scene.store.drop(POOLS, KEY)
    await scene.look()
    assert scene.kube.table is not None
    assert scene.kube.table["status"]["generation"] == 2


async def test_a_table_whose_pool_could_not_be_told_of_it_any_more_leaves_a_tombstone_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(None)
    scene.store.upsert(POOLS, pool_object())

    async def publish(*_: Any) -> bool:
        scene.store.upsert(ROUTING_TABLES, table_object({"generation": 4, "instances": [{"name": "a"}]}))
        raise Conflict("Conflict", "the pool is being deleted")

    monkeypatch.setattr(routing_controller, "execute", publish)
    with pytest.raises(Conflict):
        await scene.look()
    scene.store.drop(POOLS, KEY)
    scene.kube.collect()
    await scene.look()
    assert scene.kube.table is not None
    assert scene.kube.table["status"]["generation"] == 5


async def test_in_a_namespace_that_goes_too_no_tombstone_is_insisted_on() -> None:
    for refusal in (Gone("NamespaceTerminating", "namespace is being terminated"), Gone("NotFound", "no such namespace")):
        scene = Scene(None)
        scene.loop._generations.note(KEY, 4)
        scene.kube.refuses = refusal
        assert await scene.look() is None


async def test_after_its_week_the_tombstone_is_deleted_by_whoever_leads_then() -> None:
    scene = Scene(buried())
    scene.seconds = TOMBSTONE_SECONDS + 1
    assert await scene.look() is None
    assert scene.kube.log == ["delete"]
    assert await scene.look() is None


def test_a_table_that_names_instances_it_has_no_slots_for_is_no_tombstone() -> None:
    broken = {**live_status(), "slots": "AAAA"}
    with pytest.raises(ProtocolViolation):
        want_of(table_from(json.dumps(table_object(broken)).encode()).table)


@pytest.mark.parametrize(
    ("said", "table", "generation"),
    [
        (None, None, None),
        (4, None, 4),
        (4, {"generation": 7}, 7),
        (9, {"generation": 7}, 9),
        (None, {"generation": 7}, 7),
        (4, {}, 4),
    ],
)
@pytest.mark.parametrize("owners", [(POOL_OWNER,), ({**POOL_OWNER, "name": "other", "uid": "uid-other"},)])
def test_the_highest_generation_is_that_of_the_pool_and_of_its_own_table_and_of_nobody_elses(
    said: int | None, table: dict[str, Any] | None, generation: int | None, owners: tuple[dict[str, Any], ...]
) -> None:
    store = Store((POOLS, ROUTING_TABLES))
    assert generation_of(KEY, store) is None
    store.upsert(POOLS, {**pool_object(), "status": {"tableGeneration": said} if said is not None else {}})
    if table is not None:
        store.upsert(ROUTING_TABLES, table_object(table, owners=owners))
    assert generation_of(KEY, store) == (generation if owners == (POOL_OWNER,) else said)
