"""The agent's own line to the engine tells silence from garbage, whatever comes over the socket."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from dataplane_fakes import FakeEngine

from contract.engine import PREFIX, SplitAnswer, SplitRequest, SplitStatus
from contract.engine_client import EngineClient
from contract.errors import ProtocolViolation, Unreachable
from contract.ring import SUPPORTED, RingWriter
from contract.samples import SampleBuffer
from dataplane.agent.engine_link import AUDIT_EVERY, EngineLink

Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a server that answers every call with one handler."""
    runners: list[web.AppRunner] = []

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
        return f"unix:{tmp_path}/engine.sock"

    yield start
    for runner in runners:
        await runner.cleanup()


def answer(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return handler


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"[]", 200),
        (b'{"startId":1}', 200),
        (b"\xff", 200),
        (b"{}", 500),
        (b"{}", 404),
        (b"", 302),
        (b"[" * 100_000, 200),
        (b"x" * (5 << 20), 200),
    ],
)
async def test_an_answer_outside_the_contract_is_a_violation(serve: Serve, body: bytes, status: int) -> None:
    url = await serve(answer(body, status=status, headers={"location": "/elsewhere"} if status == 302 else None))
    async with EngineLink(url) as link:
        with pytest.raises(ProtocolViolation):
            await link.observe()
        with pytest.raises(ProtocolViolation):
            await link.describe()


async def test_nan_and_overflow_in_json_never_become_numbers(serve: Serve) -> None:
    honest = msgspec.json.encode(await FakeEngine().observe()).decode()
    for hostile in ("NaN", "Infinity", "1e999", "-1"):
        url = await serve(answer(honest.replace('"clockMs":1000.0', f'"clockMs":{hostile}').encode()))
        async with EngineLink(url) as link:
            with pytest.raises(ProtocolViolation):
                await link.observe()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({"x-gr-cursor": "x", "x-gr-lost": "0"}, b""),
        ({"x-gr-cursor": "1", "x-gr-lost": "-1"}, b""),
        ({"x-gr-cursor": "1", "x-gr-lost": "0"}, b"1234567"),
    ],
)
async def test_samples_outside_the_contract_are_a_violation(serve: Serve, headers: dict[str, str], body: bytes) -> None:
    url = await serve(answer(body, headers=headers))
    async with EngineLink(url) as link:
        with pytest.raises(ProtocolViolation):
            await link.samples(0)


