"""A router that is being fed by a source, for the tests of the router client."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import httpx
from client_tables import SECRET, HandClock
from loopback_servers import Handler, ScriptedApi, serving

from contract.keys import user_key
from contract.table_sources.sources import Source
from grfleet.client import (
    HttpSource,
    KeptMetrics,
    KubernetesSource,
    Router,
    keep_current,
)

KEY = user_key(SECRET, "somebody")


class Following:
    """A router that is being fed, and what was told on the way."""

    def __init__(self) -> None:
        self.router, self.problems, self.metrics = Router(), list[str](), KeptMetrics()
        self.pauses: list[float] = []

    async def until(self, generation: int) -> None:
        async with asyncio.timeout(20):
            while self.router.generation != generation:  # noqa: ASYNC110 - the router has no event to wait for
                await asyncio.sleep(0.005)

    async def told(self, words: str) -> None:
        async with asyncio.timeout(20):
            while not any(words in problem for problem in self.problems):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def following(source: Source) -> AsyncIterator[Following]:
    state = Following()
    task = asyncio.create_task(
        keep_current(
            state.router,
            source,
            on_problem=state.problems.append,
            metrics=state.metrics,
            rng=random.Random(1),
            sleep=state.pause,
        )
    )
    try:
        yield state
        assert not task.done(), "nothing may end the following"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def watching(api: ScriptedApi | Handler, *, clock: HandClock | None = None) -> AsyncIterator[Following]:
    async with serving(api) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        source = KubernetesSource(http, namespace="shop", name="feed", rng=random.Random(1), clock=clock or HandClock())
        async with following(source) as state:
            yield state


@contextlib.asynccontextmanager
async def polling(web: Handler) -> AsyncIterator[Following]:
    async with (
        serving(web) as url,
        httpx.AsyncClient(trust_env=False) as http,
        following(HttpSource(http, f"{url}/table", poll_seconds=0.005)) as state,
    ):
        yield state
