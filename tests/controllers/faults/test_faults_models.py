"""A fleet that runs a model, while the API server fails, the operator is killed between its writes, and two models take turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fault_oracle
import httpx
import pytest
from example_models import model_bytes
from fault_plans import Fault, kill_after, run
from fault_world import World, open_world

from contract.agent import ModelStatus
from testbed.control_plane import ControlPlane
from testbed.faults import Answer, Match, ResetAfter, ResetBefore, writes

pytestmark = pytest.mark.slow

FIRST, SECOND = model_bytes(1), model_bytes(2)
STATE = writes(r"/(grfleet\.dev|api/v1)/")
SOURCES = Match(methods=frozenset({"GET"}), path=r"/configmaps/split")
MOST_LIVES = 60


@pytest.fixture(scope="module")
def learned_world(
    crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """One operator that has brought a pool into order which runs a model."""
    with open_world(crds_installed, kube_api, tmp_path_factory.mktemp("learned")) as made, made.operator():
        made.learn("split-1", FIRST)
        made.make_pool()
        made.converges()
        yield made


def test_each_agent_is_handed_the_bytes_once_and_none_at_rest(learned_world: World) -> None:
    learned_world.converges(quiet_seconds=4)
    for entry in learned_world.entries:
        assert learned_world.farm.agents[entry].pushed == [(learned_world.models["split-1"], ModelStatus.HELD)]


def test_a_source_that_cannot_be_read_and_lost_answers_take_no_model_out_of_force(learned_world: World) -> None:
    before = {entry: len(learned_world.farm.agents[entry].offers) for entry in learned_world.entries}
    run(
        learned_world,
        Fault(SOURCES, Answer(status=503)),
        Fault(writes(), ResetBefore(), probability=0.2),
        Fault(writes(), ResetAfter(), probability=0.2),
        seconds=3.0,
    )
    for entry in before:
        told = [offer.intent.spec for offer in learned_world.farm.agents[entry].offers[before[entry] :]]
        assert all("modelRef" in spec for spec in told)


def test_an_agent_that_forgot_is_handed_the_bytes_again(learned_world: World) -> None:
    agent = learned_world.farm.agents["a"]
    fresh = type(agent)("a")
    learned_world.farm.agents["a"] = fresh
    learned_world.converges()
    assert fresh.pushed[-1] == (learned_world.models["split-1"], ModelStatus.HELD)


def test_two_models_that_take_turns_under_server_errors_end_with_the_one_that_is_named(learned_world: World) -> None:
    rule = learned_world.proxy.add(writes(), Answer(status=503), probability=0.5, seed=3)
    for turn in range(6):
        learned_world.learn(*(("split-2", SECOND) if turn % 2 == 0 else ("split-1", FIRST)))
        learned_world.change()
    learned_world.learn("split-2", SECOND)
    rule.wait_for_hits(3, timeout_seconds=20)
    learned_world.proxy.clear()
    learned_world.converges()


def test_killed_after_every_single_write_the_model_still_gets_to_the_agent(
    crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path: Path
) -> None:
    with open_world(crds_installed, kube_api, tmp_path) as world:
        world.learn("split-1", FIRST)
        world.make_pool(entries=("a",))
        for _ in range(MOST_LIVES):
            with world.operator("one", "--leader-elect", "off") as operator:
                rule = kill_after(world, operator, 1, of=STATE)
                world.until(lambda: rule.hits or not fault_oracle.differences(world))  # noqa: B023 - called in this turn
                world.proxy.clear()
                if not rule.hits:
                    break
                operator.child.wait(timeout=10)
        else:
            raise AssertionError(f"so many writes were not enough: {fault_oracle.differences(world)}")
        with world.operator("one", "--leader-elect", "off"):
            world.converges()
