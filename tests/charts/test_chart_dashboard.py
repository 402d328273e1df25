"""The dashboard is JSON that Grafana's model allows as far as can be told without Grafana, and asks for what there is."""

from __future__ import annotations

import json
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

from chart_tools import Helm, documented_series, of_kind, series_of

ON = ("--set", "grafanaDashboard.enabled=true")


def dashboard(helm: Helm, *flags: str) -> dict[str, Any]:
    files = (each.get("data") or {} for each in of_kind(helm.render(*ON, *flags), "ConfigMap"))
    (text,) = (data["grfleet.json"] for data in files if "grfleet.json" in data)
    found: dict[str, Any] = json.loads(text)
    return found


def queries(found: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in found["panels"] for target in panel.get("targets", ())]


def test_panels_have_numbers_and_places_of_their_own(helm: Helm) -> None:
    panels = dashboard(helm)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_every_panel_explains_itself_and_names_a_unit(helm: Helm) -> None:
    for panel in dashboard(helm)["panels"]:
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C", "D"][: len(panel["targets"])]


def test_prometheus_understands_every_query_and_every_metric_is_documented(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    found = queries(dashboard(helm))
    for expression in found:
        assert series_of(expression) <= documented_series(), expression
    plain = [each.replace("$__rate_interval", "5m") for each in found]
    rules = [{"record": f"panel_{number}", "expr": expression} for number, expression in enumerate(plain)]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", "rules.json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_two_releases_have_two_dashboards_that_look_at_their_own_operator(helm: Helm) -> None:
    here, there = dashboard(helm), dashboard(helm, "--set", "fullnameOverride=other")
    assert here["uid"] != there["uid"]
    assert max(len(each["uid"]) for each in (here, there)) <= 40
    own = [expression for expression in queries(here) if "job=" in expression]
    assert own
    assert all('namespace="grfleet-system",job="grfleet-metrics"' in expression for expression in own)
