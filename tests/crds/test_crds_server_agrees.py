"""Model and API server give the same verdict on every object and fill in the same defaults."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from crd_samples import MANAGED, Json, dry_run, sample, with_value
from crd_strategies import from_schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import crds
from crds.schema import structural_schema
from crds.types import API_VERSION

pytestmark = pytest.mark.usefixtures("crds_installed")

KINDS = pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
CHEAP = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def model_accepts(body: Json) -> bool:
    try:
        crds.BY_NAME[body["kind"]].model.parse(body)
    except ValidationError:
        return False
    return True


def objects(kind: crds.Kind[Any], *, near_misses: bool) -> st.SearchStrategy[Json]:
    spec = from_schema(structural_schema(kind.model)["properties"]["spec"], path="spec", near_misses=near_misses)
    return spec.map(lambda s: {"apiVersion": API_VERSION, "kind": kind.name, "metadata": {"name": "x"}, "spec": s})


@KINDS
def test_what_the_model_accepts_and_serialises_the_server_accepts_unchanged(
    kube_api: httpx.Client, namespace: str, kind: crds.Kind[Any]
) -> None:
    @CHEAP
    @given(body=objects(kind, near_misses=False).filter(model_accepts))
    def check(body: Json) -> None:
        wire = kind.model.parse(body).to_wire()
        sent = {**wire, "metadata": {"name": "x"}}
        answer = dry_run(kube_api, namespace, sent)
        assert answer.is_success, answer.text
        assert answer.json()["spec"] == wire["spec"]

    check()


@KINDS
def test_server_and_model_agree_on_every_verdict_and_every_default(
    kube_api: httpx.Client, namespace: str, kind: crds.Kind[Any]
) -> None:
    @CHEAP
    @given(body=objects(kind, near_misses=True))
    def check(body: Json) -> None:
        answer = dry_run(kube_api, namespace, body)
        assert answer.is_success == model_accepts(body), answer.text
        if answer.is_success:
            assert answer.json()["spec"] == kind.model.parse(body).to_wire()["spec"]

    check()


DEFAULTS: list[tuple[str, str, Any, str, Any]] = [
    # kind, path written, value, path read, default
    ("GRServingPool", "spec.paused", False, "replicas", 1),
    ("GRServingPool", "spec.scaling", {}, "scaling", {"mode": "Manual", "minReplicas": 1}),
    ("GRServingPool", "spec.policies", {"hbm": "x"}, "policies", {"hbm": "x", "routing": "default", "preInference": "default"}),
    ("GRServingPool", "spec.slo", {"p99Ms": 1}, "slo", {"p99Ms": 1, "goodPercent": "99"}),
    ("HBMPolicy", "spec", {}, "strategy", "MissRatioCurve"),
    ("HBMPolicy", "spec", {}, "bounds", {"minEmbPercent": 5, "maxEmbPercent": 95, "fallbackEmbPercent": 50}),
    ("HBMPolicy", "spec.step", {"intervalMs": 50}, "step", {"maxPercentPerSecond": 2, "deadbandPercent": 2, "intervalMs": 50}),
    ("HBMPolicy", "spec", {}, "learned.residual", {"enabled": False, "maxPercent": 20, "minGainPercent": 1}),
    ("RoutingPolicy", "spec", {}, "boundedLoad", {"percent": 125, "floor": 8}),
    ("RoutingPolicy", "spec.userKeySecret", {"name": "s"}, "userKeySecret.key", "key"),
    ("PreInferencePolicy", "spec.behavior", {"scaleDown": {}}, "behavior.scaleDown.stabilizationWindowSeconds", 300),
    ("PreInferencePolicy", "spec.behavior", {}, "behavior.scaleUp.stabilizationWindowSeconds", 0),
    ("AllocatorModel", "spec.configMapKeyRef", {"name": "w"}, "configMapKeyRef.key", "model.safetensors"),
]


@pytest.mark.parametrize(("kind", "path", "value", "read", "default"), DEFAULTS)
def test_defaults_are_the_documented_ones_on_both_sides(
    kube_api: httpx.Client, namespace: str, kind: str, path: str, value: Any, read: str, default: Any
) -> None:
    body = with_value(sample(kind), path, value)
    stored = dry_run(kube_api, namespace, body).raise_for_status().json()["spec"]
    parsed = crds.BY_NAME[kind].model.parse(body).to_wire()["spec"]
    for spec in (stored, parsed):
        at: Any = spec
        for step in read.split("."):
            at = at[step]
        assert at == default


def test_enforcement_has_no_server_default_because_it_depends_on_the_strategy(kube_api: httpx.Client, namespace: str) -> None:
    stored = dry_run(kube_api, namespace, sample("HBMPolicy")).raise_for_status().json()
    assert "enforcement" not in stored["spec"]


def test_a_policy_without_a_spec_gets_every_default(kube_api: httpx.Client, namespace: str) -> None:
    for kind in ("HBMPolicy", "RoutingPolicy", "PreInferencePolicy"):
        body = {key: value for key, value in sample(kind).items() if key != "spec"}
        stored = dry_run(kube_api, namespace, body).raise_for_status().json()
        assert stored["spec"] == crds.BY_NAME[kind].model.parse(body).to_wire()["spec"]


def test_an_explicit_null_is_dropped_and_defaulted_on_both_sides(kube_api: httpx.Client, namespace: str) -> None:
    body = with_value(with_value(sample("GRServingPool"), "spec.instances", MANAGED), "spec.replicas", None)
    stored = dry_run(kube_api, namespace, body).raise_for_status().json()
    assert stored["spec"] == crds.GRServingPool.parse(body).to_wire()["spec"]
