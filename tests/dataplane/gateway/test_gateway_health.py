"""What the agent answers to probes and to Prometheus, beside a real HAProxy that comes, goes and is brought up to date."""

import math

import httpx
import pytest
from gateway_world import Gateway, row, table
from prometheus_client.parser import text_string_to_metric_families

from contract.errors import ProtocolViolation
from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.health import route_of
from dataplane.gateway.metrics import RESULTS, SERVER_STATES, WRITES, state_of
from dataplane.gateway.tables import HeldServer
from dataplane.probes import probes


async def shown(agent: GatewayAgent) -> dict[str, float]:
    """Every series by name and its label's value."""
    async with probes(route_of(agent), "127.0.0.1:0") as url, httpx.AsyncClient(base_url=url or "") as client:
        text = (await client.get("/metrics")).raise_for_status().text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_numbers_are_those_of_what_haproxy_holds(gateway: Gateway) -> None:
    rows = gateway.rows("a", "b")
    await gateway.offer(table(7, [*rows, row("c", gateway.toys["c"].port, state=InstanceState.DRAINING)]))
    gateway.agent.set_users({user_key(b"0123456789abcdef", f"u{i}"): "uid-a" for i in range(5)})
    await gateway.settle()
    await gateway.stop_agent()
    assert not gateway.agent.offer(table(7, rows))
    with pytest.raises(ProtocolViolation):
        gateway.agent.offer(RoutingTable(generation=8, instances=rows, slots="AAAA"))
    gateway.agent.tables.heard()
    await gateway.agent.reconcile()
    found = await shown(gateway.agent)
    assert found["grfleet_gateway_generation"] == found["grfleet_gateway_held_generation"] == 7
    assert [found[f"grfleet_gateway_servers {state}"] for state in SERVER_STATES] == [2, 0, 1, 0]
    assert (found["grfleet_gateway_slots"], found["grfleet_gateway_hot_users"]) == (SLOTS, 5)
    assert [found[f"grfleet_gateway_tables_total {v}"] for v in ("taken", "stale", "broken")] == [1, 1, 1]
    assert found["grfleet_gateway_writes_total users"] == 5
    assert found["grfleet_gateway_writes_total slots"] == SLOTS + 1  # and the mark of the generation
    assert found["grfleet_gateway_haproxy_up"] == 1
    assert found["grfleet_gateway_haproxy_outdated"] == 0
    assert found["grfleet_gateway_source_age_seconds"] >= 0
    assert found["grfleet_gateway_reconciles_total settled"] >= 2
    assert {f"grfleet_gateway_reconciles_total {result}" for result in RESULTS} <= set(found)
    assert {f"grfleet_gateway_writes_total {kind}" for kind in WRITES} <= set(found)


async def test_ready_means_that_haproxy_answers_and_holds_a_table_and_a_lost_source_does_not_matter(gateway: Gateway) -> None:
    async with probes(route_of(gateway.agent), "127.0.0.1:0") as url, httpx.AsyncClient(base_url=url or "") as client:

        async def says(path: str) -> tuple[int, list[str]]:
            answer = await client.get(path)
            return answer.status_code, answer.json()["reasons"]

        await gateway.stop_agent()
        await gateway.agent.reconcile()
        assert await says("/readyz") == (503, ["haproxy does not hold a table yet"])
        gateway.agent.offer(table(1, gateway.rows("a", "b", "c")))
        await gateway.agent.reconcile()
        assert await says("/readyz") == (200, [])
        await gateway.kill_haproxy()
        await gateway.agent.reconcile()
        assert await says("/readyz") == (503, ["haproxy does not answer"])
        assert await says("/healthz") == (200, [])  # to start the agent again would help nobody
        await gateway.start_haproxy()
        await gateway.agent.reconcile()
        assert await says("/readyz") == (200, [])
        assert (await client.get("/other")).status_code == 404
        assert (await client.post("/readyz")).status_code == 405
        assert (await client.head("/readyz")).status_code == 200


async def test_a_loop_that_stands_still_or_only_fails_is_unhealthy_and_never_ends_by_itself(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    agent = GatewayAgent(gateway.config, monotonic_s=lambda: now_s[0])
    agent.offer(table(1, gateway.rows("a")))
    assert await agent.reconcile()

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr("dataplane.gateway.agent.plan", broken)
    now_s[0] = 20.0
    assert not await agent.reconcile()
    assert agent.unhealthy() == []
    now_s[0] = 31.0
    assert not await agent.reconcile()
    assert len(agent.unhealthy()) == 1
    monkeypatch.undo()
    assert await agent.reconcile()
    assert agent.unhealthy() == []


def test_before_anything_was_seen_the_numbers_are_not_known(gateway_free_agent: GatewayAgent) -> None:
    view = gateway_free_agent.view()
    assert (view.held, view.tables.table_age_s, view.tables.source_age_s, view.tables.generation) == (None, None, None, -1)
    assert route_of(gateway_free_agent)("GET", "/metrics")


async def test_what_is_not_known_is_nan_and_never_zero(gateway_free_agent: GatewayAgent) -> None:
    found = await shown(gateway_free_agent)
    for name in ("held_generation", "slots", "servers ready", "table_age_seconds", "source_age_seconds"):
        assert math.isnan(found[f"grfleet_gateway_{name}"]), name


@pytest.fixture
def gateway_free_agent() -> GatewayAgent:
    from gateway_model import CONFIG

    return GatewayAgent(CONFIG, monotonic_s=lambda: 0.0)


@pytest.mark.parametrize(
    ("admin_state", "up", "state"),
    [
        (0, True, "ready"),
        (0, False, "down"),
        (8, True, "draining"),
        (8, False, "down"),
        (1, True, "maintenance"),
        (4, True, "ready"),
    ],
)
def test_the_state_of_a_server_is_one_of_the_list(admin_state: int, up: bool, state: str) -> None:
    assert state in SERVER_STATES
    assert state_of(HeldServer(id=1, address="", weight=1, admin_state=admin_state, in_use=0, up=up)) == state
