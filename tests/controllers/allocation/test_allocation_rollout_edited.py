"""What an edit of `rollout` alone does to a trial that is on its way: it counts from then on, and nobody has to begin again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from rollout_world import World, harmful, learned, running


def asked(world: World, **rollout: Any) -> World:
    """The same change as before, with other words on how it is to be tried."""
    world.ask(learned(rollout=rollout))
    world.step()
    return world


@pytest.mark.parametrize(("before", "after", "canaries"), [(5, 50, 10), (50, 5, 1), (5, 100, 20), (100, 10, 2)])
def test_another_percent_of_canaries_tries_anew_with_as_many(before: int, after: int, canaries: int) -> None:
    world = asked(running(World(count=20)), canaryPercent=before)
    assert world.phase == "Canary"
    world.turn(5)
    asked(world, canaryPercent=after)
    assert world.phase == "Measuring"
    assert set(world.strategies().values()) == {"MissRatioCurve"}, "what is measured next is to be the time before"
    world.until("Canary", most=30)
    assert len(world.canaries) == canaries
    assert Counter(world.strategies().values())["Learned/a"] == canaries


def test_a_held_rollout_goes_on_with_more_canaries_as_the_page_promises() -> None:
    world = asked(running(World(count=20, noise=0.3)), canaryPercent=5)
    world.until("Inconclusive", most=100)
    asked(world, canaryPercent=50)
    world.until("Canary", most=30)
    assert len(world.canaries) == 10
    assert world.progress["status"] == "True"


@pytest.mark.parametrize("percent", [1, 11, 12])
def test_another_percent_that_means_as_many_canaries_goes_on(percent: int) -> None:
    world = asked(running(World(count=8)), canaryPercent=10)
    chosen, since = world.canaries, world.rollout["since"]
    world.turn(5)
    asked(world, canaryPercent=percent)
    world.turn(2)
    assert (world.phase, world.canaries, world.rollout["since"]) == ("Canary", chosen, since)


def test_a_pool_that_grows_or_shrinks_keeps_its_canaries() -> None:
    world = asked(running(World(count=20)), canaryPercent=10)
    chosen = world.canaries
    for _ in range(20):
        world.join()
    world.turn(2)
    assert (world.phase, world.canaries) == ("Canary", chosen)
    for name in sorted(set(world.instances) - set(chosen))[:37]:
        world.leave(name)
    world.turn(2)
    assert (world.phase, world.canaries) == ("Canary", chosen)


def test_a_pool_with_fewer_instances_than_canaries_counts_those_that_are_there() -> None:
    world = asked(running(World(count=10)), canaryPercent=60)
    for name in world.canaries[2:]:
        world.leave(name)
    world.turn(8)
    assert world.progress["message"].startswith("2 of 6 instances have ")


@pytest.mark.parametrize("phase", ["Measuring", "Canary", "Extended", "Inconclusive", "RolledBack"])
def test_no_soak_any_more_means_no_trial_in_whatever_phase(phase: str) -> None:
    world = running(World(count=4, factor=harmful("Learned", 1.5 if phase == "RolledBack" else 1.0)))
    if phase == "Measuring":
        world.lead_anew()
    asked(world)
    if phase in ("Extended", "Inconclusive"):
        world.requests_per_second = 0.5
    world.until(phase, most=70)
    asked(world, soakSeconds=0, canaryPercent=50)
    assert world.phase == "Complete"
    assert set(world.strategies().values()) == {"Learned/a"}


def test_a_state_from_before_the_percent_was_written_goes_on() -> None:
    world = asked(running(World(count=20)), canaryPercent=10)
    chosen = world.canaries
    del world.pool["status"]["rollout"]["canaryPercent"]
    asked(world, canaryPercent=50)
    world.turn(3)
    assert (world.phase, world.canaries) == ("Canary", chosen)


def test_when_the_last_control_has_left_canaries_are_compared_with_their_past_from_then_on() -> None:
    world = asked(running(World(count=4)), canaryPercent=25)
    world.turn(12)
    assert "against the others" in world.progress["message"]
    for name in set(world.instances) - set(world.canaries):
        world.leave(name)
    world.turn(4)
    assert "their past" in world.progress["message"]
    assert " in 1" not in world.progress["message"], "what was measured against the others does not count"
