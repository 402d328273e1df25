"""Answers that are waited for in place: what comes at once, what comes late or in parts, and what is no answer at all."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from contract.errors import ProtocolViolation, Unreachable
from dataplane.http.answer import UsualHead
from dataplane.http.line import HttpLine

LATE_S = 0.06


def answer(body: bytes, *, date: str = "now", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nType: x\r\nContent-Length: {len(body)}\r\nDate: {date}\r\n\r\n".encode() + body


@contextlib.contextmanager
def server(folder: Path, *scripts: Sequence[bytes | float | Callable[[], object] | None]) -> Iterator[str]:
    """Another thread that answers the first call by the first script and so on: parts, pauses in seconds, None to hang up.

    What can be called is called, for tests that have to wait for the server, or it for them.
    """
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "s"))
    listening.listen()
    rest = list(scripts)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while rest:
                with listening.accept()[0] as talk, contextlib.suppress(ConnectionError):  # its caller has given up
                    while rest and talk.recv(65536):
                        for part in rest.pop(0):
                            if isinstance(part, bytes):
                                talk.sendall(part)
                            elif callable(part):
                                part()
                            elif part is not None:
                                time.sleep(part)
                            else:
                                talk.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"unix:{folder}/s"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10.0)


async def asked(line: HttpLine, request: bytes) -> bytes:
    """A call as the agent's link makes it."""
    body = line.body_in_place(request)
    return body if body is not None else (await line.send(request, name="GET /x")).body


async def test_each_answer_is_that_of_its_own_call_however_heads_lengths_and_parts_change(tmp_path: Path) -> None:
    bodies = [b"0" * 10, b"1" * 10, b"2" * 11, b"3" * 120, b"4" * 12, b"5" * 12, b"6" * 12, b"", b"8" * 12, b"9" * 12]
    scripts: list[list[bytes | float | None]] = [[answer(body)] for body in bodies]
    scripts[4] = [answer(bodies[4])[:20], LATE_S / 3, answer(bodies[4])[20:]]
    scripts[5] = [answer(bodies[5], date="later")]
    scripts[6] = [LATE_S, answer(bodies[6])]
    scripts[8] = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n", bodies[8], b"\r\n0\r\n\r\n"]
    with server(tmp_path, *scripts) as url:
        async with HttpLine(url, timeout_s=5.0) as line:
            request = line.request("GET", "/x")
            assert [await asked(line, request) for _ in bodies] == bodies


async def test_most_answers_that_come_at_once_need_no_turn_of_the_event_loop(tmp_path: Path) -> None:
    with server(tmp_path, *[[answer(b"x" * (100 + number))] for number in range(40)]) as url:
        async with HttpLine(url, timeout_s=5.0) as line:
            request = line.request("GET", "/x")
            await line.send(request, name="GET /x")
            at_once = 0
            for number in range(1, 40):
                body = line.body_in_place(request)
                at_once += body is not None
                assert (body or (await line.send(request, name="GET /x")).body) == b"x" * (100 + number)
    assert at_once > 0


@pytest.mark.parametrize("script", [[None], [answer(b"half")[:-2], None]])
async def test_a_server_that_hangs_up_is_called_anew_unless_it_had_begun_to_answer(
    tmp_path: Path, script: list[bytes | float | None]
) -> None:
    with server(tmp_path, [answer(b"a")], script, [answer(b"b")]) as url:
        async with HttpLine(url, timeout_s=5.0) as line:
            request = line.request("GET", "/x")
            assert await asked(line, request) == b"a"
            if len(script) == 1:
                assert await asked(line, request) == b"b"
            else:
                with pytest.raises(Unreachable):
                    await asked(line, request)
                assert await asked(line, request) == b"b"


@pytest.mark.parametrize("reply", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"])
async def test_what_is_not_http_is_a_violation_in_place_too(tmp_path: Path, reply: bytes) -> None:
    with server(tmp_path, [answer(b"a")], [reply], [answer(b"b")]) as url:
        async with HttpLine(url, timeout_s=5.0) as line:
            request = line.request("GET", "/x")
            assert await asked(line, request) == b"a"
            with pytest.raises(ProtocolViolation):
                await asked(line, request)
            assert await asked(line, request) == b"b"


async def test_a_refusal_is_told_with_its_status_and_bytes_that_nobody_asked_for_end_the_connection(tmp_path: Path) -> None:
    scripts = [[answer(b"a")], [answer(b"no", status="503 No")], [answer(b"c") + answer(b"nobody's")], [answer(b"d")]]
    with server(tmp_path, *scripts) as url:
        async with HttpLine(url, timeout_s=5.0) as line:
            request = line.request("GET", "/x")
            assert await asked(line, request) == b"a"
            assert line.body_in_place(request) is None
            assert (await line.send(request, name="GET /x")).status == 503
            assert [await asked(line, request) for _ in range(2)] == [b"c", b"d"]


async def test_an_answer_that_comes_before_the_call_is_not_taken_for_the_calls(tmp_path: Path) -> None:
    read, sent = threading.Event(), threading.Event()
    twice = [answer(b"a"), lambda: read.wait(10.0), answer(b"x"), sent.set]
    with server(tmp_path, [answer(b"a")], [answer(b"a")], twice, [answer(b"b")]) as url:
        async with HttpLine(url, timeout_s=5.0) as line:
            request = line.request("GET", "/x")
            assert [await asked(line, request) for _ in range(3)] == [b"a"] * 3
            read.set()
            assert sent.wait(10.0), "the second answer to one call lies there now"
            assert await asked(line, request) == b"b"


async def test_an_engine_that_never_answers_is_given_up_in_time_and_its_late_answer_is_nobodys(tmp_path: Path) -> None:
    with server(tmp_path, [answer(b"a")], [3 * LATE_S, answer(b"late")], *[[answer(b"b")]] * 20) as url:
        async with HttpLine(url, timeout_s=LATE_S) as line:
            request = line.request("GET", "/x")
            assert await asked(line, request) == b"a"
            with pytest.raises(Unreachable):
                await asked(line, request)
            await _until_answered(line, request)


async def _until_answered(line: HttpLine, request: bytes) -> None:
    for _ in range(20):
        with contextlib.suppress(Unreachable):
            assert await asked(line, request) == b"b"
            return
    raise AssertionError("never answered again")


@pytest.mark.parametrize(
    ("data", "known"),
    [
        (answer(b"y" * 4), True),
        (answer(b"y" * 4, date="new"), False),
        (answer(b"y" * 4) + b"z", False),
        (answer(b"y" * 4)[:-1], False),
        (answer(b"y" * 12), False),
        (answer(b"y" * 4).replace(b"Length: 4", b"Length: 5"), False),
        (answer(b"y" * 4).replace(b"Length: 4", b"Length: x"), False),
        (answer(b"y" * 4).replace(b"200", b"201"), False),
        (b"", False),
    ],
)
def test_only_the_same_head_with_the_right_length_is_known_again(data: bytes, known: bool) -> None:
    usual = UsualHead(answer(b"xyz"), body_bytes=3)
    assert usual.body_of(data) == (b"yyyy" if known else None)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nxyz"
    assert UsualHead(chunked, body_bytes=3).body_of(chunked) is None
    assert UsualHead(b"", body_bytes=0).body_of(data) is None
