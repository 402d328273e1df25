"""Who serves whom in virtual time, while instances come and go: the border to a routing policy, and the published table as one.

Each interval, and whenever an instance is seen to come or go, a policy is told what the routing loop could know and answers with
an instance for each request that arrives until it is asked again. A policy that keeps a table looks at the users' slots only; one
that balances may look at every request. State of users stays where it was made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from contract.keys import SLOTS
from policies.measurement import Fresh, Measurement, Missing
from policies.routing.table import ChurnBudget, Member, MemberState, Move, Table, TablePlan, plan_table
from policies.routing.warmup import FULL_WEIGHT_PERCENT, ramp_weight_percent


class Presence(StrEnum):
    """What routing knows of an instance."""

    ABSENT = "absent"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Life:
    """When an instance is there.

    Parameters
    ----------
    joins_ms : float
        It is ready from then on; with cold caches when that is after the start.
    drains_ms : float
        It is to be given nothing from then on, and serves what comes all the same.
    dies_ms : float
        It serves nothing from then on: what it had in hand begins anew elsewhere, and so does what is still sent to it.
    noticed_ms : float
        How much later routing learns of its end.

    Raises
    ------
    ValueError
        For an end before its beginning.
    """

    joins_ms: float = 0.0
    drains_ms: float = math.inf
    dies_ms: float = math.inf
    noticed_ms: float = 1000.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.joins_ms < math.inf or not self.joins_ms < min(self.drains_ms, self.dies_ms):
            ends = f"drains at {self.drains_ms}, dies at {self.dies_ms}"
            raise ValueError(f"lives: an instance joins at {self.joins_ms} ms, {ends}")
        if not 0.0 <= self.noticed_ms < math.inf:
            raise ValueError(f"lives: noticed_ms is {self.noticed_ms}, not a time after the end")

    def serves(self, now_ms: float) -> bool:
        """Whether it answers requests."""
        return self.joins_ms <= now_ms < self.dies_ms

    def seen(self, now_ms: float) -> Presence:
        """Return what routing knows of it."""
        if now_ms < self.joins_ms:
            return Presence.ABSENT
        if now_ms >= self.dies_ms + self.noticed_ms:
            return Presence.GONE
        return Presence.DRAINING if now_ms >= self.drains_ms else Presence.READY


class HeldUsers(NamedTuple):
    """Users whose state an instance holds: who (as in the log), how many tokens, and in which tier (1 HBM, 2 host, 3 SSD)."""

    user: NDArray[np.uint32]
    tokens: NDArray[np.int32]
    tier: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class RoutingObservation:
    """One instance, over the time since the policy was asked before.

    Attributes
    ----------
    instance : int
    presence : Presence
    age_ms : float
        Time since it joined.
    requests, kv_tokens_asked, kv_tokens_hit : int
    waiting_ms : float
        Work that waits for its server.
    rows_asked, rows_missed : int
    held : HeldUsers or None
        At this time; only for a policy with a true `sees_users`.
    """

    instance: int
    presence: Presence
    age_ms: float
    requests: int = 0
    kv_tokens_asked: int = 0
    kv_tokens_hit: int = 0
    waiting_ms: float = 0.0
    rows_asked: int = 0
    rows_missed: int = 0
    held: HeldUsers | None = None


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Requests to be given to instances, in order of time; columns of shape (requests,)."""

    arrival_ms: NDArray[np.float64]
    user: NDArray[np.uint32]
    slot: NDArray[np.uint16]
    history_tokens: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.arrival_ms)


class RoutingPolicy(Protocol):
    """Chooses instances in virtual time."""

    @property
    def interval_ms(self) -> float:
        """Time between two looks at the fleet; infinite for a policy that looks only when instances come or go."""
        ...

    def route(self, now_ms: float, observations: Sequence[RoutingObservation], arrivals: Arrivals) -> NDArray[np.int64]:
        """Return the instance of each arrival; what goes to one that does not serve is sent on to another at once."""
        ...


