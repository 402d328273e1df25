"""Would this server-side apply change anything? Answered from the object at hand, so that no-ops are never sent.

The API server records which fields a manager applied (``managedFields``). An apply is a no-op exactly when that set is
the set of fields in the new body and each of them has the wanted value; both directions matter, because leaving a
field out is how a manager removes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from controllers.runtime.resources import Object

_IDENTITY = frozenset({"name", "namespace", "uid", "resourceVersion"})


def already_applied(desired: Object, current: Object, *, field_manager: str, subresource: str | None = None) -> bool:
    """True if applying ``desired`` as ``field_manager`` to ``current`` would change neither a value nor an owner.

    A doubt counts as False: the worst case is a request that the server answers with an unchanged resourceVersion.
    """
    fields = _owned_fields(current, field_manager, subresource)
    if fields is None:
        return False
    wanted = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in desired.get("metadata", {}).items() if key not in _IDENTITY}
    if metadata:
        wanted["metadata"] = metadata
    return _matches(wanted, current, fields)


def owns(current: Object, path: Sequence[str], *, field_manager: str, subresource: str | None = None) -> bool:
    """True if the manager has applied the field at `path`, a sequence of object keys."""
    fields = _owned_fields(current, field_manager, subresource)
    for name in path:
        if fields is None:
            return False
        fields = fields.get(f"f:{name}")
    return fields is not None


def _owned_fields(current: Object, field_manager: str, subresource: str | None) -> Mapping[str, Any] | None:
    for entry in current.get("metadata", {}).get("managedFields", ()):
        if (
            entry.get("manager") == field_manager
            and entry.get("operation") == "Apply"
            and entry.get("subresource") == subresource
        ):
            fields = entry.get("fieldsV1", {})
            return fields if isinstance(fields, Mapping) else None
    return None


def _matches(desired: Any, current: Any, fields: Mapping[str, Any]) -> bool:
    if not fields:
        return bool(desired == current)
    if isinstance(desired, Mapping):
        return isinstance(current, Mapping) and _map_matches(desired, current, fields)
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return isinstance(current, Sequence) and _list_matches(desired, current, fields)
    return False


def _map_matches(desired: Mapping[str, Any], current: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    owned = {name[2:]: below for name, below in fields.items() if name.startswith("f:")}
    return set(owned) == set(desired) and all(
        name in current and _matches(desired[name], current[name], below) for name, below in owned.items()
    )


def _list_matches(desired: Sequence[Any], current: Sequence[Any], fields: Mapping[str, Any]) -> bool:
    owned = {name: below for name, below in fields.items() if name != "."}
    if len(owned) != len(desired):
        return False
    wanted, found = _Items(desired), _Items(current)
    return all(_item_matches(name, below, wanted, found) for name, below in owned.items())


def _item_matches(name: str, below: Mapping[str, Any], desired: _Items, current: _Items) -> bool:
    mark, _, text = name.partition(":")
    if mark == "v":
        value = json.loads(text)
        return desired.has(value) and current.has(value)
    if mark == "k":
        key = json.loads(text)
        wanted, found = desired.at(key), current.at(key)
        return wanted is not None and found is not None and _matches(wanted, found, below)
    return False


class _Items:
    """A list whose items are found by value or by some of their fields. People write lists of ten thousand items, and who walks
    through one for each of its items holds up everybody else for minutes."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items
        self._indexes: dict[tuple[str, ...] | None, dict[Any, Any]] = {}

    def has(self, value: Any) -> bool:
        """Whether the value is one of the items."""
        return _frozen(value) in self._index(None)

    def at(self, key: Mapping[str, Any]) -> Any | None:
        """The first item with these fields, or None."""
        names = tuple(key)
        return self._index(names).get(_frozen([key[name] for name in names]))

    def _index(self, names: tuple[str, ...] | None) -> dict[Any, Any]:
        index = self._indexes.get(names)
        if index is None:
            index = self._indexes[names] = {}
            for item in self._items:
                if names is None:
                    index.setdefault(_frozen(item), item)
                elif isinstance(item, Mapping):
                    index.setdefault(_frozen([item.get(name) for name in names]), item)
        return index


def _frozen(value: Any) -> Any:
    """The value as a key: equal for what is equal."""
    if isinstance(value, Mapping):
        return frozenset((name, _frozen(each)) for name, each in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
