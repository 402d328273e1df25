"""Which table counts: generations, tombstones, pools made anew, and replicas that hold different ones."""

import asyncio
from collections.abc import Callable

from gateway_toy import Toy
from gateway_world import POOL_KEY, Gateway, free_port, has_servers, held_slots, holds, owner_in, row, table, until

from contract.keys import SLOTS, user_key
from dataplane.gateway.tables import want_of


async def test_an_agent_with_an_older_table_than_haproxy_holds_changes_nothing(gateway: Gateway) -> None:
    one, two = (table(n, gateway.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2))
    await gateway.offer(two)
    assert not gateway.agent.offer(one)
    await gateway.stop_agent()
    late = type(gateway.agent)(gateway.config, monotonic_s=gateway.agent._monotonic_s)
    assert late.offer(one)
    assert not await late.reconcile()
    assert late.counts.commands == 0
    assert await held_slots(gateway) == dict(want_of(two).slots)


async def test_a_tombstone_empties_the_gateway_and_a_pool_made_anew_begins_at_one(gateway: Gateway) -> None:
    await gateway.offer(table(7, gateway.rows("a", "b", "c")))
    await gateway.offer(table(8, []))
    await until(lambda: has_servers(gateway, 0))
    assert (await gateway.ask("u")).status == 503
    await gateway.offer(table(1, [row("a", gateway.toys["a"].port, uid="another")]))
    assert (await gateway.ask("u")).me == "a"


async def test_a_successor_of_the_same_name_does_not_inherit_what_the_first_held(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    key = user_key(POOL_KEY, "hot")
    gateway.agent.set_users({key: "uid-a"})
    await gateway.settle()
    successor = await Toy("a").start()
    try:
        two = table(
            2, [row("a", successor.port, uid="second"), *gateway.rows("b", "c")], owners=[1 + s % 2 for s in range(SLOTS)]
        )
        await gateway.offer(two)
        assert (await gateway.ask("hot")).me == owner_in(two)(key)
        assert (await gateway.ask("u", x_gr_instance="a")).me == "a"
        assert successor.served == 1
    finally:
        await successor.kill()


async def test_two_replicas_that_disagree_converge_on_the_later_table(make: Callable[..., Gateway]) -> None:
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("left", "right")}
    left, right = (make(name, peers=ports, local_peer=name) for name in ports)
    for name in "abc":
        right.toys[name] = await left.toy(name)
    one, two = (table(n, left.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2))
    for gateway in (left, right):
        assert gateway.agent.offer(one)
        await gateway.start_haproxy()
        gateway.start_agent()
        await gateway.settle()
    await left.offer(two)
    await until(lambda: holds(right, two))  # its own agent still has the first table, and keeps its hands off
    await asyncio.sleep(0.2)
    for gateway in (
        left,
        right,
    ):  # entries of the first table that were on their way go back to the second at the next comparison
        await until(lambda gateway=gateway: holds(gateway, two))
    await right.offer(two)
    assert await held_slots(right) == dict(want_of(two).slots)


async def test_a_replica_without_an_agent_learns_the_tables_from_its_peer(make: Callable[..., Gateway]) -> None:
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("left", "right")}
    left, right = (make(name, peers=ports, local_peer=name) for name in ports)
    for name in "abc":
        right.toys[name] = await left.toy(name)
    one = table(1, left.rows("a", "b", "c"))
    await left.start_haproxy()
    left.start_agent()
    await left.offer(one)
    right.agent.offer(one)
    await right.start_haproxy()
    await until(lambda: holds(right, one))
    assert (await right.ask("u")).me == owner_in(one)(user_key(POOL_KEY, "u"))


async def test_a_table_made_anew_with_a_lower_generation_is_obeyed_and_one_of_the_same_object_is_not(gateway: Gateway) -> None:
    one, two = (table(n, gateway.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2))
    assert gateway.agent.offer(two, uid="first")
    await gateway.settle()
    assert not gateway.agent.offer(one, uid="first")
    assert gateway.agent.offer(one, uid="second")
    await gateway.settle()
    assert await held_slots(gateway) == dict(want_of(one).slots)
