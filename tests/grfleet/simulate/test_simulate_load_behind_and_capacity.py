"""What a fleet does besides splits: default vectors, memory and slots for pre-inference; and how options are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulate_inputs import hbm_policy, manifest, pool, pre_inference, requests_file, run
from typer.testing import CliRunner

from grfleet.cli import app
from simulator import compiled

GIB = 1 << 30
GENEROUS = {"trigger": {"minPrefixTokens": 1, "riskBudgetMs": 1}, "budget": {"prefixPercent": 25}}


def instance(name: str, *, of: str = "feed", slots: int = 3, size: int = 256 << 20) -> dict[str, Any]:
    """A GRInstance as the cluster has it."""
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRInstance",
        "metadata": {"name": f"{of}-{name}"},
        "spec": {
            "poolRef": of,
            "source": {"kind": "External"} | dict.fromkeys(("serviceURL", "agentURL"), f"http://{name}.example:9000"),
            "preInfer": {"slots": slots, "bytes": size},
        },
    }


def test_requests_that_hit_enough_do_not_wait_and_their_default_vectors_are_counted(tmp_path: Path) -> None:
    log, manifests = requests_file(tmp_path / "day.grlog"), manifest(tmp_path / "pool.yaml", pool())
    options = ("--trace", log, "--pool", manifests, "--policy", "static:20", "--level", "sampled-64")

    waits = run("simulate", tmp_path / "waits", *options).result
    goes_on = run("simulate", tmp_path / "goes-on", *options, "--load-behind", "10")

    assert waits["loadBehindPercent"] is None
    assert goes_on.result["loadBehindPercent"] == 10
    assert goes_on.result["run"]["counts"]["rowsDefaulted"] > 0
    assert goes_on.result["run"]["meanMs"] < waits["run"]["meanMs"]
    assert any("default vectors" in each for each in goes_on.result["assumptions"])
    assert "Default vectors stood for" in (goes_on.out / "summary.md").read_text()


def test_the_oracle_has_no_load_behind(tmp_path: Path) -> None:
    ran = run("oracle", tmp_path / "out", "--trace", "steady", "--pool", manifest(tmp_path / "p", pool()), "--load-behind", "10")
    assert ran.code == 2
    assert "--load-behind" in ran.outcome.stderr


@pytest.mark.parametrize("command", ["simulate", "oracle"])
def test_memory_for_prefixes_is_not_shared_by_the_caches(tmp_path: Path, command: str) -> None:
    log = requests_file(tmp_path / "day.grlog", lead_ms=100.0)
    without = manifest(tmp_path / "without.yaml", pool())
    with_policy = manifest(tmp_path / "with.yaml", pool(), pre_inference(**GENEROUS))

    alone = run(command, tmp_path / "alone", "--trace", log, "--pool", without).result
    beside = run(command, tmp_path / "beside", "--trace", log, "--pool", with_policy).result

    assert alone["pool"]["poolBytes"] == 2 * GIB
    assert beside["pool"]["poolBytes"] == 2 * GIB * 3 // 4
    if command == "oracle":
        assert any("the oracle knows none" in doubt and "2,600" in doubt for doubt in beside["doubts"])
        assert not any("pre-inference" in doubt for doubt in alone["doubts"])


def test_slots_and_memory_are_those_that_the_cluster_gave(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog", lead_ms=100.0)
    exported = manifest(
        tmp_path / "exported.yaml",
        pool(),
        pre_inference(**GENEROUS),
        instance("a"),
        instance("b"),
        instance("x", of="another", slots=60),
    )

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", exported).result

    assert (ran["preInference"]["slots"], ran["preInference"]["prefixBytes"]) == (3, 256 << 20)
    assert ran["pool"]["poolBytes"] == 2 * GIB - (256 << 20)
    assert any("what the GRInstances of the file have" in each for each in ran["assumptions"])


def test_a_quiet_moment_of_the_cluster_is_not_taken_for_the_day(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog", lead_ms=100.0)
    exported = manifest(tmp_path / "p.yaml", pool(), pre_inference(**GENEROUS), instance("a", slots=0, size=0))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", exported).result

    assert ran["preInference"]["slots"] > 0
    assert any("the upper bounds of its policy" in each for each in ran["assumptions"])


def test_prefixes_that_leave_the_caches_nothing_are_refused(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog", lead_ms=100.0)
    small = pool(memory={"hbmBytes": "20Mi", "hbmReservedBytes": "0"})
    manifests = manifest(tmp_path / "p.yaml", small, pre_inference(budget={"prefixPercent": 90}))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests)

    assert ran.code == 1
    assert "field spec.memory.hbmBytes" in ran.outcome.stderr
    assert not ran.out.exists()


def test_a_pool_that_holds_its_split_is_told_that_it_is_compared_with_itself(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(strategy="Static"))

    same = run("simulate", tmp_path / "same", "--trace", log, "--pool", manifests)
    other = run("simulate", tmp_path / "other", "--trace", log, "--pool", manifests, "--policy", "static:20")

    assert "policy and baseline are the same (static:50)" in same.said
    assert not any("are the same" in doubt for doubt in other.result["doubts"])


@pytest.mark.parametrize("command", ["simulate", "oracle"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_first_run_says_that_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, kept: bool) -> None:
    monkeypatch.setattr(compiled, "is_kept", lambda loops: kept)
    log, manifests = requests_file(tmp_path / "day.grlog"), manifest(tmp_path / "pool.yaml", pool())

    ran = run(command, tmp_path / "out", "--trace", log, "--pool", manifests, "--json")

    assert ("compiling the simulator's loops" in ran.outcome.stderr) is not kept
    assert "compiling" not in ran.outcome.stdout


@pytest.mark.parametrize(("old", "new"), [("--seconds", "--duration 60s"), ("--per-second", "--rate 60")])
def test_older_names_of_duration_and_rate_name_the_new_ones(tmp_path: Path, old: str, new: str) -> None:
    ran = CliRunner().invoke(app, ["trace", "generate", "steady", "--out", str(tmp_path / "out"), old, "60"])
    assert ran.exit_code == 2
    assert new in " ".join(ran.output.replace("│", " ").split())
    assert old not in CliRunner().invoke(app, ["trace", "generate", "--help"]).output


@pytest.mark.parametrize("duration", ["60", "0s", "999ms", "251h", "-5s", "NaN", "20%", ""])
def test_a_duration_that_is_none_is_wrong_usage_wherever_traffic_is_made(tmp_path: Path, duration: str) -> None:
    made = CliRunner().invoke(app, ["trace", "generate", "steady", "--out", str(tmp_path / "log"), "--duration", duration])
    options = ("--trace", "steady", "--pool", manifest(tmp_path / "pool.yaml", pool()), "--duration", duration)
    replays = [run(command, tmp_path / command, *options).outcome for command in ("simulate", "oracle")]
    for ran in (made, *replays):
        assert ran.exit_code == 2
        assert "--duration" in ran.output


def test_a_log_that_cannot_be_read_says_nothing_of_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "is_kept", lambda loops: False)
    (tmp_path / "log.csv").write_text("user,time_ms,candidates\nann,5,NaN\n")
    ran = run("simulate", tmp_path / "out", "--trace", tmp_path / "log.csv", "--pool", manifest(tmp_path / "p", pool()))
    assert ran.code == 1
    assert len(ran.outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "rule",
    [
        ("--on-bad", "skip"),
        ("--max-skipped", "5"),
        ("--disorder-ms", "1"),
        ("--signal-window-ms", "1"),
        ("--merge-ms", "1"),
        ("--tokens-per-event", "1"),
        ("--max-history-tokens", "9"),
        ("--candidates", "3"),
    ],
)
def test_rules_of_reading_do_nothing_for_a_file_of_requests(tmp_path: Path, rule: tuple[str, str]) -> None:
    log = requests_file(tmp_path / "day.grlog")
    ran = CliRunner().invoke(app, ["trace", "check", str(log), *rule])
    assert ran.exit_code == 2
    assert rule[0] in ran.output
    assert "does nothing" in ran.output
    assert CliRunner().invoke(app, ["trace", "check", str(log)]).exit_code == 0
