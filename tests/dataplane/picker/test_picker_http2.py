"""The picker's own HTTP/2 against frames made by hand, whole and in pieces, hostile ones too."""

import struct

import hpack
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from picker_frames import HELLO, asked, connected, enveloped, opening, picker, piece

from dataplane.picker import http2
from dataplane.picker.http2 import frame
from dataplane.picker.http2_server import CHECK, PROCESS

SHARED = picker()


def conversation() -> bytes:
    """Three streams: one with a pick, one with a check of health and one that is given up."""
    encoder = hpack.Encoder()
    return b"".join(
        (
            HELLO,
            opening(encoder, 1),
            frame(http2.DATA, 0, 1, enveloped(asked())),
            opening(encoder, 3, CHECK),
            frame(http2.DATA, http2.END_STREAM, 3, enveloped(b"")),
            frame(http2.PING, 0, 0, b"12345678"),
            frame(http2.DATA, http2.PADDED, 1, b"\x03" + enveloped(piece(50)) + b"\0\0\0"),
            frame(http2.DATA, http2.END_STREAM, 1),
            opening(encoder, 5),
            frame(http2.RST_STREAM, 0, 5, b"\0\0\0\x08"),
        )
    )


def test_a_conversation_is_answered_message_by_message() -> None:
    one = picker()
    protocol, wire = connected(one)
    protocol.data_received(conversation())
    assert (wire.status_of(1), wire.status_of(3), wire.status_of(5)) == ("0", "0", "open")
    answer = wire.data_of(1)
    first = ext_proc.ProcessingResponse.FromString(answer[5 : 5 + int.from_bytes(answer[1:5], "big")])
    assert first.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.1:80"
    assert health_pb2.HealthCheckResponse.FromString(wire.data_of(3)[5:]).status == health_pb2.HealthCheckResponse.SERVING
    assert (http2.PING, http2.ACK, 0, b"12345678") in wire.frames()
    assert (one.counts.streams, one.chooser.fleet.members[0].in_flight) == (0, 0)


@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30))
@settings(max_examples=40)
def test_it_does_not_matter_in_which_pieces_bytes_come(cuts: list[int]) -> None:
    talk = conversation()
    whole, pieces = connected(SHARED), connected(SHARED)
    whole[0].data_received(talk)
    at, turn = 0, 0
    while at < len(talk):
        size = cuts[turn % len(cuts)]
        pieces[0].data_received(talk[at : at + size])
        at, turn = at + size, turn + 1
    assert pieces[1].written == whole[1].written


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=60)), max_size=12))
def test_hostile_frames_are_refused_or_ignored_and_leave_nothing_behind(frames: list[tuple[int, int, int, bytes]]) -> None:
    protocol, _ = connected(SHARED)
    protocol.data_received(HELLO + b"".join(frame(kind, flags, number, payload) for kind, flags, number, payload in frames))
    protocol.connection_lost(None)
    assert (SHARED.counts.streams, SHARED.chooser.fleet.members[0].in_flight) == (0, 0)


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_or_ignored(raw: bytes) -> None:
    protocol, _ = connected(SHARED)
    protocol.data_received(raw)
    protocol.connection_lost(None)


def broken_by(data: bytes) -> int:
    protocol, wire = connected(SHARED)
    protocol.data_received(HELLO + data)
    assert wire.closed
    kind, _, _, payload = wire.frames()[-1]
    assert kind == http2.GOAWAY
    return int.from_bytes(payload[4:8], "big")


