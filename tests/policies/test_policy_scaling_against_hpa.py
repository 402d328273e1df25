"""The same cases given to Kubernetes' own HorizontalPodAutoscaler controller and to our arithmetic: counts and reasons agree.

The real controller manager runs against the small API server of `hpa_api`. Where ours is stricter by intent, the test says so.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hpa_api import CASES, Case, FakeApi, serve

from policies.scaling.decide import ScalingDecision
from policies.scaling.types import (
    AbleToScale,
    ScalingActive,
)
from testbed import processes
from testbed.binaries import find_binaries


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """First status that the real controller wrote for each case."""
    name = "kube-controller-manager"
    program = find_binaries([name]).paths.get(name)
    if program is None:
        pytest.skip(f"no Kubernetes control plane: {name} missing; run `python -m testbed build`")
    api, started, stop = FakeApi(), Future[int](), threading.Event()
    thread = threading.Thread(target=serve, args=(api, started, stop), daemon=True)
    thread.start()
    folder = tmp_path_factory.mktemp("hpa")
    child, identity = start_controller(program, f"http://127.0.0.1:{started.result(timeout=10)}", folder)
    try:
        assert api.all_seen.wait(timeout=90), (folder / "log").read_text()[-3000:]
        yield api.statuses
    finally:
        processes.stop(identity, grace_seconds=1)
        child.wait()
        stop.set()
        thread.join(timeout=10)


def start_controller(program: Path, url: str, folder: Path) -> tuple[Any, processes.Identity]:
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [context],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    identities: list[processes.Identity] = []
    flags = {
        "kubeconfig": folder / "kubeconfig",
        "controllers": "horizontal-pod-autoscaler-controller",
        "leader-elect": "false",
        "use-service-account-credentials": "false",
        "secure-port": 0,
        "kube-api-content-type": "application/json",
        "kube-api-qps": 500,
        "kube-api-burst": 1000,
        "horizontal-pod-autoscaler-sync-period": "2s",
        "feature-gates": "WatchListClient=false,HPAConfigurableTolerance=true",
    }
    child = processes.start(
        "kube-controller-manager",
        [program, *(f"--{name}={value}" for name, value in flags.items())],
        log=folder / "log",
        record=identities.append,
        environment={**os.environ, "GOMAXPROCS": "1"},
    )
    return child, identities[0]


def reason(status: dict[str, Any], type_: str) -> str | None:
    return next((c["reason"] for c in status.get("conditions", ()) if c["type"] == type_), None)


def stricter_by_intent(case: Case, decision: ScalingDecision) -> bool:
    """Whether ours keeps what may be needed: pods that are not ready count as at their target when capacity would shrink."""
    return "Pending" in case.pods and decision.wish.count < case.current


@pytest.mark.parametrize("name", CASES)
def test_the_count_and_its_reasons_are_those_of_the_real_controller(name: str, verdicts: dict[str, dict[str, Any]]) -> None:
    case, status = CASES[name], verdicts[name]
    decision = case.decide()
    theirs = status["desiredReplicas"]
    measured = [pod for pod in case.pods if isinstance(pod, int)]
    if "Pending" in case.pods and (not measured or sum(measured) / len(measured) < 1000.0):
        assert theirs <= decision.count <= max(case.current, theirs), "stricter by intent: those not ready may be needed"
        return
    assert decision.count == theirs
    inside = case.bounds.minimum <= case.current <= case.bounds.maximum
    if not inside or decision.wish.doubt is not None:
        return
    assert decision.active.value == reason(status, "ScalingActive") == ScalingActive.VALID_METRIC_FOUND.value
    assert decision.limited.value == reason(status, "ScalingLimited")
    if decision.count == case.current:
        assert decision.able.value == reason(status, "AbleToScale")


def test_a_failed_metric_is_inactive_there_and_in_doubt_here(verdicts: dict[str, dict[str, Any]]) -> None:
    held = [c for c in CASES.values() if c.totals and set(c.totals) == {None} and c.bounds.clamp(c.current) == c.current]
    assert held, "another seed"
    for case in held:
        assert reason(verdicts[case.name], "ScalingActive") == "FailedGetExternalMetric"
        assert case.decide().active is ScalingActive.METRIC_MISSING


def test_the_cases_cover_what_they_are_for() -> None:
    decisions = {name: case.decide() for name, case in CASES.items()}
    assert {d.limited.value for d in decisions.values()} >= {
        "TooManyReplicas",
        "TooFewReplicas",
        "ScaleUpLimit",
        "ScaleDownLimit",
    }
    assert {d.able for d in decisions.values()} == set(AbleToScale)
    assert any(d.count > d.current for d in decisions.values())
    assert any(d.count < d.current for d in decisions.values())
    assert any(stricter_by_intent(CASES[name], d) for name, d in decisions.items())
