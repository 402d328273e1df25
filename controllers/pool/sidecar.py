"""What a pod needs to be an instance: the agent beside the engine, the socket between them, and a patient end.

The agent is a native sidecar (an init container that keeps running), so it is there before the engine starts and outlives it.
Both must run as the same user, because the engine's socket is readable by its owner only; therefore the agent takes over the user
that the engine's container sets. Everything satisfies Pod Security `restricted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controllers.runtime.resources import AGENT_PORT, GATE
from controllers.signing_key import CONFIG_MAP_NAME, PUBLIC_ENTRY

AGENT_CONTAINER = "grfleet-agent"
AGENT_PORT_NUMBER = 9001
SOCKET_VOLUME = "grfleet-socket"
KEY_VOLUME = "grfleet-intent-key"
SOCKET_FOLDER = "/run/grfleet"
KEY_FOLDER = "/etc/grfleet"
SOCKET_SIZE = "16Mi"
IDLE_SECONDS = 5
"""So long the engine must have had nothing in flight before its container is told to end: callers follow a table within it."""
MARGIN_SECONDS = 15
"""Between the end of the drain and the moment when the kubelet kills: for the engine's own end, and the agent's after it."""

_AUDIENCE = (
    ("namespace", "GRFLEET_NAMESPACE", "metadata.namespace"),
    ("pod-uid", "GRFLEET_POD_UID", "metadata.uid"),
)
"""What the agent has to know of itself, so that an intent for another namespace or pod is none for it."""


def agent_container(image: str, *, pull_policy: str, user: Mapping[str, Any]) -> dict[str, Any]:
    """The sidecar.

    Parameters
    ----------
    user
        runAsUser and runAsGroup of the engine's container, as far as it sets them.
    """
    health = {"httpGet": {"path": "/healthz", "port": AGENT_PORT}}
    return {
        "name": AGENT_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "restartPolicy": "Always",
        "args": [
            f"--engine=unix:{SOCKET_FOLDER}/engine.sock",
            f"--listen=http://0.0.0.0:{AGENT_PORT_NUMBER}",
            f"--intent-key={KEY_FOLDER}/{PUBLIC_ENTRY}",
            *(f"--{flag}=$({variable})" for flag, variable, _ in _AUDIENCE),
        ],
        "env": [
            {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for _, variable, path in _AUDIENCE
        ],
        "ports": [{"name": AGENT_PORT, "containerPort": AGENT_PORT_NUMBER, "protocol": "TCP"}],
        "startupProbe": {**health, "periodSeconds": 1, "failureThreshold": 120},
        "livenessProbe": {**health, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            **user,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [socket_mount(), {"name": KEY_VOLUME, "mountPath": KEY_FOLDER, "readOnly": True}],
    }


def socket_mount() -> dict[str, Any]:
    """Where engine and agent meet."""
    return {"name": SOCKET_VOLUME, "mountPath": SOCKET_FOLDER}


def volumes() -> list[dict[str, Any]]:
    """The socket's memory volume and the public key of the intents."""
    return [
        {"name": SOCKET_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": SOCKET_SIZE}},
        {"name": KEY_VOLUME, "configMap": {"name": CONFIG_MAP_NAME}},
    ]


def readiness_gate() -> dict[str, str]:
    """Holds a rolling update until the instance has its full share of users."""
    return {"conditionType": GATE}


def pre_stop(*, deadline_seconds: int) -> dict[str, Any]:
    """Holds the end of the engine's container until it has been idle for a while, or the deadline has passed."""
    path = f"/agent/v1/idle?afterSeconds={min(IDLE_SECONDS, deadline_seconds)}&deadlineSeconds={deadline_seconds}"
    return {"httpGet": {"path": path, "port": AGENT_PORT_NUMBER}}
