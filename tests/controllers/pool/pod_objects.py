"""Pods, Deployments and managed pools as the store keeps them, for the pure tests of the pool loop."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from loop_objects import NOW, instance_object, pool_object

from controllers.pool.pods import Pod
from controllers.runtime.projection import project_deployment, project_pod

ENGINE = {"name": "engine", "image": "engine:1", "ports": [{"name": "gr", "containerPort": 8000}]}
TEMPLATE = {"spec": {"containers": [ENGINE]}}
HASH = "5c9"


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def managed_pool(replicas: int = 2, *, version: str = "1", **spec: Any) -> dict[str, Any]:
    model = {"name": "m", "version": version, "kvBytesPerToken": 1, "embRowBytes": 1, "maxHistoryTokens": 1}
    return pool_object(**{"instances": {"managed": {"template": TEMPLATE}}, "replicas": replicas, "model": model, **spec})


def raw_pod(
    name: str,
    *,
    pool: str | None = "pool",
    version: str = "1",
    address: str | None = "10.0.0.1",
    ready: bool = True,
    warm: bool = True,
    terminating: bool = False,
    labels: dict[str, str] | None = None,
    ports: tuple[str, ...] = ("gr", "grfleet-agent"),
    created: datetime = NOW,
    cost: str | None = None,
    waiting: str | None = None,
    uid: str = "",
) -> dict[str, Any]:
    """A pod as the API server would return it."""
    numbers = {"gr": 8000, "grfleet-agent": 9001}
    own = {"grfleet.dev/pool": pool, "grfleet.dev/model-version": version, "pod-template-hash": HASH} if pool else {}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": uid or f"uid-{name}",
        "resourceVersion": "30",
        "creationTimestamp": stamp(created),
        "labels": {**own, **(labels or {})},
        "managedFields": [{"manager": "kubelet"}],
    }
    if pool:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{pool}-{HASH}", "uid": "uid-rs", "controller": True}
        metadata["ownerReferences"] = [owner]
    if terminating:
        metadata["deletionTimestamp"] = stamp(created)
    if cost is not None:
        metadata["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": cost, "other": "x"}
    up = ready or warm
    conditions = {"PodScheduled": True, "ContainersReady": up, "grfleet.dev/warm": warm, "Ready": ready and warm}
    status: dict[str, Any] = {
        "phase": "Running" if address else "Pending",
        "conditions": [
            {"type": type_, "status": str(value), "lastTransitionTime": stamp(created)} for type_, value in conditions.items()
        ],
    }
    if address:
        status["podIP"] = address
    if waiting:
        status["containerStatuses"] = [{"name": "engine", "state": {"waiting": {"reason": waiting, "message": "5m0s"}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "ports": [{"name": each, "containerPort": numbers[each]} for each in ports],
                    "env": [{"name": "A"}],
                }
            ],
            "readinessGates": [{"conditionType": "grfleet.dev/warm"}] if pool else [],
        },
        "status": status,
    }


def pod(name: str, **changes: Any) -> Pod:
    return Pod(project_pod(raw_pod(name, **changes)))


def pod_instance(
    name: str, pool: dict[str, Any], *, ready: bool = True, drain: dict[str, Any] | None = None, version: str = "1", **status: Any
) -> dict[str, Any]:
    """The stored GRInstance of a pod."""
    agent = {"reachable": ready, "startId": "a", "engineStartId": "e"}
    made = instance_object(name, pool, agent=agent, **status)
    made["spec"]["source"] = {
        "kind": "Pod",
        "podName": name,
        "podUID": f"uid-{name}",
        "serviceURL": "http://10.0.0.1:8000",
        "agentURL": "http://10.0.0.1:9001",
        "modelVersion": version,
    }
    if drain is not None:
        made["spec"]["drain"] = drain
    return made


def deployment(
    replicas: int = 2, *, owner: str | None = "uid-pool", labels: dict[str, str] | None = None, **status: Any
) -> dict[str, Any]:
    """The stored Deployment `pool`."""
    metadata: dict[str, Any] = {
        "name": "pool",
        "namespace": "team",
        "uid": "uid-deployment",
        "resourceVersion": "40",
        "generation": 1,
        "labels": {"grfleet.dev/pool": "pool"} if labels is None else labels,
    }
    if owner is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRServingPool", "name": "pool", "uid": owner, "controller": True}
        ]
    return dict(
        project_deployment({"metadata": metadata, "spec": {"replicas": replicas}, "status": {"observedGeneration": 1, **status}})
    )
