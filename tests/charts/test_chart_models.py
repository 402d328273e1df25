"""The model that a release ships: what the chart makes of its file, when, and that an API server takes it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_cluster import SYSTEM, Cluster, operator_of
from chart_tools import CHART, MONITORED, SERVED, Helm, of_kind, the
from example_models import model_bytes

from charts import sync
from charts.sync import model_facts
from crds import AllocatorModel
from policies.allocation.model_file import digest_of, read_model
from testbed.control_plane import ControlPlane

DATA = model_bytes(1)
KINDS = ("AllocatorModel", "ConfigMap")


@pytest.fixture
def shipping(tmp_path: Path) -> Path:
    """A copy of the chart that ships one model and no other."""
    chart = tmp_path / "grfleet"
    shutil.copytree(CHART, chart)
    shutil.rmtree(chart / "files" / "models", ignore_errors=True)
    (chart / "files" / "models").mkdir()
    file = tmp_path / "split-7.safetensors"
    file.write_bytes(DATA)
    (chart / "files" / "models" / "split-7.yaml").write_text(yaml.safe_dump(model_facts(file)))
    return chart


def rendered(helm: Helm, chart: Path, *flags: str, served: tuple[str, ...] = SERVED) -> list[dict[str, Any]]:
    done = helm.run("template", "grfleet", str(chart), "--namespace", "ours", "--kube-version", "1.34.0", *served, *flags)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]


def notes(helm: Helm, chart: Path, *flags: str, served: tuple[str, ...] = SERVED) -> str:
    """What an installation prints; `helm template` renders templates only, so it becomes one."""
    (chart / "templates" / "NOTES.txt").replace(chart / "templates" / "notes.yaml")
    done = helm.run(
        "template", "mine", str(chart), "-n", "ours", *served, *flags, "--show-only", "templates/notes.yaml", "--debug"
    )
    assert "is installed in namespace ours" in done.stdout, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ((), True),
        (("--set=policies.create=false",), False),
        (("--set=policies.hbm.strategy=Learned,policies.hbm.learned.model=split-7",), False),
    ],
)
def test_the_notes_say_how_the_default_policy_runs_the_model_while_it_does_not(
    helm: Helm, shipping: Path, flags: tuple[str, ...], shown: bool
) -> None:
    said = notes(helm, shipping, *flags)
    assert "kubectl get amod --namespace ours" in said
    assert ("--set policies.hbm.strategy=Learned,policies.hbm.learned.model=split-7" in said) is shown


@pytest.mark.parametrize("created", ["true", "false"])
def test_where_the_kinds_are_new_the_notes_name_the_run_that_brings_the_model(helm: Helm, shipping: Path, created: str) -> None:
    said = notes(helm, shipping, f"--set=policies.create={created}", served=MONITORED)
    assert "trained model of this release is not there yet" in said
    assert said.count("helm upgrade mine") == 1


def test_a_shipped_model_becomes_an_allocator_model_with_its_bytes_beside_it(helm: Helm, shipping: Path) -> None:
    objects = rendered(helm, shipping)
    source, model = the(objects, "ConfigMap", "grfleet-model-split-7"), the(objects, "AllocatorModel")
    spec = AllocatorModel.parse(model).spec
    assert (model["metadata"]["name"], model["metadata"]["namespace"], source["metadata"]["namespace"]) == (
        "split-7",
        "ours",
        "ours",
    )
    assert (spec.config_map_key_ref.name, spec.config_map_key_ref.key) == ("grfleet-model-split-7", "model.safetensors")
    data = base64.b64decode(source["binaryData"]["model.safetensors"])
    assert (data, spec.sha256, source["immutable"]) == (DATA, digest_of(DATA), True)
    assert read_model(data, sha256=spec.sha256).feature_spec == spec.feature_spec


def test_it_waits_until_the_kinds_are_served_and_can_be_left_out(helm: Helm, shipping: Path) -> None:
    assert not of_kind(rendered(helm, shipping, served=MONITORED), *KINDS)
    assert not of_kind(rendered(helm, shipping, "--set", "allocatorModel.enabled=false"), *KINDS)


def test_a_chart_that_ships_no_model_makes_none(helm: Helm, shipping: Path) -> None:
    shutil.rmtree(shipping / "files" / "models")
    assert not of_kind(rendered(helm, shipping), *KINDS)


def test_an_api_server_takes_both(helm: Helm, shipping: Path, crds_installed: ControlPlane, namespace: str) -> None:
    objects = [
        {**each, "metadata": {**each["metadata"], "namespace": namespace}} for each in of_kind(rendered(helm, shipping), *KINDS)
    ]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    crds_installed.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", input=manifest)


def test_a_release_brings_its_model_with_the_second_run_keeps_it_over_an_upgrade_and_takes_it_away(
    cluster: Cluster, shipping: Path, tmp_path: Path
) -> None:
    install = f"helm upgrade --install grfleet {shipping} --namespace {SYSTEM} --create-namespace"
    cluster.shell(install)
    cluster.wait_for_kinds()
    assert cluster.get("amod", "-n", SYSTEM)["items"] == []
    cluster.shell(install)
    with operator_of(cluster, tmp_path):
        cluster.shell(f"kubectl wait --for=condition=Verified --timeout=60s amod/split-7 -n {SYSTEM}")
    (before,) = cluster.get("amod", "-n", SYSTEM)["items"]

    about = shipping / "Chart.yaml"
    about.write_text(re.sub(r"^version: .*$", "version: 99.0.0", about.read_text(), flags=re.MULTILINE))
    cluster.shell(install)  # the ConfigMap is immutable, and its labels are not
    (after,) = cluster.get("amod", "-n", SYSTEM)["items"]
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert after["metadata"]["labels"] != before["metadata"]["labels"]
    assert after["status"] == before["status"]

    cluster.shell(f"{install} --set allocatorModel.enabled=false")
    assert cluster.get("amod", "-n", SYSTEM)["items"] == []
    assert not [
        each for each in cluster.get("configmaps", "-n", SYSTEM)["items"] if each["metadata"]["name"].startswith("grfleet-model")
    ]


def test_every_model_in_the_room_of_models_is_in_the_chart_and_one_that_this_release_runs() -> None:
    for path in sync.MODELS.glob("*.safetensors"):
        facts = model_facts(path)
        assert read_model(path.read_bytes(), sha256=facts["sha256"]).feature_spec == facts["featureSpec"]
        copied = yaml.safe_load((CHART / "files" / "models" / f"{path.stem}.yaml").read_text())
        assert copied == facts
