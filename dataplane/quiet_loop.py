"""An event loop for a process that is mostly one task, which sleeps, asks somebody, and sleeps again.

Ten times a second, with cold caches, a turn of asyncio (its timers, its ready queue, its handles) takes as long as a decision. So
`QuietLoop` ends the wait of a task from where the loop waits for its sockets, be it for a moment or for bytes on a socket, and
goes on waiting there when that task waits again; a turn follows only when something asked for one. What the task awaits is a
future in the sense of asyncio, as `_asyncio_future_blocking` says. On any other loop the same waits are timers and readers.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, TypeVarTuple

_Callback = Callable[[Any], object]
_Given = TypeVarTuple("_Given")
_Ready = list[tuple[selectors.SelectorKey, int]]


class QuietLoop(asyncio.SelectorEventLoop):
    """A loop that needs no turn for `Wait`."""

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
    """Where the loop waits.

    `alarm` is called when `due_s` has come on the clock of the loop, a listener when there is something to read on its socket;
    `wanted` asks for a turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.due_s = 0.0
        self.alarm: Callable[[], None] | None = None
        self.wanted = False
        self._listeners: dict[int, Callable[[], None] | None] = {}

    def select(self, timeout: float | None = None) -> _Ready:
        """Wait as the loop asks, but let alarms ring and listeners hear meanwhile."""
        now_s = time.monotonic()
        until_s = None if timeout is None else now_s + timeout
        self.wanted = False
        while True:
            alarmed = self.alarm is not None and (until_s is None or self.due_s <= until_s)
            end_s = self.due_s if alarmed else until_s
            if not (alarmed and self.due_s <= now_s):
                others = self._heard(super().select(None if end_s is None else max(end_s - now_s, 0.0)))
                if others or self.wanted:
                    return others
                now_s = time.monotonic()
            if alarmed and self.alarm is not None and self.due_s <= now_s:
                ring, self.alarm = self.alarm, None
                ring()
                if self.wanted:
                    return []
                now_s = time.monotonic()
            elif until_s is not None and until_s <= now_s:
                return []

    def listen(self, fd: int, listener: Callable[[], None]) -> None:
        """Call a listener once when there is something to read; the socket stays known here until it is forgotten."""
        if fd not in self._listeners:
            self.register(fd, selectors.EVENT_READ, (None, None))
        self._listeners[fd] = listener

    def ignore(self, fd: int) -> None:
        """Call nobody any more."""
        if fd in self._listeners:
            self._listeners[fd] = None

    def forget(self, fd: int) -> None:
        """Let go of a socket: it is about to be closed, or the loop is to look after it."""
        if fd in self._listeners:
            del self._listeners[fd]
            self.unregister(fd)

    def _heard(self, ready: _Ready) -> _Ready:
        """Call who listens, and return what is ready for the loop itself."""
        if not self._listeners:
            return ready
        others = []
        for key, mask in ready:
            if key.fd not in self._listeners:
                others.append((key, mask))
                continue
            listener, self._listeners[key.fd] = self._listeners[key.fd], None
            if listener is not None:
                listener()
            else:
                self.forget(key.fd)  # its end, or bytes that nobody waits for: whoever uses it next will see
        return others


async def readable(connected: socket.socket, *, within_s: float) -> bool:
    """Wait until there is something to read, or until so much time has passed: False then."""
    wait, fd = Wait(asyncio.get_running_loop()), connected.fileno()
    wait.begin(within_s)
    wait.listen(fd)
    try:
        await wait
    finally:
        wait.forget()
        wait.ignore(fd)
    return wait.heard


def forget(connected: socket.socket) -> None:
    """Let the running loop know that a socket it has waited for is about to be closed, or to be written to in turns."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, QuietLoop):
        loop.waiting.forget(connected.fileno())


class Wait:
    """What a task awaits: done once, with nothing as its result, in time or when it was heard that there is something to read."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_done", "_loop", "_timer", "heard")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._callback: _Callback | None = None
        self._context: Context | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done = self._cancelled = self.heard = False

    def begin(self, delay_s: float) -> None:
        """Let the time run; a wait of no length still lets the loop have a turn."""
        if isinstance(self._loop, QuietLoop) and delay_s > 0.0 and self._loop.waiting.alarm is None:
            self._loop.waiting.due_s, self._loop.waiting.alarm = time.monotonic() + delay_s, self._end
        else:
            self._timer = self._loop.call_later(delay_s, self._end)

    def forget(self) -> None:
        """Let nothing ring any more."""
        if self._timer is not None:
            self._timer.cancel()
        elif isinstance(self._loop, QuietLoop) and self._loop.waiting.alarm == self._end:
            self._loop.waiting.alarm = None

    def listen(self, fd: int) -> None:
        """End when there is something to read."""
        if isinstance(self._loop, QuietLoop):
            self._loop.waiting.listen(fd, self._hear)
        else:
            self._loop.add_reader(fd, self._hear)

    def ignore(self, fd: int) -> None:
        """Listen no more."""
        if isinstance(self._loop, QuietLoop):
            self._loop.waiting.ignore(fd)
        else:
            self._loop.remove_reader(fd)

    def end_soon(self) -> None:
        """End in the next turn: whoever says so is in the middle of something."""
        self._loop.call_soon(self._end)

    def _hear(self) -> None:
        self.heard = not self._done
        self._end()

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
