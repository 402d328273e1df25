"""Tables as gateways and pickers follow them: whatever a source does, the newest comes through and nothing ends the following."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from contract.table_sources.kubernetes_api import KubernetesSource, in_cluster
from contract.table_sources.sources import FileSource, HttpSource, Source
from dataplane.follow import Feed, Published, source_of, table_from


def table(generation: int) -> RoutingTable:
    row = TableInstance(name="a", uid="uid-a", address="127.0.0.1:81", state=InstanceState.READY, weight_percent=100)
    return RoutingTable(generation=generation, instances=[row], slots=pack_slots([0] * SLOTS))


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


def feed_of(source: Source, problems: list[str]) -> Feed:
    return Feed(open_source=lambda: source, on_problem=problems.append, rng=random.Random(1), sleep=at_once)


async def first(count: int, tables: AsyncIterator[Published]) -> list[Published]:
    got: list[Published] = []
    async with asyncio.timeout(10):
        async for published in tables:
            got.append(published)
            if len(got) == count:
                break
    return got


def test_a_document_is_a_table_or_an_object_that_holds_one() -> None:
    plain = msgspec.json.encode(table(3))
    wrapped = json.dumps({"metadata": {"uid": "u"}, "status": {**json.loads(plain), "movedPercent": "1.0"}}).encode()
    assert table_from(plain) == Published(table(3))
    assert table_from(wrapped) == Published(table(3), "u")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"status":{}}', b'{"status":null,"metadata":{}}', b"\xff", b"x" * 5_000_000, b"[" * 100_000]
)
def test_a_document_that_is_neither_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        table_from(raw)


async def test_an_address_is_asked_again_and_its_failures_leave_the_last_table() -> None:
    bodies: list[bytes | int] = [msgspec.json.encode(table(1)), 500, b"{", msgspec.json.encode(table(2))]

    def answer(_: httpx.Request) -> httpx.Response:
        body = bodies.pop(0) if len(bodies) > 1 else bodies[0]
        return httpx.Response(body) if isinstance(body, int) else httpx.Response(200, content=body)

    problems: list[str] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        source = HttpSource(http, "http://tables.example/", sleep=at_once)
        got = await first(2, feed_of(source, problems).tables())
    assert [each.table.generation for each in got] == [1, 2]
    assert len(problems) == 2


async def test_a_watch_gives_the_tables_of_one_object_and_a_deleted_or_missing_one_gives_nothing() -> None:
    def item(of: RoutingTable) -> dict[str, Any]:
        metadata = {"name": "pool", "namespace": "ns", "uid": "u", "resourceVersion": "5"}
        return {"metadata": metadata, "status": json.loads(msgspec.json.encode(of))}

    tables = [table(n) for n in (1, 2, 3)]
    listings: list[dict[str, Any]] = [{"items": []}, {"items": [item(tables[0])]}, {"items": [item(tables[2])]}]
    events = [
        {"type": "BOOKMARK", "object": {"metadata": {}}},
        {"type": "MODIFIED", "object": item(tables[1])},
        {"type": "DELETED", "object": item(tables[1])},
        {"type": "ERROR", "object": {"code": 410}},
    ]

    async def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path.endswith("/namespaces/ns/grroutingtables")
        assert request.url.params["fieldSelector"] == "metadata.name=pool"
        if "watch" in request.url.params:
            told = events if len(listings) == 1 else events[-1:]
            return httpx.Response(200, text="\n".join(json.dumps(event) for event in told))
        return httpx.Response(200, json={"metadata": {"resourceVersion": "4"}, **listings.pop(0)})

    problems: list[str] = []
    async with httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(answer)) as api:
        got = await first(3, feed_of(KubernetesSource(api, namespace="ns", name="pool"), problems).tables())
    assert got == [Published(each, "u") for each in tables]
    assert any("no such object" in problem for problem in problems)
    assert any("deleted" in problem for problem in problems)


async def test_a_file_that_comes_later_is_found_and_its_absence_is_said_once(tmp_path: Path) -> None:
    problems: list[str] = []
    path, tries = tmp_path / "table.json", 0

    async def pause(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 5:
            path.write_bytes(msgspec.json.encode(table(1)))

    feed = Feed(open_source=lambda: FileSource(path), on_problem=problems.append, rng=random.Random(1), sleep=pause)
    assert await first(1, feed.tables()) == [Published(table(1))]
    assert tries == 5
    assert len(problems) == 1


async def test_a_table_that_is_told_again_is_not_handed_on_again_and_counts_as_heard() -> None:
    bodies = [msgspec.json.encode(table(n)) for n in (1, 1, 1, 2)]
    heard: list[None] = []

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=bodies.pop(0))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        feed = Feed(
            open_source=lambda: HttpSource(http, "http://tables.example/", sleep=at_once),
            on_problem=lambda text: None,
            on_heard=lambda: heard.append(None),
            rng=random.Random(1),
        )
        got = await first(2, feed.tables())
    assert [each.table.generation for each in got] == [1, 2]
    assert len(heard) == 4


async def test_whoever_asks_anew_hears_the_table_in_force_again(tmp_path: Path) -> None:
    """The gateway asks twice: for the files of its start, until a deadline cuts that off, and from then on."""
    (tmp_path / "table.json").write_bytes(msgspec.json.encode(table(1)))
    source = source_of(str(tmp_path / "table.json"), on_problem=lambda text: None, rng=random.Random(1))
    assert await first(1, source.tables()) == await first(1, source.tables()) == [Published(table(1))]


def test_what_an_address_says_chooses_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, asked = random.Random(1), list[str]()
    monkeypatch.setattr("dataplane.follow.in_cluster", lambda *, host, port: asked.append(host) or httpx.AsyncClient())

    def opened(address: str) -> Source:
        return source_of(address, on_problem=lambda text: None, rng=rng).open_source()

    assert isinstance(opened("https://x/table"), HttpSource)
    assert isinstance(opened("file:/x"), FileSource)
    assert isinstance(opened(str(tmp_path)), FileSource)
    for wrong in ("kubernetes:x", "kubernetes:/x", "kubernetes:a/b/c"):
        with pytest.raises(ValueError, match="NAMESPACE/NAME"):
            opened(wrong)
    assert isinstance(opened("kubernetes:ns/pool"), KubernetesSource)
    assert asked == ["kubernetes.default.svc"]


def test_outside_a_pod_the_error_says_what_is_missing_and_what_to_give_instead(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"there is no {tmp_path}/ca.crt: no pod .* give the URL of the table"):
        in_cluster(host="kubernetes.default.svc", port="443", directory=tmp_path)
