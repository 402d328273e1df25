"""A small HTTP/1.1 client for one server: kept-alive connections, answers bounded and taken for hostile until they are parsed.

An agent makes the same call ten times a second for as long as its engine lives, beside a process that serves. A general client
spends most of such a call on what an agent never uses (redirects, cookies, proxies, streams, content encodings). This one knows
status line, header lines, and bodies by length, in chunks, or up to the end of the connection.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from contract.answers import MAX_ANSWER_BYTES
from contract.errors import ProtocolViolation, Unreachable

if TYPE_CHECKING:
    import ssl

MAX_HEAD_BYTES = 64 * 1024
MAX_IDLE = 2
"""Connections that are kept for the next call: the loop's own, and one for a call beside it."""
_MAX_CHUNK_LINE = 1024


class Response(NamedTuple):
    """An answer: status code, header lines by lower-case name (the last of equals), and the whole body."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpLine:
    """Calls to one server, at most one at a time on each connection.

    Parameters
    ----------
    url : str
        `unix:/path`, `http://host:port` or `https://host:port`.
    token : str, optional
        Bearer token.
    timeout_s : float
        Limit of each call in seconds, and of connecting.

    Raises
    ------
    ValueError
        When the URL has another scheme or no host, or the token cannot stand in a header line.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._path = url.removeprefix("unix:") if parts.scheme == "unix" else None
        if self._path is None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"{url!r}: use http://host:port, https://host:port or unix:/path/to/socket")
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/") if self._path is None else ""
        self._tls = _tls_context() if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        lines = [f"host: {parts.netloc if self._path is None else 'engine'}", "accept: */*"]
        if token is not None:
            if not token.isascii() or not token.isprintable():
                raise ValueError("the token has characters that cannot stand in a header line")
            lines.append(f"authorization: Bearer {token}")
        self._lines = "\r\n".join(lines)
        self._idle: list[_Connection] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    async def call(self, method: str, path: str, body: bytes | None = None) -> Response:
        """Send one request and return the answer, whatever its status.

        Raises
        ------
        Unreachable
            When there is no answer in time.
        ProtocolViolation
            When the answer is not HTTP/1.1, or too large.
        """
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._lines}\r\n"
        if body is not None or method != "GET":
            head += f"content-type: application/json\r\ncontent-length: {len(body or b'')}\r\n"
        request = head.encode("ascii") + b"\r\n" + (body or b"")
        try:
            while self._idle:
                connection = self._idle.pop()
                try:
                    return await self._exchange(connection, request)
                except _ClosedByPeer:
                    # It had been idle too long for the server: nothing was answered, so ask again.
                    if not connection.untouched:
                        raise
            return await self._exchange(await self._connect(), request)
        except (TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}") from error
        except _Malformed as error:
            raise ProtocolViolation(f"{method} {path}: {error}") from error

    async def _exchange(self, connection: _Connection, request: bytes) -> Response:
        try:
            response = await connection.exchange(request, timeout_s=self._timeout_s)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable and len(self._idle) < MAX_IDLE and not self._closed:
            self._idle.append(connection)
        else:
            connection.abort()
        return response

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout_s):
            if self._path is not None:
                _, connection = await loop.create_unix_connection(_Connection, self._path)
            else:
                _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection


class _Malformed(Exception):
    """The peer does not speak HTTP/1.1 as it should."""


class _ClosedByPeer(ConnectionError):
    """The connection ended before the answer did."""


