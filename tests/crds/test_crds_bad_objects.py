"""Objects that the API server refuses, each with a message that names the field to correct."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from crd_samples import MANAGED, dry_run, sample, with_value
from pydantic import ValidationError

from crds import BY_NAME

pytestmark = pytest.mark.usefixtures("crds_installed")

EXTERNAL = {"name": "a", "serviceURL": "http://a:1", "agentURL": "http://a:2"}
MANY = [{**EXTERNAL, "name": f"a{n}"} for n in range(257)]
UP = "spec.behavior.scaleUp"

# kind, path of the bad value (... removes the field), value, what the message must contain
BAD: list[tuple[str, str, Any, str]] = [
    ("GRServingPool", "spec.model.name", ..., "spec.model.name: Required"),
    ("GRServingPool", "spec.model.name", "Not_A_Label", "spec.model.name"),
    ("GRServingPool", "spec.model.kvBytesPerToken", 0, "spec.model.kvBytesPerToken"),
    ("GRServingPool", "spec.model.maxHistoryTokens", 1.5, "spec.model.maxHistoryTokens"),
    ("GRServingPool", "spec.model.attention", "Quadratic", "spec.model.attention"),
    ("GRServingPool", "spec.memory.hbmBytes", "lots", "spec.memory.hbmBytes"),
    ("GRServingPool", "spec.memory.hbmBytes", 80, "spec.memory.hbmBytes"),
    ("GRServingPool", "spec.memory.hbmReservedBytes", "80Gi", "memory.hbmReservedBytes must be smaller"),
    ("GRServingPool", "spec.slo.p99Ms", -1, "spec.slo.p99Ms"),
    ("GRServingPool", "spec.slo.goodPercent", "100.1", "spec.slo.goodPercent"),
    ("GRServingPool", "spec.slo.goodPercent", 99.6, "spec.slo.goodPercent"),
    ("GRServingPool", "spec.instances", {}, "spec.instances: Invalid value"),
    ("GRServingPool", "spec.instances.managed", MANAGED["managed"], "instances needs exactly one of"),
    ("GRServingPool", "spec.instances.external", [], "spec.instances.external"),
    ("GRServingPool", "spec.instances.external", [EXTERNAL, EXTERNAL], "spec.instances.external[1]: Duplicate"),
    ("GRServingPool", "spec.instances.external", MANY, "spec.instances.external: Too many"),
    ("GRServingPool", "spec.instances.external.0.serviceURL", "ftp://a:1", "spec.instances.external[0].serviceURL"),
    ("GRServingPool", "spec.instances.external.0.agentURL", ..., "spec.instances.external[0].agentURL: Required"),
    ("GRServingPool", "spec.instances", {"adopted": {"matchLabels": {}}}, "spec.instances.adopted.matchLabels"),
    ("GRServingPool", "spec.instances", {"adopted": {"matchLabels": {"-x": "y"}}}, "adopted.matchLabels has a key"),
    ("GRServingPool", "spec.scaling.mode", "HPA", "scaling.mode must be Manual"),
    ("GRServingPool", "spec.scaling.mode", "KEDA", "spec.scaling.mode"),
    ("GRServingPool", "spec.scaling", {"minReplicas": 5, "maxReplicas": 4}, "scaling.minReplicas must not be above"),
    ("GRServingPool", "spec.replicas", 3, "spec.replicas"),
    ("GRServingPool", "spec.replicas", "3", "spec.replicas"),
    ("GRServingPool", "spec.policies.hbm", "Bad Name", "spec.policies.hbm"),
    ("GRServingPool", "spec.paused", "yes", "spec.paused"),
    ("GRServingPool", "spec.tpu", True, 'unknown field "spec.tpu"'),
    ("GRInstance", "spec.poolRef", ..., "spec.poolRef: Required"),
    ("GRInstance", "spec.source.kind", "Pod", "source.podName is required"),
    ("GRInstance", "spec.intent.policyRef", ..., "spec.intent.policyRef: Required"),
    ("GRInstance", "spec.intent.bounds", {"minEmbPercent": 60}, "bounds.fallbackEmbPercent must lie between"),
    ("GRInstance", "spec.preInfer", {"slots": 1, "bytes": -1}, "spec.preInfer.bytes"),
    ("HBMPolicy", "spec.strategy", "Oracle", "spec.strategy"),
    ("HBMPolicy", "spec.strategy", "Learned", "learned.model is required"),
    ("HBMPolicy", "spec.enforcement", "Advisory", "spec.enforcement"),
    ("HBMPolicy", "spec.bounds.maxEmbPercent", 101, "spec.bounds.maxEmbPercent"),
    ("HBMPolicy", "spec.bounds", {"minEmbPercent": 70, "maxEmbPercent": 60}, "bounds.minEmbPercent must not be above"),
    ("HBMPolicy", "spec.bounds", {"maxEmbPercent": 40}, "bounds.fallbackEmbPercent must lie between"),
    ("HBMPolicy", "spec", {"step": {"deadbandPercent": 50}, "bounds": {"minEmbPercent": 46}}, "step.deadbandPercent"),
    ("HBMPolicy", "spec.step.intervalMs", 1, "spec.step.intervalMs"),
    ("HBMPolicy", "spec.step.maxPercentPerSecond", 0, "spec.step.maxPercentPerSecond"),
    ("HBMPolicy", "spec.refill.maxBytesPerSecond", "2GB/s", "spec.refill.maxBytesPerSecond"),
    ("HBMPolicy", "spec.rollout.canaryPercent", 0, "spec.rollout.canaryPercent"),
    ("RoutingPolicy", "spec.boundedLoad.percent", 100, "spec.boundedLoad.percent"),
    ("RoutingPolicy", "spec.churn.windowSeconds", 0, "spec.churn.windowSeconds"),
    ("RoutingPolicy", "spec.keyHeader", "X-User", "spec.keyHeader"),
    ("RoutingPolicy", "spec.userKeySecret", {"key": "k"}, "spec.userKeySecret.name: Required"),
    ("PreInferencePolicy", "spec.slotsPerInstance", {"min": 9}, "slotsPerInstance.min must not be above"),
    ("PreInferencePolicy", f"{UP}.policies", [], f"{UP}.policies"),
    ("PreInferencePolicy", f"{UP}.policies", [{"type": "Nodes", "value": 1, "periodSeconds": 1}], f"{UP}.policies[0].type"),
    ("PreInferencePolicy", f"{UP}.stabilizationWindowSeconds", 3601, f"{UP}.stabilizationWindowSeconds"),
    ("PreInferencePolicy", f"{UP}.tolerance", "10%", f"{UP}.tolerance"),
    ("AllocatorModel", "spec.sha256", "A" * 64, "spec.sha256"),
    ("AllocatorModel", "spec.configMapKeyRef", ..., "spec.configMapKeyRef: Required"),
    ("GRRoutingTable", "spec.poolRef", "", "spec.poolRef"),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), BAD, ids=[f"{b[0]}:{b[1]}={b[2]!r:.40}" for b in BAD])
def test_a_bad_object_is_refused_with_a_message_that_names_the_field(
    kube_api: httpx.Client, namespace: str, kind: str, path: str, value: Any, message: str
) -> None:
    body = sample(kind)
    if path == "spec.scaling":
        body["spec"]["instances"] = MANAGED
    body = with_value(body, path, value)

    answer = dry_run(kube_api, namespace, body)

    assert answer.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY}, answer.text
    assert message in answer.json()["message"]
    if "unknown field" not in message:  # which the operator ignores, so that it can be rolled back
        with pytest.raises(ValidationError):
            BY_NAME[kind].model.parse(body)
