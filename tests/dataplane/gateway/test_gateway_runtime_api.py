"""One connection to the runtime API: pipelined, bounded, in order, and closed whenever an answer could be another command's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from dataplane.gateway.runtime_api import CommandRefused, RuntimeApi, RuntimeUnavailable

Answering = Callable[[str], bytes | None]


class FakeHAProxy:
    """Answers each line by a function; None hangs up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer: Answering = lambda command: f"{command}!".encode()
        self.connections = 0
        self.waiting = 0
        self.most_waiting = 0
        self.silent = False
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while line := await reader.readline():
            if line == b"prompt\n":
                writer.write(b"\n> ")
                continue
            if self.silent:
                continue
            answer = self.answer(line.decode().strip())
            if answer is None:
                break
            half = len(answer) // 2
            writer.write(answer[:half])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(answer[half:] + b"\n\n> ")
        writer.close()


@pytest_asyncio.fixture
async def fake(short_folder: Path) -> AsyncIterator[FakeHAProxy]:
    fake = FakeHAProxy(short_folder / "a.sock")
    await fake.start()
    yield fake
    await fake.stop()


async def test_thousands_of_commands_are_answered_in_order_on_one_connection(fake: FakeHAProxy) -> None:
    api = RuntimeApi(fake.path)
    commands = [f"c{i}" for i in range(3000)]
    assert await api.ask_all(commands) == [f"{c}!" for c in commands]
    assert await api.ask("again") == "again!"
    assert fake.connections == 1
    await api.close()


async def test_nobody_there_is_said_and_a_later_one_is_found(short_folder: Path) -> None:
    api, fake = RuntimeApi(short_folder / "a.sock"), FakeHAProxy(short_folder / "a.sock")
    with pytest.raises(RuntimeUnavailable):
        await api.ask("x")
    await fake.start()
    assert await api.ask("x") == "x!"
    await api.close()
    await fake.stop()


async def test_a_connection_that_breaks_between_answers_says_how_far_it_came(fake: FakeHAProxy) -> None:
    fake.answer = lambda command: None if command == "c7" else b""
    api = RuntimeApi(fake.path)
    with pytest.raises(RuntimeUnavailable, match="after 7 of 100"):
        await api.ask_all([f"c{i}" for i in range(100)])
    assert not api.connected
    assert await api.ask("c8") == ""
    await api.close()


async def test_silence_ends_at_the_limit_and_the_connection_is_given_up(fake: FakeHAProxy) -> None:
    fake.silent = True
    api = RuntimeApi(fake.path, timeout_s=0.05)
    with pytest.raises(RuntimeUnavailable):
        await api.ask("x")
    assert not api.connected


async def test_an_answer_without_end_is_given_up(fake: FakeHAProxy) -> None:
    fake.answer = lambda command: b"x" * 200_000
    api = RuntimeApi(fake.path, max_answer_bytes=50_000)
    with pytest.raises(RuntimeUnavailable):
        await api.ask("x")


async def test_whoever_is_cancelled_half_way_leaves_no_answer_for_the_next(fake: FakeHAProxy) -> None:
    fake.silent = True
    api = RuntimeApi(fake.path)
    waiting = asyncio.create_task(api.ask_all(["a", "b"]))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    fake.silent = False
    assert await api.ask("c") == "c!"
    assert fake.connections == 2
    await api.close()


async def test_an_answer_that_is_not_the_expected_one_is_named_with_its_command(fake: FakeHAProxy) -> None:
    fake.answer = lambda command: b"No such server." if command == "two" else b""
    api = RuntimeApi(fake.path)
    with pytest.raises(CommandRefused, match=r"'two'.*No such server"):
        await api.expect(["one", "two", "three"])
    fake.answer = lambda command: b"New server registered."
    await api.expect(["add"], success="registered")
    with pytest.raises(CommandRefused):
        await api.expect(["add"], success="deleted")
    await api.close()


@pytest.mark.parametrize("command", ["a\nb", "a;b", "x" * 5000])
async def test_a_command_that_would_be_two_is_never_sent(fake: FakeHAProxy, command: str) -> None:
    with pytest.raises(ValueError):
        await RuntimeApi(fake.path).ask(command)
    assert fake.connections == 0
