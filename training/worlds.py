"""What an instance may have to serve: thousands of drawn worlds, each with a course of events.

A world has two crowds of requests with laws of their own for rows and users, and a share of the second one that follows the
regime: nothing (Steady), a slow exchange of one crowd for the other (Trend), or one burst: strangers, hot rows, long histories,
rows that nobody wanted before. Costs are scaled so that the least busy split has a drawn utilisation, overload included; most
worlds that are kept have their best split away from the bounds. Nothing here looks at a trace: ranges are wide, so that traces
lie inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from policies.allocation.anchor import CostColumns, predict_p99_ms
from simulator.fleet.config import FleetConfig
from training.curves import STEP, Floats, RowTables, at, held, row_misses, user_misses

Ints = NDArray[np.int64]
GIB = float(1 << 30)


class Regime(IntEnum):
    """What happens in a world's course."""

    STEADY = 0
    TREND = 1
    FLASH_CROWD = 2
    HOT_ROWS = 3
    LONG_HISTORIES = 4
    CATALOGUE_CHURN = 5


class Refill(IntEnum):
    """What happens to room that a growing EMB cache has won, as `simulator.fleet.config.RefillMode`."""

    LAZY = 0
    THROTTLED = 1
    BLOCKING = 2


REGIME_SHARES = (0.2, 0.3, 0.125, 0.125, 0.125, 0.125)
REFILL_SHARES = (0.3, 0.37, 0.33)
THROTTLE_SHARE = FleetConfig.refill_link_percent / 100.0
"""Share of the host link that a throttled refill takes: the default cap."""
STEPS = 240
"""Seconds of a course, one decision a second."""

_LONGEST_FILL_MS = 240_000.0
_SPLITS: Floats = np.linspace(0.05, 0.95, 46)


@dataclass
class Worlds:
    """n worlds; arrays are float64[n] unless they say otherwise, [n, 2] is per crowd, times are seconds of the course.

    Attributes
    ----------
    regime, refill : int64[n]
    law : int64[n, 2]
        Place of the row law in `RowTables`.
    drift, rows, tokens, tokens_cv2 : [n, 2]
        Percent of head rows replaced an hour; rows and history tokens per request, spread of the latter.
    never, short, short_ms, long_ms, steepness : [n, 2]
        As in `curves.user_misses`.
    starts : [n, 2]
        Since when rows and users of the crowd exist; minus infinity for always.
    peak, extra, begin, end
        Greatest share of the second crowd, requests that come on top (times the rate), and when.
    tide, tide_s, jitter
        Amplitude and period of slow change of the rate; deviation of its fast noise.
    arrival_per_s, usable_bytes, kv_token_bytes, row_bytes, link_bytes_per_ms
    ms_per_row, ms_per_token, rows_per_token, base_ms, variance_ms2
        True costs.
    noise, noise_s
        Deviation (logarithm of capacity) of the estimator's error and the time over which it lasts.
    cost_error : [n, 5]
        Factor between measured and true costs.
    p99_bias, p99_noise, p99_missing
        Logarithm of measured over true P99, its spread, and how often it is missing.
    volatility_scale
        How visible the error is in the curve's volatility.
    sample_rate
        Share of row accesses that the estimator sees.
    deadband, slew
        Guards, as shares of usable and per second.
    first_share
        EMB share at the start.
    """

    regime: Ints
    refill: Ints
    law: Ints
    drift: Floats
    rows: Floats
    tokens: Floats
    tokens_cv2: Floats
    never: Floats
    short: Floats
    short_ms: Floats
    long_ms: Floats
    steepness: Floats
    starts: Floats
    peak: Floats
    extra: Floats
    begin: Floats
    end: Floats
    tide: Floats
    tide_s: Floats
    jitter: Floats
    arrival_per_s: Floats
    usable_bytes: Floats
    kv_token_bytes: Floats
    row_bytes: Floats
    link_bytes_per_ms: Floats
    ms_per_row: Floats
    ms_per_token: Floats
    rows_per_token: Floats
    base_ms: Floats
    variance_ms2: Floats
    noise: Floats
    noise_s: Floats
    cost_error: Floats
    p99_bias: Floats
    p99_noise: Floats
    p99_missing: Floats
    volatility_scale: Floats
    sample_rate: Floats
    deadband: Floats
    slew: Floats
    first_share: Floats

    def __len__(self) -> int:
        return len(self.regime)

    def take(self, places: Ints | NDArray[np.bool_]) -> "Worlds":
        """Return copies of some of the worlds."""
        return Worlds(**{f.name: getattr(self, f.name)[places].copy() for f in fields(self)})

    def put(self, where: Ints, others: "Worlds") -> None:
        """Replace the worlds at some places."""
        for f in fields(self):
            getattr(self, f.name)[where] = getattr(others, f.name)

    def with_value(self, **values: float | int) -> "Worlds":
        """Return copies with some figures the same in all of them."""
        out = self.take(np.arange(len(self)))
        for name, value in values.items():
            getattr(out, name)[...] = value
        return out


