"""Miss ratios over the length of the window that a cache remembers, for many instances at once.

A cache under LRU holds what was asked within the last T. Rows: independent references from the simulator's own popularity tables
(`simulator.fleet.laws`, reduced level: Che's approximation with drift). Users: renewal, a short and a long return with
log-logistic times and a share that never comes back (Denning's working set). All curves stand on one logarithmic grid of T, so a
change of rate is a shift along it, and the bytes held by a window follow from its misses: `C(T) = rate * integral_0^T miss(t)
dt`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numba
import numpy as np
from numpy.typing import NDArray

from simulator.fleet.config import Level
from simulator.fleet.laws import law_tables
from simulator.request_log import RowLaw

Floats = NDArray[np.float64]

POINTS = 96
LONGEST_MS = 1.0e7
STEP = math.log(LONGEST_MS) / (POINTS - 1)
WINDOW_MS: Floats = np.exp(STEP * np.arange(POINTS))
"""Lengths of window, from a millisecond to ten thousand seconds: the edges of the agents' estimators."""

_FEWEST_ACCESSES = 0.25
_MOST_ACCESSES = 1.0e14
_HOUR_MS = 3_600_000.0
_STEPS_MS = np.diff(WINDOW_MS)

EXPONENTS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.6)
CATALOGUES = (2_000_000, 20_000_000, 100_000_000, 400_000_000)
_HEAD_ROWS = 65_536


@dataclass(frozen=True)
class RowTables:
    """Misses of some popularity laws over the number of accesses in a window, float64[laws, points], log-spaced by `STEP`.

    `loss` is what drift adds, per replaced row and access.
    """

    laws: tuple[RowLaw, ...]
    miss: Floats
    loss: Floats


def row_tables(laws: Sequence[RowLaw] | None = None) -> RowTables:
    """Return the tables of the laws, by default every exponent with every catalogue (some seconds)."""
    laws = laws or [RowLaw(exponent=e, catalog_rows=rows) for rows in CATALOGUES for e in EXPONENTS]
    # Drift is applied by whoever knows the rate; the tables are asked for a drifting law only so that they contain its losses.
    drifting = [
        RowLaw(exponent=law.exponent, catalog_rows=law.catalog_rows, drift_percent_per_hour=1.0, head_rows=_HEAD_ROWS)
        for law in laws
    ]
    known = law_tables(drifting, Level.REDUCED, head=False).laws
    count = math.ceil(math.log(_MOST_ACCESSES / _FEWEST_ACCESSES) / STEP) + 1
    at = math.log(_FEWEST_ACCESSES) + STEP * np.arange(count)
    grid = np.log(known.window[1:])
    miss, loss = (np.array([np.interp(at, grid, row[1:]) for row in table]) for table in (known.miss, known.loss))
    return RowTables(tuple(laws), miss, loss)


def row_misses(tables: RowTables, law: NDArray[np.int64], accesses_per_ms: Floats, drift_percent_per_hour: Floats) -> Floats:
    """Return the miss ratio over `WINDOW_MS` of each instance, float64[n, POINTS], from law and pace float64[n]."""
    shift = np.log(np.maximum(accesses_per_ms, 1e-9) / _FEWEST_ACCESSES) / STEP
    first = np.floor(shift).astype(np.int64)
    part = (shift - first)[:, None]
    columns = np.clip(first[:, None] + np.arange(POINTS + 1), 0, tables.miss.shape[1] - 1)
    rows = law[:, None]
    miss, loss = tables.miss[rows, columns], tables.loss[rows, columns]
    replaced = drift_percent_per_hour / 100.0 / _HOUR_MS / np.maximum(accesses_per_ms, 1e-9)
    both = miss + replaced[:, None] * loss
    return np.asarray(np.clip(both[:, :-1] * (1.0 - part) + both[:, 1:] * part, 0.0, 1.0))


