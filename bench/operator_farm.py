"""A thousand agents in one thread: an HTTP server that answers the agent contract for any number of instances.

Instance NAME lives under /i/NAME, or has an address of its own as an agent in a pod has. Where the machine has more than one
loopback address (Linux) the instances of the first sort spread over `hosts` of them, because a client pays for each address. An
instance takes every intent, reports a settled split, and lets its measurements flutter below the resolution of the published
ones, as a real one under steady load does.
"""

import asyncio
import random
import resource
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from contract.agent import AgentStatus, EngineReport, Intent, IntentAnswer, IntentStatus, SplitReport

POOL_BYTES = 80 << 30
_EMB_BYTES = POOL_BYTES // 2
_JSON = {"content-type": "application/json"}


@dataclass(slots=True)
class _Instance:
    uid: str = ""
    generation: int = 0
    strategy: str = "Static"


@dataclass(slots=True)
class FarmCounts:
    """What the agents were asked since the last reset."""

    polls: int = 0
    pushes: int = 0
    asked: set[str] = field(default_factory=set)


class AgentFarm:
    """The server; use it as a context manager. Bound to one free port of loopback addresses.

    Parameters
    ----------
    hosts
        So many addresses of its own choice.
    addresses, port
        Or exactly these, at this port.
    """

    def __init__(self, *, seed: int, hosts: int = 1, addresses: Sequence[str] = (), port: int = 0) -> None:
        self.counts = FarmCounts()
        self._sockets = _listen_on(addresses, port) if addresses else _listen(hosts)
        self._hosts = [listening.getsockname()[0] for listening in self._sockets]
        self._port = self._sockets[0].getsockname()[1]
        self._rng = random.Random(seed)
        self._instances: dict[str, _Instance] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="agent-farm", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(timeout=30):
            raise RuntimeError("the agents' server does not start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def url(self, name: str, number: int) -> str:
        """The agent's address, as an entry of instances.external has it."""
        return f"http://{self._hosts[number % len(self._hosts)]}:{self._port}/i/{name}"

    def reset(self) -> None:
        """Begin to count anew."""
        self.counts = FarmCounts()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        for prefix in ("", "/i/{name}"):
            app.router.add_get(f"{prefix}/agent/v1/status", self._status)
            app.router.add_put(f"{prefix}/agent/v1/intent", self._intent)
        runner = web.AppRunner(app, access_log=None)
        self._loop.run_until_complete(runner.setup())
        for listening in self._sockets:
            self._loop.run_until_complete(web.SockSite(runner, listening).start())
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(runner.cleanup())
            self._loop.close()

    def _instance(self, request: web.Request) -> tuple[str, _Instance]:
        name = request.match_info.get("name") or request.host
        return name, self._instances.setdefault(name, _Instance())

    async def _status(self, request: web.Request) -> web.Response:
        name, instance = self._instance(request)
        self.counts.polls += 1
        self.counts.asked.add(name)
        status = AgentStatus(
            agent_start_id=f"agent-{name}",
            uid=instance.uid,
            generation=instance.generation,
            engine=EngineReport(reachable=True, start_id=f"engine-{name}", name="bench", emulation=True),
            strategy_in_force=instance.strategy,
            reason="WithinDeadband",
            message="",
            frozen=False,
            decisions=self.counts.polls,
            split=SplitReport(
                usable_bytes=POOL_BYTES,
                target_emb_bytes=_EMB_BYTES,
                accepted_emb_bytes=_EMB_BYTES,
                accepted_kv_bytes=POOL_BYTES - _EMB_BYTES,
                used_emb_bytes=_EMB_BYTES,
                used_kv_bytes=POOL_BYTES - _EMB_BYTES,
                revision=1,
                settled=True,
                overage_bytes=0,
                refill_backlog_bytes=0,
            ),
            emb_hit_percent=80.0 + self._rng.uniform(-0.4, 0.4),
            kv_hit_percent=60.0 + self._rng.uniform(-0.4, 0.4),
            p99_ms=40.0 + self._rng.uniform(-0.4, 0.4),
            slo_percent=99.6 + self._rng.uniform(-0.04, 0.04),
            requests_per_second=100.0,
        )
        return web.Response(body=msgspec.json.encode(status), headers=_JSON)

    async def _intent(self, request: web.Request) -> web.Response:
        _, instance = self._instance(request)
        self.counts.pushes += 1
        intent = msgspec.json.decode(await request.read(), type=Intent)
        unchanged = (instance.uid, instance.generation) == (intent.uid, intent.generation)
        instance.uid, instance.generation = intent.uid, intent.generation
        instance.strategy = str(intent.spec.get("strategy", "Static"))
        verdict = IntentStatus.UNCHANGED if unchanged else IntentStatus.ACCEPTED
        answer = IntentAnswer(status=verdict, uid=intent.uid, generation=intent.generation)
        return web.Response(body=msgspec.json.encode(answer), headers=_JSON)


def _listen(hosts: int) -> list[socket.socket]:
    """Sockets on one port of so many loopback addresses, or on 127.0.0.1 alone where there are no others."""
    _allow_many_files()
    first = socket.create_server(("127.0.0.1", 0), backlog=1024)
    sockets = [first]
    for number in range(1, hosts):
        try:
            address = f"127.77.{number // 250}.{1 + number % 250}"
            sockets.append(socket.create_server((address, first.getsockname()[1]), backlog=64))
        except OSError:
            break
    return sockets


def _listen_on(addresses: Sequence[str], port: int) -> list[socket.socket]:
    _allow_many_files()
    return [socket.create_server((address, port), backlog=64) for address in addresses]


def _allow_many_files() -> None:
    """A connection an agent, on both sides."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
