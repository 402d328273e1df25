"""Runs the reference engine for tests: in this process on a free port, or as a process of its own."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from contract.engine import ItemPopularity, Sampling
from engines.reference.clock import ModelClock
from engines.reference.server import application
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore

MIB = 1 << 20


def small_config(**changes: Any) -> InstanceConfig:
    base: dict[str, Any] = {
        "pool_bytes": 256 * MIB,
        "popularity": ItemPopularity(exponent=0.95, catalog_rows=100_000),
        "sampling": Sampling(users_one_in=1, rows_one_in=16),
    }
    return InstanceConfig(**(base | changes))


class ManualClock:
    """Seconds that pass when told to, and a little on every look, so that waiting callers get on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tick = 0.0

    def __call__(self) -> float:
        self.seconds += self.tick
        return self.seconds


@asynccontextmanager
async def in_process(
    core: GRInstanceCore, *, wall: Callable[[], float] | None = None, token: str | None = None, listen: str | None = None
) -> AsyncIterator[str]:
    """Serve a core on a free loopback port (or a Unix socket) and give its URL."""
    clock = ModelClock(wall or asyncio.get_running_loop().time)
    runner = web.AppRunner(application(core, clock, token=token), access_log=None)
    await runner.setup()
    try:
        if listen is not None:
            await web.UnixSite(runner, listen).start()
            yield f"unix:{listen}"
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class EngineProcess:
    """`python -m engines.reference.main` with the given options; start, stop, start again."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> dict[str, Any]:
        """Start and return what the engine printed when it was ready."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engines.reference.main",
            *self._options,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 30)
        if not line:
            _, errors = await self._process.communicate()
            raise AssertionError(f"the engine did not start: {errors.decode()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    async def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and what was written to stderr. Stopping again changes nothing."""
        process, self._process = self._process, None
        if process is None:
            return 0, ""
        if process.returncode is None:
            process.terminate()
        try:
            _, errors = await asyncio.wait_for(process.communicate(), 10)
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode is not None
        return process.returncode, errors.decode()
