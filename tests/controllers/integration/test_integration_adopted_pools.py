"""Pods that somebody else runs, and autoscalers on the scale of a pool; scheduler and kubelet are played."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from integration_fleet import Fleet, condition, pool_spec
from integration_kubelet import Kubelet
from runtime_operator import OperatorProcess

from testbed.patience import eventually

pytestmark = pytest.mark.slow


def pod(name: str, *, ports: tuple[str, ...] = ("gr", "grfleet-agent"), **labels: str) -> dict[str, Any]:
    numbers = {"gr": 8000, "grfleet-agent": 9001}
    listed = [{"name": each, "containerPort": numbers[each]} for each in ports]
    spec = {"containers": [{"name": "engine", "image": "engine:1", "ports": listed}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def make(fleet: Fleet, *pods: dict[str, Any]) -> None:
    for each in pods:
        fleet.api.post(f"/api/v1/namespaces/{fleet.namespace}/pods", json=each).raise_for_status()


def remove(fleet: Fleet, name: str) -> None:
    fleet.api.delete(f"/api/v1/namespaces/{fleet.namespace}/pods/{name}").raise_for_status()


def adopting(**labels: str) -> dict[str, Any]:
    return {**pool_spec([]), "instances": {"adopted": {"matchLabels": labels}}}


def said(fleet: Fleet, name: str = "pool") -> tuple[str, str]:
    found = condition(fleet.pool(name), "InstancesReady")
    return found.get("reason", ""), found.get("message", "")


def test_pods_that_carry_the_labels_are_adopted_and_followed_through_their_lives(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    fleet.apply("RoutingPolicy", "default", {"drain": {"deadlineSeconds": 2}, "warmup": {"maxSeconds": 1}})
    make(fleet, pod("a", app="engine"), pod("unlabelled", app="other"))
    fleet.apply("GRServingPool", "pool", adopting(app="engine"))
    eventually(lambda: said(fleet)[0] == "AllReady", why=lambda: said(fleet))
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    assert fleet.names("grinstances") == ["a"]
    assert fleet.pool()["status"]["selector"] == "app=engine"
    first = fleet.instance("a")["metadata"]["uid"]

    make(fleet, pod("b", app="engine"), pod("no-agent", ports=("gr",), app="engine"))
    eventually(lambda: said(fleet)[0] == "SidecarMissing", why=lambda: said(fleet))
    assert "grfleet-agent in: no-agent;" in said(fleet)[1]
    remove(fleet, "no-agent")
    eventually(lambda: said(fleet)[0] == "AllReady", why=lambda: said(fleet))
    assert fleet.pool()["status"]["replicas"] == 2

    # The same name with another uid, as a StatefulSet makes it, is another instance.
    remove(fleet, "a")
    eventually(lambda: "a" not in {each["metadata"]["name"] for each in kubelet.pods()})
    make(fleet, pod("a", app="engine"))
    eventually(lambda: fleet.instance("a").get("metadata", {}).get("uid") not in (None, first), why=lambda: fleet.instance("a"))
    eventually(lambda: said(fleet)[0] == "AllReady", why=lambda: said(fleet))

    # A pod that loses the label leaves the pool and goes on running.
    path = f"/api/v1/namespaces/{fleet.namespace}/pods/b"
    headers = {"content-type": "application/merge-patch+json"}
    fleet.api.patch(path, json={"metadata": {"labels": {"app": "mine"}}}, headers=headers).raise_for_status()
    eventually(lambda: fleet.names("grinstances") == ["a"])

    fleet.apply("GRServingPool", "another", adopting(app="engine"))
    eventually(lambda: said(fleet)[0] == "LabelsOverlap" and said(fleet, "another")[0] == "LabelsOverlap")
    assert fleet.instance("a")["spec"]["poolRef"] == "pool"
    fleet.delete("grservingpools", "pool")
    eventually(lambda: fleet.instance("a").get("spec", {}).get("poolRef") == "another", why=lambda: said(fleet, "another"))
    assert {each["metadata"]["name"] for each in kubelet.pods()} == {"a", "b", "unlabelled"}, "pods of others stay"


def test_an_autoscaler_reads_and_writes_the_scale_of_a_pool(fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet) -> None:
    container = {"name": "engine", "image": "engine:1", "ports": [{"name": "gr", "containerPort": 8000}]}
    container["resources"] = {"requests": {"cpu": "1"}}
    template = {"spec": {"containers": [container]}}
    spec = {**pool_spec([]), "instances": {"managed": {"template": template}}, "scaling": {"mode": "HPA"}}
    fleet.apply("GRServingPool", "pool", spec)
    eventually(lambda: said(fleet)[0] == "AllReady", why=lambda: said(fleet))
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "pool", "namespace": fleet.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRServingPool", "name": "pool"},
            "minReplicas": 3,
            "maxReplicas": 5,
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
            ],
        },
    }
    fleet.plane.kubectl("apply", "-f", "-", input=json.dumps(scaler))

    def seen() -> dict[str, Any]:
        path = f"/apis/autoscaling/v2/namespaces/{fleet.namespace}/horizontalpodautoscalers/pool"
        status: dict[str, Any] = fleet.api.get(path).json().get("status", {})
        return status

    eventually(lambda: len(fleet.names("grinstances")) == 3 and said(fleet)[0] == "AllReady", why=seen)  # below its least
    scale = fleet.api.get(f"/apis/grfleet.dev/v1alpha1/namespaces/{fleet.namespace}/grservingpools/pool/scale").json()
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 3, "selector": "grfleet.dev/pool=pool"}
    eventually(lambda: seen().get("currentReplicas") == 3, why=seen)
    assert condition({"status": seen()}, "AbleToScale")["status"] == "True"
    time.sleep(1)
    managers = {entry["manager"]: entry for entry in fleet.pool()["metadata"]["managedFields"]}
    assert not [
        name
        for name, entry in managers.items()
        if name.startswith("grfleet-") and "f:replicas" in str(entry["fieldsV1"].get("f:spec"))
    ], "nobody of ours writes spec.replicas beside the autoscaler"
