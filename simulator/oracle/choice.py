"""What figures by window and split say: the best split of each window, the best for all, a plan of moves, and the noise.

The objective is the mean of the windows' P99, weighted by their requests: it adds up over windows, so that a plan can be found.
A minimum over many noisy figures is too good to be true; the two halves of every window say by how much.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.oracle.moves import cheapest_plan

WARM_UP_FACTOR = 1.25
LEAST_SHARE = 0.005


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Splits for one instance, or for a fleet that moves as one; places in the list of splits, -1 in windows without requests.

    Attributes
    ----------
    best : int64, shape (windows,)
        Of each window, as if moves were free.
    planned : int64, shape (windows,)
        With moves paid for.
    static : int
        The best single split in hindsight.
    static_ms, best_ms, planned_ms : float
        The objective under each; NaN without requests.
    """

    best: NDArray[np.int64]
    planned: NDArray[np.int64]
    static: int
    static_ms: float
    best_ms: float
    planned_ms: float

    @property
    def gain_percent(self) -> float:
        """What free moves gain over the best single split, of its objective."""
        return 100.0 * (self.static_ms - self.best_ms) / self.static_ms

    @property
    def planned_gain_percent(self) -> float:
        """What paid moves gain over the best single split, of its objective."""
        return 100.0 * (self.static_ms - self.planned_ms) / self.static_ms


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """How far the choice on one half of each window's requests is from the choice on the other half, judged on that half.

    Attributes
    ----------
    regret_percent : float
        Mean of P99 at the split that the other half would have chosen, over P99 at the half's own best, less one. Halves have
        half the requests, so that whole windows are less noisy than this.
    optimism_percent : float
        How much better the best split of a half looks on the half that chose it than on the other.
    confirmed_gain_percent : float
        Gain of free moves over the best single split when both are chosen on one half and judged on the other.
    """

    regret_percent: float
    optimism_percent: float
    confirmed_gain_percent: float


def choose(
    p99_ms: NDArray[np.float64],
    count: NDArray[np.int64],
    counted: NDArray[np.bool_],
    penalty_of: Callable[[int], NDArray[np.float64]],
) -> Choice:
    """Choose splits from P99 by window and split; windows that do not count keep the split of the one before, or the first's.

    Parameters
    ----------
    p99_ms : float64, shape (windows, splits)
        NaN in windows without requests.
    count : int64, shape (windows,)
    counted : bool, shape (windows,)
    penalty_of : callable
        Window -> what a move at its beginning adds to its P99, shape (from, to).
    """
    windows = np.flatnonzero((count > 0) & counted)
    empty = np.full(len(count), -1, dtype=np.int64)
    if not len(windows):
        return Choice(best=empty, planned=empty, static=0, static_ms=np.nan, best_ms=np.nan, planned_ms=np.nan)
    cost, weight = p99_ms[windows], count[windows] / count[windows].sum()
    mean = weight @ cost
    static = int(np.argmin(mean))
    best = np.argmin(cost, axis=1)
    penalty = np.stack([penalty_of(int(window)) for window in windows])
    planned, planned_ms = cheapest_plan(cost, weight, penalty)
    # The same sums in other orders differ in their last bits.
    planned_ms = min(planned_ms, float(mean[static]))
    return Choice(
        best=_spread(best, windows, count),
        planned=_spread(planned, windows, count),
        static=static,
        static_ms=float(mean[static]),
        best_ms=min(float(weight @ cost.min(axis=1)), planned_ms),
        planned_ms=planned_ms,
    )


def noise_floor(halves_ms: NDArray[np.float64], count: NDArray[np.int64], counted: NDArray[np.bool_]) -> NoiseFloor:
    """Compare choices made on the halves of each window.

    Parameters
    ----------
    halves_ms : float64, shape (2, windows, splits)
    count : int64, shape (windows,)
    counted : bool, shape (windows,)
    """
    usable = (count > 0) & counted & np.isfinite(halves_ms).all(axis=(0, 2))
    if not usable.any():
        return NoiseFloor(regret_percent=np.nan, optimism_percent=np.nan, confirmed_gain_percent=np.nan)
    weight = count[usable] / count[usable].sum()
    regret, optimism, gain = [], [], []
    for mine, other in ((0, 1), (1, 0)):
        chosen_on, judged_on = halves_ms[mine, usable], halves_ms[other, usable]
        best = np.argmin(chosen_on, axis=1)
        judged = judged_on[np.arange(len(best)), best]
        regret.append(float(weight @ (judged / judged_on.min(axis=1) - 1.0)))
        optimism.append(float(weight @ (judged / chosen_on.min(axis=1) - 1.0)))
        static_ms = float(weight @ judged_on[:, int(np.argmin(weight @ chosen_on))])
        gain.append((static_ms - float(weight @ judged)) / static_ms)
    return NoiseFloor(
        regret_percent=50.0 * sum(regret),
        optimism_percent=50.0 * sum(optimism),
        confirmed_gain_percent=50.0 * sum(gain),
    )


def warm_up_windows(count: NDArray[np.int64], first_visits: NDArray[np.int64]) -> int:
    """Return how many leading windows see clearly more first visits of users than the last quarter of the log does.

    Parameters
    ----------
    count, first_visits : int64, shape (windows,)
        Of the fleet.
    """
    windows = len(count)
    tail = slice(windows - max(1, windows // 4), None)
    usual = first_visits[tail].sum() / max(1, count[tail].sum())
    share = np.divide(first_visits, count, out=np.zeros(windows), where=count > 0)
    settled = np.flatnonzero((share <= WARM_UP_FACTOR * usual + LEAST_SHARE) & (count > 0))
    return int(settled[0]) if len(settled) else windows


def _spread(chosen: NDArray[np.int64], windows: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    before = np.searchsorted(windows, np.arange(len(count)), side="right") - 1
    return np.where(count > 0, chosen[np.maximum(before, 0)], -1)
