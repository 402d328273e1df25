"""What one agent process costs beside a serving engine: processor time and memory at ten decisions and 5 000 samples a second.

A real agent beside a real reference engine over a Unix socket, with a signed intent and the shipped model, requests that the
engine really serves, the operator asking for the status every five seconds and Prometheus for the metrics every fifteen.
Processor time is what the kernel counted for the process (nanoseconds on a core), memory what is resident at the end. The
baseline of the same run is a process that has loaded the same numeric library and event loop and only wakes up ten times a
second: what that costs tells how cold the caches are that neighbours leave.
"""

import asyncio
import contextlib
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.report import Result, publish, single, summarise
from contract import signing
from contract.agent import Intent
from contract.agent_client import AgentClient
from contract.engine import ItemPopularity, RankRequest
from contract.engine_client import EngineClient
from policies.allocation.model_file import digest_of

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "policies" / "models" / "split-1.safetensors"
CPU_GOAL_PERCENT = 0.5
RSS_GOAL_MIB = 50.0
SAMPLES_PER_S = 5000.0
DECISIONS_PER_S = 10
ROWS_ONE_IN = 16
USERS = 2000
HISTORY, CANDIDATES = 200, 1400
PER_S = SAMPLES_PER_S / (1.0 + CANDIDATES / ROWS_ONE_IN)  # histories are mostly found, and ask for no rows then
MEMORY_S = 12.0
"""Estimates are trusted after this while, so that the anchor decides by the time that is measured; the default is a minute."""
WARM_UP_S = 15.0
_PRIVATE = hashlib.sha256(b"a key for a benchmark").digest()
_IDLE = """
import asyncio, sys, numpy
async def main():
    print("{}", flush=True)
    while True:
        await asyncio.sleep(0.1)
asyncio.run(main())
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a process used over a while."""

    cpu_percent: float
    rss_mib: float


class Watched:
    """A child process whose processor time and memory are read from /proc."""

    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready
        self._from_s, self._from_ns = time.monotonic(), self._cpu_ns()

    def begin(self) -> None:
        """Count from now on."""
        self._from_s, self._from_ns = time.monotonic(), self._cpu_ns()

    def cost(self) -> Cost:
        """Return the cost since `begin`."""
        percent = (self._cpu_ns() - self._from_ns) / 1e7 / (time.monotonic() - self._from_s)
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return Cost(cpu_percent=percent, rss_mib=kib / 1024)

    def _cpu_ns(self) -> int:
        """Nanoseconds on a core, all threads; a thread that has ended meanwhile is one of start-up."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += int((task / "schedstat").read_text().split()[0])
        return total


@contextlib.asynccontextmanager
async def running(*arguments: str, log: Path) -> AsyncIterator[Watched]:
    """Start `python ...`, wait for its JSON line, and end it afterwards."""
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=stderr, cwd=ROOT
        )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        if not line:
            raise RuntimeError(f"{arguments} ended: {await asyncio.to_thread(log.read_text)}")
        yield Watched(process, json.loads(line))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    results = asyncio.run(_measure(windows=1 if quick else 4, window_s=10.0 if quick else 30.0, seed=seed))
    publish("agent", results, seed=seed, quick=quick, as_json=as_json, notes=__doc__ or "")


async def _measure(*, windows: int, window_s: float, seed: int) -> list[Result]:
    folder = Path(tempfile.mkdtemp(prefix="grfleet-bench-"))
    engine_url = f"unix:{folder}/engine.sock"
    key = folder / "intent.pub"
    key.write_text(signing.public_key(_PRIVATE).hex())
    engine = ["-m", "engines.reference.main", "--listen", engine_url, "--rows-one-in", str(ROWS_ONE_IN), "--warm"]
    agent = ["-m", "dataplane.agent.main", "--engine", engine_url, "--intent-key", str(key), "--instance-uid", "uid-1"]
    agent += ["--memory-seconds", str(MEMORY_S)]
    try:
        async with (
            running(*engine, log=folder / "engine.log"),
            running(*agent, log=folder / "agent.log") as watched,
            running("-c", _IDLE, log=folder / "idle.log") as idle,
        ):
            url = watched.ready["listen"]
            await _intend(url)
            async with _under_load(engine_url, url, seed=seed):
                await asyncio.sleep(WARM_UP_S)
                before, started_s = await _counted(url), time.monotonic()
                costs: list[Cost] = []
                idles: list[Cost] = []
                for _ in range(windows):
                    watched.begin()
                    idle.begin()
                    await asyncio.sleep(window_s)
                    costs.append(watched.cost())
                    idles.append(idle.cost())
                after, took_s = await _counted(url), time.monotonic() - started_s
            return _results(costs, idles, {name: (after[name] - before.get(name, 0.0)) / took_s for name in after})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _results(costs: Sequence[Cost], idles: Sequence[Cost], per_s: dict[str, float]) -> list[Result]:
    idle_cpu = sorted(cost.cpu_percent for cost in idles)[len(idles) // 2]
    return [
        summarise(
            "agent, one core",
            [cost.cpu_percent for cost in costs],
            unit="%",
            baseline=idle_cpu,
            goal=CPU_GOAL_PERCENT,
        ),
        single("agent, resident", costs[-1].rss_mib, "MiB", baseline=idles[-1].rss_mib, goal=RSS_GOAL_MIB),
        single("decisions", per_s["grfleet_agent_decisions_total"], "1/s"),
        single("sampled accesses taken in", per_s["grfleet_agent_samples_total"], "1/s"),
        single("sampled accesses lost", per_s["grfleet_agent_samples_lost_total"], "1/s"),
        single(
            "time of a round", 1e6 * per_s["grfleet_agent_tick_seconds_sum"] / per_s["grfleet_agent_tick_seconds_count"], "us"
        ),
        single(
            "time of a decision",
            1e6 * per_s["grfleet_agent_decide_seconds_sum"] / per_s["grfleet_agent_decide_seconds_count"],
            "us",
        ),
    ]


async def _intend(url: str) -> None:
    """Let the shipped model decide, within its clamp."""
    now, model = int(time.time()), MODEL.read_bytes()
    digest = digest_of(model)
    spec = {
        "strategy": "Learned",
        "modelRef": {"name": MODEL.stem, "sha256": digest},
        "step": {"intervalMs": 1000 // DECISIONS_PER_S},
    }
    intent = Intent(uid="uid-1", generation=1, issued=now, expires=now + 300, spec=spec)
    async with AgentClient(url) as client:
        answer = await client.put_intent(signing.sign(intent, _PRIVATE))
        taken = await client.put_model(digest, model)
    if (answer.status, taken.status) != ("accepted", "held"):
        raise RuntimeError(f"the agent refused the intent or the model: {answer}, {taken}")


async def _counted(url: str) -> dict[str, float]:
    """Counters of the agent, summed over their labels."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


