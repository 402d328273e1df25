"""Reads stored objects as models, once for each version of an object.

Loops look far more often than objects change, and validating is most of what a look costs. The store replaces an object
whenever it changes and nobody changes one in place, so the identity of the stored mapping says whether the model is still
right.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from controllers.runtime.resources import Object
from crds.types import Resource

R = TypeVar("R", bound=Resource)
KEPT = 8192


class ParsedObjects:
    """A bounded memory of models by the identity of the stored object."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._models: OrderedDict[int, tuple[Object, Resource]] = OrderedDict()

    def read(self, model: type[R], stored: Object) -> R:
        """The object as `model`.

        Raises
        ------
        pydantic.ValidationError
            When a known field has an impossible value.
        """
        found = self._models.get(id(stored))
        if found is not None and found[0] is stored and isinstance(found[1], model):
            self._models.move_to_end(id(stored))
            return found[1]
        parsed = model.parse(stored)
        self._models[id(stored)] = (stored, parsed)  # holding the object keeps its identity from being given away
        while len(self._models) > self._kept:
            self._models.popitem(last=False)
        return parsed
