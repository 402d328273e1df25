"""The agent's HTTP client against servers that are slow, odd or hostile, byte by byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.answers import MAX_ANSWER_BYTES
from contract.errors import ProtocolViolation, Unreachable
from dataplane.http.line import HttpLine, Response

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@contextlib.asynccontextmanager
async def served(folder: Path, talk: Talk) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(handle, folder / "s")
    try:
        yield f"unix:{folder}/s"
    finally:
        server.close()


def saying(*parts: bytes, again: bool = False) -> Talk:
    """Answer each request with these bytes, part by part; close afterwards unless `again`."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if not again:
                return

    return talk


async def ask(folder: Path, talk: Talk, *, timeout_s: float = 2.0) -> Response:
    async with served(folder, talk) as url, HttpLine(url, timeout_s=timeout_s) as line:
        return await line.call("GET", "/x")


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ([OK], b"hi"),
        ([OK[index : index + 1] for index in range(len(OK))], b"hi"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], b"hi"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n", b"1;ext=1\r\ni\r\n0\r\nx: y\r\n\r\n"], b"hi"),
        ([b"HTTP/1.0 200 OK\r\n\r\nh", b"i"], b"hi"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
async def test_all_shapes_of_an_answer_are_read(tmp_path: Path, parts: list[bytes], body: bytes) -> None:
    assert (await ask(tmp_path, saying(*parts))).body == body


@pytest.mark.parametrize(
    "reply",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        f"HTTP/1.1 200 OK\r\ncontent-length: {MAX_ANSWER_BYTES + 1}\r\n\r\n".encode(),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (MAX_ANSWER_BYTES + 1),
    ],
)
async def test_what_is_not_http_or_too_much_is_a_violation(tmp_path: Path, reply: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        await ask(tmp_path, saying(reply))


@pytest.mark.parametrize("reply", [b"", OK[:10], OK[:-1], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nh"])
async def test_an_answer_that_breaks_off_is_no_answer(tmp_path: Path, reply: bytes) -> None:
    with pytest.raises(Unreachable):
        await ask(tmp_path, saying(reply))


async def test_a_server_that_drips_for_ever_is_given_up(tmp_path: Path) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: y\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    with pytest.raises(Unreachable):
        await ask(tmp_path, drip, timeout_s=0.1)


async def test_a_connection_is_kept_and_one_that_the_server_gave_up_is_made_anew(tmp_path: Path) -> None:
    connections = 0

    async def two_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    async with served(tmp_path, two_each) as url, HttpLine(url, timeout_s=2.0) as line:
        for _ in range(6):
            assert (await line.call("GET", "/x")).body == b"hi"
            await asyncio.sleep(0.01)
    assert connections == 3


async def test_answers_never_get_mixed_up_after_a_call_that_was_given_up(tmp_path: Path) -> None:
    number = 0

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        while True:
            await reader.readuntil(b"\r\n\r\n")
            number += 1
            mine = number
            if mine == 1:
                await asyncio.sleep(0.2)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % mine)

    async with served(tmp_path, late) as url, HttpLine(url, timeout_s=0.05) as line:
        with pytest.raises(Unreachable):
            await line.call("GET", "/x")
        assert [(await line.call("GET", "/x")).body for _ in range(2)] == [b"2", b"3"]


async def test_bytes_that_nobody_asked_for_end_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path, saying(OK + OK, again=True)) as url, HttpLine(url, timeout_s=2.0) as line:
        for _ in range(3):
            assert (await line.call("GET", "/x")).body == b"hi"


async def test_a_body_and_a_token_are_sent_and_calls_side_by_side_have_a_connection_each(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append(head + await reader.readexactly(2))
            await asyncio.sleep(0.02)
            writer.write(OK)

    async with served(tmp_path, echo) as url, HttpLine(url, token="secret", timeout_s=2.0) as line:
        await asyncio.gather(line.call("PUT", "/x", b"{}"), line.call("POST", "/y", b"[]"))
    assert sorted(one[:6] for one in seen) == [b"POST /", b"PUT /x"]
    assert all(b"authorization: Bearer secret\r\n" in one and b"content-length: 2\r\n" in one for one in seen)


@pytest.mark.parametrize("token", ["two\r\nlines", "uml\u00e4ut"])
def test_a_token_that_would_break_the_header_lines_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        HttpLine("http://127.0.0.1:1", token=token, timeout_s=1.0)


@given(reply=st.binary(max_size=200), cut=st.integers(0, 200))
@settings(deadline=None, max_examples=150)
def test_any_bytes_are_an_answer_a_violation_or_silence(tmp_path_factory: pytest.TempPathFactory, reply: bytes, cut: int) -> None:
    async def go() -> None:
        folder = tmp_path_factory.mktemp("h")
        for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"):
            whole = start + reply
            with contextlib.suppress(ProtocolViolation, Unreachable):
                await ask(folder, saying(whole[:cut], whole[cut:]), timeout_s=0.5)

    asyncio.run(go())


def test_lines_to_a_thousand_agents_share_what_they_trust() -> None:
    one, other = (HttpLine(f"https://10.0.0.{n}:1", timeout_s=1.0) for n in range(2))
    assert one._tls is not None
    assert one._tls is other._tls
