"""GRServingPool.spec.instances: where the instances of a pool come from.

A Deployment that grfleet owns (managed), pods that somebody else runs (adopted), or a list of addresses (external): one of them,
and for ever.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import Field, Strict, WithJsonSchema

from crds.types import LABEL_KEY, ApiModel, LabelName, LabelValue, ListMap, Rule, ServiceUrl

MAX_EXTERNAL = 256
MAX_REPLICAS = 1024

Replicas = Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)]
InstancesSeen = Annotated[int, Strict(), Field(ge=0, le=100_000)]
"""Instances counted, not wanted: a rolling update has its surge beside them, and labels adopt as many pods as carry them."""
PodTemplate = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]


class Rollout(ApiModel):
    """How many pods a rolling update may add or miss at once; each step waits until the new pods are warm."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.maxSurge > 0 || self.maxUnavailable > 0",
            message="rollout needs maxSurge or maxUnavailable above 0, or no pod could ever be replaced",
            holds=lambda r: r.max_surge > 0 or r.max_unavailable > 0,
        ),
    )

    max_surge: Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)] = 1
    """Pods above replicas during a rolling update. 0 where no spare accelerators exist; then set maxUnavailable."""
    max_unavailable: Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)] = 0
    """Pods below replicas during a rolling update."""


class Disruption(ApiModel):
    """The PodDisruptionBudget of the pool."""

    max_unavailable: Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)] = 1
    """Pods that evictions may take at once. 0 forbids every eviction, so that nodes cannot be drained."""


class ManagedInstances(ApiModel):
    """Instances that grfleet runs, as a Deployment with the agent as a sidecar."""

    template: PodTemplate
    """Pod template of the Deployment, as in Deployment.spec.template. Its fields are checked when the Deployment is written,
    not here; the condition InstancesReady shows a refusal. The engine's container names its serving port gr and listens for the
    agent on /run/grfleet/engine.sock; sidecar, volumes and labels of grfleet are added."""
    engine_container: LabelName | None = None
    """Name of the container that runs the engine. Omitted: the first container of the template."""
    rollout: Rollout = Rollout()
    """How many pods a rolling update may add or miss at once; each step waits until the new pods are warm."""
    disruption: Disruption = Disruption()
    """The PodDisruptionBudget of the pool."""


class AdoptedInstances(ApiModel):
    """Instances that somebody else runs as pods in the namespace of the pool."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.matchLabels.all(key, size(key) <= 317 && key.matches('{LABEL_KEY}'))",
            message="adopted.matchLabels has a key that is no label key (letters, digits, '-', '_', '.', one optional prefix/)",
            holds=lambda a: all(len(key) <= 317 and re.fullmatch(LABEL_KEY, key, re.ASCII) for key in a.match_labels),
            field_path=".matchLabels",
        ),
    )

    match_labels: Annotated[dict[str, LabelValue], Field(min_length=1, max_length=16)]
    """Labels that a pod must carry to belong to the pool; at least one. The pod has the agent as a sidecar, and the named ports
    gr (engine) and grfleet-agent (agent)."""


class ExternalInstance(ApiModel):
    """One instance outside the cluster, or without a pod."""

    name: LabelName
    """Name of the instance, unique in the pool."""
    service_url: ServiceUrl
    """Address where the engine serves requests: http://host:port, https://host:port or unix:/path."""
    agent_url: ServiceUrl
    """Address of the agent beside the engine: http://host:port, https://host:port or unix:/path."""


class Instances(ApiModel):
    """Where the instances come from: exactly one of the three."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=("(has(self.managed) ? 1 : 0) + (has(self.adopted) ? 1 : 0) + (has(self.external) ? 1 : 0) == 1"),
            message="instances needs exactly one of managed, adopted and external",
            holds=lambda i: sum(x is not None for x in (i.managed, i.adopted, i.external)) == 1,
        ),
        Rule(
            cel=(
                "has(self.managed) == has(oldSelf.managed) && has(self.adopted) == has(oldSelf.adopted)"
                " && has(self.external) == has(oldSelf.external)"
            ),
            message="instances cannot change between managed, adopted and external; create a new pool instead",
        ),
    )

    managed: ManagedInstances | None = None
    """Instances that grfleet runs, as a Deployment."""
    adopted: AdoptedInstances | None = None
    """Instances that somebody else runs as pods."""
    external: Annotated[tuple[ExternalInstance, ...], Field(min_length=1, max_length=MAX_EXTERNAL), ListMap("name")] | None = None
    """Instances outside the cluster or without pods: bare metal, demonstrations, tests."""
