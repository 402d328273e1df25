"""What the benchmark of the picker stands on: one Envoy with a listener for each way, toy instances, a caller that checks."""

import asyncio
import copy
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from contract.keys import SLOTS, slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots

ROOT = Path(__file__).resolve().parent.parent
POOL_KEY = b"a key for the benchmark"
INSTANCES = 32


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Time on a processor of all threads that a process has, by the scheduler's books."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


@dataclass(frozen=True)
class Way:
    """One way of a request through Envoy.

    Attributes
    ----------
    server
        Which server answers Envoy; empty for none, then Envoy's own hash chooses.
    answers
        Whether response headers go to it, too.
    body_bytes
        Size of a body that goes through it, full duplex; 0 for none.
    owned
        Whether the owner of the user's slot has to answer.
    """

    name: str
    server: str
    answers: bool = True
    body_bytes: int = 0
    owned: bool = True


class Toys:
    """Instances inside this process: each answers every request with its number."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(INSTANCES):
            server = await loop.create_server(lambda number=number: _Toy(number), "127.0.0.1", 0)  # type: ignore[misc]  # mypy: default of a lambda
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        for server in self._servers:
            server.close()


class _Toy(asyncio.Protocol):
    def __init__(self, number: int) -> None:
        self._answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-me: %d\r\n\r\n" % number
        self._seen = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A request is over at its empty line, or at the empty chunk where it has chunks."""
        self._seen += data
        head, end, rest = self._seen.partition(b"\r\n\r\n")
        if not end or (b"chunked" in head and not rest.endswith(b"0\r\n\r\n")):
            return
        self._seen = b""
        self._transport.write(self._answer)


