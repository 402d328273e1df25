"""Rollouts on a real API server: canaries and all; harm that is taken back; an operator that dies meanwhile; the kill switch."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fault_agents import Agent, AgentFarm
from integration_fleet import Fleet, Pair, condition, pool_spec
from runtime_operator import OperatorProcess, running_operator

from contract.agent import AgentStatus
from testbed.patience import eventually

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
COMMAND = [sys.executable, str(HERE / "integration_rollout_operator.py")]
NAMES = ("a", "b", "c", "d")
TRIAL = {"canaryPercent": 25, "soakSeconds": 15, "rollbackP99Percent": 20}


class TryingAgent(Agent):
    """An agent whose engine is so many times as slow while the strategy HillClimb decides."""

    harm = 1.0

    def status(self) -> AgentStatus:
        status = super().status()
        rng = random.Random()
        factor = self.harm if status.strategy_in_force == "HillClimb" else 1.0
        p99 = 41.0 * factor * math.exp(rng.gauss(0.0, 0.05))
        return msgspec.structs.replace(status, p99_ms=p99, requests_per_second=300.0, slo_percent=99.6)


@pytest.fixture
def farm() -> Iterator[AgentFarm]:
    """Four agents of the test that say what they are told to say."""
    with AgentFarm() as made:
        made.agents.update({name: TryingAgent(name) for name in NAMES})
        yield made


@pytest.fixture
def lead(account: Path, namespace: str, tmp_path: Path) -> Callable[[str], Any]:
    """Starts an operator under a name."""
    return lambda name: running_operator(tmp_path, account, namespace, name=name, command=[*COMMAND, "--identity", name])


def held(farm: AgentFarm) -> dict[str, str]:
    """The strategy that each agent holds."""
    return {name: str(agent.book.current.spec.strategy) if agent.book.current else "" for name, agent in farm.agents.items()}


def phase(fleet: Fleet) -> str:
    return str(((fleet.pool().get("status") or {}).get("rollout") or {}).get("phase", ""))


def events(fleet: Fleet) -> set[str]:
    """Reasons of the Events about the pool."""
    items = fleet.api.get(f"/apis/events.k8s.io/v1/namespaces/{fleet.namespace}/events").json()["items"]
    return {item["reason"] for item in items if item["regarding"].get("name") == "pool"}


def begin(fleet: Fleet, farm: AgentFarm) -> None:
    """A pool that runs MissRatioCurve and has been measured for a while."""
    fleet.apply("HBMPolicy", "mine", {"strategy": "MissRatioCurve", "rollout": TRIAL})
    fleet.apply("GRServingPool", "pool", pool_spec([farm.entry(name) for name in NAMES], policies={"hbm": "mine"}))
    eventually(lambda: set(held(farm).values()) == {"MissRatioCurve"}, why=lambda: held(farm))


def test_a_change_reaches_canaries_then_all_although_the_operator_is_killed_in_between(
    fleet: Fleet, farm: AgentFarm, lead: Callable[[str], Any]
) -> None:
    with lead("one") as first:
        begin(fleet, farm)
        fleet.patch("hbmpolicies", "mine", {"strategy": "HillClimb"})
        eventually(lambda: phase(fleet) == "Canary", why=fleet.pool)
        (canary,) = fleet.pool()["status"]["rollout"]["canaries"]
        mine = canary["name"].removeprefix("pool-")
        expected = {name: "HillClimb" if name == mine else "MissRatioCurve" for name in NAMES}
        eventually(lambda: held(farm) == expected, why=lambda: held(farm))
        eventually(lambda: (fleet.get("hbmpolicies", "mine").get("status") or {}).get("rollout") == "Canary")
        eventually(lambda: fleet.get("hbmpolicies", "mine")["status"]["current"] == 1)
        first.child.kill()
        first.child.wait()
        rollout = fleet.pool()["status"]["rollout"]
        time.sleep(1.0)
        assert held(farm) == expected, "without an operator everybody goes on as it is"
    with lead("two"):
        eventually(lambda: set(held(farm).values()) == {"HillClimb"}, why=fleet.pool)
        assert phase(fleet) == "Complete"
        assert rollout["canaries"] == [canary]
        progress = condition(fleet.pool(), "RolloutProgressing")
        assert (progress["status"], progress["reason"]) == ("True", "Complete")
        eventually(lambda: fleet.get("hbmpolicies", "mine")["status"].get("current") == len(NAMES))
        eventually(lambda: {"CanarySoaking", "Complete"} <= events(fleet), why=lambda: events(fleet))
        told = fleet.plane.kubectl("get", "hbmp", "mine", "-n", fleet.namespace).stdout
        assert "Complete" in told
        eventually(lambda: condition(fleet.pool(), "PolicyHealthy").get("reason") == "StrategyActive")
        before = (fleet.pool()["status"]["rollout"], fleet.get("hbmpolicies", "mine"))
        time.sleep(3.0)
        assert (fleet.pool()["status"]["rollout"], fleet.get("hbmpolicies", "mine")) == before, "at rest nothing is written"


def test_a_change_that_harms_is_taken_back_from_the_canaries(fleet: Fleet, farm: AgentFarm, lead: Callable[[str], Any]) -> None:
    TryingAgent.harm = 2.0
    try:
        with lead("one"):
            begin(fleet, farm)
            fleet.patch("hbmpolicies", "mine", {"strategy": "HillClimb"})
            eventually(lambda: "HillClimb" in held(farm).values(), why=fleet.pool)
            eventually(lambda: phase(fleet) == "RolledBack", why=fleet.pool)
            eventually(lambda: set(held(farm).values()) == {"MissRatioCurve"}, why=lambda: held(farm))
            eventually(lambda: condition(fleet.pool(), "PolicyHealthy").get("reason") == "RolledBack", why=fleet.pool)
            assert "did harm on pool-" in condition(fleet.pool(), "RolloutProgressing")["message"]
            eventually(lambda: fleet.get("hbmpolicies", "mine")["status"].get("rollout") == "RolledBack")
            eventually(lambda: "RolledBack" in events(fleet))
            fleet.wait_for_condition("grservingpool/pool", "Ready")
            tried = [name for name, offer in farm.offers() if offer.intent.spec["strategy"] == "HillClimb"]
            assert len(set(tried)) == 1, "nobody but the canary has ever had it"
    finally:
        TryingAgent.harm = 1.0


# -- the kill switch, with real agents and an operator whose times are as they are -------------------------------------------


def told(pair: Pair) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
    return answer


def test_the_kill_switch_is_in_force_on_all_agents_within_seconds(fleet: Fleet, operator: OperatorProcess) -> None:
    pairs = [fleet.new_pair() for _ in range(4)]
    fleet.apply("HBMPolicy", "mine", {"strategy": "HillClimb", "rollout": {"soakSeconds": 0}})
    fleet.apply_pool("pool", *pairs, policies={"hbm": "mine"})
    fleet.start(*pairs)
    fleet.wait_for_condition("grservingpool/pool", "Ready")

    def until(word: Callable[[dict[str, Any]], bool]) -> float:
        began = time.monotonic()
        eventually(lambda: all(word(told(pair)) for pair in pairs), why=lambda: [told(pair) for pair in pairs])
        return time.monotonic() - began

    def decides(strategy: str) -> Callable[[dict[str, Any]], bool]:
        return lambda status: status["strategyInForce"] == strategy and status["generation"] > 0

    until(decides("HillClimb"))
    switches: dict[str, tuple[str, str, dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
        "MissRatioCurve": ("hbmpolicies", "mine", {"strategy": "MissRatioCurve"}, decides("MissRatioCurve")),
        "Static": ("hbmpolicies", "mine", {"strategy": "Static"}, decides("Static")),
        "Shadow": ("hbmpolicies", "mine", {"enforcement": "Shadow"}, lambda status: status["message"].startswith("shadow")),
        "pause": ("grservingpools", "pool", {"paused": True}, lambda status: status["reason"] == "Paused"),
    }
    for name, (plural, which, spec, word) in switches.items():
        fleet.patch("hbmpolicies", "mine", {"strategy": "HillClimb", "enforcement": "Active"})
        until(decides("HillClimb"))
        fleet.patch(plural, which, spec)
        took = until(word)
        print(f"kill switch {name}: in force on {len(pairs)} agents after {took:.2f} s")  # noqa: T201 - shown with -s
        assert took < 60.0
