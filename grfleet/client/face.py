"""What the synchronous and the asynchronous client share: a user id in, a choice out, and the books around a request."""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from contract.clock import Clock, monotonic_ms
from contract.errors import Unreachable
from contract.table import INSTANCE_HEADER, KEY_ID_HEADER, USER_KEY_HEADER, RoutingTable
from contract.view import Pick
from grfleet.client.errors import InstanceFailed, NoInstance
from grfleet.client.forks import renew_after_fork
from grfleet.client.hedge import HedgeBudget, HedgePolicy, Latencies
from grfleet.client.keys import KeyRing, PoolKey, hashed
from grfleet.client.metrics import GuardedMetrics, Metric, Metrics, NoMetrics
from grfleet.client.router import Router, RouterStatus

FAILURES: tuple[type[Exception], ...] = (InstanceFailed, Unreachable, OSError, TimeoutError)
"""What a `send` may raise to say that the instance failed and another one may be tried; everything else is the caller's own."""


class Choice(msgspec.Struct, frozen=True):
    """Where a request goes, and as whose: the instance, the keyed hash of the user, and which key that is of."""

    instance: Pick
    user_key: str
    key_id: str
    key_header: str = USER_KEY_HEADER

    @property
    def headers(self) -> dict[str, str]:
        """What to send along: gateways and engines read the user's hash, and echo the instance that answered."""
        names = {self.key_header: self.user_key, KEY_ID_HEADER: self.key_id, INSTANCE_HEADER: self.instance.name}
        return {name: value for name, value in names.items() if value}


@dataclass(frozen=True)
class Try:
    """One sending of a request."""

    choice: Choice
    began_ms: float
    hedge: bool


class CountingRouter(Router):
    """A router that counts tables whose key the ring does not hold."""

    def __init__(self, ring: KeyRing, metrics: Metrics, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._ring, self._metrics = ring, metrics

    def accept(self, table: RoutingTable, *, incarnation: str = "") -> bool:
        taken = super().accept(table, incarnation=incarnation)
        if taken and not self._ring.fits(table.key_id):
            self._metrics.count(Metric.KEY_MISMATCHES)
        return taken


class Face:
    """Base of both clients; see `grfleet.client.asynchronous.AsyncClient` for the parameters."""

    def __init__(
        self,
        label: str,
        keys: PoolKey | Sequence[PoolKey],
        *,
        hedge: HedgePolicy | None,
        failures: tuple[type[Exception], ...],
        metrics: Metrics | None,
        strict_key: bool,
        rng: random.Random | None,
        clock: Clock = monotonic_ms,
    ) -> None:
        self.metrics: Metrics = GuardedMetrics(metrics or NoMetrics(), pool=label)
        self._ring = KeyRing(keys, strict=strict_key)
        self.router: Router = CountingRouter(self._ring, self.metrics, clock=clock)
        self.hedge = hedge
        self.failures = failures
        self._rng, self._clock = rng or random.Random(), clock
        self._latencies = Latencies()
        self._budget = HedgeBudget(percent=hedge.budget_percent if hedge else 0.0, hoard=hedge.hoard if hedge else 1.0)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: what is known of latencies stays, whoever held a lock is not there."""
        self._latencies.after_fork()
        self._budget.after_fork()

    def pick(self, user_id: str, *, exclude: Collection[str] = (), prefer: str = "") -> Choice:
        """Return where a user's request goes; no IO, no lock, waits for nothing.

        Parameters
        ----------
        user_id : str
            Raw id; it is hashed here and kept nowhere.
        exclude : collection of str
            Names of instances that this request must not go to.
        prefer : str
            Name of the instance that served this user's earlier request (`x-gr-instance` of its answer).

        Raises
        ------
        NoInstance
            No table, or nobody left in it.
        BadUserId
            The id is empty or not valid unicode.
        KeyMismatch
            Only with `strict_key`: the table is made for a key that is not held.
        """
        router = self.router
        key = self._ring.key_for(router.key_id)
        user_key = hashed(key, user_id)
        return Choice(router.pick(user_key, exclude=exclude, prefer=prefer), user_key, key.key_id, router.key_header)

    def pick_any(self, *, exclude: Collection[str] = ()) -> Choice:
        """Return where a request without a user goes: by chance, in proportion to the slots that instances own."""
        return Choice(self.router.pick_any(self._rng, exclude=exclude), "", "")

    @property
    def key_fits(self) -> bool:
        """Whether the key of the table in use is held."""
        return self._ring.fits(self.router.key_id)

    def status(self) -> RouterStatus:
        """Return generation, ages and counts."""
        return self.router.status()

    def first(self, user_id: str, prefer: str) -> Choice:
        """The first choice of a request, counted."""
        self._budget.request()
        try:
            return self.pick(user_id, prefer=prefer)
        except NoInstance:
            self.metrics.count(Metric.REQUESTS, result="refused")
            raise

    def second(self, choice: Choice) -> Choice | None:
        """The next owner for the same user, never the same instance; None if there is no other."""
        try:
            pick = self.router.pick(choice.user_key, exclude=(choice.instance.name,))
        except NoInstance:
            return None
        return Choice(pick, choice.user_key, choice.key_id, choice.key_header)

    def hedge_delay_ms(self) -> float | None:
        """After how long a request is sent a second time; None while hedging is off or too little is known."""
        if self.hedge is None or self.hedge.budget_percent <= 0.0:
            return None
        p99_ms = self._latencies.p99_ms(samples=self.hedge.samples)
        return None if p99_ms is None else max(self.hedge.least_delay_ms, p99_ms * self.hedge.delay_percent / 100.0)

    def hedge_to(self, choice: Choice) -> Choice | None:
        """Where the hedge of a request goes, paid for; None without another instance or without budget."""
        second = self.second(choice)
        if second is None:
            return None
        granted = self._budget.take()
        self.metrics.count(Metric.HEDGES, result="sent" if granted else "denied")
        return second if granted else None

    def retry_on(self, choice: Choice) -> Choice | None:
        """Where a request that failed is tried again; None without another instance."""
        second = self.second(choice)
        if second is not None:
            self.metrics.count(Metric.RETRIES)
        return second

    def won(self, this: Try, *, others: Iterable[Try]) -> None:
        """Book an answered try, and those that lost against it: they would have taken at least as long as they have."""
        now_ms = self._clock()
        self._latencies.add(now_ms - this.began_ms)
        for other in others:
            self._latencies.add(now_ms - other.began_ms)
        self.metrics.observe(Metric.ATTEMPT_MS, now_ms - this.began_ms)
        if this.hedge:
            self.metrics.count(Metric.HEDGES, result="won")
        self.router.succeeded(this.choice.instance.uid)

    def failed(self, choice: Choice) -> None:
        """Book a failed try."""
        if self.router.failed(choice.instance.uid):
            self.metrics.count(Metric.EXCLUSIONS)
