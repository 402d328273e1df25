"""What a gateway's agent answers to probes and to Prometheus: `/healthz`, `/readyz` and `/metrics`.

Ready means that HAProxy answers and holds a table, whatever its source or the operator do meanwhile; healthy means that the loop
goes round. A gateway that lost its source goes on serving, so it stays ready.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from dataplane.agent.http_server import Answer, Handler, Request, Route, serving
from dataplane.gateway.metrics import GatewayMetrics, GatewayView


class GatewayFace(Protocol):
    """What is asked of the agent."""

    def view(self) -> GatewayView: ...

    def unhealthy(self) -> list[str]: ...

    def unready(self) -> list[str]: ...


def route_of(face: GatewayFace) -> Route:
    """Return the routes of one gateway agent."""
    metrics = GatewayMetrics()

    async def get_metrics(_: Request) -> Answer:
        return Answer(200, metrics.text(face.view()), "text/plain; version=0.0.4; charset=utf-8")

    async def get_health(_: Request) -> Answer:
        return _verdict(face.unhealthy())

    async def get_ready(_: Request) -> Answer:
        return _verdict(face.unready())

    handlers = {"/metrics": Handler(get_metrics), "/healthz": Handler(get_health), "/readyz": Handler(get_ready)}

    def route(method: str, path: str) -> Handler | Answer:
        found = handlers.get(path)
        if found is None:
            return Answer(404, b'{"reason":"no such path"}')
        return found if method in ("GET", "HEAD") else Answer(405, b'{"reason":"method: GET is needed"}')

    return route


@asynccontextmanager
async def probes(face: GatewayFace, bind: str | None) -> AsyncIterator[str | None]:
    """Answer at `host:port` inside the block (port 0 takes a free one); gives the address in force, None without `bind`.

    Raises
    ------
    contract.sockets.CannotListen
        When the address is none, or is taken.
    """
    if bind is None:
        yield None
        return
    async with serving(route_of(face), f"http://{bind}") as url:
        yield url


def _verdict(reasons: list[str]) -> Answer:
    return Answer(503 if reasons else 200, msgspec.json.encode({"ok": not reasons, "reasons": reasons}))
