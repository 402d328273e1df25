"""Which objects an event concerns: the instance itself or its pool, those of a pool with a new spec, those under a new policy or
model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controllers.lookup import DEFAULT
from controllers.model_lookup import policies_concerned
from controllers.runtime.resources import ALLOCATOR_MODELS, HBM_POLICIES, INSTANCES, POOLS, Key, Object, key_of
from controllers.runtime.store import EventType, Store, WatchEvent


def instances_for(event: WatchEvent, store: Store) -> Iterable[Key]:
    """Keys of the instances to look at."""
    if event.resource == INSTANCES:
        return (event.key,)
    if event.resource == ALLOCATOR_MODELS:
        return [key for pool in pools_of_model(event, store) for key in _of_pool(store, pool)]
    if not spec_changed(event):
        return ()
    if event.resource == POOLS:
        return _of_pool(store, event.key)
    if event.resource == HBM_POLICIES:
        return [key for pool in pools_naming(event.key, store, field="hbm") for key in _of_pool(store, pool)]
    return ()


def pools_of_model(event: WatchEvent, store: Store) -> Iterator[Key]:
    """Pools whose policy names the allocator model of the event, when it comes, goes, or may run from now on or no longer."""
    for policy in policies_concerned(event, store):
        yield from pools_naming(policy, store, field="hbm")


def pool_of(event: WatchEvent) -> tuple[Key, ...]:
    """Key of the pool that the instance of an event belongs to; nothing while the object has no spec."""
    spec = event.obj.get("spec")
    return (Key(event.key.namespace, str(spec["poolRef"])),) if spec else ()


def pools_naming(policy: Key, store: Store, *, field: str) -> Iterator[Key]:
    """Pools that may resolve to this policy; for the name default those of every namespace, as the operator's may be meant."""
    for pool in store.all(POOLS, None if policy.name == DEFAULT else policy.namespace):
        if _policy_name(pool, field) == policy.name:
            yield key_of(pool)


def spec_changed(event: WatchEvent) -> bool:
    """Whether there is a new spec to act on; status writes and resyncs bring none."""
    if event.type is EventType.MODIFIED and event.old is not None:
        old, new = event.old["metadata"], event.obj["metadata"]
        return any(old.get(field) != new.get(field) for field in ("generation", "deletionTimestamp"))
    return event.type is not EventType.RESYNC


def _of_pool(store: Store, pool: Key) -> list[Key]:
    return [key_of(instance) for instance in store.of_pool(INSTANCES, pool)]


def _policy_name(pool: Object, field: str) -> str:
    return str((pool["spec"].get("policies") or {}).get(field) or DEFAULT)
