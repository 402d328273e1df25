"""The picker's own HTTP/2: against frames made by hand, whole and in pieces, hostile ones too, and against the client of gRPC."""

import asyncio
import datetime
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import hpack
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.keys import SLOTS
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.picker import http2
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge
from dataplane.picker.http2 import Connection, ConnectionBroken, Stream, frame
from dataplane.picker.http2_server import CHECK, PROCESS, GrpcProtocol, Health, Service, serving
from dataplane.picker.picker import Picker

HEADERS = b"\x88"
DONE = hpack.Encoder().encode([("grpc-status", "0")])


def picker() -> Picker:
    edge = Edge(pool_key=b"0123456789abcdef")
    made = Picker(edge, limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))
    rows = [TableInstance(name="a", uid="ua", address="10.0.0.1:80", weight_percent=100, state=InstanceState.READY)]
    made.offer(RoutingTable(generation=1, instances=rows, slots=pack_slots([0] * SLOTS)))
    return made


def service_of(one: Picker) -> Service:
    return Service(one.exchange, lambda: None, Health(ready=True))


def asked(user: bytes = b"ann") -> bytes:
    message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders())
    message.request_headers.headers.headers.add(key="x-user-id", raw_value=user)
    return bytes(message.SerializeToString())


def piece(size: int) -> bytes:
    body = ext_proc.HttpBody(body=b"p" * size)
    return bytes(ext_proc.ProcessingRequest(request_body=body).SerializeToString())


def enveloped(message: bytes) -> bytes:
    return b"\x00" + struct.pack(">L", len(message)) + message


def opening(encoder: hpack.Encoder, number: int, path: str = PROCESS, *, more: int = 0) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "picker"), ("te", "trailers")]
    return frame(http2.HEADERS, http2.END_HEADERS | more, number, encoder.encode(fields))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str) -> None:
        assert name == "socket"

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each."""
        found, at = [], 0
        while at < len(self.written):
            size = int.from_bytes(self.written[at : at + 3], "big")
            kind, flags, stream = self.written[at + 3], self.written[at + 4], int.from_bytes(self.written[at + 5 : at + 9], "big")
            found.append((kind, flags, stream, bytes(self.written[at + 9 : at + 9 + size])))
            at += 9 + size
        return found

    def status_of(self, stream: int) -> str:
        """The grpc-status that ends a stream."""
        blocks = [p for kind, flags, s, p in self.frames() if (kind, s) == (http2.HEADERS, stream) and flags & http2.END_STREAM]
        return dict(hpack.Decoder().decode(blocks[-1]))["grpc-status"] if blocks else "open"

    def data_of(self, stream: int) -> bytes:
        return b"".join(p for kind, _, s, p in self.frames() if (kind, s) == (http2.DATA, stream))


def connected(one: Picker) -> tuple[GrpcProtocol, Wire]:
    protocol, wire = GrpcProtocol(service_of(one)), Wire()
    protocol.connection_made(wire)  # type: ignore[arg-type]  # what of a transport is needed
    return protocol, wire


HELLO = http2.PREFACE + frame(http2.SETTINGS, 0, 0)


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


SHARED = picker()


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
        protocol.data_received(opening(encoder, number) + frame(http2.RST_STREAM, 0, number, b"\0\0\0\x08"))
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
    protocol, wire = connected(SHARED)
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


@asynccontextmanager
async def served(one: Picker, *, tls: ssl.SSLContext | None = None, grace_s: float = 5.0) -> AsyncIterator[int]:
    async with serving(service_of(one), "127.0.0.1:0", tls=tls, grace_s=grace_s) as port:
        yield port


Method = Callable[..., "grpc.aio.StreamStreamCall"]


def process_of(channel: "grpc.aio.Channel") -> Method:
    method: Method = channel.stream_stream(PROCESS)
    return method


async def test_the_client_of_grpc_gets_long_messages_back_in_many_streams_at_once() -> None:
    one = picker()
    async with served(one) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def talk(size: int) -> None:
            call = process_of(channel)()
            for message in (asked(), piece(size), piece(size)):
                await call.write(message)
                answer = ext_proc.ProcessingResponse.FromString(await call.read())
            assert len(answer.request_body.response.body_mutation.streamed_response.body) == size
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

        await asyncio.gather(*(talk(size) for size in (0, 1, 16_379, 16_384, 65_535, 1_000_000, 3_000_000) * 3))
        assert one.counts.streams == 0


async def test_a_stop_lets_streams_end_and_takes_no_more() -> None:
    one = picker()
    async with grpc.aio.insecure_channel("127.0.0.1:1") as _:
        async with served(one) as port:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            call = process_of(channel)()
            await call.write(asked())
            await call.read()
            ending = asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(call.done_writing()))
        assert await call.code() is grpc.StatusCode.OK
        ending.cancel()
        await channel.close()
    assert one.counts.streams == 0


async def test_whoever_watches_the_health_is_told_each_change_and_keeps_no_picker_from_ending() -> None:
    service = service_of(picker())
    service.health = Health(ready=False)
    kinds = health_pb2.HealthCheckResponse
    async with asyncio.timeout(60), serving(service, "127.0.0.1:0", grace_s=1000.0) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        stub = health_pb2_grpc.HealthStub(channel)
        ready = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        other = stub.Watch(health_pb2.HealthCheckRequest(service="another"))
        assert (await ready.read()).status == kinds.NOT_SERVING
        assert (await other.read()).status == kinds.SERVICE_UNKNOWN
        service.health.set_ready(True)
        assert (await ready.read()).status == kinds.SERVING
    assert (await ready.read()).status == kinds.NOT_SERVING
    assert await ready.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


def test_a_mistake_of_ours_ends_its_own_stream_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, wire = connected(SHARED)
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + opening(encoder, 1))
    with monkeypatch.context() as patched:
        patched.setattr(SHARED.chooser, "choose", lambda *_, **__: 1 / 0)
        protocol.data_received(opening(encoder, 3) + frame(http2.DATA, 0, 3, enveloped(asked())))
    protocol.data_received(frame(http2.DATA, http2.END_STREAM, 1, enveloped(asked())))
    assert (wire.status_of(1), wire.status_of(3), wire.closed) == ("0", "13", False)


async def test_a_stream_that_never_ends_is_cut_after_the_grace() -> None:
    one = picker()
    async with served(one, grace_s=0.05) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        call = process_of(channel)()
        await call.write(asked())
        await call.read()
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()
    assert one.counts.streams == 0


async def test_over_tls_too(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("picker")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "cert.pem").write_bytes(pem)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with served(picker(), tls=context) as port:
        options = [("grpc.ssl_target_name_override", "picker")]
        credentials = grpc.ssl_channel_credentials(pem)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
