"""docs/scaling.md says what is so: its objects are accepted, its commands run, its reasons exist, its numbers are the code's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from documented import EXAMPLES, blocks, commands, environment, named_in_first_cells, read, run
from preinference_site import Site

from controllers.metrics_source import agents, prometheus
from controllers.preinference import decide
from crds.reasons import reasons_of
from testbed.binaries import Binaries
from testbed.control_plane import ControlPlane

NAME = "docs/scaling.md"
PAGE = read(NAME)
NOT_HERE = {"ScaledObject", None}  # another product's kind, and an adapter's configuration


def objects() -> list[dict[str, object]]:
    found = [each for body in blocks(NAME, "yaml") for each in yaml.safe_load_all(body)]
    return [each for each in found if each.get("kind") not in NOT_HERE]


def test_the_autoscaler_on_the_page_is_the_one_in_the_examples() -> None:
    shown = [body for body in blocks(NAME, "yaml") if "HorizontalPodAutoscaler" in body]
    assert shown == [(EXAMPLES / "hpa.yaml").read_text()]


@pytest.mark.parametrize("type_", ["PreInferenceScaled", "MetricsFresh"])
def test_every_reason_is_explained_and_no_other(type_: str) -> None:
    known = {reason.name for reason in reasons_of(type_)}
    assert {name for name in known if f"`{name}`" not in PAGE} <= {"Fresh"}
    named = named_in_first_cells(NAME, head="| `PreInferenceScaled` | means |")
    assert named == {reason.name for reason in reasons_of("PreInferenceScaled")}


def test_the_times_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert f"each pool every {decide.PERIOD_SECONDS:.0f} s" in text
    assert f"looking back {prometheus.WINDOW_SECONDS:.0f} s" in text
    assert f"A query may take {prometheus.TIMEOUT_SECONDS:.0f} s and a pool {prometheus.DEADLINE_SECONDS:.0f} s" in text
    assert f"silent for {agents.STALE_SECONDS:.0f} s" in text
    assert decide.QUIET_SECONDS == 1800.0
    assert "after half an hour without a single signal" in text


@pytest.mark.slow
def test_the_server_takes_the_objects_and_the_commands_run(
    site: Site, crds_installed: ControlPlane, testbed_binaries: Binaries
) -> None:
    here = [{**each, "metadata": {"name": each["metadata"]["name"]}} for each in objects()]  # type: ignore[index]
    assert [each["kind"] for each in here] == ["HorizontalPodAutoscaler", "GRServingPool", "PreInferencePolicy"]
    for each in here:
        crds_installed.kubectl("apply", "-n", site.namespace, "-f", "-", input=json.dumps(each))
    assert len(commands(NAME)) >= 5
    shell = environment(kubeconfig=crds_installed.kubeconfig, programs=Path(testbed_binaries["kubectl"]).parent)
    for command in commands(NAME):
        ran = run(command.replace("--namespace feed", f"--namespace {site.namespace}"), within=shell)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    assert site.replicas("ranker") == 3
