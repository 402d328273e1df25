"""The HTTP line runs on both loops that our processes run on: asyncio's, and uvloop's, whose transports are none of asyncio's."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from contract.errors import Unreachable
from dataplane.http.line import HttpLine
from dataplane.http.server import Answer, Handler, Request, serving

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def route(method: str, path: str) -> Handler:
    async def answer(request: Request) -> Answer:
        return Answer(200, b"here")

    return Handler(answer)


@LOOPS
@pytest.mark.parametrize("where", ["http://127.0.0.1:0", "unix:{folder}/s"])
def test_two_calls_are_answered_on_one_connection(
    run: Callable[[Coroutine[Any, Any, None]], None], where: str, tmp_path: Path
) -> None:
    async def calls() -> None:
        async with serving(route, where.format(folder=tmp_path)) as url, HttpLine(url, timeout_s=5) as line:
            for _ in range(2):
                assert (await line.call("GET", "/")).body == b"here"
            assert len(line._idle) == 1

    run(calls())


@LOOPS
def test_a_server_that_nobody_vouches_for_is_unreachable_and_one_that_hangs_is_given_up(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def calls() -> None:
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            for url, tls in ((f"http://127.0.0.1:{port}", None), (f"https://127.0.0.1:{port}", ssl.create_default_context())):
                async with HttpLine(url, timeout_s=0.1, tls=tls) as line:
                    with pytest.raises(Unreachable):
                        await line.call("GET", "/")

    run(calls())
