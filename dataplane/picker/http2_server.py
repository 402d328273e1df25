"""gRPC over the frames of `dataplane.picker.http2`: external processing, and the health service, on plain asyncio.

A stream is an exchange; a message that has come is answered at once, inside the call that brought its bytes: a request costs no
task, no queue and no switch. What came together leaves together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from dataplane.picker.account import Account
from dataplane.picker.exchange import Exchange
from dataplane.picker.http2 import Connection, ConnectionBroken, Stream

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHECK = "/grpc.health.v1.Health/Check"
READINESS = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
LIVENESS = "liveness"
MAX_MESSAGE = 4 * 2**20
MAX_CONNECTIONS = 1024
_GREETING_S = 5.0
_TURN_BYTES = 65_536
"""So much of one connection is taken in before all others have their turn."""
_FAREWELL_S = 1.0
"""How long the end waits for peers to hear of it; who has not by then has its streams refused."""
WATCH = "/grpc.health.v1.Health/Watch"
OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 3, 5, 8, 12, 13, 14
log = logging.getLogger("grfleet.picker")


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field that leaves no trace in the peer's table (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


_HEADERS = b"\x88" + _literal(b"content-type", b"application/grpc")
_TRAILERS = {
    code: _literal(b"grpc-status", b"%d" % code)
    for code in (OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE)
}


class Health:
    """What the health service says: alive from the start, ready when told so."""

    def __init__(self, *, ready: bool = False) -> None:
        self._ready = ready
        self.on_change: Callable[[], None] = lambda: None

    @property
    def ready(self) -> bool:
        """Whether requests may come."""
        return self._ready

    def set_ready(self, ready: bool) -> None:
        """Say so, also to whoever watches."""
        if ready != self._ready:
            self._ready = ready
            self.on_change()

    def answer(self, service: str) -> bytes | None:
        """Return the answer to a check, None for a service that is not known."""
        kinds = health_pb2.HealthCheckResponse
        if service == LIVENESS:
            status = kinds.SERVING
        elif service in READINESS:
            status = kinds.SERVING if self._ready else kinds.NOT_SERVING
        else:
            return None
        return bytes(kinds(status=status).SerializeToString())


@dataclass
class _Watcher:
    """Somebody who is told at each change what a check would be answered."""

    service: str
    told: bytes = b""


_UNKNOWN = bytes(health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN).SerializeToString())


@dataclass
class Service:
    """What connections share."""

    open_exchange: Callable[[], Exchange]
    on_broken: Callable[[], None]
    health: Health
    connections: set[GrpcProtocol] = field(default_factory=set)
    account: Account = field(default_factory=Account)
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_TURN_BYTES)))

    def __post_init__(self) -> None:
        self.account.relieve = self.relieve

    def relieve(self) -> None:
        """Hang up on whoever keeps most."""
        greedy = max(self.connections, key=lambda each: each.kept, default=None)
        if greedy is not None:
            log.warning("a connection is hung up on", extra={"why": f"of all it keeps most, {greedy.kept} bytes"})
            self.connections.discard(greedy)
            self.on_broken()
            greedy.give_up()

    def make_room(self) -> bool:
        """Hang up on somebody who asks for nothing, who would come back; say whether there was anybody."""
        idle = next((each for each in self.connections if not each.busy), None)
        if idle is not None:
            self.connections.discard(idle)
            idle.abort()
        return idle is not None

    async def look_after_connections(self) -> None:
        """Close every connection that does not begin to speak HTTP/2, and allow the others their frames again, for ever."""
        silent: set[GrpcProtocol] = set()
        while True:
            await asyncio.sleep(_GREETING_S)
            for connection in silent & self.connections:
                if not connection.greeted:
                    connection.abort()
            silent = {each for each in self.connections if not each.greeted}
            for connection in self.connections:
                connection.rest()

    def tell_watchers(self) -> None:
        """Tell everybody who watches the health."""
        for connection in list(self.connections):
            connection.tell_watchers()


class GrpcProtocol(asyncio.BufferedProtocol):
    """One connection of a gateway."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connection = Connection(
            on_headers=self._open, on_data=self._data, on_end=self._end, on_reset=self._gone, account=service.account
        )
        self._transport: asyncio.Transport | None = None
        self._unsent = 0
        self._stuffed = False  # answers wait until the peer takes them

    @property
    def busy(self) -> bool:
        """Whether anything is under way here."""
        return bool(self._connection.streams)

    @property
    def kept(self) -> int:
        """Bytes that are kept for the peer."""
        return self._connection.kept + self._unsent

    @property
    def greeted(self) -> bool:
        """Whether the peer speaks HTTP/2."""
        return self._connection.greeted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        if len(self._service.connections) >= MAX_CONNECTIONS and not self._service.make_room():
            transport.abort()
            return
        self._service.connections.add(self)
        _notice_when_gone(transport.get_extra_info("socket"))
        transport.write(self._connection.take())

    def connection_lost(self, error: Exception | None) -> None:
        self._service.connections.discard(self)
        self._connection.drop()
        self._note_unsent(0)

    def pause_writing(self) -> None:
        """Take nothing in that would have to be answered, until the answers before have left."""
        if self._transport is not None:
            self._stuffed = True
            self._transport.pause_reading()
            self._note_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stuffed = False
        self._note_unsent(0)
        self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and not self._stuffed and not self._transport.is_closing():
            self._transport.resume_reading()

    def _note_unsent(self, size: int) -> None:
        more, self._unsent = size - self._unsent, size
        self._service.account.add(more)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: all connections share it, as they are taken out at once. TLS fills it slice by slice."""
        return self._service.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._service.buffer[:nbytes]))
        if nbytes == _TURN_BYTES and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()  # it would be read on for as long as anything comes
            asyncio.get_running_loop().call_soon(self._read_on)

    def rest(self) -> None:
        """See `Connection.rest`."""
        self._connection.rest()

    def data_received(self, data: bytes) -> None:
        """Take bytes in, and answer."""
        assert self._transport is not None
        try:
            self._connection.receive(data)
        except ConnectionBroken as broken:
            self._broken(broken)
            return
        out = self._connection.take()
        if out:
            self._transport.write(out)
        if self._connection.parted and not self._connection.closing:
            self.goodbye()
        elif self._connection.closing and not self._connection.streams:
            self._transport.close()

    def _broken(self, broken: ConnectionBroken) -> None:
        assert self._transport is not None
        log.info("a connection is closed", extra={"why": str(broken)})
        self._service.on_broken()
        self._transport.write(self._connection.take())
        self._transport.close()

    def tell_watchers(self) -> None:
        """Tell those of this connection what has changed."""
        try:
            for stream in list(self._connection.streams.values()):
                if isinstance(stream.owner, _Watcher):
                    self._tell(stream, stream.owner)
        except ConnectionBroken as broken:  # it takes nothing off; the others are to be told all the same
            self._broken(broken)
            return
        if self._transport is not None:
            self._transport.write(self._connection.take())

    @property
    def parting(self) -> bool:
        """Whether the peer may still open streams that it is fair to answer."""
        return self._connection.greeted and not self._connection.closing

    def farewell(self) -> None:
        """Have the peer open no further stream, and take none once it has heard; one that says nothing is told at once."""
        if self._transport is not None and self.parting:
            self._connection.farewell()
            self._transport.write(self._connection.take())
        else:
            self.goodbye()

    def goodbye(self) -> None:
        """Take no further stream; close when those under way are over."""
        if self._transport is not None:
            self._connection.goodbye()
            for stream in list(self._connection.streams.values()):
                if isinstance(stream.owner, _Watcher):
                    self._refuse(stream, UNAVAILABLE)
            self._transport.write(self._connection.take())
            if not self._connection.streams:
                self._transport.close()

    def give_up(self) -> None:
        """Hang up, and keep nothing from this moment on."""
        self._connection.drop()
        self._note_unsent(0)
        self.abort()

    def abort(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _open(self, stream: Stream) -> None:
        if stream.path == PROCESS:
            stream.owner = self._service.open_exchange()
        elif stream.path not in (CHECK, WATCH):
            self._connection.finish(stream, _HEADERS + _TRAILERS[UNIMPLEMENTED])

    def _data(self, stream: Stream) -> None:
        incoming = stream.incoming
        at, end = 0, len(incoming)
        while end - at >= 5:
            size = int.from_bytes(incoming[at + 1 : at + 5], "big")
            if size > MAX_MESSAGE or incoming[at]:
                self._refuse(stream, UNIMPLEMENTED if incoming[at] else RESOURCE_EXHAUSTED)
                return
            if end - at - 5 < size:
                break
            at += 5 + size
            if not self._message(stream, bytes(incoming[at - size : at])):
                return
        del incoming[:at]

    def _message(self, stream: Stream, message: bytes) -> bool:
        """Answer one message; say whether the stream goes on. Whatever is wrong with it ends its own stream and no other."""
        try:
            exchange = stream.owner
            if isinstance(exchange, Exchange):
                answer = exchange.answer(message)
                if answer is not None:
                    self._send(stream, answer)
            else:
                self._health(stream, health_pb2.HealthCheckRequest.FromString(message).service)
        except DecodeError:
            self._service.on_broken()
            self._refuse(stream, INVALID_ARGUMENT)
        except ConnectionBroken:
            raise
        except Exception:
            log.exception("a message could not be answered")
            self._refuse(stream, INTERNAL)
        return stream.id in self._connection.streams

    def _health(self, stream: Stream, service: str) -> None:
        if stream.path == WATCH:
            if stream.owner is None:
                stream.owner = _Watcher(service)
                self._tell(stream, stream.owner)
            return
        answer = self._service.health.answer(service)
        if answer is None:
            self._refuse(stream, NOT_FOUND)
        else:
            self._send(stream, answer)

    def _tell(self, stream: Stream, watcher: _Watcher) -> None:
        answer = self._service.health.answer(watcher.service) or _UNKNOWN
        if answer != watcher.told:
            watcher.told = answer
            self._send(stream, answer)

    def _send(self, stream: Stream, answer: bytes) -> None:
        self._connection.send(stream, _HEADERS, b"\x00" + len(answer).to_bytes(4, "big") + answer)

    def _refuse(self, stream: Stream, code: int) -> None:
        trailers = _TRAILERS[code]
        self._connection.finish(stream, trailers if stream.started else _HEADERS + trailers)

    def _end(self, stream: Stream) -> None:
        if isinstance(stream.owner, _Watcher):
            return  # it has said all that it will, and goes on listening
        self._connection.finish(stream, _TRAILERS[OK] if stream.started else _HEADERS + _TRAILERS[OK])

    def _gone(self, stream: Stream) -> None:
        exchange, stream.owner = stream.owner, None
        if isinstance(exchange, Exchange):
            exchange.close()


def _notice_when_gone(connection: socket.socket | None) -> None:
    """Have the system look whether a silent peer is there: what is in flight by one that is gone would count for ever."""
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 40_000)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def _within(seconds: float, true: Callable[[], bool]) -> None:
    """Wait until something is true, but not for ever: the last of a thousand connections closes when nobody signals it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110  # see above
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(service: Service, bind: str, *, tls: ssl.SSLContext | None = None, grace_s: float = 5.0) -> AsyncIterator[int]:
    """Serve inside the block; gives the port.

    Parameters
    ----------
    tls
        Context of a server; None serves plain text.
    grace_s
        How long requests under way may take at the end.

    Raises
    ------
    OSError
        When the address is taken or the system refuses it.
    ValueError
        When it is no `host:port`.
    """
    host, _, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:  # uvloop would take its lower 16 bits
        raise ValueError(f"{bind}: the port is none; use HOST:PORT")
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    server = await asyncio.get_running_loop().create_server(
        lambda: GrpcProtocol(service),
        host.strip("[]"),
        int(port),
        ssl=tls,
        ssl_handshake_timeout=_GREETING_S if tls is not None else None,
        backlog=1024,
    )
    service.health.on_change = service.tell_watchers
    listening = asyncio.create_task(service.look_after_connections())
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        listening.cancel()
        service.health.set_ready(False)
        server.close()
        # A stream that is refused is a pick that is lost, and who has not heard yet opens more.
        for connection in list(service.connections):
            connection.farewell()
        await _within(_FAREWELL_S, lambda: not any(each.parting for each in service.connections))
        for connection in list(service.connections):
            if connection.parting:
                connection.goodbye()
        await _within(grace_s, lambda: not service.connections)
        for connection in list(service.connections):
            connection.abort()
