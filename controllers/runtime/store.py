"""The last known state of every watched object, fed by watch events and by our own lists.

The watch library never reports objects that vanished while its stream was down, so a store that only listened would
keep ghosts. The store therefore numbers every touch of a key; a sweep (see ``sweep.py``) takes the number before it
lists, and afterwards drops whatever the list lacks and nobody touched since.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from controllers.runtime.projection import PROJECTIONS
from controllers.runtime.resources import DEPLOYMENTS, PODS, POOL_LABEL, POOLS, Key, Object, ResourceType, key_of, uid_of

_logger = logging.getLogger(__name__)

Indexer = Callable[[Object], Iterable[Hashable]]

BY_OWNER = "owner"
"""Index of every resource: its namespace and the uid of each owner reference. Owners have no say beyond their namespace: who may
write in one could else put an object of theirs among those of another."""
BY_POOL = "pool"
"""Index of every resource: Key of the pool that ``spec.poolRef`` names; of pods and Deployments the one that our label names."""
BY_NAMESPACE = "namespace"
"""Index of pods and pools: their namespace."""
_LABELLED = frozenset({PODS, DEPLOYMENTS})
_BY_NAMESPACE = frozenset({PODS, POOLS})


class EventType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    RESYNC = "RESYNC"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of one object. For DELETED ``obj`` is the last known state; ``old`` is the state before, if any."""

    type: EventType
    resource: ResourceType
    key: Key
    obj: Object
    old: Object | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A comparison under way: what the store's counter said when it began, and the keys the list has shown so far."""

    resource: ResourceType
    since: int
    seen: set[Key]


Listener = Callable[[WatchEvent], None]


