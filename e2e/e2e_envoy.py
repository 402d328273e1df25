"""A real Envoy in a pod, in front of a pool: docs/examples/picker-envoy.yaml with the changes of docs/picker.md for a cluster.

One listener goes on without a picker (FailOpen), the other one does not (FailClose). Times to wait are those of a busy machine.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import yaml
from e2e_pool import RESTRICTED, Pool
from e2e_release import ROOT, Object

NAME = "envoy"
OPEN, CLOSED = 8080, 8090
ADMIN = 9901
_EXAMPLE = ROOT / "docs" / "examples" / "picker-envoy.yaml"
_PAGE = ROOT / "docs" / "picker.md"


def of_page(namespace: str, *, holds: str) -> Object:
    """The one YAML of docs/picker.md that holds a text, for a pool in this namespace."""
    (text,) = re.findall(r"^```yaml\n((?:(?!^```).)*?" + re.escape(holds) + r".*?)^```", _PAGE.read_text(), re.M | re.S)
    found: Object = yaml.safe_load(text.replace("namespace: feed", f"namespace: {namespace}").replace(".feed.", f".{namespace}."))
    return found


def envoy(pool: Pool, image: str) -> list[Object]:
    """Its pod, and what that needs in front of a pool `ranker` with a picker."""
    metadata = {"name": NAME, "namespace": pool.namespace}
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-c", "/etc/envoy/envoy.json", "--concurrency", "1", "--disable-hot-restart", "-l", "warning"],
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": "100m"}},  # a pod without requests starves on a busy machine
        "ports": [{"name": "admin", "containerPort": ADMIN}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "admin"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy", "readOnly": True}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsUser": 65532, "runAsGroup": 65532},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"envoy.json": json.dumps(config(pool.namespace))},
        },
        of_page(pool.namespace, holds="clusterIP: None"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    ]


def config(namespace: str) -> Object:
    """What the page's example becomes in a cluster."""
    found: dict[str, Any] = yaml.safe_load(_EXAMPLE.read_text())
    found["admin"]["address"]["socket_address"]["address"] = "0.0.0.0"
    resources = found["static_resources"]
    picker, pool = resources["clusters"]
    pool |= of_page(namespace, holds="STRICT_DNS")
    del pool["eds_cluster_config"]
    for cluster in (picker, pool):
        cluster["connect_timeout"] = "5s"
    picker["health_checks"][0] |= {"timeout": "10s", "unhealthy_threshold": 3}
    address = picker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    address.update(address=f"ranker-picker.{namespace}.svc.cluster.local", port_value=9002)
    resources["listeners"] = [
        _listener(resources["listeners"][0], port, fails_open=fails_open) for port, fails_open in ((OPEN, True), (CLOSED, False))
    ]
    return found


def _listener(example: Object, port: int, *, fails_open: bool) -> Object:
    listener = copy.deepcopy(example)
    listener["name"] = str(port)
    listener["address"]["socket_address"] = {"address": "0.0.0.0", "port_value": port}
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    filters[0]["typed_config"] |= {"failure_mode_allow": fails_open, "message_timeout": "10s"}
    return listener
