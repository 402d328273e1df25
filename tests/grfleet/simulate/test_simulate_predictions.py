"""What agents predicted stands beside what came, and a prediction that is far off is doubted."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate_inputs import manifest, pool, requests_file, run

from grfleet.simulate.predicted import doubt_of
from grfleet.simulate.schema import Prediction


def prediction(predicted: float, measured: float) -> Prediction:
    return Prediction(
        instances=2,
        decisions=100,
        predicted_p99_ms=predicted,
        measured_p99_ms=measured,
        error_percent=100.0 * (predicted / measured - 1.0),
    )


def test_each_policy_with_agents_has_its_prediction_beside_the_measured_p99(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog", count=3400)
    options = ("--policy", "MissRatioCurve", "--baseline", "HillClimb", "--warm-up", "10%", "--level", "reduced")

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifest(tmp_path / "pool.yaml", pool()), *options)

    for side in ("run", "baseline"):
        told = ran.result[side]["prediction"]
        if told is None:
            assert side == "baseline", "only hill climbing may predict nothing"
            continue
        by_instance = [each["p99Ms"] for each in ran.result[side]["byInstance"]]
        assert told["measuredP99Ms"] == pytest.approx(sum(by_instance) / len(by_instance), abs=1e-3)
        assert told["errorPercent"] == pytest.approx(100.0 * (told["predictedP99Ms"] / told["measuredP99Ms"] - 1.0), abs=0.01)
        assert told["decisions"] > 50
    assert "agents predicted a P99 of" in (ran.out / "summary.md").read_text()


def test_agents_in_several_processes_predict_and_decide_as_in_one(tmp_path: Path) -> None:
    log, manifests = requests_file(tmp_path / "day.grlog", count=3400), manifest(tmp_path / "pool.yaml", pool())
    options = ("--trace", log, "--pool", manifests, "--policy", "MissRatioCurve", "--level", "reduced")
    one, two = (run("simulate", tmp_path / workers, *options, "--workers", workers) for workers in ("1", "2"))
    assert one.result["run"]["prediction"] is not None
    assert two.result == one.result


def test_a_split_that_is_held_predicts_nothing(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")
    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifest(tmp_path / "p", pool()), "--policy", "static:20")
    assert found.result["run"]["prediction"] is None


@pytest.mark.parametrize(("predicted", "measured", "far"), [(10.0, 10.5, False), (7.0, 10.0, True), (13.0, 10.0, True)])
def test_a_level_that_is_far_off_is_doubted(predicted: float, measured: float, far: bool) -> None:
    assert (doubt_of(prediction(predicted, measured), policy="x", utilisation_percent=60.0) is not None) is far


def test_the_doubt_says_what_is_known_of_low_loads() -> None:
    low = doubt_of(prediction(5.0, 10.0), policy="MissRatioCurve", utilisation_percent=12.0)
    high = doubt_of(prediction(5.0, 10.0), policy="MissRatioCurve", utilisation_percent=70.0)
    above = doubt_of(prediction(15.0, 10.0), policy="MissRatioCurve", utilisation_percent=12.0)
    assert low is not None
    assert "below 30 %" in low
    assert all(each is not None and "below 30 %" not in each for each in (high, above))


def test_nothing_predicted_is_nothing_to_doubt() -> None:
    assert doubt_of(None, policy="x", utilisation_percent=None) is None
