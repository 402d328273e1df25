"""Faults that last: a frozen or killed agent process, a source that is away for days, a pool that is restarted whole.

With real HAProxy and a load that checks every answer; which fault is held by which test is told in docs/routing-faults.md.
"""

import ast
import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from dataplane_processes import start
from gateway_toy import Toy
from gateway_world import POOL_KEY, Caller, Gateway, free_port, owner_in, table, until

import dataplane.gateway
from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from contract.table_sources.sources import HttpSource
from dataplane.edge import follow_tables
from dataplane.follow import Feed
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.held import read_held
from dataplane.gateway.main import log
from dataplane.gateway.runtime_api import RuntimeApi
from dataplane.gateway.tables import want_of
from policies.routing.table import ChurnBudget, Member, MemberState, Table, TableReason, plan_table

DAY_S = 86_400.0


def publish(path: Path, wanted: RoutingTable) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(wanted))
    part.replace(path)


async def holds(gateway: Gateway, wanted: RoutingTable) -> bool:
    """Whether all of a table is there: its generation is written before its slots."""
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        held = await read_held(api, gateway.config, users={})
        return held.generation == wanted.generation and dict(held.slots) == dict(want_of(wanted).slots)
    finally:
        await api.close()


async def test_traffic_goes_on_beside_an_agent_process_that_is_frozen_and_one_that_is_killed(
    make: Callable[..., Gateway], tmp_path: Path
) -> None:
    """Frozen, it follows again when it wakes; killed, HAProxy keeps the table and the next agent has nothing to write."""
    gateway = make(check_interval_ms=1000)
    for name in "abc":
        await gateway.toy(name)
    tables = [table(n, gateway.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2)]
    (tmp_path / "pool.key").write_bytes(POOL_KEY)
    publish(tmp_path / "table.json", tables[0])
    await gateway.start_haproxy()
    arguments = ["--table", str(tmp_path / "table.json"), "--pool-key", str(tmp_path / "pool.key"), "--bind", gateway.config.bind]
    arguments += ["--directory", str(gateway.config.directory), "--haproxy-socket", str(gateway.config.admin_socket)]
    agent = await start("dataplane.gateway.main", arguments, log=tmp_path / "agent.log")
    owners, in_force = [owner_in(each) for each in tables], [0]
    try:
        async with gateway.load(lambda key: {owners[i](key) for i in in_force}) as load:
            os.kill(agent.pid, signal.SIGSTOP)
            publish(tmp_path / "table.json", tables[1])
            await asyncio.sleep(0.4)
            assert await holds(gateway, tables[0])
            in_force.append(1)
            os.kill(agent.pid, signal.SIGCONT)
            await until(lambda: holds(gateway, tables[1]))
            in_force.remove(0)
            await agent.kill()
            await asyncio.sleep(0.2)
            gateway.start_agent()
            await gateway.offer(tables[1])
        assert (load.failed, load.wrong) == ([], [])
        assert gateway.agent.counts.writes["slots"] == gateway.agent.counts.writes["servers"] == 0
    finally:
        if agent.process.returncode is None:
            await agent.kill()


async def test_a_source_that_is_away_for_days_changes_nothing_and_is_obeyed_when_it_is_back(gateway: Gateway) -> None:
    now_s = [0.0]
    gateway.agent = GatewayAgent(gateway.config, monotonic_s=lambda: now_s[0])
    body, port, problems = [msgspec.json.encode(table(1, gateway.rows("a", "b", "c")))], free_port(), list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body[0]) + body[0])
        await writer.drain()
        writer.close()

    source = Feed(
        open_source=lambda: HttpSource(httpx.AsyncClient(), f"http://127.0.0.1:{port}/", poll_seconds=0.02, owned=True),
        on_problem=problems.append,
        on_heard=gateway.agent.tables.heard,
        rng=random.Random(1),
        longest_pause_s=0.1,
    )
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    following = asyncio.create_task(follow_tables(gateway.agent, source, log=log))
    await until(lambda: gateway.agent.generation == 1)
    await gateway.agent.reconcile()
    await gateway.agent.reconcile()
    server.close()
    await server.wait_closed()
    await until(lambda: problems)
    written = gateway.agent.counts.commands
    for _ in range(3):
        now_s[0] += DAY_S
        assert await gateway.agent.reconcile()
    assert gateway.agent.counts.commands == written
    assert gateway.agent.unready() == gateway.agent.unhealthy() == []
    assert (gateway.agent.view().tables.source_age_s or 0.0) > 2 * DAY_S
    assert (await gateway.ask("u")).status == 200
    body[0] = msgspec.json.encode(table(2, gateway.rows("a", "b")))
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        await until(lambda: gateway.agent.generation == 2)
        assert await gateway.agent.reconcile()
    following.cancel()
    assert {(await gateway.ask(f"u{i}")).me for i in range(20)} == {"a", "b"}


async def test_an_instance_that_dies_in_the_middle_of_an_answer_loses_that_answer_alone_and_it_is_not_asked_of_another(
    gateway: Gateway,
) -> None:
    """After the first byte nothing can be repeated: the caller sees the cut, and nobody else did the work twice."""
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    home = owner_in(wanted)(user_key(POOL_KEY, "u"))
    gateway.toys[home].half_body = True
    caller = Caller(gateway.port)
    with pytest.raises(EOFError):
        await caller.get({"x-user-id": "u"})
    assert sum(toy.served for toy in gateway.toys.values()) == 1
    gateway.toys[home].half_body = False
    assert (await gateway.ask("u")).status == 200


