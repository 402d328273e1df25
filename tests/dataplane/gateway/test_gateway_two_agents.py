"""Two agents beside one HAProxy: harmless with one table, and said when each has a table of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gateway_world import Gateway, table, until

from contract.table import RoutingTable
from dataplane.gateway.agent import GatewayAgent

SAID = "somebody else writes"


@asynccontextmanager
async def second_agent(gateway: Gateway, wanted: RoutingTable, *, uid: str = "") -> AsyncIterator[GatewayAgent]:
    other = GatewayAgent(gateway.config, monotonic_s=gateway.agent._monotonic_s, compare_s=0.05)
    other.offer(wanted, uid=uid)
    running = asyncio.create_task(other.run(period_s=0.05))
    try:
        yield other
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_agents_that_write_different_tables_say_so_once_each(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    gateway.agent._compare_s = 0.05
    await gateway.offer(table(1, gateway.rows("a", "b")))
    await until(lambda: gateway.agent._agreed is not None)
    async with second_agent(gateway, table(1, gateway.rows("b", "c")), uid="another object"):
        await until(lambda: gateway.agent._contested is not None)
        await asyncio.sleep(0.2)
    assert 1 <= caplog.text.count(SAID) <= 2


async def test_agents_that_write_one_table_or_an_older_one_disturb_nobody(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.agent._compare_s = 0.05
    rows = gateway.rows("a", "b")
    await gateway.offer(table(5, rows))
    await until(lambda: gateway.agent._agreed is not None)
    for generation in (5, 4):
        async with second_agent(gateway, table(generation, rows)) as other:
            await until(lambda other=other: other.counts.rounds > 5)
            assert other.counts.writes["slots"] == 0
    await gateway.offer(table(6, rows))
    await gateway.kill_haproxy()
    await gateway.start_haproxy()
    await until(lambda: gateway.agent.counts.restarts_seen == 1 and gateway.agent._agreed is not None)
    assert SAID not in caplog.text
