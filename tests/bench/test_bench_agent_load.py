"""The load beside a measured agent: it ends with nothing left to the event loop, whatever is under way at that moment."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from bench.agent import _requests

BODY = b'{"requestId":"r1","latencyMs":3.0,"queueMs":1.0,"serviceMs":2.0,"kvTokensHit":0,"embRowsAsked":0,"embRowsMissed":0}'


@pytest.mark.parametrize("turns", range(4))
async def test_a_load_that_ends_about_when_an_answer_comes_leaves_nothing_to_the_loop(tmp_path: Path, turns: int) -> None:
    loop, complaints, over = asyncio.get_running_loop(), list[dict[str, Any]](), asyncio.Event()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "engine.sock"))
        engine.listen()
        engine.setblocking(False)
        load = asyncio.create_task(_requests(f"unix:{tmp_path}/engine.sock", over, seed=1))
        called, _ = await loop.sock_accept(engine)
        with called:
            await loop.sock_recv(called, 10_000)
            called.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY))
            for _ in range(turns):
                await asyncio.sleep(0)
            over.set()
            await asyncio.wait_for(load, 5.0)
    assert complaints == []