def test_each_way_to_break_the_protocol_ends_the_connection_with_its_code() -> None:
    start = frame(http2.HEADERS, 0, 1, b"\x88")
    assert broken_by(frame(http2.DATA, 0, 1, b"x")) == http2.PROTOCOL_ERROR
    assert broken_by(frame(http2.CONTINUATION, 0, 1, b"x")) == http2.PROTOCOL_ERROR
    assert broken_by(start + frame(http2.PING, 0, 0, b"12345678")) == http2.PROTOCOL_ERROR
    assert broken_by(start + frame(http2.CONTINUATION, 0, 1, b"") * 2) == http2.CALM_DOWN
    assert broken_by(start + frame(http2.CONTINUATION, 0, 1, b"\x00" * 16_000) * 5) == http2.CALM_DOWN
    assert broken_by(frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff")) == http2.COMPRESSION_ERROR
    assert broken_by(frame(http2.HEADERS, http2.END_HEADERS, 2, b"\x88")) == http2.PROTOCOL_ERROR
    assert broken_by(frame(http2.HEADERS, http2.END_HEADERS | http2.PADDED, 1, b"\x09\x88")) == http2.PROTOCOL_ERROR
    assert broken_by(frame(http2.SETTINGS, 0, 0, b"12345")) == http2.FRAME_SIZE_ERROR
    assert broken_by(frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\0")) == http2.FLOW_CONTROL_ERROR
    assert broken_by(frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")) == http2.FLOW_CONTROL_ERROR
    assert broken_by(struct.pack(">HBBBL", 0x0100, 0, 0, 0, 1)) == http2.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        (PROCESS, b"\x01" + struct.pack(">L", 1) + b"x", "12"),
        (PROCESS, b"\x00" + struct.pack(">L", 5 * 2**20), "8"),
        (PROCESS, enveloped(b"\xff\xff"), "3"),
        (CHECK, enveloped(health_pb2.HealthCheckRequest(service="another").SerializeToString()), "5"),
        ("/another.Service/Call", enveloped(b""), "12"),
    ],
)
def test_a_call_that_cannot_be_answered_ends_with_its_status_and_the_connection_goes_on(
    path: str, data: bytes, status: str
) -> None:
    protocol, wire = connected(SHARED)
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + opening(encoder, 1, path) + frame(http2.DATA, 0, 1, data))
    assert wire.status_of(1) == status
    protocol.data_received(opening(encoder, 3) + frame(http2.DATA, http2.END_STREAM, 3, enveloped(asked())))
    assert wire.status_of(3) == "0"
    assert SHARED.counts.streams == 0


def test_thousands_of_streams_that_are_given_up_at_once_leave_nothing() -> None:
    protocol, _ = connected(SHARED)
    encoder = hpack.Encoder()
    protocol.data_received(HELLO)
    for number in range(1, 6_001, 2):
        request = frame(http2.DATA, 0, number, enveloped(asked()))
        protocol.data_received(opening(encoder, number) + request + frame(http2.RST_STREAM, 0, number, b"\0\0\0\x08"))
    assert SHARED.counts.streams == 0


def test_headers_mean_the_same_before_and_after_the_peer_hears_that_compression_is_off() -> None:
    protocol, wire = connected(SHARED)
    encoder = hpack.Encoder()
    check = frame(http2.DATA, http2.END_STREAM, 1, enveloped(b""))
    protocol.data_received(HELLO + opening(encoder, 1, CHECK) + check)
    protocol.data_received(opening(encoder, 3, CHECK) + check.replace(b"\0\0\0\1", b"\0\0\0\3"))
    encoder.header_table_size = 0
    protocol.data_received(frame(http2.SETTINGS, http2.ACK, 0))
    for number in range(5, 21, 2):
        path = CHECK if number % 4 == 1 else "/another"
        protocol.data_received(opening(encoder, number, path) + frame(http2.DATA, http2.END_STREAM, number, enveloped(b"")))
    assert [wire.status_of(n) for n in range(1, 21, 2)] == ["0", "0", *(["0", "12"] * 4)]
    protocol.data_received(frame(http2.HEADERS, http2.END_HEADERS, 99, b"\x3f\xe1\x1f\x88"))  # a table of 4096 after all
    assert wire.closed


def test_a_mistake_of_ours_ends_its_own_stream_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, wire = connected(SHARED)
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + opening(encoder, 1))
    with monkeypatch.context() as patched:
        patched.setattr(SHARED.chooser, "choose", lambda *_, **__: 1 / 0)
        protocol.data_received(opening(encoder, 3) + frame(http2.DATA, 0, 3, enveloped(asked())))
    protocol.data_received(frame(http2.DATA, http2.END_STREAM, 1, enveloped(asked())))
    assert (wire.status_of(1), wire.status_of(3), wire.closed) == ("0", "13", False)
