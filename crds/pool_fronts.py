"""What a pool's status says of InferencePools in front of it: a Gateway API gateway sends requests to the pods that they select.

grfleet reads them and never writes one; whether one fits is worth saying, because its selector is written by somebody else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, Strict

from crds.types import ApiModel, ObjectName


class FrontState(StrEnum):
    """Whether an InferencePool selects what the pool serves with."""

    FITS = "Fits"
    SELECTS_OTHERS = "SelectsOtherPods"
    MISSES_PODS = "MissesPods"
    PORT_DIFFERS = "PortDiffers"


class InferencePoolSeen(ApiModel):
    """One InferencePool that selects pods of the pool."""

    name: ObjectName
    """Its name."""
    state: FrontState
    """Fits: it selects the pods of the pool and no others, at the port where they serve. SelectsOtherPods: requests may reach
    pods that are none of the pool's. MissesPods: some pods of the pool get no requests. PortDiffers: the engines' port gr is none
    of its target ports."""
    picker: ObjectName | None = None
    """The Service that picks endpoints for it, spec.endpointPickerRef; none: the gateway chooses without knowing users."""
    ports: Annotated[
        tuple[Annotated[int, Strict(), Field(ge=1, le=65_535)], ...],
        Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    """Its target ports."""
