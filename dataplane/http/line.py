"""A small HTTP/1.1 client for one server: kept-alive connections, answers bounded and taken for hostile until they are parsed.

An agent makes the same call ten times a second for as long as its engine lives, beside a process that serves. A general client
spends most of such a call on what an agent never uses (redirects, cookies, proxies, streams, content encodings). This one knows
status line, header lines, and bodies by length, in chunks, or up to the end of the connection.
"""

from __future__ import annotations

import asyncio
import functools
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from contract.errors import ProtocolViolation, Unreachable
from dataplane.http.answer import Malformed, Response
from dataplane.http.connection import ClosedByPeer, Connection, StreamConnection, UnixConnection

if TYPE_CHECKING:
    import ssl

__all__ = ["HttpLine", "Response"]
MAX_IDLE = 2
"""Connections that are kept for the next call: the loop's own, and one for a call beside it."""


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
    tls : ssl.SSLContext, optional
        Of https; by default servers are verified by whom this machine trusts.

    Raises
    ------
    ValueError
        When the URL has another scheme or no host, or it or the token has what cannot stand in the head of a request.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._path = url.removeprefix("unix:") if parts.scheme == "unix" else None
        if self._path is None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"{url!r}: use http://host:port, https://host:port or unix:/path/to/socket")
        if self._path is None and (not url.isascii() or not url.isprintable() or " " in url):
            raise ValueError(f"{url!r}: has characters that cannot stand in a request")
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/") if self._path is None else ""
        self._tls = (tls or _tls_context()) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        lines = [f"host: {parts.netloc if self._path is None else 'engine'}", "accept: */*"]
        if token is not None:
            if not token.isascii() or not token.isprintable():
                raise ValueError("the token has characters that cannot stand in a header line")
            lines.append(f"authorization: Bearer {token}")
        self._lines = "\r\n".join(lines)
        self._idle: list[Connection] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return a request as it goes out; one that is made again and again needs that once."""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._lines}\r\n"
        if body is not None or method != "GET":
            head += f"content-type: application/json\r\ncontent-length: {len(body or b'')}\r\n"
        return head.encode("ascii") + b"\r\n" + (body or b"")

    def body_in_place(self, request: bytes) -> bytes | None:
        """The body of the answer if it is a 200 that comes at once, see `UnixConnection.body_in_place`.

        None otherwise: `send` of the very same request then goes on from where this got.
        """
        connection = self._idle[-1] if self._idle else None
        return connection.body_in_place(request) if isinstance(connection, UnixConnection) else None

    async def call(self, method: str, path: str, body: bytes | None = None) -> Response:
        """Send one request and return the answer, whatever its status.

        Raises
        ------
        Unreachable
            When there is no answer in time.
        ProtocolViolation
            When the answer is not HTTP/1.1, or too large.
        """
        return await self.send(self.request(method, path, body), name=f"{method} {path}")

    async def send(self, request: bytes, *, name: str) -> Response:
        """Do what `call` does with a request from `request`; `name` is for messages."""
        try:
            while self._idle:
                connection = self._idle.pop()
                try:
                    return await self._exchange(connection, request)
                except ClosedByPeer:
                    # It had been idle too long for the server: nothing was answered, so ask again.
                    if not connection.untouched:
                        raise
            return await self._exchange(await self._connect(), request)
        except (TimeoutError, OSError) as error:
            raise Unreachable(f"{name}: {type(error).__name__}") from error
        except (Malformed, ValueError) as error:
            raise ProtocolViolation(f"{name}: {error}") from error

    async def _exchange(self, connection: Connection, request: bytes) -> Response:
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

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout_s):
            if self._path is not None:
                return await UnixConnection.to(self._path)
            _, connection = await loop.create_connection(StreamConnection, self._host, self._port, ssl=self._tls)
        return connection


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The one of this process: making one reads every trusted certificate, which takes 20 ms, and keeps a megabyte."""
    import ssl  # most engines are reached over a Unix socket, and OpenSSL is several megabytes

    return ssl.create_default_context()
