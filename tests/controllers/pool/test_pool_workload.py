"""The Deployment of a managed pool: what is added to the user's template, and what is refused before anything is written."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import pool_object

from controllers.pool.workload import AgentImage, TemplateInvalid, deployment_body, disruption_budget_body, version_label
from crds import GRServingPool, RoutingPolicySpec

AGENT = AgentImage(reference="agent:1", pull_policy="Never")
ENGINE = {"name": "engine", "image": "engine:1", "ports": [{"name": "gr", "containerPort": 8000}]}


def body(template: dict[str, Any], *, routing: dict[str, Any] | None = None, **managed: Any) -> dict[str, Any]:
    version = managed.pop("version", "7")
    model = {"name": "m", "version": version, "kvBytesPerToken": 1, "embRowBytes": 1, "maxHistoryTokens": 1}
    pool = pool_object(instances={"managed": {"template": template, **managed}}, replicas=3, model=model)
    policy = RoutingPolicySpec.model_validate(routing or {})
    return deployment_body(GRServingPool.parse(pool), pool, agent=AGENT, policy=policy)


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [copy.deepcopy(ENGINE)], **spec}}


def refusal(given: dict[str, Any], **managed: Any) -> str:
    with pytest.raises(TemplateInvalid) as problem:
        body(given, **managed)
    return str(problem.value)


def test_the_agent_stands_beside_the_engine_with_a_socket_between_them() -> None:
    made = body(template(initContainers=[{"name": "download", "image": "d"}], volumes=[{"name": "own", "emptyDir": {}}]))
    spec = made["spec"]["template"]["spec"]
    agent, download = spec["initContainers"]
    assert (agent["name"], agent["image"], agent["imagePullPolicy"]) == ("grfleet-agent", "agent:1", "Never")
    assert agent["restartPolicy"] == "Always"
    assert agent["ports"] == [{"name": "grfleet-agent", "containerPort": 9001, "protocol": "TCP"}]
    assert download["name"] == "download"
    assert [volume["name"] for volume in spec["volumes"]] == ["own", "grfleet-socket", "grfleet-intent-key"]
    (engine,) = spec["containers"]
    assert engine["volumeMounts"] == [{"name": "grfleet-socket", "mountPath": "/run/grfleet"}]
    assert engine["ports"] == [{"name": "gr", "containerPort": 8000, "protocol": "TCP"}]
    assert spec["readinessGates"] == [{"conditionType": "grfleet.dev/warm"}]
    assert spec["automountServiceAccountToken"] is False


def test_the_agent_satisfies_pod_security_restricted_and_runs_as_the_user_of_the_engine() -> None:
    given = template()
    given["spec"]["containers"][0]["securityContext"] = {"runAsUser": 1234, "runAsGroup": 99, "privileged": True}
    context = body(given)["spec"]["template"]["spec"]["initContainers"][0]["securityContext"]
    assert context == {
        "runAsUser": 1234,
        "runAsGroup": 99,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_number_of_pods_is_never_part_of_what_is_applied() -> None:
    assert "replicas" not in body(template())["spec"]


def test_labels_name_the_pool_and_the_version_and_the_selector_only_the_pool() -> None:
    given = {**template(), "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}}}
    made = body(given)["spec"]
    assert made["template"]["metadata"]["labels"] == {"app": "x", "grfleet.dev/pool": "pool", "grfleet.dev/model-version": "7"}
    assert made["template"]["metadata"]["annotations"] == {"a": "b"}
    assert made["selector"] == {"matchLabels": {"grfleet.dev/pool": "pool"}}


def test_a_version_that_no_label_can_hold_stands_whole_in_an_annotation() -> None:
    metadata = body(template(), version="7+cu12.")["spec"]["template"]["metadata"]
    assert metadata["labels"]["grfleet.dev/model-version"] == "7_cu12"
    assert metadata["annotations"] == {"grfleet.dev/model-version": "7+cu12."}


def test_the_end_of_the_engine_waits_for_its_requests_and_the_kubelet_for_that() -> None:
    spec = body(template(), routing={"drain": {"deadlineSeconds": 90}})["spec"]["template"]["spec"]
    assert spec["containers"][0]["lifecycle"]["preStop"] == {
        "httpGet": {"path": "/agent/v1/idle?afterSeconds=5&deadlineSeconds=90", "port": 9001}
    }
    assert spec["terminationGracePeriodSeconds"] == 105
    assert body(template(terminationGracePeriodSeconds=600))["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 600
    assert (
        "lifecycle"
        not in body(template(), routing={"drain": {"deadlineSeconds": 0}})["spec"]["template"]["spec"]["containers"][0]
    )


def test_a_rolling_update_has_as_long_as_a_pod_may_warm_up() -> None:
    made = body(template(), routing={"warmup": {"maxSeconds": 5000}}, rollout={"maxSurge": 0, "maxUnavailable": 2})["spec"]
    assert made["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}
    assert made["progressDeadlineSeconds"] == 5600


def test_the_engine_may_be_another_than_the_first_container() -> None:
    given = {"spec": {"containers": [{"name": "proxy", "image": "p"}, copy.deepcopy(ENGINE)]}}
    proxy, engine = body(given, engineContainer="engine")["spec"]["template"]["spec"]["containers"]
    assert "volumeMounts" not in proxy
    assert engine["volumeMounts"]
    assert "container proxy names no port gr" in refusal(given)


def test_the_users_template_is_not_touched() -> None:
    given = template()
    before = copy.deepcopy(given)
    body(given)
    assert given == before


def test_evictions_take_as_many_as_the_pool_says_and_pods_that_are_not_ready_are_in_nobodys_way() -> None:
    pool = pool_object(instances={"managed": {"template": template(), "disruption": {"maxUnavailable": 4}}})
    made = disruption_budget_body(GRServingPool.parse(pool), pool)
    assert made["spec"] == {
        "selector": {"matchLabels": {"grfleet.dev/pool": "pool"}},
        "maxUnavailable": 4,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "spec is missing"),
        ({"spec": {}}, "spec.containers is empty"),
        ({"spec": {"containers": []}}, "spec.containers is empty"),
        ({"spec": {"containers": "engine"}}, "spec.containers is empty"),
        ({"spec": {"containers": [{"image": "x"}]}}, "has no name"),
        (template(initContainers="x"), "spec.initContainers is not a list"),
        (template(terminationGracePeriodSeconds="long"), "terminationGracePeriodSeconds"),
        (template(terminationGracePeriodSeconds=2**63), "terminationGracePeriodSeconds"),
        (template(terminationGracePeriodSeconds=30.5), "terminationGracePeriodSeconds"),
        ({"spec": {"containers": [{**ENGINE, "ports": [{**ENGINE["ports"][0], "protocol": "UDP"}]}]}}, "names no port gr"),
        ({**template(), "metadata": "x"}, "metadata is not an object"),
        ({**template(), "metadata": {"labels": {"grfleet.dev/pool": "other"}}}, "grfleet.dev/pool, which grfleet sets"),
        ({"spec": {"containers": [{**ENGINE, "ports": []}]}}, "names no port gr"),
        ({"spec": {"containers": [{**ENGINE, "lifecycle": {"preStop": {"exec": {}}}}]}}, "lifecycle.preStop"),
        ({"spec": {"containers": [ENGINE, {"name": "grfleet-agent"}]}}, "grfleet adds that one itself"),
        ({"spec": {"containers": [ENGINE, {"name": "x", "ports": [{"containerPort": 9001}]}]}}, "takes the port grfleet-agent"),
        ({"spec": {"containers": [ENGINE, {"name": "x", "ports": [{"name": "gr", "containerPort": 1}]}]}}, "only the engine"),
        (template(volumes=[{"name": "grfleet-socket", "emptyDir": {}}]), "a volume is named grfleet-socket"),
        (
            {"spec": {"containers": [{**ENGINE, "volumeMounts": [{"name": "x", "mountPath": "/run/grfleet/"}]}]}},
            "mounts /run/grfleet",
        ),
    ],
)
def test_what_lacks_something_or_takes_a_name_of_ours_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    assert words in refusal(given)


def test_a_container_name_that_leads_nowhere_is_refused_with_the_names_that_there_are() -> None:
    words = refusal(template(), engineContainer="ranker")
    assert "no container is named ranker" in words
    assert "there are: engine" in words


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10_000) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "metadata", "labels", "containers", "initContainers", "volumes", "name", "ports", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = ["containers", "initContainers", "volumes", "readinessGates", "terminationGracePeriodSeconds", "securityContext"]
PARTS = ["name", "ports", "volumeMounts", "lifecycle", "securityContext", "image"]


@given(
    spec=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3),
    engine=st.dictionaries(st.sampled_from(PARTS), json_values, max_size=3),
    metadata=json_values,
)
def test_whatever_stands_in_a_template_it_is_either_used_or_refused_in_words(
    spec: dict[str, Any], engine: dict[str, Any], metadata: Any
) -> None:
    given = {"metadata": metadata, "spec": {"containers": [{**ENGINE, **engine}], **spec}}
    try:
        made = body(given)
    except TemplateInvalid:
        return
    assert made["spec"]["template"]["spec"]["initContainers"][0]["name"] == "grfleet-agent"


@given(version=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]*", fullmatch=True).filter(lambda text: len(text) <= 63))
def test_every_model_version_makes_a_legal_label(version: str) -> None:
    label = version_label(version)
    assert label
    assert label[0].isalnum()
    assert label[-1].isalnum()
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
