"""What it costs to move from one split to another, and the cheapest plan over windows: dynamic programming over window x split.

What shrinks is lost at once, what grows is empty and fills: EMB by its misses and by the capped refill, KV by what misses write.
On the way the growing cache is worth what it is worth at the splits in between, so the work that is lost is a sum over these. It
makes requests longer and the server busier, and raises P99 by both: (1 + X / B) (1 - rho) / (1 - rho - X / window). A blocking
refill stops the server. docs/oracle.md has the formula, and how far a replay of the plan is from what it promises.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.fleet.config import FleetConfig, RefillMode
from simulator.oracle.lindley import ASKED, BUSY, FIXED, KV_MISSED, MISSED

LEAST_SPARE = 0.02
MOST_TAKEN = 0.9
ONE_PERCENT = 0.01
LEAST_LEFT = 0.05
TAIL_POWER = 3.0


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What moves between splits cost on one instance."""

    config: FleetConfig
    emb_bytes: NDArray[np.int64]
    kv_bytes: NDArray[np.int64]
    window_ms: float

    def penalty_ms(self, p99_ms: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what P99 of one window rises by when it begins with a move, shape (from, to); zero on the diagonal.

        Parameters
        ----------
        p99_ms : float64, shape (splits,)
        sums : float64, shape (SUMS, splits)
            Of one instance, or the mean over several.
        """
        extra, stop = self.extra_ms(sums)
        return _risen(p99_ms, sums[BUSY], extra, stop, self.window_ms)

    def extra_ms(self, sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the work X that a move adds until all has filled, and for how long it stops the server, ms, (from, to)."""
        service, config = self.config.service, self.config
        row_ms = service.row_bytes / (service.link_bytes_per_second * service.gather_efficiency) * 1e3
        asked = sums[ASKED] / self.window_ms
        ratio = np.divide(sums[MISSED], sums[ASKED], out=np.zeros_like(asked), where=asked > 0)
        gather_ms = np.divide(sums[BUSY] - sums[FIXED], sums[ASKED], out=np.zeros_like(asked), where=asked > 0)
        extra = _kv_work(self.kv_bytes, asked, sums[FIXED] / self.window_ms, sums[KV_MISSED] / self.window_ms, gather_ms)
        stop = np.zeros_like(extra)
        if config.refill is RefillMode.BLOCKING:
            grown = np.maximum(self.emb_bytes[None, :] - self.emb_bytes[:, None], 0)
            stop = grown / (service.link_bytes_per_second / 1e3)
            return extra + stop, stop
        refill = config.refill_bytes_per_second / 1e3
        taken = min(refill / (service.link_bytes_per_second / 1e3), MOST_TAKEN)
        rows = self.emb_bytes / service.row_bytes
        slower_ms = taken / (1.0 - taken) * row_ms
        return extra + _emb_work(rows, asked, ratio, gather_ms, refill / service.row_bytes, slower_ms), stop


@compiled
def _risen(
    p99_ms: NDArray[np.float64],
    busy: NDArray[np.float64],
    extra_ms: NDArray[np.float64],
    stop_ms: NDArray[np.float64],
    window_ms: float,
) -> NDArray[np.float64]:
    """Return what P99 rises by, (from, to), from the work that is added and the time for which the server stands.

    While the server stands, and until its queue has drained, waits fall evenly from the stop's length to none. Below one request
    in a hundred they push P99 along its tail, taken as a power of -3; beyond that P99 is one of them.
    """
    splits = len(p99_ms)
    out = np.zeros((splits, splits))
    for after in range(splits):
        rho = busy[after] / window_ms
        spare = max(1.0 - rho, LEAST_SPARE)
        for before in range(splits):
            extra, stop = extra_ms[before, after], stop_ms[before, after]
            loaded = rho + extra / window_ms
            longer = 1.0 + (extra / busy[after] if busy[after] > 0.0 else 0.0)
            factor = longer * spare / max(1.0 - loaded, LEAST_SPARE)
            backlog = (max(loaded - 1.0, 0.0) - max(rho - 1.0, 0.0)) * window_ms / 2
            struck = stop / spare / window_ms / ONE_PERCENT
            pushed = max(1.0 - struck, LEAST_LEFT) ** (-1.0 / TAIL_POWER) if struck > 0.0 else 1.0
            waiting = max(stop - ONE_PERCENT * spare * window_ms, 0.0)
            out[before, after] = p99_ms[after] * (factor * pushed - 1.0) + backlog + waiting
    return out


@compiled
def _emb_work(
    rows: NDArray[np.float64],
    asked: NDArray[np.float64],
    ratio: NDArray[np.float64],
    gather_ms: NDArray[np.float64],
    refill: float,
    slower_ms: float,
) -> NDArray[np.float64]:
    """Return gathers while EMB grows from split to split, beyond those of its last one, and what refill takes from them.

    Parameters
    ----------
    rows, asked, ratio, gather_ms : float64, shape (splits,)
        Rows that fit; rows looked up a millisecond; miss ratio; time of all gathers over the rows looked up, which holds their
        fixed cost too.
    refill, slower_ms : float
        Rows a millisecond that refill loads, and by how much that slows each row of a gather.
    """
    splits = len(rows)
    out = np.zeros((splits, splits))
    for after in range(splits):
        work = 0.0
        for before in range(after - 1, -1, -1):
            misses = asked[after] * (ratio[before] + ratio[before + 1]) / 2
            filling = misses + refill
            if filling > 0.0:  # where nothing fills, nothing is missing either
                lasts = (rows[before + 1] - rows[before]) / filling
                beyond = max((gather_ms[before] + gather_ms[before + 1]) / 2 - gather_ms[after], 0.0)
                work += (asked[after] * beyond + misses * slower_ms) * lasts
            out[before, after] = work
    return out


@compiled
def _kv_work(
    kv_bytes: NDArray[np.int64],
    asked: NDArray[np.float64],
    fixed: NDArray[np.float64],
    written: NDArray[np.float64],
    gather_ms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return compute and look-ups of users not found while KV grows from split to split, beyond those of its last one.

    `asked`, `fixed` and `written` (rows, milliseconds of work, bytes of state) are per millisecond.
    """
    splits = len(asked)
    out = np.zeros((splits, splits))
    for after in range(splits):
        work = 0.0
        for before in range(after + 1, splits):
            writing = (written[before - 1] + written[before]) / 2
            if writing > 0.0:
                lasts = (kv_bytes[before - 1] - kv_bytes[before]) / writing
                beyond = max((fixed[before - 1] + fixed[before]) / 2 - fixed[after], 0.0)
                more = max((asked[before - 1] + asked[before]) / 2 - asked[after], 0.0)
                work += (beyond + more * gather_ms[after]) * lasts
            out[before, after] = work
    return out


def cheapest_plan(
    cost: NDArray[np.float64], weight: NDArray[np.float64], penalty: NDArray[np.float64]
) -> tuple[NDArray[np.int64], float]:
    """Return the split of each window that minimises the weighted sum of cost and penalties, and that sum; the start is free.

    Parameters
    ----------
    cost : float64, shape (windows, splits)
        Finite.
    weight : float64, shape (windows,)
    penalty : float64, shape (windows, splits, splits)
        Of beginning a window (first axis) with a move (from, to).
    """
    windows, splits = cost.shape
    best = cost[0] * weight[0]
    came = np.zeros((windows, splits), dtype=np.int64)
    for window in range(1, windows):
        reach = best[:, None] + penalty[window] * weight[window]
        stay = np.arange(splits)
        came[window] = np.argmin(reach, axis=0)
        # A tie stays where it is.
        came[window] = np.where(best <= reach[came[window], stay], stay, came[window])
        best = reach[came[window], stay] + cost[window] * weight[window]
    plan = np.zeros(windows, dtype=np.int64)
    plan[-1] = int(np.argmin(best))
    for window in range(windows - 1, 0, -1):
        plan[window - 1] = came[window, plan[window]]
    return plan, float(best[plan[-1]])
