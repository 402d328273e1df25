"""The engine client: whatever is on the other side, the caller gets a typed value, Unreachable or ProtocolViolation."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from contract import engine
from contract.answers import MAX_ANSWER_BYTES
from contract.engine_client import EngineClient
from contract.errors import ProtocolViolation, Unreachable
from contract.http import transport_for

DESCRIBE = (
    b'{"contractVersion":"%s","engine":"e","emulation":false,"startId":"s","epoch":0,"model":{"name":"m","version":"1"},'
    b'"poolBytes":1024,"granuleBytes":1,"linkBytesPerSecond":1,"kvBytesPerToken":1,"embRowBytes":1,"resizable":[],'
    b'"keyKinds":[],"tiers":[],"p99Ms":%s,"sampling":{"usersOneIn":1,"rowsOneIn":1},"fieldOfTomorrow":7}'
)
SPLIT = engine.SplitRequest(start_id="s", revision=1, emb_bytes=1, kv_bytes=1, refill_bytes_per_second=0)


@asynccontextmanager
async def answering(*chunks: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None) -> AsyncIterator[str]:
    """A server that reads a request head and writes these bytes, whatever was asked."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
            if then is not None:
                await then(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def reply(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n%s\r\n%s" % (status.encode(), len(body), headers, body)


async def test_unknown_fields_are_ignored_so_that_versions_can_differ() -> None:
    async with answering(reply(DESCRIBE % (b"v1", b"50.0"))) as url, EngineClient(url) as client:
        assert (await client.describe()).pool_bytes == 1024


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "Describe"),
        (b"null", "Describe"),
        (b"[]", "Describe"),
        (b"\xff\xfe", "Describe"),
        (b'{"contractVersion":"v1"}', "engine"),
        (DESCRIBE % (b"v2", b"50.0"), "v2"),
        (DESCRIBE % (b"v1", b"0"), "p99Ms"),
        (DESCRIBE % (b"v1", b"NaN"), "Describe"),
        (DESCRIBE % (b"v1", b'"50"'), "p99Ms"),
        (b"[" * 50_000, "Describe"),
        (b'{"fieldOfTomorrow":' + b"[" * 50_000, "Describe"),
    ],
    ids=["empty", "null", "list", "not-text", "missing", "version", "zero", "nan", "text", "deep", "deep-and-unknown"],
)
async def test_a_body_that_is_not_the_contract_is_a_violation_that_says_where(body: bytes, word: str) -> None:
    async with answering(reply(body)) as url, EngineClient(url) as client:
        with pytest.raises(ProtocolViolation, match=word):
            await client.describe()


@pytest.mark.parametrize("status", ["500 Internal Server Error", "404 Not Found", "301 Moved Permanently", "204 No Content"])
async def test_an_unexpected_status_is_a_violation(status: str) -> None:
    async with (
        answering(reply(b"", status=status, headers=b"location: http://elsewhere/\r\n")) as url,
        EngineClient(url) as client,
    ):
        with pytest.raises(ProtocolViolation, match=status.split()[0]):
            await client.observe()


async def test_a_refused_split_arrives_as_an_answer_not_as_an_error() -> None:
    body = (
        b'{"status":"conflict","startId":"t","reason":"second writer","split":{"revision":9,"limits":{"embBytes":1,"kvBytes":2},'
        b'"used":{"embBytes":0,"kvBytes":0},"overageBytes":0,"refillBacklogBytes":0,"refillBytesPerSecond":0}}'
    )
    async with answering(reply(body, status="409 Conflict")) as url, EngineClient(url) as client:
        answer = await client.put_split(SPLIT)
    assert (answer.status, answer.split.revision, answer.start_id) == (engine.SplitStatus.CONFLICT, 9, "t")


async def test_an_answer_without_end_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    async with answering(head, *[chunk] * (MAX_ANSWER_BYTES // 0x100000 + 2)) as url, EngineClient(url) as client:
        with pytest.raises(ProtocolViolation, match="larger"):
            await client.observe()


@pytest.mark.parametrize("raw", [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"])
async def test_a_broken_conversation_is_unreachable(raw: bytes) -> None:
    async with answering(raw) as url, EngineClient(url) as client:
        with pytest.raises(Unreachable):
            await client.observe()


async def test_silence_is_unreachable_after_the_timeout() -> None:
    hold = asyncio.Event()

    async def wait(_: asyncio.StreamWriter) -> None:
        await hold.wait()

    async with answering(then=wait) as url, EngineClient(url, timeout_s=0.2) as client:
        with pytest.raises(Unreachable, match="Timeout"):
            await client.observe()
        hold.set()


async def test_an_answer_that_drips_for_ever_is_unreachable() -> None:
    """Each piece in time, the whole never: a caller that waits for it would wait for days."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 4000000\r\n\r\n"

    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with asyncio.timeout(10), answering(head, then=drip) as url, EngineClient(url, timeout_s=0.05) as client:
        with pytest.raises(Unreachable, match="Timeout"):
            await client.observe()


async def test_nobody_there_is_unreachable() -> None:
    for url in ("http://127.0.0.1:1", "unix:/no/such/socket"):
        async with EngineClient(url, timeout_s=1.0) as client:
            with pytest.raises(Unreachable):
                await client.describe()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"", b""),
        (b"x-gr-cursor: 1\r\n", b""),
        (b"x-gr-cursor: many\r\nx-gr-lost: 0\r\n", b""),
        (b"x-gr-cursor: 1\r\nx-gr-lost: 0\r\n", b"x" * 25),
    ],
)
async def test_samples_without_sane_headers_or_whole_records_are_a_violation(headers: bytes, body: bytes) -> None:
    async with answering(reply(body, headers=headers)) as url, EngineClient(url) as client:
        with pytest.raises(ProtocolViolation, match="samples"):
            await client.samples(0)


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:80", "/a/path"])
def test_an_address_of_another_kind_is_refused_with_what_to_use(url: str) -> None:
    with pytest.raises(ValueError, match="unix:/path"):
        transport_for(url)


def values_of_the_wire() -> list[Any]:
    return [kind for kind in vars(engine).values() if isinstance(kind, type) and issubclass(kind, engine.Wire)]


def test_every_wire_value_is_immutable_and_speaks_camel_case() -> None:
    for kind in values_of_the_wire():
        assert kind.__struct_config__.frozen, kind
        assert all("_" not in name for name in kind.__struct_encode_fields__), kind
