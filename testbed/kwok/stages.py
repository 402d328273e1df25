"""What a fake kubelet does: a node is Ready from the start, a pod goes through the states a real one would report.

A stage is a condition on an object and what is written to it then. Readiness follows the kubelet's rule: the containers of a
fake pod are ready at once, but the pod only with every readiness gate of it, and no longer than that. Whoever owns a gate's
condition sets it, as on a real node.
"""

from __future__ import annotations

from typing import Any

# Of each gate, whether the pod has its condition; true without any gate.
_GATES_OPEN = (
    ". as $pod | [(.spec.readinessGates // [])[].conditionType | . as $gate"
    ' | any($pod.status.conditions[]?; .type == $gate and .status == "True")] | all'
)
_READY = '[.status.conditions[]? | select(.type == "Ready") | .status] | first'

_NODE = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: "a fake node"
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
addresses:
- type: InternalIP
  address: {{ NodeIP | Quote }}
phase: Running
"""

_STARTED = """
{{ $now := Now }}
{{ $ready := not .spec.readinessGates }}
phase: Running
startTime: {{ $now | Quote }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) .metadata.uid .metadata.name .metadata.namespace | Quote }}
conditions:
{{ range list "PodReadyToStartContainers" "Initialized" "ContainersReady" }}
- type: {{ . }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
- type: Ready
  status: {{ if $ready }}"True"{{ else }}"False"{{ end }}
  {{ if not $ready }}
  reason: ReadinessGatesNotReady
  message: a readiness gate of the pod is not open
  {{ end }}
  lastTransitionTime: {{ $now | Quote }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq ( or .restartPolicy "" ) "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  started: false
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
{{ end }}
"""

_TURNED = """
conditions:
- type: Ready
  status: {status}
  reason: {reason}
  message: {message}
  lastTransitionTime: {{{{ Now | Quote }}}}
"""


def documents() -> list[dict[str, Any]]:
    """The stages, for kwok's ``--config``."""
    alive = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    started = {"key": ".status.podIP", "operator": "Exists"}
    is_open = {"key": _GATES_OPEN, "operator": "In", "values": ["true"]}
    is_shut = {"key": _GATES_OPEN, "operator": "In", "values": ["false"]}
    ready = {"key": _READY, "operator": "In", "values": ["True"]}
    unready = {"key": _READY, "operator": "NotIn", "values": ["True"]}
    opened = _TURNED.format(status='"True"', reason='""', message='""')
    shut = _TURNED.format(status='"False"', reason="ReadinessGatesNotReady", message="a readiness gate of the pod is not open")
    return [
        _stage("node-initialize", "Node", [unready], status=_NODE),
        _stage("pod-start", "Pod", [alive, {"key": ".status.podIP", "operator": "DoesNotExist"}], status=_STARTED),
        _stage("pod-ready", "Pod", [alive, started, unready, is_open], status=opened),
        _stage("pod-unready", "Pod", [alive, started, ready, is_shut], status=shut),
        _stage("pod-delete", "Pod", [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}], next_={"delete": True}),
    ]


def _stage(
    name: str, kind: str, when: list[dict[str, Any]], *, status: str = "", next_: dict[str, Any] | None = None
) -> dict[str, Any]:
    patch = {"subresource": "status", "root": "status", "template": status, "type": "strategic"}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": when},
            "next": next_ or {"patches": [patch]},
        },
    }
