"""The frames of HTTP/2 that a gRPC server needs, on one connection: sans-IO, bytes in, events and bytes out.

Model: RFC 9113 with RFC 7541, as far as gRPC over it goes: no push, no priorities, of headers only the path. Header compression
is switched off for the peer (`header_blocks`). Everything that a peer may send is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from dataplane.picker.account import STREAM_BYTES, Account
from dataplane.picker.header_blocks import MAX_HEADER_BLOCK, HeaderBlocks, HeadersUnclear

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8, 0x9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0x0, 0x1, 0x3, 0x5, 0x6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CALM_DOWN = 0x7, 0x8, 0x9, 0xB
MAX_FRAME = 16_384
MAX_STREAMS = 10_000
MAX_HELD = 64 << 20
"""What all streams together may leave unread, as parts of messages or of what waits to be taken off."""
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 16 << 20
_DEFAULT_WINDOW = 65_535
_MOST_WINDOW = 2**31 - 1
_MOST_SETTINGS = 100  # each may be a look at every stream; most peers send one, some adapt their windows as long as they live
_ANSWERS_A_SETTING = 100
_MOST_IDLE, _IDLE_A_MESSAGE = 5000, 10
_HEARD = b"farewell"
_head = struct.Struct(">HBBBL")
_settings = struct.Struct(">HL")


class ConnectionBroken(Exception):
    """The peer broke the protocol, and the connection ends with this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Stream:
    """One stream: what came and makes no message yet, what waits to be sent, and how much may be.

    Attributes
    ----------
    incoming, counted
        Bytes that make no message yet, and how many of them were counted as held.
    pending
        Bytes that wait for a window.
    owed
        Bytes received since the peer was last let send more (a WINDOW_UPDATE gives them back).
    window
        How much may be sent, less what the peer's settings give every stream.
    ended
        Whether the peer has sent all that it will.
    owner
        Whatever the service keeps with it.
    """

    __slots__ = ("counted", "ended", "id", "incoming", "owed", "owner", "path", "pending", "started", "trailers", "window")

    def __init__(self, number: int, path: str) -> None:
        self.id, self.path, self.window = number, path, 0
        self.incoming = bytearray()
        self.pending = bytearray()
        self.trailers: bytes | None = None
        self.started = self.ended = False
        self.owed = self.counted = 0
        self.owner: object = None


