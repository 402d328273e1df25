"""Peers that cost more than they send, say nothing, or come in crowds, and a disk that takes nothing: the picker goes on."""

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.keys import SLOTS
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.picker import http2, http2_server
from dataplane.picker.chooser import PickLimits
from dataplane.picker.endpoints_file import EndpointsFile
from dataplane.picker.exchange import Edge
from dataplane.picker.fleet import Fleet
from dataplane.picker.http2 import Connection, ConnectionBroken, Stream, frame
from dataplane.picker.http2_server import PROCESS, Health, Service, serving
from dataplane.picker.main import keep_written
from dataplane.picker.picker import Picker

HELLO = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
TABLE = RoutingTable(
    generation=1,
    instances=[TableInstance(name="a", uid="ua", address="10.0.0.1:80", weight_percent=100, state=InstanceState.READY)],
    slots=pack_slots([0] * SLOTS),
)


def picker() -> Picker:
    one = Picker(Edge(pool_key=b"0123456789abcdef"), limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))
    one.offer(TABLE)
    return one


def service() -> Service:
    return Service(picker().exchange, lambda: None, Health(ready=True))


def opening(number: int) -> bytes:
    return frame(http2.HEADERS, http2.END_HEADERS, number, hpack.Encoder().encode([(":path", PROCESS)]))


def settings_of(*windows: int) -> bytes:
    return frame(http2.SETTINGS, 0, 0, b"".join(struct.pack(">HL", 4, window) for window in windows))


def more(stream: int, room: int) -> bytes:
    return frame(http2.WINDOW_UPDATE, 0, stream, struct.pack(">L", room))


def connection() -> Connection:
    """One that answers every piece with itself."""

    def echo(stream: Stream) -> None:
        piece = bytes(stream.incoming)
        stream.incoming.clear()
        made.send(stream, b"\x88", piece)

    def nothing(stream: Stream) -> None:
        pass

    made = Connection(on_headers=nothing, on_data=echo, on_end=nothing, on_reset=nothing)
    return made


