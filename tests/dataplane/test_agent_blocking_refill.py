"""An engine whose refill blocks serving says so, and its agent moves slowly and holds the split in a burst."""

from __future__ import annotations

import pytest
from dataplane_world import World

BRISK = {"maxPercentPerSecond": 20, "deadbandPercent": 0}


async def _warm(world: World, **spec: object) -> None:
    """An agent that trusts its estimates and has arrived at its goal."""
    world.intend(strategy="MissRatioCurve", step=BRISK, **spec)
    for _ in range(150):
        world.touch_skewed_users()
        await world.rounds(requests=40)


async def _burst(world: World, seconds: int = 8) -> set[str]:
    """Reasons given while twice the requests come."""
    reasons = set()
    for _ in range(seconds):
        world.touch_skewed_users()
        await world.rounds(requests=80)
        reasons.add(world.reason)
    return reasons


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_burst_holds_the_split_only_where_refill_blocks_serving(blocks: bool) -> None:
    world = World(refill_blocks=blocks)
    await _warm(world)
    assert ("BurstFreeze" in await _burst(world)) is blocks
    record = world.agent.decisions.after(world.agent.decisions.last_sequence - 1).decisions[-1]
    assert record.inputs["round"]["phase"] == "Burst"
    assert record.inputs["round"]["refillLinkPercent"] == 20.0


async def test_the_policy_may_forbid_the_freeze() -> None:
    world = World(refill_blocks=True)
    await _warm(world, recovery={"freezeWhenBlocking": False})
    assert "BurstFreeze" not in await _burst(world)


@pytest.mark.parametrize(
    ("blocks", "least", "most"),
    [(True, 1.5, 3.2), (False, 38.0, 40.0)],  # in ten seconds, at the 0.3 points a second of docs/contract.md
)
async def test_where_refill_blocks_the_split_moves_at_its_own_slow_pace(blocks: bool, least: float, most: float) -> None:
    world = World(refill_blocks=blocks)
    world.intend(strategy="Static", step=BRISK, bounds={"fallbackEmbPercent": 50})
    await world.rounds(3)
    world.intend(strategy="Static", step=BRISK, bounds={"fallbackEmbPercent": 90})
    before = world.emb_percent
    await world.rounds(10)
    assert least <= world.emb_percent - before <= most


async def test_in_a_burst_the_engine_is_told_to_refill_with_a_fifth_of_the_link_whatever_the_policy_allows() -> None:
    world = World()
    greedy = {"maxLinkPercent": 100}
    world.static(50, refill=greedy)
    await world.rounds(90, requests=40)
    world.static(60, refill=greedy)
    await world.rounds(3, requests=40)
    assert world.engine.puts[-1].refill_bytes_per_second == 20_000_000_000
    await world.rounds(6, requests=120)
    asked = len(world.engine.puts)
    world.static(70, refill=greedy)
    await world.rounds(2, requests=120)
    assert [put.refill_bytes_per_second for put in world.engine.puts[asked:]] == [4_000_000_000] * (
        len(world.engine.puts) - asked
    )
    assert len(world.engine.puts) > asked
