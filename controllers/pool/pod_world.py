"""What the pool loop sees of a pool of pods beyond its instances: pods, Deployment, routing table, policy, and what was refused.

Everything comes from the store and from the loop's own memory, so a look costs no request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controllers.holder import Holder, holder_of
from controllers.lookup import Found, routing_policy_of
from controllers.parsed import ParsedObjects
from controllers.pool.fronts import fronts_of
from controllers.pool.pods import Pod, adopted_labels, carries, is_managed, pods_of
from controllers.pool.workload import AgentImage
from controllers.runtime.loop import Context
from controllers.runtime.resources import (
    DEPLOYMENTS,
    INSTANCES,
    POOL_LABEL,
    POOLS,
    ROUTING_POLICIES,
    ROUTING_TABLES,
    Key,
    Object,
    ResourceType,
)
from controllers.runtime.store import Store
from crds import GRServingPool, RoutingPolicySpec
from policies.routing.warmup import FULL_WEIGHT_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The API server's answer to a Deployment; it holds for that body only."""

    digest: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The body that was applied last, and the Deployment that came of it, both by digest.

    The API server normalises what it takes (quantities, for example), so that a body need not look like what came of it.
    Remembering both tells whether somebody has changed the Deployment since, without asking.
    """

    body: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWorld:
    """The world of a pool of pods.

    Attributes
    ----------
    pods
        The pool's pods that have not ended.
    elsewhere
        Names of pods that carry the labels of this adopted pool and belong to another pool, with that pool's name.
    shared
        Names of pods of this adopted pool that another adopted pool asks for too, with that pool's name.
    weights
        Weight in the routing table, percent, by uid of the GRInstance.
    policy
        The routing policy in force; None when the named one cannot be used.
    resident
        Bytes of cached state by uid of the GRInstance, where they were measured a short while ago.
    quiet_seconds
        For how long this process has seen the Deployment as it is.
    fronts
        The InferencePools that select its pods, as the pool's status has them.
    """

    pods: tuple[Pod, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    deployment: Object | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    policy: RoutingPolicySpec | None = None
    resident: Mapping[str, int] = field(default_factory=dict)
    agent: AgentImage = field(default_factory=AgentImage)
    refusal: Refusal | None = None
    applied: Applied | None = None
    quiet_seconds: float = 0.0
    fronts: tuple[Mapping[str, Any], ...] = ()


def look_at_pods(
    ctx: Context,
    key: Key,
    pool: GRServingPool,
    instance_uids: tuple[str, ...],
    *,
    parsed: ParsedObjects,
    resident_bytes: Callable[[str], int | None],
    refusal: Refusal | None,
    applied: Applied | None,
    quiet_seconds: Callable[[Object | None], float] = lambda _: 0.0,
    inference_pools: Iterable[Object] = (),
) -> PodWorld | None:
    """Read the world of a pool of pods; None for an external pool."""
    if pool.spec.instances.external is not None:
        return None
    store = ctx.store
    pods, elsewhere, shared = _claims(store, key, pool)
    measured = {uid: resident_bytes(uid) for uid in instance_uids}
    deployment = _get(store, DEPLOYMENTS, key) if pool.spec.instances.managed is not None else None
    return PodWorld(
        pods=pods,
        elsewhere=elsewhere,
        shared=shared,
        deployment=deployment,
        weights=_weights(_get(store, ROUTING_TABLES, key), store.get(POOLS, key)),
        policy=_policy(ctx, pool, parsed),
        resident={uid: value for uid, value in measured.items() if value is not None},
        agent=AgentImage(reference=ctx.settings.agent_image, pull_policy=ctx.settings.agent_pull_policy),
        refusal=refusal,
        applied=applied,
        quiet_seconds=quiet_seconds(deployment),
        fronts=tuple(fronts_of(key, pods, inference_pools, store)),
    )


def digest_of(value: Any) -> str:
    """A short digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def outcome_of(deployment: Object) -> str:
    """Digest of what came of an apply: everything that we may own, but not the number of replicas."""
    metadata = {name: deployment["metadata"].get(name) for name in ("labels", "ownerReferences")}
    return digest_of([metadata, {name: value for name, value in deployment["spec"].items() if name != "replicas"}])


def _get(store: Store, resource: ResourceType, key: Key) -> Object | None:
    return store.get(resource, key) if resource in store.resources else None


def _claims(store: Store, key: Key, pool: GRServingPool) -> tuple[tuple[Pod, ...], dict[str, str], dict[str, str]]:
    """(own pods, pods that another pool has, own pods that another pool asks for too)."""
    found = pods_of(store, pool)
    if pool.spec.instances.adopted is None:
        return found, {}, {}
    own, elsewhere, shared = [], {}, {}
    rivals = [(name, labels) for name, labels in adopted_labels(store, key.namespace) if name != key.name]
    for pod in found:
        manager = _manager(store, key.namespace, pod)
        asking = [name for name, labels in rivals if carries(pod.stored, labels)]
        first = manager or _incumbent(store, key.namespace, pod, [*asking, key.name]) or min([*asking, key.name])
        if first != key.name:
            elsewhere[pod.name] = first
            continue
        own.append(pod)
        if asking:
            shared[pod.name] = asking[0]
    return tuple(own), elsewhere, shared


def _incumbent(store: Store, namespace: str, pod: Pod, pools: Iterable[str]) -> str | None:
    """Name of the one of the pools that has the pod already: a new pool takes nobody's users."""
    instance = _get(store, INSTANCES, Key(namespace, pod.name))
    if instance is None or (instance["spec"].get("source") or {}).get("podUID") != pod.uid:
        return None
    holder = str(instance["spec"]["poolRef"])
    return holder if holder in pools else None


def _manager(store: Store, namespace: str, pod: Pod) -> str | None:
    """Name of the managed pool that the pod belongs to."""
    name = (pod.stored["metadata"].get("labels") or {}).get(POOL_LABEL)
    if name is None or not is_managed(pod.stored, name):
        return None
    found = store.get(POOLS, Key(namespace, name))
    return name if found is not None and "managed" in found["spec"]["instances"] else None


def _weights(table: Object | None, pool: Object | None) -> dict[str, int]:
    if table is None or pool is None or holder_of(table, pool) is not Holder.POOL:
        return {}
    rows = (table.get("status") or {}).get("instances") or ()
    return {str(row["uid"]): int(row["weightPercent"]) for row in rows}


def _policy(ctx: Context, pool: GRServingPool, parsed: ParsedObjects) -> RoutingPolicySpec | None:
    if ROUTING_POLICIES not in ctx.store.resources:
        return RoutingPolicySpec()
    found = routing_policy_of(ctx, pool, parsed=parsed)
    return found.spec if isinstance(found, Found) else None


def warm_uids(world: PodWorld) -> frozenset[str]:
    """Uids of the instances that have their full share of users."""
    return frozenset(uid for uid, weight in world.weights.items() if weight >= FULL_WEIGHT_PERCENT)
