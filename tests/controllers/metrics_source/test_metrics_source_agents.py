"""Measurements straight from the agents: rates need two statuses of one process, and silence is never a number."""

from __future__ import annotations

import msgspec
import pytest

from contract.agent import AgentStatus, EngineReport, ServingReport
from contract.engine import PreInferCounters, PreInferRequest, RankRequest
from controllers.agent_book import AgentBook
from controllers.metrics_source.agents import AgentsSource
from controllers.metrics_source.port import InstanceName, PoolMetrics, PoolName, SourceState
from controllers.runtime.clock import FakeClock
from dataplane.agent.report import serving_of
from policies.measurement import Fresh, Missing, Stale
from policies.preinference.observed import Rates, pool_sum
from policies.scaling.types import Doubt
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore

POOL = PoolName(namespace="shop", name="ranker")
ONE, TWO = InstanceName(name="ranker-0", uid="u0"), InstanceName(name="ranker-1", uid="u1")


def status(
    clock_s: float, *, start_id: str = "s1", reachable: bool = True, serving: bool = True, p99_ms: float | None = 30.0
) -> AgentStatus:
    """An engine that ranks 50 requests and admits 4 prefixes a second, each busy for 250 ms."""
    counts = PreInferCounters(
        accepted=round(4 * clock_s),
        rejected=round(clock_s),
        used=round(3 * clock_s),
        late=round(clock_s),
        wasted=0,
        slot_ms=1000.0 * clock_s,
    )
    report = ServingReport(
        clock_ms=1000.0 * clock_s,
        requests=round(50 * clock_s),
        queue=2,
        in_flight=3,
        live_prefix_bytes=1 << 20,
        pre_infer=counts,
    )
    return AgentStatus(
        agent_start_id="a1",
        uid="u0",
        generation=1,
        engine=EngineReport(reachable=reachable, start_id=start_id),
        strategy_in_force="Static",
        reason="StaticTarget",
        message="",
        frozen=False,
        decisions=0,
        p99_ms=p99_ms,
        serving=report if serving else None,
    )


