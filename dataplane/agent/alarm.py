"""Wakes one task at a time, or before it at somebody's word, in the very turn of the event loop in which the time has come.

`asyncio.Event` with a timer needs a second turn: the timer sets the event, and the task goes on when the loop comes round again.
Ten times a second, with cold caches, such a turn costs as much as a decision. What the task awaits here is a future in the
sense of asyncio (it says so by `_asyncio_future_blocking`) that calls the task back straight from the timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

_Callback = Callable[[Any], object]


class Alarm:
    """An alarm clock for one sleeper."""

    def __init__(self) -> None:
        self._rung = False
        self._sleep: _Sleep | None = None

    def ring(self) -> None:
        """Wake the sleeper now, or keep it from falling asleep next time."""
        self._rung = True
        if self._sleep is not None:
            self._sleep.end_soon()

    async def sleep(self, delay_s: float) -> bool:
        """Sleep for so many seconds and return False, or True when it was rung before that."""
        if not self._rung:
            self._sleep = sleep = _Sleep(asyncio.get_running_loop())
            timer = sleep.begin(delay_s)
            try:
                await sleep
            finally:
                timer.cancel()
                self._sleep = None
        rung, self._rung = self._rung, False
        return rung


class _Sleep:
    """What the task awaits: done once, with nothing as its result."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_done", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._callback: _Callback | None = None
        self._context: Context | None = None
        self._done = self._cancelled = False

    def begin(self, delay_s: float) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, self._end)

    def end_soon(self) -> None:
        """End in the next turn: whoever says so is in the middle of something."""
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self._done:
            return
        self._done = True
        callback, self._callback = self._callback, None
        if callback is not None and self._context is not None:
            self._context.run(callback, self)

    # -- what a task asks of a future ------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, None]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, callback: _Callback, *, context: Context) -> None:
        self._callback, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        if self._done or self._cancelled:
            return False
        self._cancelled = True
        self.end_soon()
        return True

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
