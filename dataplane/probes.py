"""What a process of the data plane answers to probes, to Prometheus, and to clients that ask for overrides.

Ready means that requests may come here; healthy that it need not be started again. Both say why where they are not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from contract.residency import OVERRIDES_PATH
from dataplane.http.server import Answer, Handler, Request, Route, serving

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HotUsersFace(Protocol):
    """What is asked of the loop of hot users."""

    def metrics_text(self) -> bytes: ...

    def overrides(self, *, known: str) -> bytes | None: ...


class Face(Protocol):
    """What is asked of the process; reasons are empty where there is nothing to complain of."""

    def unhealthy(self) -> list[str]: ...

    def unready(self) -> list[str]: ...


def routes(face: Face, metrics_text: Callable[[], bytes], hot_users: HotUsersFace | None = None) -> Route:
    """Return `/healthz`, `/readyz`, `/metrics` (Prometheus text), and the overrides where there are hot users."""

    async def get_metrics(_: Request) -> Answer:
        return Answer(200, metrics_text() + (hot_users.metrics_text() if hot_users is not None else b""), _TEXT)

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
async def probes(route: Route, bind: str | None) -> AsyncIterator[str | None]:
    """Answer at `host:port` inside the block (port 0 takes a free one); gives the address in force, None without `bind`.

    Raises
    ------
    contract.sockets.CannotListen
        When the address is none, or is taken.
    """
    if bind is None:
        yield None
        return
    async with serving(route, f"http://{bind}") as url:
        yield url


def _verdict(reasons: list[str]) -> Answer:
    return Answer(503 if reasons else 200, msgspec.json.encode({"ok": not reasons, "reasons": reasons}))
