"""Gateways to measure: a pinned HAProxy with a variant of the configuration, and its agent where changes are measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.routing_agent import config_of
from bench.routing_site import Child, Program, children_of, cores, cpu_ns, free_port, opens, until
from bench.routing_variants import WHOLE, variant
from bench.routing_world import Crowd
from contract.table import RoutingTable
from dataplane.gateway.config import (
    FILLED_KEY,
    HAPROXY_ENVIRONMENT,
    ID_TABLE,
    SLOT_TABLE,
    USER_TABLE,
    GatewayConfig,
    peers_of,
    render_maps,
)
from dataplane.gateway.peer_push import push_users
from dataplane.gateway.runtime_api import RuntimeApi
from dataplane.gateway.tables import HotUsers, want_of

ROOT = Path(__file__).resolve().parent.parent
_SETTLED_S = 60.0


@dataclass
class Proxy:
    """A HAProxy that is pinned to the core of the data plane; may be killed and started again on the same port."""

    program: Program
    config: GatewayConfig
    port: int
    master: bool = False
    huge_pages: bool = True
    child: Child | None = None

    def start(self) -> None:
        self.config.admin_socket.unlink(missing_ok=True)
        mode = ["-W"] if self.master else ["-db"]
        self.child = Child(
            [self.program.path, *mode, "-f", self.config.directory / "haproxy.cfg"],
            on=cores()[0],
            log=self.config.directory / "haproxy.log",
            environment={**self.program.environment, **(HAPROXY_ENVIRONMENT if self.huge_pages else {})},
        )
        child = self.child
        until(lambda: self._listens() or child.process.poll() is not None, "HAProxy listens")
        if child.process.poll() is not None:
            raise RuntimeError(f"HAProxy does not start: {child.log.read_text()[-1500:]}")

    def _listens(self) -> bool:
        return self.config.admin_socket.exists() and opens(self.port)

    def kill(self) -> None:
        """End all its processes as kill -9 does."""
        assert self.child is not None
        workers = children_of(self.child.pid) if self.master else []
        self.child.kill()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def reload(self) -> None:
        assert self.child is not None
        self.child.process.send_signal(signal.SIGUSR2)

    def cpu_ns(self) -> int:
        assert self.child is not None
        return cpu_ns(self.child.pid)


@contextlib.contextmanager
def proxy(
    program: Program,
    folder: Path,
    crowd: Crowd,
    table: RoutingTable,
    *,
    name: str = WHOLE,
    fill: bool = False,
    master: bool = False,
    huge_pages: bool = True,
    check_interval_ms: int = 1000,
    retriable_bytes: int | None = None,
) -> Iterator[Proxy]:
    """A started HAProxy with a variant of the configuration, its tables filled at once if asked."""
    folder.mkdir()
    port = free_port()
    config = config_of(folder, port, check_interval_ms=check_interval_ms)
    if retriable_bytes is not None:
        config = replace(config, retriable_bytes=retriable_bytes)
    want = want_of(table, HotUsers(crowd.overrides()))
    for path, text in zip(config.map_paths, render_maps(want.servers), strict=True):
        path.write_text(text)
    (folder / "haproxy.cfg").write_text(variant(name, config, want.servers))
    running = Proxy(program, config, port, master, huge_pages)
    try:
        running.start()
        if fill:
            asyncio.run(_fill(config, want.slots, want.users))
        yield running
    finally:
        if running.child is not None:
            running.kill()


async def _fill(config: GatewayConfig, slots: Mapping[int, int], users: Mapping[str, int]) -> None:
    api = RuntimeApi(config.admin_socket)
    numbers = (*sorted({*slots.values(), *users.values()}), FILLED_KEY)
    await api.expect([f"set table {ID_TABLE} key {number} data.server_id {number}" for number in numbers])
    await api.expect([f"set table {SLOT_TABLE} key {slot} data.gpt0 {server}" for slot, server in slots.items()])
    await api.close()
    await push_users(peers_of(config)[config.local_peer], list(users.items()), table=USER_TABLE, local_peer=config.local_peer)


class Told(msgspec.Struct, frozen=True):
    """When an agent was told something and when HAProxy held it (nanoseconds, monotonic), and the commands that took."""

    began: int
    settled: int
    commands: int

    @property
    def seconds(self) -> float:
        return (self.settled - self.began) / 1e9


class Agent:
    """An agent process beside a HAProxy. A context manager: at its end the process is gone."""

    def __init__(self, beside: Proxy) -> None:
        self._folder = beside.config.directory
        command = [sys.executable, "-m", "bench.routing_agent", str(self._folder), str(beside.port)]
        self.child = Child(command, on=cores()[1], log=self._folder / "agent.log", talks=True, first=False)

    def tell(self, table: RoutingTable) -> Told:
        """Give it a table and wait until HAProxy holds it."""
        self.begin(table)
        return self.told()

    def begin(self, table: RoutingTable) -> None:
        path = self._folder / "next.json"
        path.write_bytes(msgspec.json.encode(table))
        self.child.say(f"table {path}")

    def begin_users(self, crowd: Crowd) -> None:
        path = self._folder / "next.users"
        path.write_text("".join(f"{key} {uid}\n" for key, uid in crowd.overrides().items()))
        self.child.say(f"users {path}")

    def told(self) -> Told:
        return msgspec.convert(json.loads(self.child.hear()), Told)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.__exit__(None, None, None)