def draw_worlds(
    count: int,
    tables: RowTables,
    rng: np.random.Generator,
    *,
    regimes: Sequence[Regime] | None = None,
    trivial_share: float = 0.15,
    load: tuple[float, float] | None = None,
) -> Worlds:
    """Draw worlds; at most about `trivial_share` of them have their best split at a bound.

    Parameters
    ----------
    regimes
        Those to draw from, evenly; all in the shares of the curriculum when absent.
    load
        Least and greatest utilisation of the least busy split at the start; as in the curriculum, overload included, when absent.
    """
    kept: list[Worlds] = []
    missing = count
    while missing > 0:
        drawn = _draw(max(256, 2 * missing), tables, rng, regimes)
        interior = _scale(drawn, tables, rng, load)
        good = np.flatnonzero(interior | (rng.random(len(drawn)) < trivial_share * 0.5))[:missing]
        kept.append(drawn.take(good))
        missing -= len(good)
    return joined(kept)


def joined(parts: Sequence[Worlds]) -> Worlds:
    """Return the worlds of all parts in one."""
    return Worlds(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Worlds)})


def _draw(n: int, tables: RowTables, rng: np.random.Generator, regimes: Sequence[Regime] | None) -> Worlds:
    pair = (n, 2)
    zeros = np.zeros(n)
    if regimes is None:
        regime = rng.choice(len(Regime), size=n, p=REGIME_SHARES)
    else:
        regime = rng.choice(np.array([int(r) for r in regimes]), size=n)
    noise = np.where(rng.random(n) < 0.35, rng.uniform(0.0, 0.1, n), _log_uniform(rng, 0.05, 1.0, n))
    worlds = Worlds(
        regime=regime.astype(np.int64),
        refill=rng.choice(3, size=n, p=REFILL_SHARES).astype(np.int64),
        law=rng.integers(len(tables.laws), size=pair),
        drift=_log_uniform(rng, 0.2, 40.0, pair),
        rows=_log_uniform(rng, 150.0, 8000.0, pair),
        tokens=_log_uniform(rng, 200.0, 12_000.0, pair),
        tokens_cv2=rng.uniform(0.1, 1.5, pair),
        never=rng.uniform(0.0, 0.5, pair),
        short=rng.uniform(0.1, 0.95, pair),
        short_ms=_log_uniform(rng, 1_500.0, 60_000.0, pair),
        long_ms=_log_uniform(rng, 60_000.0, 3_000_000.0, pair),
        steepness=rng.uniform(1.0, 2.5, pair),
        starts=np.full(pair, -np.inf),
        peak=zeros.copy(),
        extra=zeros.copy(),
        begin=zeros.copy(),
        end=np.full(n, float(STEPS)),
        tide=rng.uniform(0.0, 0.25, n),
        tide_s=_log_uniform(rng, 60.0, 900.0, n),
        jitter=rng.uniform(0.01, 0.15, n),
        arrival_per_s=_log_uniform(rng, 10.0, 500.0, n),
        usable_bytes=_log_uniform(rng, 4.0, 80.0, n) * GIB,
        kv_token_bytes=_log_uniform(rng, 1024.0, 16_384.0, n),
        row_bytes=rng.choice([256.0, 512.0, 1024.0], size=n),
        link_bytes_per_ms=zeros.copy(),
        ms_per_row=zeros.copy(),
        ms_per_token=zeros.copy(),
        rows_per_token=np.where(rng.random(n) < 0.25, 0.0, rng.uniform(0.2, 2.5, n)),
        base_ms=zeros.copy(),
        variance_ms2=zeros.copy(),
        noise=noise,
        noise_s=_log_uniform(rng, 1.0, 30.0, n),
        cost_error=np.exp(rng.normal(0.0, 0.08, (n, 5))),
        p99_bias=rng.normal(0.0, 0.4, n),
        p99_noise=rng.uniform(0.1, 0.6, n),
        p99_missing=np.where(rng.random(n) < 0.1, 1.0, rng.uniform(0.0, 0.05, n)),
        volatility_scale=np.exp(rng.normal(0.0, 0.3, n)),
        sample_rate=1.0 / rng.choice([16.0, 64.0, 256.0], size=n),
        deadband=rng.choice([0.0, 0.01, 0.02], size=n),
        slew=rng.choice([0.005, 0.01, 0.02, 0.04], size=n, p=[0.1, 0.2, 0.5, 0.2]),
        first_share=rng.uniform(0.05, 0.95, n),
    )
    worlds.link_bytes_per_ms[:] = worlds.usable_bytes / _log_uniform(rng, 1.5, 12.0, n) / 1000.0
    _plan(worlds, tables, rng)
    return worlds


