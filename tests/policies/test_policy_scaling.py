"""Scaling has the meaning that HorizontalPodAutoscaler documents, and doubt never shrinks a pool."""

from __future__ import annotations

import math

import pytest
from scaling_cases import EMPTYING, FREE, HPA, IN_DOUBT, decide, fleet, want, wish

from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale
from policies.scaling.decide import ScalingDecision, combine
from policies.scaling.proposals import Proposal, per_instance, plain, total
from policies.scaling.ratio import Reading
from policies.scaling.types import (
    SCALE_UP,
    AbleToScale,
    Behavior,
    Change,
    Doubt,
    History,
    PolicyType,
    RatePolicy,
    Rules,
    ScalingActive,
    ScalingLimited,
    SelectPolicy,
)

# The documented formula: desired = ceil(current * measured / target)


@pytest.mark.parametrize(
    ("usages", "target", "expected"),
    [
        ([200.0], 100.0, 2),  # the documentation's first example: 200m against 100m doubles
        ([50.0, 50.0], 100.0, 1),  # and 50m against 100m halves
        ([100.0, 100.0, 100.0], 100.0, 3),
        ([109.0] * 10, 100.0, 10),  # inside the tolerance of 0.1
        ([110.0] * 10, 100.0, 10),  # on its edge
        ([111.0] * 10, 100.0, 12),
        ([91.0] * 10, 100.0, 10),
        ([90.0] * 10, 100.0, 10),
        ([89.0] * 10, 100.0, 9),
        ([0.0] * 4, 100.0, 0),
        ([120.0] * 10, 100.0, 12),
        ([150.0, 50.0], 100.0, 2),  # it is the mean that counts
    ],
)
def test_a_metric_measured_on_every_instance_asks_for_the_documented_count(
    usages: list[float], target: float, expected: int
) -> None:
    assert wish(fleet(*usages), target=target, current=len(usages)).count == expected


@pytest.mark.parametrize(
    ("readings", "current", "expected", "why"),
    [
        (fleet(200.0, 200.0, Missing()), 3, 4, "up: the missing one counts as idle, 400 of 3"),
        (fleet(120.0, 120.0, Missing()), 3, 3, "up: the correction would turn round"),
        (fleet(130.0, 130.0, 130.0, Missing()), 4, 4, "up: corrected into the tolerance"),
        (fleet(50.0, 50.0, Missing(), Missing()), 4, 3, "down: the missing ones count as at their target"),
        (fleet(80.0, Missing()), 2, 2, "down: corrected into the tolerance"),
        (fleet(200.0, 200.0, unready=1), 3, 4, "up: one that is not ready counts as idle"),
        (fleet(120.0, 120.0, unready=2), 4, 4, "up: the correction would turn round"),
        (fleet(200.0, 200.0), 4, 4, "up: two that do not exist yet are on their way"),
        (fleet(300.0, 300.0), 4, 6, "up: the load needs even more than those on their way"),
        (fleet(50.0, 50.0, unready=2), 4, 3, "down: stricter than HPA, one that is not ready may be needed"),
        (fleet(50.0, 50.0), 4, 3, "down: stricter than HPA, so may one that does not exist yet"),
    ],
)
def test_instances_without_a_measurement_count_in_the_safe_direction(
    readings: list[Reading], current: int, expected: int, why: str
) -> None:
    assert wish(readings, target=100.0, current=current).count == expected, why


@pytest.mark.parametrize("doubtful", IN_DOUBT)
def test_by_default_one_doubtful_instance_is_enough_to_refuse_to_shrink_but_not_to_grow(doubtful: Measurement) -> None:
    down = wish(fleet(10.0, 10.0, 10.0, doubtful), target=100.0, current=4, as_hpa=False)
    up = wish(fleet(300.0, 300.0, 300.0, doubtful), target=100.0, current=4, as_hpa=False)
    assert down.count is None
    assert down.doubt is not None
    assert up.count == 9


def test_a_metric_that_nobody_reports_proposes_nothing_and_says_why() -> None:
    assert wish(fleet(Missing(), Missing()), target=1.0, current=2) == want(None, Doubt.MISSING)
    assert wish(fleet(Stale(age_ms=1.0), Stale(age_ms=1.0)), target=1.0, current=2) == want(None, Doubt.STALE)
    assert wish(fleet(NotANumber(), Stale(age_ms=1.0)), target=1.0, current=2) == want(None, Doubt.NOT_A_NUMBER)
    assert wish([], target=1.0, current=2) == want(None, Doubt.MISSING)
    assert wish(fleet(-5.0), target=1.0, current=1) == want(None, Doubt.NOT_A_NUMBER)


