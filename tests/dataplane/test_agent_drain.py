"""The word to drain reaches the engine once and is taken back; who waits for an idle engine is let go at the right moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from dataplane_world import World

from contract.agent import IdleAnswer, IdleReason
from dataplane.agent.idle import MAX_WAITERS
from dataplane.agent.server import route_of
from dataplane.http.server import serving


async def test_the_engine_is_told_to_drain_once_and_the_status_says_so(world: World) -> None:
    world.static(50)
    await world.rounds(2)
    assert not world.agent.status().draining
    world.static(50, draining=True)
    await world.rounds(5)
    assert world.engine.drains == [True]
    assert world.agent.status().draining


async def test_a_drain_is_taken_back_once(world: World) -> None:
    world.static(50, draining=True)
    await world.rounds(2)
    world.static(50)
    await world.rounds(5)
    assert world.engine.drains == [True, False]
    assert not world.agent.status().draining


async def test_an_engine_that_was_never_told_to_drain_is_never_told_the_contrary(world: World) -> None:
    for says in (False, None):
        world.engine.draining = says
        world.agent = world.new_agent()
        world.static(50)
        await world.rounds(3)
    assert world.engine.drains == []


async def test_a_new_engine_process_is_told_again(world: World) -> None:
    world.static(50, draining=True)
    await world.rounds(2)
    world.engine.restart()
    assert world.engine.draining is False
    await world.rounds(2)
    assert world.engine.drains == [True, True]


async def test_a_new_agent_goes_on_with_the_drain_or_takes_it_back_as_its_first_intent_says(world: World) -> None:
    world.static(50, draining=True)
    await world.rounds(2)
    world.agent = world.new_agent()
    await world.rounds(2)
    assert not world.agent.status().draining  # without an intent nothing is changed
    world.static(50, draining=True)
    await world.rounds(2)
    assert world.agent.status().draining
    world.agent = world.new_agent()
    world.static(50)
    await world.rounds(2)
    assert world.engine.drains == [True, False]


async def test_a_drain_by_hand_under_an_agent_at_work_is_left_alone(world: World) -> None:
    world.static(50)
    await world.rounds(2)
    world.engine.draining = True
    await world.rounds(3)
    world.static(60)
    await world.rounds(3)
    assert world.engine.drains == []


async def test_a_lost_answer_is_asked_for_again(world: World) -> None:
    world.engine.drain_fault = "lost"
    world.static(50, draining=True)
    await world.rounds(3)
    status = world.agent.status()
    assert not status.draining
    assert "drain: POST /drain" in status.message
    world.engine.drain_fault = ""
    await world.rounds(10)
    assert world.agent.status().draining


async def test_an_engine_that_cannot_take_a_drain_back_is_asked_once_and_named(world: World) -> None:
    world.engine.drain_fault = "for ever"
    world.static(50, draining=True)
    await world.rounds(2)
    world.static(50)
    await world.rounds(5)
    assert world.engine.drains == [True, False]
    status = world.agent.status()
    assert status.draining
    assert "restart it" in status.message


async def test_idleness_counts_from_the_last_request_and_anew_from_the_word_to_drain(world: World) -> None:
    world.static(50)
    await world.rounds(3)
    assert world.agent.status().idle_seconds == 0.0  # one is in flight
    world.engine.in_flight = 0
    await world.rounds(1, requests=1)
    await world.rounds(5, requests=0)
    assert world.agent.status().idle_seconds == pytest.approx(5.0)
    world.static(50, draining=True)
    await world.rounds(1, requests=0)
    assert world.agent.status().idle_seconds == 0.0
    await world.rounds(2, requests=0)
    assert world.agent.status().idle_seconds == pytest.approx(2.0)
    await world.rounds(1, requests=1)  # it came and went between two looks
    assert world.agent.status().idle_seconds == 0.0


@pytest.mark.parametrize("fault", ["nan", "unreachable"])
async def test_without_a_reading_nobody_knows_whether_the_engine_is_idle(world: World, fault: str) -> None:
    world.engine.in_flight = 0
    world.static(50)
    await world.rounds(5, requests=0)
    world.engine.fault, world.engine.reachable = ("", False) if fault == "unreachable" else (fault, True)
    await world.rounds(1, requests=0)
    assert world.agent.status().idle_seconds is None


async def test_rounds_come_faster_while_something_waits(world: World) -> None:
    world.static(50, step={"intervalMs": 60_000})
    assert world.agent.interval_ms == 60_000
    world.static(50, step={"intervalMs": 60_000}, draining=True)
    assert world.agent.interval_ms == 500
    world.static(50, step={"intervalMs": 10}, draining=True)
    assert world.agent.interval_ms == 10
    world.static(50, step={"intervalMs": 60_000})
    waiter = waiting(world)
    await asyncio.sleep(0)
    assert world.agent.interval_ms == 500
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert world.agent.interval_ms == 60_000


# -- waiting for an idle engine ---------------------------------------------------------------------------------------------


def waiting(world: World, *, after: float = 3, deadline: float = 60) -> asyncio.Task[IdleAnswer | None]:
    return asyncio.create_task(world.agent.idle(after_s=after, deadline_s=deadline))


async def rounds_until_done(
    world: World, waiter: asyncio.Task[IdleAnswer | None], *, requests: int = 0
) -> tuple[IdleAnswer, int]:
    """The answer, and after how many rounds of a second it came."""
    for number in range(200):
        await asyncio.sleep(0)
        if waiter.done():
            answer = waiter.result()
            assert answer is not None
            return answer, number
        await world.rounds(1, requests=requests)
        await asyncio.sleep(0)
    raise AssertionError("still waiting")


async def test_a_wait_ends_when_the_engine_has_been_idle_long_enough(world: World) -> None:
    waiter = waiting(world)
    await world.rounds(5)
    await asyncio.sleep(0)
    assert not waiter.done()
    world.engine.in_flight = 0
    answer, after = await rounds_until_done(world, waiter)
    assert (answer.idle, answer.reason, answer.in_flight) == (True, IdleReason.IDLE, 0)
    assert 3 <= after <= 6
    assert waiting_callers(world) == 0


async def test_requests_that_come_and_go_keep_the_wait_until_its_deadline(world: World) -> None:
    world.engine.in_flight = 0
    answer, after = await rounds_until_done(world, waiting(world, deadline=20), requests=1)
    assert (answer.idle, answer.reason) == (False, IdleReason.DEADLINE)
    assert after == 20


async def test_prefixes_that_are_asked_for_keep_the_wait_as_well(world: World) -> None:
    world.engine.in_flight = 0
    waiter = waiting(world)
    for _ in range(10):
        world.engine.accepted += 1
        await world.rounds(1, requests=0)
        await asyncio.sleep(0)
    assert not waiter.done()
    answer, _ = await rounds_until_done(world, waiter)
    assert answer.idle


async def test_a_dead_engine_ends_the_wait_after_the_same_time(world: World) -> None:
    await world.rounds(1)
    waiter = waiting(world)
    world.engine.reachable = False
    answer, after = await rounds_until_done(world, waiter)
    assert (answer.idle, answer.reason, answer.in_flight) == (False, IdleReason.ENGINE_UNREACHABLE, None)
    assert 3 <= after <= 5


async def test_an_engine_whose_figures_cannot_be_trusted_is_waited_for_until_the_deadline(world: World) -> None:
    world.engine.fault = "nan"
    answer, after = await rounds_until_done(world, waiting(world, deadline=12))
    assert answer.reason is IdleReason.DEADLINE
    assert after == 12


async def test_waiting_needs_no_operator_no_intent_and_changes_nothing(world: World) -> None:
    world.engine.in_flight = 0
    await rounds_until_done(world, waiting(world))
    assert (world.engine.drains, world.engine.puts, world.engine.limits_asked) == ([], [], [])


async def test_the_number_of_waiters_is_bounded_and_whoever_gives_up_leaves_nothing_behind(world: World) -> None:
    waiters = [waiting(world) for _ in range(MAX_WAITERS)]
    await asyncio.sleep(0)
    assert await world.agent.idle(after_s=3, deadline_s=60) is None
    for waiter in waiters:
        waiter.cancel()
    await world.rounds(1)  # the round ends in the same turn as the callers go away
    await asyncio.gather(*waiters, return_exceptions=True)
    assert waiting_callers(world) == 0


async def callers(world: World, number: int) -> None:
    """Wait for the server to have so many, which it learns from its socket."""
    for _ in range(500):
        if waiting_callers(world) == number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{waiting_callers(world)} callers, not {number}")


def waiting_callers(world: World) -> int:
    return world.agent._idleness.waiters


@pytest.fixture
async def served(world: World) -> AsyncIterator[tuple[World, str]]:
    async with serving(route_of(world.agent), "http://127.0.0.1:0") as url:
        yield world, f"{url}/agent/v1/idle"


async def test_over_http_the_answer_is_200_whatever_ended_the_wait(served: tuple[World, str]) -> None:
    world, url = served
    world.engine.in_flight = 0
    await world.rounds(1, requests=0)
    async with httpx.AsyncClient() as client:
        for query, reason in (("afterSeconds=0&deadlineSeconds=5", "Idle"), ("afterSeconds=9&deadlineSeconds=0", "Deadline")):
            response = await client.get(f"{url}?{query}")
            assert response.status_code == 200
            assert msgspec.json.decode(response.content, type=IdleAnswer).reason == reason


@pytest.mark.parametrize(
    "query", ["afterSeconds=x", "afterSeconds=-1", "deadlineSeconds=86401", "deadlineSeconds=1e3", "afterSeconds=3601"]
)
async def test_impossible_times_are_refused_by_name(served: tuple[World, str], query: str) -> None:
    async with httpx.AsyncClient() as client:
        response = await client.get(f"{served[1]}?{query}")
    assert response.status_code == 400
    assert query.split("=")[0] in response.json()["reason"]


async def test_a_caller_that_goes_away_is_forgotten(served: tuple[World, str]) -> None:
    world, url = served
    async with httpx.AsyncClient() as client:
        call = asyncio.create_task(client.get(f"{url}?afterSeconds=5&deadlineSeconds=3000"))
        await callers(world, 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await callers(world, 0)
