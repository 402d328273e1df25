"""Keeps a router's table current from a source, for ever.

Errors never reach a pick: the last table stays in use, and the source is taken up again after a pause that grows and is spread by
chance. Nothing that a source sends or raises ends the following; only cancelling does.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import httpx

from contract.clock import Clock, monotonic_ms
from contract.errors import ProtocolViolation
from contract.table_sources.kubernetes_api import KubernetesSource
from contract.table_sources.sources import Sighting, Sleep, Source
from contract.table_sources.unbroken import unbroken
from grfleet.client.metrics import GuardedMetrics, Metric, Metrics, NoMetrics
from grfleet.client.router import Router


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
    counted = GuardedMetrics(metrics or NoMetrics())

    def tell(message: str) -> None:
        counted.count(Metric.SOURCE_PROBLEMS)
        with contextlib.suppress(Exception):
            on_problem(f"{source.label}: {message}, keeping generation {router.generation}")

    async with contextlib.aclosing(unbroken(source, rng=rng or random.Random(), sleep=sleep, clock=clock)) as sightings:
        async for sighting in sightings:
            try:
                _use(router, sighting, counted, tell)
            except Exception as error:  # a mistake of ours with one table must not be the end of the following
                tell(type(error).__name__)


def _use(router: Router, sighting: Sighting, counted: Metrics, tell: Callable[[str], None]) -> None:
    """Hand a sighting on."""
    problem = sighting.problem
    if sighting.table is not None:
        try:
            taken = router.accept(sighting.table, incarnation=sighting.incarnation)
            known = sighting.table.generation == router.generation
            counted.count(Metric.TABLES, result="taken" if taken else "known" if known else "stale")
        except ProtocolViolation as error:
            problem = f"routing table refused: {error}"
    if not problem:
        router.heard()
        return
    if sighting.table is not None or "refused" in problem:
        counted.count(Metric.TABLES, result="refused")
    tell(problem)
