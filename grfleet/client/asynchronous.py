"""The asyncio face: follows the table in a task of the running loop, and sends requests with one retry or one hedge.

A request makes at most two tries, on two instances. The second begins when the first fails, or when the first has taken longer
than most do and the budget allows it; the first answer counts, and the other try is cancelled.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from contract.clock import Clock, monotonic_ms
from contract.table_sources.locate import source_at
from contract.table_sources.sources import Source
from grfleet.client.errors import AllFailed
from grfleet.client.face import FAILURES, Choice, Face, Try
from grfleet.client.follow import keep_current
from grfleet.client.hedge import HedgePolicy
from grfleet.client.hot_users import GatewayOverrides, keep_overrides
from grfleet.client.keys import PoolKey
from grfleet.client.metrics import Metric, Metrics

Answer = TypeVar("Answer")
_READY_POLL_SECONDS = 0.01


class AsyncClient(Face):
    """Router client of one pool for asyncio; use as `async with`.

    Parameters
    ----------
    source : str or Source
        `kubernetes:NAMESPACE/NAME` (in a pod), `http://...` or `https://...`, a file, or any `Source`.
    keys : PoolKey or sequence of PoolKey
        What user ids are hashed with; several during a rotation.
    hedge : HedgePolicy or None
        None sends nothing twice that did not fail.
    failures : tuple of exception types
        What `send` raises when an instance failed; add those of your HTTP library, for example `httpx.TransportError`.
    metrics : Metrics, optional
        Hook for counters and histograms.
    strict_key : bool
        Refuse requests while the table is made for a key that is not held; by default they are routed, and miss.
    overrides : str or GatewayOverrides, optional
        Where hot users go instead: the URL of a gateway's agent, which weighs what the agents of instances report. Without it
        every user goes where its slot says, unless `router.overrides` is filled by hand.
    on_problem : callable
        Told in one line about every interruption of the way to the table.

    All methods belong to the loop that the client was entered in, but `pick`, `pick_any`, `status` and `router` to any thread.
    """

    def __init__(
        self,
        source: str | Source,
        keys: PoolKey | Sequence[PoolKey],
        *,
        hedge: HedgePolicy | None = HedgePolicy(),  # noqa: B008 - a frozen value
        failures: tuple[type[Exception], ...] = FAILURES,
        metrics: Metrics | None = None,
        strict_key: bool = False,
        overrides: str | GatewayOverrides | None = None,
        on_problem: Callable[[str], None] = lambda message: None,
        rng: random.Random | None = None,
        clock: Clock = monotonic_ms,
    ) -> None:
        self._source = source_at(source) if isinstance(source, str) else source
        super().__init__(
            self._source.label, keys, hedge=hedge, failures=failures, metrics=metrics, strict_key=strict_key, rng=rng, clock=clock
        )
        self._on_problem = on_problem
        self._gateway = GatewayOverrides(overrides, clock=clock) if isinstance(overrides, str) else overrides
        self._following: list[asyncio.Task[None]] = []
        self._losers: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "AsyncClient":
        if self._following:
            raise RuntimeError("a client is entered once: its connections are closed; make another one")
        self._following = [asyncio.create_task(self.keep_current())]
        if self._gateway is not None:
            self._following.append(asyncio.create_task(self.keep_overrides()))
        return self

    async def __aexit__(self, *failure: object) -> None:
        tasks = [*self._losers, *self._following]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._source.aclose()
        if self._gateway is not None:
            await self._gateway.aclose()

    @property
    def following(self) -> bool:
        """Whether the table is being followed: the loop that entered the client runs, and the task in it."""
        return any(not task.done() and task.get_loop().is_running() for task in self._following[:1])

    async def keep_current(self) -> None:
        """Follow the table until cancelled; entering the client does this in a task."""
        await keep_current(self.router, self._source, on_problem=self._on_problem, metrics=self.metrics, rng=self._rng)

    async def keep_overrides(self) -> None:
        """Follow the gateway's overrides until cancelled; entering the client does this in a task."""
        assert self._gateway is not None
        await keep_overrides(self.router, self._gateway, on_problem=self._on_problem, metrics=self.metrics, rng=self._rng)

    async def ready(self, *, timeout_seconds: float) -> None:
        """Wait for the first table.

        Raises
        ------
        TimeoutError
            There was none in that time; the client goes on looking.
        """
        async with asyncio.timeout(timeout_seconds):
            while self.router.generation < 0:  # noqa: ASYNC110 - the router belongs to no loop and has no event
                await asyncio.sleep(_READY_POLL_SECONDS)

    async def call(self, user_id: str, send: Callable[[Choice], Awaitable[Answer]], *, prefer: str = "") -> Answer:
        """Send a request to the instance of a user and return its answer.

        Parameters
        ----------
        send : callable
            Sends the request to `choice.instance.address` with `choice.headers`, and raises one of `failures` when that instance
            failed. It may be called twice at once, for two instances, and one of the two is cancelled; the request must be
            idempotent, as ranking is.

        Raises
        ------
        NoInstance, BadUserId, KeyMismatch
            As `pick`; nothing was sent.
        AllFailed
            The try failed, and so did the one on the next owner, or there is none.
        Exception
            Whatever else `send` raises, at once.
        """
        first = self.first(user_id, prefer)
        try:
            answer = await self._tries(first, send)
        except AllFailed:
            self.metrics.count(Metric.REQUESTS, result="failed")
            raise
        except Exception:
            self.metrics.count(Metric.REQUESTS, result="rejected")
            raise
        self.metrics.count(Metric.REQUESTS, result="answered")
        return answer

    async def _tries(self, first: Choice, send: Callable[[Choice], Awaitable[Answer]]) -> Answer:
        running: dict[asyncio.Task[Answer], Try] = {}
        errors: list[tuple[str, Exception]] = []
        delay_ms = self.hedge_delay_ms()
        tried_twice = False

        def begin(choice: Choice, *, hedge: bool) -> None:
            running[asyncio.ensure_future(_as_coroutine(send, choice))] = Try(choice, self._clock(), hedge)

        begin(first, hedge=False)
        try:
            while True:
                pause_s = None if delay_ms is None or tried_twice else delay_ms / 1000.0
                done, _ = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    delay_ms = None
                    second = self.hedge_to(first)
                    if second is not None:
                        tried_twice = True
                        begin(second, hedge=True)
                    continue
                for task in sorted(done, key=_no_answer):  # of two that end together, an answer counts
                    this = running.pop(task)
                    try:
                        answer = task.result()
                    except self.failures as error:
                        self.failed(this.choice)
                        errors.append((this.choice.instance.name, error))
                    else:
                        self.won(this, others=running.values())
                        return answer
                if not running:
                    second = None if tried_twice else self.retry_on(first)
                    if second is None:
                        raise AllFailed(errors) from errors[0][1]
                    tried_twice = True
                    begin(second, hedge=False)
        finally:
            for task in running:
                task.cancel()
                self._losers.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._losers.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that the loop does not complain of an error that nobody wants to know


def _no_answer(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


async def _as_coroutine(send: Callable[[Choice], Awaitable[Answer]], choice: Choice) -> Answer:
    return await send(choice)
