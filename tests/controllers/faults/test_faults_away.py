"""The operator gone for an hour in which everything changed: no waiting, the clocks of operator and agents stand an hour later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fault_pods import ADOPTED, MANAGED, PodsWorld, open_pods_world

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
        assert victim not in world.live_pods(MANAGED), "its deadline has passed long ago"
        assert world.get("grroutingtables", ADOPTED)["status"]["generation"] > generation, "followers never go back"
        world.change()
        world.converges()
