"""The clocks of an agent jump by a day: its intent holds, no move gets faster, and new intents pass once the clock is right."""

from __future__ import annotations

import pytest
from dataplane_fakes import FakeClock
from dataplane_world import World

from contract.agent import Intent, IntentStatus
from dataplane.agent.intent import IntentBook
from dataplane.agent.loop import Agent

DAY_S = 86_400.0


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S, 1e9, -1e6])
async def test_a_jump_of_the_clock_that_measures_time_makes_no_move_faster(world: World, jump_s: float) -> None:
    slow = {"maxPercentPerSecond": 2, "deadbandPercent": 0}
    await world.rounds(3)
    world.static(20, step=slow)
    await world.rounds(5)
    before = world.emb_percent
    world.clock.advance(jump_s)
    await world.rounds(1)
    assert 0 <= before - world.emb_percent <= 2.5, "a second's worth of the pace, whatever time has passed"
    await world.rounds(30)
    assert world.emb_percent == pytest.approx(20, abs=1)
    assert (world.reason, world.frozen, world.engine.violations) == ("StaticTarget", False, [])


@pytest.mark.parametrize(("jump_s", "verdict"), [(DAY_S, IntentStatus.EXPIRED), (-DAY_S, IntentStatus.INVALID)])
async def test_a_wall_clock_that_is_a_day_off_refuses_new_intents_with_a_word_and_keeps_the_one_it_has(
    jump_s: float, verdict: IntentStatus
) -> None:
    world, wall = World(), FakeClock()
    book = IntentBook(public_key=None)
    world.agent = Agent(engine=world.engine, intents=book, start_id="agent", wall_s=wall, monotonic_s=world.clock)
    world.static(30)
    await world.rounds(10)
    wall.advance(jump_s)
    now = int(world.clock.now_s)
    newer = Intent(uid="uid-a", generation=9, issued=now, expires=now + 600, spec={"strategy": "Static"})
    refused = world.agent.offer_intent(newer)
    assert (refused.status, refused.generation) == (verdict, 1)
    assert refused.reason
    await world.rounds(10)
    assert world.emb_percent == pytest.approx(30, abs=1)
    assert world.reason == "StaticTarget"
    wall.advance(-jump_s)
    assert world.agent.offer_intent(newer).status is IntentStatus.ACCEPTED
