"""Whatever is called as a number or a boolean is written stays a name, and labels that meet are written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_tools import CHART, MONITORED, Helm, of_kind, the

from crds.routing_policy import RoutingPolicySpec
from dataplane.edge import check_names

EVERYTHING = CHART / "ci" / "everything-values.yaml"
GATEWAYS = CHART / "ci" / "gateways.yaml"
NUMBER = "12345"
POOL = {"name": "on", "namespace": NUMBER, "keySecret": {"name": NUMBER, "key": NUMBER}}
NUMBERS: dict[str, Any] = {
    "fullnameOverride": NUMBER,
    "nameOverride": NUMBER,
    "watchNamespaces": ["on", NUMBER],
    "priorityClassName": NUMBER,
    "serviceAccount": {"name": NUMBER},
    "metrics": {"serviceMonitor": {"enabled": True}},
    "podMonitor": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "commonLabels": {"team": NUMBER},
    "gateway": {
        "enabled": True,
        "pools": [{**POOL, "ca": {"configMap": NUMBER, "key": NUMBER}}],
        "hotUsers": {"agents": "http://{host}:"},
        "networkPolicy": {"enabled": True},
    },
    "picker": {
        "enabled": True,
        "pools": [{**POOL, "tlsSecret": NUMBER, "ca": {"secret": NUMBER}}],
        "networkPolicy": {"enabled": True},
    },
}


def parts_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything inside of an object with its place, names of fields separated by dots."""
    yield path, value
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from parts_of(each, f"{path}.{name}")


def test_names_that_look_like_numbers_or_booleans_stay_names(helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(NUMBERS))
    command = ("template", NUMBER, str(CHART), "--namespace", NUMBER, "--kube-version", "1.34.0", *MONITORED)
    done = helm.run(*command, "--set", "crds.enabled=false", "--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]
    found = [(f"{each['kind']}{path}", part) for each in objects for path, part in parts_of(each)]
    assert [path for path, part in found if part == int(NUMBER)] == []
    labels = [(path, part) for path, part in found if path.endswith((".labels", ".matchLabels", "Service.spec.selector"))]
    assert labels
    assert [path for path, part in labels if not all(isinstance(each, str) for each in part.values())] == []
    arguments = [(path, part) for path, part in found if path.endswith(".args")]
    assert [path for path, part in arguments if not all(isinstance(each, str) for each in part)] == []
    assert {each["metadata"]["namespace"] for each in of_kind(objects, "Role")} == {"on", NUMBER}


def _nothing_twice(text: str) -> None:
    for document in yaml.compose_all(text, Loader=yaml.CSafeLoader):
        waiting = [document]
        while waiting:
            node = waiting.pop()
            if isinstance(node, yaml.MappingNode):
                names = [key.value for key, _ in node.value]
                assert len(names) == len(set(names)), names
                waiting += [each for _, each in node.value]
            elif isinstance(node, yaml.SequenceNode):
                waiting += node.value


@pytest.mark.parametrize("values", [EVERYTHING, GATEWAYS], ids=lambda path: path.stem)
def test_labels_that_meet_are_written_once_and_none_takes_a_pod_from_its_selector(
    helm: Helm, values: Path, tmp_path: Path
) -> None:
    both = {"release": "prometheus", "app.kubernetes.io/name": "other", "grfleet.dev/gateway": "other"}
    special = {"enabled": True, "labels": {"release": "special"}}
    overlaps = {"commonLabels": both, "podLabels": both, "metrics": {"serviceMonitor": special}}
    overlaps |= dict.fromkeys(("podMonitor", "prometheusRule", "grafanaDashboard"), special)
    (tmp_path / "overlaps.yaml").write_text(yaml.safe_dump(overlaps))
    files = ("--values", str(values), "--values", str(tmp_path / "overlaps.yaml"))
    command = ("template", "grfleet", str(CHART), "--kube-version", "1.34.0", *MONITORED, *files)
    done = helm.run(*command)
    assert done.returncode == 0, done.stderr
    _nothing_twice(done.stdout)
    objects = [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]
    for each in of_kind(objects, "PodMonitor", "ServiceMonitor", "PrometheusRule"):
        assert each["metadata"]["labels"]["release"] == "special"
    for each in of_kind(objects, "Deployment"):
        pod = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= pod.items()
        assert pod["release"] == "prometheus"


@pytest.mark.parametrize("part", ["gateway", "picker"])
def test_a_pool_is_refused_whose_objects_could_not_be_made(helm: Helm, part: str) -> None:
    def flags(*pools: str) -> str:
        each = (f"{part}.pools[{i}].name={name},{part}.pools[{i}].namespace=feed" for i, name in enumerate(pools))
        secrets = (f"{part}.pools[{i}].keySecret.name=key-{i}" for i in range(len(pools)))
        return ",".join((f"{part}.enabled=true", *each, *secrets))

    assert "pools/0/name" in helm.refusal("--set", flags("2nd")), "no name of a Service begins with a digit"
    said = helm.refusal("--set", flags("ranker", "recall", "ranker"))
    assert f"{part}.pools names the pool ranker of namespace feed twice" in said
    assert len(of_kind(helm.render("--set", flags("ranker", "recall")), "Deployment")) == 3


def test_every_name_of_a_secret_that_a_policy_can_name_is_taken(helm: Helm) -> None:
    longest = "user-key." + "x" * 244
    RoutingPolicySpec.model_validate({"userKeySecret": {"name": longest}})
    for part in ("gateway", "picker"):
        flags = f"{part}.enabled=true,{part}.pools[0].name=ranker,{part}.pools[0].namespace=feed"
        objects = helm.render("--set", f"{flags},{part}.pools[0].keySecret.name={longest}")
        arguments = the(objects, "Deployment", f"ranker-{part}")["spec"]["template"]["spec"]["containers"][-1]["args"]
        assert f"--key-id={longest}" in arguments
        check_names(id_header="x-user-id", key_header="x-gr-user-key", key_id=longest)


MAPS = ("commonLabels", "commonAnnotations", "podLabels", "podAnnotations", "nodeSelector", "affinity", "resources")


def test_null_empties_maps_and_lists_of_free_form(helm: Helm, tmp_path: Path) -> None:
    values = yaml.safe_load(EVERYTHING.read_text()) | dict.fromkeys((*MAPS, "tolerations", "extraEnv", "imagePullSecrets"))
    values["prometheusRule"] |= {"alertLabels": None, "disabled": None}
    values["serviceAccount"]["annotations"] = None
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    deployment = the(helm.render("--values", str(tmp_path / "values.yaml")), "Deployment")
    assert "annotations" not in deployment["spec"]["template"]["metadata"]
    assert "resources" not in deployment["spec"]["template"]["spec"]["containers"][0]
