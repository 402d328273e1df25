"""Which pools an event concerns: only what changes who is measured or what is allowed; the clock brings the rest.

Instances report all the time, and capacity is decided from measurements that come at their own pace.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.resources import INSTANCES, POOLS, Key, Object
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.wake import pool_of, pools_naming, spec_changed


def keys_for(event: WatchEvent, store: Store) -> Iterable[Key]:
    """Keys of the pools to look at."""
    if event.resource == POOLS:
        return (event.key,) if event.type in (EventType.DELETED, EventType.RESYNC) or spec_changed(event) else ()
    if event.resource == INSTANCES:
        return pool_of(event) if spec_changed(event) or _readiness_changed(event) else ()
    return tuple(pools_naming(event.key, store, field="preInference")) if spec_changed(event) else ()


def _readiness_changed(event: WatchEvent) -> bool:
    if event.type is not EventType.MODIFIED or event.old is None:
        return False
    return _ready(event.old) != _ready(event.obj)


def _ready(instance: Object) -> str:
    return str((find_condition(conditions_of(instance), "Ready") or {}).get("status", ""))
