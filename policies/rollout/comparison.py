"""How much worse the canaries do than the others since the change, and how sure that is.

Each reporting window of ten seconds gives one number: the mean log P99 of the canaries less that of the controls (or, for the
share of bad requests, the difference in points). What hits all instances alike, a busy hour or a burst, falls out of it.
Instances differ even without a change, so each is first measured against its own mean before the change (difference in
differences). What is left wanders slowly, so windows are worth less than their number: with lag-1 autocorrelation r, n of them
count as n (1 - r) / (1 + r).

Harm is looked for after every window, so its bound has to hold at all windows together: it is the one-sided normal-mixture
confidence sequence (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021; with an estimated variance Waudby-Smith, Arbour,
Sinha, Kennedy and Ramdas 2024). Looking often is paid for by a wider bound, and it may be looked for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

HARM_ERROR = 0.015
"""One-sided error of the sequence of looks for one figure. With `BASELINE_ERROR` and two figures: 5 % for a whole rollout."""
BASELINE_ERROR = 0.01
"""One-sided error granted to what is not known of the time before the change, for one figure."""
PLANNED_ERROR = 0.05
"""One-sided error of the planned looks at the end of a soak, at which a change passes."""
_TUNED_FOR = 15.0  # effective windows at which the sequence is tightest
_LARGEST_RHO = 0.9

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What the difference of the two groups does by itself: how many windows were seen, their standard deviation, their lag-1
    autocorrelation."""

    windows: int
    sd: float
    rho: float

    @property
    def worth(self) -> float:
        """Independent windows that these are worth, at least one."""
        return worth(self.windows, self.rho)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the change did to one figure; above 0 is worse. Log ratio for a P99, points for a share.

    Attributes
    ----------
    mean
        Best estimate.
    surely
        The figure got worse by at least this much, at all looks together (`HARM_ERROR` + `BASELINE_ERROR`).
    likely
        The same for one look (`PLANNED_ERROR`).
    at_most
        It got worse by no more than this, for one look (`PLANNED_ERROR`).
    surely_at_most
        The same at all looks together.
    windows
        Windows since the change.
    """

    mean: float
    surely: float
    likely: float
    at_most: float
    surely_at_most: float
    windows: int


def worth(windows: int, rho: float) -> float:
    """Independent windows that so many with this lag-1 autocorrelation are worth."""
    return max(1.0, windows * (1.0 - rho) / (1.0 + rho))


def group_series(canaries: Series, controls: Series) -> Series:
    """Difference of the group means by window, shape (windows,); NaN where less than half of a group was heard.

    Parameters
    ----------
    canaries, controls
        Shape (instances, windows), each instance less its own mean before the change; NaN where nothing was measured. Without
        controls the canaries are compared with themselves.
    """
    difference = _mean_of(canaries)
    return difference if controls.shape[0] == 0 else difference - _mean_of(controls)


def noise_of(series: Series) -> Noise:
    """The noise of a series before the change; NaNs are gaps."""
    seen = series[np.isfinite(series)]
    if seen.size < 2:
        return Noise(windows=int(seen.size), sd=0.0, rho=0.0)
    return Noise(windows=int(seen.size), sd=float(seen.std(ddof=1)), rho=_lag_one(series - seen.mean()))


def change_of(before: Noise, after: Series) -> Change | None:
    """Compare the windows since the change with those before, whose mean is 0 by construction; None without windows enough.

    Parameters
    ----------
    before
        Noise of the series before the change.
    after
        The series since the change; NaNs are gaps.
    """
    seen = after[np.isfinite(after)]
    if seen.size < 2 or before.windows < 2:
        return None
    count, mean = int(seen.size), float(seen.mean())
    own = noise_of(after)
    rho = (before.windows * before.rho + count * own.rho) / (before.windows + count)
    freedom = (before.windows - 1) * before.sd**2 + (count - 1) * own.sd**2
    sd = max(math.sqrt(freedom / (before.windows + count - 2)), own.sd)
    now, then = worth(count, rho), worth(before.windows, rho)
    dof = max(2.0, now + then - 2.0)
    base = before.sd / math.sqrt(then)
    heavy = student(1.0 - HARM_ERROR, dof) / student(1.0 - HARM_ERROR, math.inf)
    always = sd * heavy * _sequence(now, HARM_ERROR) + student(1.0 - BASELINE_ERROR, max(2.0, then - 1.0)) * base
    once = student(1.0 - PLANNED_ERROR, dof) * math.hypot(sd / math.sqrt(now), base)
    return Change(
        mean=mean, surely=mean - always, likely=mean - once, at_most=mean + once, surely_at_most=mean + always, windows=count
    )


def student(probability: float, dof: float) -> float:
    """Quantile of Student's t for a probability of at least a half (Hill 1970, the expansion around the normal quantile)."""
    z = NormalDist().inv_cdf(probability)
    if math.isinf(dof):
        return z
    g1 = (z**3 + z) / 4.0
    g2 = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    g3 = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + g1 / dof + g2 / dof**2 + g3 / dof**3


def _sequence(count: float, error: float) -> float:
    """Half width of the confidence sequence after so many windows, for a standard deviation of 1."""
    tail = -2.0 * math.log(error)
    rho2 = (tail + math.log(tail) + 1.0) / _TUNED_FOR
    spread = count * rho2 + 1.0
    return math.sqrt(2.0 * spread / (count * count * rho2) * math.log1p(math.sqrt(spread) / (2.0 * error)))


def _mean_of(group: Series) -> Series:
    """Mean over the instances that were heard, where they are at least half."""
    heard = np.isfinite(group)
    counts = heard.sum(axis=0)
    sums = np.where(heard, group, 0.0).sum(axis=0)
    enough = (counts > 0) & (2 * counts >= group.shape[0])
    return np.where(enough, sums / np.maximum(counts, 1), np.nan)


def _lag_one(centred: Series) -> float:
    """Lag-1 autocorrelation over neighbours that were both measured, with the bias of short series taken out; 0..0.9."""
    first, second = centred[:-1], centred[1:]
    both = np.isfinite(first) & np.isfinite(second)
    count, power = int(both.sum()), float(np.nanmean(centred**2))
    if count < 4 or power <= 0.0:
        return 0.0
    rho = float((first[both] * second[both]).mean() / power)
    return min(_LARGEST_RHO, max(0.0, rho + (1.0 + 3.0 * rho) / count))
