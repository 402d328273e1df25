"""Where refill blocks serving, the model may leave the anchor only for what pays for the refill; elsewhere nobody asks."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocation.examples import GIB, example_inputs, example_model, example_model_arrays, example_model_header
from policies.allocation.model_file import Origin, read_model, write_model
from policies.allocation.residual import Residual
from policies.allocation.standstill import HELD_S, Price, refill_ms_per_byte
from policies.allocation.strategy import decide, replay
from policies.allocation.types import (
    AllocationIntent,
    Clip,
    DecisionInputs,
    Layer,
    Learned,
    Reason,
    Strategy,
    decode_decision,
    encode_decision,
)
from policies.measurement import Fresh, Missing

USABLE = 16 * GIB
POINT = USABLE / 100


def _answers(action: float, *, max_step_percent: float = 8.0):
    """A model that always answers the same."""
    weights = example_model_arrays(seed=1)
    weights["w3"][:] = 0.0
    weights["b3"][:] = action
    return read_model(write_model(weights, example_model_header(max_step_percent=max_step_percent)))


def _inputs(model, *, strategy=Strategy.LEARNED, blocking=True, observation=None, state=None, residual=False) -> DecisionInputs:
    example = example_inputs()
    learned = Learned(model_sha256=model.sha256, residual=Residual(enabled=residual))
    return DecisionInputs(
        observation=msgspec.structs.replace(example.observation, **(observation or {})),
        view=example.view,
        intent=AllocationIntent(strategy=strategy, learned=learned, refill_blocking=blocking),
        state=msgspec.structs.replace(example.state, model_sha256=model.sha256, **(state or {})),
        now_ms=example.now_ms,
    )


def _run(i: DecisionInputs, model):
    return decide(i.observation, i.view, i.intent, i.state, i.now_ms, model)


@pytest.mark.parametrize("action", [-1.0, -0.3, 0.4, 1.0])
@pytest.mark.parametrize("residual", [True, False])
def test_an_offset_that_does_not_pay_for_its_refill_leaves_the_split_to_the_anchor_and_is_named(action, residual):
    model = _answers(action)
    decision, after = _run(_inputs(model, residual=residual, state={"residual_points": 3.0}), model)
    anchor, _ = _run(_inputs(model, strategy=Strategy.MISS_RATIO_CURVE), model)
    assert decision.clips[0] is Clip.STANDSTILL
    assert (decision.target_emb_bytes, decision.goal_emb_bytes) == (anchor.target_emb_bytes, anchor.goal_emb_bytes)
    assert (decision.reason, decision.layer) == (Reason.LEARNED_TARGET, Layer.BASE)
    assert decision.guest.action == pytest.approx(action)
    assert (decision.guest.residual_points, after.residual_points) == (0.0, 0.0)


def _far_from_its_best(action: float):
    """The smoothed anchor stands forty points from the best split, so that a step towards that is worth much."""
    model = _answers(action)
    best, _ = _run(_inputs(model, strategy=Strategy.MISS_RATIO_CURVE, state={"goal_emb_bytes": None}), model)
    far = best.goal_emb_bytes - math.copysign(40.0, action) * POINT
    return model, {"goal_emb_bytes": far, "decided_at_ms": example_inputs().now_ms - 1.0}


@pytest.mark.parametrize("action", [-1.0, 1.0])
def test_an_offset_is_followed_where_its_bytes_come_so_quickly_that_it_pays(action):
    model, state = _far_from_its_best(action)
    seen = example_inputs().observation
    quick, slow = ({"demand_bytes": Fresh(seen.demand_bytes.value * times)} for times in (1000.0, 0.001))
    decision, _ = _run(_inputs(model, state=state, observation=quick), model)
    plain, _ = _run(_inputs(model, state=state, blocking=False), model)
    assert Clip.STANDSTILL not in decision.clips
    assert decision.goal_emb_bytes == plain.goal_emb_bytes
    assert Clip.STANDSTILL in _run(_inputs(model, state=state, observation=slow), model)[0].clips


@pytest.mark.parametrize(
    "observation", [{"emb_rows_hit": example_inputs().observation.emb_rows_asked}, {"demand_bytes": Fresh(0.0)}]
)
def test_what_refill_costs_is_not_known_while_no_row_is_missed_and_then_the_anchor_decides(observation):
    model, state = _far_from_its_best(1.0)
    i = _inputs(model, state=state, observation=observation)
    assert refill_ms_per_byte(i.observation, i.view.costs) == math.inf
    assert Clip.STANDSTILL in _run(i, model)[0].clips


def test_a_byte_costs_what_missed_rows_took_and_nobody_knows_what_a_missing_figure_says():
    example = example_inputs()
    seen = example.observation
    rows = seen.emb_rows_asked.value - seen.emb_rows_hit.value
    wanted = rows * example.view.costs.ms_per_emb_miss_row / seen.demand_bytes.value
    assert refill_ms_per_byte(seen, example.view.costs) == pytest.approx(wanted)
    for name in ("emb_rows_asked", "emb_rows_hit", "demand_bytes"):
        assert refill_ms_per_byte(msgspec.structs.replace(seen, **{name: Missing()}), example.view.costs) == math.inf


def test_the_price_is_the_time_in_which_the_queue_behind_a_standstill_goes_away():
    price = Price(ms_per_byte=1000.0 / 20e9, utilisation=0.6)
    assert price.share(20e9) == pytest.approx(1.0 / 0.4 / HELD_S)  # a second stood still, two and a half until all is as it was
    assert price.share(-20e9) == price.share(20e9)
    assert not price.is_worth(20e9, 100.0, 104.0)
    assert price.is_worth(20e9, 100.0, 105.0)
    busier = Price(ms_per_byte=price.ms_per_byte, utilisation=0.9)
    assert not busier.is_worth(20e9, 100.0, 105.0)
    assert math.isfinite(Price(ms_per_byte=1e-6, utilisation=3.0).share(1.0))


@pytest.mark.parametrize("figures", [(math.nan, 0.5), (1e-6, math.nan), (math.inf, 0.5)])
def test_a_price_that_is_not_a_number_is_never_paid(figures):
    ms_per_byte, utilisation = figures
    price = Price(ms_per_byte=ms_per_byte, utilisation=utilisation)
    assert not price.is_worth(1e9, 1.0, 2.0)
    assert not price.is_worth(0.0, math.nan, 2.0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 30),
    share=st.floats(0.05, 0.95),
    load=st.floats(0.05, 3.0),
    step=st.floats(0.1, 100.0),
    goal=st.floats(0.05, 0.95),
    origin=st.sampled_from(list(Origin)),
    blocking=st.booleans(),
)
def test_whatever_a_model_answers_it_leaves_the_anchor_only_for_a_lower_prediction_where_refill_blocks_and_is_free_elsewhere(
    seed, share, load, step, goal, origin, blocking
):
    model = example_model(seed=seed, max_step_percent=step, origin=origin)
    granule = example_inputs().observation.granule_bytes
    emb = int(np.clip(round(share * USABLE / granule), 1, USABLE // granule - 1)) * granule
    split = msgspec.structs.replace(
        example_inputs().observation.split, emb_bytes=emb, kv_bytes=USABLE - emb, emb_used_bytes=0, kv_used_bytes=0
    )
    i = _inputs(
        model,
        blocking=blocking,
        observation={"split": split, "utilisation": Fresh(load)},
        state={"target_emb_bytes": emb, "goal_emb_bytes": goal * USABLE},
    )
    decision, state = _run(i, model)
    assert replay(decode_decision(encode_decision(decision)), model)[0] == decision
    if decision.layer is not Layer.BASE:
        return
    at_anchor = abs(decision.goal_emb_bytes - state.goal_emb_bytes) <= granule
    if Clip.STANDSTILL in decision.clips:
        assert blocking
        assert at_anchor or Clip.BOUNDS in decision.clips or Clip.MINIMUM_GRANULE in decision.clips
    else:
        asked = min(max(decision.guest.emb_bytes, 0.05 * USABLE), 0.95 * USABLE)
        assert abs(decision.goal_emb_bytes - asked) <= granule
