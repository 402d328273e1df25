"""Bad values are refused before anything is sent, with a message that names them; generated parts follow the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_tools import CHART, MONITORING_KINDS, ROOT, Helm

from charts.sync import POLICIES, VALUES, documented_values, drift, generated_files, main, spec_schema

BAD = [
    ("replica=3", "replica"),
    ("replicas=-1", "replicas"),
    ("replicas=two", "replicas"),
    ("leaderElection.enabled=false", "replicas"),
    ("image.digest=sha256:abc", "digest"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("image.repository=", "repository"),
    ("watchNamespaces={Team_A}", "watchNamespaces"),
    ("watchNamespaces={a,a}", "watchNamespaces"),
    ("crds.keep=perhaps", "keep"),
    ("logLevel=LOUD", "logLevel"),
    ("workers=0", "workers"),
    ("metrics.port=80", "port"),
    ("metrics.serviceMonitor.interval=often", "interval"),
    ("agent.image.digest=sha256:abc", "digest"),
    ("agent.image.pullPolicy=Sometimes", "pullPolicy"),
    ("agent.repository=x", "repository"),
    ("prometheus.url=prometheus:9090", "url"),
    ("prometheus.url=http://user:secret@prometheus", "url"),
    ("prometheus.url=http://prometheus/?a=b", "url"),
    ("podMonitor.interval=often", "interval"),
    ("prometheusRule.runbookUrl=docs", "runbookUrl"),
    ("prometheusRule.enabled=true,prometheusRule.disabled={GrfleetNothing}", "GrfleetNothing"),
    ("networkPolicy.prometheusTo=all", "prometheusTo"),
    ("terminationGracePeriodSeconds=1", "terminationGracePeriodSeconds"),
    ("nodeSelector.disk=1", "nodeSelector"),
    ("policies.hbm.strategy=Guess", "strategy"),
    ("policies.hbm.bounds.minEmbPercent=101", "minEmbPercent"),
    ("policies.hbm.bounds.minPercent=5", "minPercent"),
    ("policies.hbm.refill.maxBytesPerSecond=much", "maxBytesPerSecond"),
    ("policies.routing.churn.maxMovedPercent=0", "maxMovedPercent"),
    ("policies.routing.userKeySecret.key=only", "userKeySecret"),
    ("policies.preInference.behavior.scaleUp.selectPolicy=Most", "selectPolicy"),
    ("policies.preInference.behavior.scaleDown.policies[0].type=Percent", "policies"),
]

MONITORING_VALUES = ("metrics.serviceMonitor.enabled", "podMonitor.enabled", "prometheusRule.enabled")


@pytest.mark.parametrize(("value", "named"), BAD, ids=[value for value, _ in BAD])
def test_a_bad_value_is_refused_with_its_name(helm: Helm, value: str, named: str) -> None:
    assert named in helm.refusal("--set", value)


def test_a_service_monitor_without_a_service_is_refused_with_the_reason(helm: Helm) -> None:
    said = helm.refusal("--set", "metrics.serviceMonitor.enabled=true,metrics.service.enabled=false")
    assert "metrics.serviceMonitor.enabled needs metrics.service.enabled" in said


@pytest.mark.parametrize("place", ["metrics.serviceMonitor", "podMonitor"])
def test_a_scrape_that_may_take_longer_than_the_time_between_two_is_refused(helm: Helm, place: str) -> None:
    said = helm.refusal("--set", f"{place}.enabled=true,{place}.interval=1m500ms,{place}.scrapeTimeout=61s")
    assert f"{place}.scrapeTimeout (61s) is longer than {place}.interval (1m500ms)" in said
    helm.render("--set", f"{place}.enabled=true,{place}.interval=1m1s,{place}.scrapeTimeout=61s")


@pytest.mark.parametrize(("kind", "value"), [*zip(MONITORING_KINDS, MONITORING_VALUES, strict=True)])
def test_a_kind_of_the_prometheus_operator_that_is_not_there_is_named_with_the_way_out(helm: Helm, kind: str, value: str) -> None:
    done = helm.run("template", "grfleet", str(CHART), "--set", f"{value}=true")
    assert done.returncode != 0
    for part in (f"{value} needs the kind {kind}", f"set {value}=false", f"--api-versions monitoring.coreos.com/v1/{kind}"):
        assert part in done.stderr


def test_null_leaves_an_optional_field_out(helm: Helm) -> None:
    flags = ("--set", "policies.hbm.enforcement=null", "--set", "policies.hbm.refill.maxBytesPerSecond=null")
    policy = next(each for each in helm.render(*flags) if each["kind"] == "HBMPolicy")
    assert "enforcement" not in policy["spec"]
    assert policy["spec"]["refill"] == {"maxLinkPercent": 5}


def test_the_generated_parts_of_the_chart_are_up_to_date() -> None:
    assert drift() == [], "run `make generate`"
    assert main(["--check"]) == 0


def test_the_kinds_in_the_chart_are_byte_for_byte_the_manifests() -> None:
    copies = {path.name: path.read_bytes() for path in (CHART / "files" / "crds").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in (ROOT / "crds" / "manifests").iterdir()}


def test_drift_names_changed_and_left_over_files_and_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    for path, text in generated_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert drift(tmp_path) == []
    values = tmp_path / VALUES
    values.write_text(values.read_text().replace("minEmbPercent: 5", "minEmbPercent: 6").replace("replicas: 2", "replicas: 4"))
    (tmp_path / CHART.relative_to(ROOT) / "files/crds/gone.yaml").write_text("")
    # The number of replicas is not generated, so it is the table in the documentation that is behind.
    assert drift(tmp_path) == ["charts/grfleet/files/crds/gone.yaml", "charts/grfleet/values.yaml", "docs/install.md"]
    assert "replicas: 4" in generated_files(tmp_path)[VALUES]


def test_every_value_has_a_text_and_every_policy_field_a_value() -> None:
    documented = {path: text for path, _, text in documented_values((ROOT / VALUES).read_text())}
    assert [path for path, text in documented.items() if not text] == []
    for name, kind in POLICIES.items():
        fields = {f"policies.{name}.{field}" for field in spec_schema(kind)["properties"]}
        assert not [field for field in fields if not any(path == field or path.startswith(f"{field}.") for path in documented)]


def test_the_variant_that_sets_everything_sets_every_field_of_every_policy() -> None:
    def leaves(schema: dict[str, Any], path: str) -> Iterator[str]:
        for name, child in schema.get("properties", {}).items():
            yield from leaves(child, f"{path}.{name}") if child.get("properties") else [f"{path}.{name}"]

    def set_leaves(values: object, path: str) -> Iterator[str]:
        for name, child in values.items() if isinstance(values, dict) else ():
            yield from set_leaves(child, f"{path}.{name}") if isinstance(child, dict) else [f"{path}.{name}"]

    chosen = yaml.safe_load((CHART / "ci" / "everything-values.yaml").read_text())["policies"]
    for name, kind in POLICIES.items():
        assert {*set_leaves(chosen[name], name)} == {*leaves(spec_schema(kind), name)}


def test_the_schema_knows_and_explains_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path, _, text in documented_values((ROOT / VALUES).read_text()):
        place = schema
        for step in path.split("."):
            if not (properties := place.get("properties")):
                break  # below a value of free form, such as resources
            assert step in properties, path
            place = properties[step]
        else:
            assert place["description"] == text, path


def test_great_numbers_of_a_file_are_written_out(helm: Helm, tmp_path: Path) -> None:
    pools = [{"name": "ranker", "namespace": "feed", "keySecret": {"name": "user-key"}}]
    values: dict[str, Any] = {room: {"enabled": True, "pools": pools} for room in ("gateway", "picker")}
    greatest = dict(_great_numbers(json.loads((CHART / "values.schema.json").read_text())))
    for path, number in greatest.items():
        place = values
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = number
    assert ("picker", "maxInFlight") in greatest
    (tmp_path / "great.yaml").write_text(yaml.safe_dump(values))
    text = yaml.safe_dump_all(helm.render("--values", str(tmp_path / "great.yaml")))
    assert not re.search(r"[ ='][\d.]+e\+\d\d\b", text)
    assert all(str(number) in text for number in greatest.values())


def _great_numbers(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the values that may be a million or more, from where Go writes a float with an exponent, at their greatest."""
    if schema.get("type") == "integer" and schema.get("maximum", 0) >= 1_000_000:
        yield path, schema["maximum"]
    for name, each in schema.get("properties", {}).items():
        yield from _great_numbers(each, (*path, name))
