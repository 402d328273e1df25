"""Clocks that disagree: the operator's with the agents', and those of two operators."""

from __future__ import annotations

from typing import Any

import pytest
from fault_pods import MANAGED, PodsWorld
from fault_world import GUEST, World

from controllers.runtime.conditions import conditions_of, find_condition
from testbed.faults import Match, ResetBefore

pytestmark = pytest.mark.slow

MINUTE = 60.0


def reasons(world: World, plural: str, type_: str) -> set[tuple[Any, Any]]:
    """(status, reason) of that condition over all objects of a kind."""
    found = [find_condition(conditions_of(each), type_) or {} for each in world.list(plural)]
    return {(each.get("status"), each.get("reason")) for each in found}


def messages(world: World) -> str:
    found = [find_condition(conditions_of(each), "PolicyHealthy") or {} for each in world.list("grinstances")]
    return " ".join(str(each.get("message")) for each in found)


def test_agents_refuse_intents_of_another_time_in_words_serve_on_and_take_them_when_the_clock_is_right(
    fresh_world: World,
) -> None:
    world = fresh_world
    for ahead, words in ((20 * MINUTE, "check the clocks"), (2 * MINUTE, "check the clocks"), (-20 * MINUTE, "expires")):
        with world.operator("one", f"--clock-ahead-seconds={ahead}"):
            if world.entries:
                world.change()
            else:
                world.make_pool()
            world.until(lambda: reasons(world, "grinstances", "PolicyHealthy") == {("False", "IntentNotAccepted")})
            assert words in messages(world)
            world.until(lambda: {status for status, _ in reasons(world, "grservingpools", "Ready")} == {"True"})
            names = {f"pool-{name}" for name in world.entries}
            world.until(lambda: {row["name"] for row in table(world)} == names)  # noqa: B023 - called in this turn
        with world.operator("one"):
            world.converges()

    # One that is two minutes behind is no trouble, as its intents hold for ten, but where an agent has a younger one of another.
    with world.operator("one", f"--clock-ahead-seconds={-2 * MINUTE}"):
        world.change_target()
        world.converges()
        assert GUEST not in world.entries
        world.change()  # the guest comes back as another instance
        world.until(lambda: ("False", "IntentNotAccepted") in reasons(world, "grinstances", "PolicyHealthy"))
        assert "issued later" in messages(world)
    with world.operator("one"):
        world.converges()


def table(world: World) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = world.get("grroutingtables", "pool").get("status", {}).get("instances", [])
    return rows


@pytest.mark.parametrize("ahead", [20 * MINUTE, -20 * MINUTE])
def test_what_a_leader_with_a_wrong_clock_began_is_ended_by_one_with_a_right_clock(
    fresh_pods_world: PodsWorld, ahead: float
) -> None:
    world = fresh_pods_world
    world.pods.skew_seconds = ahead  # so that its intents are taken: all that is wrong are the times that it writes
    with world.operator("one", clock_seconds=ahead) as wrong:
        world.make_pools()
        world.converges()
        with world.operator("two") as right:
            # A rollout and a drain begin, and a new guest gets warm, when the leader dies.
            world.pods.in_flight = lambda name: 1
            world.scale(1)
            world.make_guest()
            world.until(world.draining)
            wrong.child.kill()
            world.pods.skew_seconds = 0.0
            world.until(right.leads)
            world.pods.in_flight = lambda name: 0
            world.converges()
            assert len(world.pods.ended) == 1
            assert len(world.live_pods(MANAGED)) == 1
            world.update_model()
            world.converges()


def test_two_operators_with_different_clocks_never_lead_together(fresh_world: World) -> None:
    """Validity is measured, not read: whatever the Lease's times say, a follower waits until it has seen them stand still."""
    world = fresh_world
    with world.operator("one", f"--clock-ahead-seconds={20 * MINUTE}") as one:
        world.make_pool(entries=("a",))
        world.until(one.leads)
        with world.operator("two", f"--clock-ahead-seconds={-20 * MINUTE}") as two:
            world.until(two.ready)
            writes = [each for each in world.proxies["two"].writes() if "/leases" in each.path]
            assert not writes, "the Lease is twenty minutes from the future, or long over, and yet it is held"
            world.proxies["one"].add(Match(path="/leases"), ResetBefore())
            world.until(two.leads)
            assert not one.leads()
            world.proxies["one"].clear()
            world.until(lambda: one.child.poll() is None and two.leads())
        with world.operator("three") as three:
            world.until(lambda: one.leads() or three.leads())
            one.child.kill()
            world.until(three.leads)
            world.converges()
