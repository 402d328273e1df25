"""The split decision: what freezes it, what limits it, and that a record replays to the same decision."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocation.anchor import solve
from policies.allocation.examples import GIB, example_inputs, pack_curve
from policies.allocation.strategy import decide, replay
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    Assumed,
    Bounds,
    Clip,
    Decision,
    DecisionInputs,
    Enforcement,
    EstimatorView,
    Layer,
    Reason,
    SplitInForce,
    Step,
    Strategy,
    decode_decision,
    encode_decision,
)
from policies.measurement import Fresh, Missing, NotANumber, Stale, measured

USABLE = 16 * GIB
GRANULE = 64 << 20
POINT = USABLE / 100


def inputs(**changes: object) -> DecisionInputs:
    """The example with fields of the observation, intent or the rest replaced by name."""
    base = example_inputs()
    parts: dict[str, Any] = {"observation": base.observation, "intent": base.intent, "view": base.view, "state": base.state}
    for name, part in list(parts.items()):
        own = {k: v for k, v in changes.items() if k in part.__struct_fields__}
        parts[name] = msgspec.structs.replace(part, **own)
        changes = {k: v for k, v in changes.items() if k not in own}
    return msgspec.structs.replace(base, **(parts | changes))


def run(i: DecisionInputs) -> tuple[Decision, AllocationState]:
    return decide(i.observation, i.view, i.intent, i.state, i.now_ms)


def split(emb: int, kv: int, **more: int) -> SplitInForce:
    return SplitInForce(start_id="example", revision=7, emb_bytes=emb, kv_bytes=kv, **more)


FREEZES: list[tuple[dict[str, Any], Reason]] = [
    ({"intent": None}, Reason.NO_INTENT),
    ({"paused": True}, Reason.PAUSED),
    ({"second_writer": True}, Reason.SECOND_WRITER),
    ({"resizable": False}, Reason.NOT_RESIZABLE),
    ({"split": Missing()}, Reason.MISSING_DATA),
    ({"split": Stale(age_ms=9e4)}, Reason.STALE_DATA),
    ({"requests": NotANumber()}, Reason.NOT_A_NUMBER),
    ({"emb_rows_hit": Missing()}, Reason.MISSING_DATA),
    ({"kv_tokens_asked": Stale(age_ms=1e5)}, Reason.STALE_DATA),
    ({"p99_ms": NotANumber()}, Reason.NOT_A_NUMBER),
    ({"utilisation": Missing()}, Reason.MISSING_DATA),
    ({"usable_bytes": GRANULE}, Reason.POOL_TOO_SMALL),
    ({"split": split(7 * GIB, 8 * GIB, overage_bytes=GIB), "target_emb_bytes": 7 * GIB}, Reason.ENGINE_DEFERRING),
    ({"split": split(7 * GIB, 8 * GIB, emb_used_bytes=8 * GIB), "target_emb_bytes": 7 * GIB}, Reason.ENGINE_DEFERRING),
    ({"split": split(8 * GIB, 8 * GIB, refill_backlog_bytes=1)}, Reason.REFILL_BACKLOG),
    ({"requests": Fresh(0.0)}, Reason.IDLE),
]


@pytest.mark.parametrize(("change", "reason"), FREEZES)
def test_doubt_and_orders_freeze_the_split_and_say_why(change: dict[str, Any], reason: Reason) -> None:
    i = inputs(**change)
    decision, _ = run(i)
    assert decision.reason is reason
    assert decision.layer is Layer.HOLD
    if isinstance(i.observation.split, SplitInForce) and i.observation.usable_bytes == USABLE:
        assert decision.target_emb_bytes == i.observation.split.emb_bytes


@pytest.mark.parametrize(("change", "reason"), FREEZES[:12])
def test_bad_data_and_orders_to_stop_let_nothing_be_sent(change: dict[str, Any], reason: Reason) -> None:
    decision, _ = run(inputs(**change))
    assert not decision.may_apply


@pytest.mark.parametrize("change", [{"requests": Fresh(0.0)}, {"costs": None}], ids=["idle", "no trusted estimate"])
@pytest.mark.parametrize(("bounds", "percent"), [(Bounds(min_emb_percent=70), 70), (Bounds(max_emb_percent=30), 30)])
def test_bounds_are_an_order_that_waits_neither_for_requests_nor_for_an_estimate(
    change: dict[str, Any], bounds: Bounds, percent: int
) -> None:
    step = Step(max_percent_per_second=100)
    i = inputs(bounds=bounds, step=step, goal_emb_bytes=8.0 * GIB, split=split(8 * GIB, 8 * GIB), **change)
    decision, _ = run(i)
    assert decision.goal_emb_bytes == pytest.approx(percent * POINT, abs=GRANULE)
    assert decision.may_apply
    assert Clip.BOUNDS in decision.clips
    assert abs(decision.target_emb_bytes - 8 * GIB) > 0


def test_an_order_to_pause_comes_before_doubt_about_data() -> None:
    assert run(inputs(paused=True, requests=NotANumber()))[0].reason is Reason.PAUSED


def test_missing_stale_nan_and_zero_are_four_different_values() -> None:
    assert measured(None, age_ms=0, stale_after_ms=10) == Missing()
    assert measured(math.nan, age_ms=0, stale_after_ms=10) == NotANumber()
    assert measured(math.inf, age_ms=0, stale_after_ms=10) == NotANumber()
    assert measured(1.0, age_ms=11, stale_after_ms=10) == Stale(age_ms=11)
    assert measured(0.0, age_ms=-1, stale_after_ms=10) == Fresh(value=0.0, age_ms=0.0)


def test_the_first_trusted_estimate_is_taken_over_without_smoothing() -> None:
    i = inputs(goal_emb_bytes=None)
    decision, state = run(i)
    assert i.view.emb
    assert i.view.kv
    assert i.view.costs
    anchor = solve(
        i.view.emb,
        i.view.kv,
        i.view.costs,
        usable_bytes=USABLE,
        granule_bytes=GRANULE,
        bounds=Bounds(),
        current_emb_bytes=8 * GIB,
    )
    assert decision.layer is Layer.ANCHOR
    assert decision.reason is Reason.ANCHOR_TARGET
    assert state.goal_emb_bytes == decision.goal_emb_bytes == anchor.target_emb_bytes


def test_later_estimates_are_smoothed_and_a_volatile_one_more() -> None:
    i = inputs(goal_emb_bytes=0.7 * USABLE)
    calm = run(i)[1].goal_emb_bytes
    assert i.view.emb
    volatile_view = msgspec.structs.replace(i.view, emb=msgspec.structs.replace(i.view.emb, volatility=0.3))
    volatile = run(msgspec.structs.replace(i, view=volatile_view))[1].goal_emb_bytes
    assert calm is not None
    assert volatile is not None
    assert calm < volatile < 0.7 * USABLE


def test_before_any_trusted_estimate_the_fallback_share_is_approached() -> None:
    decision, _ = run(
        inputs(view=EstimatorView(), goal_emb_bytes=None, bounds=Bounds(fallback_emb_percent=30), slew_credit_bytes=1e9)
    )
    assert decision.layer is Layer.FALLBACK
    assert decision.reason is Reason.ESTIMATE_NOT_TRUSTED
    assert decision.target_emb_bytes is not None
    assert 0.3 * USABLE < decision.target_emb_bytes < 8 * GIB


def test_an_estimate_that_loses_trust_later_holds_the_split() -> None:
    i = inputs()
    assert i.view.kv
    old = msgspec.structs.replace(i.view, kv=msgspec.structs.replace(i.view.kv, age_ms=60_000.0))
    decision, state = run(msgspec.structs.replace(i, view=old))
    assert decision.layer is Layer.HOLD
    assert decision.target_emb_bytes == 8 * GIB
    assert state.goal_emb_bytes == i.state.goal_emb_bytes


def test_a_young_curve_is_not_trusted_before_it_could_have_seen_the_cache_fill() -> None:
    i = inputs(goal_emb_bytes=None)
    flat = pack_curve(capacity_bytes=np.array([0.0, GIB, 2.0 * GIB]), miss_ratio=np.array([1.0, 0.9, 0.9]), window_ms=5000.0)
    decision, _ = run(msgspec.structs.replace(i, view=msgspec.structs.replace(i.view, kv=flat)))
    assert decision.layer is Layer.FALLBACK


def test_a_learned_strategy_without_a_model_holds_the_anchor_and_says_so() -> None:
    plain, _ = run(inputs())
    learned, _ = run(inputs(strategy=Strategy.LEARNED))
    assert learned.reason is Reason.MODEL_MISSING
    assert learned.layer is Layer.ANCHOR
    assert learned.target_emb_bytes == plain.target_emb_bytes


def test_a_static_strategy_goes_to_its_share_and_needs_no_counters() -> None:
    decision, _ = run(
        inputs(
            strategy=Strategy.STATIC,
            bounds=Bounds(fallback_emb_percent=50),
            split=split(4 * GIB, 12 * GIB),
            p99_ms=Missing(),
            slew_credit_bytes=3 * POINT,
        )
    )
    assert decision.reason is Reason.STATIC_TARGET
    assert decision.goal_emb_bytes == 8 * GIB
    assert decision.target_emb_bytes is not None
    assert decision.target_emb_bytes > 4 * GIB


def test_hill_climbing_steps_towards_the_anchor_from_either_side() -> None:
    for emb, up in ((2 * GIB, True), (14 * GIB, False)):
        decision, _ = run(inputs(strategy=Strategy.HILL_CLIMB, split=split(emb, USABLE - emb)))
        assert decision.layer is Layer.HILL_CLIMB
        assert decision.reason is Reason.HILL_STEP
        assert decision.goal_emb_bytes is not None
        assert (decision.goal_emb_bytes > emb) is up


def test_shadow_decides_the_same_and_sends_nothing() -> None:
    active, _ = run(inputs())
    shadow, _ = run(inputs(enforcement=Enforcement.SHADOW))
    assert not shadow.may_apply
    assert shadow.target_emb_bytes == active.target_emb_bytes


def test_a_goal_inside_the_deadband_starts_no_move_but_a_move_under_way_goes_on_through_it() -> None:
    near: dict[str, Any] = {
        "goal_emb_bytes": None,
        "strategy": Strategy.STATIC,
        "bounds": Bounds(fallback_emb_percent=51),
        "slew_credit_bytes": 9e9,
    }
    resting, _ = run(inputs(**near))
    assert resting.target_emb_bytes == 8 * GIB
    assert Clip.DEADBAND in resting.clips
    moving, _ = run(inputs(**near, moving=True))
    assert moving.target_emb_bytes == 8 * GIB + 3 * GRANULE  # 51 % in whole granules


def test_a_slew_limit_below_one_granule_per_decision_still_adds_up_to_the_full_rate() -> None:
    step = Step(max_percent_per_second=1.0, deadband_percent=0.0)
    i = inputs(strategy=Strategy.STATIC, bounds=Bounds(fallback_emb_percent=90), step=step, slew_credit_bytes=0.0)
    emb, state = 8 * GIB, i.state
    for tick in range(1, 101):
        observation = msgspec.structs.replace(i.observation, split=split(emb, USABLE - emb))
        decision, state = decide(observation, i.view, i.intent, state, 59_900.0 + 100.0 * tick)
        assert decision.target_emb_bytes is not None
        assert decision.target_emb_bytes - emb <= GRANULE
        emb = decision.target_emb_bytes
    assert 10 * POINT - GRANULE <= emb - 8 * GIB <= 10 * POINT


def test_a_freeze_saves_up_no_speed() -> None:
    _, paused = run(inputs(paused=True, slew_credit_bytes=5.0))
    assert paused.slew_credit_bytes == 5.0
    assert paused.decided_at_ms == 60_000.0


def test_an_instance_that_is_idle_every_other_interval_still_arrives() -> None:
    i = inputs(strategy=Strategy.HILL_CLIMB, slew_credit_bytes=0.0)
    idle = msgspec.structs.replace(i.observation, requests=Fresh(0.0))
    emb, state = 14 * GIB, i.state
    for tick in range(1, 81):
        observation = msgspec.structs.replace(idle if tick % 2 else i.observation, split=split(emb, USABLE - emb))
        decision, state = decide(observation, i.view, i.intent, state, 60_000.0 + 100.0 * tick)
        assert decision.target_emb_bytes is not None
        emb = decision.target_emb_bytes
    assert 14 * GIB - emb >= 4 * 2 * POINT - 2 * GRANULE


def test_a_freeze_in_mid_move_keeps_the_target_of_the_move() -> None:
    # EMB has been shrunk to 6 GiB and KV has not grown yet; then the other way round.
    for emb, kv, target in ((6 * GIB, 8 * GIB, 6 * GIB), (8 * GIB, 6 * GIB, 10 * GIB)):
        i = inputs(split=split(emb, kv, refill_backlog_bytes=1), target_emb_bytes=target)
        decision, _ = run(i)
        assert decision.reason is Reason.REFILL_BACKLOG
        assert decision.target_emb_bytes == target
        assert decision.may_apply


def test_a_new_engine_process_starts_from_its_own_split() -> None:
    i = inputs(split=SplitInForce(start_id="other", revision=0, emb_bytes=4 * GIB, kv_bytes=10 * GIB), target_emb_bytes=12 * GIB)
    decision, state = run(i)
    assert state.start_id == "other"
    assert decision.target_emb_bytes is not None
    assert abs(decision.target_emb_bytes - 4 * GIB) <= 2 * POINT


def test_a_split_outside_the_bounds_is_brought_inside_even_within_the_deadband() -> None:
    bounds = Bounds(min_emb_percent=51, max_emb_percent=95, fallback_emb_percent=51)
    decision, _ = run(inputs(strategy=Strategy.STATIC, bounds=bounds, slew_credit_bytes=9e9))
    assert decision.target_emb_bytes is not None
    assert decision.target_emb_bytes >= 0.51 * USABLE


def test_a_record_replays_to_the_same_decision_after_a_trip_through_json() -> None:
    changes: list[dict[str, Any]] = [{}, {"strategy": Strategy.HILL_CLIMB}, {"view": EstimatorView()}]
    view = inputs().view
    assert view.costs
    changes.append(
        {"view": msgspec.structs.replace(view, costs=msgspec.structs.replace(view.costs, assumed=(Assumed.EMB_MISS_ROW,)))}
    )
    for change in [*changes, *(change for change, _ in FREEZES)]:
        decision, state = run(inputs(**change))
        read = decode_decision(encode_decision(decision))
        assert read == decision
        assert replay(read) == (decision, state)


measurements = st.one_of(
    st.floats(0, 1e9).map(Fresh), st.floats(0, 1e9).map(lambda a: Stale(age_ms=a)), st.just(Missing()), st.just(NotANumber())
)


@st.composite
def any_inputs(draw: st.DrawFn) -> DecisionInputs:
    granule = draw(st.sampled_from([1 << 20, GRANULE, 256 << 20, 100_000_007]))
    usable = draw(st.integers(2 * granule, 200 * granule))
    emb = draw(st.integers(0, usable))
    kv = draw(st.integers(0, usable - emb))
    low = draw(st.floats(0, 100))
    high = draw(st.floats(low, 100))
    quantities = {
        name: draw(st.one_of(st.floats(0, 1e9).map(Fresh), measurements))
        for name in ("requests", "kv_tokens_asked", "kv_tokens_hit", "emb_rows_asked", "emb_rows_hit")
    }
    return inputs(
        **quantities,
        usable_bytes=usable,
        granule_bytes=granule,
        split=split(emb, kv, refill_backlog_bytes=draw(st.sampled_from([0, 0, 0, 5]))),
        bounds=Bounds(min_emb_percent=low, max_emb_percent=high, fallback_emb_percent=draw(st.floats(low, high))),
        step=Step(max_percent_per_second=draw(st.floats(0, 50)), deadband_percent=draw(st.floats(0, 5))),
        strategy=draw(st.sampled_from(Strategy)),
        target_emb_bytes=draw(st.none() | st.integers(0, usable)),
        goal_emb_bytes=draw(st.none() | st.floats(0, usable)),
        slew_credit_bytes=draw(st.floats(0, 2.0 * granule)),
        moving=draw(st.booleans()),
    )


@settings(max_examples=300, deadline=None)
@given(any_inputs())
def test_whatever_comes_in_the_target_is_legal_slow_enough_and_replayable(i: DecisionInputs) -> None:
    decision, state = run(i)
    assert i.intent is not None
    assert isinstance(i.observation.split, SplitInForce)
    usable, granule, emb = i.observation.usable_bytes, i.observation.granule_bytes, i.observation.split.emb_bytes
    high = max(emb, min(usable - i.observation.split.kv_bytes, usable))
    target = decision.target_emb_bytes
    assert target is not None
    assert 0 <= target <= usable
    # Beyond a move already under way, a decision goes no faster than the slew limit has allowed so far.
    rate = i.intent.step.max_percent_per_second * usable / 100.0
    reach = min(i.state.slew_credit_bytes + rate * 0.1, max(granule, rate)) + 1e-9 * granule + 1e-3
    # Making room for the last granule of the other side comes on top.
    assert emb - (reach + 2 * granule * (emb > usable - granule)) <= target <= high + reach
    if decision.layer is Layer.HOLD:
        assert min(emb, (usable // granule - 1) * granule) <= target <= high
    elif target != emb:
        assert target % granule == 0 or emb <= target <= high
    if decision.goal_emb_bytes is not None:
        assert granule <= decision.goal_emb_bytes <= usable - granule
    assert replay(decode_decision(encode_decision(decision))) == (decision, state)


def test_the_closed_loop_reaches_the_goal_and_then_rests() -> None:
    i = inputs(goal_emb_bytes=None, target_emb_bytes=None, slew_credit_bytes=0.0)
    emb, state, seen = 8 * GIB, i.state, []
    for tick in range(1, 400):
        observation = msgspec.structs.replace(i.observation, split=split(emb, USABLE - emb))
        decision, state = decide(observation, i.view, AllocationIntent(), state, 60_000.0 + 100.0 * tick)
        assert decision.target_emb_bytes is not None
        emb = decision.target_emb_bytes
        seen.append(emb)
    assert decision.goal_emb_bytes is not None
    assert abs(emb - decision.goal_emb_bytes) <= 2.5 * POINT
    assert len(set(seen[-100:])) == 1
