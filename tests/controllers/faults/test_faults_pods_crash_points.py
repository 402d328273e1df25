"""The operator killed between its writes while a managed pool is made, shrinks, changes its model and goes, step by step.

Each life has a few writes, drawn from a seed (one with GRFLEET_ALL_CRASH_POINTS=1), and never hears of the last. Whatever is not
in the API server by then is lost, and no life may undo the one before: no pod is made, and none ended, that one life would not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import httpx
import pytest
from fault_plans import kill_after
from fault_pods import MANAGED, PodsWorld, open_pods_world

from testbed.control_plane import ControlPlane
from testbed.faults import writes

pytestmark = pytest.mark.slow

STATE = writes(r"/(grfleet\.dev|api/v1|apps|policy)/")
MOST_LIVES = 200
MOST_WRITES = 1 if os.environ.get("GRFLEET_ALL_CRASH_POINTS") == "1" else 10


@pytest.fixture(scope="module")
def world(crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodsWorld]:
    with open_pods_world(crds_installed, kube_api, tmp_path_factory.mktemp("lives")) as made:
        yield made


def live(world: PodsWorld, *, seed: int) -> int:
    """One life after the other until nothing is left to do; returns how many were cut short."""
    dice = random.Random(seed)
    for lives in range(MOST_LIVES):
        with world.operator("one", "--leader-elect", "off") as operator:
            rule = kill_after(world, operator, dice.randint(1, MOST_WRITES), of=STATE)
            world.until(lambda: rule.hits or not world.differences(), seconds=120)  # noqa: B023 - called in this turn
            world.proxy.clear()
            if not rule.hits:
                world.converges()
                return lives
            operator.child.wait(timeout=10)
    raise AssertionError(f"{MOST_LIVES} lives were not enough: {world.differences()}")


def test_the_pool_is_made_with_as_many_pods_as_it_asks_for_and_never_another(world: PodsWorld) -> None:
    world.make_pools(MANAGED)

    assert live(world, seed=1) > 3
    assert len(world.pods.made) == world.replicas
    assert not world.pods.ended


def test_the_pool_shrinks_by_the_one_that_was_drained(world: PodsWorld) -> None:
    world.scale(world.replicas - 1)

    assert live(world, seed=2) > 0
    assert len(world.pods.made) == world.replicas + 1
    assert len(world.pods.ended) == 1
    assert all(world.pods.ended.values()), "the one that went was the one that had been chosen and drained"


def test_the_model_changes_with_one_new_pod_for_each_old_one(world: PodsWorld) -> None:
    before = len(world.pods.made)
    world.update_model()

    assert live(world, seed=3) > 3
    assert len(world.pods.made) == before + world.replicas


def test_the_pool_goes_with_everything_that_it_had(world: PodsWorld) -> None:
    before = len(world.pods.made)
    world.delete_pool(MANAGED)

    live(world, seed=4)
    left = [table["status"]["instances"] for table in world.list("grroutingtables")]
    assert left in ([], [[]]), "its tombstone, unless no life saw the table between the pool's end and the collector"
    assert not world.pods.pods()
    assert len(world.pods.made) == before
