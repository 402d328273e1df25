"""`grfleet simulate` runs a trained model as an agent would, and hands agents every setting of their policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_models import model_bytes
from simulate_inputs import hbm_policy, manifest, pool, requests_file, run

from grfleet.simulate.choice import choice_of
from grfleet.simulate.wanted import wanted
from policies.allocation.model_file import read_model

ACTIVE = {"strategy": "Learned", "enforcement": "Active", "learned": {"model": "m"}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "split.safetensors"
    path.write_bytes(model_bytes())
    return path


def test_a_policy_that_is_learned_runs_the_model_that_is_given(tmp_path: Path, model: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(**ACTIVE))
    log = requests_file(tmp_path / "day.grlog", count=4000)

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--model", model, "--level", "sampled-64")

    assert ran.code == 0, ran.said
    assert (ran.result["policy"]["name"], ran.result["policy"]["holds"]) == ("Learned", False)
    assert read_model(model.read_bytes()).sha256 in ran.result["policy"]["source"]
    assert str(tmp_path) not in ran.result["policy"]["source"]
    reasons = ran.result["run"]["decisions"]
    assert sum(reasons.values()) == 2 * 89
    assert any("Model" in reason or "Learned" in reason for reason in reasons), reasons


def test_a_model_that_nobody_runs_is_refused_and_a_policy_that_only_watches_holds(tmp_path: Path, model: Path) -> None:
    shadow = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(strategy="Learned", learned={"model": "m"}))
    log = requests_file(tmp_path / "day.grlog")
    arguments = ("--trace", log, "--pool", shadow, "--level", "reduced")

    idle = run("simulate", tmp_path / "idle", *arguments, "--model", model)
    held = run("simulate", tmp_path / "held", *arguments)

    assert (idle.code, "--policy Learned" in idle.said) == (1, True)
    assert held.code == 0, held.said
    assert held.result["policy"]["holds"]
    assert "only watches" in " ".join((*held.result["assumptions"], *held.result["doubts"]))


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    manifests, other = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(**ACTIVE)), tmp_path / "other"
    other.write_bytes(b"no model")

    ran = run("simulate", tmp_path / "out", "--trace", "steady", "--pool", manifests, "--model", other)

    assert (ran.code, ran.said.count("\n")) == (1, 1), ran.said
    assert "--model" in ran.said


def test_agents_get_every_setting_of_the_policy(tmp_path: Path, model: Path) -> None:
    settings = ACTIVE | {
        "bounds": {"minEmbPercent": 11, "fallbackEmbPercent": 33, "maxEmbPercent": 77},
        "step": {"maxPercentPerSecond": 3, "deadbandPercent": 4, "intervalMs": 1500},
        "learned": {"model": "m", "clampPercent": 7, "residual": {"enabled": True, "maxPercent": 9, "minGainPercent": 2}},
        "recovery": {"burstPercent": 21, "calmSeconds": 45, "freezeWhenBlocking": False},
    }
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(**settings))

    intent = choice_of(wanted(manifests, name=None, hbm_file=None), None, read_model(model.read_bytes())).intent()

    assert (intent.bounds.min_emb_percent, intent.bounds.fallback_emb_percent, intent.bounds.max_emb_percent) == (11, 33, 77)
    assert (intent.step.max_percent_per_second, intent.step.deadband_percent, intent.step.interval_ms) == (3, 4, 1500)
    assert (intent.learned.model_sha256, intent.learned.clamp_percent) == (read_model(model.read_bytes()).sha256, 7)
    residual, recovery = intent.learned.residual, intent.recovery
    assert (residual.enabled, residual.max_percent, residual.min_gain_percent) == (True, 9, 2)
    assert (recovery.burst_percent, recovery.calm_seconds, recovery.freeze_when_blocking) == (21, 45, False)
