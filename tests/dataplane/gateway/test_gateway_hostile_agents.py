"""Agents that are nowhere, or answer without end: they cost a round no more than its time, and nobody else's users."""

import asyncio
import contextlib
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from gateway_world import row, table
from test_gateway_asks_agents import KEY, Agent, Gateway, world

from contract.residency import UserState
from dataplane.hot_users import agents
from dataplane.hot_users.agents import Addresses, ResidencyLoop
from dataplane.hot_users.residents import Residents
from dataplane.http.line import HttpLine
from dataplane.http.server import serving


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("c", "http://\u00fcnic\u00f6de:9000"),
        ("c", "http://a b:9000"),
        ("c", "http://" + "a" * 200 + ":1"),
        ("c", "http://[::1%lo]:1"),
        ("c", "http://127.0.0.1:70000"),
        ("c", ""),
        ("\u00fc", "http://127.0.0.1:1"),
        ("a\nb", "http://127.0.0.1:1"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
async def test_a_row_whose_agent_can_be_nowhere_keeps_nobody_else_from_being_asked(
    name: str, address: str, *, named: bool
) -> None:
    good = Agent("b")
    good.states = [UserState(key=KEY, tokens_hbm=3000)]
    async with serving(good.route, "http://127.0.0.1:0") as url:
        odd = msgspec.structs.replace(row(name, 1, uid="odd"), address=address)
        gateway = Gateway(table(1, [row("a", 9000), odd, row("b", 9000)], owners=[2 * (slot % 2) for slot in range(4096)]))
        pattern = f"http://{{host}}:{url.rpartition(':')[2]}"
        addresses = Addresses(pattern + "/{name}/.." if named else pattern)
        loop = ResidencyLoop(gateway, Residents(), addresses, monotonic_s=lambda: 1.0, rng=random.Random(1))
        try:
            await loop.round()
        finally:
            await loop.aclose()
    assert good.asked if not named else loop.rounds == 1


@pytest.mark.parametrize(
    "url", ["http://\u00fc:1", "http://a b:1", "http://a:1/\u00fc", "http://a:1/\x7f", "http://a:99999", "http://:1"]
)
def test_a_line_is_refused_at_once_where_no_request_could_be_written(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        HttpLine(url, timeout_s=1.0)


async def test_what_is_wrong_with_addresses_is_said_once_and_again_when_it_is_something_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "grfleet.gateway")
    async with world(tmp_path) as here:
        path = tmp_path / "agents.json"
        for text, said in (("[]", 1), ('{"a": "nonsense", "b": "http://\u00fc"}', 3), ("{", 4), ('{"a": "ftp://a"}', 5)):
            path.write_text(text)
            os.utime(path, ns=(said, said))
            for _ in range(3):
                await here.round()
            assert len(caplog.records) == said


async def _drip(writer: asyncio.StreamWriter) -> None:
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def _without_end(writer: asyncio.StreamWriter, head: bytes, piece: bytes) -> None:
    writer.write(head)
    while True:
        writer.write(piece)
        await writer.drain()


ENDLESS: dict[str, Callable[[asyncio.StreamWriter], object]] = {
    "byte by byte": _drip,
    "a gigabyte that is announced": lambda w: _without_end(
        w, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n", b"x" * 65536
    ),
    "a gigabyte that is not": lambda w: _without_end(w, b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
    "chunks": lambda w: _without_end(w, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000),
    "a head": lambda w: _without_end(w, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000),
    "a line": lambda w: _without_end(w, b"HTTP/1.1 200 ", b"x" * 65536),
    "announcements": lambda w: _without_end(w, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "nothing": lambda w: asyncio.Event().wait(),
}


@contextlib.asynccontextmanager
async def answering(answer: Callable[[asyncio.StreamWriter], object]) -> AsyncIterator[str]:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await answer(writer)  # type: ignore[misc]  # each of them is a coroutine
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("how", ENDLESS)
async def test_an_answer_without_end_is_given_up_and_the_users_of_others_are_heard(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_TIMEOUT_S", 0.2)
    async with asyncio.timeout(60), world(tmp_path) as here, answering(ENDLESS[how]) as endless:
        urls = json.loads((tmp_path / "agents.json").read_text())
        (tmp_path / "agents.json").write_text(json.dumps({**urls, "a": endless}))
        here.agents["b"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        assert (here.loop.view().reports["missing"], here.loop.view().reports["taken"]) == (1, 1)
        assert here.loop.view().users_known == 1
