"""Names of the API resources that the operator reads or writes, and the keys that address single objects.

A ResourceType is what the URL needs; it says nothing about schemas, which live in ``crds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from crds.types import GROUP, VERSION

Object = Mapping[str, Any]
"""A Kubernetes object as plain JSON data. Objects out of the store are shared: never change them in place."""

POOL_LABEL = f"{GROUP}/pool"
"""Label on everything that belongs to a pool: its name."""
MODEL_VERSION_LABEL = f"{GROUP}/model-version"
"""Label on pods: the model version that they were made for."""
GROUP_PREFIX = f"{GROUP}/"
"""Beginning of every label and annotation of ours."""
GATE = f"{GROUP}/warm"
"""Readiness gate of managed pods: true once the instance has its full share of users."""
SERVING_PORT = "gr"
"""Name of the container port at which an engine serves."""
AGENT_PORT = "grfleet-agent"
"""Name of the container port at which an agent answers."""


class Key(NamedTuple):
    """Name of an object within a resource type, and the key of the work queues."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class ResourceType:
    """Group, version and plural of a resource, with the kind its objects carry."""

    group: str
    version: str
    plural: str
    kind: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of its API group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, of one object, or of its subresource; namespace None means all of them."""
        parts = [self.root]
        if namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def _ours(plural: str, kind: str) -> ResourceType:
    return ResourceType(GROUP, VERSION, plural, kind)


POOLS = _ours("grservingpools", "GRServingPool")
INSTANCES = _ours("grinstances", "GRInstance")
HBM_POLICIES = _ours("hbmpolicies", "HBMPolicy")
ROUTING_POLICIES = _ours("routingpolicies", "RoutingPolicy")
PRE_INFERENCE_POLICIES = _ours("preinferencepolicies", "PreInferencePolicy")
ALLOCATOR_MODELS = _ours("allocatormodels", "AllocatorModel")
ROUTING_TABLES = _ours("grroutingtables", "GRRoutingTable")

CONFIG_MAPS = ResourceType("", "v1", "configmaps", "ConfigMap")
SECRETS = ResourceType("", "v1", "secrets", "Secret")
PODS = ResourceType("", "v1", "pods", "Pod")
DEPLOYMENTS = ResourceType("apps", "v1", "deployments", "Deployment")
DISRUPTION_BUDGETS = ResourceType("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = ResourceType("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = ResourceType("events.k8s.io", "v1", "events", "Event")
INFERENCE_POOLS = ResourceType("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
ACCESS_REVIEWS = ResourceType("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")


def key_of(obj: Object) -> Key:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def uid_of(obj: Object) -> str:
    """The uid that the API server gave the object; empty if it has none yet."""
    return str(obj["metadata"].get("uid", ""))


def owner_reference(resource: ResourceType, owner: Object, *, controller: bool = False) -> dict[str, Any]:
    """The reference by which the garbage collector deletes an object after its `owner`; at most one owner is the controller."""
    reference = {"apiVersion": resource.api_version, "kind": resource.kind, "name": key_of(owner).name, "uid": uid_of(owner)}
    return {**reference, "controller": True} if controller else reference


def identity(resource: ResourceType, key: Key) -> dict[str, Any]:
    """The part of an apply body that only says which object is meant."""
    metadata = {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
