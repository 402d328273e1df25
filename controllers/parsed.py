"""Reads stored objects as models, once for each version of an object.

Loops look far more often than objects change, and validating is most of what a look costs. The store replaces an object
whenever it changes and nobody changes one in place, so the identity of the stored mapping says whether the model is still
right.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from controllers.runtime.resources import Key, Object, key_of
from crds.types import Resource

R = TypeVar("R", bound=Resource)
KEPT = 2048
"""A model of an instance takes 18 KB and a twentieth of a millisecond to make: worth keeping for what is read in a row."""


class ParsedObjects:
    """A bounded memory with one model for each object."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._models: OrderedDict[tuple[type[Resource], Key], tuple[Object, Resource]] = OrderedDict()

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
        parsed = model.parse(stored)
        self._models[place] = (stored, parsed)
        self._models.move_to_end(place)
        while len(self._models) > self._kept:
            self._models.popitem(last=False)
        return parsed
