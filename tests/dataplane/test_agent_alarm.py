"""The alarm clock of the agent's loop: time, a word before time, a cancelled sleep, and whatever else has its turn meanwhile."""

import asyncio
import contextvars
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from both_loops import FAR_S, Counting, on_both_loops

from dataplane.agent.alarm import Alarm
from dataplane.quiet_loop import QuietLoop

Scenario = Callable[[Alarm], Coroutine[Any, Any, None]]


def with_alarm(scenario: Scenario) -> Callable[[type[asyncio.AbstractEventLoop]], None]:
    """A test that runs a scenario on the agent's own loop, where the alarm needs no turn, and on an ordinary one."""

    async def run() -> None:
        await scenario(Alarm())

    return on_both_loops(run)


async def _by_itself(alarm: Alarm) -> None:
    assert [await alarm.sleep(0.001) for _ in range(5)] == [False] * 5
    assert await alarm.sleep(-1.0) is False


async def _by_a_word(alarm: Alarm) -> None:
    asyncio.get_running_loop().call_later(0.001, alarm.ring)
    assert await alarm.sleep(FAR_S) is True
    assert await alarm.sleep(0.0) is False


async def _by_a_word_said_while_awake(alarm: Alarm) -> None:
    alarm.ring()
    alarm.ring()
    assert await alarm.sleep(FAR_S) is True
    assert await alarm.sleep(0.0) is False


async def _cancelled(alarm: Alarm) -> None:
    task = asyncio.create_task(alarm.sleep(FAR_S))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await alarm.sleep(0.001) is False


async def _cancelled_in_the_turn_in_which_it_is_woken(alarm: Alarm) -> None:
    for ring_first in (True, False):
        task = asyncio.create_task(alarm.sleep(FAR_S))
        await asyncio.sleep(0)
        for act in (alarm.ring, task.cancel) if ring_first else (task.cancel, alarm.ring):
            act()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await alarm.sleep(0.0) in (True, False)


async def _in_its_own_context(alarm: Alarm) -> None:
    seen = contextvars.ContextVar("seen", default="")

    async def sleeper() -> tuple[str, bool]:
        seen.set("mine")
        await alarm.sleep(0.001)
        return seen.get(), asyncio.current_task() is task

    task = asyncio.create_task(sleeper())
    assert await task == ("mine", True)
    assert seen.get() == ""


async def _what_it_raises(alarm: Alarm) -> None:
    async def sleeper() -> None:
        await alarm.sleep(0.001)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await asyncio.create_task(sleeper())


async def _everybody_else(alarm: Alarm) -> None:
    """Timers, tasks that the sleeper starts, and sockets have their turn while it sleeps again and again."""
    done: list[str] = []
    thrice = asyncio.Event()

    async def chore() -> None:
        await asyncio.sleep(0.001)
        done.append("chore")
        if len(done) == 3:
            thrice.set()

    async def sleeper() -> None:
        chores = set()
        while True:
            await alarm.sleep(0.001)
            chores.add(asyncio.create_task(chore()))

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        task = asyncio.create_task(sleeper())
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, theirs.send, b"x")
        assert await loop.sock_recv(ours, 1) == b"x"
        async with asyncio.timeout(5.0):
            await thrice.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(FAR_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _two_alarms(alarm: Alarm) -> None:
    other = Alarm()
    assert list(await asyncio.gather(alarm.sleep(0.005), other.sleep(0.001), asyncio.sleep(0.002))) == [False, False, None]


test_it_wakes_by_itself_and_as_often_as_it_sleeps = with_alarm(_by_itself)
test_a_word_wakes_it_before_its_time_once = with_alarm(_by_a_word)
test_a_word_said_while_it_was_awake_is_not_lost_and_two_count_as_one = with_alarm(_by_a_word_said_while_awake)
test_a_cancelled_sleep_ends_its_task_and_leaves_a_clock_that_still_works = with_alarm(_cancelled)
test_a_task_cancelled_in_the_turn_in_which_it_is_woken_ends = with_alarm(_cancelled_in_the_turn_in_which_it_is_woken)
test_the_task_goes_on_in_its_own_context_and_is_the_current_one = with_alarm(_in_its_own_context)
test_what_a_woken_task_raises_is_its_own = with_alarm(_what_it_raises)
test_timers_tasks_and_sockets_have_their_turn_meanwhile = with_alarm(_everybody_else)
test_two_sleepers_wake_each_in_their_time = with_alarm(_two_alarms)


def test_on_the_loop_of_the_agent_a_sleep_needs_no_turn() -> None:
    async def sleeper() -> int:
        loop, alarm = asyncio.get_running_loop(), Alarm()
        assert isinstance(loop, Counting)
        for _ in range(50):
            await alarm.sleep(0.0005)
        return loop.turns

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(sleeper()) < 10


def test_a_sleep_that_is_over_leaves_the_alarm_of_the_loop_to_the_next_one() -> None:
    async def scenario() -> None:
        loop, alarm = asyncio.get_running_loop(), Alarm()
        assert isinstance(loop, QuietLoop)
        for end in (alarm.ring, None):
            task = asyncio.create_task(alarm.sleep(FAR_S))
            await asyncio.sleep(0)
            assert loop.waiting.alarm is not None, "no sleep needs a timer of asyncio"
            (end or task.cancel)()
            await asyncio.wait([task])
            assert loop.waiting.alarm is None

    with asyncio.Runner(loop_factory=QuietLoop) as runner:
        runner.run(asyncio.wait_for(scenario(), 20.0))
