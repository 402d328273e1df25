"""The alerts of the chart under promtool: each fires for what it is about and not before, and a healthy fleet is silent.

The rules are those that `helm template` renders, so selectors, labels and names are tested as they are installed.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chart_tools import ROOT, Helm, documented_series, series_of, the

ON = ("--set", "prometheusRule.enabled=true")
STEP_SECONDS, STEPS = 30, 120  # an hour
ONE, NONE, RISING = f"1x{STEPS}", f"0x{STEPS}", f"0+10x{STEPS}"
Series = dict[str, str]


def operator(metric: str, pod: str = "a", job: str = "grfleet-metrics", **labels: str) -> str:
    return series(metric, namespace="grfleet-system", job=job, pod=pod, instance=f"{pod}:8080", **labels)


def instance(metric: str, **labels: str) -> str:
    job = "grfleet-system/grfleet-instances"
    return series(metric, namespace="team-a", job=job, pod="home-0", grfleet_dev_pool="home", **labels)


def series(metric: str, **labels: str) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{metric}{{{inside}}}"


def pools(condition: str, status: str, pod: str = "a") -> str:
    return operator("grfleet_pools", pod, condition=condition, status=status)


def waited(le: str) -> str:
    return operator("workqueue_queue_duration_seconds_bucket", name="pool", le=le)


def of_loop(metric: str) -> str:
    return operator(f"controller_runtime_{metric}", controller="pool")


def calls(outcome: str) -> str:
    return operator("grfleet_agent_calls_total", call="status", outcome=outcome)


HEALTHY: Series = {
    operator("up"): ONE,
    operator("up", "b"): ONE,
    operator("leader_election_master_status"): ONE,
    operator("leader_election_master_status", "b"): NONE,
    operator("grfleet_watch_age_seconds", resource="grservingpools.grfleet.dev"): f"30x{STEPS}",
    of_loop("reconcile_total"): RISING,
    of_loop("reconcile_errors_total"): f"0+0.5x{STEPS}",
    of_loop("reconcile_panics_total"): NONE,
    of_loop("terminal_reconcile_errors_total"): NONE,
    waited("1"): RISING,
    waited("60"): RISING,
    waited("+Inf"): RISING,
    calls("answered"): RISING,
    calls("silent"): f"0+0.5x{STEPS}",
    calls("garbled"): NONE,
    **{pools(condition, "True"): f"3x{STEPS}" for condition in ("Ready", "PolicyHealthy", "RolloutProgressing", "MetricsFresh")},
    **{pools(condition, "False"): NONE for condition in ("Ready", "PolicyHealthy", "RolloutProgressing", "MetricsFresh")},
    **{pools(condition, "Unknown"): NONE for condition in ("Ready", "PolicyHealthy", "RolloutProgressing", "MetricsFresh")},
    instance("up"): ONE,
    instance("grfleet_agent_engine_reachable"): ONE,
    instance("grfleet_agent_frozen"): NONE,
    instance("grfleet_agent_samples_total"): RISING,
    instance("grfleet_agent_samples_lost_total"): f"0+0.5x{STEPS}",
    # Another operator of the cluster, which has metrics of the same names and troubles of its own.
    operator("leader_election_master_status", "x", job="stranger"): NONE,
    operator("controller_runtime_reconcile_panics_total", "x", job="stranger", controller="pool"): RISING,
}


@dataclass(frozen=True)
class Case:
    """What goes wrong from the start on, and when the alert must not yet and must fire, in minutes."""

    alert: str
    wrong: Series
    quiet: int
    fires: int
    labels: dict[str, str] = field(default_factory=dict)


HOME = {"namespace": "team-a", "pod": "home-0", "grfleet_dev_pool": "home", "job": "grfleet-system/grfleet-instances"}
RELEASE = {"job": "grfleet-metrics", "namespace": "grfleet-system"}
LOOP = {**RELEASE, "controller": "pool"}
CASES = [
    Case(
        "GrfleetOperatorDown",
        {operator("up"): NONE, operator("up", "b"): NONE},
        4,
        6,
        RELEASE,
    ),
    Case("GrfleetOperatorDown", {operator("up"): "_", operator("up", "b"): "_"}, 4, 6, RELEASE),
    Case("GrfleetNoLeader", {operator("leader_election_master_status"): NONE}, 2, 4, RELEASE),
    Case("GrfleetTwoLeaders", {operator("leader_election_master_status", "b"): ONE}, 1, 3, RELEASE),
    Case(
        "GrfleetWatchStale",
        {operator("grfleet_watch_age_seconds", resource="grservingpools.grfleet.dev"): f"0+30x{STEPS}"},
        8,
        10,
        {**RELEASE, "resource": "grservingpools.grfleet.dev"},
    ),
    Case("GrfleetReconcileErrors", {of_loop("reconcile_errors_total"): f"0+2x{STEPS}"}, 14, 17, LOOP),
    Case("GrfleetReconcilePanics", {of_loop("reconcile_panics_total"): f"0x9 1x{STEPS}"}, 4, 6, LOOP),
    Case("GrfleetTerminalErrors", {of_loop("terminal_reconcile_errors_total"): f"0+0.1x{STEPS}"}, 14, 17, LOOP),
    Case("GrfleetLoopBehind", {waited("1"): f"0+9x{STEPS}"}, 9, 12, {**RELEASE, "name": "pool"}),
    Case("GrfleetAgentsUnreachable", {calls("silent"): RISING}, 9, 12, RELEASE),
    Case("GrfleetAgentsUnreachable", {calls("garbled"): RISING}, 9, 12, RELEASE),
    Case("GrfleetPoolNotReady", {pools("Ready", "False"): ONE}, 14, 16, RELEASE),
    Case("GrfleetPoolNotReady", {pools("Ready", "Unknown", "b"): ONE}, 14, 16, RELEASE),
    Case("GrfleetPolicyUnhealthy", {pools("PolicyHealthy", "False"): ONE}, 29, 31, RELEASE),
    Case("GrfleetRolloutHeld", {pools("RolloutProgressing", "False"): ONE}, 44, 46, RELEASE),
    Case("GrfleetMetricsNotFresh", {pools("MetricsFresh", "False"): ONE}, 9, 11, RELEASE),
    Case("GrfleetInstanceNotScraped", {instance("up"): NONE}, 4, 6, HOME),
    Case("GrfleetEngineUnreachable", {instance("grfleet_agent_engine_reachable"): NONE}, 1, 3, HOME),
    Case("GrfleetAgentFrozen", {instance("grfleet_agent_frozen"): ONE}, 4, 6, HOME),
    Case("GrfleetSamplesLost", {instance("grfleet_agent_samples_lost_total"): f"0+2x{STEPS}"}, 9, 12, HOME),
]


def rules_of(helm: Helm, *flags: str) -> list[dict[str, Any]]:
    [group] = the(helm.render(*ON, *flags), "PrometheusRule")["spec"]["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def run(promtool: Path, directory: Path, helm: Helm, *tests: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """`promtool test rules` on the rendered rules; JSON is YAML."""
    (directory / "rules.json").write_text(json.dumps({"groups": the(helm.render(*ON), "PrometheusRule")["spec"]["groups"]}))
    period = f"{STEP_SECONDS}s"
    plan = {"rule_files": ["rules.json"], "evaluation_interval": period, "tests": [{"interval": period, **t} for t in tests]}
    (directory / "tests.json").write_text(json.dumps(plan))
    command = [str(promtool), "test", "rules", "tests.json"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


def firing(wrong: Series, expected: dict[int, list[dict[str, str]]]) -> dict[str, Any]:
    """A test: with these series instead of the healthy ones, exactly these alerts fire at these minutes."""
    values = [{"series": name, "values": numbers} for name, numbers in {**HEALTHY, **wrong}.items()]
    looks = [
        {
            "expr": 'ALERTS{alertstate="firing"}',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": series("ALERTS", alertstate="firing", **alert), "value": 1} for alert in alerts],
        }
        for minute, alerts in expected.items()
    ]
    return {"input_series": values, "promql_expr_test": looks}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_for_its_trouble_and_not_before(helm: Helm, promtool: Path, tmp_path: Path, case: Case) -> None:
    severity = next(rule["labels"]["severity"] for rule in rules_of(helm) if rule["alert"] == case.alert)
    alert = {"alertname": case.alert, "severity": severity, **case.labels}
    done = run(promtool, tmp_path, helm, firing(case.wrong, {case.quiet: [], case.fires: [alert]}))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_healthy_fleet_and_a_stranger_s_troubles_raise_nothing(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    done = run(promtool, tmp_path, helm, firing({}, {minute: [] for minute in (1, 10, 30, 59)}))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pools_without_an_instance_lack_no_measurement(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    done = run(promtool, tmp_path, helm, firing({pools("MetricsFresh", "Unknown"): ONE}, {minute: [] for minute in (11, 30)}))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_update_of_the_operator_raises_nothing(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    """The Lease goes to a new pod; the old one still says that it leads in its last scrape, and then its series end."""
    handover = {
        operator("up"): "1x20 stale",
        operator("leader_election_master_status"): "1x20 stale",
        operator("up", "new"): f"_x19 1x{STEPS}",
        operator("leader_election_master_status", "new"): f"_x19 1x{STEPS}",
        pools("Ready", "False"): "0x20 stale",
        pools("Ready", "True"): "3x20 stale",
    }
    done = run(promtool, tmp_path, helm, firing(handover, {minute: [] for minute in (9, 10, 11, 12, 20)}))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_would_be_noticed(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    wrong = firing({operator("leader_election_master_status"): NONE}, {10: []})
    assert "GrfleetNoLeader" in (done := run(promtool, tmp_path, helm, wrong)).stdout + done.stderr
    assert done.returncode != 0


def test_the_text_of_an_alert_has_its_numbers(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    expected = {
        "exp_labels": {"severity": "warning", **LOOP},
        "exp_annotations": {
            "summary": "The loop pool of grfleet fails again and again",
            "description": "50% of its reconciliations fail; each is tried again with back-off.",
        },
    }
    wrong = {**firing({of_loop("reconcile_errors_total"): f"0+5x{STEPS}"}, {})}
    wrong["alert_rule_test"] = [{"eval_time": "20m", "alertname": "GrfleetReconcileErrors", "exp_alerts": [expected]}]
    done = run(promtool, tmp_path, helm, wrong)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_a_severity_a_text_and_a_section_in_the_documentation(helm: Helm) -> None:
    rules = rules_of(helm)
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names))
    assert {case.alert for case in CASES} == set(names)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert re.findall(r"^### (\w+)$", page, re.M) == names


def test_the_alerts_name_only_metrics_that_are_documented(helm: Helm) -> None:
    for rule in rules_of(helm):
        used = series_of(rule["expr"])
        assert used, rule["alert"]
        assert used <= documented_series() | {"up"}, rule["alert"]


def test_links_labels_and_left_out_alerts_follow_the_values(helm: Helm) -> None:
    flags = "prometheusRule.runbookUrl=https://wiki.example.com/a,prometheusRule.alertLabels.team=gr"
    rules = rules_of(helm, "--set", f"{flags},prometheusRule.disabled={{GrfleetNoLeader}},watchNamespaces={{team-a,team-b}}")
    assert "GrfleetNoLeader" not in {rule["alert"] for rule in rules}
    by_name = {rule["alert"]: rule for rule in rules}
    assert by_name["GrfleetLoopBehind"]["annotations"]["runbook_url"] == "https://wiki.example.com/a#grfleetloopbehind"
    assert by_name["GrfleetLoopBehind"]["labels"] == {"severity": "warning", "team": "gr"}
    assert 'namespace=~"grfleet-system|team-a|team-b"' in by_name["GrfleetAgentFrozen"]["expr"]
