"""docs/pools.md says what is so: its objects are accepted, its commands run, its sidecar is ours, its reasons are all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import EXAMPLES, blocks, commands, environment, named_in_first_cells, read, run
from integration_fleet import Fleet
from integration_kubelet import Kubelet
from runtime_operator import OperatorProcess

from controllers.pool import sidecar
from controllers.pool.workload import AgentImage, pod_template
from controllers.runtime.resources import GATE, INFERENCE_POOLS, POOL_LABEL, SERVING_PORT
from crds import GRServingPool, RoutingPolicySpec
from crds.pool_fronts import FrontState
from crds.reasons import reasons_of
from testbed.binaries import Binaries

NAME = "docs/pools.md"
PAGE = read(NAME)
NAMES = ("managed-pool.yaml", "inference-pool.yaml", "adopted-pods.yaml")


def example(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def test_the_objects_on_the_page_are_the_examples() -> None:
    assert blocks(NAME, "yaml") == [(EXAMPLES / name).read_text() for name in NAMES]


def test_the_sidecar_that_users_copy_is_the_one_that_managed_pools_get() -> None:
    shown = example("adopted-pods.yaml")[0]["spec"]["template"]["spec"]
    (agent,) = shown["initContainers"]
    assert agent == sidecar.agent_container(agent["image"], pull_policy=agent["imagePullPolicy"], user={})
    assert shown["volumes"] == sidecar.volumes()
    (engine,) = shown["containers"]
    drain = RoutingPolicySpec().drain.deadline_seconds
    assert engine["volumeMounts"] == [sidecar.socket_mount()]
    assert engine["lifecycle"]["preStop"] == sidecar.pre_stop(deadline_seconds=drain)
    assert shown["readinessGates"] == [sidecar.readiness_gate()]
    assert shown["terminationGracePeriodSeconds"] == drain + sidecar.MARGIN_SECONDS


def test_what_is_added_to_a_template_is_named() -> None:
    pool = GRServingPool.parse({**example("managed-pool.yaml")[0], "metadata": {"name": "ranker", "namespace": "feed"}})
    managed = pool.spec.instances.managed
    assert managed is not None
    made = pod_template(pool, managed, agent=AgentImage(reference="agent:1"), drain_seconds=60)
    added = {
        *made["metadata"]["labels"],
        *(volume["name"] for volume in made["spec"]["volumes"]),
        *(container["name"] for container in made["spec"]["initContainers"]),
        *(made["spec"].keys() - managed.template["spec"].keys()),
        GATE,
    }
    missing = {name for name in added if f"`{name}" not in PAGE}
    assert missing == {"initContainers", "volumes", "readinessGates"}  # these stand there in words
    assert f"nothing in flight for {sidecar.IDLE_SECONDS} s" in PAGE
    assert f"the drain deadline and {sidecar.MARGIN_SECONDS} s" in PAGE
    agent = made["spec"]["initContainers"][0]
    assert agent["securityContext"].keys() >= {"seccompProfile", "capabilities"}


def test_every_reason_of_the_condition_is_explained_and_no_other() -> None:
    named = named_in_first_cells(NAME, head="| reason | means, and what to do |")
    assert named == {reason.name for reason in reasons_of("InstancesReady")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_server_takes_the_objects_and_the_commands_run(
    fleet: Fleet, managing: OperatorProcess, kubelet: Kubelet, testbed_binaries: Binaries
) -> None:
    fleet.apply("RoutingPolicy", "default", {"warmup": {"maxSeconds": 1}})
    assert len(commands(NAME)) >= 12
    shell = environment(kubeconfig=fleet.plane.kubeconfig, programs=Path(testbed_binaries["kubectl"]).parent)
    for command in commands(NAME):
        ran = run(command.replace("--namespace feed", f"--namespace {fleet.namespace}"), within=shell, timeout_seconds=300)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}\n{fleet.pool('ranker')}"
    assert fleet.pool("ranker")["spec"]["model"]["version"] == "8"
    assert {pod["metadata"]["labels"].get("grfleet.dev/model-version") for pod in kubelet.pods()} == {"7", "8"}


def test_the_inference_pool_on_the_page_fits_the_managed_pool_on_it_and_the_picker_of_the_chart() -> None:
    (front,) = example("inference-pool.yaml")
    pool = example("managed-pool.yaml")[0]
    assert f"{front['apiVersion']}/{front['kind']}" == f"{INFERENCE_POOLS.api_version}/{INFERENCE_POOLS.kind}"
    assert front["spec"]["selector"]["matchLabels"] == {POOL_LABEL: pool["metadata"]["name"]}
    (engine,) = pool["spec"]["instances"]["managed"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in engine["ports"]}
    assert front["spec"]["targetPorts"] == [{"number": ports[SERVING_PORT]}]
    assert front["spec"]["endpointPickerRef"] == {"name": f"{pool['metadata']['name']}-picker", "port": {"number": 9002}}


def test_every_state_of_an_inference_pool_is_explained() -> None:
    assert [state for state in FrontState if f"`{state}`" not in PAGE] == []
