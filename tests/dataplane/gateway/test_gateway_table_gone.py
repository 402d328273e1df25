"""A table that is gone with its pool empties whoever follows it, once that is sure; anything less changes nothing."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from gateway_world import row, table

from contract.table import NOBODY, RoutingTable, unpack_slots
from contract.table_sources.absence import CONFIRM_SECONDS
from contract.table_sources.kubernetes_api import KubernetesSource
from contract.table_sources.sources import Sighting

POOL = {"kind": "GRServingPool", "name": "feed", "uid": "p"}
GONE = httpx.Response(404, json={"kind": "Status", "reason": "NotFound", "details": {"name": "feed", "kind": "grservingpools"}})


def published(of: RoutingTable, owners: list[dict[str, str]]) -> dict[str, Any]:
    metadata = {"name": "feed", "namespace": "shop", "uid": "u", "resourceVersion": "5", "ownerReferences": owners}
    return {"metadata": metadata, "status": json.loads(msgspec.json.encode(of))}


class Api:
    """An API server; each watch ends at once, having told of a deletion if there was one, and takes the time it was asked for."""

    def __init__(self, owners: list[dict[str, str]]) -> None:
        self.now_ms, self.owners = 0.0, owners
        self.there: RoutingTable | None = table(7, [row("a", 81)])
        self.told = True
        self.pool: Callable[[], httpx.Response] = lambda: httpx.Response(200, json={"metadata": {"name": "feed"}})
        self.looks: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/namespaces/shop/grservingpools/feed"):
            self.looks.append(self.now_ms)
            return self.pool()
        assert request.url.path.endswith("/namespaces/shop/grroutingtables")
        if "watch" not in request.url.params:
            items = [published(self.there, self.owners)] if self.there is not None else []
            return httpx.Response(200, json={"metadata": {"resourceVersion": "4"}, "items": items})
        self.now_ms += 1000.0 * int(request.url.params["timeoutSeconds"])
        if self.there is None and not self.told:
            self.told = True
            gone = {"type": "DELETED", "object": published(table(7, [row("a", 81)]), self.owners)}
            return httpx.Response(200, text=json.dumps(gone))
        return httpx.Response(200, text="")

    def delete_table(self, *, seen: bool = True) -> None:
        self.there, self.told = None, not seen


async def looked(api: Api, *, times: int, source: KubernetesSource | None = None) -> tuple[KubernetesSource, list[Sighting]]:
    """Ask a source again and again, as whoever follows it does."""
    if source is None:
        http = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(api))
        rng = random.Random(1)
        source = KubernetesSource(http, namespace="shop", name="feed", owned=True, rng=rng, clock=lambda: api.now_ms)
    seen: list[Sighting] = []
    for _ in range(times):
        try:
            seen += [each async for each in source.sightings()]
        except httpx.HTTPError:
            continue
    return source, seen


def tables_in(seen: list[Sighting]) -> list[RoutingTable]:
    return [each.table for each in seen if each.table is not None]


@pytest.mark.parametrize("watched", [True, False])
async def test_a_pool_that_is_gone_with_its_table_for_a_minute_leaves_nobody_to_serve(watched: bool) -> None:
    api = Api([POOL])
    source, _ = await looked(api, times=1)
    api.pool = lambda: GONE
    api.delete_table(seen=watched)
    said: list[Sighting] = []
    while not tables_in(said):
        _, seen = await looked(api, times=1, source=source)
        said += seen
    (tombstone,) = tables_in(said)
    assert (tombstone.generation, tombstone.instances, said[-1].incarnation) == (8, [], "u")
    assert set(unpack_slots(tombstone.slots, instances=0)) == {NOBODY}
    waited_s = [(look - api.looks[0]) / 1000.0 for look in api.looks]
    assert waited_s[-2] < CONFIRM_SECONDS <= waited_s[-1] < 3 * CONFIRM_SECONDS
    assert any("nor its pool" in each.problem for each in said)
    await source.aclose()


def _refused() -> httpx.Response:
    return httpx.Response(403, json={"kind": "Status", "reason": "Forbidden", "details": {"name": "feed"}})


def _no_such_kind() -> httpx.Response:
    return httpx.Response(404, text="404 page not found\n")


def _broken() -> httpx.Response:
    return httpx.Response(500, json={"reason": "InternalError", "details": {"name": "feed"}})


def _away() -> httpx.Response:
    raise httpx.ConnectError("away")


def _another() -> httpx.Response:
    return httpx.Response(404, json={"reason": "NotFound", "details": {"name": "shop", "kind": "namespaces"}})


def _there() -> httpx.Response:
    return httpx.Response(200, json={"metadata": {"name": "feed"}})


@pytest.mark.parametrize("pool", [_refused, _no_such_kind, _broken, _away, _another, _there])
async def test_whatever_else_is_said_of_the_pool_its_table_stays_in_use(pool: Callable[[], httpx.Response]) -> None:
    api = Api([POOL])
    source, _ = await looked(api, times=1)
    api.pool = pool
    api.delete_table()
    _, seen = await looked(api, times=20, source=source)
    assert api.looks
    assert tables_in(seen) == []
    await source.aclose()


@pytest.mark.parametrize("owners", [[], [{"kind": "ConfigMap", "name": "feed", "uid": "c"}]])
async def test_a_table_that_was_no_pools_own_says_nothing_by_going(owners: list[dict[str, str]]) -> None:
    api = Api(owners)
    source, _ = await looked(api, times=1)
    api.pool = lambda: GONE
    api.delete_table()
    _, seen = await looked(api, times=20, source=source)
    assert tables_in(seen) == []
    assert api.looks == []
    await source.aclose()


async def test_a_table_that_was_never_there_says_nothing() -> None:
    api = Api([POOL])
    api.pool = lambda: GONE
    api.delete_table(seen=False)
    source, seen = await looked(api, times=20)
    assert tables_in(seen) == []
    await source.aclose()


async def test_a_pool_that_is_back_within_the_minute_or_seen_meanwhile_begins_the_count_anew() -> None:
    api = Api([POOL])
    source, _ = await looked(api, times=1)
    answers = [GONE, _there(), GONE]
    api.pool = lambda: answers.pop(0) if len(answers) > 1 else answers[0]
    api.delete_table()
    _, seen = await looked(api, times=3, source=source)
    assert tables_in(seen) == []
    api.there = table(1, [row("b", 82)])
    api.now_ms += 1_000_000.0
    _, seen = await looked(api, times=2, source=source)
    assert [each.generation for each in tables_in(seen)] == [1]
    await source.aclose()
