"""Replay of visits on one tier: which returning visits find their user's state, for one policy, capacity and length of queue."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.tiers.arc import ArcByBytes
from simulator.tiers.eviction import Fifo, LookAhead, Lru, PolicyMaker, SizeAware
from simulator.tiers.tier import Tier
from simulator.tiers.visits import NEVER, Visits
from simulator.tiers.waiting import WaitingQueue

POLICIES: dict[str, PolicyMaker] = {
    "fifo": lambda queue, limit_bytes: Fifo(),
    "lru": lambda queue, limit_bytes: Lru(),
    "arc": lambda queue, limit_bytes: ArcByBytes(limit_bytes),
    "look-ahead": lambda queue, limit_bytes: LookAhead(queue),
    "size-aware": lambda queue, limit_bytes: SizeAware(queue),
    "size-aware-balanced": lambda queue, limit_bytes: SizeAware(queue, worth_exponent=0.5),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """Hits of one replay.

    Attributes
    ----------
    hit : bool, shape (visits,)
    visits : Visits
    peak_bytes : int
        Most that the tier held at any time.
    """

    hit: NDArray[np.bool_]
    visits: Visits
    peak_bytes: int

    @property
    def hit_ratio(self) -> float:
        """Hits among returning visits; 0 when nobody returns."""
        return self.part(0.0, 1.0)

    @property
    def byte_hit_ratio(self) -> float:
        """Bytes of state that hits found, of all that returning visits had left behind."""
        left = np.flatnonzero(self.visits.next_visit < NEVER)
        came_back = self.visits.next_visit[left]
        sizes = np.minimum(self.visits.state_bytes[left], self.visits.state_bytes[came_back])
        return float((sizes * self.hit[came_back]).sum() / max(1, sizes.sum()))

    def part(self, start: float, stop: float) -> float:
        """Hits among returning visits of one part of the trace, given by shares of its visits."""
        first, last = round(start * len(self.hit)), round(stop * len(self.hit))
        returning = self.visits.returning[first:last]
        return float(self.hit[first:last].sum() / max(1, returning.sum()))


def replay(visits: Visits, policy: str, *, limit_bytes: int, window: int | None = 0) -> Replayed:
    """Replay all visits on an empty tier.

    Parameters
    ----------
    policy : str
        One of `POLICIES`.
    window : int, optional
        Requests behind the served one that wait in the queue; None announces the whole future.

    Raises
    ------
    KeyError
        For an unknown policy.
    """
    queue = WaitingQueue(visits.users)
    tier = Tier(limit_bytes=limit_bytes, policy=POLICIES[policy](queue, limit_bytes))
    ahead = len(visits) if window is None else window
    users, sizes = visits.user.tolist(), visits.state_bytes.tolist()
    hit = np.zeros(len(visits), dtype=np.bool_)
    peak, announced = 0, 0
    for index, user in enumerate(users):
        for coming in users[announced : min(len(users), index + 1 + ahead)]:
            queue.announce(coming)
        announced = max(announced, min(len(users), index + 1 + ahead))
        queue.leave(user)
        hit[index] = user in tier
        tier.put(user, sizes[index])
        peak = max(peak, tier.used_bytes)
    return Replayed(hit=hit, visits=visits, peak_bytes=peak)