def user_misses(*, never: Floats, short: Floats, short_ms: Floats, long_ms: Floats, steepness: Floats) -> Floats:
    """Return the share of requests whose user was not there within each of `WINDOW_MS`, float64[n, POINTS].

    Parameters
    ----------
    never, short
        float64[n]: share of requests by users that do not come back; of the others, share that returns within the session.
    short_ms, long_ms, steepness
        Medians of both return times, and the exponent of their log-logistic laws.
    """
    log_t = np.log(WINDOW_MS)
    k = steepness[:, None]
    soon = 1.0 / (1.0 + np.exp(k * (log_t - np.log(short_ms)[:, None])))
    late = 1.0 / (1.0 + np.exp(k * (log_t - np.log(long_ms)[:, None])))
    share = short[:, None]
    gone = never[:, None]
    return np.asarray(gone + (1.0 - gone) * (share * soon + (1.0 - share) * late))


def held(misses_per_ms: Floats) -> Floats:
    """Return what each window holds, float64[n, POINTS]: the integral of the misses (in the unit asked for, per ms)."""
    out = np.empty_like(misses_per_ms)
    out[:, 0] = misses_per_ms[:, 0] * WINDOW_MS[0]
    np.cumsum(0.5 * (misses_per_ms[:, 1:] + misses_per_ms[:, :-1]) * _STEPS_MS, axis=1, out=out[:, 1:])
    out[:, 1:] += out[:, :1]
    return out


def of_an_age(misses: Floats, age_ms: Floats) -> tuple[Floats, Floats]:
    """Return misses of a crowd that exists since `age_ms` (float64[n]), and the part of them that has filled the cache.

    A window longer than the age hits no more than one of just that age, and holds no more.
    """
    young = age_ms[:, None] < WINDOW_MS[None, :]
    place = np.log(np.maximum(age_ms, 1.0)) / STEP
    last = np.minimum(place, POINTS - 1.0).astype(np.int64)
    at_age = np.where(age_ms > 0.0, misses[np.arange(len(misses)), last], 1.0)
    return np.where(young, at_age[:, None], misses), np.where(young, 0.0, misses)


def _at_rows(x: Any, y: Any, queries: Any, out: Any) -> None:
    points = x.shape[1]
    for i in range(queries.shape[0]):
        for j in range(queries.shape[1]):
            q = queries[i, j]
            low, high = 0, points - 1
            if q <= x[i, 0]:
                out[i, j] = y[i, 0]
                continue
            if q >= x[i, high]:
                out[i, j] = y[i, high]
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if x[i, middle] <= q:
                    low = middle
                else:
                    high = middle
            span = x[i, high] - x[i, low]
            part = (q - x[i, low]) / span if span > 0.0 else 0.0
            out[i, j] = y[i, low] + part * (y[i, high] - y[i, low])


_compiled = cast(Callable[..., None], numba.njit(cache=True, nogil=True)(_at_rows))


def at(x: Floats, y: Floats, queries: Floats) -> Floats:
    """Interpolate each row: y over rising x (float64[n, p]) at queries float64[n, m], flat beyond the ends, as `np.interp`."""
    out = np.empty_like(queries)
    _compiled(x, y, queries, out)
    return out


def window_of(held_by: Floats, share: Floats) -> Floats:
    """Return the length of the window (ms) that holds a share of usable, float64[n]; the longest where even that holds less."""
    steps = np.broadcast_to(STEP * np.arange(POINTS), held_by.shape)
    return np.asarray(np.exp(at(held_by, np.ascontiguousarray(steps), share[:, None])[:, 0]))


def held_at(held_by: Floats, window_ms: Floats) -> Floats:
    """Return what a window of each length (ms) holds, float64[n]."""
    return _over_windows(held_by, np.log(np.maximum(window_ms, 1.0))[:, None])[:, 0]


def _over_windows(values: Floats, log_windows: Floats) -> Floats:
    """Interpolate values on the grid of windows (linear in the logarithm), float64[n, m]."""
    place = np.clip(log_windows / STEP, 0.0, POINTS - 1.000001)
    low = place.astype(np.int64)
    part = place - low
    each = np.arange(len(values))[:, None]
    return np.asarray(values[each, low] * (1.0 - part) + values[each, low + 1] * part)
