"""Keeps a router's table current from a source, for ever.

Errors never reach a pick: the last table stays in use, and the source is taken up again after a pause that grows and is spread by
chance. Nothing that a source sends or raises ends the following; only cancelling does.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import httpx

from contract.backoff import Backoff
from contract.clock import Clock, monotonic_ms
from contract.errors import ProtocolViolation
from contract.table_sources.kubernetes_api import KubernetesSource
from contract.table_sources.sources import Sighting, Sleep, Source
from grfleet.client.metrics import GuardedMetrics, Metric, Metrics, NoMetrics
from grfleet.client.router import Router

WORKED_MS = 10_000.0
"""A source that held out for so long worked; a shorter session that brought no new table is as good as a failure."""


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
        Client of the API server: base URL, CA and credentials that may list and watch grroutingtables.
    on_problem : callable
        Told in one line about every interruption (for a log or a metric); the router keeps serving meanwhile.
    """
    chance = rng or random.Random()
    await keep_current(
        router, KubernetesSource(api, namespace=namespace, name=name, rng=chance), on_problem=on_problem, rng=chance
    )


async def keep_current(
    router: Router,
    source: Source,
    *,
    on_problem: Callable[[str], None] = lambda message: None,
    metrics: Metrics | None = None,
    rng: random.Random | None = None,
    sleep: Sleep = asyncio.sleep,
    clock: Clock = monotonic_ms,
) -> None:
    """Feed `router` from a source until cancelled; as `follow`, which does it for the Kubernetes API."""
    backoff = Backoff(rng or random.Random())
    counted = GuardedMetrics(metrics or NoMetrics())

    def tell(message: str) -> None:
        counted.count(Metric.SOURCE_PROBLEMS)
        with contextlib.suppress(Exception):
            on_problem(message)

    while True:
        began_ms = clock()
        try:
            async with contextlib.aclosing(source.sightings()) as sightings:
                async for sighting in sightings:
                    if _use(router, sighting, counted, source.label, tell):
                        backoff.reset()
        except Exception as error:
            # Whatever it is, an end of the following would freeze the table without a word.
            tell(f"{source.label}: {_said(error)}, keeping generation {router.generation}")
        if clock() - began_ms >= WORKED_MS:
            backoff.reset()
        await sleep(backoff.pause_s())


def _use(router: Router, sighting: Sighting, counted: Metrics, label: str, tell: Callable[[str], None]) -> bool:
    """Hand a sighting on; say whether the router took a table from it."""
    problem, taken = sighting.problem, False
    if sighting.table is not None:
        try:
            taken = router.accept(sighting.table, incarnation=sighting.incarnation)
            known = sighting.table.generation == router.generation
            counted.count(Metric.TABLES, result="taken" if taken else "known" if known else "stale")
        except ProtocolViolation as error:
            problem = f"routing table refused: {error}"
    if not problem:
        router.heard()
        return taken
    if sighting.table is not None or "refused" in problem:
        counted.count(Metric.TABLES, result="refused")
    tell(f"{label}: {problem}")
    return False


def _said(error: Exception) -> str:
    """What happened, without anything of a request that could hold a credential."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        hint = "; may this account list and watch grroutingtables?" if status in (401, 403) else ""
        return f"status {status}{hint}"
    return f"{type(error).__name__}: {error}" if isinstance(error, ProtocolViolation) else type(error).__name__
