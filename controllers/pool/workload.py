"""The Deployment and the PodDisruptionBudget of a managed pool, as pure functions of the pool.

The user's template is taken as it is and only added to; whatever it lacks, or uses of what is added, is refused in words before
anything is written. spec.replicas is never part of it: the Deployment's scale subresource has that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controllers.pool import sidecar
from controllers.runtime.resources import (
    AGENT_PORT,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    MODEL_VERSION_LABEL,
    POOL_LABEL,
    POOLS,
    SERVING_PORT,
    Key,
    Object,
    identity,
    key_of,
    owner_reference,
)
from crds import GRServingPool, RoutingPolicySpec
from crds.pool_instances import ManagedInstances

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PROGRESS_SECONDS = 600
_LONGEST_GRACE_SECONDS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentImage:
    """The image of the sidecar; an empty reference means that the operator was not told one."""

    reference: str = ""
    pull_policy: str = "IfNotPresent"


class TemplateInvalid(Exception):
    """The template lacks what grfleet needs, or uses a name that grfleet adds; the message names the field."""


def deployment_body(pool: GRServingPool, stored: Object, *, agent: AgentImage, policy: RoutingPolicySpec) -> dict[str, Any]:
    """What is applied; without spec.replicas.

    Raises
    ------
    TemplateInvalid
        When no pod that serves could be made from the template.
    """
    managed = pool.spec.instances.managed
    assert managed is not None
    body = identity(DEPLOYMENTS, key_of(stored))
    body["metadata"]["labels"] = {POOL_LABEL: key_of(stored).name}
    body["metadata"]["ownerReferences"] = [owner_reference(POOLS, stored, controller=True)]
    body["spec"] = {
        "selector": {"matchLabels": {POOL_LABEL: key_of(stored).name}},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": managed.rollout.max_surge, "maxUnavailable": managed.rollout.max_unavailable},
        },
        # A step of a rolling update takes as long as a pod takes to start and to warm up.
        "progressDeadlineSeconds": policy.warmup.max_seconds + _PROGRESS_SECONDS,
        "template": pod_template(pool, managed, agent=agent, drain_seconds=policy.drain.deadline_seconds),
    }
    return body


def disruption_budget_body(pool: GRServingPool, stored: Object) -> dict[str, Any]:
    """How many pods evictions may take at once; pods that are not ready never stand in the way of an emptied node."""
    managed = pool.spec.instances.managed
    assert managed is not None
    name = key_of(stored).name
    body = identity(DISRUPTION_BUDGETS, Key(key_of(stored).namespace, name))
    body["metadata"]["labels"] = {POOL_LABEL: name}
    body["metadata"]["ownerReferences"] = [owner_reference(POOLS, stored, controller=True)]
    body["spec"] = {
        "selector": {"matchLabels": {POOL_LABEL: name}},
        "maxUnavailable": managed.disruption.max_unavailable,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return body


def pod_template(pool: GRServingPool, managed: ManagedInstances, *, agent: AgentImage, drain_seconds: int) -> dict[str, Any]:
    """The user's template with the agent beside the engine.

    Raises
    ------
    TemplateInvalid
        See :func:`deployment_body`.
    """
    try:
        template: dict[str, Any] = _without_nulls(managed.template)
    except RecursionError:  # no pod is, and the API server admits it of a pool
        raise TemplateInvalid("instances.managed.template: it is nested thousands of levels deep, which no pod is") from None
    problem = next(_problems(template, managed.engine_container), None)
    if problem is not None:
        raise TemplateInvalid(f"instances.managed.template: {problem}")
    _label(template, pool.metadata.name, pool.spec.model.version)
    spec = template["spec"]
    engine = _engine(spec, managed.engine_container)
    assert engine is not None, "a template without an engine has a problem"
    engine.setdefault("volumeMounts", []).append(sidecar.socket_mount())
    if drain_seconds:
        engine.setdefault("lifecycle", {})["preStop"] = sidecar.pre_stop(deadline_seconds=drain_seconds)
    user = {name: value for name, value in engine.get("securityContext", {}).items() if name in ("runAsUser", "runAsGroup")}
    beside = sidecar.agent_container(agent.reference, pull_policy=agent.pull_policy, user=user)
    spec["initContainers"] = [beside, *(spec.get("initContainers", ()))]
    spec["volumes"] = [*(spec.get("volumes", ())), *sidecar.volumes()]
    gates = spec.get("readinessGates", [])
    spec["readinessGates"] = gates if sidecar.readiness_gate() in gates else [*gates, sidecar.readiness_gate()]
    shortest = drain_seconds + sidecar.MARGIN_SECONDS
    spec["terminationGracePeriodSeconds"] = max(int(spec.get("terminationGracePeriodSeconds", 30)), shortest)
    spec.setdefault("automountServiceAccountToken", False)
    for container in _containers(spec):
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")  # part of the port's identity, so it has to be said to be compared
    return template


def _without_nulls(value: Any) -> Any:
    """A copy in which a null is what it means to the API server: an absent field."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def version_label(version: str) -> str:
    """The model version as a label value: itself, or the nearest that a label may hold."""
    if _LABEL_VALUE.fullmatch(version):
        return version
    return version.replace("+", "_").rstrip("._-")


