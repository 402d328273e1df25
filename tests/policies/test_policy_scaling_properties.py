"""Whatever is measured and whatever the rules: scaling keeps its bounds, its direction and its doubt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scaling_cases import IN_DOUBT, decide, want, wish

from policies.measurement import Fresh
from policies.scaling.behavior import limit, stabilize
from policies.scaling.decide import decide_count
from policies.scaling.proposals import Proposal
from policies.scaling.ratio import Reading, usage_ratio
from policies.scaling.types import (
    Behavior,
    Bounds,
    Change,
    Direction,
    Doubt,
    History,
    PolicyType,
    RatePolicy,
    Recommendation,
    Rules,
    ScalingActive,
    ScalingLimited,
    SelectPolicy,
)

usage = st.floats(min_value=0.0, max_value=1e6)
measurement = st.one_of(st.builds(lambda v: Fresh(value=v), usage), st.sampled_from(IN_DOUBT))
readings_of = st.lists(st.builds(lambda m, ready: Reading(usage=m, ready=ready), measurement, st.booleans()), max_size=12)
rules = st.builds(
    lambda s, select, policies, tolerance: Rules(stabilization_s=s, select=select, policies=tuple(policies), tolerance=tolerance),
    st.floats(min_value=0.0, max_value=3600.0),
    st.sampled_from(SelectPolicy),
    st.lists(
        st.builds(
            lambda kind, value, period: RatePolicy(type=kind, value=value, period_s=period),
            st.sampled_from(PolicyType),
            st.integers(1, 200),
            st.floats(min_value=1.0, max_value=1800.0),
        ),
        min_size=1,
        max_size=3,
    ),
    st.floats(min_value=0.0, max_value=0.9),
)
behaviors = st.builds(lambda up, down: Behavior(up=up, down=down), rules, rules)
histories = st.builds(
    lambda recommendations, changes: History(recommendations=tuple(recommendations), changes=tuple(changes)),
    st.lists(
        st.builds(
            lambda t, c, held: Recommendation(at_s=t, count=c, held=held),
            st.floats(0.0, 1000.0),
            st.integers(0, 60),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.lists(st.builds(lambda t, d: Change(at_s=t, delta=d), st.floats(0.0, 1000.0), st.integers(-20, 20)), max_size=6),
)
proposals_of = st.lists(
    st.one_of(st.builds(want, st.integers(0, 200)), st.builds(want, st.none(), st.sampled_from(Doubt)), st.just(want(None))),
    max_size=4,
)


@given(readings_of, st.floats(0.01, 1e5), st.floats(0.0, 0.9), st.floats(0.0, 0.9), st.integers(0, 5))
def test_a_correction_never_turns_the_direction_round(
    readings: list[Reading], target: float, up: float, down: float, absent: int
) -> None:
    ratio = usage_ratio(readings, target=target, up_tolerance=up, down_tolerance=down, absent=absent, max_doubtful_percent=100.0)
    if ratio.direction is Direction.UP:
        assert ratio.measured is not None
        assert ratio.measured >= ratio.value > 1.0
    if ratio.direction is Direction.DOWN:
        assert ratio.measured is not None
        assert ratio.measured <= ratio.value < 1.0


@given(readings_of, st.integers(1, 12), st.floats(0.01, 1e5))
def test_a_doubtful_instance_never_makes_a_pool_smaller_than_one_at_its_target_would(
    readings: list[Reading], current: int, target: float
) -> None:
    certain = [r if isinstance(r.usage, Fresh) and r.ready else Reading(usage=Fresh(value=target)) for r in readings]
    corrected = wish(readings, target=target, current=current).count
    known = wish(certain, target=target, current=current).count
    assert corrected is None or corrected >= min(current, known if known is not None else current)


@given(readings_of, st.integers(0, 11), usage, st.integers(1, 14), st.booleans())
def test_more_usage_never_wants_fewer_instances(
    readings: list[Reading], index: int, more: float, current: int, as_hpa: bool
) -> None:
    if index >= len(readings) or not isinstance(before := readings[index].usage, Fresh):
        return
    risen = list(readings)
    risen[index] = Reading(usage=Fresh(value=before.value + more), ready=readings[index].ready)
    low = wish(readings, target=50.0, current=current, as_hpa=as_hpa).count
    high = wish(risen, target=50.0, current=current, as_hpa=as_hpa).count
    assert (current if high is None else high) >= (current if low is None else low)


@given(proposals_of, st.integers(0, 120), st.integers(0, 50), st.integers(0, 50), behaviors, histories)
def test_a_decision_keeps_the_bounds_and_moves_towards_the_wish_only(
    proposals: list[Proposal], current: int, low: int, span: int, behavior: Behavior, history: History
) -> None:
    bounds = Bounds(minimum=low, maximum=low + span)
    decision = decide_count(proposals, current=current, bounds=bounds, behavior=behavior, history=history, now_s=1000.0)
    if decision.active is not ScalingActive.SCALING_DISABLED:
        assert bounds.minimum <= decision.count <= bounds.maximum
    if bounds.minimum <= current <= bounds.maximum:
        assert min(current, decision.wish.count) <= decision.count <= max(current, decision.wish.count)


@given(proposals_of, st.sampled_from(Doubt), st.integers(0, 120), behaviors, histories)
def test_doubt_never_shrinks(proposals: list[Proposal], doubt: Doubt, current: int, behavior: Behavior, history: History) -> None:
    decision = decide(*proposals, want(None, doubt), current=current, bounds=(0, 500), behavior=behavior, history=history)
    assert decision.count >= current


@given(st.integers(0, 80), st.integers(0, 80), behaviors, histories)
def test_windows_hold_the_lowest_and_the_highest_of_what_was_recommended(
    wanted: int, current: int, behavior: Behavior, history: History
) -> None:
    count, _ = stabilize(wanted, current=current, history=history, behavior=behavior, now_s=1000.0)
    for past in history.recommendations:
        if 1000.0 - past.at_s < behavior.down.stabilization_s:
            assert count >= min(past.count, current)
        if not past.held and 1000.0 - past.at_s < behavior.up.stabilization_s:
            assert count <= max(past.count, current)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 80), behaviors, histories)
def test_a_larger_wish_never_ends_in_a_smaller_count(
    wanted: int, more: int, current: int, behavior: Behavior, history: History
) -> None:
    low = decide(want(wanted), current=current, bounds=(0, 200), behavior=behavior, history=history)
    high = decide(want(wanted + more), current=current, bounds=(0, 200), behavior=behavior, history=history)
    assert high.count >= low.count


@given(st.integers(0, 80), st.integers(0, 80), behaviors, histories)
def test_what_the_rates_allow_is_between_now_and_the_wish(
    wanted: int, current: int, behavior: Behavior, history: History
) -> None:
    bounds = Bounds(minimum=0, maximum=1000)
    count, reason = limit(wanted, current=current, history=history, behavior=behavior, bounds=bounds, now_s=1000.0)
    assert min(current, wanted) <= count <= max(current, wanted)
    assert (count == wanted) == (reason is ScalingLimited.DESIRED_WITHIN_RANGE)
