"""The operator gone for an hour in which much changed: nobody waits, the clocks of operator and agents stand an hour later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fault_pods import ADOPTED, MANAGED, PodsWorld, open_pods_world
from fault_world import World

from controllers.runtime.conditions import conditions_of, find_condition
from testbed.control_plane import ControlPlane

pytestmark = pytest.mark.slow

HOUR = 3600.0


@pytest.fixture
def patient_world(crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path: Path) -> Iterator[PodsWorld]:
    """A drain may take ten minutes there, so none ends by its deadline while a test lasts."""
    with open_pods_world(crds_installed, kube_api, tmp_path, deadline_seconds=600) as made:
        yield made


def test_after_an_hour_in_which_pods_were_replaced_scaled_and_deleted_by_hand_it_catches_up(patient_world: PodsWorld) -> None:
    world = patient_world
    world.replicas = 3
    with world.operator():
        world.make_pools()
        world.converges()
        # It goes in the middle of a drain that does not end, because requests go on.
        world.pods.in_flight = lambda name: 1
        world.scale(2)
        world.until(world.draining)
    (victim,) = world.draining()
    held = {name: agent.holds for name, agent in world.pods.agents.items()}

    staying = [name for name in world.live_pods(MANAGED) if name != victim]
    world.delete_pod(staying[0])
    world.delete_instance(staying[1])
    world.delete_pod(world.live_pods(ADOPTED)[0])
    world.make_guest()
    world.make_guest()
    world.change()  # bounds, the size and one guest more
    world.scale(2)
    world.scale_deployment_by_hand(5)
    world.api.delete(f"{world.path('grroutingtables')}/{ADOPTED}").raise_for_status()
    world.until(lambda: len(world.live_pods(MANAGED)) == 5)
    assert {name: agent.holds for name, agent in world.pods.agents.items() if name in held} == held  # nobody else commands them

    world.pods.skew_seconds = HOUR
    generation = world.get("grservingpools", ADOPTED)["status"]["tableGeneration"]
    with world.operator(clock_seconds=HOUR):
        world.converges()
        assert world.get("grroutingtables", ADOPTED)["status"]["generation"] > generation, "followers never go back"
        world.change()
        world.converges()
        # A drain that it leaves behind has no deadline left when it comes back.
        world.scale(1)
        world.until(world.draining)
        (victim,) = world.draining()
    world.pods.skew_seconds = 2 * HOUR
    with world.operator(clock_seconds=2 * HOUR):
        world.converges()
        assert victim not in world.live_pods(MANAGED)


def test_an_agent_that_has_a_younger_intent_than_a_restored_server_waits_and_a_new_instance_mends_it(fresh_world: World) -> None:
    """After a restore of an older snapshot generations fall; only another uid lets such an agent follow again."""
    world = fresh_world
    with world.operator():
        world.make_pool(entries=("a", "b"))
        world.converges()
        book = world.farm.agents["a"].book
        assert book.current is not None
        book.current = replace(book.current, generation=book.current.generation + 9)
        world.change_target()

        def words() -> dict[str, str]:
            found = {
                each["metadata"]["name"]: find_condition(conditions_of(each), "PolicyHealthy")
                for each in world.list("grinstances")
            }
            return {name: str((item or {}).get("reason")) for name, item in found.items()}

        world.until(lambda: words()["pool-a"] in ("IntentNotAccepted", "Pending") and words()["pool-b"] == "StrategyActive")

        world.created["pool-a"] += 1
        world.api.delete(f"{world.path('grinstances')}/pool-a").raise_for_status()
        world.converges()
