"""The anchor: the split whose predicted P99 is least, from the two miss-ratio curves and the measured costs.

Model: one server with Poisson arrivals (M/G/1). Service time is a base part plus missed rows plus, for a request whose
user is not resident, the whole history again. Mean and variance of the sojourn time follow from the first three moments
of service (Pollaczek-Khinchine for the mean wait, Takacs for its second moment). The 99th percentile is that of a gamma
distribution with the same two moments, fitted above the part every request has, or to the whole where that gives more
(few misses, little load). Against simulated queues it is within 7 % wherever misses or waiting make the tail.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.allocation.types import Bounds, Costs, Curve, EstimatorView

_Z99 = 2.3263478740408408
_SATURATION = 0.95  # beyond this utilisation the steady-state formula gives way to a line
_OVERLOAD_MS = 10_000.0  # delay per unit of utilisation beyond: the queue that ten seconds of it build up
_ALL_SEEN = 0.02  # share of accesses to keys not seen before at which the working set counts as known
INDIFFERENT = 0.002  # predicted P99 within this share of the best counts as equally good

MIN_SAMPLES = 100.0  # a miss ratio known to about five points; a stream of users has little more for a while after a turn
MAX_AGE_MS = 10_000.0
WARM_WINDOW_MS = 60_000.0


class CostColumns(NamedTuple):
    """The figures of `Costs` of n instances, each float64[n, 1], so that splits stand beside each other; same order."""

    ms_per_emb_miss_row: NDArray[np.float64]
    ms_per_kv_miss_token: NDArray[np.float64]
    emb_rows_per_kv_miss_token: NDArray[np.float64]
    base_service_ms: NDArray[np.float64]
    service_variance_ms2: NDArray[np.float64]
    arrival_per_s: NDArray[np.float64]
    emb_rows_per_request: NDArray[np.float64]
    kv_tokens_per_request: NDArray[np.float64]


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an estimate may move the split, and the figures behind the answer (worst of both curves)."""

    trusted: bool
    samples: float
    age_ms: float
    volatility: float


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one solve.

    Attributes
    ----------
    target_emb_bytes
        EMB bytes with the least predicted P99 (of equally good ones, the nearest to the current split).
    grid_emb_bytes, p99_ms
        The splits tried (int64[m], rising) and the predicted P99 at each (float64[m]).
    current_p99_ms, target_p99_ms
        Prediction at the split in force (nearest grid point) and at the target.
    """

    target_emb_bytes: int
    grid_emb_bytes: NDArray[np.int64]
    p99_ms: NDArray[np.float64]
    current_p99_ms: float
    target_p99_ms: float


def trust_of(view: EstimatorView, *, emb_bytes: int, kv_bytes: int) -> Trust:
    """Judge the two curves.

    A curve counts once it rests on enough recent samples, and once its window is long enough to have filled the cache it
    speaks about (or a minute or the estimator's own memory has passed, or next to nothing new turns up any more): before
    that, reuse that comes later still looks like no reuse at all.
    """
    if view.emb is None or view.kv is None:
        return Trust(trusted=False, samples=0.0, age_ms=math.inf, volatility=0.0)
    samples = min(view.emb.samples, view.kv.samples)
    age_ms = max(view.emb.age_ms, view.kv.age_ms)
    ripe = _ripe(view.emb, emb_bytes) and _ripe(view.kv, kv_bytes)
    return Trust(
        trusted=ripe and samples >= MIN_SAMPLES and age_ms <= MAX_AGE_MS,
        samples=samples,
        age_ms=age_ms,
        volatility=max(view.emb.volatility, view.kv.volatility),
    )


def _ripe(curve: Curve, capacity_bytes: int) -> bool:
    if curve.window_ms >= min(WARM_WINDOW_MS, curve.memory_ms) or float(curve.miss_ratio[-1]) <= _ALL_SEEN:
        return True
    return _seen_bytes(curve) >= capacity_bytes


def _seen_bytes(curve: Curve) -> float:
    """Capacity up to which the window has had time to see reuse: where the curve stops falling."""
    miss = curve.miss_ratio
    last = int(np.searchsorted(-miss, -float(miss[-1]), side="left"))
    return float(curve.capacity_bytes[last])


def split_grid(*, usable_bytes: int, granule_bytes: int, bounds: Bounds, step_percent: float = 1.0) -> NDArray[np.int64]:
    """Return the EMB sizes to try: whole granules inside the bounds, at least one granule for each side.

    Returns
    -------
    int64[m]
        Rising, without repeats; never empty (the nearest legal size stands in when the bounds hold no granule).

    Raises
    ------
    ValueError
        If the pool does not hold two granules, or the bounds are no range of percents.
    """
    if granule_bytes < 1 or usable_bytes < 2 * granule_bytes:
        raise ValueError("the pool must hold at least one granule for each side")
    low, high = bounds.min_emb_percent, bounds.max_emb_percent
    if not 0.0 <= low <= high <= 100.0:
        raise ValueError(f"bounds from {low:g} to {high:g} points are no range between 0 and 100")
    last = usable_bytes // granule_bytes - 1
    percent = low + step_percent * np.arange(int((high - low) / step_percent + 1e-9) + 1)
    granules = np.rint(percent * (usable_bytes / 100.0 / granule_bytes)).astype(np.int64)
    least = min(max(math.ceil(low * usable_bytes / 100.0 / granule_bytes - 1e-9), 1), last)
    most = max(min(math.floor(high * usable_bytes / 100.0 / granule_bytes + 1e-9), last), least)
    granules = np.minimum(np.maximum(granules, least), most)
    distinct = np.empty(len(granules), dtype=np.bool_)
    distinct[0] = True
    np.not_equal(granules[1:], granules[:-1], out=distinct[1:])
    return np.asarray(granules[distinct] * granule_bytes, dtype=np.int64)


def predict_p99_ms(
    emb_miss: NDArray[np.float64],
    kv_miss: NDArray[np.float64],
    *,
    costs: Costs | CostColumns,
    kv_size_cv2: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """Predict the P99 of time in system, in ms, for each pair of miss ratios.

    Parameters
    ----------
    emb_miss, kv_miss
        Miss ratios, float64[m] or float64[n, m] for n instances, 0..1.
    costs
        Measured costs and demand; of n instances in columns.
    kv_size_cv2
        Squared coefficient of variation of the history length of a request; of n instances float64[n, 1].

    Notes
    -----
    A request loses all of its history or nothing. Beyond 95 % utilisation the formula is evaluated at 95 % and a line
    rises with the excess, so that overload stays comparable: the prediction never falls when load or misses rise.
    """
    row_ms = costs.ms_per_emb_miss_row * emb_miss
    fixed = costs.base_service_ms + costs.emb_rows_per_request * row_ms
    token_ms = costs.ms_per_kv_miss_token + costs.emb_rows_per_kv_miss_token * row_ms
    spread = 1.0 + kv_size_cv2
    history = costs.kv_tokens_per_request * token_ms
    x1 = kv_miss * history
    x2 = x1 * history * spread
    x3 = x2 * history * (1.0 + 2.0 * kv_size_cv2)
    base_var = costs.service_variance_ms2
    s1 = np.maximum(fixed + x1, 1e-9)
    s2 = fixed * (fixed + 2.0 * x1) + x2 + base_var
    s3 = fixed * (fixed * (fixed + 3.0 * x1) + 3.0 * x2) + x3 + 3.0 * base_var * s1
    load = s1 * (costs.arrival_per_s / 1000.0)
    served = np.minimum(load, _SATURATION)
    per_ms_idle = served / (s1 * (1.0 - served))
    wait1 = 0.5 * per_ms_idle * s2
    wait2 = 2.0 * wait1 * wait1 + per_ms_idle * s3 / 3.0
    excess = np.maximum(x1 + wait1, 1e-9)  # mean time beyond the part that every request has
    wait_var = np.maximum(wait2 - wait1 * wait1, 0.0)
    deviation = np.sqrt(np.maximum(s2 - s1 * s1, 1e-12) + wait_var)
    tail = np.maximum(fixed + _gamma_p99(excess, deviation), _gamma_p99(fixed + excess, deviation))
    # No mixture of hits and misses is slower than a request that misses for certain.
    lost = np.maximum(history + wait1, 1e-9)
    tail = np.minimum(tail, fixed + _gamma_p99(lost, np.sqrt(kv_size_cv2 * history * history + base_var + wait_var)))
    return np.asarray(tail + _OVERLOAD_MS * (load - served), dtype=np.float64)


def _gamma_p99(mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    """99th percentile of the gamma distribution with this mean and standard deviation (Wilson and Hilferty 1931).

    Beyond the ratio where the formula turns down it stays level, so that more spread never predicts less.
    """
    ratio = np.minimum(deviation / mean, 1.5 * _Z99)
    root = 1.0 + ratio * (_Z99 / 3.0 - ratio / 9.0)
    return mean * root * root * root


def solve(
    emb: Curve,
    kv: Curve,
    costs: Costs,
    *,
    usable_bytes: int,
    granule_bytes: int,
    bounds: Bounds,
    current_emb_bytes: int,
) -> Anchor:
    """Find the split with the least predicted P99 on the grid of whole granules inside the bounds.

    Raises
    ------
    ValueError
        If the pool does not hold two granules.
    """
    grid = split_grid(usable_bytes=usable_bytes, granule_bytes=granule_bytes, bounds=bounds)
    sizes = grid.astype(np.float64)
    p99 = predict_p99_ms(emb.at(sizes), kv.at(usable_bytes - sizes), costs=costs, kv_size_cv2=kv.size_cv2)
    good = np.flatnonzero(p99 <= p99.min() * (1.0 + INDIFFERENT))
    distance = np.abs(grid - current_emb_bytes)
    best = int(good[distance[good].argmin()])
    return Anchor(
        target_emb_bytes=int(grid[best]),
        grid_emb_bytes=grid,
        p99_ms=p99,
        current_p99_ms=float(p99[int(distance.argmin())]),
        target_p99_ms=float(p99[best]),
    )
