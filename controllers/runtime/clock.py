"""Time as a port: loops, queue and elector ask a Clock, so that tests decide what time it is.

``monotonic`` measures durations and is what every deadline compares; ``now`` is only for stamps that people read.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

CLOCKS_DIFFER_SECONDS = 5.0
"""A stamp that lies further in the future than this comes from a machine whose clock is wrong."""
T = TypeVar("T")
_CANCEL_SECONDS = 0.5


class Clock(Protocol):
    """Monotonic seconds, wall time in UTC, and a sleep that follows the same clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def now(self) -> datetime:
        """Wall time with the UTC zone set."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of this clock."""


class SystemClock:
    """The machine's clock. It counts suspended time too, so that a thawed machine knows its lease is over."""

    def monotonic(self) -> float:
        """Seconds since boot, suspend included where the kernel offers it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    def now(self) -> datetime:
        """Wall time with the UTC zone set."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Sleep in the running event loop."""
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that moves only when told to; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Seconds advanced since the clock was made."""
        return self._elapsed

    def now(self) -> datetime:
        """The start plus what was advanced."""
        return self._start + timedelta(seconds=self._elapsed)

    async def sleep(self, seconds: float) -> None:
        """Wait until somebody advances the clock far enough."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking each sleeper at its own deadline and letting it run before time moves on."""
        end = self._elapsed + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            deadline, _, woken = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, deadline)
            if not woken.done():
                woken.set_result(None)
            await settle()
        self._elapsed = end
        await settle()


async def settle(turns: int = 20) -> None:
    """Give every ready task of the event loop a few turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await ``work`` for at most ``seconds`` of ``clock``.

    Raises
    ------
    TimeoutError
        When the time is over first; ``work`` is cancelled.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_take_note)
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"no answer within {seconds:g} s")
        return task.result()
    finally:
        alarm.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)  # let it clean up, but not for ever


def _take_note(task: asyncio.Future[T]) -> None:
    """An error that comes together with the cancellation of whoever waited is nobody's: do not have it logged as forgotten."""
    if not task.cancelled():
        task.exception()
