"""The demonstration's driver against real engine servers: on time, on the engines' clocks, and past an engine that is gone."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from engines.reference.clock import ModelClock
from engines.reference.server import application
from grfleet.demo.driver import PoolUnderLoad, Progress, play
from grfleet.demo.served import Served
from grfleet.demo.sessions import GatewaySession
from simulator.replay import even_slots, replay
from simulator.workloads import TraceFiles, Workload, demo_core, demo_workload

TRACES = TraceFiles.under(Path(__file__).resolve().parents[2] / "traces")
REQUESTS = 60


@pytest.fixture(scope="module")
def workload() -> Workload:
    """The first second of the demonstration."""
    whole = demo_workload(TRACES)
    return Workload(requests=whole.requests[:REQUESTS], phases=whole.phases)


@contextlib.asynccontextmanager
async def engines(folder: Path, count: int) -> AsyncIterator[list[str]]:
    """Serve fresh engines on Unix sockets and yield their addresses."""
    runners, addresses = [], []
    for index in range(count):
        runner = web.AppRunner(application(demo_core(50, index), ModelClock(time.monotonic)), access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(folder / f"e{index}")).start()
        runners.append(runner)
        addresses.append(f"unix:{folder / f'e{index}'}")
    try:
        yield addresses
    finally:
        for runner in runners:
            await runner.cleanup()


def pool_of(addresses: Sequence[str]) -> PoolUnderLoad:
    pool = PoolUnderLoad("adaptive", "ranker")
    instances = [
        TableInstance(name=f"ranker-{i}", uid=f"u{i}", address=address, weight_percent=100, state=InstanceState.READY)
        for i, address in enumerate(addresses)
    ]
    pool.router.accept(RoutingTable(generation=1, instances=instances, slots=pack_slots(even_slots(len(addresses)))))
    return pool


async def played(workload: Workload, pool: PoolUnderLoad, folder: Path) -> list[Served]:
    try:
        await play(workload, [pool], folder / "progress.json", lead_s=0.05)
    finally:
        await pool.aclose()
    return sorted(pool.served, key=lambda row: row.index)


async def test_what_the_engines_answer_live_is_what_a_replay_says(workload: Workload, tmp_path: Path) -> None:
    async with engines(tmp_path, 2) as addresses:
        live = await played(workload, pool_of(addresses), tmp_path)

    virtual = replay(workload.requests, even_slots(2), [demo_core(50, index) for index in range(2)])
    assert [row.index for row in live] == list(range(REQUESTS))
    assert not any(row.error for row in live)
    assert [row.history_tokens for row in live] == virtual.history_tokens.tolist()
    # Two requests within a millisecond may reach an engine in the other order, so not every single one is equal.
    mean = sum(row.latency_ms for row in live) / REQUESTS
    assert mean == pytest.approx(float(virtual.latency_ms.mean()), rel=0.05)


async def test_users_of_an_engine_that_is_gone_are_served_by_the_next_one(workload: Workload, tmp_path: Path) -> None:
    async with engines(tmp_path, 1) as addresses:
        live = await played(workload, pool_of([*addresses, f"unix:{tmp_path}/nobody"]), tmp_path)

    assert not any(row.error for row in live)
    assert {row.instance for row in live} == {"ranker-0"}
    assert any(row.retried for row in live)
    assert not all(row.retried for row in live)


async def test_an_answer_of_another_instance_than_the_owner_counts_as_elsewhere_and_has_no_latency(
    workload: Workload, tmp_path: Path
) -> None:
    """An engine in the gateway's place answers everything, and names nobody."""
    async with engines(tmp_path, 2) as addresses:
        pool = pool_of(addresses)
        pool.gateway = GatewaySession(addresses[0])
        live = await played(workload, pool, tmp_path)

    assert len(live) == REQUESTS
    assert all(row.elsewhere and not row.error and row.latency_ms == 0.0 for row in live)
    assert {row.instance for row in live} == {"unnamed"}


async def test_requests_that_a_gateway_loses_are_recorded_as_failed_and_not_sent_around_it(
    workload: Workload, tmp_path: Path
) -> None:
    async with engines(tmp_path, 2) as addresses:
        pool = pool_of(addresses)
        pool.gateway = GatewaySession(f"unix:{tmp_path}/nobody")
        live = await played(workload, pool, tmp_path)

    assert len(live) == REQUESTS
    assert all(row.error for row in live)


async def test_requests_that_nobody_answers_are_recorded_as_failed(workload: Workload, tmp_path: Path) -> None:
    live = await played(workload, pool_of([f"unix:{tmp_path}/nobody"]), tmp_path)

    assert len(live) == REQUESTS
    assert all(row.error for row in live)


async def test_progress_is_told_while_it_runs(workload: Workload, tmp_path: Path) -> None:
    async with engines(tmp_path, 1) as addresses:
        await played(workload, pool_of(addresses), tmp_path)

    progress = msgspec.json.decode((tmp_path / "progress.json").read_bytes(), type=Progress)
    assert (progress.sent, progress.answered, progress.failed) == (REQUESTS, REQUESTS, 0)
