"""The operator killed between any two of its writes: after each one of a clean run in turn, and after every single one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fault_oracle
import httpx
import pytest
from fault_plans import kill_after
from fault_world import World, open_world
from runtime_operator import wait_for

from testbed.control_plane import ControlPlane
from testbed.faults import writes

pytestmark = pytest.mark.slow

WORK = writes(r"/(grfleet\.dev|api/v1|events\.k8s\.io)/")
STATE = writes(r"/(grfleet\.dev|api/v1)/")
AT_ONCE = 2
POINTS = 4  # spread over the writes of a clean run; all of them with GRFLEET_ALL_CRASH_POINTS=1
MOST_LIVES = 60
MEASURED = {"MetricsFresh", "PreInferenceScaled"}
"""Conditions that wait for rates: the agents of these tests report none, so when these words come is chance."""


def end_state(world: World) -> dict[str, Any]:
    """What a user sees of the fleet, without names of the run, versions and times."""

    def conditions(item: dict[str, Any]) -> list[tuple[str, str, str]]:
        said = ((each["type"], each["status"], each["reason"]) for each in item["status"]["conditions"])
        return sorted(each for each in said if each[0] not in MEASURED)

    pool, table = world.get("grservingpools", "pool"), world.get("grroutingtables", "pool")
    maps = world.api.get(f"/api/v1/namespaces/{world.namespace}/configmaps").json()["items"]
    hidden = world.api.get(f"/api/v1/namespaces/{world.namespace}/secrets").json()["items"]
    state = {
        "pool": (conditions(pool), {k: v for k, v in pool["status"].items() if k != "conditions"}),
        "instances": [
            (each["metadata"]["name"], each["metadata"]["labels"], each["spec"]["intent"], conditions(each))
            for each in world.list("grinstances")
        ],
        "table": (table["status"]["generation"], [row["name"] for row in table["status"]["instances"]], conditions(table)),
        "others": sorted(each["metadata"]["name"] for each in [*maps, *hidden] if "kube-root" not in each["metadata"]["name"]),
    }
    for _, _, intent, _ in state["instances"]:
        del intent["policyRef"]["namespace"]
    return state


@pytest.fixture
def worlds(crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path: Path) -> Iterator[Any]:
    """Opens fresh worlds, each in a directory of its own."""

    def open_(name: str) -> Any:
        directory = tmp_path / name
        directory.mkdir()
        return open_world(crds_installed, kube_api, directory)

    return open_


def test_killed_after_each_write_of_a_clean_run_it_ends_in_the_same_state(worlds: Any) -> None:
    with worlds("clean") as world, world.operator():
        world.make_pool(entries=("a",))
        world.converges(quiet_seconds=2)
        clean = end_state(world)
        number = sum(fault_oracle.is_work(each) for each in world.writes())
    assert number >= 8

    def crash(write: int) -> None:
        print(f"crash after write {write} of {number}")  # noqa: T201 - pytest shows it for a test that fails, or with -s
        with worlds(f"after-{write}") as world:
            with world.operator() as operator:
                rule = kill_after(world, operator, write, of=WORK)
                world.make_pool(entries=("a",))
                try:
                    wait_for(lambda: operator.child.poll() is not None, seconds=20)
                except AssertionError:
                    assert rule.hits == 0  # this run needed fewer writes; whether an Event falls together is chance
                    return
                assert operator.child.poll() == -signal.SIGKILL, operator.log.read_text()[-3000:]
            world.proxy.clear()
            with world.operator():
                world.converges(quiet_seconds=1)
                assert end_state(world) == clean

    everything = os.environ.get("GRFLEET_ALL_CRASH_POINTS") == "1"
    points = range(1, number + 1) if everything else sorted({1 + (number - 1) * i // (POINTS - 1) for i in range(POINTS)})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(crash, points))


def test_killed_after_every_single_write_it_still_gets_there(fresh_world: World) -> None:
    """Each life has one write, so whatever is not in the API server by then is lost; no life may undo the one before."""
    world = fresh_world
    world.make_pool(entries=("a",))
    lives = 0
    while True:
        lives += 1
        assert lives < MOST_LIVES, f"so many writes were not enough: {fault_oracle.differences(world)}"
        with world.operator("one", "--leader-elect", "off") as operator:
            rule = kill_after(world, operator, 1, of=STATE)
            world.until(lambda: rule.hits or not fault_oracle.differences(world))  # noqa: B023 - called in this turn
            world.proxy.clear()
            if not rule.hits:
                break
            operator.child.wait(timeout=10)
    with world.operator("one", "--leader-elect", "off"):
        world.converges()
    assert lives > 5
    assert world.get("grroutingtables", "pool")["status"]["generation"] <= 2
