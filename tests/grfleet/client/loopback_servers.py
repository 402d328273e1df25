"""Servers on loopback for the tests of the router client: a scripted API server, and toy instances that can be slow or broken."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
from client_tables import SECRET

from contract.keys import SLOTS, slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from grfleet.client import AsyncClient, Client
from grfleet.client.face import FAILURES

USER = "Ada Lovelace/42"
HTTP_FAILURES = (*FAILURES, httpx.TransportError)


@dataclass(frozen=True)
class Request:
    """What was asked, header names in lower case."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


class Reply:
    """The open answer: headers with the first bytes, and the connection ends when the handler returns."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def whole(self, body: bytes, *, status: int = 200, headers: str = "") -> None:
        self._writer.write(
            f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body
        )
        await self._writer.drain()

    async def begin(self) -> None:
        self._writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def cut(self) -> None:
        self._writer.transport.abort()


Handler = Callable[[Request, Reply], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Serve on a free port; the base URL is yielded. Each connection is one request."""
    tasks = set[asyncio.Task[Any]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            target = urlsplit(head[0].split(" ")[1])
            query = {name: values[0] for name, values in parse_qs(target.query).items()}
            headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:] if line)}
            await handler(Request(target.path, query, headers), Reply(writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def published(
    table: RoutingTable | None, *, version: int, name: str = "feed", uid: str = "object-1", namespace: str = "shop"
) -> dict[str, Any]:
    """A GRRoutingTable as the API server shows it."""
    head = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": head, "status": msgspec.to_builtins(table) if table is not None else {"conditions": []}}


@dataclass
class ScriptedApi:
    """An API server that lists `objects` and, for each watch in turn, plays one script; the last script is played for ever."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    version: int = 1
    watches: list[Handler] = field(default_factory=list)
    lists: int = 0
    watched_from: list[str] = field(default_factory=list)
    before_list: Callable[[Reply], Awaitable[bool]] | None = None

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.is_watch:
            self.watched_from.append(request.query["resourceVersion"])
            script = self.watches.pop(0) if self.watches else stay
            await script(request, reply)
            return
        self.lists += 1
        if self.before_list is not None and not await self.before_list(reply):
            return
        await reply.whole(json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": self.objects}).encode())


def event(kind: str, content: dict[str, Any]) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


async def stay(request: Request, reply: Reply) -> None:
    """A watch on which nothing happens."""
    await reply.begin()
    await asyncio.Event().wait()


def play(*parts: bytes, then: str = "stay") -> Handler:
    """A watch that sends these bytes, then stays, ends, or is cut."""

    async def script(request: Request, reply: Reply) -> None:
        await reply.begin()
        for part in parts:
            await reply.send(part)
            await asyncio.sleep(0)
        if then == "stay":
            await asyncio.Event().wait()
        if then == "cut":
            reply.cut()

    return script


@dataclass
class ToyInstance:
    """One instance of a pool: answers with its name at once, when it is let go, or not at all."""

    name: str
    asked: int = 0
    failing: bool = False
    gate: asyncio.Event | None = None
    users: list[str] = field(default_factory=list)
    finished: int = 0

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.asked += 1
        self.users.append(request.headers.get("x-gr-user-key", ""))
        if self.failing:
            reply.cut()
            return
        if self.gate is not None:
            await self.gate.wait()
        await reply.whole(self.name.encode(), headers=f"x-gr-instance: {self.name}\r\n")
        self.finished += 1


def fleet_table(addresses: dict[str, str], *, first: str) -> RoutingTable:
    """A table in which the user of these tests belongs to `first`, and the other one is the next owner."""
    names = sorted(addresses)
    owner, other = names.index(first), names.index(next(name for name in names if name != first))
    instances = [
        TableInstance(name=n, uid=f"uid-{n}", address=addresses[n], weight_percent=100, state=InstanceState.READY) for n in names
    ]
    slots = [owner] * SLOTS
    slots[(slot_of(user_key(SECRET, USER)) + 1) % SLOTS] = other
    return RoutingTable(generation=1, instances=instances, slots=pack_slots(slots))


@contextlib.asynccontextmanager
async def two_instances() -> AsyncIterator[tuple[ToyInstance, ToyInstance, RoutingTable]]:
    a, b = ToyInstance("a"), ToyInstance("b")
    async with serving(a) as at_a, serving(b) as at_b:
        yield a, b, fleet_table({"a": at_a, "b": at_b}, first="a")


def learned(client: AsyncClient | Client, latency_ms: float = 1.0) -> None:
    """As after many quick answers, with a full purse."""
    for _ in range(100):
        client._latencies.add(latency_ms)
        client._budget.request()
