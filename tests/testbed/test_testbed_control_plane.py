"""The control plane is a real one: RBAC, garbage collection, durable data, several at once."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from testbed.binaries import Binaries
from testbed.control_plane import ControlPlane, ControlPlaneError
from testbed.kubectl import KubectlError
from testbed.patience import eventually


def config_map(name: str, **metadata: object) -> dict[str, object]:
    return {"metadata": {"name": name, **metadata}, "data": {"a": "b"}}


def test_a_service_account_without_rights_is_refused(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "default")

    answer = control_plane.kubectl("get", "configmaps", kubeconfig=kubeconfig, check=False)

    assert answer.returncode == 1
    assert "Forbidden" in answer.stderr
    assert f"system:serviceaccount:{namespace}:default" in answer.stderr


def test_a_service_account_may_do_what_a_role_grants_and_no_more(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "default")
    control_plane.kubectl("create", "role", "reader", "--verb=list,get", "--resource=configmaps", "-n", namespace)
    account = f"{namespace}:default"
    control_plane.kubectl("create", "rolebinding", "r", "--role=reader", f"--serviceaccount={account}", "-n", namespace)

    def readable() -> bool:  # the API server learns of a new binding a moment later
        return control_plane.kubectl("get", "configmaps", kubeconfig=kubeconfig, check=False).returncode == 0

    assert eventually(readable)
    with pytest.raises(KubectlError, match="cannot create resource"):
        control_plane.kubectl("create", "configmap", "c", kubeconfig=kubeconfig)


def test_a_request_without_a_valid_token_is_unauthorised(control_plane: ControlPlane) -> None:
    with control_plane.client(token="wrong") as stranger:
        assert stranger.get("/api/v1/namespaces").status_code == httpx.codes.UNAUTHORIZED


def test_deleting_an_owner_deletes_its_dependants(kube_api: httpx.Client, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = kube_api.post(maps, json=config_map("owner")).raise_for_status().json()["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    kube_api.post(maps, json=config_map("dependant", ownerReferences=[reference])).raise_for_status()

    kube_api.delete(f"{maps}/owner").raise_for_status()

    assert eventually(lambda: kube_api.get(f"{maps}/dependant").status_code == httpx.codes.NOT_FOUND)


def test_a_deleted_namespace_goes_away(kube_api: httpx.Client) -> None:
    kube_api.post("/api/v1/namespaces", json={"metadata": {"name": "short-lived"}}).raise_for_status()

    kube_api.delete("/api/v1/namespaces/short-lived").raise_for_status()

    gone = lambda: kube_api.get("/api/v1/namespaces/short-lived").status_code == httpx.codes.NOT_FOUND  # noqa: E731 - a name for the condition
    assert eventually(gone)


def test_two_run_at_once_and_data_survives_restarts_of_the_api_server(
    own_control_plane: ControlPlane, kube_api: httpx.Client
) -> None:
    second = own_control_plane
    with second.client() as client:
        assert client.base_url != kube_api.base_url
        client.post("/api/v1/namespaces/default/configmaps", json=config_map("kept")).raise_for_status()
        assert kube_api.get("/api/v1/namespaces/default/configmaps/kept").status_code == httpx.codes.NOT_FOUND
        url = second.url

        second.kill_api_server()
        with pytest.raises(httpx.ConnectError):
            client.get("/readyz")
        second.start_api_server()

        assert second.url == url
        assert client.get("/api/v1/namespaces/default/configmaps/kept").is_success
        second.restart_api_server()
        assert client.get("/api/v1/namespaces/default/configmaps/kept").is_success
        client.post("/api/v1/namespaces", json={"metadata": {"name": "late"}}).raise_for_status()
        account = "/api/v1/namespaces/late/serviceaccounts/default"
        assert eventually(lambda: client.get(account).is_success), "the controllers did not survive"


def test_the_garbage_collector_knows_new_kinds_at_once_after_its_restart(
    control_plane: ControlPlane, kube_api: httpx.Client, namespace: str
) -> None:
    group = f"{namespace}.example.com"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    kube_api.post(definitions, json=definition).raise_for_status()
    things = f"/apis/{group}/v1/namespaces/{namespace}/things"
    try:
        assert eventually(lambda: kube_api.get(things).is_success)
        control_plane.restart_controller_manager()
        head = {"apiVersion": f"{group}/v1", "kind": "Thing"}
        owner = kube_api.post(things, json={**head, "metadata": {"name": "owner"}}).raise_for_status().json()
        reference = {**head, "name": "owner", "uid": owner["metadata"]["uid"]}
        dependant = {**head, "metadata": {"name": "dependant", "ownerReferences": [reference]}}
        kube_api.post(things, json=dependant).raise_for_status()

        kube_api.delete(f"{things}/owner").raise_for_status()

        gone = f"{things}/dependant"
        assert eventually(lambda: kube_api.get(gone).status_code == httpx.codes.NOT_FOUND, timeout_seconds=15)
    finally:
        kube_api.delete(f"{definitions}/things.{group}")


def test_a_component_that_does_not_start_is_reported_with_its_log_and_nothing_stays(
    testbed_binaries: Binaries, tmp_path: Path
) -> None:
    broken = ControlPlane(tmp_path / "cp", binaries=testbed_binaries, api_server_flags=["--no-such-flag=1"])

    with pytest.raises(ControlPlaneError, match="no-such-flag"):
        broken.start()

    assert broken.process_ids() == {}
