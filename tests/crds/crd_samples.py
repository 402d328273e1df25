"""A small valid object of each kind, and helpers to send one to the API server."""

from __future__ import annotations

import copy
from typing import Any

import httpx

from crds import API_VERSION, BY_NAME, GROUP, VERSION

Json = dict[str, Any]

POOL_SPEC: Json = {
    "model": {"name": "ranker", "version": "7", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192},
    "instances": {
        "external": [{"name": "a", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"}],
    },
    "memory": {"hbmBytes": "80Gi", "hbmReservedBytes": "20Gi"},
    "slo": {"p99Ms": 50},
}
MANAGED: Json = {"managed": {"template": {"spec": {"containers": [{"name": "engine", "image": "engine:1"}]}}}}
INTENT: Json = {
    "strategy": "MissRatioCurve",
    "enforcement": "Active",
    "bounds": {},
    "step": {},
    "refill": {},
    "p99Ms": 50,
    "policyRef": {"name": "default", "source": "Defaults"},
}
SPECS: dict[str, Json] = {
    "GRServingPool": POOL_SPEC,
    "GRInstance": {
        "poolRef": "pool",
        "source": {"kind": "External", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"},
        "intent": INTENT,
    },
    "HBMPolicy": {},
    "RoutingPolicy": {},
    "PreInferencePolicy": {},
    "AllocatorModel": {"configMapKeyRef": {"name": "weights"}, "sha256": "0" * 64, "featureSpec": "split-features-1"},
    "GRRoutingTable": {"poolRef": "pool"},
}


def sample(kind: str, name: str = "sample") -> Json:
    """A valid object with few fields written."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": copy.deepcopy(SPECS[kind])}


def with_value(body: Json, path: str, value: Any) -> Json:
    """A copy with the value at a dotted path; ``...`` removes the field, a number is a list index."""
    changed = copy.deepcopy(body)
    *parents, last = path.split(".")
    at: Any = changed
    for step in parents:
        at = at[int(step)] if step.isdecimal() else at.setdefault(step, {})
    if value is ...:
        del at[last]
    else:
        at[int(last) if last.isdecimal() else last] = copy.deepcopy(value)
    return changed


def collection(kind: str, namespace: str) -> str:
    """Path of the kind's collection in a namespace."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{BY_NAME[kind].plural}"


def dry_run(api: httpx.Client, namespace: str, body: Json) -> httpx.Response:
    """What the API server would answer to a create, with unknown fields refused."""
    parameters = {"dryRun": "All", "fieldValidation": "Strict"}
    return api.post(collection(body["kind"], namespace), params=parameters, json=body)


def create(api: httpx.Client, namespace: str, body: Json) -> Json:
    """Create the object and return it as stored."""
    answer = api.post(collection(body["kind"], namespace), params={"fieldValidation": "Strict"}, json=body)
    assert answer.is_success, answer.text
    stored: Json = answer.json()
    return stored
