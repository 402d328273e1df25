"""What docs/client.md says that the client does when nobody says otherwise, in numbers of the test's own."""

from __future__ import annotations

import pytest
from client_tables import HandClock

from grfleet.client import HedgePolicy
from grfleet.client.exclusion import ExclusionLimits, Exclusions
from grfleet.client.hedge import HedgeBudget


def test_an_instance_that_fails_is_passed_over_for_half_a_second_and_twice_as_long_each_time_up_to_half_a_minute() -> None:
    clock = HandClock()
    exclusions = Exclusions(ExclusionLimits(), clock=clock)
    for lasts_ms in (500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000):
        assert exclusions.failed("u", instances=4)
        illness = exclusions.active["u"]
        assert illness.until_ms - clock.now_ms == lasts_ms
        clock.now_ms += lasts_ms - 1
        assert illness.holds(0, clock.now_ms)
        assert not exclusions.failed("u", instances=4), "one that was under way is no further strike"
        clock.now_ms += 1
        assert not illness.holds(0, clock.now_ms)
        assert illness.holds(4095, clock.now_ms + 1_999)
        assert illness.over(clock.now_ms + 2_000)


@pytest.mark.parametrize(("later_ms", "lasts_ms"), [(60_000, 1_000), (60_001, 500)])
def test_a_failure_after_a_minute_without_one_is_a_first_one(later_ms: float, lasts_ms: float) -> None:
    clock = HandClock()
    exclusions = Exclusions(ExclusionLimits(), clock=clock)
    exclusions.failed("u", instances=4)
    clock.now_ms += later_ms
    exclusions.failed("u", instances=4)
    assert exclusions.active["u"].until_ms - clock.now_ms == lasts_ms


@pytest.mark.parametrize("instances", range(1, 12))
def test_no_more_than_half_of_the_instances_are_excluded(instances: int) -> None:
    exclusions = Exclusions(ExclusionLimits(), clock=HandClock())
    excluded = [exclusions.failed(f"u{n}", instances=instances) for n in range(instances)]
    assert sum(excluded) == len(exclusions.active) == instances // 2


def test_hedges_are_five_in_a_hundred_requests_ten_may_be_saved_up_and_there_is_none_before_a_hundred_answers() -> None:
    usual = HedgePolicy()
    assert (usual.budget_percent, usual.hoard, usual.samples, usual.delay_percent) == (5.0, 10.0, 100, 100.0)
    budget = HedgeBudget(percent=usual.budget_percent, hoard=usual.hoard)
    for _ in range(19):
        budget.request()
    assert not budget.take()
    budget.request()
    assert budget.take()
    assert not budget.take()
    for _ in range(1_000):
        budget.request()
    assert [budget.take() for _ in range(11)] == [True] * 10 + [False]