async def test_replicas_whose_clocks_are_years_apart_hold_the_same_table(make: Callable[..., Gateway]) -> None:
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("left", "right")}
    left, right = (make(name, peers=ports, local_peer=name) for name in ports)
    for name in "abc":
        right.toys[name] = await left.toy(name)
    skews_s = {"left": -1000 * DAY_S, "right": 1000 * DAY_S}
    one, two = (table(n, left.rows("a", "b", "c"), owners=[(s + n) % 3 for s in range(SLOTS)]) for n in (1, 2))
    for name, gateway in (("left", left), ("right", right)):
        skew_s = skews_s[name]
        gateway.agent = GatewayAgent(gateway.config, monotonic_s=lambda skew_s=skew_s: time.monotonic() + skew_s, compare_s=0.1)
        assert gateway.agent.offer(one)
        await gateway.start_haproxy()
        gateway.start_agent()
        await gateway.settle()
    await left.offer(two)
    await until(lambda: holds(right, two))  # its own agent has the older one, and leaves it
    await right.offer(two)
    for gateway in (left, right):
        await until(lambda gateway=gateway: holds(gateway, two))


def test_nothing_in_the_gateway_reads_the_clock_of_the_wall() -> None:
    """So no skew of it matters; HAProxy's tables do not expire either."""
    found = []
    folder = Path(dataplane.gateway.__file__).parent
    for path in sorted((*folder.glob("*.py"), *folder.parent.glob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"):
                    found.append(f"{path.name}: {name}")
    assert found == []


class Pool:
    """A pool whose table the routing policy makes, on a clock of the test."""

    def __init__(self, budget: ChurnBudget) -> None:
        self.budget = budget
        self.members: dict[str, Member] = {}
        self.addresses: dict[str, int] = {}
        self.now_ms = 0.0
        self.moved: list[tuple[float, int, int]] = []
        self._last: Table | None = None
        self._plan = plan_table(None, [], budget=budget, now_ms=0.0)

    def join(self, toy: Toy, uid: str, state: MemberState = MemberState.READY) -> None:
        self.members[uid] = Member(name=toy.name, uid=uid, state=state)
        self.addresses[uid] = toy.port

    def step(self, seconds: float) -> RoutingTable:
        """The next table, after so much time."""
        self.now_ms += 1000.0 * seconds
        plan = plan_table(
            self._last, list(self.members.values()), budget=self.budget, history=self._plan.history, now_ms=self.now_ms
        )
        self._last, self._plan = plan.table, plan
        self.moved.append((self.now_ms, plan.moved_slots - plan.forced_slots, plan.forced_slots))
        return RoutingTable(
            generation=plan.table.generation,
            instances=[
                TableInstance(
                    name=owner.name,
                    uid=owner.uid,
                    address=f"http://127.0.0.1:{self.addresses[owner.uid]}",
                    weight_percent=owner.weight_percent,
                    state=InstanceState.DRAINING if owner.draining else InstanceState.READY,
                )
                for owner in plan.table.owners
            ],
            slots=pack_slots(plan.table.slots),
        )

    @property
    def reason(self) -> TableReason:
        return self._plan.reason

    @property
    def slots(self) -> dict[str, int]:
        assert self._last is not None
        counts = dict.fromkeys((owner.uid for owner in self._last.owners), 0)
        for slot in self._last.slots:
            counts[self._last.owners[slot].uid] += 1
        return counts


async def test_a_rolling_restart_of_the_whole_pool_exhausts_the_churn_budget_and_costs_no_answer(gateway: Gateway) -> None:
    """Faster than the budget allows: slots of those that leave move at once, all else waits, and in the end all are level."""
    pool = Pool(ChurnBudget(max_moved_percent=10.0, window_ms=60_000.0))
    old = {uid: gateway.toys[name] for uid, name in (("u1", "a"), ("u2", "b"), ("u3", "c"))}
    for uid, toy in old.items():
        pool.join(toy, uid)
    wanted = [pool.step(0.0)]
    await gateway.offer(wanted[0])
    deferred = 0

    def allowed(key: str) -> set[str]:
        return {owner_in(each)(key) for each in wanted}

    async def go_on(seconds: float) -> None:
        nonlocal deferred
        wanted.append(pool.step(seconds))
        deferred += pool.reason is TableReason.DEFERRED
        if wanted[-1].generation > wanted[0].generation:
            await gateway.offer(wanted[-1])
        del wanted[0]

    async with gateway.load(allowed, callers=3) as load:
        for uid in old:  # a successor comes, its predecessor drains and goes
            successor = await gateway.toy(f"new{uid}")
            pool.join(successor, f"new-{uid}")
            await go_on(2.0)
            pool.members[uid] = msgspec.structs.replace(pool.members[uid], state=MemberState.DRAINING)
            await go_on(2.0)
            del pool.members[uid]
            await go_on(2.0)
        assert deferred, "the budget was never exhausted"
        for _ in range(20):
            await go_on(30.0)
    assert (load.failed, load.wrong) == ([], [])
    for end, _, _ in pool.moved:
        inside = [(free, forced) for at, free, forced in pool.moved if end - 60_000.0 < at <= end]
        assert sum(free for free, _ in inside) <= 0.10 * SLOTS, "voluntary moves above the budget of a window"
    assert pool.reason is TableReason.UNCHANGED
    assert max(pool.slots.values()) <= 1.1 * SLOTS / 3 + 1
    assert set(pool.slots) == {"new-u1", "new-u2", "new-u3"}
