"""Servers behind --prometheus-url that are none, or mean no good: the answer is in doubt, bounded, and says so in still words."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controllers.metrics_source.bounded_http import MAX_ANSWER_BYTES
from controllers.metrics_source.port import InstanceName, PoolMetrics, PoolName, SourceState
from controllers.metrics_source.prometheus import PrometheusMetrics, connect_to

Answer = Callable[[BaseHTTPRequestHandler], None]
POOL, NAMES = PoolName(namespace="shop", name="a"), [InstanceName(name="a-0", uid="u")]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                answer(self)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def body(content: bytes, *, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"content_type": "application/json", "content_length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def dripping(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def another_each_time(handler: BaseHTTPRequestHandler) -> None:
    body(f"<html>request {time.monotonic_ns()}".encode(), status=502)(handler)


BOMB = gzip.compress(b" " * (MAX_ANSWER_BYTES + 1))
HOSTILE = {
    "a page": (body(b"<html>log in</html>"), "not that of a Prometheus server"),
    "an error page that never is the same": (another_each_time, "HTTP Status Code 502"),
    "nested": (body(b"[" * 100_000), "not that of a Prometheus server"),
    "not text": (body(b"\xff\xfe\x00"), "not that of a Prometheus server"),
    "a number beyond every other": (body(b'{"data":{"result":[1' + b"0" * 400 + b"]}}"), "no time"),
    "too many digits": (body(b'{"data":{"result":[1' + b"0" * 9000 + b"]}}"), "not that of a Prometheus server"),
    "large": (body(b" " * (MAX_ANSWER_BYTES + 1)), "larger than 16 MiB"),
    "a bomb": (body(BOMB, content_encoding="gzip"), "larger than 16 MiB"),
    "a broken archive": (body(b"no gzip", content_encoding="gzip"), "RequestException"),
    "broken off": (body(b"{", content_length="9"), "RequestException"),
    "endless": (endless, "larger than 16 MiB"),
    "a byte now and then": (dripping, "no answer in time"),
    "to a file": (body(b"", status=302, location="file:///etc/passwd"), "is a redirect"),
}


async def ask(url: str) -> PoolMetrics:
    source = PrometheusMetrics(connect_to(url), timeout_s=1.0, deadline_s=20.0)
    try:
        return await source.read(POOL, NAMES)
    finally:
        await source.aclose()


@pytest.mark.parametrize("kind", HOSTILE)
async def test_whatever_the_server_sends_the_source_is_unreachable_and_says_why_in_the_same_words_each_time(kind: str) -> None:
    answer, words = HOSTILE[kind]
    with serving(answer) as url:
        first, again = await ask(url), await ask(url)
    assert first.state is SourceState.UNREACHABLE
    assert words in first.message
    assert first.message == again.message


async def test_nobody_is_followed_to_another_server() -> None:
    visits: list[str] = []

    def visited(handler: BaseHTTPRequestHandler) -> None:
        visits.append(handler.path)
        body(b"{}")(handler)

    with serving(visited) as other:
        for status in (301, 302, 303, 307, 308):
            with serving(body(b"", status=status, location=f"{other}/internal")) as url:
                assert (await ask(url)).state is SourceState.UNREACHABLE
    assert visits == []
