"""Peers of the picker that make it keep or do too much: all together are bounded, and whoever takes most gives way."""

import asyncio
import contextlib
import datetime
import ssl
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import hpack
import pytest
import uvloop
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from picker_frames import HELLO, Wire, asked, connected, enveloped, opening, picker, piece, service_of

from dataplane.picker import account, http2, http2_server
from dataplane.picker.exchange import Exchange
from dataplane.picker.http2 import frame
from dataplane.picker.http2_server import WATCH, GrpcProtocol, Health, Service, serving

NO_ROOM = frame(http2.SETTINGS, 0, 0, struct.pack(">HL", 4, 0))


def data(number: int, payload: bytes, *, flags: int = 0) -> bytes:
    return frame(http2.DATA, flags, number, payload)


def room(number: int, more: int) -> bytes:
    return frame(http2.WINDOW_UPDATE, 0, number, struct.pack(">L", more))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the messages that were looked at."""
    seen: list[int] = []
    whole = Exchange.answer

    def counted(self: Exchange, raw: bytes) -> bytes | None:
        seen.append(len(raw))
        return whole(self, raw)

    monkeypatch.setattr(Exchange, "answer", counted)
    return seen


@pytest.mark.parametrize("bad", [enveloped(b"\xff" * 500_000), b"\x01\x00\x00\x00\x01", b"\x00\xff\xff\xff\xff"])
def test_what_comes_after_the_message_that_ended_a_stream_is_not_looked_at_although_its_answer_still_waits(
    parsed: list[int], bad: bytes
) -> None:
    protocol, wire = connected(picker())
    protocol.data_received(HELLO + NO_ROOM + opening(hpack.Encoder(), 1) + data(1, enveloped(asked())))
    for at in range(0, len(bad), http2.MAX_FRAME):
        protocol.data_received(data(1, bad[at : at + http2.MAX_FRAME]))
    looked = len(parsed)
    protocol.data_received(data(1, b"x") * 1000)
    assert len(parsed) == looked
    protocol.data_received(data(1, b"", flags=http2.END_STREAM) + room(1, 100_000))
    assert wire.status_of(1) not in ("open", "0"), "the end of a stream that was refused does not make it well"
    assert not wire.closed
    assert protocol._connection._held == 0


def test_trailers_of_a_peer_do_not_make_a_refusal_well_either() -> None:
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + NO_ROOM + opening(encoder, 1) + data(1, enveloped(asked()) + enveloped(b"\xff")))
    protocol.data_received(frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, encoder.encode([("a", "b")])))
    protocol.data_received(room(1, 100_000))
    assert wire.status_of(1) == "3"


def watching(encoder: hpack.Encoder) -> bytes:
    return opening(encoder, 1, WATCH) + data(1, enveloped(b""))


def test_a_watcher_that_takes_nothing_off_is_hung_up_on_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    health = Health()
    service = Service(picker().exchange, lambda: None, health)
    health.on_change = service.tell_watchers
    wires, protocols = [Wire() for _ in range(3)], [GrpcProtocol(service) for _ in range(3)]
    for wire, protocol in zip(wires, protocols, strict=True):
        protocol.connection_made(wire)  # type: ignore[arg-type]  # what of a transport is needed
        protocol.data_received(HELLO + watching(hpack.Encoder()))
    protocols[1].data_received(NO_ROOM)
    monkeypatch.setattr(http2, "MAX_HELD", 3)
    before = [len(wire.data_of(1)) for wire in wires]
    health.set_ready(True)
    assert [wire.closed for wire in wires] == [False, True, False]
    assert [len(wire.data_of(1)) > old for wire, old in zip(wires, before, strict=True)] == [True, False, True]


def kept_by(service: Service) -> int:
    return sum(each.kept for each in service.connections)


def test_of_many_connections_that_keep_too_much_together_the_one_that_keeps_most_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(account, "MOST", 400_000)
    one = picker()
    service = service_of(one)
    wires = {size: Wire() for size in (10, 5, 15, 8)}
    protocols = {size: GrpcProtocol(service) for size in wires}
    for size, wire in wires.items():
        protocols[size].connection_made(wire)  # type: ignore[arg-type]  # what of a transport is needed
        protocols[size].data_received(HELLO + opening(hpack.Encoder(), 1))
        protocols[size].data_received(data(1, enveloped(asked()) + enveloped(piece(500_000))[: 1000 * size]))
        assert service.account.total == kept_by(service)
    late = protocols[5]
    for _ in range(24):
        late.data_received(data(1, b"p" * 16_000))
        assert service.account.total == kept_by(service) <= 400_000
    assert [size for size, wire in wires.items() if wire.closed] == [5], "it keeps most, and it came with the last drop"
    protocols[8].data_received(data(1, b"p" * 16_000) * 20)
    assert not wires[10].closed
    assert not wires[8].closed
    protocols[10].data_received(data(1, b"p" * 10_000) * 5)
    assert wires[8].closed, "not the one that came with the last drop, but the one that keeps most"
    assert not wires[10].closed
    for protocol in protocols.values():
        protocol.connection_lost(None)
    assert service.account.total == 0
    assert one.counts.streams == 0


def test_streams_that_only_stand_open_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "MOST", 100 * account.STREAM_BYTES)
    one = picker()
    protocol, wire = connected(one)
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + b"".join(opening(encoder, number) for number in range(1, 201, 2)))
    assert not wire.closed
    protocol.data_received(opening(encoder, 201))
    assert wire.closed
    protocol.connection_lost(None)
    assert (one.counts.streams, protocol._service.account.total) == (0, 0)


def test_what_a_stream_counts_for_is_what_it_takes_and_all_that_is_kept_is_well_below_what_a_pod_may_have() -> None:
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    streams = [opening(encoder, n) + data(n, enveloped(asked())) for n in range(1, 3001, 2)]
    protocol.data_received(HELLO)
    tracemalloc.start()
    try:
        for each in streams:
            protocol.data_received(each)
            wire.written.clear()
        taken = tracemalloc.get_traced_memory()[0] / len(streams)
    finally:
        tracemalloc.stop()
    assert len(protocol._connection.streams) == len(streams)
    assert account.STREAM_BYTES / 2 < taken < account.STREAM_BYTES
    chart = yaml.safe_load((Path(__file__).parents[3] / "charts/grfleet/values.yaml").read_text())
    limit = int(chart["picker"]["resources"]["limits"]["memory"].removesuffix("Mi")) << 20
    assert http2.MAX_HELD < account.MOST == 192 << 20 < limit / 2


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["open", "ask", "half", "room", "reset", "end", "garbage", "goodbye", "lost", "paused", "resumed"]),
        st.sampled_from([1, 3, 5]),
    ),
    max_size=40,
)


class Stuffed(Wire):
    """A transport whose peer takes nothing off."""

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 70_000


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_the_account_is_what_connections_keep_whatever_happens_and_nothing_is_left_at_the_end(
    steps: list[tuple[int, str, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "MOST", 100_000)
        one = picker()
        service = service_of(one)
        protocols = [GrpcProtocol(service) for _ in range(3)]
        encoders = [hpack.Encoder() for _ in range(3)]
        wires = [Stuffed() for _ in range(3)]
        gone = set()
        for protocol, wire in zip(protocols, wires, strict=True):
            protocol.connection_made(wire)  # type: ignore[arg-type]  # what of a transport is needed
            protocol.data_received(HELLO + NO_ROOM)
        for which, what, number in steps:
            protocol, wire = protocols[which], wires[which]
            if which in gone:
                continue
            if what == "lost" or wire.closed:
                protocol.connection_lost(None)
                gone.add(which)
            elif what == "paused":
                protocol.pause_writing()
            elif what == "resumed":
                protocol.resume_writing()
            elif what == "goodbye":
                protocol.goodbye()
            else:
                made = {
                    "open": opening(encoders[which], number),
                    "ask": data(number, enveloped(asked())),
                    "half": data(number, enveloped(piece(50_000))[:9_000]),
                    "room": room(number, 100),
                    "reset": frame(http2.RST_STREAM, 0, number, b"\0\0\0\0"),
                    "end": data(number, b"", flags=http2.END_STREAM),
                    "garbage": data(number, enveloped(b"\xff")),
                }[what]
                protocol.data_received(made)
            assert service.account.total == sum(protocols[n].kept for n in range(3) if n not in gone) <= account.MOST
        for which in {0, 1, 2} - gone:
            protocols[which].connection_lost(None)
        assert (service.account.total, one.counts.streams) == (0, 0)
        assert all(each.in_flight == 0 for each in one.chooser.fleet.members)


def test_settings_may_go_on_for_ever_with_answers_between_and_come_to_an_end_without() -> None:
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    protocol.data_received(HELLO + NO_ROOM * 99)
    for number in range(1, 2001, 2):
        protocol.data_received(opening(encoder, number, more=http2.END_STREAM))
    protocol.data_received(NO_ROOM * 10)
    assert not wire.closed
    protocol.data_received(NO_ROOM)
    assert wire.closed


def test_settings_that_come_together_are_one_look_at_the_streams_and_those_that_give_no_room_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    whole = http2.Connection._look_at_all
    monkeypatch.setattr(http2.Connection, "_look_at_all", lambda self: (looks.append(1), whole(self))[1])
    protocol, wire = connected(picker())
    protocol.data_received(HELLO + NO_ROOM + opening(hpack.Encoder(), 1) + data(1, enveloped(asked())))
    for _ in range(10):
        protocol.data_received(NO_ROOM)
    assert not looks
    some = frame(http2.SETTINGS, 0, 0, struct.pack(">HL", 4, 10))
    protocol.data_received((some + NO_ROOM) * 20 + some)
    assert len(looks) == 1
    assert len(wire.data_of(1)) == 10


IDLE = {
    "pings": frame(http2.PING, 0, 0, b"12345678"),
    "priorities": frame(0x2, 0, 1, b"\0\0\0\0\1"),
    "what nobody knows": frame(0xEE, 0, 0, b"x" * 100),
    "room for the connection": room(0, 1),
    "room for a stream": room(1, 1),
    "data without data": data(1, b""),
    "acknowledged settings": frame(http2.SETTINGS, http2.ACK, 0),
    "goodbyes": frame(0x7, 0, 0, b"\0" * 8),
}


@pytest.mark.parametrize("what", IDLE)
def test_frames_that_ask_for_nothing_come_to_an_end_unless_requests_come_between_them_or_time_passes(what: str) -> None:
    protocol, wire = connected(picker())
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    empty = data(1, enveloped(asked()))
    protocol.data_received(HELLO + opening(encoder, 1) + empty)
    for _ in range(4):
        protocol.data_received(IDLE[what] * 5_000 + empty)
        assert not wire.closed
        protocol.rest()
        wire.written.clear()
    protocol.data_received(IDLE[what] * 4_000 + empty * 300 + IDLE[what] * 4_000)
    assert not wire.closed, "ten of them to a request"
    protocol.rest()
    protocol.data_received(IDLE[what] * 5_001)
    assert wire.closed
    assert protocol._connection.closing


def test_streams_that_are_opened_and_given_up_without_a_request_come_to_an_end_too() -> None:
    one = picker()
    protocol, wire = connected(one)
    encoder = hpack.Encoder()
    protocol.data_received(HELLO)
    for number in range(1, 5_100, 2):
        protocol.data_received(opening(encoder, number) + frame(http2.RST_STREAM, 0, number, b"\0\0\0\x08"))
        if wire.closed:
            break
    assert wire.closed
    protocol.connection_lost(None)
    assert one.counts.streams == 0


async def test_whoever_sends_without_end_is_read_in_turns_with_the_others_and_not_while_it_takes_nothing_off() -> None:
    wire = Stuffed()
    protocol = GrpcProtocol(service_of(picker()))
    protocol.connection_made(wire)  # type: ignore[arg-type]  # what of a transport is needed
    whole = len(protocol.get_buffer(-1))
    unknown = frame(0xEE, 0, 0, b"x" * 1000)
    stream = HELLO + unknown * 100

    def comes(size: int) -> None:
        nonlocal stream
        protocol.get_buffer(-1)[:size] = stream[:size]
        stream = stream[size:]
        protocol.buffer_updated(size)

    comes(whole - 1)
    assert not wire.paused
    stream += unknown * 100
    comes(whole)
    assert wire.paused
    await asyncio.sleep(0)
    assert not wire.paused, "everybody else has had a turn"
    comes(whole)
    protocol.pause_writing()
    await asyncio.sleep(0)
    assert wire.paused, "answers wait to be taken off"
    protocol.resume_writing()
    assert not wire.paused
    assert not wire.closed


def with_certificate(folder: Path) -> ssl.SSLContext:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "picker")])
    day = datetime.timedelta(days=1)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    signed = built.not_valid_before(now - day).not_valid_after(now + day).sign(key, hashes.SHA256())
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "both.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nothing_is_lost_of_what_comes_faster_than_it_is_read(
    loop: Callable[[], asyncio.AbstractEventLoop], *, tls: bool, tmp_path: Path
) -> None:
    client = ssl.create_default_context() if tls else None
    if client is not None:
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.set_alpn_protocols(["h2"])

    async def main() -> None:
        context = with_certificate(tmp_path) if tls else None
        async with asyncio.timeout(60), serving(service_of(picker()), "127.0.0.1:0", tls=context) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22, ssl=client)
            encoder = hpack.Encoder()
            writer.write(HELLO + b"".join(opening(encoder, n) + data(n, enveloped(piece(9_000))) for n in range(1, 401, 2)))
            writer.write(frame(http2.PING, 0, 0, b"the last"))
            await reader.readuntil(b"the last")
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def test_whoever_never_begins_a_handshake_is_hung_up_on_as_whoever_says_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_server, "_GREETING_S", 0.05)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with asyncio.timeout(20), serving(service_of(picker()), "127.0.0.1:0", tls=context) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
