"""Pools, instances and tables as the routing loop observes them, and what a plan says, for the tests of its decisions."""

from __future__ import annotations

from typing import Any

from loop_objects import NOW, at, condition_item, instance_object, pool_object

from controllers.lookup import Found, Lookup
from controllers.routing.decide import Plan, decide
from controllers.routing.observe import Observation, table_holder
from controllers.runtime.conditions import find_condition
from crds import GRInstance, GRRoutingTable, GRServingPool, RoutingPolicySpec
from crds.instance import PolicySource
from crds.routing_policy import Warmup

POLICY = Found(spec=RoutingPolicySpec(warmup=Warmup(max_seconds=0)), name="default", source=PolicySource.DEFAULTS)
READY = ("True", "InstanceReady")
SILENT = ("False", "AgentUnreachable")


def instance(
    name: str, word: tuple[str, str] | None = READY, *, since: float = 0, uid: str = "", hit: int | None = None
) -> dict[str, Any]:
    status: dict[str, Any] = {}
    if word is not None:
        status["conditions"] = [condition_item("Ready", *word, since=at(since))]
    if hit is not None:
        status["caches"] = {"kvHitPercent": hit}
    made = instance_object(f"pool-{name}", pool_object(), **status)
    if uid:
        made["metadata"]["uid"] = uid
    return made


def table_object(status: dict[str, Any], *, owner: str | None = "uid-pool") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "pool", "namespace": "team", "uid": "uid-table", "generation": 1, "resourceVersion": "30"}
    if owner:
        reference = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRServingPool", "name": "pool", "uid": owner}
        metadata["ownerReferences"] = [reference]
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRRoutingTable",
        "metadata": metadata,
        "spec": {"poolRef": "pool"},
        "status": status,
    }


def observed(
    *instances: dict[str, Any],
    table: dict[str, Any] | None = None,
    policy: Lookup[RoutingPolicySpec] = POLICY,
    started: float = -3600,
    born: float | None = None,
    pool_status: dict[str, Any] | None = None,
    **spec: Any,
) -> Observation:
    pool = pool_object(**spec)
    if born is not None:
        pool["metadata"]["creationTimestamp"] = at(born).strftime("%Y-%m-%dT%H:%M:%SZ")
    if pool_status:
        pool["status"] = pool_status
    parsed = GRRoutingTable.parse(table) if table is not None else None
    return Observation(
        pool=GRServingPool.parse(pool),
        stored=pool,
        policy=policy,
        instances=tuple(GRInstance.parse(each) for each in instances),
        table=parsed,
        stored_table=table,
        holder=table_holder(table, pool),
        started=at(started),
    )


def published(*instances: dict[str, Any], policy: Lookup[RoutingPolicySpec] = POLICY) -> dict[str, Any]:
    """The table object after a first plan."""
    status = decide(observed(*instances, policy=policy), NOW).table_status
    assert status is not None
    return table_object(dict(status))


def names(plan: Plan) -> list[str]:
    assert plan.table_status is not None
    return [row["name"] for row in plan.table_status["instances"]]


def said(plan: Plan) -> tuple[str, str]:
    assert plan.pool_status is not None
    item = find_condition(plan.pool_status["conditions"], "TablePublished")
    assert item is not None
    return item["status"], item["reason"]


def churn(plan: Plan) -> tuple[str, str]:
    assert plan.pool_status is not None
    item = find_condition(plan.pool_status["conditions"], "ChurnLimited")
    assert item is not None
    return item["status"], item["reason"]