def _label(template: dict[str, Any], pool: str, version: str) -> None:
    metadata = template.setdefault("metadata", {})
    metadata.setdefault("labels", {}).update({POOL_LABEL: pool, MODEL_VERSION_LABEL: version_label(version)})
    if version_label(version) != version:
        metadata.setdefault("annotations", {})[MODEL_VERSION_LABEL] = version


def _engine(spec: Mapping[str, Any], name: str | None) -> dict[str, Any] | None:
    containers: list[dict[str, Any]] = spec["containers"]
    return next((each for each in containers if name in (None, each["name"])), None)


def _containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def _problems(template: Mapping[str, Any], engine_name: str | None) -> Iterator[str]:
    """What is wrong with the template, the first first. Each test may rely on those before it."""
    yield from _shape(template)
    yield from _reserved_metadata(template.get("metadata", {}))
    spec = template["spec"]
    engine = _engine(spec, engine_name)
    if engine is None:
        names = ", ".join(each["name"] for each in spec["containers"])
        yield f"no container is named {engine_name} (instances.managed.engineContainer); there are: {names}"
        return
    ports = [port.get("name") for port in engine.get("ports", ()) if port.get("protocol", "TCP") == "TCP"]
    if SERVING_PORT not in ports:
        yield f"container {engine['name']} names no port {SERVING_PORT}; add the TCP port at which it serves, with that name"
    if engine.get("lifecycle", {}).get("preStop"):
        yield f"container {engine['name']} has lifecycle.preStop, which grfleet sets to hold the end until requests are done"
    yield from _reserved_names(spec, engine)
    grace = spec.get("terminationGracePeriodSeconds", 0)
    # A larger one than the API server can hold comes out negative there, which means at once.
    if not isinstance(grace, int) or isinstance(grace, bool) or grace > _LONGEST_GRACE_SECONDS:
        yield f"spec.terminationGracePeriodSeconds is not a number of seconds up to {_LONGEST_GRACE_SECONDS}"


def _shape(template: Mapping[str, Any]) -> Iterator[str]:
    """Whatever the further tests walk through has the form that Kubernetes gives it."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        yield "spec is missing"
        return
    if not _is_list_of_maps(spec.get("containers")) or not spec["containers"]:
        yield "spec.containers is empty; the engine's container is needed"
        return
    metadata = template.get("metadata", {})
    if not isinstance(metadata, Mapping):
        yield "metadata is not an object"
        return
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field, {}), Mapping):
            yield f"metadata.{field} is not an object"
    for field in ("initContainers", "volumes", "readinessGates"):
        if not _is_list_of_maps(spec.get(field, [])):
            yield f"spec.{field} is not a list of objects"
            return
    for place in ("initContainers", "containers"):
        for container in spec.get(place, ()):
            if not isinstance(container.get("name"), str):
                yield f"a container of spec.{place} has no name"
                return
            for field in ("ports", "volumeMounts"):
                if not _is_list_of_maps(container.get(field, [])):
                    yield f"container {container['name']}: {field} is not a list of objects"
            for field in ("lifecycle", "securityContext"):
                if not isinstance(container.get(field, {}), Mapping):
                    yield f"container {container['name']}: {field} is not an object"


def _is_list_of_maps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def _reserved_metadata(metadata: Mapping[str, Any]) -> Iterator[str]:
    for field in ("labels", "annotations"):
        for key in (POOL_LABEL, MODEL_VERSION_LABEL):
            if key in metadata.get(field, {}):
                yield f"metadata.{field} has {key}, which grfleet sets"


def _reserved_names(spec: Mapping[str, Any], engine: Mapping[str, Any]) -> Iterator[str]:
    for container in _containers(spec):
        if container["name"] == sidecar.AGENT_CONTAINER:
            yield f"a container is named {sidecar.AGENT_CONTAINER}; grfleet adds that one itself"
        for port in container.get("ports", ()):
            if port.get("name") == AGENT_PORT or port.get("containerPort") == sidecar.AGENT_PORT_NUMBER:
                yield f"container {container['name']} takes the port {AGENT_PORT} ({sidecar.AGENT_PORT_NUMBER}) of the agent"
            if port.get("name") == SERVING_PORT and container is not engine:
                yield f"container {container['name']} names a port {SERVING_PORT}; only the engine, {engine['name']}, may"
    for volume in spec.get("volumes", ()):
        if volume.get("name") in (sidecar.SOCKET_VOLUME, sidecar.KEY_VOLUME):
            yield f"a volume is named {volume['name']}; grfleet adds that one itself"
    for mount in engine.get("volumeMounts", ()):
        if str(mount.get("mountPath", "")).rstrip("/") == sidecar.SOCKET_FOLDER:
            yield f"container {engine['name']} mounts {sidecar.SOCKET_FOLDER}; grfleet mounts the volume of the socket there"
