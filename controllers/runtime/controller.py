"""The reconcile loop: take a key, call reconcile, then do exactly one of forget, back off, add later.

Reconcile is level-triggered: it gets a key, reads the present state itself, and may be called at any time for any
reason. It says with a Result when it wants to be called again, and with an exception what kind of trouble it met.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from controllers.runtime.clock import Clock, within
from controllers.runtime.errors import ClusterMismatch, Conflict, NotLeader, Terminal, Transient
from controllers.runtime.logs import describe_error, log_context
from controllers.runtime.metrics import RESULTS, Metrics
from controllers.runtime.queue import WorkQueue
from controllers.runtime.resources import Key

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """What a successful reconcile asks for: nothing, or another look after ``requeue_after`` seconds."""

    requeue_after: float | None = None


DONE = Result()
CLUSTER_RETRY_SECONDS = 10.0
"""A key that roles or CRDs stand in the way of is looked at again after this time at the earliest, then ever more rarely."""
Reconcile = Callable[[Key], Awaitable[Result | None]]


class Controller:
    """Workers over one queue.

    Parameters
    ----------
    kind
        Kind of the objects that keys name, for the log.
    timeout_seconds
        A reconcile that takes longer is cancelled and counts as Transient.
    all_keys
        Every key worth looking at now; used by the resync.
    resync_seconds
        Mean time between resyncs, each drawn from [0.9, 1.1] of it.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        kind: str,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
        workers: int = 4,
        timeout_seconds: float = 60.0,
        all_keys: Callable[[], Iterable[Key]] = tuple,
        resync_seconds: float = 600.0,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[Key] = WorkQueue(name, clock=clock, rng=rng, metrics=metrics)
        self._reconcile = reconcile
        self._kind = kind
        self._clock = clock
        self._rng = rng
        self._workers = workers
        self._timeout = timeout_seconds
        self._all_keys = all_keys
        self._resync = resync_seconds
        self._metrics = metrics
        metrics.prepare_controller(name, workers)
        self._active = metrics.active_workers.labels(name)  # looking a series up by its labels costs more than counting in it
        self._seconds = metrics.reconcile_seconds.labels(name)
        self._outcomes = {result: metrics.reconcile_total.labels(name, result) for result in RESULTS}

    async def run(self) -> None:
        """Enqueue everything, then work until cancelled; on the way out the queue is emptied."""
        self.resync()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.run_timers(), name=f"{self.name}-timers")
                group.create_task(self._run_resync(), name=f"{self.name}-resync")
                for number in range(self._workers):
                    group.create_task(self._run_worker(), name=f"{self.name}-worker-{number}")
        finally:
            self.queue.clear()

    def resync(self) -> None:
        """Have every key looked at."""
        for key in self._all_keys():
            self.queue.add(key)

    async def process_next(self) -> None:
        """Take one key and see it through; what a worker does for ever."""
        key = await self.queue.get()
        self._active.inc()
        began = self._clock.monotonic()
        try:
            with log_context(
                controller=self.name,
                kind=self._kind,
                namespace=key.namespace,
                name=key.name,
                reconcileID=uuid.UUID(int=self._rng.getrandbits(128), version=4).hex,
            ):
                outcome = await self._attempt(key)
            self._outcomes[outcome].inc()
        finally:
            self._active.dec()
            self._seconds.observe(self._clock.monotonic() - began)
            self.queue.done(key)

    async def _attempt(self, key: Key) -> str:
        """One reconcile and its one consequence; returns the result label."""
        try:
            result = await within(self._clock, self._timeout, self._reconcile(key))
        except NotLeader as error:
            _logger.info("reconcile stopped: %s", error)
            # Whoever leads next starts with all keys; but a renewal that is a moment late makes that us, without a new start.
            self.queue.add_rate_limited(key)
            return "error"
        except Conflict as error:
            _logger.info("the object moved, looking again: %s", error, extra={"reason": error.reason})
            self.queue.add_rate_limited(key)
            return "conflict"
        except Transient as error:
            delay = self.queue.add_rate_limited(key, at_least_seconds=error.retry_after or 0.0)
            _logger.warning("reconcile failed, next try in %.1f s: %s", delay, error, extra={"reason": error.reason})
            self._metrics.reconcile_errors.labels(self.name).inc()
            return "error"
        except Terminal as error:
            _logger.error("reconcile cannot succeed until something changes: %s", error, extra={"reason": error.reason})
            if isinstance(error, ClusterMismatch):  # no event of the key will tell that it has changed
                self.queue.add_rate_limited(key, at_least_seconds=CLUSTER_RETRY_SECONDS)
            else:
                self.queue.forget(key)
            self._metrics.reconcile_errors.labels(self.name).inc()
            self._metrics.terminal_errors.labels(self.name).inc()
            return "terminal"
        except TimeoutError:
            delay = self.queue.add_rate_limited(key)
            _logger.warning("reconcile took longer than %g s, next try in %.1f s", self._timeout, delay)
            self._metrics.reconcile_errors.labels(self.name).inc()
            return "error"
        except Exception as error:
            delay = self.queue.add_rate_limited(key)
            _logger.exception("reconcile raised %s, next try in %.1f s", describe_error(error), delay)
            self._metrics.reconcile_errors.labels(self.name).inc()
            self._metrics.panics.labels(self.name).inc()
            return "error"
        self.queue.forget(key)
        if result is not None and result.requeue_after is not None:
            self.queue.add_after(key, result.requeue_after)
            return "requeue_after"
        return "success"

    async def _run_worker(self) -> None:
        while True:
            await self.process_next()

    async def _run_resync(self) -> None:
        while True:
            await self._clock.sleep(self._resync * self._rng.uniform(0.9, 1.1))
            self.resync()
