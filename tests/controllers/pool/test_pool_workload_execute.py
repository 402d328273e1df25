"""How Deployment, budget, marks and gates reach the API server: in which order, with which guards, and what a refusal becomes."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pod_objects import managed_pool, pod

from controllers.pool.actions import ApplyDeployment, MarkPod, OpenGate, ScaleDeployment
from controllers.pool.pod_world import outcome_of
from controllers.pool.workload import AgentImage, deployment_body, disruption_budget_body
from controllers.pool.workload_execute import (
    BUDGET_SECONDS,
    REFUSAL_SECONDS,
    Refused,
    WorkloadMemory,
    carry_out,
    ensure_budget,
)
from controllers.runtime.clock import FakeClock
from controllers.runtime.errors import Conflict, Forbidden, KindMissing, Transient
from controllers.runtime.kube import HttpKubeApi
from controllers.runtime.loop import Context
from controllers.runtime.resources import DEPLOYMENTS, PODS, POOLS, Key
from controllers.runtime.store import Store
from crds import GRServingPool, RoutingPolicySpec

POOL = managed_pool(3)
KEY = Key("team", "pool")
BODY = deployment_body(GRServingPool.parse(POOL), POOL, agent=AgentImage(reference="agent:1"), policy=RoutingPolicySpec())


class Server:
    """Answers like an API server: applies are merged into one object a path, ownership of spec.replicas included."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.refuse: tuple[int, dict[str, Any]] | None = None
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.clock = FakeClock()
        self.memory = WorkloadMemory()
        self.store = Store([POOLS, PODS, DEPLOYMENTS])
        kube = HttpKubeApi(self.answer, clock=self.clock, rng=random.Random(1), attempts=1)
        self.context = cast(Context, SimpleNamespace(kube=kube, store=self.store, clock=self.clock))

    async def answer(self, method: str, path: str, headers: Any, body: Any, timeout: float) -> tuple[int, dict[str, str], str]:
        path = path.split("?")[0]
        self.sent.append((method, path, body))
        if self.refuse is not None and not path.endswith("/scale"):
            return self.refuse[0], {}, json.dumps(self.refuse[1])
        if method == "GET":
            found = self.objects.get(path)
            missing = {"reason": "NotFound", "details": {"name": "pool"}}
            return (200, {}, json.dumps(found)) if found else (404, {}, json.dumps(missing))
        self.version += 1
        base = path.removesuffix("/scale").removesuffix("/status")
        old = self.objects.get(base, {"spec": {"replicas": 1}})
        spec = {**old.get("spec", {}), **body.get("spec", {})}
        kept = {"uid": "uid-of-it", **old.get("metadata", {}), **body["metadata"], "resourceVersion": str(self.version)}
        if not path.endswith("/scale"):
            owned = {"f:spec": {f"f:{name}": {} for name in body.get("spec", {})}}
            kept["managedFields"] = [{"manager": "grfleet-pool", "operation": "Apply", "fieldsV1": owned}]
        self.objects[base] = {**old, **body, "metadata": kept, "spec": spec}
        return 200, {}, json.dumps(self.objects[base])

    def summary(self) -> list[tuple[str, Any]]:
        """(last part of the path, spec.replicas that was sent) of each request."""
        return [(path.rsplit("/", 1)[1], (body.get("spec") or {}).get("replicas")) for _, path, body in self.sent]

    def born(self) -> dict[str, Any]:
        """The Deployment as it stands in the store."""
        found = self.store.get(DEPLOYMENTS, KEY)
        assert found is not None
        return dict(found)


def birth() -> ApplyDeployment:
    return ApplyDeployment(body=BODY, digest="d", current=None, replicas=3)


async def test_a_new_deployment_starts_with_the_wanted_number_which_its_scale_then_takes_over() -> None:
    server = Server()
    await carry_out(birth(), server.context, server.memory)
    assert server.summary() == [("pool", 3), ("scale", 3), ("pool", None)]
    first, scale, last = (body["metadata"] for _, _, body in server.sent)
    assert first["resourceVersion"] == "1", "no object has that version: the name must be free"
    assert scale["resourceVersion"] == "101"
    assert last["uid"] == "uid-of-it"
    applied = server.memory.applied(KEY)
    assert applied is not None
    assert applied.outcome == outcome_of(server.born())


