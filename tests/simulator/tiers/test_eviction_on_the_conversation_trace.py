"""Hit ratios among returning visits of the conversation trace: the known table, the order of the policies, and the bound."""

from functools import cache

import pytest
from tier_traces import conversation

from bench.tiers_known import EVICTION
from simulator.tiers.bounds import bounds
from simulator.tiers.replaying import Replayed, replay

SHARES = tuple(EVICTION)


@cache
def replayed(share: float, policy: str, window: int | None) -> Replayed:
    visits = conversation()
    return replay(visits, policy, limit_bytes=round(share * visits.final_bytes), window=window)


def hit_ratio(share: float, policy: str | int | None) -> float:
    return replayed(share, *((policy, 0) if isinstance(policy, str) else ("look-ahead", policy))).hit_ratio


@pytest.mark.parametrize("share", SHARES)
def test_every_figure_of_the_known_table_comes_out_again(share: float) -> None:
    for policy, known in EVICTION[share].items():
        assert hit_ratio(share, policy) == pytest.approx(known, abs=0.01), policy


@pytest.mark.parametrize("share", SHARES)
def test_policies_order_by_what_they_know_and_none_beats_the_bound(share: float) -> None:
    visits = conversation()
    bound = bounds(visits, limit_bytes=round(share * visits.final_bytes), steps=300)
    ratios = [hit_ratio(share, policy) for policy in ("fifo", "lru", 10, 50, 100, 200, 1000, None)]
    assert ratios == sorted(ratios)
    own = [replayed(share, "size-aware", window).hit_ratio for window in (0, 200, 1000, None)]
    assert own == sorted(own)
    assert max(*ratios, *own, bound.feasible) <= bound.relaxed <= bound.fractional


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("part", [(0.0, 0.6), (0.6, 1.0)], ids=["seen", "held out"])
def test_knowing_sizes_beats_not_knowing_them_with_the_same_queue(share: float, part: tuple[float, float]) -> None:
    for window in (0, 200, 1000):
        blind = replayed(share, "look-ahead", window)
        for policy in ("size-aware", "size-aware-balanced"):
            assert replayed(share, policy, window).part(*part) >= blind.part(*part), (policy, window)
    # With the whole future announced there is little left to gain at 5 % and above: one hit either way.
    own, blind = replayed(share, "size-aware", None), replayed(share, "look-ahead", None)
    assert own.part(*part) >= blind.part(*part) - 0.0005
    assert own.hit_ratio >= blind.hit_ratio


def test_a_queue_of_a_thousand_lifts_what_lru_hits_at_sixty_percent_to_the_goal() -> None:
    assert hit_ratio(0.068, "lru") == pytest.approx(0.60, abs=0.005)
    assert hit_ratio(0.068, 1000) >= 0.87


def test_hits_that_are_all_worth_the_same_are_paid_for_in_bytes_and_balanced_ones_are_not() -> None:
    blind, balanced, own = (replayed(0.068, policy, 1000) for policy in ("look-ahead", "size-aware-balanced", "size-aware"))
    assert blind.hit_ratio < balanced.hit_ratio < own.hit_ratio
    assert own.byte_hit_ratio < blind.byte_hit_ratio
    assert balanced.byte_hit_ratio == pytest.approx(blind.byte_hit_ratio, abs=0.002)
