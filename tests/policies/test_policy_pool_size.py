"""A pool that becomes smaller or larger keeps the share of its goal: bytes of another pool pull no smoothed anchor."""

import msgspec
import pytest

from policies.allocation.examples import GIB, example_inputs
from policies.allocation.strategy import decide
from policies.allocation.types import AllocationState


def _decided(usable_bytes: int, state: AllocationState, *, now_ms: float) -> AllocationState:
    i = example_inputs()
    half = usable_bytes // 2
    split = msgspec.structs.replace(i.observation.split, emb_bytes=half, kv_bytes=half, emb_used_bytes=half, kv_used_bytes=half)
    observation = msgspec.structs.replace(i.observation, usable_bytes=usable_bytes, split=split)
    return decide(observation, i.view, i.intent, state, now_ms)[1]


@pytest.mark.parametrize("usable_bytes", [8 * GIB, 12 * GIB, 24 * GIB])
def test_the_goal_keeps_its_share_when_the_pool_changes(usable_bytes: int) -> None:
    before = _decided(16 * GIB, AllocationState(), now_ms=60_000.0)
    share = before.goal_emb_bytes / (16 * GIB)
    after = _decided(usable_bytes, before, now_ms=60_000.0)  # no time passes, so nothing is smoothed
    assert after.goal_emb_bytes / usable_bytes == pytest.approx(share)
    assert after.usable_bytes == usable_bytes


def test_a_round_that_sees_no_pool_forgets_none() -> None:
    before = _decided(16 * GIB, AllocationState(), now_ms=60_000.0)
    i = example_inputs()
    blind = msgspec.structs.replace(i.observation, usable_bytes=0)
    _, after = decide(blind, i.view, i.intent, before, 61_000.0)
    assert (after.usable_bytes, after.goal_emb_bytes) == (before.usable_bytes, before.goal_emb_bytes)


def test_a_goal_adopted_before_the_first_decision_stays_as_it_is() -> None:
    """As an agent has it that starts beside an engine whose split was moved before."""
    adopted = AllocationState(start_id="example", goal_emb_bytes=3.0 * GIB, decided_at_ms=60_000.0)
    assert _decided(16 * GIB, adopted, now_ms=60_000.0).goal_emb_bytes == pytest.approx(3.0 * GIB)
