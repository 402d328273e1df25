"""What a gateway's agent answers to probes, to Prometheus, and to clients that ask for its overrides.

Ready means that HAProxy answers and holds a table, whatever its source or the operator do meanwhile; healthy means that the loop
goes round. A gateway that lost its source goes on serving, so it stays ready.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from contract.residency import OVERRIDES_PATH
from dataplane.agent.http_server import Answer, Handler, Request, Route, serving
from dataplane.gateway.metrics import GatewayMetrics, GatewayView


class GatewayFace(Protocol):
    """What is asked of the agent."""

    def view(self) -> GatewayView: ...

    def unhealthy(self) -> list[str]: ...

    def unready(self) -> list[str]: ...


class HotUsersFace(Protocol):
    """What is asked of the loop of hot users."""

    def metrics_text(self) -> bytes: ...

    def overrides(self, *, known: str) -> bytes | None: ...


def route_of(face: GatewayFace, hot_users: HotUsersFace | None = None) -> Route:
    """Return the routes of one gateway agent."""
    metrics = GatewayMetrics()

    async def get_metrics(_: Request) -> Answer:
        text = metrics.text(face.view()) + (hot_users.metrics_text() if hot_users is not None else b"")
        return Answer(200, text, "text/plain; version=0.0.4; charset=utf-8")

    async def get_health(_: Request) -> Answer:
        return _verdict(face.unhealthy())

    async def get_ready(_: Request) -> Answer:
        return _verdict(face.unready())

    async def get_overrides(request: Request) -> Answer:
        known = parse_qs(request.query, max_num_fields=4).get("known", [""])[0]
        body = hot_users.overrides(known=known) if hot_users is not None else None
        return Answer(204, b"") if body is None else Answer(200, body)

    handlers = {"/metrics": Handler(get_metrics), "/healthz": Handler(get_health), "/readyz": Handler(get_ready)}
    if hot_users is not None:
        handlers[OVERRIDES_PATH] = Handler(get_overrides)

    def route(method: str, path: str) -> Handler | Answer:
        found = handlers.get(path)
        if found is None:
            return Answer(404, b'{"reason":"no such path"}')
        return found if method in ("GET", "HEAD") else Answer(405, b'{"reason":"method: GET is needed"}')

    return route


@asynccontextmanager
async def probes(face: GatewayFace, bind: str | None, hot_users: HotUsersFace | None = None) -> AsyncIterator[str | None]:
    """Answer at `host:port` inside the block (port 0 takes a free one); gives the address in force, None without `bind`.

    Raises
    ------
    contract.sockets.CannotListen
        When the address is none, or is taken.
    """
    if bind is None:
        yield None
        return
    async with serving(route_of(face, hot_users), f"http://{bind}") as url:
        yield url


def _verdict(reasons: list[str]) -> Answer:
    return Answer(503 if reasons else 200, msgspec.json.encode({"ok": not reasons, "reasons": reasons}))
