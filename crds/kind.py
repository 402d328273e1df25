"""What a CustomResourceDefinition says beside its schema: names, printer columns, scale paths, selectable fields.

It is plain data next to the model, so that the model stays a model and the generator has one input a kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crds.types import API_VERSION, GROUP, VERSION, Resource

R = TypeVar("R", bound=Resource)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of ``kubectl get``; a priority above 0 shows only with ``-o wide``."""

    name: str
    json_path: str
    description: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """Paths of the scale subresource."""

    spec_replicas_path: str
    status_replicas_path: str
    label_selector_path: str


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """One kind of the API group: the model and the metadata of its CustomResourceDefinition."""

    name: str
    plural: str
    short_names: tuple[str, ...]
    model: type[R]
    description: str
    columns: tuple[Column, ...]
    scale: Scale | None = None
    selectable_fields: tuple[str, ...] = ()
    group: str = GROUP
    version: str = VERSION
    category: str = "grfleet"
    not_yet: tuple[str, ...] = ()
    """What the API accepts and this release does not act on; printed in the reference, shortened as loops learn it."""
    example: Mapping[str, Any] | None = None
    """A spec that people may start from, for kinds that people write; printed in the reference and tried on a server."""

    @property
    def singular(self) -> str:
        """Lower-case kind name, as kubectl accepts it."""
        return self.name.lower()

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition object."""
        return f"{self.plural}.{self.group}"

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of this kind."""
        return API_VERSION

    @property
    def has_status(self) -> bool:
        """Whether the kind has a status, and so the status subresource."""
        return "status" in self.model.model_fields


def condition_path(type_: str, field: str = "status") -> str:
    """JSON path of one field of one condition, for a printer column."""
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


AGE = Column("Age", ".metadata.creationTimestamp", "Time since the object was created.", type="date")
