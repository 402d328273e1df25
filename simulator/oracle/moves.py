"""What it costs to move from one split to another, and the cheapest plan over windows: dynamic programming over window x split.

What shrinks is lost at once, what grows is empty and fills: EMB by its misses and by the capped refill, KV by what misses write.
Until it has filled (tau), half of what the growth is good for is missing on average; that work, and what refill takes from
gathers meanwhile, loads the server, and the load raises P99 as (1 - rho) / (1 - rho - extra). A blocking refill stops the server.
docs/oracle.md has the formula and how far a replay of the plan is from what it promises.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.fleet.config import FleetConfig, RefillMode
from simulator.oracle.lindley import ASKED, BUSY, FIXED, KV_MISSED, MISSED

LEAST_SPARE = 0.02


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
        extra_ms, stop_ms = self.extra_ms(sums)
        rho = sums[BUSY] / self.window_ms
        loaded = rho + extra_ms / self.window_ms
        factor = np.maximum(1.0 - rho, LEAST_SPARE) / np.maximum(1.0 - loaded, LEAST_SPARE)
        backlog_ms = (np.maximum(loaded - 1.0, 0.0) - np.maximum(rho - 1.0, 0.0)) * self.window_ms / 2
        stalled_ms = np.maximum(stop_ms - 0.01 * self.window_ms, 0.0)
        out: NDArray[np.float64] = p99_ms * (factor - 1.0) + backlog_ms + stalled_ms
        return out

    def extra_ms(self, sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the work that a move adds, and for how long it stops the server, in ms, shape (from, to)."""
        service = self.config.service
        row_ms = service.row_bytes / (service.link_bytes_per_second * service.gather_efficiency) * 1e3
        window = self.window_ms
        asked, fixed, written = sums[ASKED], sums[FIXED], sums[KV_MISSED]
        ratio = np.divide(sums[MISSED], asked, out=np.zeros_like(asked), where=asked > 0)
        before, after = ratio[:, None], ratio[None, :]
        grown = np.maximum(self.emb_bytes[None, :] - self.emb_bytes[:, None], 0).astype(np.float64)
        link = service.link_bytes_per_second / 1e3
        refill = self.config.refill_bytes_per_second / 1e3
        worse = np.maximum(before - after, 0.0)
        filling = refill + asked[None, :] / window * service.row_bytes * (before + after) / 2
        tau = _times(grown, filling, window)
        extra = asked[None, :] / window * worse / 2 * tau * row_ms
        stop = np.zeros_like(extra)
        if self.config.refill is RefillMode.BLOCKING:
            stop = grown / link
            extra = stop
        elif refill:
            taken = min(refill / link, 0.9)
            extra = extra + asked[None, :] / window * after * row_ms * taken / (1.0 - taken) * np.minimum(tau, window)
        kv_grown = np.maximum(self.kv_bytes[None, :] - self.kv_bytes[:, None], 0).astype(np.float64)
        kv_tau = _times(kv_grown, (written[:, None] + written[None, :]) / 2 / window, window)
        lost = np.maximum(fixed[:, None] - fixed[None, :], 0.0)
        lost += np.maximum(asked[:, None] - asked[None, :], 0.0) * after * row_ms
        return extra + lost / window / 2 * kv_tau, stop


def _times(grown: NDArray[np.float64], per_ms: NDArray[np.float64], window_ms: float) -> NDArray[np.float64]:
    """Return the time to fill what has grown; the window's where nothing fills it, since then it matters no further."""
    return np.divide(grown, per_ms, out=np.where(grown > 0, window_ms, 0.0), where=per_ms > 0)


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
