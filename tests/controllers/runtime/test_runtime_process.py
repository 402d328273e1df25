"""The operator as a real process on a real API server, under a ServiceAccount with exactly the operator's rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest
from runtime_operator import ROOT, operator_account, running_operator, wait_for
from runtime_pools import create_pool, pools_path, ready_condition

from testbed.control_plane import ControlPlane


def test_it_serves_a_pool_and_ends_within_two_seconds_of_sigterm_with_the_lease_given_back(
    crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = operator_account(crds_installed, namespace)
    create_pool(kube_api, namespace)
    with running_operator(tmp_path, kubeconfig, namespace) as operator:
        condition = wait_for(ready_condition(kube_api, namespace), operator)
        assert condition["reason"] == "NoInstances"
        assert operator.ready()
        assert httpx.get(f"{operator.address()}/healthz", timeout=5).status_code == 200
        assert operator.metric("leader_election_master_status") == 1
        events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        found = wait_for(lambda: [e for e in kube_api.get(events).json()["items"] if e["reason"] == "NoInstances"], operator)
        assert found[0]["regarding"]["kind"] == "GRServingPool"
        code, seconds = operator.terminate()
    assert code == 0, operator.log.read_text()
    assert seconds < 8  # far from the times after which loops are cut off, also on a busy machine
    lease = kube_api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/grfleet-operator").json()
    assert not lease["spec"].get("holderIdentity")


def test_a_restart_into_a_steady_world_writes_nothing(
    crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = operator_account(crds_installed, namespace)
    create_pool(kube_api, namespace)
    with running_operator(tmp_path, kubeconfig, namespace, name="first") as operator:
        wait_for(ready_condition(kube_api, namespace), operator)
    before = kube_api.get(f"{pools_path(namespace)}/pool").json()["metadata"]["resourceVersion"]
    with running_operator(tmp_path, kubeconfig, namespace, "--leader-elect=off", name="second") as operator:
        wait_for(lambda: operator.metric("controller_runtime_reconcile_total") >= 1, operator)
        assert 'verb="patch"' not in httpx.get(f"{operator.address()}/metrics", timeout=5).text
    assert kube_api.get(f"{pools_path(namespace)}/pool").json()["metadata"]["resourceVersion"] == before


def test_a_missing_verb_is_named_and_the_process_does_not_start(
    crds_installed: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = operator_account(
        crds_installed, namespace, without=lambda rule: rule["resources"] in (["grinstances"], ["grservingpools/status"])
    )
    with running_operator(tmp_path, kubeconfig, namespace) as operator:
        assert operator.child.wait(timeout=30) == 3
        said = [line["message"] for line in operator.lines() if line["level"] == "error"]
    assert any(f"list grinstances.grfleet.dev in namespace {namespace}" in line for line in said), said
    assert any("patch grservingpools.grfleet.dev/status" in line for line in said), said


def test_sigterm_while_the_api_server_is_away_ends_it_too(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"server": "http://127.0.0.1:1"}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": cluster}],
        "contexts": [context],
        "users": [{"name": "x", "user": {}}],
    }
    kubeconfig.write_text(json.dumps(config))
    with running_operator(tmp_path, kubeconfig, "somewhere") as operator:
        assert httpx.get(f"{operator.address()}/readyz", timeout=5).status_code == 503
        wait_for(lambda: any("does not answer yet" in line["message"] for line in operator.lines()), operator)
        code, seconds = operator.terminate()
    assert code == 0
    assert seconds < 8  # far from the times after which loops are cut off, also on a busy machine


def test_kopf_run_starts_the_same_operator(
    crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = operator_account(crds_installed, namespace)
    command = [sys.executable, "-m", "kopf", "run", "--log-format=json", "-n", namespace, str(ROOT / "operator" / "main.py")]
    with running_operator(tmp_path, kubeconfig, namespace, command=command) as operator:
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/grfleet-operator"
        wait_for(lambda: kube_api.get(lease).json().get("spec", {}).get("holderIdentity"), operator)
        code, seconds = operator.terminate()
    assert code == 0, operator.log.read_text()
    assert seconds < 8  # far from the times after which loops are cut off, also on a busy machine
    assert not kube_api.get(lease).json()["spec"].get("holderIdentity")


@pytest.mark.parametrize("flags", [("--metrics-port", "99999"), ("--leader-elect", "perhaps")])
def test_a_flag_that_makes_no_sense_is_refused_with_usage(flags: tuple[str, ...], tmp_path: Path) -> None:
    with running_operator(tmp_path, tmp_path / "none", "ns", *flags) as operator:
        assert operator.child.wait(timeout=20) == 2
        assert flags[0] in operator.log.read_text()
