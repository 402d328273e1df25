"""The caller of both pools: sends the same requests at trace time to each pool's gateway, or else to the instance of its table.

It is a process of its own and does nothing else. It knows instances only through the routing table, as a caller of a real pool
would: without a gateway it asks the owner and, when that does not answer, once the next one (ranking is idempotent); with one it
only checks that the owner answered. Each request carries its arrival stamp on the owner's clock, so what the engine reports does
not depend on how late this process woke up.
"""

import asyncio
import contextlib
import gc
import os
import random
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import uvloop

from contract.engine import RankAnswer, RankRequest
from grfleet.client import NoInstance, Router, follow
from grfleet.demo.served import PoolRun, Run, Served, write_run
from grfleet.demo.sessions import EngineSession, GatewaySession, RequestFailed
from simulator.workloads import TraceFiles, Workload, demo_workload

TABLE_TIMEOUT_S = 60.0
LEAD_S = 1.0
LAST_ANSWERS_TIMEOUT_S = 20.0
PROGRESS_EVERY_S = 1.0


class DriverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver is told: where the API is, which pools to drive (namespace, name), with what, and where to write.

    Attributes
    ----------
    gateways
        Namespace of a pool to the address of its gateway; a pool that is not named is called instance by instance.
    clocks
        Address of an instance to the address where its engine tells its clock, if that is another.
    """

    api_url: str
    api_ca_file: str
    api_token: str
    pools: list[tuple[str, str]]
    instances_per_pool: int
    traces: str
    seed: int
    duration_s: float
    pool_key_hex: str
    result_file: str
    progress_file: str
    gateways: dict[str, str] = {}
    clocks: dict[str, str] = {}


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the driver is; rewritten every second. Counts are of all pools since the start; the lag is the largest of late."""

    started_unix_s: float
    trace_ms: float
    sent: int
    answered: int
    failed: int
    max_lag_ms: float


@dataclass
class PoolUnderLoad:
    """One pool under load: its router, a session for each engine address, its gateway if it has one, and what came back."""

    namespace: str
    name: str
    gateway: GatewaySession | None = None
    clocks: dict[str, str] = field(default_factory=dict)
    router: Router = field(default_factory=Router)
    sessions: dict[str, EngineSession] = field(default_factory=dict)
    served: list[Served] = field(default_factory=list)
    failed: int = 0
    start_s: float = 0.0

    async def session(self, address: str) -> EngineSession:
        found = self.sessions.get(address)
        if found is None:
            found = self.sessions[address] = EngineSession(address, clock_address=self.clocks.get(address))
        await found.ready()
        return found

    async def aclose(self) -> None:
        """Give back all connections."""
        if self.gateway is not None:
            await self.gateway.aclose()
        for session in self.sessions.values():
            await session.aclose()

    async def ask(self, index: int, request: RankRequest, *, due_s: float) -> None:
        """Send one request and record how it went; without a gateway to the next owner once more if the first does not answer."""
        lag_ms = max(0.0, time.monotonic() - due_s) * 1000.0
        excluded: list[str] = []
        problem = ""
        for _ in range(1 if self.gateway is not None else 2):
            try:
                pick = self.router.pick(request.user_key, exclude=excluded)
                session = await self.session(pick.address)
                stamped = session.stamped(request, start_s=self.start_s)
                if self.gateway is not None:
                    answer, instance = await self.gateway.rank(stamped)
                else:
                    answer, instance = await session.rank(stamped), pick.name
            except NoInstance as error:
                problem = str(error)
                break
            except RequestFailed as error:
                problem = f"{pick.name}: {error}"
                excluded.append(pick.name)
                continue
            owner = instance == pick.name
            wall_ms = (time.monotonic() - due_s) * 1000.0 - lag_ms
            row = _row(index, request, answer if owner else None, lag_ms=lag_ms)
            self.served.append(
                msgspec.structs.replace(
                    row, instance=instance or "unnamed", wall_ms=wall_ms, retried=bool(excluded), elsewhere=not owner
                )
            )
            return
        self.failed += 1
        row = _row(index, request, None, lag_ms=lag_ms)
        self.served.append(msgspec.structs.replace(row, retried=len(excluded) > 1, error=problem[:300] or "unknown"))


def _row(index: int, request: RankRequest, answer: RankAnswer | None, *, lag_ms: float) -> Served:
    """What is known of a request, without how it got its answer; no figures where no answer counts."""
    return Served(
        index=index,
        arrival_ms=request.arrival_ms or 0.0,
        instance="",
        latency_ms=answer.latency_ms if answer else 0.0,
        service_ms=answer.service_ms if answer else 0.0,
        history_tokens=request.history_tokens,
        kv_tokens_hit=answer.kv_tokens_hit if answer else 0,
        emb_rows_asked=answer.emb_rows_asked if answer else 0,
        emb_rows_missed=answer.emb_rows_missed if answer else 0,
        lag_ms=lag_ms,
        wall_ms=0.0,
    )


