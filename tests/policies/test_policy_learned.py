"""Strategy Learned is a guest: in its clamp, on loads it knows, with the anchor in its place whenever something is wrong."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocation.base import clamp_points
from policies.allocation.examples import GIB, example_inputs, example_model, example_model_arrays, example_model_header
from policies.allocation.model_file import Origin, TrainedModel, read_model, write_model
from policies.allocation.recovery import BurstWatch, Phase, Recovery
from policies.allocation.residual import Residual
from policies.allocation.strategy import decide, replay
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    Clip,
    Decision,
    DecisionInputs,
    EstimatorView,
    Layer,
    Learned,
    Reason,
    Strategy,
    decode_decision,
    encode_decision,
)
from policies.measurement import Fresh

USABLE = 16 * GIB
POINT = USABLE / 100
MODEL = example_model(seed=4)


def _inputs(
    *, model: TrainedModel | None = MODEL, learned=None, observation=None, view=None, state=None, **intent
) -> DecisionInputs:
    base = example_inputs()
    settings_ = Learned(model_sha256=model.sha256 if model is not None else None, **(learned or {}))
    return DecisionInputs(
        observation=msgspec.structs.replace(base.observation, **(observation or {})),
        view=msgspec.structs.replace(base.view, **(view or {})),
        intent=AllocationIntent(strategy=Strategy.LEARNED, learned=settings_, **intent),
        state=msgspec.structs.replace(base.state, model_sha256=settings_.model_sha256 or "", **(state or {})),
        now_ms=base.now_ms,
    )


def _run(i: DecisionInputs, model: TrainedModel | None = MODEL) -> tuple[Decision, AllocationState]:
    return decide(i.observation, i.view, i.intent, i.state, i.now_ms, model)


def _biased(answer: float, *, origin: Origin = Origin.ANCHOR, max_step_percent: float = 8.0, **arrays) -> TrainedModel:
    """A model that always answers the same."""
    weights = example_model_arrays(seed=1)
    weights["w3"][:] = 0.0
    weights["b3"][:] = answer
    header = example_model_header(max_step_percent=max_step_percent, origin=origin)
    return read_model(write_model(weights | arrays, header))


@pytest.mark.parametrize("given_model", [None, example_model(seed=5)])
def test_without_the_model_that_the_intent_names_the_anchor_decides_and_says_so(given_model):
    i = _inputs()
    decision, _ = _run(i, given_model)
    anchor, _ = _run(msgspec.structs.replace(i, intent=msgspec.structs.replace(i.intent, strategy=Strategy.MISS_RATIO_CURVE)))
    assert decision.reason is Reason.MODEL_MISSING
    assert decision.layer is Layer.ANCHOR
    assert (decision.target_emb_bytes, decision.goal_emb_bytes) == (anchor.target_emb_bytes, anchor.goal_emb_bytes)
    assert decision.guest is None


def test_a_model_is_run_by_strategy_learned_only():
    i = _inputs()
    intent = msgspec.structs.replace(i.intent, strategy=Strategy.MISS_RATIO_CURVE)
    assert _run(msgspec.structs.replace(i, intent=intent))[0].guest is None


@pytest.mark.parametrize("answer", [-1.0, -0.5, 0.0, 0.5, 1.0])
def test_the_base_says_where_to_counted_from_the_anchor_or_from_the_split(answer):
    model = _biased(answer)
    decision, state = _run(_inputs(model=model), model)
    assert decision.layer is Layer.BASE
    assert decision.reason is Reason.LEARNED_TARGET
    assert decision.guest.action == pytest.approx(answer)
    assert decision.guest.emb_bytes == pytest.approx(state.goal_emb_bytes + 8.0 * answer * POINT)
    assert state.last_action == pytest.approx(answer)
    model = _biased(answer, origin=Origin.SPLIT, max_step_percent=3.0)
    i = _inputs(model=model, state={"goal_emb_bytes": 8.0 * GIB})
    assert _run(i, model)[0].guest.emb_bytes == pytest.approx(8 * GIB + 3.0 * answer * POINT)


def test_the_clamp_cuts_the_base_and_is_named():
    model = _biased(1.0, max_step_percent=50.0)
    decision, state = _run(_inputs(model=model, learned={"clamp_percent": 4.0}), model)
    width = clamp_points(np.array([4.0]), np.array([0.01]))[0]
    assert decision.guest.emb_bytes == pytest.approx(state.goal_emb_bytes + width * POINT)
    assert Clip.CLAMP in decision.clips
    free, _ = _run(_inputs(model=model, learned={"clamp_percent": 50.0}), model)
    assert Clip.CLAMP not in free.clips


def test_restless_curves_widen_the_clamp():
    model = _biased(1.0, max_step_percent=50.0)
    calm, restless = (
        _run(
            _inputs(
                model=model,
                learned={"clamp_percent": 4.0},
                view={"kv": msgspec.structs.replace(example_inputs().view.kv, volatility=volatility)},
                state={"goal_emb_bytes": 8.0 * GIB, "decided_at_ms": 60_000.0},
            ),
            model,
        )[0]
        for volatility in (0.0, 0.05)
    )
    assert restless.guest.emb_bytes - calm.guest.emb_bytes > 4.0 * POINT


def test_a_load_outside_what_training_saw_drops_to_the_anchor_and_names_the_feature():
    low = np.full(31, -1e6, dtype=np.float32)
    low[14] = 0.9  # measured_load
    model = _biased(1.0, low=low)
    decision, state = _run(_inputs(model=model, learned={"residual": Residual(enabled=True)}), model)
    assert decision.reason is Reason.OUT_OF_DISTRIBUTION
    assert decision.layer is Layer.ANCHOR
    assert decision.guest.outlier == "measured_load"
    assert decision.goal_emb_bytes == pytest.approx(state.goal_emb_bytes, abs=64 << 20)
    assert state.last_action == 0.0
    assert state.residual_points == 0.0
    inside = _inputs(model=model, observation={"utilisation": Fresh(0.95)})
    assert _run(inside, model)[0].reason is Reason.LEARNED_TARGET


def test_features_that_are_not_numbers_drop_to_the_anchor_which_holds_what_it_must():
    i = _inputs(observation={"utilisation": Fresh(float("inf"))})
    assert _run(i)[0].reason is Reason.OUT_OF_DISTRIBUTION
    kv = msgspec.structs.replace(example_inputs().view.kv, size_cv2=float("nan"))
    decision, _ = _run(_inputs(view={"kv": kv}))
    assert decision.reason is Reason.OUT_OF_DISTRIBUTION
    assert 0 < decision.target_emb_bytes < USABLE


def _settle(i: DecisionInputs, model: TrainedModel, seconds: int = 60) -> tuple[Decision, AllocationState]:
    state, decision = i.state, None
    for k in range(seconds):
        decision, state = decide(i.observation, i.view, i.intent, state, i.now_ms + 1000.0 * k, model)
    return decision, state


def test_the_residual_brings_a_bad_base_back_to_the_anchor_and_leaves_a_good_one_alone():
    for answer, pulled in ((1.0, True), (0.0, False)):
        model = _biased(answer, max_step_percent=25.0)
        i = _inputs(model=model, learned={"clamp_percent": 30.0, "residual": Residual(enabled=True, max_percent=30.0)})
        decision, state = _settle(i, model)
        off = (decision.goal_emb_bytes - state.goal_emb_bytes) / POINT
        if pulled:
            assert decision.layer is Layer.RESIDUAL
            assert abs(off) < 1.0
            assert decision.guest.residual_points == state.residual_points < -5.0
        else:
            assert decision.layer is Layer.BASE
            assert state.residual_points == 0.0


def test_the_residual_starts_over_with_another_model_or_engine_and_stands_still_in_a_burst():
    model = _biased(1.0, max_step_percent=25.0)
    learned = {"clamp_percent": 30.0, "residual": Residual(enabled=True)}
    _, state = _settle(_inputs(model=model, learned=learned), model)
    assert abs(state.residual_points) > 1.0
    other = _biased(0.5, max_step_percent=25.0)
    i = msgspec.structs.replace(_inputs(model=other, learned=learned), state=state)
    anew = msgspec.structs.replace(state, model_sha256=other.sha256, residual_points=0.0, last_action=0.0)
    decided, after = _run(i, other)
    as_new, expected = _run(msgspec.structs.replace(i, state=anew), other)
    assert (decided.guest, after) == (as_new.guest, expected), "as if the first model had never been there"
    restarted = msgspec.structs.replace(i.observation.split, start_id="another")
    i = msgspec.structs.replace(
        _inputs(model=model, learned=learned, observation={"split": restarted}), state=msgspec.structs.replace(state)
    )
    assert abs(_run(i, model)[1].residual_points) < abs(state.residual_points)
    burst = BurstWatch(phase=Phase.BURST, since_ms=59_000.0, quick=0.0, usual=-1.0, seen_ms=60_000.0)
    i = msgspec.structs.replace(
        _inputs(model=model, learned=learned, observation={"utilisation": Fresh(0.99)}),
        state=msgspec.structs.replace(state, burst=burst, decided_at_ms=59_900.0),
    )
    decision, after = _run(i, model)
    assert decision.phase is Phase.BURST
    assert after.residual_points == state.residual_points


def _in_a_burst(*, model=MODEL, start_emb=8 * GIB, **intent) -> DecisionInputs:
    burst = BurstWatch(phase=Phase.BURST, since_ms=59_000.0, quick=0.0, usual=-1.0, seen_ms=60_000.0)
    split = msgspec.structs.replace(
        example_inputs().observation.split,
        emb_bytes=start_emb,
        kv_bytes=USABLE - start_emb,
        emb_used_bytes=start_emb,
        kv_used_bytes=USABLE - start_emb,
    )
    return _inputs(
        model=model,
        observation={"utilisation": Fresh(0.99), "split": split},
        state={"burst": burst, "target_emb_bytes": start_emb},
        **intent,
    )


def test_a_burst_holds_the_split_only_where_refill_blocks_serving():
    held, _ = _run(_in_a_burst(refill_blocking=True))
    assert held.reason is Reason.BURST_FREEZE
    assert held.layer is Layer.HOLD
    assert held.target_emb_bytes == 8 * GIB
    moving, _ = _run(_in_a_burst())
    assert moving.reason is Reason.LEARNED_TARGET
    for strategy, reason in ((Strategy.MISS_RATIO_CURVE, Reason.BURST_FREEZE), (Strategy.STATIC, Reason.STATIC_TARGET)):
        i = _in_a_burst(refill_blocking=True)
        intent = msgspec.structs.replace(i.intent, strategy=strategy)
        assert _run(msgspec.structs.replace(i, intent=intent))[0].reason is reason


def test_a_split_that_does_harm_moves_even_in_a_burst_that_blocks():
    dear = msgspec.structs.replace(example_inputs().view.costs, ms_per_emb_miss_row=0.005)
    decision, _ = _run(_in_a_burst(refill_blocking=True, start_emb=1 * GIB, view={"costs": dear}))
    assert decision.reason is Reason.LEARNED_TARGET
    assert decision.target_emb_bytes >= 1 * GIB


def test_a_foreign_load_goes_to_the_anchor_even_in_a_burst_that_blocks():
    model = _biased(1.0, low=np.full(31, 0.5, dtype=np.float32))
    decision, _ = _run(_in_a_burst(model=model, refill_blocking=True), model)
    assert decision.reason is Reason.OUT_OF_DISTRIBUTION
    assert decision.layer is Layer.ANCHOR


def test_in_a_burst_and_until_calm_refill_takes_a_fifth_of_the_link_at_most():
    assert _run(_in_a_burst())[0].refill_link_percent == 20.0
    assert _run(_in_a_burst(refill_blocking=True))[0].refill_link_percent == 20.0
    assert _run(_inputs())[0].refill_link_percent is None


def test_where_refill_blocks_the_split_moves_a_third_of_a_point_a_second_at_most():
    model = _biased(1.0)
    for blocking, most in ((True, 1.0 / 3.0), (False, 2.0)):
        i = _inputs(model=model, refill_blocking=blocking, state={"slew_credit_bytes": 0.0})
        first, last = None, None
        state = i.state
        for k in range(20):
            seen = msgspec.structs.replace(
                i.observation.split,
                emb_bytes=last or 8 * GIB,
                kv_bytes=USABLE - (last or 8 * GIB),
                emb_used_bytes=0,
                kv_used_bytes=0,
            )
            decision, state = decide(
                msgspec.structs.replace(i.observation, split=seen), i.view, i.intent, state, 60_000.0 + 250.0 * k, model
            )
            first = decision.target_emb_bytes if first is None else first
            last = decision.target_emb_bytes
        assert abs(last - first) <= most * 5.0 * POINT


@pytest.mark.parametrize("seed", range(5))
def test_a_record_replays_to_the_same_decision_with_the_model_of_its_digest(seed):
    model = example_model(seed=seed)
    i = _inputs(model=model, learned={"residual": Residual(enabled=True)})
    decision, state = _run(i, model)
    again, state_again = replay(decode_decision(encode_decision(decision)), model)
    assert again == decision
    assert state_again == state
    assert decision.kernel in ("c", "numpy")
    without, _ = replay(decision)
    assert without.reason is Reason.MODEL_MISSING


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 30),
    share=st.floats(0.02, 0.98),
    load=st.floats(0.0, 3.0),
    volatility=st.floats(0.0, 1.0),
    clamp=st.floats(0.0, 50.0),
    step=st.floats(0.1, 100.0),
    residual=st.booleans(),
    blocking=st.booleans(),
    origin=st.sampled_from(list(Origin)),
    points=st.floats(-20.0, 20.0),
)
def test_whatever_a_model_answers_the_target_keeps_to_bounds_granules_and_pace(
    seed, share, load, volatility, clamp, step, residual, blocking, origin, points
):
    model = example_model(seed=seed, max_step_percent=step, origin=origin)
    granule = 64 << 20
    emb = min(max(round(share * USABLE / granule), 1), USABLE // granule - 1) * granule
    split = msgspec.structs.replace(
        example_inputs().observation.split, emb_bytes=emb, kv_bytes=USABLE - emb, emb_used_bytes=0, kv_used_bytes=0
    )
    i = _inputs(
        model=model,
        learned={"clamp_percent": clamp, "residual": Residual(enabled=residual)},
        observation={"split": split, "utilisation": Fresh(load)},
        view={"kv": msgspec.structs.replace(example_inputs().view.kv, volatility=volatility)},
        state={"target_emb_bytes": emb, "residual_points": points, "slew_credit_bytes": 0.0},
        refill_blocking=blocking,
        recovery=Recovery(),
    )
    decision, _ = _run(i, model)
    assert decision.may_apply
    assert decision.target_emb_bytes % granule == 0
    assert abs(decision.target_emb_bytes - emb) <= max(granule, 0.1 * 2.0 * POINT)
    if decision.goal_emb_bytes is not None:
        assert 0.05 * USABLE - granule <= decision.goal_emb_bytes <= 0.95 * USABLE + granule


def test_the_two_pool_arc_rule_adds_up_the_hits_of_ghosts_from_decision_to_decision():
    i = _inputs()
    observation = msgspec.structs.replace(i.observation, emb_row_bytes=512.0, kv_bytes_per_token=8192.0)
    state = msgspec.structs.replace(i.state, goal_emb_bytes=None)
    goals = []
    for k in range(100):  # the hits of a tenth of a second are less than a granule
        intent = AllocationIntent(strategy=Strategy.TWO_POOL_ARC)
        decision, state = decide(observation, i.view, intent, state, i.now_ms + 100.0 * k)
        goals.append(decision.goal_emb_bytes)
    assert decision.layer is Layer.TWO_POOL_ARC
    assert decision.reason is Reason.GHOST_HITS
    assert abs(goals[-1] - 8 * GIB) > 2 * POINT
    assert len(set(goals)) > 5


def test_a_view_that_is_not_trusted_keeps_the_guest_quiet():
    i = _inputs()
    young = EstimatorView(emb=None, kv=i.view.kv, costs=i.view.costs)
    decision, _ = _run(replace_view(i, young))
    assert decision.reason is Reason.ESTIMATE_NOT_TRUSTED
    assert decision.guest is None


def replace_view(i: DecisionInputs, view: EstimatorView) -> DecisionInputs:
    return msgspec.structs.replace(i, view=view)


def test_models_of_the_tests_differ_in_their_digest():
    assert example_model(seed=1).sha256 != example_model(seed=2).sha256
    assert replace(MODEL, sha256="x").sha256 == "x"


_COSTS = tuple(example_inputs().view.costs.__struct_fields__[:8])
_FACTS = ("samples", "age_ms", "window_ms", "memory_ms", "volatility", "size_cv2", "miss_ratio", "capacity_bytes")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, -1.0])
@pytest.mark.parametrize("name", [*_COSTS, *(f"{side}.{fact}" for side in ("emb", "kv") for fact in _FACTS)])
def test_no_figure_of_a_view_can_stop_a_decision_or_lead_it_out_of_the_pool(name, value):
    i = _inputs()
    side, _, fact = name.rpartition(".")
    if not side:
        view = msgspec.structs.replace(i.view, costs=msgspec.structs.replace(i.view.costs, **{fact: value}))
    else:
        curve = getattr(i.view, side)
        if fact in ("miss_ratio", "capacity_bytes"):
            fact, value = f"packed_{fact}", np.full_like(getattr(curve, fact), value).tobytes()
        view = msgspec.structs.replace(i.view, **{side: msgspec.structs.replace(curve, **{fact: value})})
    for strategy in Strategy:
        intent, state = msgspec.structs.replace(i.intent, strategy=strategy), i.state
        with np.errstate(all="ignore"):
            for turn in range(3):
                decision, state = decide(i.observation, view, intent, state, i.now_ms + 1000.0 * turn, MODEL)
                assert decision.target_emb_bytes is not None
                assert 0 < decision.target_emb_bytes < USABLE
                assert all(map(np.isfinite, (state.residual_points, state.last_action, state.slew_credit_bytes)))
            decision, _ = decide(i.observation, i.view, intent, state, i.now_ms + 4000.0, MODEL)
        assert decision.layer is not Layer.HOLD, "good figures decide again at once"