def frame(kind: int, flags: int, stream: int, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """Return one frame."""
    size = len(payload)
    return _head.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


class Connection:
    """One connection of a server; `greeted` once the peer has said that it speaks HTTP/2, `parted` once it has heard a farewell.

    Parameters
    ----------
    on_headers, on_data, on_end, on_reset
        Told of a stream that opens, of bytes on it, of the end of what the peer sends, and of a stream that is gone.
    account
        What all connections keep; by default this one is alone.
    """

    def __init__(
        self,
        *,
        on_headers: Callable[[Stream], None],
        on_data: Callable[[Stream], None],
        on_end: Callable[[Stream], None],
        on_reset: Callable[[Stream], None],
        account: Account | None = None,
    ) -> None:
        self._on_headers, self._on_data, self._on_end, self._on_reset = on_headers, on_data, on_end, on_reset
        self.streams: dict[int, Stream] = {}
        self.closing = self.greeted = self.dropped = self.parted = False
        self._account = account or Account()
        self._left = b""
        self._blocks = HeaderBlocks()
        self._block: tuple[int, int, bytearray] | None = None
        self._last = 0
        self._window = _DEFAULT_WINDOW
        self._peer_window = _DEFAULT_WINDOW
        self._peer_frame = MAX_FRAME
        self._owed = self._held = self._settings = self._answered = 0
        self._grown = False
        self._idle = 0
        self._waiting: dict[int, Stream] = {}  # for the connection's window; who waits for its own is found by its number
        values = ((0x1, 0), (0x3, MAX_STREAMS), (0x4, STREAM_WINDOW), (0x6, MAX_HEADER_BLOCK))
        self._out: list[bytes] = [
            frame(SETTINGS, 0, 0, b"".join(_settings.pack(*each) for each in values)),
            frame(WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big")),
        ]

    def take(self) -> bytes:
        """Return what is to be sent now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def receive(self, data: bytes) -> None:
        """Take in bytes.

        Raises
        ------
        ConnectionBroken
            When they are not the protocol; `take` then ends with the reason for the peer.
        """
        if self._left:
            data = self._left + data
        at, end = 0, len(data)
        try:
            if not self.greeted:
                if data[: len(PREFACE)] != PREFACE[:end]:
                    raise ConnectionBroken(PROTOCOL_ERROR, "no preface of HTTP/2")
                if end < len(PREFACE):
                    self._left = data
                    return
                self.greeted, at = True, len(PREFACE)
            while end - at >= 9:
                high, low, kind, flags, stream = _head.unpack_from(data, at)
                size = high << 8 | low
                if size > MAX_FRAME:
                    raise ConnectionBroken(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                if end - at - 9 < size:
                    break
                start = at + 9
                at = start + size
                self._frame(kind, flags, stream & 0x7FFFFFFF, data[start:at])
            if self._grown:
                self._look_at_all()
        except ConnectionBroken as broken:
            self.goodbye(broken.code)
            raise
        self._left = data[at:]

    def farewell(self) -> None:
        """Say that the end is near: the peer opens no further stream, and what it opened before it heard is still answered."""
        self._out.append(frame(GOAWAY, 0, 0, struct.pack(">LL", _MOST_WINDOW, NO_ERROR)) + frame(PING, 0, 0, _HEARD))

    def rest(self) -> None:
        """Some seconds have passed: the peer may send as many frames again that ask for nothing."""
        self._idle = 0

    def goodbye(self, code: int = NO_ERROR) -> None:
        """Tell the peer that no further stream is taken."""
        self.closing = True
        self._out.append(frame(GOAWAY, 0, 0, struct.pack(">LL", self._last, code)))

    @property
    def kept(self) -> int:
        """Bytes that are kept for the peer."""
        return self._held + STREAM_BYTES * len(self.streams)

    def drop(self) -> None:
        """Give everything up, and take no further stream."""
        self.closing = self.dropped = True
        self._account.add(-self.kept)
        gone, self.streams, self._held = self.streams, {}, 0
        self._waiting.clear()
        for stream in gone.values():
            stream.pending.clear()
            self._on_reset(stream)

    def send(self, stream: Stream, headers: bytes, data: bytes) -> None:
        """Send data; before the first of a stream, its headers (a block that leaves no trace in the peer's table)."""
        if not stream.started:
            stream.started = True
            self._out.append(frame(HEADERS, END_HEADERS, stream.id, headers))
        size = len(data)
        if not stream.pending and size <= MAX_FRAME and size <= stream.window + self._peer_window and size <= self._window:
            stream.window -= size
            self._window -= size
            self._out.append(frame(DATA, 0, stream.id, data))
            return
        stream.pending += data
        self._hold(size)
        self._flush(stream)

    def finish(self, stream: Stream, trailers: bytes) -> None:
        """End a stream with trailers (with them alone, when nothing was sent before), after what still waits."""
        stream.started = True
        stream.trailers = trailers
        self._flush(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """Give a stream up."""
        self._out.append(frame(RST_STREAM, 0, stream.id, code.to_bytes(4, "big")))
        self._forget(stream)

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
            raise ConnectionBroken(PROTOCOL_ERROR, "headers are not continued")
        if kind == DATA and payload:
            self._idle -= _IDLE_A_MESSAGE
        else:
            self._idle += 1
            if self._idle > _MOST_IDLE:
                raise ConnectionBroken(CALM_DOWN, "frames without end that ask for nothing")
        if kind == DATA:
            self._data(flags, number, payload)
        elif kind == HEADERS:
            self._headers(flags, number, payload)
        elif kind == CONTINUATION:
            self._continuation(flags, payload)
        elif kind == WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == RST_STREAM:
            stream = self.streams.get(number)
            if stream is not None:
                self._forget(stream)
        elif kind == SETTINGS:
            self._take_settings(flags, number, payload)
        elif kind == PING:
            if len(payload) != 8 or number:
                raise ConnectionBroken(FRAME_SIZE_ERROR, "a ping of another size")
            if not flags & ACK:
                self._out.append(frame(PING, ACK, 0, payload))
            elif payload == _HEARD:
                self.parted = True
        # PRIORITY, GOAWAY and what is not known ask for nothing.

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._owed += size
        if self._owed > CONNECTION_WINDOW:
            raise ConnectionBroken(FLOW_CONTROL_ERROR, "more than the connection's window")
        if self._owed >= CONNECTION_WINDOW // 2:
            self._out.append(frame(WINDOW_UPDATE, 0, 0, self._owed.to_bytes(4, "big")))
            self._owed = 0
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self.streams.get(number)
        if stream is None or stream.ended or stream.trailers is not None:  # it has its answer, which only waits to be taken off
            if number > self._last or not number:
                raise ConnectionBroken(PROTOCOL_ERROR, "data on a stream that was never opened")
            if stream is not None and flags & END_STREAM:
                stream.ended = True
            return
        stream.owed += size
        if stream.owed > STREAM_WINDOW:
            raise ConnectionBroken(FLOW_CONTROL_ERROR, "more than a stream's window")
        if payload:
            stream.incoming += payload
            self._on_data(stream)
            if (number in self.streams) and len(stream.incoming) != stream.counted:
                more, stream.counted = len(stream.incoming) - stream.counted, len(stream.incoming)
                self._hold(more)
        if flags & END_STREAM:
            stream.ended = True
            if number in self.streams:
                self._on_end(stream)
        else:
            self._pay(stream)

    def _hold(self, more: int) -> None:
        self._held += more
        self._keep(more)
        if self._held > MAX_HELD:
            raise ConnectionBroken(CALM_DOWN, f"more than {MAX_HELD} bytes are left unread")

    def _keep(self, more: int) -> None:
        self._account.add(more)
        if self.dropped:
            raise ConnectionBroken(CALM_DOWN, "of all that is kept for peers, most is for this one")

    def _pay(self, stream: Stream) -> None:
        """Let the peer send more on a stream, but not while it takes nothing off: what waits is bounded by the window."""
        if stream.owed >= STREAM_WINDOW // 2 and not stream.pending:
            self._out.append(frame(WINDOW_UPDATE, 0, stream.id, stream.owed.to_bytes(4, "big")))
            stream.owed = 0

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & PRIORITY:
            payload = payload[5:]
        if not flags & END_HEADERS:
            self._block = (number, flags, bytearray(payload))
            return
        self._opened(flags, number, payload)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionBroken(PROTOCOL_ERROR, "a continuation of nothing")
        number, first_flags, block = self._block
        block += payload
        if len(block) > MAX_HEADER_BLOCK or not payload:
            raise ConnectionBroken(CALM_DOWN, "headers that never end")
        if flags & END_HEADERS:
            self._block = None
            self._opened(first_flags, number, bytes(block))

    def _opened(self, flags: int, number: int, block: bytes) -> None:
        try:
            path = self._blocks.path(block)
        except HeadersUnclear as error:
            raise ConnectionBroken(COMPRESSION_ERROR, str(error)) from error
        stream = self.streams.get(number)
        if stream is not None:  # trailers of a request: gRPC sends none, but they are allowed to end it
            if not flags & END_STREAM or stream.ended:
                raise ConnectionBroken(PROTOCOL_ERROR, "headers twice on one stream")
        else:
            if not number & 1 or number <= self._last:
                raise ConnectionBroken(PROTOCOL_ERROR, "a stream with a number that is not new")
            self._last = number
            if len(self.streams) >= MAX_STREAMS or self.closing:
                self._out.append(frame(RST_STREAM, 0, number, REFUSED_STREAM.to_bytes(4, "big")))
                return
            stream = self.streams[number] = Stream(number, path)
            self._keep(STREAM_BYTES)
            self._on_headers(stream)
        if flags & END_STREAM and number in self.streams:
            stream.ended = True
            if stream.trailers is None:
                self._on_end(stream)

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6 or (flags & ACK and payload):
            raise ConnectionBroken(FRAME_SIZE_ERROR, "settings of a wrong size")
        if flags & ACK:
            self._blocks.switch_compression_off()
            return
        self._settings += 1
        if self._settings > _MOST_SETTINGS + self._answered // _ANSWERS_A_SETTING:
            raise ConnectionBroken(CALM_DOWN, "settings without end")
        for name, value in _settings.iter_unpack(payload):
            if name == 0x4:
                if value > _MOST_WINDOW:
                    raise ConnectionBroken(FLOW_CONTROL_ERROR, "a window that is too large")
                self._grown = self._grown or value > self._peer_window
                self._peer_window = value
            elif name == 0x5:
                self._peer_frame = min(max(value, MAX_FRAME), 1 << 20)
        self._out.append(frame(SETTINGS, ACK, 0))

    def _look_at_all(self) -> None:
        """Send what the windows of all streams together now let; once for all the settings that came together."""
        self._grown = False
        for stream in [each for each in self.streams.values() if each.pending]:
            self._flush(stream)

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBroken(FRAME_SIZE_ERROR, "a window update of another size")
        more = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if number:
            stream = self.streams.get(number)
            if stream is None:
                return
            stream.window += more
            if not more or stream.window + self._peer_window > _MOST_WINDOW:
                self.reset(stream, FLOW_CONTROL_ERROR)
            else:
                self._flush(stream)
            return
        self._window += more
        if not more or self._window > _MOST_WINDOW:
            raise ConnectionBroken(FLOW_CONTROL_ERROR, "a window update of nothing, or of too much")
        while self._window > 0 and self._waiting:  # each leaves, or takes all that is left of the window
            self._flush(next(iter(self._waiting.values())))

    def _flush(self, stream: Stream) -> None:
        """Send what waits, as far as the windows go."""
        pending = stream.pending
        while pending and (room := min(stream.window + self._peer_window, self._window, self._peer_frame)) > 0:
            piece = pending[:room]
            del pending[:room]
            stream.window -= len(piece)
            self._window -= len(piece)
            self._hold(-len(piece))
            self._out.append(frame(DATA, 0, stream.id, piece))
        self._waiting.pop(stream.id, None)
        if pending:
            if stream.window + self._peer_window > 0:
                self._waiting[stream.id] = stream
            return
        if stream.trailers is not None:
            self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream.id, stream.trailers))
            if not stream.ended:  # no more is wanted of a peer that has not ended yet
                self._out.append(frame(RST_STREAM, 0, stream.id, NO_ERROR.to_bytes(4, "big")))
            self._answered += 1
            self._forget(stream)
        elif not stream.ended:
            self._pay(stream)

    def _forget(self, stream: Stream) -> None:
        self._waiting.pop(stream.id, None)
        if self.streams.pop(stream.id, None) is not None:
            held = stream.counted + len(stream.pending)
            self._held -= held
            self._account.total -= held + STREAM_BYTES
            self._on_reset(stream)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionBroken(PROTOCOL_ERROR, "padding that is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
