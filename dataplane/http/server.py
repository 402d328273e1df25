"""A small HTTP/1.1 server, on h11: bounded in bodies, connections and time, one request at a time on each connection.

The whole of an agent should weigh less beside a serving process than a general web framework does; what HTTP is, h11 knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import h11

from contract.sockets import CannotListen, is_answered, owner_only

MAX_CONNECTIONS = 128
"""An operator, a Prometheus, probes and a few people. Above it whoever has not asked for longest is hung up on, and would come
back; where all are in the middle of a request, more are turned away."""
MAX_AHEAD_BYTES = 64 * 1024
"""What a caller may send of its next requests while one is answered."""
MAX_LINGER_BYTES = 8 * 1024 * 1024
LINGER_SECONDS = 5.0
"""How much of a refused body, and for how long, is still taken and dropped, so that the caller gets to read the answer."""
IDLE_SECONDS = 75.0
"""How long a connection may wait for a request; longer than clients keep theirs."""
REQUEST_SECONDS = 30.0
"""How long a request may take to come in whole."""
log = logging.getLogger("grfleet.agent")


class Request(NamedTuple):
    """A whole request: method, path and query as they came, and the body, None where it was larger than allowed."""

    method: str
    path: str
    query: str
    body: bytes | None


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Handler(NamedTuple):
    """What answers one kind of request.

    `most_bytes` bounds the body. `before_body` may answer on the head alone, then nothing of a body is read.
    """

    answer: Callable[[Request], Awaitable[Answer]]
    most_bytes: int = 0
    before_body: Callable[[Request], Answer | None] | None = None


Route = Callable[[str, str], Handler | Answer]
"""Finds the handler of (method, path), or says why there is none."""


@contextlib.asynccontextmanager
async def serving(route: Route, url: str) -> AsyncIterator[str]:
    """Serve on `unix:/path` or `http://host:port` (port 0 takes a free one) inside the block; gives the address in force.

    Raises
    ------
    CannotListen
        When the address has another form, is taken, or the system refuses it.
    """
    connections: dict[_Connection, None] = {}
    loop = asyncio.get_running_loop()

    def connect() -> _Connection:
        return _Connection(route, connections)

    path = Path(url.removeprefix("unix:")) if url.startswith("unix:") else None
    try:
        if path is not None:
            _claim(path)
            with owner_only():
                server = await loop.create_unix_server(connect, str(path))
        else:
            parts = urlsplit(url)
            if parts.scheme != "http" or parts.hostname is None:
                raise CannotListen(f"{url}: use http://host:port or unix:/path")
            server = await loop.create_server(connect, parts.hostname, parts.port or 0)
    except (OSError, ValueError) as error:
        raise CannotListen(f"{url}: {error}") from error
    try:
        yield url if path is not None else _address(server)
    finally:
        server.close()
        for connection in list(connections):
            connection.close()
        if path is not None:
            _forget(path)


def _claim(path: Path) -> None:
    """Refuse a path that somebody serves on; once, at the start, when nothing waits yet."""
    if is_answered(path):
        raise CannotListen(f"unix:{path}: another process answers there; stop it or choose another path")


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


def _address(server: asyncio.Server) -> str:
    host, port = server.sockets[-1].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, route: Route, connections: dict[_Connection, None]) -> None:
        self._route = route
        self._connections = connections
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._request: Request | None = None
        self._body: bytearray | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ahead = 0
        self._lingering = False
        self._stuffed = False  # an answer waits until the caller takes it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        if len(self._connections) >= MAX_CONNECTIONS and not self._find_room():
            transport.abort()
            return
        self._wait_for_a_request()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.pop(self, None)
        self._expect(None)
        if self._task is not None:
            self._task.cancel()

    def _wait_for_a_request(self) -> None:
        """Stand last among those that wait: the first of them makes room for others."""
        self._connections.pop(self, None)
        self._connections[self] = None
        self._expect(IDLE_SECONDS)

    def _find_room(self) -> bool:
        """Hang up on whoever has waited longest without a request; False where nobody waits."""
        idle = next((each for each in self._connections if each._request is None and each._task is None), None)
        if idle is not None:
            del self._connections[idle]
            idle._leave()
        return idle is not None

    def close(self) -> None:
        """Hang up, once the caller has taken what it was answered; it has as long for that as for a request."""
        if self._transport is not None:
            unsent = self._transport.get_write_buffer_size()
            self._transport.close()
            if unsent:
                self._expect(REQUEST_SECONDS, self._transport.abort)
        if self._task is not None:
            self._task.cancel()

    def _leave(self) -> None:
        """Hang up on a caller that had its time; what it has not taken is dropped."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()
        self.close()

    def pause_writing(self) -> None:
        """Answer nothing more until the caller has taken what it asked for: answers are large, and requests are small."""
        self._stuffed = True

    def resume_writing(self) -> None:
        self._stuffed = False
        if self._transport is not None and not self._transport.is_closing() and not self._lingering and self._task is None:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._ahead += len(data)
            if self._ahead > MAX_LINGER_BYTES:
                self.close()
            return
        self._http.receive_data(data)
        if self._task is not None or self._stuffed:  # the next request, while this one is answered
            self._ahead += len(data)
            if self._ahead > MAX_AHEAD_BYTES:
                self.close()
            return
        self._go_on()

    def eof_received(self) -> None:
        """Whoever goes away wants no answer any more: the connection is closed, its task cancelled, and what is unsent
        has an end."""
        self.close()

    def _expect(self, seconds: float | None, otherwise: Callable[[], object] | None = None) -> None:
        """Hang up after so long, unless something else is said before."""
        if self._deadline is not None:
            self._deadline.cancel()
        later = asyncio.get_running_loop().call_later
        self._deadline = later(seconds, otherwise or self._leave) if seconds is not None else None

    def _go_on(self) -> None:
        """Take in what has come, up to the end of one request."""
        try:
            while self._task is None and not self._stuffed:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self._expect(REQUEST_SECONDS)
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._add(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._finish()
                elif event is h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        self._send(h11.InformationalResponse(status_code=100, headers=[]))
                    return
                else:  # the caller has closed its side, or nothing more can come on this connection
                    self.close()
                    return
        except h11.RemoteProtocolError as error:
            self._reply(_problem(error.error_status_hint, str(error)), last=True)

    def _begin(self, head: h11.Request) -> None:
        path, _, query = head.target.decode("latin-1").partition("?")
        self._request = Request(head.method.decode("latin-1"), path, query, None)
        found = self._route(self._request.method, path)
        early = found if isinstance(found, Answer) else None
        if isinstance(found, Handler):
            self._handler = found
            early = found.before_body(self._request) if found.before_body is not None else None
        if early is not None:
            self._reply(early, last=True)
        self._body = bytearray()

    def _add(self, data: bytes) -> None:
        if self._handler is None or self._body is None:
            return
        self._body += data
        if len(self._body) > self._handler.most_bytes:
            self._body = None
            self._finish()  # the rest is not read

    def _finish(self) -> None:
        if self._handler is None or self._request is None or self._http.our_state is not h11.SEND_RESPONSE:
            return
        self._expect(None)
        request = self._request._replace(body=bytes(self._body) if self._body is not None else None)
        self._task = asyncio.create_task(self._answer(self._handler, request))

    async def _answer(self, handler: Handler, request: Request) -> None:
        try:
            answer = await handler.answer(request)
        except Exception:
            log.exception("an answer failed", extra={"path": request.path[:200]})
            answer = _problem(500, "an internal error, see the log")
        self._task = None
        self._reply(answer, last=request.body is None)

    def _reply(self, answer: Answer, *, last: bool) -> None:
        """Send an answer; after the last one, or when the caller must not go on, hang up."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.close()
            return
        headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body)))]
        if last:
            headers.append(("connection", "close"))
        self._send(h11.Response(status_code=answer.status, headers=headers))
        if self._request is None or self._request.method != "HEAD":
            self._send(h11.Data(data=answer.body))
        self._send(h11.EndOfMessage())
        self._handler = self._request = self._body = None
        if last or self._http.states[h11.SERVER] is not h11.DONE:
            self._hang_up()
            return
        self._http.start_next_cycle()
        self._wait_for_a_request()
        self._ahead = 0
        self._go_on()

    def _hang_up(self) -> None:
        """Close; while a body is still coming only this side at first, or the caller would lose the answer too."""
        if self._transport is not None and self._http.their_state is h11.SEND_BODY and self._transport.can_write_eof():
            self._lingering, self._ahead = True, 0
            self._transport.write_eof()
            self._expect(LINGER_SECONDS)
        else:
            self.close()

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)


def _problem(status: int, reason: str) -> Answer:
    text = "".join(mark if mark.isprintable() and mark not in '"\\' else "?" for mark in reason[:200])
    return Answer(status, f'{{"reason":"{text}"}}'.encode())
