"""Pods as the pool loop sees them: which of them are the pool's, where they serve, and why one of them does not start.

A managed pod carries the pool's label and is controlled by a ReplicaSet of the pool's Deployment; a label alone, which anybody in
the namespace can write, makes nobody an instance. An adopted pod is whoever carries the labels that the pool names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.runtime.conditions import find_condition
from controllers.runtime.projection import DELETION_COST
from controllers.runtime.resources import (
    AGENT_PORT,
    GATE,
    MODEL_VERSION_LABEL,
    PODS,
    POOLS,
    SERVING_PORT,
    Key,
    Object,
    key_of,
    uid_of,
)
from controllers.runtime.store import Store
from crds import GRServingPool
from crds.instance import SourceKind

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}")
_REPLICA_SET_HASH = "pod-template-hash"
_OVER = frozenset({"Succeeded", "Failed"})
_CRASHED = "CrashLoopBackOff"
_FAILING = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        _CRASHED,
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)


@dataclass(frozen=True, slots=True)
class Pod:
    """One stored pod, read on demand."""

    stored: Object

    @property
    def name(self) -> str:
        """Its name, which is that of its instance too."""
        return str(self.stored["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Its uid; another one is another instance."""
        return uid_of(self.stored)

    @property
    def created(self) -> datetime:
        """When it came into being."""
        return datetime.fromisoformat(self.stored["metadata"]["creationTimestamp"])

    @property
    def terminating(self) -> bool:
        """Whether somebody has deleted it."""
        return bool(self.stored["metadata"].get("deletionTimestamp"))

    @property
    def over(self) -> bool:
        """Whether it has ended for good; such a pod only waits to be removed."""
        return self._status.get("phase") in _OVER

    @property
    def ready(self) -> bool:
        """What a ReplicaSet sees: containers ready and every gate open."""
        return self._condition("Ready").get("status") == "True"

    @property
    def running(self) -> bool:
        """Whether all containers are ready, gates aside."""
        return self._condition("ContainersReady").get("status") == "True"

    @property
    def gate_closed(self) -> bool:
        """Whether it has our readiness gate and nobody has opened it yet."""
        gates = (self.stored.get("spec") or {}).get("readinessGates") or ()
        return GATE in gates and self._condition(GATE).get("status") != "True"

    @property
    def deletion_cost(self) -> str | None:
        """The annotation by which a ReplicaSet chooses."""
        value = (self.stored["metadata"].get("annotations") or {}).get(DELETION_COST)
        return None if value is None else str(value)

    @property
    def model_version(self) -> str | None:
        """The model version that the pod was made for; None where nobody says, or says what can be no version."""
        for place in ("annotations", "labels"):
            version = (self.stored["metadata"].get(place) or {}).get(MODEL_VERSION_LABEL)
            if version is not None and _VERSION.fullmatch(version):
                return str(version)
        return None

    def port(self, name: str) -> int | None:
        """The container port of that name."""
        value = ((self.stored.get("spec") or {}).get("ports") or {}).get(name)
        return None if value is None else int(value)

    def source(self) -> dict[str, Any] | None:
        """The source of its instance; None until it has an address, and while a port is missing."""
        address, serving, agent = self._status.get("podIP"), self.port(SERVING_PORT), self.port(AGENT_PORT)
        if not address or serving is None or agent is None:
            return None
        host = f"[{address}]" if ":" in address else address
        source = {
            "kind": SourceKind.POD.value,
            "serviceURL": f"http://{host}:{serving}",
            "agentURL": f"http://{host}:{agent}",
            "podName": self.name,
            "podUID": self.uid,
        }
        version = self.model_version
        return {**source, "modelVersion": version} if version is not None else source

    def failure(self) -> str | None:
        """Why it cannot start, in a word or two and with the command that tells more, or None."""
        for each in self._status.get("waiting") or ():
            container, reason = each["container"], each["reason"]
            if reason in _FAILING:
                look = f"logs {self.name} -c {container} --previous" if reason == _CRASHED else f"describe pod {self.name}"
                return f"container {container}: {reason} (kubectl {look} tells why)"
        scheduled = self._condition("PodScheduled")
        if scheduled.get("status") == "False":
            return f"{scheduled.get('reason', 'Unschedulable')}: {scheduled.get('message', '')}".rstrip(": ")
        return None

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.stored.get("status") or {}

    def _condition(self, type_: str) -> Mapping[str, Any]:
        return find_condition(self._status.get("conditions") or (), type_) or {}


def pods_of(store: Store, pool: GRServingPool) -> tuple[Pod, ...]:
    """The pods of the pool that have not ended, in the order of their names; none for an external pool."""
    key = Key(pool.metadata.namespace, pool.metadata.name)
    if PODS not in store.resources or pool.spec.instances.external is not None:
        return ()
    adopted = pool.spec.instances.adopted
    if adopted is not None:
        found = [each for each in store.in_namespace(PODS, key.namespace) if carries(each, adopted.match_labels)]
    else:
        found = [each for each in store.of_pool(PODS, key) if is_managed(each, key.name)]
    pods = (Pod(each) for each in found)
    return tuple(pod for pod in pods if not pod.over)


def carries(pod: Object, labels: Mapping[str, str]) -> bool:
    """Whether a pod has all the labels."""
    own = pod["metadata"].get("labels") or {}
    return all(own.get(key) == value for key, value in labels.items())


def is_managed(pod: Object, pool: str) -> bool:
    """Whether a ReplicaSet of the pool's Deployment controls the pod."""
    digest = (pod["metadata"].get("labels") or {}).get(_REPLICA_SET_HASH)
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(
        owner.get("controller") and owner.get("kind") == "ReplicaSet" and owner.get("name") == f"{pool}-{digest}"
        for owner in owners
    )


def adopting_pools(store: Store, namespace: str, pods: Iterable[Object]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(name, labels) of the adopted pools of a namespace that ask for any of these states of a pod."""
    states = tuple(pods)
    for name, labels in adopted_labels(store, namespace):
        if any(carries(state, labels) for state in states):
            yield name, labels


def adopted_labels(store: Store, namespace: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(name, labels) of every adopted pool of a namespace, in the order of their names."""
    for pool in store.in_namespace(POOLS, namespace):
        adopted = ((pool.get("spec") or {}).get("instances") or {}).get("adopted")
        if adopted and not pool["metadata"].get("deletionTimestamp"):
            yield key_of(pool).name, adopted.get("matchLabels") or {}
