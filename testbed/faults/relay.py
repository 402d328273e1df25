"""The inside of the fault proxy: passes a request on to the API server, and a watch line by line, unless a rule acts.

It lives in one event loop. A watch is pumped through a queue, so that a rule which is added later can act on a stream that
is open and silent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from testbed.faults.rules import (
    WRITES,
    Answer,
    Call,
    Cut,
    Drop,
    Duplicate,
    Freeze,
    Hold,
    Latency,
    Match,
    Page,
    Reorder,
    ResetAfter,
    ResetBefore,
    Rule,
    StreamError,
    first_to_act,
)

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host", "content-length"})
_NOT_FORWARDED = _HOP_BY_HOP | {"accept-encoding"}  # lines must be readable here
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
_CHUNK = 1 << 16


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """One request as the proxy saw it. Times are monotonic seconds of this machine.

    Attributes
    ----------
    body, answer
        What a write sent, and what the API server answered to it; empty for reads.
    status
        The API server's status; None when it was never asked or gave no answer.
    told
        The status that the client got; None when its connection was reset or it had gone.
    faults
        Names of the actions that took part.
    """

    method: str
    path: str
    user_agent: str
    watch: bool
    received_s: float
    body: bytes = b""
    status: int | None = None
    answered_s: float | None = None
    answer: bytes = b""
    told: int | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def is_write(self) -> bool:
        """Whether it could change something."""
        return self.method in WRITES

    @property
    def succeeded(self) -> bool:
        """Whether the API server did it, whatever the client was told."""
        return self.status is not None and self.status < 400

    def object(self) -> dict[str, Any]:
        """The object (or Status) that the API server answered to a write, or an empty one."""
        try:
            value = json.loads(self.answer)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class Stream:
    """One open watch: the exchange it began with, and the lines still to be passed on. None in the queue means: look at
    the rules; an exception is how the other side ended."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.lines: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()


