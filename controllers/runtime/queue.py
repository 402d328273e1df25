"""A keyed work queue with the semantics of client-go's: what is queued is "look at this key", never an event.

A key that is queued is not queued twice; a key that is being worked on is never given to a second worker, but if it is
added meanwhile it comes round again afterwards. Failures back off exponentially, each key for itself. What an event asks for goes
before what a timer asks for, so that on a busy machine thousands of routine looks do not hold up what has changed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import OrderedDict, deque
from typing import Generic, TypeVar

from controllers.runtime.clock import Clock
from controllers.runtime.metrics import Metrics

K = TypeVar("K")


EVENTS_BEFORE_A_TIMER = 7
"""While both wait, one key of a timer is taken after so many of events."""


class WorkQueue(Generic[K]):
    """See the module's text. All methods belong to one event loop.

    Parameters
    ----------
    base_seconds, cap_seconds
        The n-th failure in a row of a key waits min(cap, base * 2^(n-1)), times a random factor in [0.5, 1].
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
        base_seconds: float = 0.25,
        cap_seconds: float = 120.0,
    ) -> None:
        self.name = name
        self._clock = clock
        self._rng = rng
        self._base = base_seconds
        self._cap = cap_seconds
        self._ready: deque[K] = deque()
        self._routine: OrderedDict[K, None] = (
            OrderedDict()
        )  # ready because of a timer, in order; every key is in at most one of the two
        self._in_a_row = 0  # how many keys of events were taken since the last one of a timer
        self._dirty: dict[K, float] = {}  # must be looked at; value: since when
        self._started: dict[K, float] = {}  # being worked on; value: since when
        self._failures: dict[K, int] = {}
        self._order = itertools.count()
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # the earliest pending delay of a key; later heap entries of it are void
        self._getters: deque[asyncio.Future[None]] = deque()
        self._sooner = asyncio.Event()
        self._depth = metrics.queue_depth.labels(name)
        self._adds = metrics.queue_adds.labels(name)
        self._retries = metrics.queue_retries.labels(name)
        self._queue_seconds = metrics.queue_seconds.labels(name)
        self._work_seconds = metrics.work_seconds.labels(name)
        metrics.unfinished_seconds.labels(name).set_function(self.unfinished_seconds)
        metrics.longest_seconds.labels(name).set_function(self.longest_seconds)

    def __len__(self) -> int:
        """How many keys are ready to be taken."""
        return len(self._ready) + len(self._routine)

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing is being worked on; keys with a delay don't count."""
        return not len(self) and not self._started

    def add(self, key: K) -> None:
        """Have the key looked at as soon as a worker is free."""
        if key in self._routine:
            del self._routine[key]
            self._ready.append(key)
        else:
            self._add(key, routine=False)

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key looked at after ``seconds``, unless an earlier time is pending already."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, next(self._order), key))
        if self._delayed[0][0] == due:
            self._sooner.set()

    def add_rate_limited(self, key: K, *, at_least_seconds: float = 0.0) -> float:
        """Have the key looked at after its back-off; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._retries.inc()
        delay = min(self._cap, self._base * 2.0 ** min(failures, 30)) * self._rng.uniform(0.5, 1.0)
        delay = max(delay, at_least_seconds)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key is well: its next failure starts from the shortest back-off."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row of the key."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for a key and take it. The caller must call :meth:`done` with it."""
        while not len(self):
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except BaseException:
                if getter.done() and not getter.cancelled() and len(self):
                    self._wake_getter()  # we were chosen and then cancelled: hand the turn on
                raise
        key = self._next()
        self._depth.set(len(self))
        now = self._clock.monotonic()
        self._queue_seconds.observe(now - self._dirty.pop(key))
        self._started[key] = now
        return key

    def done(self, key: K) -> None:
        """The worker has finished with the key; if it was added meanwhile it is ready again."""
        self._work_seconds.observe(self._clock.monotonic() - self._started.pop(key))
        if key in self._dirty:
            self._push(key)

    def clear(self) -> None:
        """Forget everything that waits; work in progress is not touched. For a process that stops leading."""
        for key in (*self._ready, *self._routine):
            self._dirty.pop(key, None)
        self._dirty = {key: since for key, since in self._dirty.items() if key in self._started}
        self._ready.clear()
        self._routine.clear()
        self._delayed.clear()
        self._due.clear()
        self._failures.clear()
        self._depth.set(0)

    async def run_timers(self) -> None:
        """Move delayed keys to the ready ones when their time comes, for ever. Exactly one task runs this."""
        while True:
            self._sooner.clear()
            self._release_due()
            if not self._delayed:
                await self._sooner.wait()
                continue
            alarm = asyncio.ensure_future(self._clock.sleep(self._delayed[0][0] - self._clock.monotonic()))
            sooner = asyncio.ensure_future(self._sooner.wait())
            try:
                await asyncio.wait({alarm, sooner}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                alarm.cancel()
                sooner.cancel()

    def unfinished_seconds(self) -> float:
        """Sum of the ages of the work in progress."""
        now = self._clock.monotonic()
        return sum(now - since for since in self._started.values())

    def longest_seconds(self) -> float:
        """Age of the oldest work in progress."""
        return max((self._clock.monotonic() - since for since in self._started.values()), default=0.0)

    def _release_due(self) -> None:
        now = self._clock.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:
                del self._due[key]
                self._add(key, routine=True)

    def _add(self, key: K, *, routine: bool) -> None:
        if key in self._dirty:
            return
        self._adds.inc()
        self._dirty[key] = self._clock.monotonic()
        if key not in self._started:
            self._push(key, routine=routine)

    def _next(self) -> K:
        """Take the key whose turn it is; there must be one."""
        if self._routine and (not self._ready or self._in_a_row >= EVENTS_BEFORE_A_TIMER):
            self._in_a_row = 0
            return self._routine.popitem(last=False)[0]
        self._in_a_row += 1
        return self._ready.popleft()

    def _push(self, key: K, *, routine: bool = False) -> None:
        if routine:
            self._routine[key] = None
        else:
            self._ready.append(key)
        self._depth.set(len(self))
        self._wake_getter()

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return
