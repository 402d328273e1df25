"""Managed pools against the real API server and its controllers; scheduler and kubelet are played."""

from __future__ import annotations

from typing import Any

import pytest
from integration_fleet import Fleet, condition, eventually, pool_spec
from integration_kubelet import Kubelet
from runtime_operator import OperatorProcess

pytestmark = pytest.mark.slow

ENGINE: dict[str, Any] = {
    "name": "engine",
    "image": "engine:1",
    "ports": [{"name": "gr", "containerPort": 8000}],
    "resources": {"requests": {"cpu": 1}},  # a number, which the API server turns into a string
}


def managed(template: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Spec of a pool; `changes` may have replicas, model and so on."""
    template = template or {"spec": {"containers": [ENGINE]}}
    return {**pool_spec([]), "instances": {"managed": {"template": template}}, **changes}


def versioned(version: str) -> dict[str, Any]:
    return {**pool_spec([])["model"], "version": version}


def quick(fleet: Fleet, **policy: Any) -> None:
    """A routing policy that does not keep a test waiting."""
    fleet.apply("RoutingPolicy", "default", {"drain": {"deadlineSeconds": 3}, "warmup": {"maxSeconds": 1}, **policy})


def deployment(fleet: Fleet, name: str = "pool") -> dict[str, Any]:
    answer = fleet.api.get(f"/apis/apps/v1/namespaces/{fleet.namespace}/deployments/{name}")
    return answer.json() if answer.status_code == 200 else {}


def why(fleet: Fleet) -> Any:
    pods = fleet.api.get(f"/api/v1/namespaces/{fleet.namespace}/pods").json()["items"]
    return {
        "pool": fleet.pool().get("status"),
        "deployment": deployment(fleet).get("status"),
        "pods": [(pod["metadata"]["name"], pod["status"]) for pod in pods],
        "instances": fleet.names("grinstances"),
        "table": fleet.table().get("status", {}).get("instances"),
    }


def settled(fleet: Fleet, replicas: int) -> bool:
    status = fleet.pool().get("status", {})
    return condition(fleet.pool(), "InstancesReady").get("status") == "True" and status["instances"]["total"] == replicas


def test_a_managed_pool_gets_its_pods_and_becomes_ready(fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet) -> None:
    quick(fleet)
    fleet.apply("GRServingPool", "pool", managed(replicas=2))
    eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
    fleet.wait_for_condition("grservingpool/pool", "Ready")

    found = deployment(fleet)
    assert found["spec"]["replicas"] == 2
    owned = [entry for entry in found["metadata"]["managedFields"] if entry["manager"] == "grfleet-pool"]
    with_replicas = [entry for entry in owned if "f:replicas" in entry["fieldsV1"].get("f:spec", {})]
    assert [entry.get("subresource") for entry in with_replicas] == ["scale"]
    pods = kubelet.pods()
    assert {pod["metadata"]["name"] for pod in pods} == set(fleet.names("grinstances"))
    for pod in pods:
        instance = fleet.instance(pod["metadata"]["name"])
        assert instance["spec"]["source"] == {
            "kind": "Pod",
            "podName": pod["metadata"]["name"],
            "podUID": pod["metadata"]["uid"],
            "serviceURL": f"http://{kubelet.address(pod['metadata']['name'])}:8000",
            "agentURL": f"http://{kubelet.address(pod['metadata']['name'])}:9001",
            "modelVersion": "1",
        }
    status = fleet.pool()["status"]
    assert (status["replicas"], status["selector"]) == (2, "grfleet.dev/pool=pool")
    assert (status["instances"]["updated"], status["instances"]["draining"]) == (2, 0)
    budget = fleet.api.get(f"/apis/policy/v1/namespaces/{fleet.namespace}/poddisruptionbudgets/pool").json()
    assert budget["spec"]["maxUnavailable"] == 1
