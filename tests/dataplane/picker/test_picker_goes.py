"""The end of a picker: peers hear of it before it refuses anything, and those that do not listen are not waited for long."""

import asyncio
import contextlib

import hpack
import pytest
from picker_frames import HELLO, asked, connected, enveloped, opening, picker, service_of

from dataplane.picker import http2, http2_server
from dataplane.picker.http2 import frame
from dataplane.picker.http2_server import serving


def request(encoder: hpack.Encoder, number: int) -> bytes:
    return opening(encoder, number) + frame(http2.DATA, http2.END_STREAM, number, enveloped(asked()))


def test_what_a_peer_asks_before_it_has_heard_of_the_end_is_answered_and_what_it_asks_later_refused() -> None:
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + request(encoder, 1))
    protocol.farewell()
    away, ping = wire.frames()[-2:]
    assert (away[0], int.from_bytes(away[3][:4], "big")) == (http2.GOAWAY, 2**31 - 1), "no stream is given up"
    assert (ping[0], ping[1]) == (http2.PING, 0)
    protocol.data_received(request(encoder, 3))  # on its way when the farewell went out
    assert wire.status_of(3) == "0"
    assert not wire.closed
    protocol.data_received(frame(http2.PING, http2.ACK, 0, ping[3]))
    assert wire.closed
    last = next(each for each in reversed(wire.frames()) if each[0] == http2.GOAWAY)
    assert int.from_bytes(last[3][:4], "big") == 3
    protocol.data_received(request(encoder, 5))
    assert (http2.RST_STREAM, 5) in {(kind, stream) for kind, _, stream, _ in wire.frames()}


def test_a_stream_under_way_keeps_the_connection_of_a_peer_that_has_heard() -> None:
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + opening(encoder, 1) + frame(http2.DATA, 0, 1, enveloped(asked())))
    protocol.farewell()
    protocol.data_received(frame(http2.PING, http2.ACK, 0, wire.frames()[-1][3]))
    assert not wire.closed
    protocol.data_received(frame(http2.DATA, http2.END_STREAM, 1))
    assert (wire.status_of(1), wire.closed) == ("0", True)


@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "hello"])
async def test_a_peer_that_does_not_say_that_it_has_heard_is_not_waited_for(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_server, "_FAREWELL_S", 0.05)
    service = service_of(picker())
    async with asyncio.timeout(10):
        async with serving(service, "127.0.0.1:0", grace_s=60.0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            while [each.greeted for each in service.connections] != [bool(said)]:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.005)
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()
