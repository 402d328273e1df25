"""Connections that carry one call of HTTP/1.1 at a time: through asyncio's transports, or straight on a Unix socket.

A call ten times a second finds every cache cold, and then each turn of the event loop costs more than the call itself. An engine
on a Unix socket answers within a millisecond or so; this is waited for in place, for `PATIENCE_MS` at most, and only a slow
answer is left to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from typing import Protocol, Self

from dataplane.agent.http_answer import IncomingAnswer, Malformed, Response

PATIENCE_MS = 5
"""Longest wait for an answer that holds up everything else in the process."""
RESERVE = 16
"""Calls that are left to the event loop at once after one that was not answered in place."""
_READ_BYTES = 256 * 1024


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
        self._left_to_loop = 0

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
        self._socket.close()

    async def exchange(self, request: bytes, *, timeout_s: float) -> Response:
        """See `Connection.exchange`; may hold up the process for `PATIENCE_MS`."""
        answer = self._answer
        answer.begin()
        if answer.left_over or self._poll.poll(0):
            raise ClosedByPeer  # its end, or bytes that nobody asked for
        try:
            try:
                sent = self._socket.send(request)
            except BlockingIOError:
                sent = 0
            if sent == len(request):
                if self._left_to_loop:
                    self._left_to_loop -= 1
                elif self._poll.poll(PATIENCE_MS):
                    response = self._took(self._socket.recv(_READ_BYTES))
                    if response is not None:
                        return response
                else:
                    self._left_to_loop = RESERVE
            async with asyncio.timeout(timeout_s):
                return await self._exchange_in_turns(request[sent:])
        except ConnectionError as error:
            raise ClosedByPeer from error

    async def _exchange_in_turns(self, unsent: bytes) -> Response:
        """Send what is left and read the rest of the answer, with the event loop going on meanwhile."""
        loop = asyncio.get_running_loop()
        if unsent:
            await loop.sock_sendall(self._socket, unsent)
        while True:
            response = self._took(await loop.sock_recv(self._socket, _READ_BYTES))
            if response is not None:
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
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

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
