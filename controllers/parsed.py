"""Reads stored objects as models, once for each version of an object.

Loops look far more often than objects change, and validating is most of what a look costs. The store replaces an object
whenever it changes and nobody changes one in place, so the identity of the stored mapping says whether the model is still
right. What the store keeps once for all instances of a pool is validated once and kept once here as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from controllers.runtime.resources import Key, Object, key_of
from crds import GRInstance
from crds.instance import Intent
from crds.types import OwnerReference, Resource

R = TypeVar("R", bound=Resource)
KEPT = 2048
"""A model of an instance takes 12 KB and a twenty-fifth of a millisecond to make: worth keeping for what is read in a row."""
PARTS_KEPT = 1024
ALIKE: Mapping[type[Resource], tuple[tuple[str, str, TypeAdapter[Any]], ...]] = {
    GRInstance: (
        ("spec", "intent", TypeAdapter(Intent)),
        ("metadata", "ownerReferences", TypeAdapter(tuple[OwnerReference, ...])),
    )
}
"""By kind, what instances of a pool have in common and the store keeps once (see `store`): where it is, and its model."""


class ParsedObjects:
    """A bounded memory with one model for each object."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._models: OrderedDict[tuple[type[Resource], Key], tuple[Object, Resource]] = OrderedDict()
        self._parts: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def read(self, model: type[R], stored: Object) -> R:
        """The object as `model`.

        Raises
        ------
        pydantic.ValidationError
            When a known field has an impossible value.
        """
        place = (model, key_of(stored))
        found = self._models.get(place)
        if found is not None and found[0] is stored and isinstance(found[1], model):
            self._models.move_to_end(place)
            return found[1]
        parsed = model.parse(self._with_known_parts(model, stored))
        self._models[place] = (stored, parsed)
        self._models.move_to_end(place)
        while len(self._models) > self._kept:
            self._models.popitem(last=False)
        return parsed

    def _with_known_parts(self, model: type[Resource], stored: Object) -> Object:
        """The object with models in place of those parts that others have as well."""
        for group, name, adapter in ALIKE.get(model, ()):
            raw = (stored.get(group) or {}).get(name)
            if raw is not None:
                stored = {**stored, group: {**stored[group], name: self._part(raw, adapter)}}
        return stored

    def _part(self, raw: Any, adapter: TypeAdapter[Any]) -> Any:
        """The model of a part, or what was given when it is none: the error is to name the field of the whole object."""
        found = self._parts.get(id(raw))
        if found is None:  # what was kept is alive, so no other object has its identity
            try:
                found = (raw, adapter.validate_python(raw))
            except ValidationError:
                return raw
            self._parts[id(raw)] = found
            if len(self._parts) > PARTS_KEPT:
                self._parts.popitem(last=False)
        return found[1]