class World:
    """A clock, a book of statuses, and the source over both."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.book = AgentBook()
        self.source = AgentsSource(self.book, clock=self.clock)

    def hear(self, uid: str, heard: AgentStatus) -> None:
        self.book.note(uid, heard, now_s=self.clock.monotonic())

    async def read(self, *instances: InstanceName) -> PoolMetrics:
        return await self.source.read(POOL, instances or (ONE,))

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)


@pytest.fixture
def world() -> World:
    return World()


async def test_two_statuses_of_one_process_make_everything_fresh(world: World) -> None:
    world.hear("u0", status(100.0))
    first = await world.read()
    await world.pass_time(10.0)
    world.hear("u0", status(110.0))
    second = await world.read()
    assert first.instances[0].rates == Rates()
    assert first.instances[0].queue == Fresh(value=2.0)
    assert (first.state, first.condition_reason) == (SourceState.MISSING, "Missing")
    load = second.instances[0]
    assert (second.state, second.doubt, second.message) == (SourceState.FRESH, None, "")
    assert load.rates.requests == Fresh(value=50.0)
    assert load.rates.accepted == Fresh(value=4.0)
    assert load.rates.late == Fresh(value=1.0)
    assert load.busy_slots == Fresh(value=1.0)
    assert load.live_prefix_bytes == Fresh(value=float(1 << 20))
    assert load.p99_ms == Fresh(value=30.0)
    assert pool_sum(second.instances, lambda i: i.queue) == Fresh(value=2.0)


async def test_a_new_process_begins_anew_and_is_never_negative(world: World) -> None:
    for heard in (status(100.0), status(110.0), status(1.0, start_id="s2")):
        world.hear("u0", heard)
        answer = await world.read()
        await world.pass_time(10.0)
    assert answer.instances[0].rates == Rates()
    assert answer.instances[0].busy_slots == Missing()
    assert answer.state is SourceState.MISSING


async def test_an_engine_whose_clock_stands_still_becomes_stale_although_its_agent_answers(world: World) -> None:
    world.hear("u0", status(100.0))
    await world.read()
    await world.pass_time(10.0)
    for _ in range(8):
        world.hear("u0", status(110.0))
        answer = await world.read()
        await world.pass_time(10.0)
    assert isinstance(answer.instances[0].rates.requests, Stale)
    assert (answer.state, answer.doubt) == (SourceState.STALE, Doubt.STALE)


async def test_an_agent_that_falls_silent_becomes_stale(world: World) -> None:
    world.hear("u0", status(100.0))
    await world.read()
    await world.pass_time(10.0)
    world.hear("u0", status(110.0))
    assert (await world.read()).state is SourceState.FRESH
    await world.pass_time(60.0)
    assert (await world.read()).state is SourceState.FRESH
    await world.pass_time(1.0)
    assert (await world.read()).instances[0].queue == Stale(age_ms=61_000.0)


@pytest.mark.parametrize("heard", [None, status(100.0, reachable=False), status(100.0, serving=False)])
async def test_nobody_to_hear_is_missing(world: World, heard: AgentStatus | None) -> None:
    if heard is not None:
        world.hear("u0", heard)
    answer = await world.read()
    assert answer.instances[0].rates == Rates()
    assert answer.instances[0].queue == Missing()
    assert "ranker-0" in answer.message


async def test_one_silent_instance_of_two_is_partial_and_named_by_its_doubt(world: World) -> None:
    for clock_s in (100.0, 110.0):
        world.hear("u0", status(clock_s))
        answer = await world.read(ONE, TWO)
        await world.pass_time(10.0)
    assert (answer.state, answer.condition_reason) == (SourceState.PARTIAL, "Missing")
    assert answer.message.startswith("1 of 2 ready instances are in doubt")
    assert pool_sum(answer.instances, lambda i: i.queue) == Missing()


async def test_an_instance_that_is_not_ready_raises_no_doubt(world: World) -> None:
    starting = InstanceName(name="ranker-1", uid="u1", ready=False)
    for clock_s in (100.0, 110.0):
        world.hear("u0", status(clock_s))
        answer = await world.read(ONE, starting)
        await world.pass_time(10.0)
    assert answer.state is SourceState.FRESH
    assert pool_sum(answer.instances, lambda i: i.queue) == Fresh(value=2.0)


async def test_an_idle_instance_without_a_latency_is_fresh(world: World) -> None:
    for clock_s in (100.0, 110.0):
        idle = status(clock_s, p99_ms=None)
        assert idle.serving is not None
        world.hear("u0", msgspec.structs.replace(idle, serving=msgspec.structs.replace(idle.serving, requests=7)))
        answer = await world.read()
        await world.pass_time(10.0)
    assert answer.state is SourceState.FRESH


async def test_an_engine_that_does_not_count_slot_time_is_missing_there_and_only_there(world: World) -> None:
    for clock_s in (100.0, 110.0):
        plain = status(clock_s)
        assert plain.serving is not None
        counts = msgspec.structs.replace(plain.serving.pre_infer, slot_ms=None)
        world.hear("u0", msgspec.structs.replace(plain, serving=msgspec.structs.replace(plain.serving, pre_infer=counts)))
        answer = await world.read()
        await world.pass_time(10.0)
    assert answer.instances[0].busy_slots == Missing()
    assert answer.instances[0].rates.accepted == Fresh(value=4.0)
    assert "busySlots" in answer.message


async def test_what_is_gone_is_forgotten(world: World) -> None:
    world.hear("u0", status(100.0))
    await world.read(ONE, TWO)
    await world.pass_time(10.0)
    world.hear("u0", status(110.0))
    await world.read(TWO)
    assert (await world.read(ONE)).instances[0].rates == Rates()


async def test_the_counters_of_a_real_instance_model_arrive(world: World) -> None:
    core = GRInstanceCore(InstanceConfig(pre_infer_slots=4), 7)

    def hear() -> None:
        seen = core.observe(core.clock_ms)
        told = msgspec.structs.replace(status(0.0, start_id=seen.start_id), serving=serving_of(seen))
        world.hear("u0", told)

    hear()
    await world.read()
    for number in range(40):
        key, at_ms = f"{number:032x}", core.clock_ms + 500.0
        core.pre_infer(
            PreInferRequest(request_id=f"p{number}", user_key=key, model_version=core.model.version, history_tokens=512), at_ms
        )
        core.rank(
            RankRequest(
                request_id=f"r{number}", user_key=key, model_version=core.model.version, history_tokens=512, candidates=10
            ),
            at_ms + 400.0,
        )
        core.advance(at_ms + 450.0)
    await world.pass_time(10.0)
    hear()
    load = (await world.read()).instances[0]
    assert isinstance(load.rates.accepted, Fresh)
    assert isinstance(load.rates.used, Fresh)
    assert load.rates.used.value > 0.0
    assert isinstance(load.busy_slots, Fresh)
    assert 0.0 < load.busy_slots.value < 4.0
