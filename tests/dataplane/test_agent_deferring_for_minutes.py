"""An engine that gives its bytes back minutes late: the split stays safe all the while, and arrives when it can."""

from __future__ import annotations

import pytest
from dataplane_world import World

MINUTES = 5


async def test_an_engine_that_defers_for_minutes_is_waited_for_with_every_byte_accounted_for(world: World) -> None:
    await world.rounds(2)
    world.engine.lag_readings = 60 * MINUTES
    world.static(30)

    await world.rounds(60 * MINUTES - 5)
    waiting = world.agent.status()
    assert waiting.split is not None
    assert (waiting.split.settled, waiting.frozen) == (False, False)
    assert waiting.split.overage_bytes > 0, "which the operator calls Deferred"
    engine = world.engine
    held = sum(max(limit, used) for limit, used in zip(engine.limits, engine.used, strict=True))
    assert held <= engine.pool_bytes, "the side that shrinks counts with what it still holds, so nothing has grown"
    assert len(engine.puts) <= 10, "and nobody has asked again and again"

    engine.lag_readings = 0
    await world.rounds(30)
    arrived = world.agent.status()
    assert arrived.split is not None
    assert (arrived.split.settled, arrived.split.overage_bytes) == (True, 0)
    assert world.emb_percent == pytest.approx(30, abs=1)
    assert engine.violations == []


async def test_a_change_of_mind_and_a_new_agent_in_the_middle_of_it_grow_nothing_either(world: World) -> None:
    await world.rounds(2)
    world.engine.lag_readings = 60 * MINUTES
    world.static(30)
    await world.rounds(60)
    world.static(70)
    await world.rounds(60)
    world.agent = world.new_agent()
    world.static(20)
    await world.rounds(60)
    assert world.engine.violations == []

    world.engine.lag_readings = 0
    await world.rounds(60 * MINUTES)
    assert world.emb_percent == pytest.approx(20, abs=1)
    assert world.engine.violations == []


@pytest.mark.parametrize("answer", ["conflict", "unsupported"])
async def test_an_engine_that_refuses_after_minutes_of_deferring_keeps_its_split_until_it_is_asked_anew(
    world: World, answer: str
) -> None:
    await world.rounds(2)
    world.engine.lag_readings = 60 * MINUTES
    world.static(30)
    await world.rounds(60)
    world.engine.put_fault = answer
    world.engine.lag_readings = world.engine._lag = 0  # the bytes are free now, and the next write is refused
    await world.rounds(60)
    engine = world.engine
    refused = len(engine.puts)
    await world.rounds(30)
    assert sum(engine.limits) < engine.pool_bytes, "what was given up is not taken back on its own"
    assert len(engine.puts) - refused <= 3, "nobody insists"
    assert world.reason == {"conflict": "SecondWriter", "unsupported": "NotResizable"}[answer]
    engine.put_fault = ""
    world.static(60)
    await world.rounds(60)
    assert world.emb_percent == pytest.approx(60, abs=1)
    assert sum(engine.limits) == engine.pool_bytes
    assert engine.violations == []
