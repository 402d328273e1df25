"""Faults around a running operator: API server restarts, lost deletions, edited CRDs, replicas killed and frozen."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from runtime_operator import OperatorProcess, operator_account, running_operator, wait_for
from runtime_pools import create_pool, pools_path, ready_condition

from testbed.control_plane import ControlPlane

CRDS = Path(__file__).resolve().parents[3] / "crds" / "manifests"


@pytest.fixture
def own_plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane of this test alone, to be restarted at will; the session's one says that the programs are there."""
    with ControlPlane(binaries=control_plane.binaries) as plane:
        plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS), timeout_seconds=90)
        yield plane


def create_instance(api: httpx.Client, namespace: str, name: str, pool: str = "pool") -> None:
    intent = {
        "strategy": "MissRatioCurve",
        "enforcement": "Active",
        "bounds": {},
        "step": {},
        "refill": {},
        "p99Ms": 50,
        "policyRef": {"name": "default", "source": "Defaults"},
    }
    source = {"kind": "External", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"}
    body = {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRInstance",
        "metadata": {"name": name},
        "spec": {"poolRef": pool, "source": source, "intent": intent},
    }
    path = f"/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grinstances"
    api.post(path, json=body).raise_for_status()


def message(api: httpx.Client, namespace: str, name: str = "pool") -> str:
    condition = ready_condition(api, namespace, name)()
    return str(condition and condition["message"])


@pytest.mark.slow
def test_deletions_lost_across_an_api_server_restart_are_swept_and_acted_on(own_plane: ControlPlane, tmp_path: Path) -> None:
    """The operator is frozen while the server restarts twice with the deletions in between, so no watch can know of them."""
    namespace = "default"
    kubeconfig = operator_account(own_plane, namespace)
    with own_plane.client() as api, running_operator(tmp_path, kubeconfig, namespace) as operator:
        create_pool(api, namespace)
        for name in ("a", "b", "c"):
            create_instance(api, namespace, name)
        wait_for(lambda: message(api, namespace) == "3 instances", operator)
        operator.child.send_signal(signal.SIGSTOP)
        own_plane.restart_api_server()
        for name in ("a", "b", "c"):
            api.delete(f"/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grinstances/{name}").raise_for_status()
        own_plane.restart_api_server()
        operator.child.send_signal(signal.SIGCONT)
        found = wait_for(ready_condition(api, namespace), operator)
        wait_for(lambda: ready_condition(api, namespace)()["reason"] == "NoInstances", operator, seconds=60)
        assert found is not None
        assert operator.metric("grfleet_sweep_ghosts_total") == 3
        create_instance(api, namespace, "d")
        wait_for(lambda: message(api, namespace) == "1 instances", operator)
        code, _ = operator.terminate()
    assert code == 0


@pytest.mark.slow
def test_an_api_server_crash_and_an_edited_crd_are_survived_at_work(own_plane: ControlPlane, tmp_path: Path) -> None:
    namespace = "default"
    kubeconfig = operator_account(own_plane, namespace)
    with own_plane.client() as api, running_operator(tmp_path, kubeconfig, namespace) as operator:
        create_pool(api, namespace, "before")
        wait_for(ready_condition(api, namespace, "before"), operator)

        own_plane.kill_api_server()
        time.sleep(3)  # the operator meets a refused connection, not only a short break
        own_plane.start_api_server()
        create_pool(api, namespace, "after-crash")
        wait_for(ready_condition(api, namespace, "after-crash"), operator)

        patch = [
            {
                "op": "add",
                "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/extra",
                "value": {"type": "string"},
            }
        ]
        own_plane.kubectl("patch", "crd", "grservingpools.grfleet.dev", "--type=json", "-p", json.dumps(patch))
        api.delete(f"{pools_path(namespace)}/before").raise_for_status()
        create_pool(api, namespace, "after-edit")
        wait_for(ready_condition(api, namespace, "after-edit"), operator)
        wait_for(lambda: operator.metric("grfleet_store_objects") == 2, operator)
        assert httpx.get(f"{operator.address()}/healthz", timeout=5).status_code == 200
        code, seconds = operator.terminate()
    assert code == 0
    assert seconds < 8  # far from the times after which loops are cut off, also on a busy machine


def leaders(operators: list[OperatorProcess]) -> list[OperatorProcess]:
    return [each for each in operators if each.leads()]


@pytest.mark.slow
def test_of_three_replicas_one_leads_through_sigterm_sigkill_and_a_freeze(
    crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = operator_account(crds_installed, namespace)

    def start(name: str):  # type: ignore[no-untyped-def] # a context manager
        return running_operator(tmp_path, kubeconfig, namespace, "--identity", name, name=name)

    with start("a") as a, start("b") as b, start("c") as c, start("d") as d:
        alive = [a, b, c, d]

        def takeover(seconds: float = 40) -> OperatorProcess:
            found: list[OperatorProcess] = wait_for(lambda: leaders(alive), seconds=seconds)
            assert len(found) == 1
            return found[0]

        wait_for(lambda: all(each.ready() for each in alive))  # followers are ready too
        first = takeover()
        alive.remove(first)
        code, _ = first.terminate()
        assert code == 0
        second = takeover(seconds=10)  # far below the 15 seconds of a lease that nobody gave back

        create_pool(kube_api, namespace, "one")
        wait_for(ready_condition(kube_api, namespace, "one"), second)

        alive.remove(second)
        second.child.kill()
        third = takeover()

        alive.remove(third)
        third.child.send_signal(signal.SIGSTOP)
        fourth = takeover()
        create_pool(kube_api, namespace, "two")
        wait_for(ready_condition(kube_api, namespace, "two"), fourth)
        third.child.send_signal(signal.SIGCONT)
        wait_for(lambda: third.metric("leader_election_master_status") == 0)
        assert third.child.poll() is None
        assert fourth.leads()
        for each in (third, fourth):
            try:
                each.terminate()
            except subprocess.TimeoutExpired:
                pytest.fail("a replica did not end")
