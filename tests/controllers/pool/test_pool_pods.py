"""What the pool loop decides for pools of pods, and what their conditions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from loop_objects import NOW, at, condition_item, instance_object, pool_object
from pod_objects import deployment, managed_pool, pod, pod_instance

from controllers.parsed import ParsedObjects
from controllers.pool.actions import (
    ApplyDeployment,
    ApplyInstance,
    DeleteInstance,
    MarkPod,
    OpenGate,
    ScaleDeployment,
    WriteReadiness,
)
from controllers.pool.decide import Plan, decide
from controllers.pool.observe import Observation, read_instance
from controllers.pool.pod_decide import workload_of
from controllers.pool.pod_world import Applied, PodWorld, Refusal, outcome_of
from controllers.pool.workload import AgentImage
from controllers.runtime.conditions import find_condition
from crds import GRInstance, GRServingPool, RoutingPolicySpec
from crds.pool_instances import MAX_REPLICAS

AGENT = AgentImage(reference="agent:1")
ADOPTED = {"adopted": {"matchLabels": {"app": "engine"}}}


def look(pool: dict[str, Any], *instances: dict[str, Any], **world: Any) -> Observation:
    strangers = world.pop("strangers", {})
    world.setdefault("agent", AGENT)
    world.setdefault("policy", RoutingPolicySpec())
    return Observation(
        pool=GRServingPool.parse(pool),
        stored=pool,
        instances=tuple(read_instance(each, ParsedObjects()) for each in instances),
        strangers=strangers,
        world=PodWorld(**{**world, "pods": tuple(world.pop("pods", ()))}),
    )


def standing(seen: Observation, replicas: int | None = None) -> Observation:
    """The same with a Deployment that came of the body that the pool asks for."""
    assert seen.world is not None
    made = seen.world.deployment or deployment(seen.pool.spec.replicas if replicas is None else replicas)
    world = replace(seen.world, deployment=made)
    applied = Applied(body=workload_of(seen, world).digest, outcome=outcome_of(made))
    return replace(seen, world=replace(world, applied=applied))


def said(plan: Plan, type_: str = "InstancesReady") -> tuple[str, str, str]:
    assert plan.status is not None
    item = find_condition(plan.status["conditions"], type_)
    assert item is not None
    return item["status"], item["reason"], item["message"]


def of(plan: Plan, kind: type) -> list[Any]:
    return [action for action in plan.actions if isinstance(action, kind)]


def test_a_new_pool_gets_its_deployment_with_as_many_pods_as_wanted_and_a_budget() -> None:
    plan = decide(look(managed_pool(3)), NOW)
    (action,) = of(plan, ApplyDeployment)
    assert (action.replicas, action.current) == (3, None)
    assert "replicas" not in action.body["spec"]
    assert plan.budget is not None
    assert said(plan)[:2] == ("False", "Progressing")
    assert said(plan)[2] == "0 of 3 instances are ready; pods to be created: 3"


def test_each_pod_with_an_address_gets_an_instance_of_its_name_and_version() -> None:
    pods = [pod("a", version="8"), pod("b", address=None, ready=False, warm=False), pod("six", address="fd00::1")]
    plan = decide(standing(look(managed_pool(), pods=pods)), NOW)
    made = {action.name: action.source for action in of(plan, ApplyInstance)}
    assert set(made) == {"a", "six"}
    assert made["a"] == {
        "kind": "Pod",
        "podName": "a",
        "podUID": "uid-a",
        "serviceURL": "http://10.0.0.1:8000",
        "agentURL": "http://10.0.0.1:9001",
        "modelVersion": "8",
    }
    assert made["six"]["agentURL"] == "http://[fd00::1]:9001"
    for name, source in made.items():
        stored = instance_object(name, managed_pool())
        stored["spec"]["source"] = source
        GRInstance.parse(stored)  # what the API takes
    assert not of(plan, ApplyDeployment)


def test_an_instance_begins_when_its_containers_are_ready_and_outlives_a_restart_of_one() -> None:
    pool = managed_pool()
    pods = [pod("new", ready=False, warm=False), pod("again", ready=False, warm=False), pod("up", ready=False)]
    plan = decide(standing(look(pool, pod_instance("again", pool), pods=pods)), NOW)
    assert [action.name for action in of(plan, ApplyInstance)] == ["up"]
    assert not of(plan, DeleteInstance)


def test_an_instance_whose_pod_is_gone_or_has_another_uid_is_deleted_before_it_is_made_again() -> None:
    pool = managed_pool()
    pods = [pod("same", uid="uid-of-the-successor")]
    plan = decide(standing(look(pool, pod_instance("same", pool), pod_instance("gone", pool), pods=pods)), NOW)
    assert {action.name for action in of(plan, DeleteInstance)} == {"same", "gone"}
    assert not of(plan, ApplyInstance)
    after = decide(standing(look(pool, pods=pods)), NOW)
    assert [action.source["podUID"] for action in of(after, ApplyInstance)] == ["uid-of-the-successor"]


def test_a_pod_being_deleted_drains_and_is_not_made_an_instance_of_any_more() -> None:
    pool = managed_pool()
    pods = [pod("a", terminating=True), pod("late", terminating=True)]
    plan = decide(standing(look(pool, pod_instance("a", pool), pods=pods)), NOW)
    (action,) = of(plan, ApplyInstance)
    assert (action.name, action.drain["reason"]) == ("a", "Terminating")


def test_the_gate_opens_with_the_full_share_and_not_before() -> None:
    pool = managed_pool()
    instances = [pod_instance(name, pool) for name in ("full", "warming", "unlisted", "open")]
    pods = [pod(each, warm=each == "open") for each in ("full", "warming", "unlisted", "open")]
    weights = {"uid-full": 100, "uid-warming": 75, "uid-open": 100}
    plan = decide(standing(look(pool, *instances, pods=pods, weights=weights)), NOW)
    assert [action.pod["metadata"]["name"] for action in of(plan, OpenGate)] == ["full"]


def test_a_smaller_pool_marks_its_victim_first_and_shrinks_when_the_drain_is_over() -> None:
    pool = managed_pool(1)
    pods = [pod("a"), pod("b")]
    seen = look(pool, pod_instance("a", pool), pod_instance("b", pool), pods=pods, resident={"uid-a": 9, "uid-b": 1})
    plan = decide(standing(seen, 2), NOW)
    assert [(action.name, action.drain["reason"]) for action in of(plan, ApplyInstance)] == [("b", "ScaleDown")]
    assert [action.pod["metadata"]["name"] for action in of(plan, MarkPod)] == ["b"]
    assert not of(plan, ScaleDeployment)
    assert plan.requeue_after == 60
    drain = of(plan, ApplyInstance)[0].drain
    over = look(pool, pod_instance("a", pool), pod_instance("b", pool, drain=drain), pods=pods)
    assert [action.replicas for action in of(decide(standing(over, 2), at(60)), ScaleDeployment)] == [1]


def test_a_larger_pool_is_scaled_at_once() -> None:
    plan = decide(standing(look(managed_pool(5), pods=[pod("a"), pod("b")]), 2), NOW)
    assert [action.replicas for action in of(plan, ScaleDeployment)] == [5]


def test_while_paused_instances_follow_their_pods_and_nothing_else_happens() -> None:
    pool = managed_pool(1, paused=True)
    pods = [pod("a", warm=False), pod("b"), pod("new")]
    seen = look(pool, pod_instance("a", pool), pod_instance("gone", pool), pods=pods, weights={"uid-a": 100})
    plan = decide(standing(seen, 3), NOW)
    kinds = {type(action) for action in plan.actions}
    assert kinds == {ApplyInstance, DeleteInstance, WriteReadiness}
    assert {action.name for action in of(plan, ApplyInstance)} == {"b", "new"}
    assert plan.budget is None
    assert not decide(look(managed_pool(1, paused=True)), NOW).actions


def test_a_deployment_that_somebody_changed_is_applied_again_and_one_that_stands_is_not() -> None:
    seen = standing(look(managed_pool()))
    assert not of(decide(seen, NOW), ApplyDeployment)
    assert seen.world is not None
    assert seen.world.deployment is not None
    seen.world.deployment["spec"]["strategy"] = {"type": "Recreate"}  # type: ignore[index]  # made by this test
    assert of(decide(seen, NOW), ApplyDeployment)


@pytest.mark.parametrize("labels", [{}, {"grfleet.dev/pool": "other"}, {"other": "x"}])
@pytest.mark.parametrize("owner", ["uid-pool", "uid-of-a-former-pool", None])
def test_whatever_somebody_made_of_label_and_owner_the_pool_goes_on_and_puts_back_what_is_its(
    labels: dict[str, str], owner: str | None
) -> None:
    plan = decide(look(managed_pool(), deployment=deployment(labels=labels, owner=owner)), NOW)
    assert len(of(plan, ApplyDeployment)) == (owner == "uid-pool")
    assert said(plan)[1] == ("Progressing" if owner else "NameTaken")


def test_a_changed_number_of_replicas_is_no_change_of_what_was_applied() -> None:
    seen = standing(look(managed_pool()), 7)
    assert not of(decide(seen, NOW), ApplyDeployment)


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        ({"agent": AgentImage()}, "AgentImageUnset"),
        ({"policy": None}, "Progressing"),
        ({"deployment": deployment(owner=None)}, "NameTaken"),
        ({"deployment": deployment(owner="uid-of-somebody")}, "Progressing"),
    ],
)
def test_what_keeps_the_deployment_from_being_written_is_said(world: dict[str, Any], expected: str) -> None:
    plan = decide(look(managed_pool(), **world), NOW)
    assert not of(plan, ApplyDeployment)
    assert not of(plan, ScaleDeployment)
    assert said(plan)[1] == expected


def test_a_bad_template_is_said_and_leaves_the_pods_that_run_alone() -> None:
    pool = managed_pool(instances={"managed": {"template": {"spec": {"containers": [{"name": "x"}]}}}}, replicas=1)
    plan = decide(look(pool, pod_instance("a", pool), pods=[pod("a")], deployment=deployment(1)), NOW)
    status, reason, message = said(plan)
    assert (status, reason) == ("False", "TemplateInvalid")
    assert message.endswith("; 1 of 1 instances are ready, from before")
    assert said(plan, "Ready")[:2] == ("False", "WorkloadHeld")
    assert not of(plan, DeleteInstance)


def test_a_refused_body_is_not_sent_again_and_another_one_is() -> None:
    seen = look(managed_pool())
    assert seen.world is not None
    digest = workload_of(seen, seen.world).digest
    refused = look(managed_pool(), refusal=Refusal(digest=digest, reason="DeploymentRefused", message="no"))
    assert not of(decide(refused, NOW), ApplyDeployment)
    assert said(decide(refused, NOW)) == ("False", "DeploymentRefused", "no")
    mended = look(managed_pool(version="2"), refusal=Refusal(digest=digest, reason="DeploymentRefused", message="no"))
    assert of(decide(mended, NOW), ApplyDeployment)


def problem(pool: dict[str, Any], *instances: dict[str, Any], **world: Any) -> tuple[str, str]:
    status, reason, message = said(decide(standing(look(pool, *instances, **world)), NOW))
    assert status == "False"
    return reason, message


def failing(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return deployment(2, conditions=[{"type": type_, "status": status, "reason": reason, "message": message}])


def test_pods_that_cannot_be_made_or_do_not_start_are_said_with_the_reason() -> None:
    pool = managed_pool()
    refused = failing("ReplicaFailure", "True", "FailedCreate", "pods is forbidden: exceeded quota: few")
    assert problem(pool, deployment=refused)[0] == "QuotaExceeded"
    violates = failing("ReplicaFailure", "True", "FailedCreate", 'violates PodSecurity "restricted:latest"')
    reason, message = problem(pool, deployment=violates)
    assert reason == "PodsFailing"
    assert "violates PodSecurity" in message
    reason, message = problem(pool, pods=[pod("a", waiting="ImagePullBackOff", ready=False, warm=False)])
    assert (reason, "pod a: container engine: ImagePullBackOff (kubectl describe pod a tells" in message) == ("PodsFailing", True)
    reason, message = problem(pool, pods=[pod("a", waiting="CrashLoopBackOff", ready=False, warm=False)])
    assert "pod a: container engine: CrashLoopBackOff (kubectl logs a -c engine --previous tells why)" in message
    stuck = failing("Progressing", "False", "ProgressDeadlineExceeded", "ReplicaSet has timed out")
    assert problem(pool, deployment=stuck) == (
        "PodsFailing",
        "0 of 2 instances are ready; the rolling update does not get on: ReplicaSet has timed out",
    )


def test_a_pod_that_is_up_with_an_instance_that_is_not_is_a_fault_and_one_that_starts_is_not() -> None:
    pool = managed_pool()
    unreachable = [pod_instance(name, pool, ready=False) for name in ("a", "b")]
    assert problem(pool, *unreachable, pods=[pod("a"), pod("b", ready=False, warm=False)]) == (
        "SomeNotReady",
        "0 of 2 instances are ready; not ready: a (AgentUnreachable)",
    )
    assert problem(pool, unreachable[1], pods=[pod("b", ready=False, warm=False)]) == (
        "Progressing",
        "0 of 2 instances are ready; starting: b",
    )


def test_an_instance_that_leaves_is_counted_as_draining() -> None:
    pool = managed_pool()
    leaving = {"reason": "Terminating", "startedAt": "2026-01-01T00:00:00Z", "deadlineSeconds": 60}
    instances = [pod_instance("a", pool, drain=leaving), pod_instance("b", pool)]
    plan = decide(look(pool, *instances, pods=[pod("a"), pod("b")]), NOW)
    assert plan.status is not None
    assert plan.status["instances"]["draining"] == 1


def test_a_rolling_update_is_told_with_its_counts_and_takes_ready_away_from_nobody() -> None:
    pool = managed_pool(version="2")
    items = [
        condition_item("PolicyHealthy", "True", "DefaultsInUse"),
        condition_item("TablePublished", "False", "Warming"),
    ]
    pool["status"] = {"conditions": items, "tableGeneration": 3}
    instances = [pod_instance("a", pool), pod_instance("b", pool), pod_instance("c", pool, version="2")]
    pods = [pod("a"), pod("b"), pod("c", version="2", warm=False)]
    plan = decide(standing(look(pool, *instances, pods=pods)), NOW)
    assert said(plan) == (
        "False",
        "Progressing",
        "2 of 2 instances are ready; 1 run model version 2; still to be replaced: a, b; warming up: c; 1 more than wanted",
    )
    assert said(plan, "Ready")[:2] == ("True", "AllInstancesReady")
    assert plan.status is not None
    assert plan.status["instances"] | {"settled": 0} == {
        "total": 3,
        "ready": 3,
        "settled": 0,
        "unreachable": 0,
        "shadow": 0,
        "draining": 0,
        "updated": 1,
    }


def test_a_pool_at_rest_says_so_and_one_of_no_replicas_too() -> None:
    pool = managed_pool(1)
    rest = decide(standing(look(pool, pod_instance("a", pool), pods=[pod("a")])), NOW)
    assert said(rest) == ("True", "AllReady", "1 of 1 instances are ready")
    assert problem(managed_pool(0)) == ("NoneFound", "spec.replicas is 0")


def test_adopted_pods_become_instances_and_what_they_lack_is_said_with_their_names() -> None:
    pool = pool_object(instances=ADOPTED)
    pods = [
        pod("whole", pool=None, labels={"app": "engine"}),
        pod("no-agent", pool=None, labels={"app": "engine"}, ports=("gr",)),
    ]
    plan = decide(look(pool, pods=pods), NOW)
    assert [action.name for action in of(plan, ApplyInstance)] == ["whole"]
    assert not of(plan, ApplyDeployment)
    status, reason, message = said(plan)
    assert (status, reason) == ("False", "SidecarMissing")
    assert "grfleet-agent in: no-agent" in message
    assert plan.status is not None
    assert plan.status["selector"] == "app=engine"
    deaf = pod("deaf", pool=None, labels={"app": "engine"}, ports=("grfleet-agent",))
    assert said(decide(look(pool, pods=[deaf]), NOW))[1] == "PortMissing"
    assert said(decide(look(pool), NOW))[1] == "NoneFound"


@pytest.mark.parametrize(("said", "understood"), [("8", "8"), ("7_cu12", "7_cu12"), ("", None), ("a b", None), ("x" * 64, None)])
def test_a_version_that_the_api_would_refuse_is_nobodys_word(said: str, understood: str | None) -> None:
    labels = {"app": "engine", "grfleet.dev/model-version": said}
    source = pod("a", pool=None, labels=labels).source()
    assert source is not None
    assert source.get("modelVersion") == understood
    made = instance_object("a", pool_object())
    made["spec"]["source"] = source
    assert GRInstance.parse(made).spec.source.model_version == understood


def test_an_adopted_pool_counts_what_it_finds() -> None:
    pool = pool_object(instances=ADOPTED)
    pods = [pod(name, pool=None, labels={"app": "engine"}) for name in ("a", "b")]
    plan = decide(look(pool, pod_instance("a", pool), pod_instance("b", pool), pods=pods), NOW)
    assert said(plan) == ("True", "AllReady", "2 of 2 instances are ready")
    assert plan.status is not None
    assert plan.status["replicas"] == 2


def test_a_pool_with_more_pods_than_anybody_may_ask_for_still_has_a_status_that_the_api_takes() -> None:
    """Of a rolling update of the largest pool, or of labels that many pods carry."""
    pool = managed_pool(MAX_REPLICAS)
    plan = decide(look(pool, pods=tuple(pod(f"p{number}") for number in range(MAX_REPLICAS + 100))), NOW)
    assert plan.status is not None
    read = GRServingPool.parse({**pool, "status": dict(plan.status)})
    assert read.status.replicas == MAX_REPLICAS + 100


def test_pods_that_two_pools_ask_for_are_named_on_both() -> None:
    pool = pool_object(instances=ADOPTED)
    mine = pod("a", pool=None, labels={"app": "engine"})
    keeps = said(decide(look(pool, pod_instance("a", pool), pods=[mine], shared={"a": "second"}), NOW))
    assert keeps[1] == "LabelsOverlap"
    assert "a (second)" in keeps[2]
    loses = said(decide(look(pool, elsewhere={"a": "first"}), NOW))
    assert loses[1] == "LabelsOverlap"
    assert "a (first); that pool has them" in loses[2]


def test_an_instance_name_in_other_hands_is_left_alone_and_said() -> None:
    plan = decide(standing(look(managed_pool(1), pods=[pod("a")], strangers={"a": "GRServingPool other"})), NOW)
    assert not of(plan, ApplyInstance)
    assert said(plan)[1] == "NameTaken"


def test_external_instances_have_no_counts_of_pods() -> None:
    pool = pool_object(entries=("a",))
    seen = Observation(
        pool=GRServingPool.parse(pool),
        stored=pool,
        instances=(read_instance(instance_object("pool-a", pool), ParsedObjects()),),
        strangers={},
    )
    plan = decide(seen, NOW)
    assert plan.status is not None
    assert not {"draining", "updated"} & plan.status["instances"].keys()