async def drive(plan: DriverPlan) -> Run:
    """Drive both pools through the whole workload and return what was served.

    Raises
    ------
    TimeoutError
        When a pool has no complete routing table within a minute.
    """
    workload = demo_workload(
        TraceFiles.under(Path(plan.traces)),
        seed=plan.seed,
        duration_s=plan.duration_s,
        pool_key=bytes.fromhex(plan.pool_key_hex),
    )
    pools = [
        PoolUnderLoad(
            namespace, name, GatewaySession(plan.gateways[namespace]) if namespace in plan.gateways else None, plan.clocks
        )
        for namespace, name in plan.pools
    ]
    tls = ssl.create_default_context(cafile=plan.api_ca_file)
    headers = {"Authorization": f"Bearer {plan.api_token}"}
    async with httpx.AsyncClient(base_url=plan.api_url, verify=tls, headers=headers, trust_env=False) as api:
        followers = [
            asyncio.create_task(
                follow(p.router, api, namespace=p.namespace, name=p.name, on_problem=_complain, rng=random.Random(plan.seed))
            )
            for p in pools
        ]
        try:
            tables = [await _complete_table(pool, plan.instances_per_pool) for pool in pools]
            await asyncio.gather(
                *(pool.session(address) for pool, table in zip(pools, tables, strict=True) for address in table[2])
            )
            started_unix_s = await play(workload, pools, Path(plan.progress_file))
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*(pool.aclose() for pool in pools))
    runs = [
        PoolRun(pool=pool.namespace, instances=table[0], slots=table[1], served=sorted(pool.served, key=lambda s: s.index))
        for pool, table in zip(pools, tables, strict=True)
    ]
    return Run(started_unix_s=started_unix_s, cpu_seconds=time.process_time(), pools=runs)


async def _complete_table(pool: PoolUnderLoad, instances: int) -> tuple[list[str], str, list[str]]:
    """Wait for a table that names all instances and return (names, packed slots, addresses) of it."""
    deadline = time.monotonic() + TABLE_TIMEOUT_S
    while time.monotonic() < deadline:
        table = pool.router.table
        if table is not None and len(table.instances) >= instances:
            return [i.name for i in table.instances], table.slots, [i.address for i in table.instances]
        await asyncio.sleep(0.2)
    seen = len(pool.router.table.instances) if pool.router.table is not None else 0
    raise TimeoutError(f"the routing table of {pool.namespace}/{pool.name} names {seen} of {instances} instances")


def _ask_for_priority() -> None:
    """Run before others where the system lets us: this process measures, and what it sends late spoils the run.

    It sleeps most of the time. A real-time class is asked for because a nice value counts only inside one session.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


async def play(workload: Workload, pools: list[PoolUnderLoad], progress_file: Path, *, lead_s: float = LEAD_S) -> float:
    """Send every request to every pool when it is due, from `lead_s` on; return the Unix time of trace time 0."""
    gc.collect()
    gc.freeze()
    gc.disable()
    start_s = time.monotonic() + lead_s
    started_unix_s = time.time() + lead_s
    for pool in pools:
        pool.start_s = start_s
    tasks: set[asyncio.Task[None]] = set()
    next_progress_s = start_s
    sent = 0
    for index, request in enumerate(workload.requests):
        due_s = start_s + (request.arrival_ms or 0.0) / 1000.0
        if (delay := due_s - time.monotonic()) > 0:
            await asyncio.sleep(delay)
        for pool in pools:
            task = asyncio.create_task(pool.ask(index, request, due_s=due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        sent += 1
        if due_s >= next_progress_s:
            next_progress_s = due_s + PROGRESS_EVERY_S
            _write_progress(progress_file, started_unix_s, request.arrival_ms or 0.0, sent, pools)
    if tasks:
        await asyncio.wait(tasks, timeout=LAST_ANSWERS_TIMEOUT_S)
    _write_progress(progress_file, started_unix_s, workload.duration_ms, sent, pools)
    return started_unix_s


def _write_progress(path: Path, started_unix_s: float, trace_ms: float, sent: int, pools: list[PoolUnderLoad]) -> None:
    newest = [served for pool in pools for served in pool.served[-400:]]
    progress = Progress(
        started_unix_s=started_unix_s,
        trace_ms=trace_ms,
        sent=sent * len(pools),
        answered=sum(len(pool.served) - pool.failed for pool in pools),
        failed=sum(pool.failed for pool in pools),
        max_lag_ms=max((served.lag_ms for served in newest), default=0.0),
    )
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(progress))
    partial.replace(path)


def _complain(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Run the plan in the file named by the one argument."""
    _ask_for_priority()
    plan = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=DriverPlan)
    write_run(Path(plan.result_file), uvloop.run(drive(plan)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