class Relay:
    """Handles every request.

    Parameters
    ----------
    rules
        The rules in force, in order.
    log
        Called with each exchange when it is complete; for a watch when it begins.
    injected
        Called with the name of each action that was taken.
    """

    def __init__(
        self,
        upstream: str,
        session: aiohttp.ClientSession,
        *,
        rules: Callable[[], Iterable[Rule]],
        log: Callable[[Exchange], None],
        injected: Callable[[str], None],
    ) -> None:
        self._upstream = upstream
        self._session = session
        self._rules = rules
        self._log = log
        self._injected = injected
        self._held: dict[Rule, asyncio.Event] = {}
        self.streams: set[Stream] = set()
        self.pending: list[Exchange] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request from start to end."""
        watch = request.query.get("watch") in ("true", "1")
        exchange = Exchange(
            method=request.method,
            path=request.raw_path,
            user_agent=request.headers.get("User-Agent", ""),
            watch=watch,
            received_s=time.monotonic(),
        )
        if not watch:
            self.pending.append(exchange)
        body = await request.read()
        exchange.body = body if exchange.is_write else b""
        # A write that was accepted here is seen through although its client dies, as with a real server.
        work = asyncio.ensure_future(self._serve(request, exchange, body))
        try:
            return await (asyncio.shield(work) if exchange.is_write else work)
        except (aiohttp.ClientError, OSError):
            return _reset(request)
        finally:
            if not watch and work.done():
                self._complete(exchange)
            elif not watch:
                work.add_done_callback(lambda _: self._complete(exchange))

    def _complete(self, exchange: Exchange) -> None:
        self.pending.remove(exchange)
        self._log(exchange)

    def release(self, rule: Rule) -> None:
        """Forward what the rule holds, now and later."""
        self._held.setdefault(rule, asyncio.Event()).set()

    def kick(self) -> None:
        """Have every open watch look at the rules."""
        for stream in self.streams:
            stream.lines.put_nowait(None)

    async def _serve(self, request: web.Request, exchange: Exchange, body: bytes) -> web.StreamResponse:
        rule = self._act(exchange, (Latency, Answer, Page, ResetBefore, ResetAfter, Hold, Call))
        action = rule.action if rule is not None else None
        if rule is not None and isinstance(action, Latency):
            await asyncio.sleep(action.seconds + rule.draw(action.jitter_seconds))
        elif rule is not None and isinstance(action, Hold):
            await self._held.setdefault(rule, asyncio.Event()).wait()
        elif isinstance(action, Answer):
            exchange.told = action.status
            return _refusal(action, continued=request.query.get("continue", ""))
        elif isinstance(action, ResetBefore):
            return _reset(request)
        elif isinstance(action, Call) and not action.after:
            action.function()
        return await self._forward(request, exchange, body, action)

    async def _forward(self, request: web.Request, exchange: Exchange, body: bytes, action: object) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_FORWARDED}
        url = URL(self._upstream + request.raw_path, encoded=True)
        if isinstance(action, Page) and "limit" in url.query:
            url = url.update_query(limit=str(action.limit))
        async with self._session.request(request.method, url, headers=headers, data=body or None) as upstream:
            if exchange.watch and upstream.status == 200:
                exchange.status = exchange.told = upstream.status
                self._log(exchange)
                return await self._watch(request, exchange, upstream)
            content = await upstream.read()
        exchange.status, exchange.answered_s = upstream.status, time.monotonic()
        exchange.answer = content if exchange.is_write else b""
        if isinstance(action, Call) and action.after:
            action.function()
        if isinstance(action, ResetAfter):
            return _reset(request)
        if request.transport is not None and not request.transport.is_closing():
            exchange.told = upstream.status
        return web.Response(status=upstream.status, body=content, headers=_passed_back(upstream.headers))

    # -- watches --------------------------------------------------------------------------------------------------

    async def _watch(self, request: web.Request, exchange: Exchange, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=_passed_back(upstream.headers))
        await response.prepare(request)
        stream = Stream(exchange)
        stream.lines.put_nowait(None)  # a rule may be waiting for it
        self.streams.add(stream)
        reading = asyncio.ensure_future(_read_lines(upstream, stream.lines))
        try:
            await self._pump(request, response, stream)
        finally:
            self.streams.discard(stream)
            reading.cancel()
        return response

    async def _pump(self, request: web.Request, response: web.StreamResponse, stream: Stream) -> None:
        late: tuple[bytes, Reorder] | None = None  # an event that waits for the next one to overtake it
        while True:
            try:
                async with asyncio.timeout(None if late is None else late[1].patience_seconds):
                    line = await stream.lines.get()
            except TimeoutError:
                assert late is not None
                await response.write(late[0])
                late = None
                continue
            if isinstance(line, Exception) and not isinstance(line, EOFError):
                _reset(request)
                return
            if isinstance(line, EOFError):
                if late is not None:
                    await response.write(late[0])
                return
            type_, name = _event_of(line) if line is not None else ("", "")
            ending = self._act(stream.exchange, (Freeze, StreamError, Cut), event=(type_, name))
            if ending is not None:
                await self._end(ending, request, response, line)
                return
            if line is None:
                continue
            late = await self._deliver(stream, response, line, event=(type_, name), late=late)

    async def _deliver(
        self,
        stream: Stream,
        response: web.StreamResponse,
        line: bytes,
        *,
        event: tuple[str, str],
        late: tuple[bytes, Reorder] | None,
    ) -> tuple[bytes, Reorder] | None:
        """Pass an event on as the rules say, and after it the one that it overtook; returns the one that waits now."""
        rule = self._act(stream.exchange, (Drop, Duplicate) if late else (Drop, Duplicate, Reorder), event=event)
        action = rule.action if rule is not None else None
        if isinstance(action, Drop):
            return late
        if isinstance(action, Reorder):
            return line, action
        await response.write((line * 2 if isinstance(action, Duplicate) else line) + (late[0] if late is not None else b""))
        return None

    async def _end(self, rule: Rule, request: web.Request, response: web.StreamResponse, line: bytes | None) -> None:
        if isinstance(rule.action, Freeze):
            await asyncio.Event().wait()  # until the client goes or the proxy stops
        elif isinstance(rule.action, StreamError):
            status = _status(rule.action.code, "injected into the watch")
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        else:
            if line is not None:
                await response.write(line[: len(line) // 2])
                await asyncio.sleep(0.05)  # a reset overtakes what was not sent yet
            _reset(request)

    # -- rules ----------------------------------------------------------------------------------------------------

    def _act(self, exchange: Exchange, kinds: tuple[type, ...], *, event: tuple[str, str] | None = None) -> Rule | None:
        """The rule with an action of these kinds that acts now, noted in counters and exchange."""

        def matches(match: Match) -> bool:
            return match.request(
                method=exchange.method, path=exchange.path, user_agent=exchange.user_agent, watch=exchange.watch
            ) and (event is None or _means_event(match, *event))

        rule = first_to_act((rule for rule in self._rules() if isinstance(rule.action, kinds)), matches)
        if rule is not None:
            name = type(rule.action).__name__
            exchange.faults.append(name)
            self._injected(name)
        return rule


def _means_event(match: Match, type_: str, name: str) -> bool:
    """A rule that names no event acts on the stream at once; one that does waits for such an event."""
    return match.event(type_=type_, name=name)


def _event_of(line: bytes) -> tuple[str, str]:
    """Type of a watch event, and namespace/name of its object."""
    with contextlib.suppress(ValueError, AttributeError):
        event = json.loads(line)
        metadata = event["object"].get("metadata") or {}
        return str(event["type"]), f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return "", ""


async def _read_lines(upstream: aiohttp.ClientResponse, lines: asyncio.Queue[bytes | Exception | None]) -> None:
    rest = b""
    try:
        async for chunk in upstream.content.iter_chunked(_CHUNK):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.put_nowait(line + b"\n")
        lines.put_nowait(EOFError())
    except (aiohttp.ClientError, OSError) as error:
        lines.put_nowait(error)


def _passed_back(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _status(code: int, message: str, *, retry_after_seconds: int | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"code": code, "reason": _REASONS.get(code, ""), "message": f"fault proxy: {message}"}
    if retry_after_seconds is not None:
        status["details"] = {"retryAfterSeconds": retry_after_seconds}
    return status


def _refusal(action: Answer, *, continued: str) -> web.Response:
    after = action.retry_after_seconds
    headers = {} if after is None else {"Retry-After": str(after)}
    status = _status(action.status, "injected", retry_after_seconds=after)
    if action.status == 410 and continued:
        status["metadata"] = {"continue": _inconsistent(continued)}
    return web.json_response(status, status=action.status, headers=headers)


def _inconsistent(token: str) -> str:
    """What the API server offers in place of an expired continuation: the same place in the list as it is now."""
    with contextlib.suppress(ValueError, KeyError, AttributeError):
        place = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        place |= {"rv": -1, "start": place["start"].removeprefix("/")}
        return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")
    return token


def _reset(request: web.Request) -> web.Response:
    """Reset the client's connection, unread bytes included; the response returned goes nowhere."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()