def frames(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 3], "big")
        yield raw[at + 3], int.from_bytes(raw[at + 5 : at + 9], "big"), raw[at + 9 : at + 9 + size]
        at += 9 + size


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the streams that were looked at."""
    seen: list[int] = []
    whole = Connection._flush

    def counted(self: Connection, stream: Stream) -> None:
        seen.append(stream.id)
        whole(self, stream)

    monkeypatch.setattr(Connection, "_flush", counted)
    return seen


def test_room_that_comes_byte_by_byte_costs_one_look_each_however_many_streams_wait(flushes: list[int]) -> None:
    one, streams = connection(), range(1, 601, 2)
    one.receive(HELLO + b"".join(opening(n) + frame(http2.DATA, 0, n, b"x" * 300) for n in streams))
    sent = sum(len(data) for kind, _, data in frames(one.take()) if kind == http2.DATA)
    assert sent == 65_535
    flushes.clear()
    one.receive(more(0, 1) * 500)
    assert len(flushes) <= 500
    assert sum(len(data) for kind, _, data in frames(one.take()) if kind == http2.DATA) == 500


def test_streams_without_room_of_their_own_are_not_looked_at_for_the_connections(flushes: list[int]) -> None:
    one, streams = connection(), range(1, 601, 2)
    one.receive(HELLO + settings_of(0) + b"".join(opening(n) + frame(http2.DATA, 0, n, b"x") for n in streams))
    flushes.clear()
    one.receive(more(0, 1) * 500)
    assert flushes == []
    one.receive(more(301, 1))
    assert flushes == [301]
    one.receive(settings_of(1))
    assert sum(len(data) for kind, _, data in frames(one.take()) if kind == http2.DATA) == 300


def test_settings_without_end_end_the_connection_and_one_frame_of_thousands_is_one_look(flushes: list[int]) -> None:
    one = connection()
    one.receive(HELLO + settings_of(0) + b"".join(opening(n) + frame(http2.DATA, 0, n, b"x") for n in range(1, 201, 2)))
    flushes.clear()
    one.receive(settings_of(*[5, 0] * 1000))
    assert len(flushes) <= 100
    with pytest.raises(ConnectionBroken, match="settings") as broken:
        one.receive(settings_of(0) * 2000)
    assert broken.value.code == http2.CALM_DOWN


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("data"), st.integers(0, 2), st.integers(1, 40)),
            st.tuples(st.just("room"), st.integers(-1, 2), st.integers(1, 50)),
            st.tuples(st.just("settings"), st.just(0), st.integers(0, 60)),
        ),
        max_size=30,
    )
)
@settings(max_examples=60)
def test_windows_are_kept_however_they_grow_and_shrink_and_nothing_is_left_behind(steps: list[tuple[str, int, int]]) -> None:
    one, initial = connection(), 10
    one.receive(HELLO + settings_of(initial) + opening(1) + opening(3) + opening(5))
    one.take()
    room, whole, given_, got = {1: 0, 3: 0, 5: 0}, 65_535, {1: b"", 3: b"", 5: b""}, {1: b"", 3: b"", 5: b""}

    def check() -> None:
        nonlocal whole
        for kind, number, data in frames(one.take()):
            if kind == http2.DATA:
                got[number] += data
                room[number] -= len(data)
                whole -= len(data)
                assert room[number] + initial >= 0
        assert whole >= 0
        for number in got:
            waits = len(given_[number]) - len(got[number])
            assert not waits or room[number] + initial <= 0, "there was room"

    for what, which, size in steps:
        number = 2 * which + 1
        if what == "data":
            piece = random.Random(size).randbytes(size)
            given_[number] += piece
            one.receive(frame(http2.DATA, 0, number, piece))
        elif what == "settings":
            initial = size
            one.receive(settings_of(size))
        elif which < 0:
            whole += size
            one.receive(more(0, size))
        else:
            room[number] += size
            one.receive(more(number, size))
        check()
    initial = 100_000
    one.receive(settings_of(initial))
    check()
    assert got == given_


def test_header_blocks_that_are_long_are_not_remembered() -> None:
    one = connection()
    one.receive(HELLO + frame(http2.SETTINGS, http2.ACK, 0))
    for number in range(1, 41, 2):
        encoder = hpack.Encoder()
        encoder.header_table_size = 0
        block = encoder.encode([(":path", PROCESS), *((f"x-{n}", f"{number} {'v' * 250}") for n in range(8))], huffman=False)
        one.receive(frame(http2.HEADERS, http2.END_HEADERS, number, block))
    assert len(one.streams) == 20
    assert sum(map(len, one._blocks._paths)) <= 1024


async def test_whoever_does_not_begin_to_speak_is_hung_up_on_and_a_quiet_gateway_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_server, "_GREETING_S", 0.05)
    async with asyncio.timeout(10), serving(service(), "127.0.0.1:0") as port:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        half, half_out = await asyncio.open_connection("127.0.0.1", port)
        half_out.write(http2.PREFACE[:10])
        quiet, quiet_out = await asyncio.open_connection("127.0.0.1", port)
        quiet_out.write(HELLO)
        for reader in (silent, half):
            with contextlib.suppress(OSError):
                await reader.read(-1)
        quiet_out.write(frame(http2.PING, 0, 0, b"12345678"))
        assert (await quiet.readuntil(b"12345678")).endswith(b"12345678")


async def test_a_crowd_that_asks_for_nothing_keeps_no_gateway_out_and_one_that_is_at_work_is_not_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_server, "MAX_CONNECTIONS", 3)
    async with asyncio.timeout(10), serving(service(), "127.0.0.1:0") as port:
        busy, busy_out = await asyncio.open_connection("127.0.0.1", port)
        busy_out.write(HELLO + opening(1) + frame(http2.PING, 0, 0, b"12345678"))
        await busy.readuntil(b"12345678")
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        late, late_out = await asyncio.open_connection("127.0.0.1", port)
        late_out.write(HELLO + frame(http2.PING, 0, 0, b"abcdefgh"))
        await late.readuntil(b"abcdefgh")
        busy_out.write(frame(http2.PING, 0, 0, b"ijklmnop"))
        await busy.readuntil(b"ijklmnop")
        for _, writer in crowd:
            writer.close()


async def test_a_disk_that_does_not_take_the_file_of_endpoints_ends_nothing_and_is_tried_again(tmp_path: Path) -> None:
    one, file = picker(), EndpointsFile(tmp_path / "folder" / "eds.json", cluster="pool")
    one.on_change = lambda: file.try_to_write(one.chooser.fleet)
    changed = RoutingTable(generation=2, instances=TABLE.instances, slots=TABLE.slots)
    assert one.offer(changed)
    assert file.problem
    keeping = asyncio.create_task(keep_written(one, file, period_s=0.005))
    (tmp_path / "folder").mkdir()
    async with asyncio.timeout(5):
        while file.problem:  # noqa: ASYNC110  # no signal for it
            await asyncio.sleep(0.005)
    assert json.loads((tmp_path / "folder" / "eds.json").read_text())["version_info"] == "2"
    keeping.cancel()
    EndpointsFile(None, cluster="pool").try_to_write(Fleet(None))