async def test_no_engine_a_slow_one_and_a_dying_one_are_unreachable(serve: Serve, tmp_path: Path) -> None:
    async with EngineLink(f"unix:{tmp_path}/nobody.sock") as link:
        with pytest.raises(Unreachable):
            await link.observe()

    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with EngineLink(await serve(slow), timeout_s=0.05) as link:
        with pytest.raises(Unreachable):
            await link.observe()

    async def dying(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with EngineLink(await serve(dying)) as link:
        with pytest.raises(Unreachable):
            await link.observe()


async def test_a_refused_split_is_an_answer_and_not_an_error(serve: Serve) -> None:
    engine = FakeEngine()
    refused = SplitAnswer(status=SplitStatus.CONFLICT, split=engine.split_state(), start_id="start-1")
    url = await serve(answer(msgspec.json.encode(refused), status=409))
    request = SplitRequest(start_id="start-1", revision=7, emb_bytes=1, kv_bytes=1, refill_bytes_per_second=0)
    async with EngineLink(url) as link:
        assert await link.put_split(request) == refused


async def test_the_line_says_what_the_contracts_own_client_says(serve: Serve) -> None:
    engine = FakeEngine()
    engine.touch(kind=0, key=5, size=10, time_ms=1.0)

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["authorization"] == "Bearer secret"
        if request.path == f"{PREFIX}/samples":
            records, cursor, lost = await engine.samples(int(request.query["cursor"]))
            return web.Response(body=records.tobytes(), headers={"x-gr-cursor": str(cursor), "x-gr-lost": str(lost)})
        value = await engine.describe() if request.path == f"{PREFIX}/describe" else await engine.observe()
        return web.Response(body=msgspec.json.encode(value))

    url = await serve(handler)
    async with EngineLink(url, token="secret") as link, EngineClient(url, token="secret") as client:
        assert await link.describe() == await client.describe()
        assert await link.observe() == await client.observe()
        (ours, *rest), (theirs, *others) = await link.samples(0), await client.samples(0)
        assert ours.tobytes() == theirs.tobytes()
        assert rest == others


class RingEngine:
    """Answers describe and samples, and has its samples in a ring beside the socket too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.buffer = SampleBuffer(capacity=1024)
        self.start("start-1")

    def start(self, start_id: str) -> None:
        self.start_id = start_id
        self.ring = RingWriter(self.folder / "engine.sock.samples", start_id=start_id, capacity=1024)
        self.buffer, self.shared, self.by_http = SampleBuffer(capacity=1024), 0, 0

    def touch(self, count: int, *, only_here: bool = False) -> None:
        self.buffer.extend(kind=0, size=7, keys=range(count), time_us=1)
        if not only_here:
            payload, self.shared, _ = self.buffer.read(self.shared)
            self.ring.write(payload, self.shared)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == f"{PREFIX}/samples":
            self.by_http += 1
            payload, cursor, lost = self.buffer.read(int(request.query["cursor"]))
            return web.Response(body=payload, headers={"x-gr-cursor": str(cursor), "x-gr-lost": str(lost)})
        described = await FakeEngine().describe()
        described = msgspec.structs.replace(described, start_id=self.start_id, samples_ring="engine.sock.samples")
        return web.Response(body=msgspec.json.encode(described))


async def drained(link: EngineLink, cursor: int, expected: int) -> int:
    records, following, lost = await link.samples(cursor)
    assert (len(records), following, lost) == (expected, cursor + expected, 0)
    return following


@pytest.mark.skipif(not SUPPORTED, reason="this machine does not keep stores and loads in order")
async def test_samples_come_from_the_ring_and_now_and_then_over_http_to_see_that_both_agree(serve: Serve, tmp_path: Path) -> None:
    engine = RingEngine(tmp_path)
    async with EngineLink(await serve(engine.handle)) as link:
        await link.describe()
        cursor = 0
        for _ in range(2 * AUDIT_EVERY):
            engine.touch(3)
            cursor = await drained(link, cursor, 3)
        assert engine.by_http == 2
        assert link.reads_ring


@pytest.mark.skipif(not SUPPORTED, reason="this machine does not keep stores and loads in order")
@pytest.mark.parametrize("fault", ["cut short", "noise", "stands still"])
async def test_a_ring_that_goes_bad_is_left_and_the_same_cursor_goes_on_over_http(
    serve: Serve, tmp_path: Path, fault: str
) -> None:
    engine = RingEngine(tmp_path)
    async with EngineLink(await serve(engine.handle)) as link:
        await link.describe()
        engine.touch(5)
        cursor = await drained(link, 0, 5)
        engine.touch(2, only_here=fault == "stands still")
        if fault == "cut short":
            os.truncate(tmp_path / "engine.sock.samples", 4100)
        elif fault == "noise":
            with (tmp_path / "engine.sock.samples").open("r+b") as file:
                file.write(os.urandom(5000))
        else:
            for _ in range(AUDIT_EVERY - 2):
                assert len((await link.samples(cursor))[0]) == 0
        cursor = await drained(link, cursor, 2)
        assert not link.reads_ring
        engine.touch(4, only_here=True)
        await drained(link, cursor, 4)


@pytest.mark.skipif(not SUPPORTED, reason="this machine does not keep stores and loads in order")
async def test_a_new_process_has_a_new_ring_and_one_of_the_old_process_is_not_taken(serve: Serve, tmp_path: Path) -> None:
    engine = RingEngine(tmp_path)
    async with EngineLink(await serve(engine.handle)) as link:
        await link.describe()
        engine.start_id = "start-2"  # described before its ring is there
        await link.describe()
        assert not link.reads_ring
        engine.touch(1)
        assert (await drained(link, 0, 1), engine.by_http) == (1, 1)
        engine.start("start-2")
        await link.describe()
        assert link.reads_ring
        engine.touch(6)
        assert (await drained(link, 0, 6), engine.by_http) == (6, 0)


async def test_a_name_that_leads_out_of_the_folder_is_outside_the_contract(serve: Serve) -> None:
    described = msgspec.json.encode(await FakeEngine().describe()).decode()
    for hostile in ("../../etc/shadow", "/dev/zero", ".hidden", "", "a\\u0000b"):
        url = await serve(answer(described.replace('"samplesRing":null', f'"samplesRing":"{hostile}"').encode()))
        async with EngineLink(url) as link:
            with pytest.raises(ProtocolViolation):
                await link.describe()


def test_another_scheme_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ValueError, match="unix:/path"):
        EngineLink("ftp://engine")
