"""The picker's HTTP/2 gives no more than there is room for, and holds no more than it may: windows, streams, memory."""

import struct

import hpack
import pytest
from picker_frames import HELLO, Wire, connected, enveloped, opening, picker, piece

from dataplane.picker import http2
from dataplane.picker.http2 import Connection, ConnectionBroken, Stream, frame

HEADERS = b"\x88"
DONE = hpack.Encoder().encode([("grpc-status", "0")])


class Echo:
    """A service that sends back what comes, on a bare connection."""

    def __init__(self) -> None:
        self.gone = 0
        self.connection = Connection(on_headers=lambda _: None, on_data=self.echo, on_end=self.end, on_reset=self.reset)
        self.connection.take()

    def echo(self, stream: Stream) -> None:
        data, stream.incoming = bytes(stream.incoming), bytearray()
        self.connection.send(stream, HEADERS, data)

    def end(self, stream: Stream) -> None:
        self.connection.finish(stream, DONE)

    def reset(self, _: Stream) -> None:
        self.gone += 1

    def sent(self, data: bytes) -> Wire:
        self.connection.receive(data)
        wire = Wire()
        wire.write(self.connection.take())
        return wire


def test_no_more_is_sent_than_the_peer_has_room_for_and_the_rest_follows_when_it_has() -> None:
    echo = Echo()
    small = frame(http2.SETTINGS, 0, 0, struct.pack(">HL", 4, 100))
    wire = echo.sent(http2.PREFACE + small + opening(hpack.Encoder(), 1) + frame(http2.DATA, http2.END_STREAM, 1, b"e" * 250))
    assert (len(wire.data_of(1)), wire.status_of(1)) == (100, "open")
    wire = echo.sent(frame(http2.SETTINGS, 0, 0, struct.pack(">HL", 4, 200)))
    assert (len(wire.data_of(1)), wire.status_of(1)) == (100, "open")
    wire = echo.sent(frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">L", 50)))
    assert (len(wire.data_of(1)), wire.status_of(1)) == (50, "0")
    assert echo.gone == 1


def test_who_takes_nothing_off_may_not_go_on_sending() -> None:
    echo = Echo()
    wire = echo.sent(HELLO + opening(hpack.Encoder(), 1))
    chunk = frame(http2.DATA, 0, 1, b"e" * http2.MAX_FRAME)
    for _ in range(http2.STREAM_WINDOW // http2.MAX_FRAME):
        wire = echo.sent(chunk)
        assert not [f for f in wire.frames() if f[0] == http2.WINDOW_UPDATE and f[2] == 1]
    with pytest.raises(ConnectionBroken, match="window"):
        echo.sent(chunk)


def test_a_peer_that_takes_off_what_comes_gets_new_room_again_and_again() -> None:
    echo, back = Echo(), 0
    echo.sent(HELLO + opening(hpack.Encoder(), 1))
    for _ in range(300):  # almost five mebibytes through a window of one
        wire = echo.sent(frame(http2.DATA, 0, 1, b"e" * http2.MAX_FRAME))
        back += len(wire.data_of(1))
        more = struct.pack(">L", http2.MAX_FRAME)
        echo.sent(frame(http2.WINDOW_UPDATE, 0, 1, more) + frame(http2.WINDOW_UPDATE, 0, 0, more))
    assert back == 300 * http2.MAX_FRAME


def test_streams_above_the_most_are_refused_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MAX_STREAMS", 50)
    echo, encoder = Echo(), hpack.Encoder()
    echo.sent(HELLO)
    for number in range(1, 2 * http2.MAX_STREAMS, 2):
        echo.connection.receive(opening(encoder, number))
    echo.connection.take()
    wire = echo.sent(opening(encoder, 2 * http2.MAX_STREAMS + 1))
    assert [(kind, payload[-1]) for kind, _, _, payload in wire.frames()] == [(http2.RST_STREAM, http2.REFUSED_STREAM)]


def test_what_is_left_unread_is_bounded_over_all_streams_and_free_again_when_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MAX_HELD", 100_000)
    part = b"\x00" + struct.pack(">L", 50_000) + b"x" * 16_000
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    protocol.data_received(HELLO)
    for number in range(1, 201, 2):  # a hundred half messages, each given up
        reset = frame(http2.RST_STREAM, 0, number, b"\0\0\0\x08")
        protocol.data_received(opening(encoder, number) + frame(http2.DATA, 0, number, part) + reset)
    for number in range(201, 401, 2):  # as many messages that came in two parts and were answered
        whole = enveloped(piece(10_000))
        first, second = whole[:5000], whole[5000:]
        protocol.data_received(opening(encoder, number) + frame(http2.DATA, 0, number, first))
        protocol.data_received(frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\x40\0"))
        protocol.data_received(frame(http2.DATA, http2.END_STREAM, number, second))
    assert not wire.closed
    assert protocol._connection._held == 0
    for number in range(401, 421, 2):
        protocol.data_received(opening(encoder, number) + frame(http2.DATA, 0, number, part))
    assert wire.closed


def test_answers_that_nobody_takes_off_are_bounded_over_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MAX_HELD", 300_000)
    echo, encoder = Echo(), hpack.Encoder()
    echo.sent(HELLO)
    with pytest.raises(ConnectionBroken, match="unread"):  # noqa: PT012  # which of them breaks it is not the matter
        for number in range(1, 101, 2):
            echo.sent(opening(encoder, number) + frame(http2.DATA, 0, number, b"e" * 16_000))
