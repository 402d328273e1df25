"""What it costs to move from one split to another, and the cheapest plan over windows: dynamic programming over window x split.

What shrinks is lost at once, what grows is empty and fills: EMB by its misses and by the capped refill, KV by what misses write.
On the way the growing cache is worth what it is worth at the splits in between, so the work that is lost is a sum over these. It
makes requests longer and the server busier, and raises P99 by both: (1 + X / B) (1 - rho) / (1 - rho - X / window). A blocking
refill stops the server. docs/oracle.md has the formula, and how far a replay of the plan is from what it promises.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        extra_ms, stop_ms = self.extra_ms(sums)
        busy = sums[BUSY]
        rho = busy / self.window_ms
        loaded = rho + extra_ms / self.window_ms
        longer = 1.0 + np.divide(extra_ms, busy, out=np.zeros_like(extra_ms), where=busy > 0)
        factor = longer * np.maximum(1.0 - rho, LEAST_SPARE) / np.maximum(1.0 - loaded, LEAST_SPARE)
        backlog_ms = (np.maximum(loaded - 1.0, 0.0) - np.maximum(rho - 1.0, 0.0)) * self.window_ms / 2
        # While the server stands, and until its queue has drained, waits fall evenly from the stop's length to none. Below one
        # request in a hundred they push P99 along its tail, taken as a power of -3; beyond that P99 is one of them.
        spare = np.maximum(1.0 - rho, LEAST_SPARE)
        struck = stop_ms / spare / self.window_ms / ONE_PERCENT
        pushed = np.maximum(1.0 - struck, LEAST_LEFT) ** (-1.0 / TAIL_POWER)
        waiting_ms = np.maximum(stop_ms - ONE_PERCENT * spare * self.window_ms, 0.0)
        out: NDArray[np.float64] = p99_ms * (factor * pushed - 1.0) + backlog_ms + waiting_ms
        return out

    def extra_ms(self, sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the work X that a move adds until all has filled, and for how long it stops the server, ms, (from, to)."""
        service, config = self.config.service, self.config
        row_ms = service.row_bytes / (service.link_bytes_per_second * service.gather_efficiency) * 1e3
        asked = sums[ASKED] / self.window_ms
        ratio = np.divide(sums[MISSED], sums[ASKED], out=np.zeros_like(asked), where=asked > 0)
        gather_ms = np.divide(sums[BUSY] - sums[FIXED], sums[ASKED], out=np.zeros_like(asked), where=asked > 0)
        kv = self._kv_work(asked, sums[FIXED] / self.window_ms, sums[KV_MISSED] / self.window_ms, gather_ms)
        if config.refill is RefillMode.BLOCKING:
            grown = np.maximum(self.emb_bytes[None, :] - self.emb_bytes[:, None], 0)
            stop = grown / (service.link_bytes_per_second / 1e3)
            return kv + stop, stop
        return kv + self._emb_work(asked, ratio, gather_ms, row_ms), np.zeros_like(kv)

    def _emb_work(
        self, asked: NDArray[np.float64], ratio: NDArray[np.float64], gather_ms: NDArray[np.float64], row_ms: float
    ) -> NDArray[np.float64]:
        """Gathers while EMB grows from split to split, beyond those of its last one, and what refill takes from them.

        `gather_ms` is the time of all gathers over the rows looked up, so that it holds their fixed cost too.
        """
        service = self.config.service
        refill = self.config.refill_bytes_per_second / 1e3
        taken = min(refill / (service.link_bytes_per_second / 1e3), MOST_TAKEN)
        between = (ratio[1:] + ratio[:-1]) / 2
        misses = asked[:, None] * between[None, :]  # (to, step)
        filling = misses + refill / service.row_bytes
        lasts = _over(np.diff(self.emb_bytes) / service.row_bytes, filling)
        beyond = asked[:, None] * np.maximum((gather_ms[1:] + gather_ms[:-1])[None, :] / 2 - gather_ms[:, None], 0.0)
        slower = misses * taken / (1.0 - taken) * row_ms
        return _rising((beyond + slower) * lasts)

    def _kv_work(
        self,
        asked: NDArray[np.float64],
        fixed: NDArray[np.float64],
        written: NDArray[np.float64],
        gather_ms: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Compute and look-ups of users not found while KV grows from split to split, beyond those of its last one."""
        lasts = _over(-np.diff(self.kv_bytes).astype(np.float64), (written[1:] + written[:-1]) / 2)
        between_fixed, between_asked = (fixed[1:] + fixed[:-1]) / 2, (asked[1:] + asked[:-1]) / 2
        lost = np.maximum(between_fixed[None, :] - fixed[:, None], 0.0)
        lost += np.maximum(between_asked[None, :] - asked[:, None], 0.0) * gather_ms[:, None]
        return _falling(lost * lasts)


def _over(amount: NDArray[np.float64], rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time that filling takes; none where nothing fills, since then nothing is missing either."""
    return np.divide(amount, rate, out=np.zeros(rate.shape), where=rate > 0)


def _rising(work: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum work (to, step) over the steps of each move upwards; return (from, to), zero for moves downwards."""
    splits = work.shape[0]
    sums = np.concatenate((np.zeros((splits, 1)), np.cumsum(work, axis=1)), axis=1)
    moved = sums[np.arange(splits), np.arange(splits)][:, None] - sums  # (to, from)
    out: NDArray[np.float64] = np.triu(moved.T)
    return out


def _falling(work: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum work (to, step) over the steps of each move downwards; return (from, to), zero for moves upwards."""
    splits = work.shape[0]
    sums = np.concatenate((np.zeros((splits, 1)), np.cumsum(work, axis=1)), axis=1)
    moved = sums - sums[np.arange(splits), np.arange(splits)][:, None]  # (to, from)
    out: NDArray[np.float64] = np.tril(moved.T)
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
