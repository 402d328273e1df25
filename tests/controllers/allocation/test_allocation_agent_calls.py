"""The operator's line to the agents against servers that answer anything, or nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from loop_objects import agent_status

from contract.agent import Intent, IntentAnswer, IntentStatus, ModelAnswer, ModelStatus
from contract.agent_client import AgentClient
from contract.errors import ProtocolViolation, Unreachable
from contract.http import tls_context
from controllers.allocation.agent_calls import MAX_ANSWER_BYTES, SessionAgent, connect

INTENT = Intent(uid="u", generation=3, issued=1, expires=2, spec={"strategy": "Static"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def agent_at(handler: Handler, *, prefix: str = "") -> AsyncIterator[SessionAgent]:
    """A SessionAgent whose server is the handler."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        agent = connect(session, f"http://127.0.0.1:{runner.addresses[0][1]}{prefix}")
        assert isinstance(agent, SessionAgent)
        yield agent
    await runner.cleanup()


def answering(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers=headers)

    return answer


async def test_an_agent_below_a_path_is_asked_there_and_its_status_is_read() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.path))
        return web.Response(body=msgspec.json.encode(agent_status()))

    async with agent_at(answer, prefix="/i/7/") as agent:
        assert await agent.status() == agent_status()
    assert seen == [("GET", "/i/7/agent/v1/status")]


@pytest.mark.parametrize("status", [200, 400, 403, 409])
async def test_an_intent_is_handed_over_and_every_verdict_is_an_answer(status: int) -> None:
    verdict = IntentAnswer(status=IntentStatus.STALE, uid="u", generation=9, reason="newer in force")
    bodies = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(msgspec.json.decode(await request.read(), type=Intent))
        return web.Response(body=msgspec.json.encode(verdict), status=status)

    async with agent_at(answer) as agent:
        assert await agent.put_intent(INTENT) == verdict
    assert bodies == [INTENT]


@pytest.mark.parametrize(
    "handler",
    [
        answering(b"x" * (MAX_ANSWER_BYTES + 1)),
        answering(b"not json"),
        answering(b"[]"),
        answering(b'{"agentStartId": 7}'),
        answering(b"[" * 100_000),
        answering(b"\xff\xfe"),
        answering(b"", status=500),
        answering(b"", status=302, headers={"location": "http://127.0.0.1:1/elsewhere"}),
    ],
    ids=["too large", "not json", "another shape", "another type", "nested", "not text", "server error", "redirect"],
)
async def test_what_the_contract_does_not_allow_is_refused(handler: Handler) -> None:
    async with agent_at(handler) as agent:
        with pytest.raises(ProtocolViolation):
            await agent.status()


@pytest.mark.parametrize("status", [200, 201, 302, 401, 404, 500])
@pytest.mark.parametrize(
    "body", [b"the-secret", b'{"agentStartId": "the-secret"}', b'{"agentStartId": ["the-secret"]}', b'"the-secret"']
)
async def test_no_word_of_a_server_that_is_no_agent_gets_into_what_is_told(status: int, body: bytes) -> None:
    """What is told ends in a condition, and whoever makes a pool chooses the address: it must not become a reader for others."""
    async with agent_at(answering(body, status=status)) as agent:
        for call in (agent.status(), agent.put_intent(INTENT)):
            with pytest.raises(ProtocolViolation) as caught:
                await call
            assert "the-secret" not in str(caught.value)


async def test_an_agent_that_hangs_up_in_the_middle_did_not_answer() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with agent_at(hang_up) as agent:
        with pytest.raises(Unreachable):
            await agent.status()


async def test_a_refused_connection_and_a_name_that_is_none_are_silence() -> None:
    async with aiohttp.ClientSession() as session:
        for url in ("http://127.0.0.1:1", "http://[not-an-address]:1"):
            with pytest.raises((Unreachable, ProtocolViolation)):
                await connect(session, url).status()


async def test_an_agent_behind_a_unix_socket_is_reached_as_well(tmp_path: Path) -> None:
    app = web.Application()
    app.router.add_get("/agent/v1/status", answering(msgspec.json.encode(agent_status())))
    runner = web.AppRunner(app)
    await runner.setup()
    path = tmp_path / "a.sock"
    await web.UnixSite(runner, str(path)).start()
    async with aiohttp.ClientSession() as session:
        agent = connect(session, f"unix:{path}")
        assert isinstance(agent, AgentClient)
        assert await agent.status() == agent_status()
        await agent.aclose()
    await runner.cleanup()


async def test_an_agent_behind_https_is_trusted_as_every_client_of_the_contract_does() -> None:
    asked: list[object] = []

    class Session:
        def request(self, *_: object, **options: object) -> None:
            asked.append(options["ssl"])
            raise aiohttp.ClientConnectionError

    for url in ("https://agent:9001", "http://agent:9001"):
        with pytest.raises(Unreachable):
            await connect(cast(aiohttp.ClientSession, Session()), url).status()
    assert asked == [tls_context(), True]


def test_an_operator_whose_agents_live_in_pods_does_not_load_the_client_of_the_contract() -> None:
    code = (
        "import sys, controllers.runtime.process; print([name for name in ('httpx', 'rich', 'pygments') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


async def test_the_bytes_of_a_model_go_out_as_they_are_and_a_refusal_is_an_answer() -> None:
    seen = []
    said = ModelAnswer(status=ModelStatus.REFUSED, models=["a" * 64], reason="NotAModel", message="no header")

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, request.content_type, await request.read()))
        return web.Response(body=msgspec.json.encode(said), status=400)

    data = bytes(range(256)) * 1024
    async with agent_at(answer) as agent:
        assert await agent.put_model("b" * 64, data) == said
    assert seen == [("PUT", f"/agent/v1/model/{'b' * 64}", "application/octet-stream", data)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{}", 200),
        (b'{"status":"held","models":["x"]}', 200),
        (b'{"status":"perhaps","models":[]}', 200),
        (b'{"status":"held","models":[]}', 404),
        (b'{"status":"held","models":[]}', 301),
        (b"[" * 50_000, 200),
        (b"x" * (MAX_ANSWER_BYTES + 1), 400),
    ],
)
async def test_nonsense_about_a_model_is_a_violation(body: bytes, status: int) -> None:
    async with agent_at(answering(body, status=status)) as agent:
        with pytest.raises(ProtocolViolation):
            await agent.put_model("b" * 64, b"bytes")
