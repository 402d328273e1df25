"""A value that changes: the configuration is written anew, HAProxy is reloaded on it, and no request is lost on the way."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from gateway_world import POOL_KEY, Gateway, table, until

from contract.keys import user_key
from contract.table import TableLimits
from dataplane.edge import ConfigError
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.main import follow_key

OTHER_KEY = b"another key of the pool"


async def started(make: Callable[..., Gateway], *, master: bool = True) -> Gateway:
    gateway = make()
    if master:
        gateway.config = replace(gateway.config, master_socket=gateway.config.directory / "m.sock")
        gateway.agent = GatewayAgent(gateway.config, monotonic_s=gateway.agent._monotonic_s)
    for name in "abc":
        await gateway.toy(name)
    gateway.agent.offer(table(1, gateway.rows("a", "b", "c")))
    await gateway.start_haproxy("-W", "-db", "-S", f"{gateway.config.directory / 'm.sock'},mode,600")
    gateway.start_agent()
    await gateway.settle()
    return gateway


async def test_a_pool_key_that_changes_in_its_file_reaches_haproxy_and_costs_no_answer(
    make: Callable[..., Gateway], tmp_path: Path
) -> None:
    gateway = await started(make)
    secret = tmp_path / "pool.key"
    secret.write_bytes(POOL_KEY)
    following = asyncio.create_task(follow_key(gateway.agent, secret, period_s=0.02))
    keys = {user: {user_key(key, user) for key in (POOL_KEY, OTHER_KEY)} for user in (f"user-{i}" for i in range(400))}
    async with gateway.load(lambda key: {"a", "b", "c"}, keys=keys) as load:
        await asyncio.sleep(0.1)
        secret.write_bytes(b"short")  # half of a secret changes nothing
        await asyncio.sleep(0.1)
        secret.write_bytes(OTHER_KEY + b"\n")
        await until(lambda: gateway.agent.counts.restarts_seen == 1 and not gateway.agent.view().haproxy_outdated)
        await asyncio.sleep(0.1)
    following.cancel()
    assert (load.failed, load.wrong) == ([], [])
    assert gateway.agent.counts.reloads == 1
    assert (await gateway.ask("u")).seen["x-gr-user-key"] == user_key(OTHER_KEY, "u")


async def test_an_agent_that_starts_with_another_flag_reloads_the_haproxy_beside_it_once(make: Callable[..., Gateway]) -> None:
    gateway = await started(make)
    await gateway.stop_agent()
    gateway.config = replace(gateway.config, key_id="k2")
    gateway.agent = GatewayAgent(gateway.config, monotonic_s=gateway.agent._monotonic_s)
    gateway.start_agent()
    await asyncio.sleep(0.25)
    assert gateway.agent.counts.reloads == 0, "before it has a table it would make HAProxy read the file of its predecessor"
    assert gateway.agent.offer(table(1, gateway.rows("a", "b", "c")))
    await until(lambda: gateway.agent.counts.restarts_seen == 1 and not gateway.agent.view().haproxy_outdated)
    assert gateway.agent.counts.reloads == 1
    assert (await gateway.ask("u")).seen["x-gr-key-id"] == "k2"


async def test_without_a_master_the_agent_says_that_haproxy_is_outdated_and_goes_on(make: Callable[..., Gateway]) -> None:
    gateway = await started(make, master=False)
    gateway.agent.reconfigure(replace(gateway.config, key_id="k2"))
    await until(lambda: gateway.agent.view().haproxy_outdated)
    await gateway.offer(table(2, gateway.rows("a", "b")))
    assert gateway.agent.counts.reloads == 0
    assert "x-gr-key-id" not in (await gateway.ask("u")).seen


async def test_a_configuration_that_is_none_is_refused_and_the_one_before_stays(make: Callable[..., Gateway]) -> None:
    gateway = make()
    gateway.agent.write_files()
    before = (gateway.config.directory / "haproxy.cfg").read_text()
    with pytest.raises(ConfigError):
        gateway.agent.reconfigure(replace(gateway.config, pool_key=b"short"))
    assert gateway.agent.config == gateway.config
    assert (gateway.config.directory / "haproxy.cfg").read_text() == before


async def test_a_new_generation_brings_another_bound_and_key_header_to_haproxy_and_costs_no_answer(
    make: Callable[..., Gateway],
) -> None:
    gateway = await started(make)
    gateway.agent.set_users({user_key(POOL_KEY, f"hot{i}"): "uid-a" for i in range(20)})
    await gateway.settle()
    config = gateway.config.directory / "haproxy.cfg"
    assert "hash-balance-factor 200\n" in config.read_text()
    second = msgspec.structs.replace(
        table(2, gateway.rows("a", "b", "c")), limits=TableLimits(bounded_load_percent=125, bounded_load_floor=2, hot_users_max=5)
    )
    await gateway.offer(second)  # nothing of this stands in HAProxy's file
    third = msgspec.structs.replace(
        table(3, gateway.rows("a", "b", "c")), limits=TableLimits(bounded_load_percent=300, key_header="x-member-key")
    )
    async with gateway.load(lambda key: {"a", "b", "c"}, key_headers={"x-gr-user-key", "x-member-key"}) as load:
        await asyncio.sleep(0.1)
        assert gateway.agent.counts.reloads == 0
        await gateway.offer(third)
        await until(lambda: gateway.agent.counts.restarts_seen == 1 and not gateway.agent.view().haproxy_outdated)
        await asyncio.sleep(0.1)
    assert (load.failed, load.wrong) == ([], [])
    assert gateway.agent.counts.reloads == 1
    assert "hash-balance-factor 300\n" in config.read_text()
    key = user_key(POOL_KEY, "hot1")
    named = await gateway.ask("hot1", x_gr_user_key="0" * 32)
    assert (named.me, named.seen["x-member-key"], "x-gr-user-key" in named.seen) == ("a", key, False)
    assert (await gateway.ask("", x_member_key=key)).me == "a", "a key that the caller has made comes in the same header"
    await gateway.stop_agent()  # as if it were killed: HAProxy goes on by what the last generation said
    assert (await gateway.ask("hot1")).seen["x-member-key"] == key
    gateway.agent.offer(table(9, []))
    assert "hash-balance-factor 300\n" in config.read_text(), "a tombstone says nothing of it"
