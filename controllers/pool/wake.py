"""Which pools an event concerns: what they own, the pods they ask for, the table and the policy that they follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controllers.pool.observe import pools_that_may_want
from controllers.pool.pods import adopting_pools
from controllers.runtime.resources import (
    DEPLOYMENTS,
    INSTANCES,
    PODS,
    POOL_LABEL,
    POOLS,
    ROUTING_POLICIES,
    ROUTING_TABLES,
    Key,
    Object,
)
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.wake import pool_of, pools_naming, spec_changed


def pools_for(event: WatchEvent, store: Store) -> Iterable[Key]:
    """Keys of the pools to look at; some may not exist."""
    if event.resource == POOLS:
        return (event.key, *_rivals(event, store))
    if event.resource == INSTANCES:
        names = {key.name for key in pool_of(event)}
        if event.type is EventType.DELETED:
            names |= set(pools_that_may_want(event.key.name))
        return [Key(event.key.namespace, name) for name in names]
    if event.resource == PODS:
        return set(_of_pod(event, store))
    if event.resource == DEPLOYMENTS:
        return (event.key,)  # a Deployment is called as its pool
    if event.resource == ROUTING_TABLES:
        return [key for key in pool_of(event) if _has_pods(store.get(POOLS, key))]
    if event.resource == ROUTING_POLICIES and spec_changed(event):
        return [key for key in pools_naming(event.key, store, field="routing") if _has_pods(store.get(POOLS, key))]
    return ()


def _has_pods(pool: Object | None) -> bool:
    """Whether the pool follows table and policy at all; for external ones others do."""
    return pool is not None and "external" not in pool["spec"]["instances"]


def _of_pod(event: WatchEvent, store: Store) -> Iterator[Key]:
    """The pool of its label, and those that ask for the labels that it has or had."""
    states = [state for state in (event.obj, event.old) if state is not None]
    names = {_label(state) for state in states} | {name for name, _ in adopting_pools(store, event.key.namespace, states)}
    yield from (Key(event.key.namespace, name) for name in names if name)


def _rivals(event: WatchEvent, store: Store) -> Iterator[Key]:
    """Adopted pools of the namespace, when another one comes, goes, or asks for other labels."""
    if _adopts(event.obj) and (event.type is EventType.DELETED or spec_changed(event)):
        for pool in store.in_namespace(POOLS, event.key.namespace):
            if _adopts(pool):
                yield Key(event.key.namespace, pool["metadata"]["name"])


def _adopts(pool: Object) -> bool:
    return "adopted" in ((pool.get("spec") or {}).get("instances") or {})


def _label(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(POOL_LABEL, ""))
