"""Connections that carry one call of HTTP/1.1 at a time: through asyncio's transports, or straight on a Unix socket.

A call ten times a second finds every cache cold, and then each turn of the event loop costs more than the call itself. An engine
on a Unix socket answers within a millisecond or so, and one that is busy within a few. This is waited for in place, for
`PATIENCE_MS` at most; a later one is heard where a quiet loop waits (`dataplane/quiet_loop.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from typing import Protocol, Self, cast

from dataplane.http.answer import IncomingAnswer, Malformed, Response, UsualHead
from dataplane.quiet_loop import forget, readable

PATIENCE_MS = 10
"""Longest wait for an answer that holds up everything else in the process."""
_READ_BYTES = 32 * 1024


class ClosedByPeer(ConnectionError):
    """The connection ended before the answer did."""


class Connection(Protocol):
    """What a line needs of a connection."""

    @property
    def reusable(self) -> bool:
        """Whether it can carry another call."""
        ...

    @property
    def untouched(self) -> bool:
        """Whether nothing of the last answer came."""
        ...

    async def exchange(self, request: bytes, *, timeout_s: float) -> Response:
        """Send a request and wait for its answer; TimeoutError when that takes too long, ClosedByPeer, Malformed."""
        ...

    def abort(self) -> None:
        """Drop the connection at once."""
        ...


class UnixConnection:
    """A connected, non-blocking Unix socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._answer = IncomingAnswer()
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._asked: bytes | None = None
        self._early: Response | Exception | None = None
        self._usual = UsualHead(b"", body_bytes=0)

    @classmethod
    async def to(cls, path: str) -> Self:
        """Connect; OSError when nobody listens there."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, path)
        except BaseException:
            made.close()
            raise
        return cls(made)

    @property
    def reusable(self) -> bool:
        return self._answer.reusable

    @property
    def untouched(self) -> bool:
        return self._answer.untouched

    def abort(self) -> None:
        """Drop the connection at once."""
        self._answer.reusable = False
        forget(self._socket)
        self._socket.close()

    def body_in_place(self, request: bytes) -> bytes | None:
        """Send a request and return the body of an answer 200 that comes at once; may hold up the process for `PATIENCE_MS`.

        None when it does not come at once, or is another one: `exchange` of the very same request goes on from there then.
        """
        answer, poll = self._answer, self._poll.poll
        if self._asked is not None or answer.left_over or poll(0):
            return None
        try:
            if self._socket.send(request) != len(request):
                self.abort()
                return None
            self._asked = request
            if not poll(PATIENCE_MS):
                answer.begin()
                return None
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            answer.begin()
            return None  # `exchange` finds it too
        answer.begin()
        try:
            response = self._early = self._took_again(data)
        except (Malformed, ValueError, ClosedByPeer) as error:
            self._early = error
            return None
        if response is None or response.status != 200:
            return None
        self._asked = self._early = None
        return response.body

    async def exchange(self, request: bytes, *, timeout_s: float) -> Response:
        """See `Connection.exchange`."""
        answer, sent, again = self._answer, 0, self._asked is request
        try:
            if again:
                sent, early = len(request), self._early
                self._asked = self._early = None
                if isinstance(early, Exception):
                    raise early
                if early is not None:
                    return early
            else:
                answer.begin()
                if self._asked is not None or answer.left_over or self._poll.poll(0):
                    raise ClosedByPeer  # its end, or bytes that nobody asked for
                with contextlib.suppress(BlockingIOError):
                    sent = self._socket.send(request)
            until_s = time.monotonic() + timeout_s
            if sent < len(request):
                await self._send_rest(request[sent:], within_s=timeout_s)
            return await self._heard(until_s, again=again)
        except ConnectionError as error:
            raise ClosedByPeer from error

    async def _send_rest(self, unsent: bytes, *, within_s: float) -> None:
        """Send what did not go out at once, with the event loop going on meanwhile."""
        forget(self._socket)
        async with asyncio.timeout(within_s):
            await asyncio.get_running_loop().sock_sendall(self._socket, unsent)

    async def _heard(self, until_s: float, *, again: bool) -> Response:
        """Read the rest of the answer, with the event loop going on meanwhile."""
        while True:
            if not await readable(self._socket, within_s=until_s - time.monotonic()):
                raise TimeoutError
            data = self._socket.recv(_READ_BYTES)
            response = self._took_again(data) if again and self._answer.untouched else self._took(data)
            if response is not None:
                return response

    def _took_again(self, data: bytes) -> Response | None:
        """The answer that begins with `data` to a request that is made again and again: without header lines if as usual."""
        body = self._usual.body_of(data)
        if body is not None:
            return Response(200, {}, body)
        response = self._took(data)
        if response is not None and response.status == 200 and self.reusable:
            self._usual = UsualHead(data, body_bytes=len(response.body))
        return response

    def _took(self, data: bytes) -> Response | None:
        answer = self._answer
        if data:
            answer.take(data)
        response = answer.parsed(ended=not data)
        if response is None and not data:
            raise ClosedByPeer
        answer.reusable = answer.reusable and bool(data) and not answer.left_over
        return response


class StreamConnection(asyncio.Protocol):
    """A connection of asyncio's, TLS or not."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._answer = IncomingAnswer()

    @property
    def reusable(self) -> bool:
        return self._answer.reusable

    @property
    def untouched(self) -> bool:
        return self._answer.untouched

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    async def exchange(self, request: bytes, *, timeout_s: float) -> Response:
        """See `Connection.exchange`."""
        self._answer.begin()
        if self._transport is None or self._transport.is_closing() or self._answer.left_over:
            raise ClosedByPeer
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._transport.write(request)
        deadline = loop.call_later(timeout_s, self._give_up)
        try:
            return await self._waiter
        finally:
            deadline.cancel()

    def _give_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def abort(self) -> None:
        """Drop the connection at once."""
        self._answer.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        answer.take(data)
        if self._waiter is None or self._waiter.done():
            self.abort()  # nobody asked
            return
        try:
            response = answer.parsed(ended=False)
        except (Malformed, ValueError) as error:
            answer.reusable = False
            self._waiter.set_exception(error if isinstance(error, Malformed) else Malformed("not HTTP"))
            return
        if response is not None:
            answer.reusable = answer.reusable and not answer.left_over
            self._waiter.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        self._answer.reusable = False
        if self._waiter is None or self._waiter.done():
            return
        response = None
        with contextlib.suppress(Malformed, ValueError):
            response = self._answer.parsed(ended=error is None)
        if response is not None:
            self._waiter.set_result(response)
        else:
            self._waiter.set_exception(ClosedByPeer())
