"""A gateway whose source of tables is away at its start serves by the table that the start before kept, under today's flags."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from gateway_world import Gateway, free_port, make_gateway, owner_in, row, table

from contract.keys import SLOTS, user_key
from contract.table import TableLimits
from dataplane.follow import Published
from dataplane.gateway import main
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.kept import TABLE_FILE, kept_in
from dataplane.gateway.resolve import HostBook
from testbed.debian import Tree


class Away:
    """A source of tables that says nothing."""

    async def tables(self) -> AsyncIterator[Published]:
        await asyncio.Event().wait()
        yield Published(table(1, []))  # pragma: no cover  # never comes; makes this a generator


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_FIRST_TABLE_S", 0.01)


def _next(gateway: Gateway, **changes: object) -> GatewayAgent:
    """The agent of the next start, with other flags."""
    return GatewayAgent(replace(gateway.config, **changes), monotonic_s=time.monotonic, source="there")  # type: ignore[arg-type]  # the test's own


def _text(gateway: Gateway) -> str:
    return (gateway.config.directory / "haproxy.cfg").read_text()


@pytest.fixture
def gateway(make: Callable[..., Gateway]) -> Gateway:
    made = make()
    made.agent = _next(made)
    return made


async def test_users_go_where_the_kept_table_says_on_the_new_address_and_a_later_table_is_obeyed(
    haproxy: Tree, short_folder: Path
) -> None:
    gateway = make_gateway(haproxy, short_folder / "kept")
    for name in "abc":
        await gateway.toy(name)
    before = table(5, gateway.rows("a", "b", "c"))
    _next(gateway).offer(before, uid="u")
    gateway.port = free_port()
    gateway.agent = agent = _next(gateway, bind=f"127.0.0.1:{gateway.port}")
    await main.first_files(agent, Away())
    try:
        await gateway.start_haproxy()
        gateway.start_agent()
        await gateway.settle()
        users = [f"user-{i}" for i in range(30)]
        wanted = [owner_in(before)(user_key(gateway.config.pool_key, user)) for user in users]
        assert [(await gateway.ask(user)).me for user in users] == wanted
        assert agent.unready() == []
        assert not agent.offer(table(4, gateway.rows("b")), uid="u")
        assert agent.offer(table(6, gateway.rows("b")), uid="u")
        await gateway.settle()
        assert (await gateway.ask("user-1")).me == "b"
    finally:
        await gateway.stop()


async def test_what_the_policy_said_and_the_addresses_of_names_are_kept_too(gateway: Gateway) -> None:
    named = table(2, [msgspec.structs.replace(row("a", 81), address="http://one.example:81")])
    gateway.agent.set_addresses({"one.example": "127.0.0.9"})
    gateway.agent.offer(msgspec.structs.replace(named, limits=TableLimits(key_header="x-who")))
    agent = _next(gateway, max_connections=77)
    await main.first_files(agent, Away())
    assert "127.0.0.9:81" in _text(gateway)
    assert "x-who" in _text(gateway)
    assert "maxconn 77" in _text(gateway)

    async def nobody(host: str) -> list[str]:
        raise OSError("no name server")

    book = HostBook(nobody, on_problem=print, known=agent.addresses)
    assert await book.refresh(agent.hosts) == {"one.example": "127.0.0.9"}


async def test_a_pool_that_was_deleted_stays_so(gateway: Gateway) -> None:
    gateway.agent.offer(table(2, [row("a", 81)]))
    gateway.agent.offer(table(3, [], owners=[0xFFFF] * SLOTS))
    agent = _next(gateway)
    await main.first_files(agent, Away())
    assert "127.0.0.1:81" not in _text(gateway)
    assert (agent.generation, agent.table) == (-1, table(3, [], owners=[0xFFFF] * SLOTS))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"table": {}}', b"\xff" * 100, b"x" * (5 * 2**20)])
async def test_a_file_that_holds_no_table_leaves_what_haproxy_had(gateway: Gateway, content: bytes) -> None:
    gateway.agent.offer(table(2, [row("a", 81)]))
    (gateway.config.directory / TABLE_FILE).write_bytes(content)
    before = _text(gateway)
    agent = _next(gateway, max_connections=77)
    await main.first_files(agent, Away())
    assert (agent.table, _text(gateway)) == (None, before)


async def test_a_table_whose_slots_are_broken_leaves_what_haproxy_had(gateway: Gateway) -> None:
    gateway.agent.offer(table(2, [row("a", 81)]))
    path = gateway.config.directory / TABLE_FILE
    path.write_bytes(path.read_bytes().replace(b'"slots":"', b'"slots":"!'))
    agent = _next(gateway)
    await main.first_files(agent, Away())
    assert agent.table is None
    assert "127.0.0.1:81" in _text(gateway)


async def test_the_table_of_another_source_is_not_taken(gateway: Gateway) -> None:
    gateway.agent.offer(table(2, [row("a", 81)]))
    assert kept_in(gateway.config.directory, source="there") is not None
    assert kept_in(gateway.config.directory, source="elsewhere") is None


async def test_an_agent_without_a_table_does_not_write_over_the_one_that_was_kept(gateway: Gateway) -> None:
    gateway.agent.offer(table(2, [row("a", 81)]))
    _next(gateway).write_files()
    kept = kept_in(gateway.config.directory, source="there")
    assert kept is not None
    assert kept.table.generation == 2
    assert (gateway.config.directory / TABLE_FILE).stat().st_mode & 0o077 == 0
