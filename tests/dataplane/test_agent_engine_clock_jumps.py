"""An engine whose clock jumps, without a restart: what the agent knows goes on from where it was, or is learnt anew."""

import numpy as np
import pytest
from dataplane_world import World

from dataplane.agent.estimate import Estimators
from policies.allocation.types import Curve

HOUR_MS = 3_600_000.0


async def _world(*, seconds: int) -> World:
    world = World(clock_ms=2.0 * HOUR_MS)
    world.intend(strategy="MissRatioCurve")
    await _goes_on(world, seconds=seconds)
    return world


async def _goes_on(world: World, *, seconds: int) -> None:
    for _ in range(seconds):
        world.touch_skewed_users()
        await world.rounds()


def _users(world: World) -> Curve:
    estimators: Estimators = world.agent._estimators
    curve = estimators.view().kv
    assert curve is not None
    return curve


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -5_000.0, HOUR_MS])
async def test_after_a_jump_the_curves_are_soon_those_of_an_engine_whose_clock_is_right(jump_ms: float) -> None:
    steady, jumped = await _world(seconds=240), await _world(seconds=60)
    jumped.engine.clock_ms += jump_ms
    await _goes_on(jumped, seconds=180)
    expected, found = _users(steady), _users(jumped)
    assert found.samples == pytest.approx(expected.samples, rel=0.1)
    sizes = np.linspace(0.0, float(expected.capacity_bytes[-1]), 50)
    np.testing.assert_allclose(found.at(sizes), expected.at(sizes), atol=0.08)
    assert not jumped.frozen
