"""The work queue keeps client-go's promises: no duplicates, no key in two hands, back-off for each key by itself."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime.clock import FakeClock, settle
from controllers.runtime.metrics import Metrics
from controllers.runtime.queue import WorkQueue


def make(clock: FakeClock | None = None) -> tuple[WorkQueue[str], FakeClock, Metrics]:
    clock, metrics = clock or FakeClock(), Metrics()
    return WorkQueue("q", clock=clock, rng=random.Random(1), metrics=metrics, base_seconds=1, cap_seconds=60), clock, metrics


async def test_a_key_added_twice_is_given_out_once() -> None:
    queue, _, metrics = make()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    assert metrics.registry.get_sample_value("workqueue_adds_total", {"name": "q"}) == 1


async def test_a_key_added_while_worked_on_comes_round_again_only_after_done() -> None:
    queue, _, _ = make()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_a_delayed_key_waits_for_its_time_and_the_earlier_of_two_times_wins() -> None:
    queue, clock, _ = make()
    timers = asyncio.create_task(queue.run_timers())
    queue.add_after("a", 10)
    queue.add_after("a", 4)
    queue.add_after("a", 7)
    await clock.advance(3.9)
    assert len(queue) == 0
    await clock.advance(0.2)
    assert await queue.get() == "a"
    queue.done("a")
    await clock.advance(20)
    assert len(queue) == 0
    timers.cancel()


async def test_a_sooner_delay_wakes_the_timer_that_sleeps_for_a_later_one() -> None:
    queue, clock, _ = make()
    timers = asyncio.create_task(queue.run_timers())
    queue.add_after("late", 100)
    await settle()
    queue.add_after("soon", 1)
    await clock.advance(1)
    assert await queue.get() == "soon"
    timers.cancel()


async def test_what_events_ask_for_goes_before_routine_looks_which_still_get_their_turn() -> None:
    queue, clock, _ = make()
    timers = asyncio.create_task(queue.run_timers())
    for number in range(3):
        queue.add_after(f"routine{number}", 1)
    await clock.advance(1)
    for number in range(10):
        queue.add(f"event{number}")
    queue.add("routine2")  # an event makes it urgent
    assert len(queue) == 13
    taken = [await queue.get() for _ in range(13)]
    timers.cancel()
    events = [f"event{number}" for number in range(10)]
    assert taken == [*events[:7], "routine0", *events[7:], "routine2", "routine1"]


async def test_clearing_forgets_routine_looks_too() -> None:
    queue, clock, _ = make()
    timers = asyncio.create_task(queue.run_timers())
    queue.add_after("a", 1)
    await clock.advance(1)
    queue.clear()
    assert queue.idle
    queue.add("a")
    assert await queue.get() == "a"
    timers.cancel()


async def test_back_off_doubles_with_jitter_up_to_the_cap_and_forget_starts_it_again() -> None:
    queue, _, metrics = make()
    delays = [queue.add_rate_limited("a") for _ in range(12)]
    for number, delay in enumerate(delays):
        assert min(60, 2**number) * 0.5 <= delay <= min(60, 2**number)
    assert queue.add_rate_limited("b") <= 1
    queue.forget("a")
    assert queue.add_rate_limited("a") <= 1
    assert metrics.registry.get_sample_value("workqueue_retries_total", {"name": "q"}) == 14


async def test_a_server_that_asks_for_more_patience_gets_it() -> None:
    queue, _, _ = make()
    assert queue.add_rate_limited("a", at_least_seconds=33) == 33


async def test_a_getter_that_is_cancelled_after_being_chosen_hands_the_key_on() -> None:
    queue, _, _ = make()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


async def test_clearing_forgets_what_waits_but_not_what_is_in_work() -> None:
    queue, _, _ = make()
    queue.add("working")
    assert await queue.get() == "working"
    queue.add("waiting")
    queue.add_after("later", 5)
    queue.clear()
    assert len(queue) == 0
    queue.done("working")
    assert queue.idle


async def test_depth_latency_and_the_longest_running_work_are_measured() -> None:
    queue, clock, metrics = make()
    sample = metrics.registry.get_sample_value
    queue.add("a")
    assert sample("workqueue_depth", {"name": "q"}) == 1
    await clock.advance(2)
    await queue.get()
    assert sample("workqueue_queue_duration_seconds_sum", {"name": "q"}) == 2
    await clock.advance(3)
    assert sample("workqueue_longest_running_processor_seconds", {"name": "q"}) == 3
    queue.done("a")
    assert sample("workqueue_work_duration_seconds_sum", {"name": "q"}) == 3


@settings(max_examples=60, deadline=None)
@given(
    adds=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["add", "after", "limited"]), st.integers(0, 3)), max_size=60),
    workers=st.integers(1, 4),
)
def test_no_key_is_ever_in_two_hands_and_none_is_lost(adds: list[tuple[int, str, int]], workers: int) -> None:
    async def play() -> None:
        queue, clock, _ = make()
        in_hand: set[str] = set()
        last_taken: dict[str, int] = {}
        last_added: dict[str, int] = {}
        step = 0

        async def work() -> None:
            while True:
                key = await queue.get()
                assert key not in in_hand
                in_hand.add(key)
                last_taken[key] = step
                await clock.sleep(1.5)
                in_hand.discard(key)
                queue.done(key)

        tasks = [asyncio.create_task(queue.run_timers()), *(asyncio.create_task(work()) for _ in range(workers))]
        for number, how, wait in adds:
            step += 1
            key = f"k{number}"
            last_added[key] = step
            if how == "add":
                queue.add(key)
            elif how == "after":
                queue.add_after(key, float(wait))
            else:
                queue.add_rate_limited(key)
            await clock.advance(float(wait))
        step += 1
        await clock.advance(5000)
        assert queue.idle
        assert all(last_taken[key] >= added for key, added in last_added.items())
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()

    asyncio.run(play())
