"""What the store keeps of objects that are not ours: of a Pod and a Deployment only the fields that the pool loop reads.

A cluster has far more pods than instances, and a pod writes its status all the time. So a pod that shows no sign of belonging to
a pool shrinks to its labels, and a change of anything that is not kept is no event: it costs the parsing, and nothing after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from controllers.runtime.resources import (
    AGENT_PORT,
    DEPLOYMENTS,
    GATE,
    GROUP_PREFIX,
    PODS,
    POOL_LABEL,
    POOLS,
    SERVING_PORT,
    Object,
    ResourceType,
)

Projection = Callable[[Mapping[str, Any]], Object]

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation by which a ReplicaSet chooses among equals: the pod with the lowest value goes first."""

_METADATA = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
_PORTS_OF_OURS = frozenset({SERVING_PORT, AGENT_PORT})
_POD_CONDITIONS = frozenset({"Ready", "ContainersReady", "PodScheduled", GATE})
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_LONGEST_MESSAGE = 400


def project_pod(pod: Mapping[str, Any]) -> Object:
    """Identity, labels, our annotations, named ports, and of the status what tells whether and why it does not run.

    A pod without a label of ours and without a port of ours keeps labels and phase only: enough to say that it lacks them when an
    adopted pool asks for its labels.
    """
    metadata = _metadata(pod)
    annotations = _own_annotations(pod)
    status = pod.get("status") or {}
    ports = dict(_ports(pod))
    kept: dict[str, Any] = {"apiVersion": "v1", "kind": PODS.kind, "metadata": metadata}
    if POOL_LABEL not in metadata.get("labels", {}) and not ports.keys() & _PORTS_OF_OURS:
        kept["status"] = {"phase": status.get("phase", "")}
        return kept
    if annotations:
        metadata["annotations"] = annotations
    gates = [gate["conditionType"] for gate in (pod.get("spec") or {}).get("readinessGates") or ()]
    kept["spec"] = {"ports": ports, "readinessGates": gates}
    kept["status"] = {
        "phase": status.get("phase", ""),
        "podIP": status.get("podIP", ""),
        "conditions": [_condition(item) for item in status.get("conditions") or () if item.get("type") in _POD_CONDITIONS],
        "waiting": list(_waiting(pod)),
    }
    return kept


def project_deployment(deployment: Mapping[str, Any]) -> Object:
    """A Deployment of ours whole, because its fields are compared with what we want; of any other one who owns it.

    It is ours by its label or by its owner, since people can take either away.
    """
    metadata = _metadata(deployment)
    kept: dict[str, Any] = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "metadata": metadata}
    if POOL_LABEL not in metadata.get("labels", {}) and not any(_is_pool(each) for each in metadata.get("ownerReferences", ())):
        return kept
    metadata["managedFields"] = list(deployment["metadata"].get("managedFields") or ())
    if annotations := _own_annotations(deployment):
        metadata["annotations"] = annotations
    status = deployment.get("status") or {}
    kept["spec"] = deployment.get("spec") or {}
    kept["status"] = {
        **{name: value for name, value in status.items() if name != "conditions"},
        "conditions": [
            # A Deployment names its newest ReplicaSet and a time in the message while all is well; nobody reads that here.
            _condition(item if item.get("status") == "False" or item.get("type") == "ReplicaFailure" else {**item, "message": ""})
            for item in status.get("conditions") or ()
        ],
    }
    return kept


PROJECTIONS: Mapping[ResourceType, Projection] = {PODS: project_pod, DEPLOYMENTS: project_deployment}


def _metadata(obj: Mapping[str, Any]) -> dict[str, Any]:
    found = obj["metadata"]
    metadata = {name: found[name] for name in _METADATA if name in found}
    if labels := found.get("labels"):
        metadata["labels"] = {sys.intern(str(key)): sys.intern(str(value)) for key, value in labels.items()}
    if owners := found.get("ownerReferences"):
        metadata["ownerReferences"] = [
            {name: each[name] for name in ("apiVersion", "kind", "name", "uid", "controller") if name in each} for each in owners
        ]
    return metadata


def _is_pool(owner: Mapping[str, Any]) -> bool:
    return owner.get("kind") == POOLS.kind and str(owner.get("apiVersion", "")).startswith(GROUP_PREFIX)


def _own_annotations(obj: Mapping[str, Any]) -> dict[str, str]:
    annotations = obj["metadata"].get("annotations") or {}
    return {key: value for key, value in annotations.items() if key.startswith(GROUP_PREFIX) or key == DELETION_COST}


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    spec = pod.get("spec") or {}
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _statuses(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _ports(pod: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for container in _containers(pod):
        for port in container.get("ports") or ():
            if port.get("name"):
                yield sys.intern(port["name"]), port["containerPort"]


def _condition(item: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: item[name] for name in _CONDITION if item.get(name)}
    if len(kept.get("message", "")) > _LONGEST_MESSAGE:
        kept["message"] = kept["message"][: _LONGEST_MESSAGE - 1] + "…"
    return kept


def _waiting(pod: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Containers that wait, with the reason but not the message, which carries counters and times."""
    for each in _statuses(pod):
        if waiting := (each.get("state") or {}).get("waiting"):
            yield {"container": str(each.get("name", "")), "reason": str(waiting.get("reason", ""))}
