"""The model that is shipped: readable, described by its card, asked for by its command, and harmless inside its guards."""

import msgspec
import numpy as np
import pytest
from documented import ROOT
from training_worlds import tables, worlds

from policies.allocation.examples import example_inputs
from policies.allocation.model_file import TrainedModel, read_model
from policies.allocation.strategy import decide
from policies.allocation.types import Learned, Reason, Strategy
from training.controllers import guarded, smoothed_anchor
from training.evaluation import play
from training.worlds import Regime

MODELS = ROOT / "policies" / "models"


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    return read_model((MODELS / "split-1.safetensors").read_bytes())


def test_it_is_a_few_tens_of_kilobytes_and_its_card_names_its_digest(model: TrainedModel) -> None:
    assert (MODELS / "split-1.safetensors").stat().st_size < 64 * 1024
    card = (MODELS / "split-1.md").read_text()
    assert model.sha256 in card
    assert model.header.training["command"] in card
    assert "## Limits" in card


def test_its_header_tells_how_it_was_made_and_what_it_reached(model: TrainedModel) -> None:
    assert model.header.refill_modes == ("lazy", "throttled", "blocking")
    assert {"command", "seed", "steps", "plan", "versions"} <= set(model.header.training)
    assert len(model.scores) > 10
    assert all(np.isfinite(score.value) for score in model.scores)


def test_the_ranges_it_accepts_hold_the_whole_split_and_a_calm_stream(model: TrainedModel) -> None:
    assert (model.low < model.high).all()
    assert model.low[0] <= 0.05
    assert model.high[0] >= 0.95


def test_it_decides_in_the_example_of_a_running_instance(model: TrainedModel) -> None:
    inputs = example_inputs()
    assert inputs.intent is not None
    intent = msgspec.structs.replace(inputs.intent, strategy=Strategy.LEARNED, learned=Learned(model_sha256=model.sha256))
    decision, _ = decide(inputs.observation, inputs.view, intent, inputs.state, inputs.now_ms, model)
    assert decision.reason is Reason.LEARNED_TARGET


@pytest.mark.parametrize("noise", [0.08, 0.8])
def test_inside_its_guards_it_is_not_far_behind_the_anchor(model: TrainedModel, noise: float) -> None:
    some = worlds(48, Regime.STEADY, seed=21, noise=noise, noise_s=5.0, deadband=0.02, slew=0.02, first_share=0.5)
    ours, anchors = (play(some, tables(), who, seed=3, steps=120) for who in (guarded(model), smoothed_anchor))
    assert np.median(ours.regret - anchors.regret) < 0.02
