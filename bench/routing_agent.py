"""The gateway's agent as a process of its own, driven by lines: `users FILE`, `table FILE`; one line of JSON for each.

It is `dataplane.gateway.agent` as the product runs it; only the sources of tables and hot users are these lines, so that a change
begins at a known moment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from bench.routing_world import POOL_KEY
from dataplane.follow import table_from
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import GatewayConfig


def config_of(directory: Path, port: int, *, check_interval_ms: int = 1000) -> GatewayConfig:
    """The configuration under test: everything as the product has it by default."""
    return GatewayConfig(
        pool_key=POOL_KEY,
        bind=f"127.0.0.1:{port}",
        admin_socket=directory / "a.sock",
        directory=directory,
        check_interval_ms=check_interval_ms,
    )


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _serve(directory: Path, port: int) -> None:
    agent = GatewayAgent(config_of(directory, port), monotonic_s=time.monotonic)
    running = asyncio.create_task(agent.run())
    reader = await _lines()
    while line := (await reader.readline()).decode().split():
        what, path = line[0], Path(line[1])
        began, commands = time.monotonic_ns(), agent.counts.commands
        raw = await asyncio.to_thread(path.read_bytes)
        if what == "users":
            agent.set_users(dict(row.split() for row in raw.decode().splitlines()))
        else:
            agent.offer(table_from(raw).table)
        if agent.generation >= 0:
            await agent.settled.wait()
        done = {"began": began, "settled": time.monotonic_ns(), "commands": agent.counts.commands - commands}
        sys.stdout.write(json.dumps(done) + "\n")
        sys.stdout.flush()
    running.cancel()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
