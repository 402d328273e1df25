"""Endpoint pickers of the chart: hardened, few rights, a command that takes its arguments, and none unless asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chart_tools import CHART, ROOT, Helm, grants_of, of_kind, the

from controllers.runtime.resources import INFERENCE_POOLS
from dataplane.picker import main as command

EVERYTHING = str(CHART / "ci" / "gateways.yaml")
KINDS = ("ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy")
ONE = "picker.enabled=true,picker.pools[0].name=ranker,picker.pools[0].namespace=feed,picker.pools[0].keySecret.name=user-key"
FLAGS = pytest.mark.parametrize("flags", [("--set", ONE), ("--values", EVERYTHING)], ids=["least", "most"])


def pickers(helm: Helm, *flags: str) -> list[dict[str, Any]]:
    objects = helm.render(*flags)
    return [each for each in objects if each["metadata"]["labels"].get("app.kubernetes.io/component") == "picker"]


def pod_of(helm: Helm, *flags: str, name: str = "ranker-picker") -> dict[str, Any]:
    pod: dict[str, Any] = the(pickers(helm, *flags), "Deployment", name)["spec"]["template"]["spec"]
    return pod


def test_without_being_asked_for_there_is_no_picker(helm: Helm) -> None:
    assert pickers(helm) == []
    assert pickers(helm, "--set", "picker.enabled=true") == []


def test_each_pool_has_all_objects_in_its_own_namespace(helm: Helm) -> None:
    found = {
        (each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]) for each in pickers(helm, "--values", EVERYTHING)
    }
    pools = (("feed", "ranker-picker"), ("shop", "recall-picker"))
    assert found == {(kind, *pool) for kind in KINDS for pool in pools}


@FLAGS
def test_pods_are_restricted_and_write_nothing(helm: Helm, flags: tuple[str, ...]) -> None:
    pod = pod_of(helm, *flags)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_the_account_may_read_tables_in_its_namespace_see_whether_its_pool_is_there_and_nothing_else(helm: Helm) -> None:
    for role in of_kind(pickers(helm, "--values", EVERYTHING), "Role"):
        tables = {("grfleet.dev", "grroutingtables", verb) for verb in ("get", "list", "watch")}
        assert grants_of(role) == tables | {("grfleet.dev", "grservingpools", "get")}
        (pool,) = (rule["resourceNames"] for rule in role["rules"] if rule["resources"] == ["grservingpools"])
        assert role["metadata"]["name"] == f"{pool[0]}-picker"


@FLAGS
def test_the_picker_takes_the_arguments_that_the_chart_gives_it(helm: Helm, flags: tuple[str, ...], tmp_path: Path) -> None:
    (container,) = pod_of(helm, *flags)["containers"]
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    arguments = [each.replace("/etc/grfleet/key", str(tmp_path / "key")) for each in container["args"]]
    options = command._parser().parse_args(arguments)
    command._edge(options)
    command._limits(options)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert options.bind == f"0.0.0.0:{ports['grpc']}"
    assert options.health_bind == f"0.0.0.0:{ports['picker-metrics']}"


def test_the_values_of_the_page_make_pickers(helm: Helm, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "picker.md").read_text()
    (values,) = (block.removeprefix("yaml") for block in page.split("```") if block.startswith("yaml\npicker:"))
    (tmp_path / "values.yaml").write_text(values)
    assert the(pickers(helm, "--values", str(tmp_path / "values.yaml")), "Deployment", "ranker-picker")["spec"]["replicas"] == 2


def test_the_service_is_what_an_inference_pool_can_name(helm: Helm) -> None:
    service = the(pickers(helm, "--set", ONE), "Service", "ranker-picker")
    assert (service["metadata"]["name"], service["spec"]["ports"][0]["port"]) == ("ranker-picker", 9002)  # the port's default
    assert service["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert INFERENCE_POOLS.api_version == "inference.networking.k8s.io/v1"


def test_a_certificate_is_mounted_where_one_is_named(helm: Helm) -> None:
    pod = pod_of(helm, "--values", EVERYTHING, name="recall-picker")
    assert {"--tls-cert=/etc/grfleet-tls/tls.crt", "--tls-key=/etc/grfleet-tls/tls.key"} <= {*pod["containers"][0]["args"]}
    assert pod["volumes"][-1]["secret"]["secretName"] == "picker-tls"
    assert "tls" not in {each["name"] for each in pod_of(helm, "--values", EVERYTHING)["volumes"]}


def test_authorities_are_mounted_where_they_are_named(helm: Helm) -> None:
    pod = pod_of(helm, "--values", EVERYTHING, name="recall-picker")
    (container,) = pod["containers"]
    assert command._parser().parse_args(container["args"]).ca_file == "/etc/grfleet-ca/ca.crt"
    assert {"name": "ca", "mountPath": "/etc/grfleet-ca", "readOnly": True} in container["volumeMounts"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "ca")
    assert volume["configMap"] == {"name": "shop-ca", "items": [{"key": "root.pem", "path": "ca.crt"}]}
    assert "ca" not in {each["name"] for each in pod_of(helm, "--values", EVERYTHING)["volumes"]}


def test_the_image_is_built_like_the_agent_s_with_the_packages_of_gateways() -> None:
    picker, agent = ((ROOT / f"dataplane/{name}/Dockerfile").read_text().split("\n", 1)[1] for name in ("picker", "agent"))
    expected = agent.replace("requirements/runtime.txt", "requirements/gateway.txt")
    assert picker == expected.replace("EXPOSE 9001", "EXPOSE 9002").replace("dataplane.agent.main", "dataplane.picker.main")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("picker.pools[0].namespace=null", "namespace"),
        ("picker.pools[0].checkPath=/x", "checkPath"),
        ("picker.boundedLoadPercent=150", "boundedLoadPercent"),
        ("picker.hotUsers.agents=9001", "agents"),
        ("picker.threads=2", "threads"),
        ("picker.pools[0].ca.key=ca.crt", "ca"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(helm: Helm, value: str, named: str) -> None:
    assert named in helm.refusal("--set", f"{ONE},{value}")


def test_gateways_and_pickers_are_scraped_at_ports_that_their_pods_have(helm: Helm) -> None:
    objects = helm.render("--values", EVERYTHING, "--set", "podMonitor.enabled=true")
    for part in ("gateway", "picker"):
        monitor = the(objects, "PodMonitor", f"grfleet-{part}s")["spec"]
        assert monitor["namespaceSelector"] == {"matchNames": ["feed", "shop"]}
        pods = [
            each["spec"]["template"]
            for each in of_kind(objects, "Deployment")
            if monitor["selector"]["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert len(pods) == 2
        for pod in pods:
            ports = {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", ())}
            assert {each["port"] for each in monitor["podMetricsEndpoints"]} < ports
            assert set(monitor["podTargetLabels"]) <= pod["metadata"]["labels"].keys()
    assert [each["metadata"]["name"] for each in of_kind(helm.render("--set", "podMonitor.enabled=true"), "PodMonitor")] == [
        "grfleet-instances"
    ]
