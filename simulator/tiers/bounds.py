"""How many returning visits any policy could make hit, from above and below, when entries differ in size.

A returning visit is a stay of the user's state from one visit to the next: it earns one hit and takes its bytes for all requests
in between. Choosing stays so that no instant holds more than the limit is a packing problem (Berger, Beckmann, Harchol-Balter,
"Practical bounds on optimal caching with variable object sizes", 2018). Farthest use is not its solution for unequal sizes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.tiers.visits import NEVER, Visits


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Shares of returning visits.

    Attributes
    ----------
    feasible : float
        Reached by a schedule that knows the whole future: greedy by bytes times requests.
    relaxed : float
        No policy can hit more: value of the dual of the linear relaxation, in which stays may be kept in part. Any prices per
        instant give a bound; these come from Polyak's subgradient steps, so it lies a little above the optimum of the relaxation.
    fractional : float
        No policy can hit more either, and simpler: all instants share one budget of limit times visits. Never below `relaxed`.
    """

    feasible: float
    relaxed: float
    fractional: float


@dataclass(frozen=True)
class _Stays:
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    size: NDArray[np.float64]

    @property
    def area(self) -> NDArray[np.float64]:
        return self.size * (self.stop - self.start)


def bounds(visits: Visits, *, limit_bytes: int, steps: int = 1000) -> Bounds:
    """Bound the hit ratio among returning visits for one capacity; all 0 when nobody returns."""
    start = np.flatnonzero(visits.next_visit < NEVER)
    if not len(start):
        return Bounds(feasible=0.0, relaxed=0.0, fractional=0.0)
    stays = _Stays(start, visits.next_visit[start], visits.state_bytes[start].astype(np.float64))
    count, slots, limit = len(start), len(visits), float(limit_bytes)
    feasible = _greedy(stays, limit, slots)
    fractional, price = _one_budget(stays, limit, slots)
    relaxed = min(fractional, _priced(stays, limit, slots, price, feasible, steps))
    return Bounds(feasible=feasible / count, relaxed=relaxed / count, fractional=fractional / count)


def _greedy(stays: _Stays, limit: float, slots: int) -> int:
    load = np.zeros(slots)
    kept = 0
    for index in np.argsort(stays.area, kind="stable"):
        span = slice(stays.start[index], stays.stop[index])
        if load[span].max() + stays.size[index] <= limit:
            load[span] += stays.size[index]
            kept += 1
    return kept


def _one_budget(stays: _Stays, limit: float, slots: int) -> tuple[float, float]:
    """Fill limit times slots with the cheapest stays, the last in part; return hits and the price of a byte for one request."""
    areas = np.sort(stays.area)
    filled = np.cumsum(areas)
    whole = int(np.searchsorted(filled, limit * slots, side="right"))
    if whole == len(areas):
        return float(whole), 0.0
    left = limit * slots - (filled[whole - 1] if whole else 0.0)
    return whole + left / areas[whole], 1.0 / areas[whole]


def _priced(stays: _Stays, limit: float, slots: int, price: float, feasible: int, steps: int) -> float:
    """Least value found of: limit * sum of prices + sum over stays of max(0, 1 - what its bytes cost over its span)."""
    prices = np.full(slots, price)
    best = float(len(stays.start))
    for _ in range(steps):
        paid = np.concatenate(([0.0], np.cumsum(prices)))
        gain = 1.0 - stays.size * (paid[stays.stop] - paid[stays.start])
        wanted = gain > 0
        value = limit * float(prices.sum()) + float(gain[wanted].sum())
        best = min(best, value)
        sizes = stays.size[wanted]
        change = np.bincount(stays.start[wanted], sizes, slots + 1) - np.bincount(stays.stop[wanted], sizes, slots + 1)
        over = np.cumsum(change)[:slots] - limit
        steepness = float(over @ over)
        if value <= feasible or steepness == 0.0:
            break
        prices = np.maximum(0.0, prices + 0.5 * (value - feasible) / steepness * over)
    return best
