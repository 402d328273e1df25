"""Moves of the churn window as they stand in a table: what is read back spends the budget as what was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import NOW

from contract.keys import SLOTS
from controllers.routing.wire import MAX_MOVES, milliseconds, move_fields, moves_of
from crds import GRRoutingTableStatus
from policies.routing.table import Move

FEW = SLOTS // (2 * MAX_MOVES)


def history(slots: list[int], *, step_s: int = 10) -> list[Move]:
    """Moves of so many slots each, the oldest first, some seconds apart."""
    return [Move(at_ms=milliseconds(NOW) + 1000.0 * step_s * at, slots=each) for at, each in enumerate(slots)]


def read(fields: list[dict[str, Any]]) -> GRRoutingTableStatus:
    return GRRoutingTableStatus.model_validate({"recentMoves": fields})


@given(st.lists(st.integers(1, FEW), max_size=2 * MAX_MOVES))
def test_however_many_moves_there_were_none_is_forgotten_and_none_leaves_the_window_before_its_time(slots: list[int]) -> None:
    moves = history(slots)
    fields = move_fields(moves, (), 7)
    back = moves_of(read(fields))
    assert len(fields) == min(len(moves), MAX_MOVES)
    for moment in (move.at_ms for move in moves):
        spent = sum(move.slots for move in moves if move.at_ms >= moment)
        kept = sum(move.slots for move in back if move.at_ms >= moment)
        assert kept >= spent, "the budget would be spent twice"
    assert sum(move.slots for move in back) == sum(slots)


def test_a_move_that_stood_in_the_table_keeps_the_generation_that_made_it() -> None:
    moves = history([10, 20, 30])
    first = read(move_fields(moves[:1], (), 3))
    second = read(move_fields(moves[:2], first.recent_moves, 4))
    third = move_fields(moves, second.recent_moves, 9)
    assert [each["generation"] for each in third] == [3, 4, 9]
    assert [float(each["movedPercent"]) for each in third] == pytest.approx([100.0 * n / SLOTS for n in (10, 20, 30)], abs=1e-3)