async def test_a_process_that_died_after_the_first_write_is_finished_by_the_next_and_the_number_stays() -> None:
    server = Server()
    await server.context.kube.apply(DEPLOYMENTS, {**BODY, "spec": {**BODY["spec"], "replicas": 3}}, field_manager="grfleet-pool")
    server.store.upsert(DEPLOYMENTS, next(iter(server.objects.values())))
    server.sent.clear()
    again = ApplyDeployment(body=BODY, digest="d", current=server.born(), replicas=3)
    await carry_out(again, server.context, server.memory)
    assert server.summary() == [("scale", 3), ("pool", None)]


async def test_a_later_change_is_one_write_that_says_nothing_of_the_number() -> None:
    server = Server()
    await carry_out(birth(), server.context, server.memory)
    server.sent.clear()
    await carry_out(ApplyDeployment(body=BODY, digest="e", current=server.born(), replicas=9), server.context, server.memory)
    assert server.summary() == [("pool", None)]


async def test_a_resize_names_the_version_that_it_was_decided_for() -> None:
    server = Server()
    await carry_out(birth(), server.context, server.memory)
    server.sent.clear()
    await carry_out(ScaleDeployment(current=server.born(), replicas=2), server.context, server.memory)
    ((_, path, body),) = server.sent
    assert path.endswith("/deployments/pool/scale")
    assert body["metadata"]["resourceVersion"] == server.born()["metadata"]["resourceVersion"]


async def test_a_resize_beside_another_change_of_the_same_plan_names_the_version_that_this_left() -> None:
    server = Server()
    await carry_out(birth(), server.context, server.memory)
    seen = server.born()
    await carry_out(ApplyDeployment(body=BODY, digest="e", current=seen, replicas=3), server.context, server.memory)
    server.sent.clear()
    await carry_out(ScaleDeployment(current=seen, replicas=2), server.context, server.memory)
    assert server.sent[0][2]["metadata"]["resourceVersion"] == server.born()["metadata"]["resourceVersion"]
    assert server.born()["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]


def status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (status(422, "Invalid", "spec.template.spec.containers[0].image: Required value"), "DeploymentRefused"),
        (status(400, "BadRequest", "strict decoding error"), "DeploymentRefused"),
        (status(500, "", "failed to create typed patch object: .spec.x: field not declared in schema"), "DeploymentRefused"),
        (status(403, "Forbidden", 'admission webhook "w" denied the request: no'), "DeploymentRefused"),
        (status(403, "Forbidden", "deployments.apps is forbidden: exceeded quota: few"), "QuotaExceeded"),
        (
            status(500, "", "failed to convert new object (team/pool): unable to convert unstructured object to x"),
            "DeploymentRefused",
        ),
        (status(500, "", "etcdserver: request is too large"), "DeploymentRefused"),
        (status(500, "InternalError", 'failed calling webhook "w": connect: connection refused'), "DeploymentRefused"),
        (status(413, "RequestEntityTooLarge", "limit is 3145728"), "DeploymentRefused"),
        *[
            (status(code, reason, 'admission webhook "w" denied the request: no'), "DeploymentRefused")
            for code, reason in ((400, ""), (401, "Unauthorized"), (409, "Conflict"), (422, ""), (429, ""), (500, ""))
        ],
        (status(401, "Unauthorized", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"), "DeploymentRefused"),
    ],
)
async def test_a_refusal_is_remembered_for_a_while_with_its_words(answer: tuple[int, dict[str, Any]], expected: str) -> None:
    server = Server()
    server.refuse = answer
    with pytest.raises(Refused):
        await carry_out(birth(), server.context, server.memory)
    refusal = server.memory.refusal(KEY, now_s=server.clock.monotonic())
    assert refusal is not None
    assert (refusal.digest, refusal.reason) == ("d", expected)
    assert answer[1]["message"] in refusal.message
    over_s = server.clock.monotonic() + REFUSAL_SECONDS
    assert server.memory.refusal(KEY, now_s=over_s) is None
    assert server.memory.seconds_to_retry(KEY, now_s=over_s - 7.0) == pytest.approx(7.0)
    assert server.memory.seconds_to_retry(KEY, now_s=over_s) is None, "a pool that is paused by then is not looked at in a circle"
    server.refuse = None
    await carry_out(birth(), server.context, server.memory)
    assert server.memory.seconds_to_retry(KEY, now_s=server.clock.monotonic()) is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(403, "Forbidden", 'deployments.apps is forbidden: User "x" cannot patch resource'), Forbidden),
        (status(503, "ServiceUnavailable", "starting"), Transient),
        (status(500, "", "etcdserver: request timed out"), Transient),
        (status(429, "TooManyRequests", "slow down"), Transient),
        (status(401, "Unauthorized", "Unauthorized"), Transient),
        (status(409, "Conflict", "the object has been modified"), Conflict),
        (status(404, "NotFound", "the server could not find the requested resource"), KindMissing),
    ],
)
async def test_what_lies_with_the_operator_or_passes_by_itself_is_no_refusal(
    answer: tuple[int, dict[str, Any]], error: type[Exception]
) -> None:
    server = Server()
    server.refuse = answer
    with pytest.raises(error):
        await carry_out(birth(), server.context, server.memory)
    assert server.memory.refusal(KEY, now_s=server.clock.monotonic()) is None


