"""How long a withdrawal waits, stands and is listened for, in numbers of the tests' own, and beside those of the gateways."""

import pytest
from dataplane_fakes import FakeClock
from residents_of_engine import UP, Engine

from dataplane.agent.residency import ResidencyShelf
from dataplane.agent.withdraw import HOLD_MS, LISTENS_MS, Withdrawal
from dataplane.hot_users import agents
from policies.allocation.types import AllocationIntent, Learned, Strategy

LATEST = 1.1
"""Of a gateway's period: its pauses are spread."""


class Shelf:
    """What a withdrawal tells."""

    def __init__(self) -> None:
        self.bounds: list[object] = []

    def bound_to(self, bound: object) -> None:
        self.bounds.append(bound)


def test_a_gateway_that_asks_at_its_usual_pace_hears_of_a_withdrawal_in_time_and_counts_as_listening() -> None:
    usual_ms = 1000.0 * (agents.PERIOD_S * LATEST + agents._LOOK_S)
    assert usual_ms <= HOLD_MS == 2_500.0
    assert 2.0 * usual_ms <= LISTENS_MS == 5_000.0


@pytest.mark.parametrize(("later_s", "listens"), [(5.0, True), (5.1, False)])
async def test_a_gateway_that_has_not_asked_for_five_seconds_is_waited_for_no_more(later_s: float, *, listens: bool) -> None:
    clock, source = FakeClock(), Engine()
    shelf = ResidencyShelf(source, monotonic_s=clock)
    assert not shelf.heard_within(LISTENS_MS / 1000.0)
    source.rank(1)
    await shelf.report(0, uid="", load=UP)
    clock.advance(later_s)
    assert shelf.heard_within(LISTENS_MS / 1000.0) is listens


def test_what_was_told_stands_for_half_a_minute_where_nothing_moves() -> None:
    shelf = Shelf()
    withdrawal = Withdrawal(shelf)  # type: ignore[arg-type]  # what of a shelf is needed
    withdrawal._tell(1000, goal=1000, base=0, now_ms=10_000.0)
    withdrawal.lapse(now_ms=39_999.0)
    assert shelf.bounds == []
    withdrawal.lapse(now_ms=40_000.0)
    assert shelf.bounds == [None]
    withdrawal.lapse(now_ms=80_000.0)
    assert shelf.bounds == [None], "there is nothing left to take back"


def test_what_was_told_is_open_after_two_and_a_half_seconds_and_the_next_is_told_then() -> None:
    withdrawal = Withdrawal(Shelf())  # type: ignore[arg-type]  # what of a shelf is needed
    open_by: list[int] = []
    for now_ms, wanted in ((10_000.0, 100), (12_499.0, 120), (12_500.0, 140), (14_999.0, 160), (15_000.0, 160)):
        withdrawal._tell(wanted, goal=1000, base=0, now_ms=now_ms)
        open_by.append(withdrawal._open_emb_bytes)
    assert open_by == [0, 0, 100, 100, 140]
    assert withdrawal._told_emb_bytes == 160


def test_after_another_strategy_or_model_was_ordered_nothing_waits_for_a_minute() -> None:
    withdrawal = Withdrawal(Shelf())  # type: ignore[arg-type]  # what of a shelf is needed
    one = AllocationIntent(strategy=Strategy.LEARNED)
    other = AllocationIntent(strategy=Strategy.LEARNED, learned=Learned(model_sha256="ab"))
    assert not withdrawal._newly_ordered(one, 0.0), "the first is no other"
    assert not withdrawal._newly_ordered(one, 1.0)
    assert withdrawal._newly_ordered(other, 1_000.0)
    assert withdrawal._newly_ordered(other, 60_999.0)
    assert not withdrawal._newly_ordered(other, 61_000.0)
