"""Sightings of a source without an end: what interrupts it is told as a problem, and it is taken up again after a pause.

Pauses grow while nothing works and are spread by chance, so that many followers do not come back at once. Nothing that a source
sends or raises ends the following; only cancelling does.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

import httpx

from contract.backoff import Backoff
from contract.clock import Clock, monotonic_ms
from contract.errors import ProtocolViolation
from contract.table import RoutingTable
from contract.table_sources.sources import Sighting, Sleep, Source

WORKED_MS = 10_000.0
"""A source that held out for so long worked; a shorter session that brought no new table is as good as a failure."""
CLEAN_MS = 1_000.0
"""The same of one that ended as it should: a proxy that ends every watch after a moment must not keep tables back."""
LONGEST_PAUSE_S = 10.0


async def unbroken(
    source: Source,
    *,
    rng: random.Random,
    longest_pause_s: float = LONGEST_PAUSE_S,
    sleep: Sleep = asyncio.sleep,
    clock: Clock = monotonic_ms,
) -> AsyncGenerator[Sighting, None]:
    """Yield what `source` sees, until closed; an interruption is a sighting with a `problem`."""
    backoff = Backoff(rng, longest_s=longest_pause_s)
    last: RoutingTable | None = None
    while True:
        began_ms, problem = clock(), ""
        try:
            async with contextlib.aclosing(source.sightings()) as sightings:
                async for sighting in sightings:
                    if sighting.table is not None and sighting.table != last:
                        last = sighting.table
                        backoff.reset()
                    yield sighting
        except Exception as error:  # whatever it is, an end of the following would freeze the table without a word
            problem = _said(error)
        if problem:
            yield Sighting(problem=problem)
        if clock() - began_ms >= (WORKED_MS if problem else CLEAN_MS):
            backoff.reset()
        await sleep(backoff.pause_s())


def _said(error: Exception) -> str:
    """What happened, without anything of a request that could hold a credential."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        hint = "; may this account list and watch grroutingtables?" if status in (401, 403) else ""
        return f"status {status}{hint}"
    return f"{type(error).__name__}: {error}" if isinstance(error, ProtocolViolation) else type(error).__name__
