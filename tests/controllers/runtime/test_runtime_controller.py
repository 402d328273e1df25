"""After each reconcile exactly one thing happens: forget, back off, or look again later; and it is counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from controllers.runtime.clock import FakeClock
from controllers.runtime.controller import CLUSTER_RETRY_SECONDS, Controller, Result
from controllers.runtime.errors import Conflict, Forbidden, KindMissing, NotLeader, SchemaMismatch, Terminal, Transient
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import Key

KEY = Key("ns", "pool")


def make(reconcile: Callable[[Key], Awaitable[Result | None]], **options: object) -> tuple[Controller, FakeClock, Metrics]:
    clock, metrics = FakeClock(), Metrics()
    controller = Controller(
        "pool",
        reconcile,
        kind="GRServingPool",
        clock=clock,
        rng=random.Random(1),
        metrics=metrics,
        **options,  # type: ignore[arg-type] # options of one test
    )
    return controller, clock, metrics


def total(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"controller_runtime_{name}", {"controller": "pool", **labels})


@pytest.mark.parametrize(
    ("outcome", "result", "failures"),
    [
        (None, "success", 0),
        (Result(), "success", 0),
        (Result(requeue_after=5), "requeue_after", 0),
        (Transient("Busy", "later"), "error", 1),
        (Conflict("Conflict", "moved"), "conflict", 1),
        (Terminal("InvalidSpec", "unreadable"), "terminal", 0),
        (SchemaMismatch("SchemaMismatch", "unknown field"), "terminal", 1),
        (NotLeader(), "error", 1),
        (ZeroDivisionError("a bug"), "error", 1),
    ],
)
async def test_each_outcome_has_its_own_consequence(outcome: object, result: str, failures: int) -> None:
    async def reconcile(key: Key) -> Result | None:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[return-value] # a Result or None

    controller, _, metrics = make(reconcile)
    controller.queue.add(KEY)
    await controller.process_next()
    assert total(metrics, "reconcile_total", result=result) == 1
    assert controller.queue.failures(KEY) == failures
    assert controller.queue.idle
    assert total(metrics, "reconcile_panics_total") == (1 if isinstance(outcome, ZeroDivisionError) else 0)
    assert total(metrics, "active_workers") == 0


@pytest.mark.parametrize("kind", [Forbidden, KindMissing, SchemaMismatch])
async def test_a_key_in_whose_way_the_cluster_stood_is_looked_at_again_because_no_event_will_tell(kind: type[Terminal]) -> None:
    outcomes: list[Exception | None] = [kind("Reason", "not yet"), None]

    async def reconcile(key: Key) -> Result | None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome
        return None

    controller, clock, metrics = make(reconcile)
    running = asyncio.create_task(controller.run())
    controller.queue.add(KEY)
    await clock.advance(CLUSTER_RETRY_SECONDS - 0.1)
    assert len(outcomes) == 1
    await clock.advance(0.2)
    assert not outcomes
    assert total(metrics, "reconcile_total", result="success") == 1
    running.cancel()


async def test_a_key_that_asked_for_another_look_gets_it_at_that_time() -> None:
    seen: list[float] = []

    async def reconcile(key: Key) -> Result:
        seen.append(clock.monotonic())
        return Result(requeue_after=10)

    controller, clock, _ = make(reconcile, all_keys=lambda: [KEY], resync_seconds=1e9)
    running = asyncio.create_task(controller.run())
    await clock.advance(35)
    assert seen == [0, 10, 20, 30]
    running.cancel()


async def test_a_failing_key_backs_off_while_the_others_go_on() -> None:
    seen: list[Key] = []

    async def reconcile(key: Key) -> None:
        seen.append(key)
        if key == KEY:
            raise Transient("Busy", "later")

    other = Key("ns", "other")
    controller, clock, _ = make(reconcile, all_keys=lambda: [KEY], resync_seconds=1e9)
    running = asyncio.create_task(controller.run())
    for _ in range(100):
        controller.queue.add(other)
        await clock.advance(1)
    assert seen.count(other) == 100
    assert 7 <= seen.count(KEY) <= 12
    running.cancel()


async def test_a_reconcile_that_hangs_is_cut_off_and_tried_again() -> None:
    calls = 0

    async def reconcile(key: Key) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    controller, clock, metrics = make(reconcile, timeout_seconds=60, all_keys=lambda: [KEY], resync_seconds=1e9)
    running = asyncio.create_task(controller.run())
    await clock.advance(59)
    assert total(metrics, "active_workers") == 1
    await clock.advance(3)
    assert calls == 2
    assert total(metrics, "reconcile_total", result="success") == 1
    running.cancel()


async def test_the_resync_looks_at_every_key_once_in_a_while() -> None:
    seen: list[Key] = []

    async def reconcile(key: Key) -> None:
        seen.append(key)

    controller, clock, _ = make(reconcile, all_keys=lambda: [KEY], resync_seconds=600)
    running = asyncio.create_task(controller.run())
    await clock.advance(3600)
    assert 6 <= len(seen) <= 8
    running.cancel()


async def test_stopping_cancels_the_work_in_hand_and_empties_the_queue() -> None:
    cancelled = asyncio.Event()

    async def reconcile(key: Key) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    controller, clock, _ = make(reconcile, workers=1, all_keys=lambda: [KEY, Key("ns", "b")])
    running = asyncio.create_task(controller.run())
    await clock.advance(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert cancelled.is_set()
    assert len(controller.queue) == 0
