"""Fake nodes: the real scheduler and controllers see pods become Ready, be held back by their gates, and go; nothing stays."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed import processes, release, state
from testbed.binaries import Binaries
from testbed.kwok import FakeCluster, why_not
from testbed.patience import eventually
from testbed.versions import PROGRAMS

GATE = "grfleet.dev/warm"
PODS_OF_KEPT = "/api/v1/namespaces/kept/pods"
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
MERGE = {"content-type": "application/merge-patch+json"}


class Place:
    """A namespace on fake nodes."""

    def __init__(self, cluster: FakeCluster, api: httpx.Client, *, name: str = "") -> None:
        self.cluster, self.api = cluster, api
        self.name = name or f"fake-{secrets.token_hex(4)}"
        api.post("/api/v1/namespaces", json={"metadata": {"name": self.name}})
        self.pods_path = f"/api/v1/namespaces/{self.name}/pods"
        self.deployments = f"/apis/apps/v1/namespaces/{self.name}/deployments"
        eventually(lambda: api.get(f"/api/v1/namespaces/{self.name}/serviceaccounts/default").is_success)

    def deploy(self, replicas: int, **pod_spec: Any) -> None:
        labels = {"app": "d"}
        spec = {"containers": [{"name": "engine", "image": "none"}], **pod_spec}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self.api.post(self.deployments, json={"metadata": {"name": "d"}, "spec": body}).raise_for_status()

    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.api.get(self.pods_path).raise_for_status().json()["items"]
        return items

    def ready(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if condition(pod, "Ready") == "True"]

    def available(self) -> int:
        status: dict[str, int] = self.api.get(f"{self.deployments}/d").raise_for_status().json()["status"]
        return status.get("availableReplicas", 0)

    def open_gate(self, pod: dict[str, Any], status: str) -> None:
        """What the operator does with the gate."""
        patch = {"status": {"conditions": [{"type": GATE, "status": status}]}}
        path = f"{self.pods_path}/{pod['metadata']['name']}/status"
        self.api.patch(path, json=patch, headers=STRATEGIC).raise_for_status()


def condition(pod: dict[str, Any], type_: str) -> str:
    return next((each["status"] for each in pod["status"].get("conditions") or () if each["type"] == type_), "")


@pytest.fixture
def place(kwok_cluster: FakeCluster) -> Iterator[Place]:
    with kwok_cluster.plane.client() as api:
        made = Place(kwok_cluster, api)
        yield made
        api.delete(f"/api/v1/namespaces/{made.name}")


def test_pods_of_a_deployment_become_ready_on_loopback_addresses_and_go_when_it_is_deleted(place: Place) -> None:
    place.deploy(12)
    eventually(lambda: place.available() == 12)
    pods = place.pods()
    addresses = {pod["status"]["podIP"] for pod in pods}
    assert len(addresses) == 12
    assert all(address.startswith("127.") for address in addresses)
    assert {pod["spec"]["nodeName"] for pod in pods} <= {f"fake-{number:04}" for number in range(4)}
    assert all(pod["status"]["containerStatuses"][0]["ready"] for pod in pods)

    place.api.patch(f"{place.deployments}/d/scale", json={"spec": {"replicas": 5}}, headers=MERGE)
    eventually(lambda: len(place.pods()) == 5)

    place.api.delete(f"{place.deployments}/d", params={"propagationPolicy": "Background"}).raise_for_status()
    eventually(lambda: not place.pods())


def test_a_pod_with_a_gate_is_ready_exactly_while_its_owner_holds_the_gate_open(place: Place) -> None:
    place.deploy(2, readinessGates=[{"conditionType": GATE}, {"conditionType": "example.com/second"}])
    eventually(lambda: [condition(pod, "ContainersReady") for pod in place.pods()] == ["True", "True"])
    first, second = place.pods()
    assert [condition(pod, "Ready") for pod in (first, second)] == ["False", "False"]

    place.open_gate(first, "True")
    place.api.patch(
        f"{place.pods_path}/{first['metadata']['name']}/status",
        json={"status": {"conditions": [{"type": "example.com/second", "status": "True"}]}},
        headers=STRATEGIC,
    ).raise_for_status()
    place.open_gate(second, "True")  # one of two
    eventually(lambda: place.available() == 1)
    [ready] = place.ready()
    assert ready["metadata"]["name"] == first["metadata"]["name"]
    assert condition(ready, GATE) == "True"  # untouched by the fake kubelet

    place.open_gate(first, "False")
    eventually(lambda: place.available() == 0)
    assert not place.ready()


def test_a_native_sidecar_runs_and_an_init_container_has_completed(place: Place) -> None:
    sidecar = {"name": "grfleet-agent", "image": "none", "restartPolicy": "Always"}
    place.deploy(1, initContainers=[{"name": "first", "image": "none"}, sidecar])
    eventually(lambda: place.available() == 1)

    [pod] = place.pods()
    states = {each["name"]: (*each["state"], each["started"]) for each in pod["status"]["initContainerStatuses"]}
    assert states == {"first": ("terminated", False), "grfleet-agent": ("running", True)}


def test_kwok_may_not_do_more_than_a_kubelet_needs(place: Place) -> None:
    kubeconfig = place.cluster.plane.directory / "kwok.kubeconfig"
    for verb, what in (("get", "secrets"), ("create", "pods"), ("delete", "nodes"), ("patch", "deployments")):
        answer = place.cluster.plane.kubectl("auth", "can-i", verb, what, "-A", kubeconfig=kubeconfig, check=False)
        assert answer.stdout.strip() == "no", (verb, what)


def test_without_its_programs_the_reason_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GRFLEET_TESTBED_ASSETS", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    reason = why_not()

    assert reason is not None
    assert "kwok missing; run `grfleet testbed build --kwok`" in reason


def test_kwok_is_built_because_nothing_vouches_for_its_release() -> None:
    with pytest.raises(release.ReleaseError, match="no checksum"):
        release.artifact(PROGRAMS["kwok"], "x86_64")


def test_a_real_node_and_fake_ones_in_one_cluster_are_refused() -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "testbed", "up", "--node", "--kwok", "3"], capture_output=True, text=True, timeout=60, check=False
    )

    assert refused.returncode == 2
    assert "one real node or fake ones" in " ".join(refused.stderr.split())


def test_a_kept_directory_continues_with_nodes_and_pods_that_were_just_coming_up(kwok_parts: None, tmp_path: Path) -> None:
    with FakeCluster(2, tmp_path / "kept") as first, first.plane.client() as api:
        Place(first, api, name="kept").deploy(3)
        eventually(lambda: len(api.get(PODS_OF_KEPT).json()["items"]) == 3)
    with FakeCluster(3, tmp_path / "kept") as second, second.plane.client() as api:
        place = Place(second, api, name="kept")
        eventually(lambda: len(place.ready()) == 3)
        assert len(api.get("/api/v1/nodes").json()["items"]) == 3


@pytest.mark.usefixtures("kwok_parts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_up_command_starts_fake_nodes_and_nothing_stays_when_it_ends(
    testbed_binaries: Binaries, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    up = subprocess.Popen(
        [sys.executable, "-m", "testbed", "up", "--kwok", "3"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("export KUBECONFIG=")
        [record] = state.records()
        assert {"kwok", "kube-scheduler", "etcd"} <= {process.name for process in record.processes}
        up.send_signal(number)
        up.wait(timeout=20)
        eventually(lambda: not any(processes.is_alive(process) for process in record.processes))
        eventually(lambda: not Path(record.directory).exists())
        eventually(lambda: not state.records())
    finally:
        up.kill()
        up.wait()
        state.sweep()
