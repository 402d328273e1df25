"""The HTTP face of the operator process: ``/metrics``, ``/healthz`` and ``/readyz``.

Alive means that starting again would not help; ready means that this replica could lead or follow right now. A
follower is ready: its store is as warm as the leader's. A probe that says no gives the reasons as lines of text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from controllers.runtime.metrics import Metrics

Problems = Callable[[], Iterable[str]]
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class ProbeServer:
    """Serves until stopped.

    Parameters
    ----------
    alive, ready
        Return reasons against; none means yes.
    """

    def __init__(self, metrics: Metrics, *, alive: Problems, ready: Problems) -> None:
        self._metrics = metrics
        app = web.Application()
        app.router.add_get("/metrics", self._exposition)
        app.router.add_get("/healthz", _probe(alive))
        app.router.add_get("/readyz", _probe(ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chose if ``port`` is 0. Raises OSError if it is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening; requests under way get a moment."""
        await self._runner.cleanup()

    async def _exposition(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": _EXPOSITION})


def _probe(problems: Problems) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        found = list(problems())
        return web.Response(text="\n".join(found) if found else "ok", status=503 if found else 200)

    return answer
