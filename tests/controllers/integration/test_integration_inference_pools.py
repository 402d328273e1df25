"""An InferencePool in front of adopted pods, on a real API server that serves that kind, under the operator's own rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from integration_fleet import Fleet, pool_spec
from integration_kubelet import Kubelet
from runtime_operator import OperatorProcess

from controllers.runtime.resources import INFERENCE_POOLS as KIND
from testbed.control_plane import ControlPlane
from testbed.patience import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def kind_served(crds_installed: ControlPlane) -> Iterator[None]:
    """The kind, as far as it matters here; gone afterwards."""
    names = {"plural": KIND.plural, "singular": "inferencepool", "kind": KIND.kind}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{KIND.plural}.{KIND.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in of the tests"},
        },
        "spec": {
            "group": KIND.group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{"name": KIND.version, "served": True, "storage": True, "schema": schema}],
        },
    }
    crds_installed.kubectl("apply", "-f", "-", input=json.dumps(crd))
    crds_installed.kubectl("wait", "--for=condition=Established", "crd", f"{KIND.plural}.{KIND.group}", "--timeout=30s")
    yield
    crds_installed.kubectl("delete", "crd", f"{KIND.plural}.{KIND.group}", "--wait=false")


def engine_pod(name: str) -> dict[str, Any]:
    ports = [{"name": "gr", "containerPort": 8000}, {"name": "grfleet-agent", "containerPort": 9001}]
    spec = {"containers": [{"name": "engine", "image": "engine:1", "ports": ports}]}
    return {"metadata": {"name": name, "labels": {"app": "engine"}}, "spec": spec}


def test_a_pool_says_which_inference_pools_are_in_front_of_it_and_whether_they_fit(
    kind_served: None, fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet
) -> None:
    for name, number in (("fits", 8000), ("elsewhere", 9999)):
        spec = {
            "selector": {"matchLabels": {"app": "engine"}},
            "targetPorts": [{"number": number}],
            "endpointPickerRef": {"name": "ranker-picker", "port": {"number": 9002}},
        }
        body = {"apiVersion": KIND.api_version, "kind": KIND.kind, "metadata": {"name": name}, "spec": spec}
        fleet.api.post(KIND.path(fleet.namespace), json=body).raise_for_status()
    fleet.api.post(f"/api/v1/namespaces/{fleet.namespace}/pods", json=engine_pod("a")).raise_for_status()
    fleet.apply("GRServingPool", "pool", {**pool_spec([]), "instances": {"adopted": {"matchLabels": {"app": "engine"}}}})

    eventually(lambda: fleet.pool().get("status", {}).get("inferencePools"), why=fleet.pool, timeout_seconds=90)

    assert fleet.pool()["status"]["inferencePools"] == [
        {"name": "elsewhere", "state": "PortDiffers", "picker": "ranker-picker", "ports": [9999]},
        {"name": "fits", "state": "Fits", "picker": "ranker-picker", "ports": [8000]},
    ]
