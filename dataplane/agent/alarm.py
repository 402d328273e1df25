"""Wakes the one task that sleeps most of the time, without a turn of the event loop where the loop allows it.

Ten times a second, with cold caches, a turn of asyncio (its timers, its ready queue, its handles) takes as long as a decision. So
`AgentLoop` lets an alarm end the sleep of its task from where the loop waits for its sockets, and goes on waiting there when that
task sleeps again; a turn follows only when something asked for one. What the task awaits is a future in the sense of asyncio, as
`_asyncio_future_blocking` says. On any other loop the alarm is an ordinary timer.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, TypeVarTuple

_Callback = Callable[[Any], object]
_Given = TypeVarTuple("_Given")


class AgentLoop(asyncio.SelectorEventLoop):
    """An event loop for a process that is mostly one task which sleeps."""

    def __init__(self) -> None:
        self.waiting = _Waiting()
        super().__init__(self.waiting)

    def call_soon(self, callback: Callable[[*_Given], object], *args: *_Given, context: Context | None = None) -> asyncio.Handle:
        """As any loop's; whoever waits is told that there is something to do."""
        self.waiting.wanted = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Given], object], *args: *_Given, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As any loop's; whoever waits is told that the time to wait may have changed."""
        self.waiting.wanted = True
        return super().call_at(when, callback, *args, context=context)


class _Waiting(selectors.DefaultSelector):
    """Where the loop waits; `alarm` is called when `due_s` has come on the clock of the loop, `wanted` asks for a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.due_s = 0.0
        self.alarm: Callable[[], None] | None = None
        self.wanted = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as the loop asks, but let alarms ring meanwhile."""
        now_s = time.monotonic()
        until_s = None if timeout is None else now_s + timeout
        while self.alarm is not None and (until_s is None or self.due_s <= until_s):
            if self.due_s > now_s:
                ready: list[tuple[selectors.SelectorKey, int]] = super().select(self.due_s - now_s)
                if ready:
                    return ready
            ring, self.alarm, self.wanted = self.alarm, None, False
            ring()
            if self.wanted:
                return []
            now_s = time.monotonic()
        left_s = None if until_s is None else max(until_s - now_s, 0.0)
        rest: list[tuple[selectors.SelectorKey, int]] = super().select(left_s)
        return rest


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
            sleep.begin(delay_s)
            try:
                await sleep
            finally:
                sleep.forget()
                self._sleep = None
        rung, self._rung = self._rung, False
        return rung


class _Sleep:
    """What the task awaits: done once, with nothing as its result."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_done", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._callback: _Callback | None = None
        self._context: Context | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done = self._cancelled = False

    def begin(self, delay_s: float) -> None:
        """Let the time run; a sleep of no length still lets the loop have a turn."""
        if isinstance(self._loop, AgentLoop) and delay_s > 0.0 and self._loop.waiting.alarm is None:
            self._loop.waiting.due_s, self._loop.waiting.alarm = time.monotonic() + delay_s, self._end
        else:
            self._timer = self._loop.call_later(delay_s, self._end)

    def forget(self) -> None:
        """Let nothing ring any more."""
        if self._timer is not None:
            self._timer.cancel()
        elif isinstance(self._loop, AgentLoop) and self._loop.waiting.alarm == self._end:
            self._loop.waiting.alarm = None

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