async def test_a_budget_is_looked_at_now_and_then_and_written_only_when_it_is_missing() -> None:
    server, body = Server(), disruption_budget_body(GRServingPool.parse(POOL), POOL)
    for _ in range(3):
        await ensure_budget(body, POOL, server.context, server.memory)
    assert [method for method, _, _ in server.sent] == ["GET", "PATCH"]
    await server.clock.advance(BUDGET_SECONDS + 1)
    server.objects.clear()
    await ensure_budget(body, POOL, server.context, server.memory)
    assert [method for method, _, _ in server.sent] == ["GET", "PATCH"] * 2


async def test_a_budget_of_somebody_else_is_left_alone() -> None:
    server, body = Server(), disruption_budget_body(GRServingPool.parse(POOL), POOL)
    path = "/apis/policy/v1/namespaces/team/poddisruptionbudgets/pool"
    server.objects[path] = {"metadata": {"name": "pool", "uid": "theirs", "ownerReferences": []}}
    for _ in range(2):
        await ensure_budget(body, POOL, server.context, server.memory)
    assert [method for method, _, _ in server.sent] == ["GET"]


async def test_a_budget_of_a_deleted_pool_of_this_name_is_waited_for() -> None:
    server, body = Server(), disruption_budget_body(GRServingPool.parse(POOL), POOL)
    path = "/apis/policy/v1/namespaces/team/poddisruptionbudgets/pool"
    owner = {"kind": "GRServingPool", "name": "pool", "uid": "uid-of-the-predecessor"}
    server.objects[path] = {"metadata": {"name": "pool", "uid": "old", "ownerReferences": [owner]}}
    await ensure_budget(body, POOL, server.context, server.memory)
    server.objects.clear()
    await ensure_budget(body, POOL, server.context, server.memory)
    assert [method for method, _, _ in server.sent] == ["GET", "GET", "PATCH"]


async def test_a_mark_is_bound_to_the_pod_and_a_gate_to_what_was_seen_of_it() -> None:
    server, chosen = Server(), pod("a", warm=False).stored
    await carry_out(MarkPod(pod=chosen, deletion_cost="-5"), server.context, server.memory)
    await carry_out(MarkPod(pod=chosen, deletion_cost=None), server.context, server.memory)
    await carry_out(OpenGate(pod=chosen), server.context, server.memory)
    marked, unmarked, opened = (body for _, _, body in server.sent)
    assert marked["metadata"]["annotations"] == {"controller.kubernetes.io/pod-deletion-cost": "-5"}
    assert "annotations" not in unmarked["metadata"]
    assert marked["metadata"]["uid"] == unmarked["metadata"]["uid"] == "uid-a"
    assert opened["metadata"]["resourceVersion"] == "30"
    (condition,) = opened["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("grfleet.dev/warm", "True")


def test_the_memory_of_a_pool_goes_with_it() -> None:
    memory = WorkloadMemory()
    memory.note_budget(KEY, "x", now_s=0.0)
    memory.forget(KEY)
    assert not memory.budget_stands(KEY, "x", now_s=0.0)
