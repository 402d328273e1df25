"""A gateway with a real HAProxy on loopback, its agent inside the test, toy instances, and a load that checks every answer."""

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway_toy import Toy

from contract.keys import SLOTS, slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import GatewayConfig
from dataplane.gateway.held import read_held
from dataplane.gateway.runtime_api import RuntimeApi, RuntimeUnavailable
from dataplane.gateway.tables import want_of
from testbed.debian import Tree

POOL_KEY = b"0123456789abcdef"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def row(
    name: str, port: int, *, uid: str = "", state: InstanceState = InstanceState.READY, weight_percent: int = 100
) -> TableInstance:
    address = f"http://127.0.0.1:{port}"
    return TableInstance(name=name, uid=uid or f"uid-{name}", address=address, weight_percent=weight_percent, state=state)


def table(generation: int, rows: Sequence[TableInstance], *, owners: Sequence[int] | None = None) -> RoutingTable:
    """A table whose slots go round the rows that serve, unless the owners are given."""
    serving = [i for i, r in enumerate(rows) if r.state in (InstanceState.READY, InstanceState.WARMING)]
    spread = [serving[slot % len(serving)] if serving else 0xFFFF for slot in range(SLOTS)]
    return RoutingTable(generation=generation, instances=list(rows), slots=pack_slots(owners or spread))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def instance(self) -> str:
        return self.headers.get("x-gr-instance", "")

    @property
    def me(self) -> str:
        return str(json.loads(self.body)["me"])

    @property
    def seen(self) -> dict[str, str]:
        """Headers as the instance saw them."""
        return dict(json.loads(self.body)["headers"])


