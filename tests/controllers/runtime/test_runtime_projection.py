"""What the store keeps of pods and Deployments, and which of their changes are news."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from controllers.runtime.projection import project_deployment, project_pod
from controllers.runtime.resources import DEPLOYMENTS, PODS, Key
from controllers.runtime.store import BY_POOL, Store, WatchEvent


def pod(name: str = "p", *, labels: dict[str, str] | None = None, version: int = 1, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-05-01T12:00:00Z",
            "labels": {"app": "x"} if labels is None else labels,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 5000, "grfleet.dev/note": "n"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "image": "i",
                    "ports": [{"name": "gr", "containerPort": 8000}, {"containerPort": 1}],
                    "env": [],
                }
            ],
            "initContainers": [{"name": "agent", "ports": [{"name": "grfleet-agent", "containerPort": 9001}]}],
            "volumes": [{"name": f"v{n}"} for n in range(50)],
            "readinessGates": [{"conditionType": "grfleet.dev/warm"}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.9", **status},
    }


def stranger(name: str = "s", **more: Any) -> dict[str, Any]:
    made = pod(name, **more)
    del made["spec"]["initContainers"], made["spec"]["containers"][0]["ports"]
    return made


def test_of_a_pod_with_our_ports_what_the_pool_loop_reads_is_kept_and_nothing_else() -> None:
    kept = project_pod(
        pod(
            conditions=[
                {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "t"},
                {"type": "Initialized", "status": "True"},
            ],
            containerStatuses=[
                {"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}
            ],
        )
    )
    assert kept["spec"] == {"ports": {"gr": 8000, "grfleet-agent": 9001}, "readinessGates": ["grfleet.dev/warm"]}
    assert kept["status"] == {
        "phase": "Running",
        "podIP": "10.0.0.9",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "t"}],
        "waiting": [{"container": "engine", "reason": "CrashLoopBackOff"}],
    }
    assert kept["metadata"]["annotations"] == {"grfleet.dev/note": "n"}
    assert len(json.dumps(kept)) < 700


def test_of_a_pod_without_a_sign_of_ours_labels_and_phase_are_kept() -> None:
    kept = project_pod(stranger())
    assert kept["status"] == {"phase": "Running"}
    assert "spec" not in kept
    assert kept["metadata"]["labels"] == {"app": "x"}
    assert len(json.dumps(kept)) < 300


def test_a_deployment_of_ours_is_kept_whole_and_of_another_only_who_owns_it() -> None:
    owner = {"apiVersion": "v", "kind": "K", "name": "n", "uid": "u", "controller": True, "blockOwnerDeletion": True}
    raw = {
        "metadata": {"name": "d", "namespace": "team", "uid": "u", "resourceVersion": "1", "ownerReferences": [owner]},
        "spec": {"replicas": 2, "template": {"spec": {}}},
        "status": {"replicas": 2},
    }
    assert "spec" not in project_deployment(raw)
    ours = copy.deepcopy(raw)
    ours["metadata"]["labels"] = {"grfleet.dev/pool": "d"}
    kept = project_deployment(ours)
    assert kept["spec"] == raw["spec"]
    assert kept["metadata"]["ownerReferences"] == [{key: value for key, value in owner.items() if key != "blockOwnerDeletion"}]


@pytest.mark.parametrize(
    ("labels", "owner", "whole"),
    [
        ({}, {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRServingPool"}, True),
        ({"grfleet.dev/pool": "d"}, None, True),
        ({}, {"apiVersion": "grfleet.devil/v1", "kind": "GRServingPool"}, False),
        ({}, {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRInstance"}, False),
        ({}, None, False),
    ],
)
def test_a_deployment_stays_ours_when_somebody_takes_its_label_or_its_owner_away(
    labels: dict[str, str], owner: dict[str, str] | None, whole: bool
) -> None:
    metadata: dict[str, Any] = {"name": "d", "namespace": "team", "uid": "u", "resourceVersion": "1", "labels": labels}
    if owner is not None:
        metadata["ownerReferences"] = [{**owner, "name": "d", "uid": "uid-d", "controller": True}]
    assert ("spec" in project_deployment({"metadata": metadata, "spec": {"replicas": 2}})) == whole


def test_a_change_of_what_is_not_kept_is_no_news_but_its_version_is_remembered() -> None:
    store, heard = Store([PODS]), list[WatchEvent]()
    store.subscribe(heard.append)
    store.upsert(PODS, stranger())
    store.upsert(PODS, stranger(version=2, podIP="10.0.0.77", conditions=[{"type": "Ready", "status": "True"}]))
    assert len(heard) == 1
    found = store.get(PODS, Key("team", "s"))
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "2"
    store.upsert(PODS, stranger(version=3, labels={"app": "y"}))
    assert len(heard) == 2
    store.upsert(PODS, pod("p"))
    store.upsert(PODS, pod("p", version=2, podIP="10.0.0.77"))
    assert len(heard) == 4


def test_pods_are_found_by_the_pool_that_their_label_names_and_by_namespace() -> None:
    store = Store([PODS, DEPLOYMENTS])
    store.upsert(PODS, pod("a", labels={"grfleet.dev/pool": "one"}))
    store.upsert(PODS, pod("b", labels={"grfleet.dev/pool": "two"}))
    store.upsert(PODS, stranger())
    assert [each["metadata"]["name"] for each in store.of_pool(PODS, Key("team", "one"))] == ["a"]
    assert [each["metadata"]["name"] for each in store.in_namespace(PODS, "team")] == ["a", "b", "s"]
    store.upsert(PODS, pod("a", labels={"grfleet.dev/pool": "two"}, version=2))
    assert store.of_pool(PODS, Key("team", "one")) == []
    store.drop(PODS, Key("team", "b"))
    assert [each["metadata"]["name"] for each in store.by_index(PODS, BY_POOL, Key("team", "two"))] == ["a"]
