"""The synchronous face: the table is followed by a thread of its own, picks come from memory, requests may be hedged by a pool.

Where nothing is hedged (yet), a request is sent by the caller's own thread. A thread cannot be cancelled: a try that lost goes on
until `send` gives it up, so `send` needs a time-out, and the pool bounds how many such there are.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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
_STOP_SECONDS = 5.0


class Client(Face):
    """Router client of one pool for threads; use as `with`. Every method may be called from any thread.

    Parameters are those of `AsyncClient`, and:

    hedge_threads : int
        Most tries under way in threads of the pool; a request that finds none free is sent by the caller's thread, unhedged.

    Enter it after a fork, not before: the thread that follows the table does not live on in the child. One that was entered
    before goes on in the child from the last table, which then never changes.
    """

    def __init__(
        self,
        source: str | Source,
        keys: PoolKey | Sequence[PoolKey],
        *,
        hedge: HedgePolicy | None = HedgePolicy(),  # noqa: B008 - a frozen value
        hedge_threads: int = 32,
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
        self._hedge_threads = hedge_threads
        self._make_pool()
        self._thread = threading.Thread(target=self._follow, name="grfleet-client-follow", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def _make_pool(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=self._hedge_threads, thread_name_prefix="grfleet-client-try")
        self._free = threading.BoundedSemaphore(self._hedge_threads)

    def after_fork(self) -> None:
        """In the child of a fork: the threads of the pool are the parent's; one that waited for them would wait for ever."""
        super().after_fork()
        self._make_pool()
        self._loop = None

    def __enter__(self) -> "Client":
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def following(self) -> bool:
        """Whether the thread that follows the table is alive; False in the child of a fork."""
        return self._thread.is_alive()

    def _follow(self) -> None:
        try:
            asyncio.run(self._keep_current())
        finally:
            self._started.set()  # also where there could be no loop: who enters must not wait for ever

    async def _keep_current(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        following = [
            asyncio.create_task(
                keep_current(self.router, self._source, on_problem=self._on_problem, metrics=self.metrics, rng=self._rng)
            )
        ]
        gateway = self._gateway
        if gateway is not None:
            following.append(
                asyncio.create_task(
                    keep_overrides(self.router, gateway, on_problem=self._on_problem, metrics=self.metrics, rng=self._rng)
                )
            )
        await self._stop.wait()
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await self._source.aclose()
        if gateway is not None:
            await gateway.aclose()

    def ready(self, *, timeout_seconds: float) -> None:
        """Wait for the first table.

        Raises
        ------
        TimeoutError
            There was none in that time; the client goes on looking.
        """
        end_s = time.monotonic() + timeout_seconds
        while self.router.generation < 0:
            if time.monotonic() >= end_s:
                raise TimeoutError(f"no routing table within {timeout_seconds} s")
            time.sleep(_READY_POLL_SECONDS)

    def call(self, user_id: str, send: Callable[[Choice], Answer], *, prefer: str = "") -> Answer:
        """Send a request to the instance of a user and return its answer; as `AsyncClient.call`.

        A try that lost is not cancelled but left to its own time-out.
        """
        first = self.first(user_id, prefer)
        delay_ms = self.hedge_delay_ms()
        try:
            if delay_ms is not None and self._free.acquire(blocking=False):
                answer = self._hedged(first, send, delay_ms)
            else:
                answer = self._in_turn(first, send)
        except AllFailed:
            self.metrics.count(Metric.REQUESTS, result="failed")
            raise
        except Exception:
            self.metrics.count(Metric.REQUESTS, result="rejected")
            raise
        self.metrics.count(Metric.REQUESTS, result="answered")
        return answer

    def _in_turn(self, first: Choice, send: Callable[[Choice], Answer]) -> Answer:
        errors: list[tuple[str, Exception]] = []
        this = Try(first, self._clock(), hedge=False)
        try:
            answer = send(first)
        except self.failures as error:
            self._note(this, error, errors)
        else:
            self.won(this, others=())
            return answer
        return self._once_more(first, send, errors)

    def _once_more(self, first: Choice, send: Callable[[Choice], Answer], errors: list[tuple[str, Exception]]) -> Answer:
        """Try the next owner after a failure, by the caller's own thread."""
        second = self.retry_on(first)
        if second is not None:
            this = Try(second, self._clock(), hedge=False)
            try:
                answer = send(second)
            except self.failures as error:
                self._note(this, error, errors)
            else:
                self.won(this, others=())
                return answer
        raise AllFailed(errors) from errors[0][1]

    def _note(self, this: Try, error: Exception, errors: list[tuple[str, Exception]]) -> None:
        self.failed(this.choice)
        errors.append((this.choice.instance.name, error))

    def _hedged(self, first: Choice, send: Callable[[Choice], Answer], delay_ms: float) -> Answer:
        """As `_in_turn`, by threads of the pool; the caller has taken the place of the first."""
        errors: list[tuple[str, Exception]] = []
        running = {self._begin(send, first): Try(first, self._clock(), hedge=False)}
        pause_s: float | None = delay_ms / 1000.0
        tried_twice = False
        while True:
            done, _ = wait(running, timeout=None if tried_twice else pause_s, return_when=FIRST_COMPLETED)
            if not done:
                pause_s = None
                second = self._hedge_with_a_thread(first)
                if second is not None:
                    tried_twice = True
                    running[self._begin(send, second)] = Try(second, self._clock(), hedge=True)
                continue
            for future in sorted(done, key=_no_answer):  # of two that end together, an answer counts
                this = running.pop(future)
                try:
                    answer = future.result()
                except self.failures as error:
                    self._note(this, error, errors)
                else:
                    self.won(this, others=running.values())
                    return answer
            if not running:
                if tried_twice:
                    raise AllFailed(errors) from errors[0][1]
                return self._once_more(first, send, errors)

    def _hedge_with_a_thread(self, first: Choice) -> Choice | None:
        if not self._free.acquire(blocking=False):
            self.metrics.count(Metric.HEDGES, result="denied")
            return None
        second = self.hedge_to(first)
        if second is None:
            self._free.release()
        return second

    def _begin(self, send: Callable[[Choice], Answer], choice: Choice) -> "Future[Answer]":
        try:
            future = self._pool.submit(send, choice)
        except RuntimeError:
            self._free.release()
            raise
        future.add_done_callback(lambda _: self._free.release())
        return future


def _no_answer(future: "Future[Any]") -> bool:
    return future.cancelled() or future.exception() is not None