_CROWD = ("law", "drift", "rows", "tokens", "tokens_cv2", "never", "short", "short_ms", "long_ms", "steepness")


def _plan(worlds: Worlds, tables: RowTables, rng: np.random.Generator) -> None:
    """Turn the second crowd, drawn as the first, into what the regime wants, and give it its time."""
    n = len(worlds)
    kind = worlds.regime
    slow = kind == Regime.TREND
    for name in _CROWD:
        column = getattr(worlds, name)
        column[~slow, 1] = column[~slow, 0]
    # The crowds of a trend differ, but serve the same product: histories and rows within a factor of five.
    worlds.tokens[slow, 1] = worlds.tokens[slow, 0] * _log_uniform(rng, 0.3, 3.0, n)[slow]
    worlds.rows[slow, 1] = worlds.rows[slow, 0] * _log_uniform(rng, 0.2, 5.0, n)[slow]
    length = rng.uniform(10.0, 60.0, n)
    begin = rng.uniform(20.0, STEPS - 70.0, n)
    burst = kind >= Regime.FLASH_CROWD
    worlds.begin[burst], worlds.end[burst] = begin[burst], (begin + length)[burst]
    worlds.starts[burst, 1] = begin[burst]
    flash, hot = kind == Regime.FLASH_CROWD, kind == Regime.HOT_ROWS
    long, churn = kind == Regime.LONG_HISTORIES, kind == Regime.CATALOGUE_CHURN
    worlds.extra[flash] = rng.uniform(0.2, 1.0, n)[flash]
    worlds.never[flash, 1] = rng.uniform(0.5, 0.95, n)[flash]
    worlds.extra[hot] = rng.uniform(0.1, 0.6, n)[hot]
    worlds.law[hot, 1] = _law_with(tables, 1.6)
    worlds.extra[long] = rng.uniform(0.05, 0.2, n)[long]
    worlds.tokens[long, 1] *= rng.uniform(2.0, 5.0, n)[long]
    worlds.peak[:] = worlds.extra / (1.0 + worlds.extra)
    worlds.peak[hot] = rng.uniform(0.3, 0.65, n)[hot]
    worlds.peak[slow | churn] = 1.0


def _law_with(tables: RowTables, exponent: float) -> int:
    return max(range(len(tables.laws)), key=lambda place: -abs(tables.laws[place].exponent - exponent))


