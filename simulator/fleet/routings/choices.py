"""The routings that an ablation compares, each a way to choose among what the gateway knows.

The scored ones take the terms of the joint score one by one: history (KV), rows (EMB), work that waits (load). They and the hash
obey the same bound on the load; random and least loaded look at no user.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.routing.bound import first_below
from policies.routing.types import LoadBound
from simulator.fleet.routings.gateway import Gateway
from simulator.fleet.routings.work import Work

Costs = NDArray[np.float32]


class RandomRouting(Gateway):
    """Anybody that is ready, all alike."""

    def __init__(self, work: Work, *, users: int, instances: int, seed: int, interval_ms: float = 250.0) -> None:
        super().__init__(work, users=users, instances=instances, interval_ms=interval_ms)
        self._random = np.random.default_rng(seed)

    def _pick(self, place: int, user: int, slot: int, waiting: list[float], kv_ms: Costs, rows_ms: Costs) -> int:
        return self._able[int(self._random.integers(len(self._able)))]


class LeastLoaded(Gateway):
    """Where the least work waits."""

    def _pick(self, place: int, user: int, slot: int, waiting: list[float], kv_ms: Costs, rows_ms: Costs) -> int:
        return min(self._able, key=lambda at: (waiting[at], at))


class BoundedHash(Gateway):
    """The best of the slot's rendezvous order that is below the bound."""

    def _pick(self, place: int, user: int, slot: int, waiting: list[float], kv_ms: Costs, rows_ms: Costs) -> int:
        order = [at for at in self._order[slot].tolist() if at in self._able]
        found = first_below(order, np.asarray(waiting), self._caps(waiting), more=0.0)
        return found if found >= 0 else order[0]


@dataclass(frozen=True)
class Terms:
    """Terms of the score that count."""

    kv: bool = False
    emb: bool = False
    load: bool = False


class Scored(Gateway):
    """Where a request costs least by some terms of the score, below the bound; of equals, by the slot's rendezvous order.

    Parameters
    ----------
    terms : Terms
    margin_ms : float
        What leaving the first of the slot's order must save.
    """

    def __init__(
        self,
        work: Work,
        *,
        terms: Terms,
        users: int,
        instances: int,
        interval_ms: float = 250.0,
        bound: LoadBound | None = None,
        margin_ms: float = 1.0,
    ) -> None:
        super().__init__(work, users=users, instances=instances, interval_ms=interval_ms, bound=bound)
        self._terms, self._margin_ms = terms, margin_ms

    def _pick(self, place: int, user: int, slot: int, waiting: list[float], kv_ms: Costs, rows_ms: Costs) -> int:
        order = [at for at in self._order[slot].tolist() if at in self._able]
        cap = self._caps(waiting)
        below = [at for at in order if waiting[at] <= cap[at]] or order
        terms = self._terms
        kv = kv_ms[place].tolist() if terms.kv else None
        rows = rows_ms[place].tolist() if terms.emb else None
        best, least = -1, 0.0
        for at in below:
            cost = (kv[at] if kv else 0.0) + (rows[at] if rows else 0.0) + (waiting[at] if terms.load else 0.0)
            if at == order[0]:
                cost -= self._margin_ms
            if best < 0 or cost < least:
                best, least = at, cost
        return best