class Caller:
    """One keep-alive connection to the gateway."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, headers: dict[str, str | bytes], *, timeout_s: float = 20.0) -> Answer:
        """One request; on a kept connection that the gateway closed before the first byte, as HTTP allows, once again anew."""
        for attempt in (1, 2):
            kept = self._streams is not None
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._exchange(headers, *self._streams)
            except (OSError, EOFError):
                self.close()
                if not kept or attempt == 2:
                    raise
        raise AssertionError

    async def _exchange(
        self, headers: dict[str, str | bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer:
        lines = [b"GET / HTTP/1.1", b"host: gateway"]
        lines += [
            name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) for name, value in headers.items()
        ]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        got = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(got["content-length"])) if "content-length" in got else await reader.read()
        if got.get("connection") == "close" or "content-length" not in got:
            self.close()
        return Answer(int(head[0].split()[1]), got, body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Load:
    """Requests of many users; each answer is held against the owners that were right between its start and its end."""

    sent: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass
class Gateway:
    tree: Tree
    folder: Path
    config: GatewayConfig
    agent: GatewayAgent
    port: int
    toys: dict[str, Toy] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    _loop: asyncio.Task[None] | None = None

    async def toy(self, name: str, *, delay_s: float = 0.0) -> Toy:
        self.toys[name] = await Toy(name, delay_s=delay_s).start()
        return self.toys[name]

    def rows(self, *names: str) -> list[TableInstance]:
        return [row(name, self.toys[name].port) for name in names]

    async def start_haproxy(self, *arguments: str) -> None:
        self.agent.write_files()
        with (self.folder / "haproxy.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                str(self.tree.program("haproxy")),
                *(arguments or ("-db",)),
                "-f",
                str(self.config.directory / "haproxy.cfg"),
                stdout=log,
                stderr=log,
                env=self.tree.environment(),
            )
        await self.until_answering()

    async def until_answering(self) -> None:
        api = RuntimeApi(self.config.admin_socket)
        async with asyncio.timeout(20):
            while True:
                assert self.process is None or self.process.returncode is None, (self.folder / "haproxy.log").read_text()
                with contextlib.suppress(RuntimeUnavailable):
                    await api.ask("show info")
                    break
                await asyncio.sleep(0.01)
        await api.close()

    async def kill_haproxy(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    def start_agent(self) -> None:
        self._loop = asyncio.create_task(self.agent.run(period_s=0.1))

    async def stop_agent(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def settle(self) -> None:
        async with asyncio.timeout(20):
            await self.agent.settled.wait()

    async def offer(self, wanted: RoutingTable) -> None:
        """Give a table and wait until HAProxy holds it."""
        assert self.agent.offer(wanted)
        await self.settle()

    async def ask(self, user: str | bytes, **headers: str) -> Answer:
        caller = Caller(self.port)
        try:
            more = {name.replace("_", "-"): value for name, value in headers.items()}
            return await caller.get({self.config.id_header: user, **more})
        finally:
            caller.close()

    async def stop(self) -> None:
        await self.stop_agent()
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), 5)
            except TimeoutError:
                await self.kill_haproxy()
        for toy in self.toys.values():
            await toy.kill()

    @contextlib.asynccontextmanager
    async def load(
        self,
        allowed: Callable[[str], set[str]],
        *,
        callers: int = 4,
        users: int = 400,
        pause_s: float = 0.002,
        keys: Mapping[str, set[str]] | None = None,
        key_headers: Collection[str] = ("x-gr-user-key",),
    ) -> AsyncIterator[Load]:
        """Ask all through the block; `allowed(key)` names the instances that may answer a user, asked before and after.

        `keys` names the keys that an instance may see of each user; by default that of the pool. `key_headers` may carry them.
        """
        load, ended = Load(), asyncio.Event()
        keys = keys or {f"user-{i}": {user_key(POOL_KEY, f"user-{i}")} for i in range(users)}
        names = list(keys)
        tasks = [
            asyncio.create_task(self._call(load, ended, allowed, names[i::callers], keys, key_headers, pause_s))
            for i in range(callers)
        ]
        try:
            yield load
        finally:
            ended.set()
            await asyncio.gather(*tasks)

    async def _call(
        self,
        load: Load,
        ended: asyncio.Event,
        allowed: Callable[[str], set[str]],
        users: Sequence[str],
        keys: Mapping[str, set[str]],
        key_headers: Collection[str],
        pause_s: float,
    ) -> None:
        caller, number = Caller(self.port), 0
        while not ended.is_set():
            user = users[number % len(users)]
            key = min(keys[user])
            number += 1
            before = allowed(key)
            load.sent += 1
            try:
                answer = await caller.get({self.config.id_header: user})
                if answer.status != 200:
                    load.failed.append(f"{answer.status} for {key}")
                elif answer.me != answer.instance or not keys[user] & {answer.seen.get(name) for name in key_headers}:
                    load.wrong.append(f"{key}: {answer.me} answered, {answer.instance} is named")
                elif answer.me not in before | allowed(key):
                    load.wrong.append(f"{key}: {answer.me} answered, one of {sorted(before | allowed(key))} should have")
            except (OSError, EOFError, TimeoutError) as error:
                load.failed.append(f"{type(error).__name__} for {key}")
                caller.close()
            await asyncio.sleep(pause_s)
        caller.close()


def owner_in(wanted: RoutingTable) -> Callable[[str], str]:
    """The name of the instance that a table gives a user key."""
    from contract.table import unpack_slots

    owners = unpack_slots(wanted.slots, instances=len(wanted.instances))
    return lambda key: wanted.instances[owners[slot_of(key)]].name


def make_gateway(tree: Tree, folder: Path, **changes: object) -> Gateway:
    """A gateway that is not started yet."""
    port = free_port()
    directory = folder / "g"
    directory.mkdir(parents=True)
    config = GatewayConfig(
        pool_key=POOL_KEY,
        bind=f"127.0.0.1:{port}",
        admin_socket=directory / "a.sock",
        directory=directory,
        check_interval_ms=500,
        max_connections=500,
    )
    config = replace(config, **changes)  # type: ignore[arg-type]  # names and types are the test's own
    return Gateway(tree, folder, config, GatewayAgent(config, monotonic_s=time.monotonic), port)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition, which may be a coroutine, holds."""
    async with asyncio.timeout(30):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.03)


async def asked(gateway: Gateway, command: str) -> str:
    """What HAProxy answers to a command of its runtime API."""
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        return await api.ask(command)
    finally:
        await api.close()


async def held_slots(gateway: Gateway) -> dict[int, int]:
    """Server id of each slot, as HAProxy holds it."""
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        return dict((await read_held(api, gateway.config)).slots)
    finally:
        await api.close()


async def holds(gateway: Gateway, wanted: RoutingTable) -> bool:
    """Whether HAProxy holds the slots of a table; not while it does not answer."""
    try:
        return await held_slots(gateway) == dict(want_of(wanted).slots)
    except RuntimeUnavailable:
        return False


async def has_servers(gateway: Gateway, count: int) -> bool:
    """Whether HAProxy has so many servers."""
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        return len((await read_held(api, gateway.config)).servers) == count
    finally:
        await api.close()
