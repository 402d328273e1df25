"""The agent's HTTP server against callers that are slow, odd or hostile, byte by byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.sockets import CannotListen
from dataplane.http import server as http_server
from dataplane.http.server import Answer, Handler, Request, serving


class Face:
    """Answers what it got; `/wait` waits until it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = self.answered = 0

    def route(self, method: str, path: str) -> Handler | Answer:
        if path == "/wait":
            return Handler(self.wait)
        if path == "/large":
            return Handler(self.large)
        if path == "/bad":
            return Handler(self.bad)
        if path in ("/x", "/early"):
            early = (lambda _: Answer(409, b"unwanted")) if path == "/early" else None
            return Handler(self.echo, 1000, early)
        return Answer(404, b"no such path")

    async def echo(self, request: Request) -> Answer:
        self.answered += 1
        return Answer(413, b"too much") if request.body is None else Answer(200, request.body + request.query.encode())

    async def large(self, _: Request) -> Answer:
        self.answered += 1
        return Answer(200, LARGE)

    async def bad(self, _: Request) -> Answer:
        raise RuntimeError("a fault")

    async def wait(self, _: Request) -> Answer:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer(200, b"")


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    found = Face()
    async with serving(found.route, f"unix:{tmp_path}/s"):
        yield found


async def say(folder: Path, *parts: bytes, wait: bool = True) -> bytes:
    """Send parts and return all that comes back until the server hangs up, or nothing more does."""
    reader, writer = await asyncio.open_unix_connection(folder / "s")
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2 if wait else 0.0):
                return await reader.read(1 << 20)
        return await reader.read(reader._buffer.__len__()) if reader._buffer else b""  # type: ignore[attr-defined]  # all so far
    finally:
        writer.close()


LARGE = b"l" * (1 << 20)
GET = b"GET /x?q HTTP/1.1\r\nhost: a\r\n\r\n"


async def test_two_requests_at_once_are_answered_in_order_on_one_connection(face: Face, tmp_path: Path) -> None:
    second = b"PUT /x?2 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
    said = await say(tmp_path, GET + second)
    assert said.index(b"\r\n\r\nq") < said.index(b"\r\n\r\nhi2")


async def test_a_request_may_come_byte_by_byte(face: Face, tmp_path: Path) -> None:
    request = b"PUT /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    assert (await say(tmp_path, *(request[i : i + 1] for i in range(len(request))))).endswith(b"\r\n\r\nhi")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /x HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET /x HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 20_000, b"431"),
        (b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
        (b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: -4\r\n\r\n", b"400"),
        (b"PUT /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n" + b"z" * 5000, b"413"),
        (b"PUT /early HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n", b"409"),
        (b"GET /elsewhere HTTP/1.1\r\nhost: a\r\n\r\n", b"404"),
        (b"GET /bad HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b"500"),
    ],
)
async def test_what_cannot_be_answered_gets_a_status_and_the_server_goes_on(
    face: Face, tmp_path: Path, request_bytes: bytes, status: bytes
) -> None:
    assert (await say(tmp_path, request_bytes))[9:12] == status
    assert b"200" in await say(tmp_path, GET)


async def test_a_head_has_no_body_and_the_connection_goes_on(face: Face, tmp_path: Path) -> None:
    said = await say(tmp_path, b"HEAD /x?q HTTP/1.1\r\nhost: a\r\n\r\n" + GET)
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.count(b"\r\n\r\nq") == 1


async def test_who_asks_before_sending_a_body_is_told_to_go_on(face: Face, tmp_path: Path) -> None:
    head = b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(head)
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)).startswith(b"HTTP/1.1 100")
    writer.write(b"hi")
    assert (await asyncio.wait_for(reader.read(), 2)).endswith(b"hi")
    writer.close()


