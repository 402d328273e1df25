"""Real processes for integration tests: agent, reference engine, and a driver that replays requests faster than the wall."""

import asyncio
import contextlib
import hashlib
import json
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract import signing
from contract.agent import AgentStatus, Intent, IntentStatus
from contract.agent_client import AgentClient
from contract.engine import ItemPopularity, RankRequest
from contract.engine_client import EngineClient

PRIVATE = hashlib.sha256(b"a key for tests").digest()


@dataclass
class Running:
    """One child process that said it is ready."""

    process: asyncio.subprocess.Process
    ready: dict[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid

    async def kill(self) -> None:
        """kill -9, as a crash of the node's memory killer would."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def terminate(self) -> int:
        """Ask it to end and return its exit code."""
        if self.process.returncode is None:
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 10)


async def start(module: str, arguments: Sequence[str], *, log: Path) -> Running:
    """Start `python -m module` and wait for its JSON line."""
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    assert line, f"{module} ended: {await asyncio.to_thread(log.read_text)}"
    return Running(process=process, ready=json.loads(line))


@dataclass
class Pair:
    """An engine behind a Unix socket and the agent beside it."""

    folder: Path
    engine_options: list[str] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    generation: int = 0
    agent_url: str = ""

    @property
    def engine_url(self) -> str:
        return f"unix:{self.folder}/engine.sock"

    async def start_engine(self) -> Running:
        arguments = ["--listen", self.engine_url, *self.engine_options]
        return self._keep(await start("engines.reference.main", arguments, log=self.folder / "engine.log"))

    async def start_agent(self) -> Running:
        key = self.folder / "intent.pub"
        key.write_text(signing.public_key(PRIVATE).hex())
        arguments = ["--engine", self.engine_url, "--intent-key", str(key), "--instance-uid", "uid-1"]
        agent = self._keep(await start("dataplane.agent.main", arguments, log=self.folder / "agent.log"))
        self.agent_url = agent.ready["listen"]
        return agent

    def _keep(self, child: Running) -> Running:
        self.running.append(child)
        return child

    async def stop(self) -> None:
        for child in self.running:
            if child.process.returncode is None:
                await child.kill()

    async def intend(self, **spec: Any) -> IntentStatus:
        """Sign and push the next generation."""
        self.generation += 1
        now = int(time.time())
        intent = Intent(uid="uid-1", generation=self.generation, issued=now, expires=now + 300, spec=spec)
        async with AgentClient(self.agent_url) as client:
            return (await client.put_intent(signing.sign(intent, PRIVATE))).status

    async def status(self) -> AgentStatus:
        async with AgentClient(self.agent_url) as client:
            return await client.status()

    async def until(self, happened: Callable[[AgentStatus], bool], *, what: str, seconds: float = 20.0) -> AgentStatus:
        """Wait until the agent's status shows something."""
        deadline = time.monotonic() + seconds
        while True:
            status = await self.status()
            if happened(status):
                return status
            assert time.monotonic() < deadline, f"{what}: not seen in {seconds} s, status {status}"
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def pair(folder: Path, *engine_options: str) -> AsyncIterator[Pair]:
    """Start an engine and its agent; nothing of them is left afterwards."""
    both = Pair(folder=folder, engine_options=list(engine_options))
    try:
        await both.start_engine()
        await both.start_agent()
        yield both
    finally:
        await both.stop()


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests of one shape. `users` of None means that nobody ever comes back."""

    users: int | None
    tokens: int
    candidates: int
    per_second: float
    items: ItemPopularity

    def request(self, number: int, *, arrival_ms: float, dice: random.Random) -> RankRequest:
        user = number if self.users is None else dice.randrange(self.users)
        return RankRequest(
            request_id=f"r{number}",
            user_key=hashlib.sha256(f"u{user}".encode()).hexdigest()[:32],
            model_version="1",
            history_tokens=self.tokens,
            candidates=self.candidates,
            arrival_ms=arrival_ms,
            item_popularity=self.items,
        )


RETURNING = Traffic(
    users=110, tokens=2000, candidates=20, per_second=10.0, items=ItemPopularity(exponent=1.2, catalog_rows=200_000)
)
NEWCOMERS = Traffic(
    users=None, tokens=300, candidates=3000, per_second=12.0, items=ItemPopularity(exponent=0.6, catalog_rows=3_000_000)
)


async def replay(
    engine_url: str, traffic: Traffic, *, until: Callable[[], Awaitable[bool]] | None = None, seconds: float, lanes: int = 4
) -> int:
    """Replay up to `seconds` of model time as fast as the engine takes it; return how many requests were sent."""
    dice = random.Random(7)
    async with EngineClient(engine_url, timeout_s=10.0) as client:
        clock_ms = (await client.observe()).clock_ms
        count = int(seconds * traffic.per_second)
        for first in range(0, count, lanes):
            batch = range(first, min(first + lanes, count))
            requests = [
                traffic.request(number, arrival_ms=clock_ms + 1000.0 * (number + 1) / traffic.per_second, dice=dice)
                for number in batch
            ]
            await asyncio.gather(*(client.rank(request) for request in requests))
            if until is not None and first % 100 == 0 and await until():
                return first
        return count