class _Connection(asyncio.Protocol):
    """One connection; parses one answer at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._received = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._chunks: bytearray | None = None
        self.reusable = True
        self.untouched = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def exchange(self, request: bytes, *, timeout_s: float) -> Response:
        """Send a request and wait for its answer; TimeoutError when that takes too long."""
        self.untouched = True
        if self._transport is None or self._transport.is_closing() or self._received:
            raise _ClosedByPeer
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._head = self._chunks = None
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
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self.untouched = False
        if self._waiter is None or self._waiter.done():
            self.abort()  # nobody asked
            return
        try:
            response = self._parsed(ended=False)
        except (_Malformed, ValueError) as error:
            self.reusable = False
            self._waiter.set_exception(error if isinstance(error, _Malformed) else _Malformed("not HTTP"))
            return
        if response is not None:
            self.reusable = self.reusable and not self._received
            self._waiter.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self._waiter is None or self._waiter.done():
            return
        try:
            response = self._parsed(ended=error is None)
        except (_Malformed, ValueError):
            response = None
        if response is not None:
            self._waiter.set_result(response)
        else:
            self._waiter.set_exception(_ClosedByPeer())

    def _parsed(self, *, ended: bool) -> Response | None:
        """The answer as soon as it is whole."""
        while self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                if len(self._received) > MAX_HEAD_BYTES:
                    raise _Malformed(f"more than {MAX_HEAD_BYTES} bytes of header lines")
                return None
            head = _head(bytes(self._received[:end]))
            del self._received[: end + 4]
            if head[0] >= 200:  # others announce that the answer is still to come
                self._head = head
        status, headers = self._head
        if headers.get("connection", "").lower() == "close":
            self.reusable = False
        body = self._body(headers, status=status, ended=ended)
        return None if body is None else Response(status, headers, body)

    def _body(self, headers: dict[str, str], *, status: int, ended: bool) -> bytes | None:
        if status in (204, 304):
            return b""
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise _Malformed(f"transfer-encoding {coding[:40]!r}")
            return self._chunked()
        length = headers.get("content-length")
        if length is None:
            self.reusable = False
            self._bounded(len(self._received))
            return self._take(len(self._received)) if ended else None
        if not (length.isascii() and length.isdigit() and len(length) < 16):
            raise _Malformed(f"content-length {length[:40]!r}")
        self._bounded(int(length))
        return self._take(int(length)) if len(self._received) >= int(length) else None

    def _chunked(self) -> bytes | None:
        """The body in chunks, once the last one is there; trailers are dropped."""
        if self._chunks is None:
            self._chunks = bytearray()
        while True:
            end = self._received.find(b"\r\n")
            if end < 0 or end > _MAX_CHUNK_LINE:
                if len(self._received) > _MAX_CHUNK_LINE:
                    raise _Malformed("a chunk without a size")
                return None
            digits = bytes(self._received[:end]).split(b";")[0].strip()
            if not digits.isalnum() or len(digits) > 8:
                raise _Malformed("a chunk without a size")
            size = int(digits, 16)
            self._bounded(len(self._chunks) + size)
            if size == 0:
                rest = self._received.find(b"\r\n\r\n", end)
                if rest < 0:
                    if len(self._received) > MAX_HEAD_BYTES:
                        raise _Malformed(f"more than {MAX_HEAD_BYTES} bytes of trailers")
                    return None
                del self._received[: rest + 4]
                return bytes(self._chunks)
            if len(self._received) < end + 2 + size + 2:
                return None
            if self._received[end + 2 + size : end + 4 + size] != b"\r\n":
                raise _Malformed("a chunk longer than its size")
            self._chunks += self._received[end + 2 : end + 2 + size]
            del self._received[: end + 4 + size]

    def _bounded(self, size: int) -> None:
        if size > MAX_ANSWER_BYTES:
            raise _Malformed(f"answer larger than {MAX_ANSWER_BYTES} bytes")

    def _take(self, size: int) -> bytes:
        self._bounded(size)
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    """Status code and header lines."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise _Malformed(f"status line {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise _Malformed(f"header line {line[:60]!r}")
        if name == "content-length" and headers.get(name, value.strip()) != value.strip():
            raise _Malformed("two lengths")
        headers[name] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(code), headers


def _tls_context() -> ssl.SSLContext:
    import ssl  # most engines are reached over a Unix socket, and OpenSSL is several megabytes

    return ssl.create_default_context()