@contextlib.asynccontextmanager
async def _under_load(engine_url: str, agent_url: str, *, seed: int) -> AsyncIterator[None]:
    """Requests and readers, which end between two calls.

    A call on a Unix socket that is cancelled in the turn in which its answer comes leaves an InvalidStateError with the event
    loop: the future that the client library waits for is completed by the loop without a look whether it was cancelled.
    """
    over = asyncio.Event()
    tasks = [asyncio.create_task(_requests(engine_url, over, seed=seed)), asyncio.create_task(_readers(agent_url, over))]
    try:
        yield
    finally:
        over.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


async def _passed(over: asyncio.Event, *, after_s: float) -> bool:
    """Wait for so long, or until it is over; return whether it is."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), max(0.0, after_s))
    return over.is_set()


async def _requests(url: str, over: asyncio.Event, *, seed: int) -> None:
    """Serve requests of returning users, evenly paced."""
    dice = random.Random(seed)
    law = ItemPopularity(exponent=0.95, catalog_rows=10_000_000)
    async with EngineClient(url) as client:
        started_s, number = time.monotonic(), 0
        while not await _passed(over, after_s=started_s + number / PER_S - time.monotonic()):
            number += 1
            await client.rank(
                RankRequest(
                    request_id=f"r{number}",
                    user_key=hashlib.sha256(f"u{int(USERS * dice.random() ** 2)}".encode()).hexdigest()[:32],
                    model_version="1",
                    history_tokens=HISTORY,
                    candidates=CANDIDATES,
                    item_popularity=law,
                )
            )


async def _readers(url: str, over: asyncio.Event) -> None:
    """The operator and Prometheus, as often as they ask."""
    async with AgentClient(url) as operator, httpx.AsyncClient() as prometheus:
        number = 0
        while not over.is_set():
            await operator.status()
            if number % 3 == 0:
                await prometheus.get(f"{url}/metrics")
            number += 1
            await _passed(over, after_s=5.0)
