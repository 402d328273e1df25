"""What a real API server makes of the manifests: established, explained, scaled, selected, printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from crd_samples import MANAGED, collection, create, dry_run, sample, with_value

import crds
from contract.table import pack_slots
from crds.generate import crd_documents
from testbed.pytest_plugin import Kubectl

pytestmark = pytest.mark.usefixtures("crds_installed")

DOCUMENTS = crd_documents()
KINDS = pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def fields_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        yield where, child
        yield from fields_of(child, where)
        yield from fields_of(child.get("items", {}), f"{where}[]")


def managed_pool() -> dict[str, Any]:
    return with_value(sample("GRServingPool"), "spec.instances", MANAGED)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_manifest_is_accepted_without_a_warning(kube_api: httpx.Client, name: str) -> None:
    document = DOCUMENTS[name]
    parameters = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "check", "force": "true"}
    answer = kube_api.patch(
        f"{DEFINITIONS}/{document['metadata']['name']}",
        params=parameters,
        content=json.dumps(document),
        headers={"content-type": "application/apply-patch+yaml"},
    )
    assert answer.is_success, answer.text
    assert answer.headers.get_list("warning") == []


@KINDS
def test_every_kind_is_established_with_a_structural_schema(kube_api: httpx.Client, kind: crds.Kind[Any]) -> None:
    status = kube_api.get(f"{DEFINITIONS}/{kind.crd_name}").json()["status"]
    conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@KINDS
def test_kubectl_explains_every_field(kubectl: Kubectl, kind: crds.Kind[Any]) -> None:
    for part in ("spec", "status"):
        if part in kind.model.model_fields:
            text = kubectl("explain", f"{kind.plural}.{part}").stdout
            assert "<no description>" not in text
            assert "DESCRIPTION:" in text
    recursive = kubectl("explain", "--recursive", kind.plural).stdout
    assert "spec" in recursive


@KINDS
def test_a_sample_is_accepted_in_a_server_side_dry_run_and_not_stored(
    kube_api: httpx.Client, namespace: str, kind: crds.Kind[Any]
) -> None:
    answer = dry_run(kube_api, namespace, sample(kind.name))
    assert answer.status_code == httpx.codes.CREATED, answer.text
    assert answer.headers.get_list("warning") == []
    assert kube_api.get(collection(kind.name, namespace)).json()["items"] == []


@pytest.mark.parametrize("kind", [kind for kind in crds.KINDS if kind.example], ids=lambda kind: kind.name)
def test_the_example_in_the_reference_is_accepted(kubectl: Kubectl, namespace: str, kind: crds.Kind[Any]) -> None:
    reference = (Path(crds.__file__).parent.parent / "docs/reference/api.md").read_text("utf-8")
    section = reference.split(f"\n## {kind.name}\n", 1)[1]
    example = section.split("```yaml\n", 1)[1].split("```", 1)[0]
    kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", input=example)
    assert yaml.safe_load(example)["spec"] == kind.example


@KINDS
def test_the_published_openapi_has_a_text_for_every_field(kube_api: httpx.Client, kind: crds.Kind[Any]) -> None:
    schemas = kube_api.get(f"/openapi/v3/apis/{crds.GROUP}/{crds.VERSION}").raise_for_status().json()["components"]["schemas"]
    schema = schemas[f"dev.grfleet.{crds.VERSION}.{kind.name}"]
    silent = [path for path, part in fields_of(schema) if path.startswith(("spec", "status")) and not part.get("description")]
    assert silent == []


@KINDS
def test_short_names_and_the_category_work(
    kube_api: httpx.Client, kubectl: Kubectl, namespace: str, kind: crds.Kind[Any]
) -> None:
    create(kube_api, namespace, sample(kind.name))
    for resource in (*kind.short_names, "grfleet"):
        assert "sample" in kubectl("get", resource, "-n", namespace, "-o", "name").stdout


def test_kubectl_scale_moves_a_managed_pool(kube_api: httpx.Client, kubectl: Kubectl, namespace: str) -> None:
    create(kube_api, namespace, managed_pool())
    kubectl("scale", "grp/sample", "--replicas=3", "-n", namespace)
    scale = kube_api.get(f"{collection('GRServingPool', namespace)}/sample/scale").raise_for_status().json()
    assert scale["spec"]["replicas"] == 3


def test_the_scale_subresource_reads_replicas_and_selector_from_status(kube_api: httpx.Client, namespace: str) -> None:
    create(kube_api, namespace, sample("GRServingPool"))
    path = f"{collection('GRServingPool', namespace)}/sample"
    scale = kube_api.get(f"{path}/scale").raise_for_status().json()
    assert scale["spec"]["replicas"] == 1
    assert scale["status"] == {"replicas": 0}

    status = {"status": {"replicas": 1, "selector": "grfleet.dev/pool=sample"}}
    kube_api.patch(f"{path}/status", json=status, headers={"content-type": "application/merge-patch+json"}).raise_for_status()

    assert kube_api.get(f"{path}/scale").json()["status"] == {"replicas": 1, "selector": "grfleet.dev/pool=sample"}


def test_a_pool_of_external_instances_cannot_be_scaled(kube_api: httpx.Client, kubectl: Kubectl, namespace: str) -> None:
    create(kube_api, namespace, sample("GRServingPool"))
    refused = kubectl("scale", "grp/sample", "--replicas=3", "-n", namespace, check=False)
    assert refused.returncode == 1
    assert "replicas can be set only with instances.managed" in refused.stderr


def test_instances_are_selected_by_pool(kube_api: httpx.Client, namespace: str) -> None:
    for name, pool in (("a", "one"), ("b", "two"), ("c", "one")):
        create(kube_api, namespace, with_value(sample("GRInstance", name), "spec.poolRef", pool))
    listed = kube_api.get(collection("GRInstance", namespace), params={"fieldSelector": "spec.poolRef=one"}).json()
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "c"]


@KINDS
def test_every_selectable_field_can_be_selected(kube_api: httpx.Client, namespace: str, kind: crds.Kind[Any]) -> None:
    for path in kind.selectable_fields:
        answer = kube_api.get(collection(kind.name, namespace), params={"fieldSelector": f"{path[1:]}=none"})
        assert answer.is_success, answer.text


@KINDS
def test_status_is_written_only_through_its_subresource(kube_api: httpx.Client, namespace: str, kind: crds.Kind[Any]) -> None:
    if not kind.has_status:
        assert kube_api.get(f"{collection(kind.name, namespace)}/sample/status").status_code == httpx.codes.NOT_FOUND
        return
    stored = create(kube_api, namespace, with_value(sample(kind.name), "status.observedGeneration", 7))
    assert "status" not in stored


def test_a_full_instance_status_is_printed_with_its_numbers(kube_api: httpx.Client, kubectl: Kubectl, namespace: str) -> None:
    create(kube_api, namespace, sample("GRInstance"))
    split = {"embBytes": 40 << 30, "kvBytes": 20 << 30, "embPercent": 67}
    now = "2026-01-01T00:00:00Z"
    status = crds.GRInstanceStatus.model_validate(
        {
            "observedGeneration": 1,
            "split": {"target": {**split, "embPercent": 68}, "accepted": split, "revision": 9, "usableBytes": 60 << 30},
            "strategyInForce": "MissRatioCurve",
            "reason": "Anchor",
            "caches": {"embHitPercent": 91, "kvHitPercent": 74},
            "p99Ms": "41",
            "sloPercent": "99.6",
            "agent": {"reachable": True, "startId": "s-1", "intentGeneration": 1},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "InstanceReady", "lastTransitionTime": now},
                {"type": "SplitSettled", "status": "False", "reason": "Moving", "lastTransitionTime": now},
            ],
        }
    ).to_wire()
    answer = kube_api.patch(
        f"{collection('GRInstance', namespace)}/sample/status",
        params={"fieldValidation": "Strict"},
        json={"status": status},
        headers={"content-type": "application/merge-patch+json"},
    )
    assert answer.is_success, answer.text
    assert answer.json()["status"] == status

    header, row = kubectl("get", "gri", "-n", namespace).stdout.splitlines()

    shown = dict(zip(header.split(), row.split(), strict=True))
    assert shown | {"AGE": ""} == {
        "NAME": "sample",
        "POOL": "pool",
        "READY": "True",
        "TARGET": "68",
        "EMB%": "67",
        "SETTLED": "False",
        "KV-HIT": "74",
        "EMB-HIT": "91",
        "P99": "41",
        "STRATEGY": "MissRatioCurve",
        "REASON": "Anchor",
        "AGE": "",
    }


def test_a_full_pool_status_is_printed_with_its_numbers(kube_api: httpx.Client, kubectl: Kubectl, namespace: str) -> None:
    create(kube_api, namespace, sample("GRServingPool"))
    condition = {"type": "Ready", "status": "True", "reason": "AllInstancesReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {
        "instances": {"total": 4, "ready": 3, "settled": 2, "unreachable": 1},
        "embPercent": {"min": 40, "mean": 52, "max": 60},
        "p99Ms": "41",
        "sloPercent": "99.6",
        "strategyInForce": "MissRatioCurve",
        "conditions": [condition],
    }
    wire = crds.GRServingPoolStatus.model_validate(status).to_wire()
    kube_api.patch(
        f"{collection('GRServingPool', namespace)}/sample/status",
        json={"status": wire},
        headers={"content-type": "application/merge-patch+json"},
    ).raise_for_status()

    header, row = kubectl("get", "grp", "-n", namespace).stdout.splitlines()

    shown = dict(zip(header.split(), row.split(), strict=True))
    assert shown | {"AGE": ""} == {
        "NAME": "sample",
        "READY": "True",
        "UP": "3",
        "OF": "4",
        "EMB%": "52",
        "P99": "41",
        "SLO%": "99.6",
        "STRATEGY": "MissRatioCurve",
        "REASON": "AllInstancesReady",
        "AGE": "",
    }


def test_kubectl_waits_for_ready(kube_api: httpx.Client, kubectl: Kubectl, namespace: str) -> None:
    generation = create(kube_api, namespace, sample("GRServingPool"))["metadata"]["generation"]
    condition = {"type": "Ready", "status": "True", "reason": "AllInstancesReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"observedGeneration": generation, "conditions": [{**condition, "message": "", "observedGeneration": generation}]}
    kube_api.patch(
        f"{collection('GRServingPool', namespace)}/sample/status",
        json={"status": status},
        headers={"content-type": "application/merge-patch+json"},
    ).raise_for_status()
    kubectl("wait", "--for=condition=Ready", "grp/sample", "-n", namespace, "--timeout=5s")


def test_a_full_table_is_accepted(kube_api: httpx.Client, namespace: str) -> None:
    create(kube_api, namespace, sample("GRRoutingTable"))
    instances = [
        {"name": f"i-{n}", "uid": f"u-{n}", "address": f"http://10.0.0.{n % 250}:9000", "weightPercent": 100, "state": "Ready"}
        for n in range(1024)
    ]
    status = {"generation": 3, "keyId": "k1", "instances": instances, "slots": pack_slots([n % 1024 for n in range(4096)])}
    status["limits"] = {
        "boundedLoadPercent": 125,
        "boundedLoadFloor": 0,
        "hotUsersMax": 0,
        "hotUserSeconds": 1,
        "keyHeader": "x-k",
    }
    answer = kube_api.patch(
        f"{collection('GRRoutingTable', namespace)}/sample/status",
        params={"fieldValidation": "Strict"},
        json={"status": status},
        headers={"content-type": "application/merge-patch+json"},
    )
    assert answer.is_success, answer.text
    assert crds.GRRoutingTable.parse(answer.json()).to_wire()["status"] == status


TRANSITIONS = {
    "a pool cannot change where its instances come from": (
        "GRServingPool",
        "spec.instances",
        MANAGED,
        "instances cannot change between managed, adopted and external",
    ),
    "an instance cannot change its pool": ("GRInstance", "spec.poolRef", "other", "poolRef cannot change"),
    "a table cannot change its pool": ("GRRoutingTable", "spec.poolRef", "other", "poolRef cannot change"),
    "a model cannot change its digest": ("AllocatorModel", "spec.sha256", "1" * 64, "sha256 cannot change"),
    "a model cannot change its features": ("AllocatorModel", "spec.featureSpec", "2", "featureSpec cannot change"),
}


@pytest.mark.parametrize(("kind", "path", "value", "message"), TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_what_must_not_change_is_refused(
    kube_api: httpx.Client, namespace: str, kind: str, path: str, value: Any, message: str
) -> None:
    stored = create(kube_api, namespace, sample(kind))
    answer = kube_api.put(f"{collection(kind, namespace)}/sample", json=with_value(stored, path, value))
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert message in answer.json()["message"]
