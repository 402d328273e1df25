"""Following a table without Kubernetes: by URL and by file, and what a caller may write as its place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from client_following import KEY, following, polling
from client_tables import encoded, table
from loopback_servers import Reply, Request, published

from contract.table_sources.locate import source_at
from grfleet.client import (
    FileSource,
    HttpSource,
    Metric,
)

# ---------------------------------------------------------------- a web server, a file


async def test_over_http_a_table_is_fetched_once_and_then_only_asked_after() -> None:
    served: dict[str, Any] = {"table": table(1), "whole": 0, "unchanged": 0}

    async def web(request: Request, reply: Reply) -> None:
        tag = f'"{served["table"].generation}"'
        if request.headers.get("if-none-match") == tag:
            served["unchanged"] += 1
            await reply.whole(b"", status=304)
            return
        served["whole"] += 1
        await reply.whole(encoded(served["table"]), headers=f"etag: {tag}\r\n")

    async with polling(web) as state:
        await state.until(1)
        async with asyncio.timeout(20):
            while served["unchanged"] < 3:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.005)
        served["table"] = table(2)
        await state.until(2)
    assert served["whole"] == 2


async def test_over_http_garbage_with_an_etag_is_asked_for_again() -> None:
    bodies = [b"garbage", json.dumps(published(table(3), version=1)).encode()]

    async def web(request: Request, reply: Reply) -> None:
        if request.headers.get("if-none-match") == '"same"':
            await reply.whole(b"", status=304)
            return
        await reply.whole(bodies.pop(0) if len(bodies) > 1 else bodies[0], headers='etag: "same"\r\n')

    async with polling(web) as state:
        await state.until(3)
    assert state.metrics.total(Metric.TABLES, result="refused") == 1


def test_a_url_with_credentials_is_shown_without_them() -> None:
    label = HttpSource(httpx.AsyncClient(), "http://name:secret@example.test/table?token=hidden").label
    assert "secret" not in label
    assert "hidden" not in label
    assert "example.test/table" in label


async def test_a_file_is_followed_through_absence_halves_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    async with following(FileSource(path, poll_seconds=0.005)) as state:
        await state.told("FileNotFoundError")
        path.write_bytes(encoded(table(1)))
        await state.until(1)
        path.write_bytes(encoded(table(2))[:500])
        await state.told("refused")
        assert state.router.pick(KEY).generation == 1
        fresh = tmp_path / "fresh"
        fresh.write_bytes(encoded(table(3)))
        fresh.rename(path)
        await state.until(3)


async def test_a_place_is_a_file_a_url_or_a_table_of_the_cluster(tmp_path: Path) -> None:
    assert isinstance(source_at(str(tmp_path / "table.json")), FileSource)
    web = source_at("https://tables.example.test/feed")
    assert isinstance(web, HttpSource)
    await web.aclose()
    for wrong in ("kubernetes:feed", "kubernetes:/feed", "kubernetes:shop/", "kubernetes:a/b/c"):
        with pytest.raises(ValueError, match="NAMESPACE/NAME"):
            source_at(wrong)
    with pytest.raises(ValueError, match="not in a pod"):
        source_at("kubernetes:shop/feed", environment={})
