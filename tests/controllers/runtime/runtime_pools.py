"""The smallest pool, and how its condition is read, for tests of operators as processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

POOL: dict[str, Any] = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "GRServingPool",
    "metadata": {"name": "pool"},
    "spec": {
        "model": {"name": "ranker", "version": "7", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192},
        "instances": {
            "external": [{"name": "a", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"}],
        },
        "memory": {"hbmBytes": "80Gi", "hbmReservedBytes": "20Gi"},
        "slo": {"p99Ms": 50},
    },
}


def pools_path(namespace: str) -> str:
    return f"/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grservingpools"


def create_pool(api: httpx.Client, namespace: str, name: str = "pool") -> None:
    api.post(pools_path(namespace), json={**POOL, "metadata": {"name": name}}).raise_for_status()


def ready_condition(api: httpx.Client, namespace: str, name: str = "pool") -> Callable[[], Any]:
    def look() -> Any:
        status = api.get(f"{pools_path(namespace)}/{name}").json().get("status", {})
        return next((item for item in status.get("conditions", ()) if item["type"] == "Ready"), None)

    return look