def test_a_total_is_shared_and_a_plain_value_is_not() -> None:
    assert total("q", Fresh(value=30.0), target_per_instance=10.0, current=2, behavior=HPA).count == 3
    assert total("q", Fresh(value=30.0), target_per_instance=10.0, current=0, behavior=HPA).count == 3
    assert total("q", Fresh(value=21.0), target_per_instance=10.0, current=2, behavior=HPA).count == 2
    assert plain("wait", Fresh(value=30.0), target=10.0, current=2, behavior=HPA).count == 6
    assert plain("wait", NotANumber(), target=10.0, current=2, behavior=HPA) == want(None, Doubt.NOT_A_NUMBER, "wait")


def test_each_direction_has_its_own_tolerance() -> None:
    behavior = Behavior(
        up=Rules(stabilization_s=0.0, policies=FREE, tolerance=0.0),
        down=Rules(stabilization_s=0.0, policies=EMPTYING, tolerance=0.5),
    )
    assert per_instance("m", fleet(*[101.0] * 10), target=100.0, current=10, behavior=behavior).count == 11
    assert per_instance("m", fleet(*[60.0] * 10), target=100.0, current=10, behavior=behavior).count == 10


def test_a_target_that_is_no_positive_number_is_refused() -> None:
    for target in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="target"):
            wish(fleet(1.0), target=target, current=1)


# Several metrics


def test_the_largest_wish_wins() -> None:
    chosen = combine([want(3, metric="a"), want(5, metric="b"), want(4, metric="c")], current=4)
    assert (chosen.count, chosen.metric, chosen.held) == (5, "b", False)


def test_a_metric_in_doubt_blocks_shrinking_only() -> None:
    doubtful = want(None, Doubt.STALE)
    assert decide(want(2), doubtful, current=5).count == 5
    assert decide(want(2), doubtful, current=5).active is ScalingActive.METRIC_STALE
    assert decide(want(7), doubtful, current=5).count == 7


def test_a_metric_that_abstains_blocks_nothing() -> None:
    assert decide(want(2), want(None), current=5).count == 2


@pytest.mark.parametrize("proposals", [(), (want(None, Doubt.MISSING),), (want(None),)])
def test_without_any_wish_the_count_is_held(proposals: tuple[Proposal, ...]) -> None:
    decision = decide(*proposals, current=5)
    assert (decision.count, decision.active) == (5, ScalingActive.METRIC_MISSING)


# Bounds


@pytest.mark.parametrize(
    ("wanted", "current", "count", "reason"),
    [
        (9, 5, 8, ScalingLimited.TOO_MANY_REPLICAS),
        (1, 5, 2, ScalingLimited.TOO_FEW_REPLICAS),
        (6, 5, 6, ScalingLimited.DESIRED_WITHIN_RANGE),
        (5, 12, 8, ScalingLimited.TOO_MANY_REPLICAS),
        (5, 1, 2, ScalingLimited.TOO_FEW_REPLICAS),
    ],
)
def test_the_bounds_hold_with_the_reasons_that_people_know(wanted: int, current: int, count: int, reason: ScalingLimited) -> None:
    decision = decide(want(wanted), current=current, bounds=(2, 8))
    assert (decision.count, decision.limited) == (count, reason)


def test_zero_under_a_higher_minimum_means_switched_off_and_stays() -> None:
    decision = decide(want(9), current=0, bounds=(1, 8))
    assert (decision.count, decision.active) == (0, ScalingActive.SCALING_DISABLED)


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="bounds"):
        decide(want(1), current=1, bounds=(3, 2))


# Rates: the documented default is the larger of 4 instances and 100 percent in 15 s


@pytest.mark.parametrize(("current", "reached"), [(1, 5), (3, 7), (4, 8), (5, 10), (10, 20)])
def test_growth_is_limited_to_the_larger_of_four_instances_and_a_doubling(current: int, reached: int) -> None:
    decision = decide(want(90), current=current)
    assert (decision.count, decision.limited) == (reached, ScalingLimited.SCALE_UP_LIMIT)


@pytest.mark.parametrize(
    ("select", "reached"),
    [(SelectPolicy.MAX, 72), (SelectPolicy.MIN, 76), (SelectPolicy.DISABLED, 80)],
)
def test_the_documented_pair_of_policies_for_shrinking(select: SelectPolicy, reached: int) -> None:
    # 4 instances or 10 percent a minute: from 80 the percent allows 8
    policies = (
        RatePolicy(type=PolicyType.PODS, value=4, period_s=60.0),
        RatePolicy(type=PolicyType.PERCENT, value=10, period_s=60.0),
    )
    behavior = Behavior(down=Rules(stabilization_s=0.0, policies=policies, select=select))
    decision = decide(want(10), current=80, behavior=behavior)
    assert decision.count == reached
    assert decision.limited is ScalingLimited.SCALE_DOWN_LIMIT


