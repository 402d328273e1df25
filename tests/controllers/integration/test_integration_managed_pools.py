"""Managed pools against the real API server and its controllers; scheduler and kubelet are played."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from integration_fleet import OPERATOR, Fleet, condition, pool_spec
from integration_kubelet import Kubelet
from runtime_operator import OperatorProcess, running_operator

from testbed.patience import eventually

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


def pods_by_version(kubelet: Kubelet) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pod in kubelet.pods():
        found.setdefault(pod["metadata"]["labels"]["grfleet.dev/model-version"], []).append(pod["metadata"]["name"])
    return found


def drain_of(fleet: Fleet, name: str) -> dict[str, Any]:
    return fleet.instance(name).get("spec", {}).get("drain") or {}


def test_a_pool_is_resized_through_its_scale_and_gives_up_the_instance_that_holds_least_after_a_drain(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet, drain={"deadlineSeconds": 600})
    fleet.apply("GRServingPool", "pool", managed())
    eventually(lambda: settled(fleet, 1), why=lambda: why(fleet))
    least: list[str] = []
    kubelet.resident_bytes = lambda name: 1 if name in least else 1 << 30
    kubelet.in_flight = lambda name: 2

    fleet.plane.kubectl("scale", "-n", fleet.namespace, "grp/pool", "--replicas=3")
    eventually(lambda: settled(fleet, 3), why=lambda: why(fleet))
    assert fleet.pool()["status"]["replicas"] == deployment(fleet)["spec"]["replicas"] == 3
    least.append(sorted(fleet.names("grinstances"))[1])
    time.sleep(11)  # so often the agents are asked

    fleet.plane.kubectl("scale", "-n", fleet.namespace, "grp/pool", "--replicas=2")
    eventually(lambda: drain_of(fleet, least[0]), why=lambda: why(fleet))
    assert [name for name in fleet.names("grinstances") if drain_of(fleet, name)] == least
    assert drain_of(fleet, least[0])["reason"] == "ScaleDown"
    draining = f"2 of 2 instances are ready; draining: {least[0]}"
    eventually(lambda: condition(fleet.pool(), "InstancesReady").get("message") == draining, why=lambda: why(fleet))
    assert condition(fleet.pool(), "Ready")["status"] == "True", "as many serve as are wanted"
    assert fleet.pool()["status"]["instances"]["draining"] == 1
    assert deployment(fleet)["spec"]["replicas"] == 3, "nobody goes before the drain is over"

    # Called off: the instance is needed again.
    fleet.plane.kubectl("scale", "-n", fleet.namespace, "grp/pool", "--replicas=3")
    eventually(lambda: not drain_of(fleet, least[0]), why=lambda: why(fleet))
    marks = lambda: [pod["metadata"].get("annotations") or {} for pod in kubelet.pods()]  # noqa: E731 - asked again and again
    eventually(lambda: not [mark for mark in marks() if "controller.kubernetes.io/pod-deletion-cost" in mark], why=marks)

    fleet.plane.kubectl("scale", "-n", fleet.namespace, "grp/pool", "--replicas=2")
    eventually(lambda: drain_of(fleet, least[0]), why=lambda: why(fleet))
    kubelet.in_flight = lambda name: 0
    eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
    assert least[0] not in fleet.names("grinstances")
    assert deployment(fleet)["spec"]["replicas"] == 2


def test_a_new_model_version_rolls_on_only_as_the_new_instances_get_warm_and_both_serve_meanwhile(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet, warmup={"maxSeconds": 3000}, drain={"deadlineSeconds": 1})
    fleet.apply("GRServingPool", "pool", managed(replicas=2))
    eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
    old = set(fleet.names("grinstances"))
    cold = True
    kubelet.hit_percent = lambda name: 60.0 if name in old or not cold else 1.0

    fleet.patch("grservingpools", "pool", {"model": versioned("2")})
    eventually(lambda: len(fleet.names("grinstances")) == 3, why=lambda: why(fleet))
    served = lambda: {row["name"] for row in fleet.table()["status"]["instances"]}  # noqa: E731 - asked twice
    eventually(lambda: len(served()) == 3, why=lambda: why(fleet))
    (new,) = set(fleet.names("grinstances")) - old
    time.sleep(5)
    assert {version: len(names) for version, names in pods_by_version(kubelet).items()} == {"1": 2, "2": 1}
    message = condition(fleet.pool(), "InstancesReady")["message"]
    assert f"warming up: {new}" in message
    assert "still to be replaced" in message
    assert fleet.pool()["status"]["instances"]["updated"] == 1
    assert condition(fleet.pool(), "Ready")["status"] == "True"

    cold = False
    eventually(lambda: settled(fleet, 2), timeout_seconds=120, why=lambda: why(fleet))
    assert {version: len(names) for version, names in pods_by_version(kubelet).items()} == {"2": 2}
    assert not old & set(fleet.names("grinstances"))


def test_a_pool_that_is_made_smaller_and_given_a_new_version_at_once_comes_to_rest_whichever_pod_goes(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet, churn={"maxMovedPercent": 100, "windowSeconds": 1})
    fleet.apply("GRServingPool", "pool", managed())
    for version, seconds in (("2", 0.0), ("3", 0.3)):
        fleet.patch("grservingpools", "pool", {"replicas": 4})
        eventually(lambda: settled(fleet, 4), timeout_seconds=120, why=lambda: why(fleet))
        fleet.patch("grservingpools", "pool", {"replicas": 3})
        time.sleep(seconds)
        fleet.patch("grservingpools", "pool", {"model": versioned(version)})
        eventually(lambda: not settled(fleet, 3), why=lambda: why(fleet))
        eventually(lambda: settled(fleet, 3), timeout_seconds=120, why=lambda: why(fleet))
        assert {version: 3} == {version: len(names) for version, names in pods_by_version(kubelet).items()}


def test_an_update_without_surge_that_its_deployment_takes_for_a_scaling_event_for_ever_is_pushed_on(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    """The note of another size is what the Deployment controller leaves behind when the size changes between two of its steps."""
    quick(fleet, churn={"maxMovedPercent": 100, "windowSeconds": 1})
    spec = managed(replicas=2)
    spec["instances"]["managed"]["rollout"] = {"maxSurge": 0, "maxUnavailable": 1}
    fleet.apply("GRServingPool", "pool", spec)
    eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
    path = f"/apis/apps/v1/namespaces/{fleet.namespace}/replicasets"
    (name,) = [each["metadata"]["name"] for each in fleet.api.get(path).json()["items"]]
    note = {"metadata": {"annotations": {"deployment.kubernetes.io/desired-replicas": "3"}}}
    headers = {"content-type": "application/merge-patch+json"}
    fleet.api.patch(f"{path}/{name}", json=note, headers=headers).raise_for_status()

    fleet.patch("grservingpools", "pool", {"model": versioned("2")})
    time.sleep(15)
    assert set(pods_by_version(kubelet)) == {"1"}, "the fault of the Deployment controller is mended; this is not needed any more"
    eventually(lambda: settled(fleet, 2) and set(pods_by_version(kubelet)) == {"2"}, timeout_seconds=120, why=lambda: why(fleet))
    assert deployment(fleet)["spec"]["replicas"] == 2


def test_a_pod_that_is_deleted_drains_while_it_ends_and_its_successor_is_another_instance(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet)
    fleet.apply("GRServingPool", "pool", managed())
    eventually(lambda: settled(fleet, 1), why=lambda: why(fleet))
    (name,) = fleet.names("grinstances")
    kubelet.ends = lambda pod: pod != name

    fleet.api.delete(f"/api/v1/namespaces/{fleet.namespace}/pods/{name}").raise_for_status()
    eventually(lambda: drain_of(fleet, name).get("reason") == "Terminating", why=lambda: why(fleet))
    eventually(lambda: condition(fleet.instance(name), "Ready").get("reason") == "Draining", why=lambda: fleet.instance(name))
    eventually(lambda: len(fleet.names("grinstances")) == 2, why=lambda: why(fleet))
    kubelet.ends = lambda pod: True
    eventually(lambda: name not in fleet.names("grinstances") and settled(fleet, 1), why=lambda: why(fleet))


def test_what_the_api_server_or_the_pods_object_to_stands_in_the_conditions(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet)

    def said(name: str) -> tuple[str, str]:
        found = condition(fleet.pool(name), "InstancesReady")
        return found.get("reason", ""), found.get("message", "")

    fleet.apply("GRServingPool", "no-port", managed({"spec": {"containers": [{"name": "engine", "image": "engine:1"}]}}))
    fleet.apply("GRServingPool", "no-image", managed({"spec": {"containers": [{"name": "engine", "ports": ENGINE["ports"]}]}}))
    fleet.apply("GRServingPool", "unknown", managed({"spec": {"containers": [{**ENGINE, "imag": "engine:1"}]}}))
    eventually(lambda: said("no-port")[0] == "TemplateInvalid", why=lambda: said("no-port"))
    assert "names no port gr" in said("no-port")[1]
    assert condition(fleet.pool("no-port"), "Ready")["reason"] == "WorkloadHeld"
    eventually(lambda: said("no-image")[0] == "DeploymentRefused", why=lambda: said("no-image"))
    assert "spec.template.spec.containers[0].image" in said("no-image")[1]
    eventually(lambda: said("unknown")[0] == "DeploymentRefused", why=lambda: said("unknown"))
    assert "imag" in said("unknown")[1]
    assert not [deployment(fleet, name) for name in ("no-port", "no-image", "unknown") if deployment(fleet, name)]

    # Mended, it goes on at once.
    fleet.apply("GRServingPool", "no-port", managed())
    eventually(lambda: said("no-port")[0] == "AllReady", why=lambda: said("no-port"))

    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    fleet.api.post(f"/api/v1/namespaces/{fleet.namespace}/resourcequotas", json=quota).raise_for_status()
    eventually(
        lambda: (
            "pods" in (fleet.api.get(f"/api/v1/namespaces/{fleet.namespace}/resourcequotas/few").json()["status"].get("hard", {}))
        )
    )
    fleet.patch("grservingpools", "no-port", {"replicas": 4})
    eventually(lambda: said("no-port")[0] == "QuotaExceeded", why=lambda: said("no-port"))
    assert "exceeded quota: few" in said("no-port")[1]
    fleet.patch("grservingpools", "no-port", {"replicas": 2})
    eventually(lambda: said("no-port")[0] == "AllReady", why=lambda: said("no-port"))

    name = sorted(fleet.names("grinstances"))[0]
    kubelet.waiting[name] = "CrashLoopBackOff"
    eventually(lambda: said("no-port")[0] == "PodsFailing", why=lambda: said("no-port"))
    assert f"{name}: container engine: CrashLoopBackOff" in said("no-port")[1]


def test_deleting_a_managed_pool_leaves_nothing_and_one_of_the_same_name_starts_afresh(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet)
    fleet.apply("GRServingPool", "pool", managed(replicas=2))
    eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
    first = deployment(fleet)["metadata"]["uid"]

    fleet.delete("grservingpools", "pool")
    fleet.apply("GRServingPool", "pool", managed(replicas=1))
    eventually(lambda: settled(fleet, 1) and len(kubelet.pods()) == 1, timeout_seconds=90, why=lambda: why(fleet))
    assert deployment(fleet)["metadata"]["uid"] != first

    fleet.delete("grservingpools", "pool")
    budgets = f"/apis/policy/v1/namespaces/{fleet.namespace}/poddisruptionbudgets"
    replica_sets = f"/apis/apps/v1/namespaces/{fleet.namespace}/replicasets"

    def left() -> list[str]:
        others = [item["metadata"]["name"] for path in (budgets, replica_sets) for item in fleet.api.get(path).json()["items"]]
        pods = [pod["metadata"]["name"] for pod in kubelet.pods()]
        return [*others, *pods, *fleet.names("grinstances"), *deployment(fleet)]

    eventually(lambda: not left(), timeout_seconds=90, why=left)


def test_at_rest_a_managed_pool_is_written_by_nobody_and_what_others_change_in_its_deployment_is_put_back(
    fleet: Fleet, account: Path, namespace: str, tmp_path: Path, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRFLEET_AGENT_IMAGE", "agent:1")

    def versions() -> dict[str, str]:
        pods = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in kubelet.pods()}
        return {**fleet.versions(), **pods, "deployment": deployment(fleet)["metadata"]["resourceVersion"]}

    def rests(operator: OperatorProcess) -> bool:
        before, requests = versions(), operator.metric("rest_client_requests_total")
        time.sleep(15)
        leases_only = operator.metric("rest_client_requests_total") - requests <= 15
        return leases_only and versions() == before

    quick(fleet)
    with running_operator(tmp_path, account, namespace, command=OPERATOR, name="first") as first:
        fleet.apply("GRServingPool", "pool", managed(replicas=2))
        eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
        fleet.wait_for_condition("grservingpool/pool", "SplitSettled")
        assert any(rests(first) for _ in range(6)), "the last numbers and words may take a minute"

        path = f"/apis/apps/v1/namespaces/{fleet.namespace}/deployments/pool"
        edit = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 7}}}}
        headers = {"content-type": "application/strategic-merge-patch+json"}
        fleet.api.patch(path, json=edit, headers=headers).raise_for_status()
        eventually(lambda: deployment(fleet)["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1)
        assert any(rests(first) for _ in range(6))
        first.terminate()
    before = versions()
    with running_operator(tmp_path, account, namespace, command=OPERATOR, name="second") as second:
        eventually(lambda: second.leads() and second.metric("controller_runtime_reconcile_total") >= 4)
        time.sleep(3)
        assert versions() == before


def test_while_paused_instances_follow_their_pods_and_nothing_else_moves(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    quick(fleet)
    fleet.apply("GRServingPool", "pool", managed(replicas=2))
    eventually(lambda: settled(fleet, 2), why=lambda: why(fleet))
    fleet.patch("grservingpools", "pool", {"paused": True})
    fleet.wait_for_condition("grservingpool/pool", "Paused")

    fleet.patch("grservingpools", "pool", {"replicas": 1, "model": versioned("2")})
    gone = fleet.names("grinstances")[0]
    fleet.api.delete(f"/api/v1/namespaces/{fleet.namespace}/pods/{gone}").raise_for_status()
    eventually(lambda: gone not in fleet.names("grinstances") and len(fleet.names("grinstances")) == 2, why=lambda: why(fleet))
    time.sleep(2)
    assert deployment(fleet)["spec"]["replicas"] == 2
    assert set(pods_by_version(kubelet)) == {"1"}
    assert not [name for name in fleet.names("grinstances") if drain_of(fleet, name)]