async def test_whoever_goes_away_is_waited_for_no_longer(face: Face, tmp_path: Path) -> None:
    await say(tmp_path, b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n")
    for _ in range(100):
        if face.cancelled:
            break
        await asyncio.sleep(0.01)
    assert face.cancelled == 1


async def test_nobody_sends_ahead_without_end_while_an_answer_is_waited_for(face: Face, tmp_path: Path) -> None:
    said = await say(tmp_path, b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n", b"x" * (2 * http_server.MAX_AHEAD_BYTES))
    assert said == b""
    for _ in range(100):
        if face.cancelled:
            break
        await asyncio.sleep(0.01)
    assert face.cancelled == 1


GET_LARGE = b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_who_takes_no_answers_gets_no_more_of_them_until_it_does(
    factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """Requests are small and answers are large: a few kilobytes of requests would fill the memory."""

    async def scenario() -> None:
        face, asked = Face(), 40
        async with serving(face.route, f"unix:{tmp_path}/s"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=4096)
            writer.write(GET_LARGE * asked)
            await asyncio.sleep(0.1)
            assert face.answered <= 2
            for _ in range(asked):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(len(LARGE)) == LARGE
            assert face.answered == asked
            writer.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(scenario(), 20.0))


@pytest.mark.parametrize("how", ["idle for long", "no room", "too much ahead", "the end", "half closed"])
@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_who_never_takes_its_answer_is_hung_up_on(
    factory: Callable[[], asyncio.AbstractEventLoop], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "idle for long":
        monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.05)
    if how == "no room":
        monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.05 if how in ("too much ahead", "the end", "half closed") else 30.0)
    more = b"GET /large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" if how == "the end" else GET_LARGE

    async def scenario() -> None:
        lost = asyncio.Event()
        monkeypatch.setattr(http_server._Connection, "connection_lost", _told(lost))
        async with serving(Face().route, f"unix:{tmp_path}/s"):
            _, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=4096)
            writer.write(more)
            await asyncio.sleep(0.02)
            if how == "too much ahead":
                writer.write(b"x" * (2 * http_server.MAX_AHEAD_BYTES))
            if how == "half closed":
                writer.write(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n")
                await asyncio.sleep(0.02)
                writer.write_eof()
            others = [await asyncio.open_unix_connection(tmp_path / "s")] if how == "no room" else []
            await lost.wait()
            for _, each in (*others, (None, writer)):
                each.transport.abort()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(scenario(), 10.0))


def _told(event: asyncio.Event) -> Callable[[http_server._Connection, Exception | None], None]:
    before = http_server._Connection.connection_lost

    def connection_lost(self: http_server._Connection, error: Exception | None) -> None:
        event.set()
        before(self, error)

    return connection_lost


async def test_silent_callers_are_hung_up_on_and_too_many_are_turned_away(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.1)
    first = await asyncio.open_unix_connection(tmp_path / "s")
    first[1].write(b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhi")
    second = await asyncio.open_unix_connection(tmp_path / "s")
    second[1].write(b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhi")
    await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionError):
        assert await say(tmp_path, GET) == b""
    assert await asyncio.wait_for(first[0].read(), 2) == b""
    assert await asyncio.wait_for(second[0].read(), 2) == b""
    assert b"200" in await say(tmp_path, GET)
    for _, writer in (first, second):
        writer.close()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    assert await asyncio.wait_for(reader.read(), 2) == b"", "one that asks for nothing too"
    writer.close()


async def test_a_crowd_that_keeps_its_connections_keeps_nobody_out_and_who_has_not_asked_for_longest_makes_room(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    crowd = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(4)]

    async def ask(number: int) -> None:
        crowd[number][1].write(GET)
        assert (await crowd[number][0].readuntil(b"\r\n\r\nq")).startswith(b"HTTP/1.1 200")

    for number in (2, 0, 3, 1):
        await ask(number)
    crowd[0][1].write(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n")  # it waits for its answer, and is not hung up on
    await ask(2)
    assert b"200" in await say(tmp_path, GET)
    assert await asyncio.wait_for(crowd[3][0].read(), 2) == b"", "it had not asked for longest"
    for number in (2, 1):
        await ask(number)
    for _ in range(20):
        assert b"200" in await say(tmp_path, GET)
    await asyncio.sleep(0)
    assert face.cancelled == 0
    for _, writer in crowd:
        writer.close()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://127.0.0.1:99999", "unix:/nowhere/at/all"])
async def test_an_address_that_cannot_be_served_on_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(CannotListen):
        async with serving(Face().route, url):
            pass


async def test_a_living_servers_socket_is_not_taken_away_and_it_is_its_owners(face: Face, tmp_path: Path) -> None:
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    with pytest.raises(CannotListen, match="another process answers"):
        async with serving(Face().route, f"unix:{tmp_path}/s"):
            pass
    assert b"200" in await say(tmp_path, GET)


@given(noise=st.binary(max_size=300), cut=st.integers(0, 300))
@settings(deadline=None, max_examples=100)
def test_no_bytes_bring_it_down(tmp_path_factory: pytest.TempPathFactory, noise: bytes, cut: int) -> None:
    async def go() -> None:
        folder = tmp_path_factory.mktemp("h")
        async with serving(Face().route, f"unix:{folder}/s"):
            for start in (b"", b"PUT /x HTTP/1.1\r\n", b"PUT /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"):
                whole = start + noise
                with contextlib.suppress(ConnectionError):
                    await say(folder, whole[:cut], whole[cut:], wait=False)
            assert b"200" in await say(folder, GET.replace(b"host: a", b"host: a\r\nconnection: close"))

    asyncio.run(go())
