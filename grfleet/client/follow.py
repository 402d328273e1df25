"""Keeps a router's table current from the Kubernetes API: list, then watch, for ever.

Errors never reach a pick: the last table stays in use, the watch is taken up again after a jittered pause, and a too old
version starts over with a list.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import msgspec

from contract.errors import ProtocolViolation
from contract.table import RoutingTable
from grfleet.client.router import Router

TABLE_PATH = "/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables"
WATCH_SECONDS = 240


async def follow(
    router: Router,
    api: httpx.AsyncClient,
    *,
    namespace: str,
    name: str,
    on_problem: Callable[[str], None] = lambda message: None,
    rng: random.Random | None = None,
) -> None:
    """Feed `router` from the GRRoutingTable `namespace/name` until cancelled.

    Parameters
    ----------
    api : httpx.AsyncClient
        Client of the API server: base URL, CA and credentials that may get and watch grroutingtables.
    on_problem : callable
        Told in one line about every interruption (for a log or a metric); the router keeps serving meanwhile.
    """
    jitter = rng or random.Random()
    pause_s = 0.2
    while True:
        try:
            async for status in _statuses(api, namespace=namespace, name=name):
                if _accept(router, status, on_problem):
                    pause_s = 0.2
        except (httpx.HTTPError, ValueError) as error:
            on_problem(f"routing table {namespace}/{name}: {type(error).__name__}, keeping generation {router.generation}")
        await asyncio.sleep(jitter.uniform(0.5, 1.0) * pause_s)
        pause_s = min(5.0, pause_s * 2)


def _accept(router: Router, status: Mapping[str, Any], on_problem: Callable[[str], None]) -> bool:
    if not status:
        return False
    try:
        router.accept(msgspec.convert(status, RoutingTable))
    except (msgspec.ValidationError, ProtocolViolation) as error:
        on_problem(f"routing table refused: {error}")
        return False
    return True


async def _statuses(api: httpx.AsyncClient, *, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any]]:
    path = TABLE_PATH.format(namespace=namespace)
    selector = {"fieldSelector": f"metadata.name={name}"}
    listing = (await api.get(path, params=selector)).raise_for_status().json()
    for item in listing["items"]:
        yield item.get("status") or {}
    version = listing["metadata"]["resourceVersion"]
    watch = {**selector, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
    async with api.stream("GET", path, params=watch, timeout=WATCH_SECONDS + 30) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            if event["type"] in ("ADDED", "MODIFIED"):
                yield event["object"].get("status") or {}
