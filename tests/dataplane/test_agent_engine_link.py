"""The agent's own line to the engine tells silence from garbage, whatever comes over the socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from dataplane_fakes import FakeEngine

from contract.engine import PREFIX, SplitAnswer, SplitRequest, SplitStatus
from contract.engine_client import EngineClient
from contract.errors import ProtocolViolation, Unreachable
from dataplane.agent.engine_link import EngineLink

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


def test_another_scheme_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ValueError, match="unix:/path"):
        EngineLink("ftp://engine")
