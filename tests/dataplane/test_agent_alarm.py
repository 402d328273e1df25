"""The alarm clock of the loop: time, a word before time, and a cancelled sleep."""

import asyncio
import contextvars

import pytest

from dataplane.agent.alarm import Alarm


async def test_a_sleeper_wakes_by_itself_and_as_often_as_it_sleeps() -> None:
    alarm = Alarm()
    assert [await alarm.sleep(0.001) for _ in range(5)] == [False] * 5
    assert await alarm.sleep(-1.0) is False


async def test_a_word_wakes_it_before_its_time_once() -> None:
    alarm = Alarm()
    asyncio.get_running_loop().call_later(0.001, alarm.ring)
    assert await asyncio.wait_for(alarm.sleep(3600.0), 10.0) is True
    assert await alarm.sleep(0.0) is False


async def test_a_word_said_while_it_was_awake_is_not_lost_and_two_count_as_one() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    assert await asyncio.wait_for(alarm.sleep(3600.0), 10.0) is True
    assert await alarm.sleep(0.0) is False


async def test_a_cancelled_sleep_ends_its_task_and_leaves_a_clock_that_still_works() -> None:
    alarm = Alarm()
    task = asyncio.create_task(alarm.sleep(3600.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await alarm.sleep(0.0) is False


async def test_a_task_cancelled_in_the_turn_in_which_it_is_woken_ends() -> None:
    alarm = Alarm()
    for ring_first in (True, False):
        task = asyncio.create_task(alarm.sleep(3600.0))
        await asyncio.sleep(0)
        for act in (alarm.ring, task.cancel) if ring_first else (task.cancel, alarm.ring):
            act()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10.0)
        assert await alarm.sleep(0.0) in (True, False)


async def test_the_task_goes_on_in_its_own_context_and_is_the_current_one() -> None:
    seen = contextvars.ContextVar("seen", default="")
    alarm = Alarm()

    async def sleeper() -> tuple[str, bool]:
        seen.set("mine")
        await alarm.sleep(0.001)
        return seen.get(), asyncio.current_task() is task

    task = asyncio.create_task(sleeper())
    assert await task == ("mine", True)
    assert seen.get() == ""


async def test_what_a_woken_task_raises_is_its_own() -> None:
    alarm = Alarm()

    async def sleeper() -> None:
        await alarm.sleep(0.001)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await asyncio.create_task(sleeper())
