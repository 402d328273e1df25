"""The kill switch reaches all agents while the API server is slow, loses answers, refuses statuses or tells of no change."""

from __future__ import annotations

import time

import pytest
from fault_plans import Fault
from fault_world import World

from contract.agent import Strategy
from testbed.faults import Answer, Freeze, Latency, Match, ResetAfter, writes

pytestmark = pytest.mark.slow

CASES = {
    "slow": (Fault(Match(), Latency(seconds=1.5, jitter_seconds=1.0)),),
    "answers lost and statuses refused": (
        Fault(writes("/grinstances/"), ResetAfter(), probability=0.5),
        Fault(writes("/status"), Answer(status=503)),
    ),
    "instances no more told of": (Fault(Match(watch=True, path="/grinstances"), Freeze()),),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_in_force_on_all_agents_although_the_api_server_ails(world: World, case: str) -> None:
    def all_are_told(strategy: Strategy) -> bool:
        return all((spec := world.farm.agents[name].spec) is not None and spec.strategy is strategy for name in world.entries)

    world.strategy = {"strategy": "HillClimb", "rollout": {"soakSeconds": 0}}
    world.change()
    world.until(lambda: all_are_told(Strategy.HILL_CLIMB))
    world.converges()
    try:
        for number, fault in enumerate(CASES[case]):
            world.proxy.add(fault.match, fault.action, probability=fault.probability, seed=number)
        world.strategy = {"strategy": "MissRatioCurve"}
        began = time.monotonic()
        world.change_policy()
        world.until(lambda: all_are_told(Strategy.MISS_RATIO_CURVE))
        print(f"kill switch, {case}: on {len(world.entries)} agents after {time.monotonic() - began:.1f} s")  # noqa: T201 - shown with -s
    finally:
        world.proxy.clear()
    world.converges()