class Store:
    """Objects by resource type and key, with indexes and a mark per resource type once it has been listed whole."""

    def __init__(self, resources: Iterable[ResourceType]) -> None:
        self._objects: dict[ResourceType, dict[Key, Object]] = {resource: {} for resource in resources}
        self._synced: set[ResourceType] = set()
        self._sequence = 0
        self._touched: dict[tuple[ResourceType, Key], int] = {}
        self._listeners: list[Listener] = []
        self._indexers: dict[ResourceType, dict[str, Indexer]] = {resource: _indexers_of(resource) for resource in self._objects}
        self._indexes: dict[tuple[ResourceType, str], defaultdict[Hashable, set[Key]]] = {
            (resource, name): defaultdict(set) for resource, indexers in self._indexers.items() for name in indexers
        }

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def resources(self) -> tuple[ResourceType, ...]:
        """The resource types it holds."""
        return tuple(self._objects)

    def get(self, resource: ResourceType, key: Key) -> Object | None:
        """The object, or None."""
        return self._objects[resource].get(key)

    def all(self, resource: ResourceType, namespace: str | None = None) -> list[Object]:
        """All objects of a resource type (in one namespace), in the order of their keys."""
        found = self._objects[resource]
        return [found[key] for key in sorted(found) if namespace is None or key.namespace == namespace]

    def keys(self, resource: ResourceType) -> list[Key]:
        """All keys of a resource type, sorted."""
        return sorted(self._objects[resource])

    def by_index(self, resource: ResourceType, index: str, value: Hashable) -> list[Object]:
        """Objects for which the indexer returned ``value``, in the order of their keys."""
        found = self._objects[resource]
        return [found[key] for key in sorted(self._indexes[(resource, index)].get(value, ()))]

    def owned_by(self, resource: ResourceType, owner: Object) -> list[Object]:
        """Objects of ``resource`` in the namespace of ``owner`` that name it in their owner references."""
        return self.by_index(resource, BY_OWNER, (key_of(owner).namespace, uid_of(owner)))

    def of_pool(self, resource: ResourceType, pool: Key) -> list[Object]:
        """Objects of ``resource`` that name the pool: by ``spec.poolRef``, pods and Deployments by our label."""
        return self.by_index(resource, BY_POOL, pool)

    def in_namespace(self, resource: ResourceType, namespace: str) -> list[Object]:
        """Pods or pools of a namespace, in the order of their keys; of other resources there is no such index."""
        return self.by_index(resource, BY_NAMESPACE, namespace)

    def count(self, resource: ResourceType) -> int:
        """How many objects are known."""
        return len(self._objects[resource])

    # -- set-up -------------------------------------------------------------------------------------------------

    def add_index(self, resource: ResourceType, name: str, indexer: Indexer) -> None:
        """Index a resource type by further values; existing objects are indexed at once."""
        self._indexers[resource][name] = indexer
        index: defaultdict[Hashable, set[Key]] = defaultdict(set)
        self._indexes[(resource, name)] = index
        for key, obj in self._objects[resource].items():
            for value in indexer(obj):
                index[value].add(key)

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` after each change, in the event loop; it must not block."""
        self._listeners.append(listener)

    # -- sync marks ---------------------------------------------------------------------------------------------

    def mark_synced(self, resource: ResourceType) -> None:
        """Say that one whole list of the resource type is in."""
        self._synced.add(resource)

    def unsynced(self) -> tuple[ResourceType, ...]:
        """Resource types that have not been listed whole yet."""
        return tuple(resource for resource in self._objects if resource not in self._synced)

    # -- writing ------------------------------------------------------------------------------------------------

    def is_news(self, resource: ResourceType, event_type: str | None, obj: Mapping[str, Any]) -> bool:
        """Whether `observe` would make anything of the event; False for what is stored already, or older."""
        if event_type == "DELETED":
            return True
        old = self._objects[resource].get(key_of(obj))
        return old is None or _newer(obj, old)

    def observe(self, resource: ResourceType, event_type: str | None, obj: Mapping[str, Any]) -> None:
        """Take in one raw watch event; type None is the watch library's word for "seen in a list"."""
        if event_type == "DELETED":
            self.drop(resource, key_of(obj), last=obj)
        else:
            self._take(resource, obj, kept=lambda: _kept(resource, _with_common_names(obj)))

    def upsert(self, resource: ResourceType, obj: Mapping[str, Any]) -> None:
        """Add or replace an object, unless what is stored is the same or newer."""
        self._take(resource, obj, kept=lambda: _kept(resource, obj))

    def _take(self, resource: ResourceType, obj: Mapping[str, Any], *, kept: Callable[[], Object]) -> None:
        """Take an object in; `kept` makes of it what is stored, which an old one is not worth."""
        key = key_of(obj)
        self._touch(resource, key)
        old = self._objects[resource].get(key)
        if old is not None and not _newer(obj, old):
            return
        new = kept()
        if old is not None and uid_of(old) != uid_of(new):
            self.drop(resource, key, last=old)  # deleted and created again between two looks
            old = None
        if old is not None and resource in PROJECTIONS and _same_but_for_version(old, new):
            self._objects[resource][key] = new
            return  # what has changed is nothing that anybody here reads
        self._unindex(resource, key, old)
        self._objects[resource][key] = new
        self._index(resource, key, new)
        self._tell(WatchEvent(EventType.MODIFIED if old is not None else EventType.ADDED, resource, key, new, old))

    def drop(self, resource: ResourceType, key: Key, *, last: Mapping[str, Any] | None = None) -> None:
        """Forget an object. A late DELETED of a predecessor (another uid) is ignored."""
        self._touch(resource, key)
        old = self._objects[resource].get(key)
        if old is None or (last is not None and uid_of(last) != uid_of(old)):
            return
        del self._objects[resource][key]
        self._unindex(resource, key, old)
        self._tell(WatchEvent(EventType.DELETED, resource, key, last or old, old))

    # -- sweeping -----------------------------------------------------------------------------------------------

    def begin_sweep(self, resource: ResourceType) -> Sweep:
        """Start to compare the resource type with a list; call this before the list is requested."""
        return Sweep(resource, self._sequence, set())

    def sweep_page(self, sweep: Sweep, listed: Iterable[Object]) -> None:
        """Take in one page of the list. Keys touched since the beginning are left alone: the watch knows better."""
        for obj in listed:
            key = key_of(obj)
            sweep.seen.add(key)
            if not self._touched_since(sweep, key):
                self.upsert(sweep.resource, obj)

    def end_sweep(self, sweep: Sweep, scope: frozenset[str] = frozenset()) -> int:
        """Drop what the list lacked and nobody has touched since; returns how many ghosts that were.

        ``scope`` is the set of namespaces that was listed, empty for all.
        """
        resource = sweep.resource
        ghosts = [
            key
            for key in self._objects[resource]
            if key not in sweep.seen and (not scope or key.namespace in scope) and not self._touched_since(sweep, key)
        ]
        for key in ghosts:
            self.drop(resource, key)
        self._forget_touches(resource)
        return len(ghosts)

    def resync_events(self, resource: ResourceType) -> Iterator[WatchEvent]:
        """One RESYNC event for each known object; nothing has changed."""
        for key in self.keys(resource):
            obj = self._objects[resource].get(key)
            if obj is not None:
                yield WatchEvent(EventType.RESYNC, resource, key, obj, obj)

    # -- inside -------------------------------------------------------------------------------------------------

    def _touched_since(self, sweep: Sweep, key: Key) -> bool:
        return self._touched.get((sweep.resource, key), 0) > sweep.since

    def _touch(self, resource: ResourceType, key: Key) -> None:
        self._sequence += 1
        self._touched[(resource, key)] = self._sequence

    def _forget_touches(self, resource: ResourceType) -> None:
        """Keep touch numbers of live objects only, or deleted names would pile up."""
        live = self._objects[resource]
        for kind, key in [entry for entry in self._touched if entry[0] == resource and entry[1] not in live]:
            del self._touched[(kind, key)]

    def _index(self, resource: ResourceType, key: Key, obj: Object) -> None:
        for name, indexer in self._indexers[resource].items():
            for value in indexer(obj):
                self._indexes[(resource, name)][value].add(key)

    def _unindex(self, resource: ResourceType, key: Key, obj: Object | None) -> None:
        if obj is None:
            return
        for name, indexer in self._indexers[resource].items():
            index = self._indexes[(resource, name)]
            for value in indexer(obj):
                index[value].discard(key)
                if not index[value]:
                    del index[value]

    def _tell(self, event: WatchEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _logger.exception("a listener of %s failed", event.resource)


def _newer(new: Mapping[str, Any], old: Object) -> bool:
    """Compare resourceVersions as the numbers they are in practice; if they are not numbers, trust the newcomer."""
    left, right = str(new["metadata"].get("resourceVersion", "")), str(old["metadata"].get("resourceVersion", ""))
    if left.isdigit() and right.isdigit():
        return int(left) > int(right)
    return left != right


def _kept(resource: ResourceType, obj: Mapping[str, Any]) -> Object:
    """What is kept of an object: of those that are not ours only what somebody reads."""
    projection = PROJECTIONS.get(resource)
    return _trimmed(obj if projection is None else projection(obj))


def _same_but_for_version(old: Object, new: Object) -> bool:
    left, right = ({**each["metadata"], "resourceVersion": ""} for each in (old, new))
    return left == right and all(old.get(part) == new.get(part) for part in ("spec", "status"))


def _trimmed(obj: Mapping[str, Any]) -> Object:
    """Drop what other managers recorded about their fields: it is half of an object and nobody here reads it.

    What the instances of a pool have in common is kept once, our own records, labels, the owner and the intent: nobody changes a
    stored object.
    """
    metadata = dict(obj["metadata"])
    managed = [_record(each) for each in metadata.pop("managedFields", ()) if str(each.get("manager")).startswith("grfleet-")]
    if managed:
        metadata["managedFields"] = managed
    for name in ("labels", "ownerReferences"):
        if name in metadata:
            metadata[name] = _shared(metadata[name])
    spec = obj.get("spec")
    if isinstance(spec, Mapping) and "intent" in spec:
        return {**obj, "metadata": metadata, "spec": {**spec, "intent": _shared(spec["intent"])}}
    return {**obj, "metadata": metadata}


def _record(entry: Mapping[str, Any]) -> Any:
    """What a manager owns, without the time, which differs from object to object and which nobody reads."""
    return _shared({name: value for name, value in entry.items() if name not in ("time", "fieldsType")})


def _shared(value: Any) -> Any:
    """The same value, as the one object that stands for all that are equal to it."""
    return _decoded(msgspec.json.encode(value))


@lru_cache(maxsize=4096)
def _decoded(text: bytes) -> Any:
    return msgspec.json.decode(text)


def _with_common_names(obj: Object) -> Object:
    """The same object with field names that are kept once: the watch library makes new ones for each event."""
    plain: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return plain


def _indexers_of(resource: ResourceType) -> dict[str, Indexer]:
    """The indexes that every store has for a resource."""
    indexers: dict[str, Indexer] = {BY_OWNER: _owners, BY_POOL: _labelled_pool if resource in _LABELLED else _pool}
    return {**indexers, BY_NAMESPACE: _namespace} if resource in _BY_NAMESPACE else indexers


def _owners(obj: Object) -> Iterable[Hashable]:
    metadata = obj["metadata"]
    return [(metadata.get("namespace", ""), reference["uid"]) for reference in metadata.get("ownerReferences", ())]


def _pool(obj: Object) -> Iterable[Hashable]:
    name = (obj.get("spec") or {}).get("poolRef")
    return [Key(obj["metadata"].get("namespace", ""), name)] if name else ()


def _labelled_pool(obj: Object) -> Iterable[Hashable]:
    name = (obj["metadata"].get("labels") or {}).get(POOL_LABEL)
    return [Key(obj["metadata"].get("namespace", ""), name)] if name else ()


def _namespace(obj: Object) -> Iterable[Hashable]:
    return [obj["metadata"].get("namespace", "")]