def test_what_was_changed_inside_the_period_counts_against_the_rate() -> None:
    history = History(changes=(Change(at_s=990.0, delta=3), Change(at_s=980.0, delta=50)))
    up = Behavior(up=Rules(stabilization_s=0.0, policies=(RatePolicy(type=PolicyType.PODS, value=4, period_s=15.0),)))
    assert decide(want(20), current=8, behavior=up, history=history).count == 9  # 5 at the start, plus 4
    spent = History(changes=(Change(at_s=990.0, delta=4),))
    assert decide(want(20), current=9, behavior=up, history=spent).count == 9
    assert decide(want(20), current=9, behavior=up, history=spent, now_s=1005.0).count == 13


def test_a_shrink_inside_the_period_gives_growth_back() -> None:
    history = History(changes=(Change(at_s=990.0, delta=-2),))
    up = Behavior(up=Rules(stabilization_s=0.0, policies=(RatePolicy(type=PolicyType.PODS, value=1, period_s=15.0),)))
    assert decide(want(20), current=8, behavior=up, history=history).count == 11


def test_a_disabled_direction_does_not_move() -> None:
    off = Rules(stabilization_s=0.0, policies=SCALE_UP.policies, select=SelectPolicy.DISABLED)
    assert decide(want(20), current=8, behavior=Behavior(up=off)).count == 8
    assert decide(want(2), current=8, behavior=Behavior(down=off)).count == 8


# Windows


def run(wishes: list[tuple[float, int]], *, current: int, behavior: Behavior) -> list[ScalingDecision]:
    """Decide at each (time, wish) and carry every decision out."""
    history, out = History(), []
    for now_s, count in wishes:
        decision = decide(want(count), current=current, behavior=behavior, history=history, now_s=now_s)
        history = decision.history.changed(before=current, after=decision.count, now_s=now_s, behavior=behavior)
        current = decision.count
        out.append(decision)
    return out


def test_shrinking_waits_until_five_minutes_have_wanted_it() -> None:
    wishes = [(0.0, 10)] + [(15.0 * k, 4) for k in range(1, 22)]
    decisions = run(wishes, current=10, behavior=HPA)
    assert {d.count for d in decisions[:20]} == {10}
    assert decisions[1].able is AbleToScale.SCALE_DOWN_STABILIZED
    assert decisions[20].count == 4  # 300 s after the last wish for 10


def test_growing_waits_for_its_own_window() -> None:
    behavior = Behavior(up=Rules(stabilization_s=60.0, policies=FREE))
    decisions = run([(0.0, 4), (15.0, 9), (30.0, 8), (59.0, 9), (60.0, 9)], current=4, behavior=behavior)
    assert [d.count for d in decisions] == [4, 4, 4, 4, 8]
    assert decisions[1].able is AbleToScale.SCALE_UP_STABILIZED


def test_a_scaler_that_has_just_started_does_not_shrink_at_once() -> None:
    history = History.starting_at(10, now_s=1000.0)
    assert decide(want(2), current=10, behavior=HPA, history=history, now_s=1015.0).count == 10
    assert decide(want(2), current=10, behavior=HPA, history=history, now_s=1300.0).count == 2


def test_after_an_outage_a_full_window_of_evidence_is_needed_to_shrink() -> None:
    """The original forgets during an outage and may shrink on the first reading after it."""
    history, current = History(), 10
    for tick in range(40):  # ten minutes of silence
        held = decide(want(None, Doubt.MISSING), current=current, behavior=HPA, history=history, now_s=15.0 * tick)
        assert held.count == current
        history = held.history
    first = decide(want(2), current=current, behavior=HPA, history=history, now_s=600.0)
    assert (first.count, first.able) == (10, AbleToScale.SCALE_DOWN_STABILIZED)
    assert decide(want(2), current=current, behavior=HPA, history=first.history, now_s=886.0).count == 2


def test_an_outage_does_not_delay_growth() -> None:
    behavior = Behavior(up=Rules(stabilization_s=60.0, policies=FREE))
    held = decide(want(None, Doubt.STALE), current=4, behavior=behavior, now_s=0.0)
    assert decide(want(9), current=4, behavior=behavior, history=held.history, now_s=15.0).count == 9


def test_history_does_not_grow_without_bound() -> None:
    decisions = run([(float(t), 5 + t % 3) for t in range(3000)], current=5, behavior=HPA)
    assert len(decisions[-1].history.recommendations) <= 301
    assert len(decisions[-1].history.changes) <= 16
