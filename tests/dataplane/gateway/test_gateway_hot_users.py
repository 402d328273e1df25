"""Hot users end to end: real engines, real agents, a real HAProxy, and `grfleet-gateway` between them."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio
from dataplane_processes import Running, start
from gateway_world import POOL_KEY, Caller, Gateway, free_port, owner_in, row, table

from contract.engine import RankRequest
from contract.engine_client import EngineClient
from contract.keys import user_key
from contract.residency import OVERRIDES_PATH, OverrideTable, unpack_overrides
from contract.table import RoutingTable
from dataplane.gateway.agent import GatewayAgent
from testbed.debian import Tree

NAMES = ("a", "b")


@dataclass
class Fleet:
    """Two engines with their agents, and the gateway in front of them."""

    folder: Path
    ports: dict[str, int]
    table: RoutingTable
    engines: dict[str, Running] = field(default_factory=dict)
    others: list[Running] = field(default_factory=list)
    agents: dict[str, str] = field(default_factory=dict)
    gateway: Running | None = None
    sent: int = 0

    async def start_engine(self, name: str) -> None:
        arguments = ["--listen", f"unix:{self.folder}/{name}.sock", "--serve", f"http://127.0.0.1:{self.ports[name]}"]
        arguments += ["--rows-one-in", "64"]
        self.engines[name] = await start("engines.reference.main", arguments, log=self.folder / f"{name}.log")

    async def start_agent(self, name: str) -> None:
        arguments = [
            "--engine",
            f"unix:{self.folder}/{name}.sock",
            "--insecure-unsigned-intents",
            "--instance-uid",
            f"uid-{name}",
        ]
        agent = await start("dataplane.agent.main", arguments, log=self.folder / f"{name}.agent.log")
        self.others.append(agent)
        self.agents[name] = agent.ready["listen"]

    async def start_gateway(self, haproxy: Tree) -> None:
        (self.folder / "table.json").write_bytes(msgspec.json.encode(self.table))
        (self.folder / "pool.key").write_bytes(POOL_KEY)
        arguments = ["--table", f"{self.folder}/table.json", "--pool-key", f"{self.folder}/pool.key"]
        arguments += ["--directory", f"{self.folder}/g", "--run-haproxy", str(haproxy.program("haproxy"))]
        arguments += ["--agents", f"{self.folder}/agents.json", "--agents-seconds", "0.2", "--health-bind", "127.0.0.1:0"]
        self.gateway = await start("dataplane.gateway.main", arguments, log=self.folder / "gateway.log")

    async def rank(self, name: str, key: str) -> None:
        """Serve a user at an instance without asking the gateway: its state lies there now."""
        self.sent += 1
        request = RankRequest(request_id=f"r{self.sent}", user_key=key, model_version="1", history_tokens=2000, candidates=10)
        async with EngineClient(f"unix:{self.folder}/{name}.sock") as client:
            await client.rank(request)

    async def answered_by(self, key: str) -> str:
        assert self.gateway is not None
        caller = Caller(int(self.gateway.ready["bind"].rpartition(":")[2]))
        answer = await caller.get({"x-gr-user-key": key})
        caller.close()
        return answer.instance

    async def figure(self, name: str) -> float:
        found = re.search(rf"^grfleet_gateway_{re.escape(name)} (\S+)$", await self.ask("/metrics"), re.M)
        assert found, name
        return float(found[1])

    async def ask(self, path: str) -> str:
        assert self.gateway is not None
        async with httpx.AsyncClient(base_url=self.gateway.ready["health"]) as client:
            return (await client.get(path)).text

    async def overrides(self) -> dict[str, str]:
        return unpack_overrides(msgspec.json.decode(await self.ask(OVERRIDES_PATH), type=OverrideTable))

    async def stop(self) -> None:
        for running in (self.gateway, *self.others, *self.engines.values()):
            if running is not None and running.process.returncode is None:
                await running.terminate()


async def until(seen: Callable[[], Awaitable[bool]], what: str, *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not await seen():
        assert time.monotonic() < deadline, f"{what}: not seen in {seconds} s"
        await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def fleet(haproxy: Tree, short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setenv("LD_LIBRARY_PATH", haproxy.environment()["LD_LIBRARY_PATH"])
    ports = {name: free_port() for name in NAMES}
    fleet = Fleet(short_folder, ports, table(1, [row(name, ports[name]) for name in NAMES]))
    try:
        both = [(fleet.start_engine(name), fleet.start_agent(name)) for name in NAMES]
        await asyncio.gather(fleet.start_gateway(haproxy), *(each for pair in both for each in pair))
        (short_folder / "agents.json").write_text(json.dumps(fleet.agents))
        yield fleet
    finally:
        await fleet.stop()


async def test_a_user_follows_its_state_and_not_the_name_of_the_instance_that_had_it(fleet: Fleet) -> None:
    key = next(key for key in (user_key(POOL_KEY, f"u-{n}") for n in range(99)) if owner_in(fleet.table)(key) == "a")

    async def goes_to(name: str) -> bool:
        return await fleet.answered_by(key) == name

    async def served_by_b_it_goes_there() -> bool:
        await fleet.rank("b", key)  # again and again: an agent that has just started has to see what a token costs
        return await goes_to("b")

    async def overrides(number: float) -> bool:
        return await fleet.figure("overrides") == number

    await until(lambda: goes_to("a"), "a, the owner of the slot")  # the instances came up after HAProxy
    # Moved by hand: its state lies on b, so it is sent there, and clients are told.
    await until(served_by_b_it_goes_there, "the override")
    assert await fleet.overrides() == {key: "uid-b"}
    # kill -9: requests go to the owner of the slot, and the override is withdrawn.
    await fleet.engines["b"].kill()
    await until(lambda: goes_to("a"), "the way back")
    await until(lambda: overrides(0), "the withdrawal")
    assert await fleet.overrides() == {}
    # A successor of the same name and uid inherits nothing.
    await fleet.start_engine("b")
    await fleet.rank("b", user_key(POOL_KEY, "somebody else"))
    before = await fleet.figure('reports_total{result="taken"}')

    async def reports_went_on() -> bool:
        return await fleet.figure('reports_total{result="taken"}') >= before + 4 and await fleet.figure("silent_instances") == 0

    await until(reports_went_on, "reports of the successor")
    assert await goes_to("a")
    assert key not in await fleet.overrides()
    assert await fleet.figure('reports_total{result="restarted"}') == 1
    # It is as good as any other once the state is there.
    await until(served_by_b_it_goes_there, "the override to the successor")
    # Reports that are missing move nobody.
    for agent in fleet.others:
        await agent.kill()
    missing = await fleet.figure('reports_total{result="missing"}')

    async def agents_are_missed() -> bool:
        return await fleet.figure('reports_total{result="missing"}') >= missing + 4

    await until(agents_are_missed, "missing reports")
    assert await goes_to("b")


async def test_an_agent_that_starts_again_leaves_the_hot_users_that_haproxy_holds(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    keys = [user_key(POOL_KEY, f"u-{number}") for number in range(20)]
    away = {key: next(f"uid-{name}" for name in "abc" if name != owner_in(wanted)(key)) for key in keys}
    gateway.agent.set_users(away)
    await gateway.settle()
    successor = GatewayAgent(gateway.config, monotonic_s=time.monotonic, keep_users=True)
    assert successor.users is None
    successor.offer(wanted)
    assert await successor.reconcile()
    assert successor.users == away
    assert await successor.reconcile()
    for number in range(20):
        assert f"uid-{(await gateway.ask(f'u-{number}')).me}" == away[keys[number]]
    # Without the word to keep them they are what it was told: none.
    other = GatewayAgent(gateway.config, monotonic_s=time.monotonic)
    other.offer(wanted)
    await other.reconcile()
    assert (await gateway.ask("u-0")).me == owner_in(wanted)(keys[0])


async def test_haproxy_says_which_instances_are_down(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    assert gateway.agent.down() == frozenset()
    await gateway.toys["b"].kill()

    async def seen() -> bool:
        return gateway.agent.down() == {"uid-b"}

    await until(seen, "b is down")