def _scale(worlds: Worlds, tables: RowTables, rng: np.random.Generator, load: tuple[float, float] | None) -> NDArray[np.bool_]:
    """Set costs for a drawn utilisation, and say which worlds have their best split away from the bounds."""
    n = len(worlds)
    half = np.full((n, 1), 0.5)
    splits = np.repeat(_SPLITS[None, :], n, axis=0)
    pace = worlds.arrival_per_s / 1000.0
    kv_curve = user_misses(
        never=worlds.never[:, 0],
        short=worlds.short[:, 0],
        short_ms=worlds.short_ms[:, 0],
        long_ms=worlds.long_ms[:, 0],
        steepness=worlds.steepness[:, 0],
    )
    kv_bytes = held(kv_curve * (pace * worlds.tokens[:, 0] * worlds.kv_token_bytes / worlds.usable_bytes)[:, None])
    kv_half = at(kv_bytes, kv_curve, half)[:, 0]
    accesses = pace * (worlds.rows[:, 0] + worlds.rows_per_token * worlds.tokens[:, 0] * kv_half)
    emb_curve = row_misses(tables, worlds.law[:, 0], accesses, worlds.drift[:, 0])
    emb_bytes = held(emb_curve * (accesses * worlds.row_bytes / worlds.usable_bytes)[:, None])
    emb_half = at(emb_bytes, emb_curve, half)[:, 0]
    ratio = np.exp(rng.normal(0.0, 1.0, n))
    worlds.ms_per_row[:] = ratio / (accesses / pace * np.maximum(emb_half, 0.02))
    worlds.ms_per_token[:] = 1.0 / (worlds.tokens[:, 0] * np.maximum(kv_half, 0.02))
    idle_share = rng.uniform(0.03, 0.6, n)
    worlds.base_ms[:] = idle_share / (1.0 - idle_share) * (1.0 + ratio)
    emb, kv = at(emb_bytes, emb_curve, splits), at(kv_bytes, kv_curve, 1.0 - splits)
    lost = worlds.tokens[:, :1] * kv
    rows = worlds.rows[:, :1] + worlds.rows_per_token[:, None] * lost
    service = worlds.base_ms[:, None] + rows * emb * worlds.ms_per_row[:, None] + lost * worlds.ms_per_token[:, None]
    least = service.min(axis=1)
    kind = rng.random(n)
    utilisation = np.where(
        kind < 0.75, rng.uniform(0.3, 0.8, n), np.where(kind < 0.85, rng.uniform(0.1, 0.3, n), rng.uniform(0.8, 1.1, n))
    )
    if load is not None:
        utilisation = rng.uniform(*load, n)
    factor = utilisation / (pace * least)
    for cost in (worlds.ms_per_row, worlds.ms_per_token, worlds.base_ms):
        cost *= factor
    worlds.variance_ms2[:] = (rng.uniform(0.05, 0.75, n) * least * factor) ** 2
    p99 = predict_p99_ms(emb, kv, costs=_costs_of_first_crowd(worlds), kv_size_cv2=worlds.tokens_cv2[:, :1])
    best = p99.min(axis=1)
    # Where a cache takes long to fill, a move shows only after the course; a few of these are kept.
    early = int(np.log(_LONGEST_FILL_MS) / STEP)
    full = (np.minimum(emb_bytes[:, -1], 0.5) <= emb_bytes[:, early]) & (np.minimum(kv_bytes[:, -1], 0.5) <= kv_bytes[:, early])
    return np.asarray((p99[:, 0] > 1.04 * best) & (p99[:, -1] > 1.04 * best) & (full | (rng.random(n) < 0.1)))


def _costs_of_first_crowd(worlds: Worlds) -> CostColumns:
    return CostColumns(
        *(
            column.reshape(-1, 1)
            for column in (
                worlds.ms_per_row,
                worlds.ms_per_token,
                worlds.rows_per_token,
                worlds.base_ms,
                worlds.variance_ms2,
                worlds.arrival_per_s,
                worlds.rows[:, 0],
                worlds.tokens[:, 0],
            )
        )
    )


def second_share(worlds: Worlds, at_s: Floats) -> Floats:
    """Return the share of requests by the second crowd at a time of each course, float64[n]."""
    through = np.clip((at_s - worlds.begin) / (worlds.end - worlds.begin), 0.0, 1.0)
    stays = (worlds.regime == Regime.TREND) | (worlds.regime == Regime.CATALOGUE_CHURN)
    return np.asarray(worlds.peak * np.where(stays, through, _trapezoid(through)))


def rate_factor(worlds: Worlds, at_s: Floats) -> Floats:
    """Return what the mean rate is multiplied with at a time of each course, without the fast noise; float64[n]."""
    through = np.clip((at_s - worlds.begin) / (worlds.end - worlds.begin), 0.0, 1.0)
    tide = 1.0 + worlds.tide * np.sin(2.0 * np.pi * at_s / worlds.tide_s)
    return np.asarray(tide * (1.0 + worlds.extra * _trapezoid(through)))


def _trapezoid(through: Floats) -> Floats:
    """Rise for a fifth, stay, fall for a fifth: 0 at both ends."""
    return np.asarray(np.clip(5.0 * np.minimum(through, 1.0 - through), 0.0, 1.0))


def _log_uniform(rng: np.random.Generator, low: float, high: float, shape: int | tuple[int, ...]) -> Floats:
    return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), shape)))
