"""Addresses to serve on: whose socket it is, and that nobody's live one is taken away."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector, web

from contract.listening import CannotListen, listening


def runner(name: str) -> web.AppRunner:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=name)

    app = web.Application()
    app.router.add_get("/", answer)
    return web.AppRunner(app)


async def ask(path: Path) -> str:
    async with ClientSession(connector=UnixConnector(str(path))) as session, session.get("http://engine/") as response:
        return await response.text()


async def test_a_socket_belongs_to_its_owner_from_its_first_moment_and_goes_with_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with listening(runner("first"), f"unix:{path}") as address:
        assert address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_second_server_is_refused_and_the_first_goes_on_answering(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with listening(runner("first"), f"unix:{path}"):
        with pytest.raises(CannotListen, match="another process answers"):
            async with listening(runner("second"), f"unix:{path}"):
                pass
        assert await ask(path) == "first"


async def test_what_a_killed_process_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with listening(runner("next"), f"unix:{path}"):
        assert await ask(path) == "next"


async def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(CannotListen):
        async with listening(runner("x"), f"unix:{path}"):
            pass
    assert path.read_text() == "keep me"


@pytest.mark.parametrize("url", ["ftp://x", "/no/scheme", "http://", "http://127.0.0.1:notaport", "unix:/nowhere/a.sock"])
async def test_an_address_that_cannot_be_served_on_is_named(url: str) -> None:
    with pytest.raises(CannotListen, match=url):
        async with listening(runner("x"), url):
            pass


async def test_a_taken_port_is_named_and_port_0_takes_a_free_one() -> None:
    async with listening(runner("first"), "http://127.0.0.1:0") as address:
        with pytest.raises(CannotListen, match=address):
            async with listening(runner("second"), address):
                pass


async def test_the_umask_of_the_process_is_as_before(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with listening(runner("x"), f"unix:{tmp_path}/a.sock"):
            await asyncio.sleep(0)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
