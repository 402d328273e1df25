"""Instances, HAProxy and agent come, go and break under a small load; every answer is checked, failed and wrong are counted."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_world import POOL_KEY, Caller, Gateway, asked, has_servers, held_slots, holds, owner_in, row, table, until

from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable
from dataplane.gateway.runtime_api import RuntimeApi
from dataplane.gateway.servers import server_id
from dataplane.gateway.tables import GENERATION_KEY, want_of


class Allowed:
    """Who may answer: the owner in the table in force, and for a while also the owner in the one before."""

    def __init__(self, wanted: RoutingTable) -> None:
        self._tables = [wanted]
        self.anybody: set[str] = set()

    def also(self, wanted: RoutingTable) -> None:
        self._tables.append(wanted)

    def only_last(self) -> None:
        del self._tables[:-1]

    def __call__(self, key: str) -> set[str]:
        return {owner_in(wanted)(key) for wanted in self._tables} | self.anybody


async def test_an_instance_comes_and_another_drains_and_goes_without_a_failed_or_wrong_answer(gateway: Gateway) -> None:
    one = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(one)
    allowed = Allowed(one)
    gateway.toys["b"].delay_s = 0.05
    async with gateway.load(allowed) as load:
        await asyncio.sleep(0.2)
        await gateway.toy("d")
        two = table(2, gateway.rows("a", "b", "c", "d"))
        allowed.also(two)
        await gateway.offer(two)
        allowed.only_last()
        await asyncio.sleep(0.2)
        three = table(3, [*gateway.rows("a", "c", "d"), row("b", gateway.toys["b"].port, state=InstanceState.DRAINING)])
        allowed.also(three)
        await gateway.offer(three)
        allowed.only_last()
        await asyncio.sleep(0.2)
        four = table(4, gateway.rows("a", "c", "d"))
        allowed.also(four)
        await gateway.offer(four)
        await until(lambda: has_servers(gateway, 3))
        await gateway.toys["b"].kill()  # after it left HAProxy nobody misses it
        await asyncio.sleep(0.2)
    assert (load.failed, load.wrong) == ([], [])
    assert load.sent > 20


async def test_killed_instances_lose_no_request_and_the_others_keep_their_users(gateway: Gateway) -> None:
    """A real process, kill -9, while requests are in flight on it; no table follows."""
    victim = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).parent / "gateway_toy.py"), "v", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert victim.stdout is not None
        port = int(await victim.stdout.readline())
        wanted = table(1, [*gateway.rows("a", "b", "c"), row("v", port)])
        await gateway.offer(wanted)
        owner, dead = owner_in(wanted), False

        def allowed(key: str) -> set[str]:
            return {"a", "b", "c", "v"} if dead and owner(key) == "v" else {owner(key)}

        async with gateway.load(allowed) as load:
            await asyncio.sleep(0.3)
            dead = True
            victim.kill()
            await victim.wait()
            await asyncio.sleep(1.0)
    finally:
        if victim.returncode is None:
            victim.kill()
            await victim.wait()
    assert (load.failed, load.wrong) == ([], [])


@pytest.mark.parametrize("instances", [2, 3])
async def test_the_survivors_of_a_small_fleet_take_the_users_of_a_dead_one_whatever_they_carry_already(
    make: Callable[..., Gateway], instances: int
) -> None:
    """Nobody notices the death but the requests: the bound of the last resort must not send a retry back to the dead one."""
    gateway = make(check_interval_ms=60_000)
    names = "abc"[:instances]
    for name in names:
        await gateway.toy(name, delay_s=0.01)
    await gateway.start_haproxy()
    gateway.start_agent()
    wanted = table(1, gateway.rows(*names))
    await gateway.offer(wanted)
    owner = owner_in(wanted)
    async with gateway.load(lambda key: set(names) if owner(key) == "b" else {owner(key)}, callers=8) as load:
        for _ in range(6):
            await gateway.toys["b"].kill()
            await asyncio.sleep(0.15)
            await gateway.toys["b"].start()
            await asked(gateway, f"set server gr_fleet/s{server_id('b', 'uid-b')} health up")
            await asyncio.sleep(0.1)
    assert (load.failed, load.wrong) == ([], [])


async def test_a_retry_goes_to_another_instance_and_there_is_one_only(gateway: Gateway) -> None:
    """All instances hang up before their first byte: each request meets two different ones, then it is given up."""
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    for toy in gateway.toys.values():
        toy.drop_first_byte = True
    for number in range(20):
        await gateway.ask(f"u{number}", x_request=str(number))
    for number in range(20):
        met = [toy.name for toy in gateway.toys.values() for seen in toy.attempts if seen == str(number)]
        assert len(met) == len(set(met)) <= 2, f"request {number} met {met}"
    assert sum(len(toy.attempts) for toy in gateway.toys.values()) > 20


async def test_with_every_instance_down_the_answer_is_503_and_comes_at_once_after_the_checks_saw_it(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    for toy in gateway.toys.values():
        await toy.kill()

    async def down() -> bool:
        states = (await asked(gateway, "show stat gr_fleet 4 -1")).splitlines()[1:]
        return bool(states) and all(",DOWN" in line for line in states if line)

    await until(down)
    answer = await asyncio.wait_for(gateway.ask("u"), 0.9)  # less than any timeout of the configuration
    assert answer.status == 503


async def test_an_instance_that_flaps_costs_no_answer(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    owner = owner_in(wanted)

    def allowed(key: str) -> set[str]:
        return {"a", "b", "c"} if owner(key) == "b" else {owner(key)}

    async with gateway.load(allowed) as load:
        for _ in range(6):
            await gateway.toys["b"].kill()
            await asyncio.sleep(0.12)
            await gateway.toys["b"].start()
            await asyncio.sleep(0.12)
    assert (load.failed, load.wrong) == ([], [])


async def test_a_haproxy_that_is_killed_and_started_again_has_servers_slots_and_hot_users_back(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    gateway.agent.set_users({user_key(POOL_KEY, f"hot{i}"): "uid-a" for i in range(500)})
    await gateway.settle()
    await gateway.kill_haproxy()
    await gateway.start_haproxy()
    await until(lambda: gateway.agent.counts.restarts_seen == 1 and holds(gateway, wanted))
    for i in range(20):
        assert (await gateway.ask(f"hot{i}")).me == "a"
        assert (await gateway.ask(f"u{i}")).me == owner_in(wanted)(user_key(POOL_KEY, f"u{i}"))


async def test_a_haproxy_that_starts_again_while_an_instance_drains_comes_to_rest(gateway: Gateway) -> None:
    """The file says `disabled` of the draining one, and HAProxy remembers for ever that it once did."""
    leaving = row("a", gateway.toys["a"].port, state=InstanceState.DRAINING)
    await gateway.offer(table(1, [leaving, *gateway.rows("b", "c")]))
    await gateway.kill_haproxy()
    await gateway.start_haproxy()
    await until(lambda: gateway.agent.counts.restarts_seen == 1)
    await gateway.stop_agent()
    assert await gateway.agent.reconcile()
    written = gateway.agent.counts.commands
    assert await gateway.agent.reconcile()
    assert gateway.agent.counts.commands == written
    assert (await gateway.ask("u", x_gr_instance="a")).me == "a"
    assert {(await gateway.ask(f"u{i}")).me for i in range(20)} == {"b", "c"}
    ready = table(2, gateway.rows("a", "b", "c"))
    gateway.start_agent()
    await gateway.offer(ready)
    assert {(await gateway.ask(f"u{i}")).me for i in range(40)} == {"a", "b", "c"}


async def test_a_reload_under_load_loses_nothing_keeps_the_tables_and_the_agent_follows_to_the_new_process(
    make: Callable[..., Gateway],
) -> None:
    gateway = make()
    for name in "abc":
        await gateway.toy(name)
    one = table(1, gateway.rows("a", "b", "c"))
    gateway.agent.offer(one)
    await gateway.start_haproxy("-W")
    gateway.start_agent()
    await gateway.settle()
    allowed = Allowed(one)
    async with gateway.load(allowed) as load:
        for _ in range(3):
            await asyncio.sleep(0.2)
            allowed.anybody = {"a", "b", "c"}  # the new process serves by its hash until the old one has taught it
            seen = gateway.agent.counts.restarts_seen
            assert gateway.process is not None
            gateway.process.send_signal(signal.SIGUSR2)
            await until(lambda seen=seen: gateway.agent.counts.restarts_seen > seen)
            await until(lambda: holds(gateway, one))
            allowed.anybody = set()
        await asyncio.sleep(0.2)
    assert (load.failed, load.wrong) == ([], [])


async def test_a_push_that_breaks_half_way_is_finished_by_the_next_agent(gateway: Gateway) -> None:
    """The connection is cut after some hundred slots; what HAProxy holds is a mixture until somebody reads it again."""
    one, two = (table(n, gateway.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2))
    await gateway.offer(one)
    await gateway.stop_agent()
    api = RuntimeApi(gateway.config.admin_socket)
    want = want_of(two)
    mixed = Allowed(one)
    mixed.also(two)
    written = [(GENERATION_KEY, 2), *list(want.slots.items())[:1500]]  # the mark goes first, then as many slots as came through
    await api.ask_all([f"set table gr_slots key {key} data.gpt0 {value}" for key, value in written])
    await api.close()
    async with gateway.load(mixed) as load:
        gateway.agent = type(gateway.agent)(gateway.config, monotonic_s=gateway.agent._monotonic_s)
        gateway.start_agent()
        await gateway.offer(two)
    assert (load.failed, load.wrong) == ([], [])
    assert await held_slots(gateway) == dict(want.slots)


async def test_traffic_goes_on_while_the_agent_is_gone_and_the_next_one_writes_nothing_that_is_already_there(
    gateway: Gateway,
) -> None:
    one = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(one)
    await gateway.stop_agent()
    async with gateway.load(Allowed(one)) as load:
        await asyncio.sleep(0.5)
        gateway.agent = type(gateway.agent)(gateway.config, monotonic_s=gateway.agent._monotonic_s)
        gateway.start_agent()
        await gateway.offer(one)
        await asyncio.sleep(0.2)
    assert (load.failed, load.wrong) == ([], [])
    assert gateway.agent.counts.commands == 0


async def test_a_drain_that_never_ends_is_cut_at_its_deadline(make: Callable[..., Gateway]) -> None:
    gateway = make(drain_seconds=1)
    await gateway.toy("a", delay_s=60.0)
    await gateway.toy("b")
    await gateway.start_haproxy()
    gateway.start_agent()
    await gateway.offer(table(1, gateway.rows("a")))
    stuck = asyncio.create_task(gateway.ask("u"))
    await until(lambda: len(gateway.toys["a"].attempts) == 1)
    await gateway.offer(table(2, gateway.rows("b")))
    await until(lambda: has_servers(gateway, 1))
    await asyncio.gather(stuck, return_exceptions=True)
    assert (await gateway.ask("u")).me == "b"


@pytest.mark.slow
async def test_a_thousand_instances_are_added_live_and_reached_also_after_a_restart(make: Callable[..., Gateway]) -> None:
    gateway = make(check_interval_ms=60_000)
    port = (await gateway.toy("a")).port
    await gateway.start_haproxy()
    gateway.start_agent()
    wanted = table(1, [row(f"i{n}", port) for n in range(1000)])
    await gateway.offer(wanted)
    caller = Caller(gateway.port)
    seen, owner = set(), owner_in(wanted)
    for n in range(1000):
        key = user_key(POOL_KEY, f"u{n}")
        answer = await caller.get({"x-gr-user-key": key})
        assert answer.instance == owner(key)
        seen.add(answer.instance)
    caller.close()
    assert len(seen) > 500
    await gateway.kill_haproxy()
    await gateway.start_haproxy()  # the file has all of them too
    await until(lambda: gateway.agent.counts.restarts_seen == 1 and holds(gateway, wanted))
    assert (await gateway.ask("u1")).instance == owner_in(wanted)(user_key(POOL_KEY, "u1"))


async def test_the_load_of_these_tests_notices_an_answer_of_the_wrong_instance(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    async with gateway.load(lambda key: {"a"}) as load:
        await asyncio.sleep(0.2)
    assert load.wrong
    assert not load.failed


@pytest.mark.parametrize("frozen_s", [0.5])
async def test_a_frozen_haproxy_is_waited_for_and_then_brought_up_to_date(gateway: Gateway, frozen_s: float) -> None:
    one, two = (table(n, gateway.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2))
    await gateway.offer(one)
    assert gateway.process is not None
    os.kill(gateway.process.pid, signal.SIGSTOP)
    try:
        gateway.agent.offer(two)
        await asyncio.sleep(frozen_s)
    finally:
        os.kill(gateway.process.pid, signal.SIGCONT)
    await until(lambda: holds(gateway, two))
