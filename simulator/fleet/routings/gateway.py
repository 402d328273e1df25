"""A router in virtual time: what it knows of the fleet between two looks, and how each choice adds to it.

All routings know the same: at each look the work that waits, row hit ratios and who holds whose state; between looks what they
have sent themselves, at the cost they believe it has. They differ in what they make of it, so that an ablation compares choices
and not knowledge.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from contract.keys import SLOTS
from policies.routing.bound import caps
from policies.routing.rendezvous import scores
from policies.routing.score import Costs, scores_ms
from policies.routing.types import LoadBound
from simulator.fleet.routing import Arrivals, Presence, RoutingObservation
from simulator.fleet.routings.work import Work
from simulator.fleet.users import HBM

MEMORY = 0.9
"""Weight of the past in the row hit ratio of an instance, a look."""


class Gateway:
    """The part that all routings share; `_pick` is what they differ in.

    Parameters
    ----------
    work : Work
    users, instances : int
    interval_ms : float
        Time between two looks.
    bound : LoadBound
        Its floor counts in typical requests.
    """

    sees_users = True

    def __init__(
        self, work: Work, *, users: int, instances: int, interval_ms: float = 250.0, bound: LoadBound | None = None
    ) -> None:
        self.interval_ms = interval_ms
        self._work, self._bound = work, bound or LoadBound(percent=125.0, floor=2.0)
        self._instances = instances
        self._able: list[int] = []
        self._waiting = np.zeros(instances)
        self._row_hits = np.ones(instances)
        self._tokens = np.zeros((2, users, instances), dtype=np.float32)  # HBM, and what has to be loaded
        ranks = scores([f"instance-{number}" for number in range(instances)], [100.0] * instances)
        self._order = np.argsort(-ranks, axis=0, kind="stable").T
        assert self._order.shape == (SLOTS, instances)

    def route(self, now_ms: float, observations: Sequence[RoutingObservation], arrivals: Arrivals) -> NDArray[np.int64]:
        """Choose for each arrival in turn."""
        self._look(now_ms, observations)
        out = np.full(len(arrivals), -1, dtype=np.int64)
        if not self._able or not len(arrivals):
            return out
        kv_ms, rows_ms = self._costs(arrivals)
        total = (kv_ms + rows_ms + self._work.fixed_ms).tolist()
        choosing = zip(arrivals.arrival_ms.tolist(), arrivals.user.tolist(), arrivals.slot.tolist(), strict=True)
        waiting, last_ms = self._waiting.tolist(), now_ms
        for place, (at_ms, user, slot) in enumerate(choosing):
            past, last_ms = at_ms - last_ms, at_ms
            waiting = [max(each - past, 0.0) for each in waiting]
            chosen = self._pick(place, user, slot, waiting, kv_ms, rows_ms)
            waiting[chosen] += total[place][chosen]
            out[place] = chosen
        self._expect(arrivals, out)
        return out

    def _pick(
        self,
        place: int,
        user: int,
        slot: int,
        waiting: list[float],
        kv_ms: NDArray[np.float32],
        rows_ms: NDArray[np.float32],
    ) -> int:
        """Return the instance of the arrival at a place; the costs have shape (arrivals, instances)."""
        raise NotImplementedError

    def _look(self, now_ms: float, observations: Sequence[RoutingObservation]) -> None:
        self._able = [seen.instance for seen in observations if seen.presence is Presence.READY]
        for seen in observations:
            at = seen.instance
            self._waiting[at] = seen.waiting_ms
            if seen.rows_asked:
                hits = 1.0 - seen.rows_missed / seen.rows_asked
                self._row_hits[at] += (1.0 - MEMORY) * (hits - self._row_hits[at])
            if seen.held is not None:
                self._tokens[:, :, at] = 0.0
                hbm = seen.held.tier == HBM
                self._tokens[0, seen.held.user[hbm], at] = seen.held.tokens[hbm]
                self._tokens[1, seen.held.user[~hbm], at] = seen.held.tokens[~hbm]

    def _costs(self, arrivals: Arrivals) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what the history of each arrival costs on each instance, and what rows that miss do."""
        work, ones = self._work, np.ones(self._instances, dtype=np.float32)
        hbm, lower = self._tokens[:, arrivals.user]
        history = arrivals.history_tokens.astype(np.float32)
        np.minimum(hbm, history[:, None], out=hbm)
        np.minimum(lower, history[:, None], out=lower)
        none = np.float32(0.0) * ones
        costs = Costs(ones * np.float32(work.token_ms), ones * np.float32(work.host_ms), none, none, none)
        kv_ms = -scores_ms(costs, history=history, hbm=hbm, host=lower, ssd=np.zeros_like(hbm))
        missed = (1.0 - self._row_hits).astype(np.float32)
        tokens = np.maximum(history[:, None] - hbm - lower, 0.0) + np.float32(work.candidates)
        rows_ms = tokens * np.float32(work.rows_per_token * work.row_ms) * missed
        return kv_ms, rows_ms

    def _expect(self, arrivals: Arrivals, chosen: NDArray[np.int64]) -> None:
        """Expect the state of each user where its requests went, until the next look says better."""
        self._tokens[0, arrivals.user, chosen] = arrivals.history_tokens

    def _caps(self, waiting: list[float]) -> NDArray[np.float64]:
        """Return how much work may wait at each instance."""
        weight = np.zeros(self._instances)
        weight[self._able] = 100.0
        floor = LoadBound(percent=self._bound.percent, floor=self._bound.floor * self._work.typical_ms)
        return caps(np.where(weight > 0.0, waiting, 0.0), weight, floor)
