"""The operator benchmark at a size that tests can afford, on a real control plane."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from bench import operator as operator_benchmark
from bench.operator import Sizes, measure, notes_on
from bench.operator_farm import AgentFarm
from bench.operator_site import Call
from bench.report import Result, summarise
from contract.agent import Intent, IntentStatus
from contract.agent_client import AgentClient
from contract.signing import new_private_key, sign
from testbed.binaries import Binaries

TINY = Sizes(cold=20, observed=None, restarts=1, window_seconds=10.0, terminations=1, kills=0)


@pytest.fixture
def farm() -> Iterator[AgentFarm]:
    with AgentFarm(seed=1, hosts=3) as running:
        yield running


async def test_the_server_that_plays_agents_answers_their_contract(farm: AgentFarm) -> None:
    for number in range(4):
        async with AgentClient(farm.url(f"i{number}", number)) as client:
            intent = Intent(uid=f"uid-{number}", generation=1, issued=1, expires=2, spec={"strategy": "Static"})
            answer = await client.put_intent(sign(intent, new_private_key()))
            assert answer.status is IntentStatus.ACCEPTED
            assert (await client.put_intent(intent)).status is IntentStatus.UNCHANGED
            status = await client.status()
            assert (status.uid, status.generation, status.strategy_in_force) == (f"uid-{number}", 1, "Static")
            assert status.split is not None
            assert status.split.settled
    assert (farm.counts.polls, farm.counts.pushes, len(farm.counts.asked)) == (4, 8, 4)
    farm.reset()
    assert farm.counts.polls == 0


def test_requests_are_told_apart_by_what_they_do() -> None:
    kinds = {
        ("update", "leases"): "lease",
        ("get", "leases"): "lease",
        ("create", "selfsubjectaccessreviews"): "review",
        ("watch", "grinstances"): "watch",
        ("list", "grinstances"): "read",
        ("get", "discovery"): "read",
        ("create", "events"): "event",
        ("patch", "grinstances/status"): "write",
        ("create", "secrets"): "write",
    }
    assert {what: Call(0.0, "n", *what).kind for what in kinds} == kinds


def test_a_missed_goal_is_explained_and_a_met_one_is_not() -> None:
    missed = [summarise("cold, 9 instances: writes to an instance", [4.0], unit="", goal=1.0)]
    met = [summarise("cold, 9 instances: writes to an instance", [1.0], unit="", goal=1.0)]
    assert "four" in notes_on(missed)
    assert "four" not in notes_on(met)
    for pattern in operator_benchmark.WHY:
        assert any(re.search(pattern, name) for name in NAMES), f"no figure is called {pattern}"


NAMES = (
    "cold, N instances: CPU",
    "cold, N instances: writes to an instance",
    "cold, N instances: RSS at most",
    "restart, N instances: CPU until every agent was asked",
    "restart, N instances: RSS at most",
)


@pytest.mark.slow
def test_a_tiny_run_measures_every_phase_and_writes_nothing_at_rest(testbed_binaries: Binaries) -> None:
    figures, remarks = measure(TINY, seed=1)
    results = {result.name: result for result in figures}
    assert remarks == []

    def figure(name: str) -> Result:
        return results[name]

    assert figure("cold, 20 instances: writes to an instance").value >= 1.0
    assert figure("cold, 20 instances: CPU").value > 0.0
    assert figure("cold, 20 instances: CPU").baseline is not None
    assert figure("restart, 20 instances: writes").value == 0.0
    assert figure("10 s at rest, 20 instances: writes").value == 0.0
    assert figure("10 s at rest, 20 instances: reads").value == 0.0
    assert 1.0 <= figure("20 instances observed each 10 s: polls per second").value <= 4.0
    assert figure("failover: looks at which both led").value == 0.0
    assert figure("failover on SIGTERM").value > 0.0


def test_the_server_stops_with_its_block() -> None:
    with AgentFarm(seed=1) as farm:
        url = farm.url("a", 0)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url}/agent/v1/status")