class Caller:
    """One kept connection to Envoy."""

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask(self, user: str, body: bytes) -> int:
        """One request; gives the number of the instance that answered, below 0 for another status."""
        verb, length = (b"POST", b"content-length: %d\r\n" % len(body)) if body else (b"GET", b"")
        self._writer.write(
            verb + b" /gr/v1/rank HTTP/1.1\r\nhost: pool\r\nx-user-id: " + user.encode() + b"\r\n"
            b"accept: */*\r\nuser-agent: bench\r\n" + length + b"\r\n" + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            said = re.search(rb"content-length: (\d+)", head)
            await self._reader.readexactly(int(said.group(1)) if said is not None else 0)
            return -int(head[9:12])
        at = head.index(b"x-me: ") + 6
        return int(head[at : head.index(b"\r", at)])

    def close(self) -> None:
        self._writer.close()


@dataclass
class Slice:
    """Requests of one way in a row: what they took of each process, and how long each was on its way."""

    server_us: float
    envoy_us: float
    wrong: int
    ms: list[float] = field(default_factory=list)


class Site:
    """Envoy, the servers it asks, and the instances; stop it in any case."""

    def __init__(self, envoy: Path, folder: Path, ways: Sequence[Way]) -> None:
        self._folder, self._program = folder, envoy
        self.ways = ways
        self.toys = Toys()
        self._ports = {way.name: free_port() for way in ways}
        self._servers = {name: free_port() for name in sorted({way.server for way in ways} - {""})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.users = [f"user-{number}" for number in range(4000)]
        self._owner = {user: slot_of(user_key(POOL_KEY, user)) % INSTANCES for user in self.users}

    async def start(self) -> None:
        """Start everything and wait until each way answers."""
        await self.toys.start()
        rows = [
            TableInstance(name=f"i{n}", uid=f"u{n}", address=f"127.0.0.1:{port}", weight_percent=100, state=InstanceState.READY)
            for n, port in enumerate(self.toys.ports)
        ]
        table = RoutingTable(generation=1, instances=rows, slots=pack_slots([slot % INSTANCES for slot in range(SLOTS)]))
        (self._folder / "table.json").write_bytes(msgspec.json.encode(table))
        (self._folder / "pool.key").write_bytes(POOL_KEY)
        for name, port in self._servers.items():
            self._spawn(name, self._command(name, port))
        (self._folder / "envoy.json").write_text(json.dumps(self._config()))
        arguments = ["-c", str(self._folder / "envoy.json"), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
        self._spawn("envoy", [str(self._program), *arguments])
        for way in self.ways:
            await self._answering(way)

    def stop(self) -> None:
        """End every process."""
        self.toys.stop()
        for process in self._processes.values():
            process.kill()
            process.wait()

    async def slice(self, way: Way, *, requests: int, callers: int) -> Slice:
        """Send requests from so many connections, each its next one after an answer."""
        server = self._processes[way.server].pid if way.server else 0
        body = b"b" * way.body_bytes
        connections = [Caller() for _ in range(callers)]
        for caller in connections:
            await caller.open(self._ports[way.name])
        ms: list[float] = []
        wrong = 0

        async def run(caller: Caller, users: Sequence[str]) -> None:
            nonlocal wrong
            for user in users:
                began = time.perf_counter()
                answered = await caller.ask(user, body)
                ms.append((time.perf_counter() - began) * 1e3)
                wrong += answered < 0 or (way.owned and answered != self._owner[user])

        users = [self.users[number % len(self.users)] for number in range(requests)]
        await asyncio.gather(*(run(caller, ["user-0"] * 4) for caller in connections))
        ms.clear()
        wrong = 0  # sixteen at once for one user are over the bound
        before = (cpu_seconds(server) if server else 0.0, cpu_seconds(self._processes["envoy"].pid))
        await asyncio.gather(*(run(caller, users[at::callers]) for at, caller in enumerate(connections)))
        after = (cpu_seconds(server) if server else 0.0, cpu_seconds(self._processes["envoy"].pid))
        for caller in connections:
            caller.close()
        return Slice((after[0] - before[0]) / requests * 1e6, (after[1] - before[1]) / requests * 1e6, wrong, ms)

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    def _command(self, name: str, port: int) -> list[str]:
        table, key = str(self._folder / "table.json"), str(self._folder / "pool.key")
        if name.startswith("grpc.aio"):
            _, what, loop = name.split(", ")
            return [sys.executable, "-m", "bench.picker_grpc", what, loop, str(port), table, key]
        bind = f"127.0.0.1:{port}"
        return [sys.executable, "-m", "dataplane.picker.main", "--table", table, "--pool-key", key, "--bind", bind]

    async def _answering(self, way: Way) -> None:
        async with asyncio.timeout(60):
            while True:
                for process in self._processes.values():
                    if process.poll() is not None:
                        raise RuntimeError("\n".join(each.read_text()[-800:] for each in self._folder.glob("*.log")))
                try:
                    found = await self.slice(way, requests=20, callers=1)
                    if not found.wrong:
                        return
                except (OSError, EOFError, ValueError):
                    pass
                await asyncio.sleep(0.1)

    def _config(self) -> dict[str, Any]:
        text = (ROOT / "docs" / "examples" / "picker-envoy.yaml").read_text()
        text = text.replace("port_value: 9901", f"port_value: {free_port()}")
        config: dict[str, Any] = yaml.safe_load(text)
        static = config["static_resources"]
        listener, (picker, pool) = static["listeners"][0], static["clusters"]
        static["listeners"] = [self._listener(listener, way) for way in self.ways]
        del pool["eds_cluster_config"]
        pool["type"] = "STATIC"
        pool["load_assignment"] = _assignment("pool", self.toys.ports)
        static["clusters"] = [pool]
        for name, port in self._servers.items():
            cluster = copy.deepcopy(picker)
            cluster["name"] = name
            cluster["load_assignment"] = _assignment(name, [port])
            del cluster["health_checks"]
            static["clusters"].append(cluster)
        return config

    def _listener(self, listener: dict[str, Any], way: Way) -> dict[str, Any]:
        made = copy.deepcopy(listener)
        made["name"] = way.name
        made["address"]["socket_address"]["port_value"] = self._ports[way.name]
        manager = made["filter_chains"][0]["filters"][0]["typed_config"]
        processor = manager["http_filters"][0]["typed_config"]
        if not way.server:
            del manager["http_filters"][0]
            manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["hash_policy"][0]["header"]["header_name"] = (
                "x-user-id"
            )
            return made
        processor["grpc_service"]["envoy_grpc"]["cluster_name"] = way.server
        processor["message_timeout"] = "5s"
        processor["failure_mode_allow"] = False
        mode = processor["processing_mode"]
        if not way.answers:
            mode["response_header_mode"] = "SKIP"
        if way.body_bytes:
            mode["request_body_mode"] = "FULL_DUPLEX_STREAMED"
            mode["request_trailer_mode"] = "SEND"
        return made


def _assignment(cluster: str, ports: Sequence[int]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}
