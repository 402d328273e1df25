"""The status says what P99 the strategy expects: where the split stands, and where it wants to go; nothing it did not compute."""

from __future__ import annotations

import pytest
from dataplane_world import World


async def test_the_status_forecasts_what_the_last_decision_predicted() -> None:
    world = World()
    assert world.agent.status().predicted_p99_ms is None
    world.intend(strategy="MissRatioCurve", enforcement="Shadow")
    for _ in range(75):
        world.touch_skewed_users()
        await world.rounds()
    status = world.agent.status()
    told = world.agent.decisions.after(world.agent.decisions.last_sequence - 1).decisions[-1].inputs["round"]
    assert status.predicted_p99_ms is not None
    assert status.goal_p99_ms is not None
    assert (status.predicted_p99_ms, status.goal_p99_ms) == (told["predictedP99Ms"], told["goalP99Ms"])
    assert 0.0 < status.goal_p99_ms <= status.predicted_p99_ms * 1.01


async def test_a_strategy_that_predicts_nothing_forecasts_nothing() -> None:
    world = World()
    world.static(50)
    await world.rounds(5)
    assert (world.agent.status().predicted_p99_ms, world.agent.status().goal_p99_ms) == (None, None)


@pytest.mark.parametrize("strategy", ["HillClimb", "Static"])
async def test_a_forecast_ends_with_the_strategy_that_made_it(strategy: str) -> None:
    world = World()
    world.intend(strategy="MissRatioCurve", enforcement="Shadow")
    for _ in range(75):
        world.touch_skewed_users()
        await world.rounds()
    assert world.agent.status().goal_p99_ms is not None
    await world.rounds(3, requests=0)
    assert world.agent.status().goal_p99_ms is not None, "a quiet moment keeps it"
    world.intend(strategy=strategy, enforcement="Shadow")
    await world.rounds()
    assert (world.agent.status().predicted_p99_ms, world.agent.status().goal_p99_ms) == (None, None)