class TableRouting:
    """The routing loop: a table of slots by `policies.routing`, under a churn budget, new instances warming by their hits.

    Parameters
    ----------
    budget : ChurnBudget
    interval_ms : float
        Time between two plans.
    target_hit_percent, warm_ms : float
        Hit rate, in percent of the others', and age at which a new instance counts as warm.
    names : sequence of str, optional
        Of the instances, which place the users; `instance-0` and so on when absent.

    Attributes
    ----------
    table : Table or None
        In force.
    plans : list of (float, TablePlan)
        Every plan that moved a slot or put one off, with its time.
    """

    def __init__(
        self,
        *,
        budget: ChurnBudget | None = None,
        interval_ms: float = 5000.0,
        target_hit_percent: float = 80.0,
        warm_ms: float = 600_000.0,
        names: Sequence[str] | None = None,
    ) -> None:
        self.table: Table | None = None
        self.plans: list[tuple[float, TablePlan]] = []
        self._budget = budget or ChurnBudget()
        self._interval_ms = interval_ms
        self._target, self._warm_ms = target_hit_percent, warm_ms
        self._names = names
        self._history: tuple[Move, ...] = ()
        self._weight: dict[int, int] = {}
        self._numbers = np.zeros(0, dtype=np.int64)

    @property
    def interval_ms(self) -> float:
        return self._interval_ms

    def route(self, now_ms: float, observations: Sequence[RoutingObservation], arrivals: Arrivals) -> NDArray[np.int64]:
        """Plan the next table and return the owners of the users' slots."""
        mean_hit = self._mean_hit(observations)
        members = [self._member(seen, mean_hit) for seen in observations if seen.presence in _LISTED]
        plan = plan_table(self.table, members, budget=self._budget, history=self._history, now_ms=now_ms)
        self._history = plan.history
        if plan.moved_slots or plan.deferred_slots:
            self.plans.append((now_ms, plan))
        if plan.table is not self.table:
            self.table = plan.table
            number = {str(seen.instance): seen.instance for seen in observations}
            owners = np.array([number[owner.uid] for owner in plan.table.owners] + [-1], dtype=np.int64)
            self._numbers = owners[np.asarray(plan.table.slots, dtype=np.int64)]
        return self._numbers[arrivals.slot] if len(self._numbers) == SLOTS else np.full(len(arrivals), -1, dtype=np.int64)

    def _member(self, seen: RoutingObservation, mean_hit: float | None) -> Member:
        weight = self._weight[seen.instance] = ramp_weight_percent(
            age_ms=seen.age_ms,
            hit_percent=_hit_percent(seen, mean_hit),
            target_hit_percent=self._target,
            max_ms=self._warm_ms,
            # The first table finds everybody as it is: nobody is new to it.
            previous_percent=self._weight.get(seen.instance, FULL_WEIGHT_PERCENT if self.table is None else 0),
        )
        state = MemberState.READY if weight >= FULL_WEIGHT_PERCENT else MemberState.WARMING
        if seen.presence is Presence.DRAINING:
            state = MemberState.DRAINING
        name = f"instance-{seen.instance}" if self._names is None else self._names[seen.instance]
        return Member(name=name, uid=str(seen.instance), state=state, weight_percent=weight)

    def _mean_hit(self, observations: Sequence[RoutingObservation]) -> float | None:
        """Mean hit rate of the instances that carry their full share."""
        full = [each for each in observations if self._weight.get(each.instance) == FULL_WEIGHT_PERCENT]
        hits = [each.kv_tokens_hit / each.kv_tokens_asked for each in full if each.kv_tokens_asked]
        return sum(hits) / len(hits) if hits else None


_LISTED = (Presence.READY, Presence.DRAINING)


def _hit_percent(seen: RoutingObservation, mean_hit: float | None) -> Measurement:
    """Return the hit rate of an instance in percent of what warm ones have; missing where nobody asked."""
    if not seen.kv_tokens_asked or not mean_hit:
        return Missing()
    return Fresh(100.0 * seen.kv_tokens_hit / seen.kv_tokens_asked / mean_hit)
