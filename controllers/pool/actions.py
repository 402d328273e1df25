"""What the pool loop may do, as values: the decision chooses them, the executor carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controllers.announce import Announcement
from controllers.runtime.resources import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyInstance:
    """Create the instance (`current` is None) or bring its source, and whether it leaves, up to date."""

    name: str
    source: Mapping[str, Any]
    current: Object | None
    drain: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteInstance:
    """Delete exactly this instance."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReadiness:
    """Put Ready and observedGeneration into the status of an instance."""

    current: Object
    status: Mapping[str, Any]
    announce: tuple[Announcement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGate:
    """Let the pod count as ready: its instance has its full share of users."""

    pod: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPod:
    """Tell the ReplicaSet how early to take the pod; None takes the mark away."""

    pod: Object
    deletion_cost: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyDeployment:
    """Create the Deployment (`current` is None), with so many pods from the start, or bring it up to date."""

    body: Mapping[str, Any]
    digest: str
    current: Object | None
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDeployment:
    """Set the size of the Deployment through its scale."""

    current: Object
    replicas: int


Action = ApplyInstance | DeleteInstance | WriteReadiness | OpenGate | MarkPod | ApplyDeployment | ScaleDeployment
