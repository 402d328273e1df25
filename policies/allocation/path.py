"""The full path of a split decision for n instances at once: two curves, the anchor, the features, the network, the clamp.

What an agent evaluates for itself once a second, training and the operator evaluate for a thousand rows in one call. This is the
numpy reference; where the compiled core is built it takes its place, row by row the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.allocation import core
from policies.allocation.anchor import INDIFFERENT, CostColumns, predict_p99_ms, split_grid
from policies.allocation.base import act, clamp_points, out_of_distribution
from policies.allocation.core import Outcome
from policies.allocation.features import HERE, PROBE_OFFSETS, Situation, features
from policies.allocation.model_file import Origin, TrainedModel
from policies.allocation.types import Bounds, Curve

MAX_SPLITS = 101
"""Splits tried: one a point of usable inside the bounds (91 between 5 and 95)."""


class Figure(IntEnum):
    """Columns of `PathRows.figures`; units as in `policies.allocation.types`."""

    USABLE_BYTES = 0
    GRANULE_BYTES = 1
    CURRENT_EMB_BYTES = 2
    MIN_EMB_PERCENT = 3
    MAX_EMB_PERCENT = 4
    CLAMP_PERCENT = 5
    MS_PER_EMB_MISS_ROW = 6
    MS_PER_KV_MISS_TOKEN = 7
    EMB_ROWS_PER_KV_MISS_TOKEN = 8
    BASE_SERVICE_MS = 9
    SERVICE_VARIANCE_MS2 = 10
    ARRIVAL_PER_S = 11
    EMB_ROWS_PER_REQUEST = 12
    KV_TOKENS_PER_REQUEST = 13
    KV_SIZE_CV2 = 14
    SMOOTHED_EMB_BYTES = 15
    """The smoothed anchor before this decision; NaN takes the anchor as it is."""
    SMOOTHING = 16
    """Share of the way to the anchor that the smoothed one goes now, 0..1."""
    EMB_VOLATILITY = 17
    KV_VOLATILITY = 18
    EMB_SAMPLES = 19
    KV_SAMPLES = 20
    OBSERVED_P99_MS = 21
    UTILISATION = 22
    UTILISATION_SLOW = 23
    REFILL_BLOCKING = 24
    BACKLOG_BYTES = 25
    LAST_ACTION = 26


@dataclass(frozen=True, slots=True)
class PathRows:
    """Inputs of n instances.

    Attributes
    ----------
    emb_capacity_bytes, emb_miss_ratio : float64[n, p]
        Miss-ratio curve of the rows: capacities rising, misses falling.
    kv_capacity_bytes, kv_miss_ratio : float64[n, q]
        The same of the users.
    figures : float64[n, len(Figure)]
        All else, by column of `Figure`.
    """

    emb_capacity_bytes: NDArray[np.float64]
    emb_miss_ratio: NDArray[np.float64]
    kv_capacity_bytes: NDArray[np.float64]
    kv_miss_ratio: NDArray[np.float64]
    figures: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Guest:
    """What the model says of n instances.

    Attributes
    ----------
    features : float32[n, 31]
    outlier : int64[n]
        Index of the first feature outside what training saw, -1 for none.
    action : float64[n]
        Answer of the network, -1..1.
    emb_bytes : float64[n]
        The split it asks for, after bounds and clamp.
    clamped : bool[n]
        Whether the clamp changed it.
    p99_ms, smoothed_p99_ms : float64[n]
        Predicted P99 there, and at the smoothed anchor.
    """

    features: NDArray[np.float32]
    outlier: NDArray[np.int64]
    action: NDArray[np.float64]
    emb_bytes: NDArray[np.float64]
    clamped: NDArray[np.bool_]
    p99_ms: NDArray[np.float64]
    smoothed_p99_ms: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PathResults:
    """Outcome for n instances.

    Attributes
    ----------
    anchor_emb_bytes, anchor_p99_ms : float64[n]
        The split with the least predicted P99 (of equally good ones the nearest to the one in force), and that P99.
    smoothed_emb_bytes : float64[n]
        The smoothed anchor after this decision.
    current_p99_ms : float64[n]
        Predicted P99 at the split in force.
    guest : Guest or None
        None without a model.
    """

    anchor_emb_bytes: NDArray[np.float64]
    anchor_p99_ms: NDArray[np.float64]
    smoothed_emb_bytes: NDArray[np.float64]
    current_p99_ms: NDArray[np.float64]
    guest: Guest | None


_KERNEL = "c" if core.available() else "numpy"


def kernel() -> str:
    """What evaluates the path in this process; decisions made by one are replayed by the same."""
    return _KERNEL


def evaluate(rows: PathRows, model: TrainedModel | None) -> PathResults:
    """Evaluate the path for every row, compiled where it can be.

    Raises
    ------
    ValueError
        If a pool does not hold two granules.
    """
    made = core.evaluate(
        rows.emb_capacity_bytes, rows.emb_miss_ratio, rows.kv_capacity_bytes, rows.kv_miss_ratio, rows.figures, model
    )
    if made is None:
        return evaluate_numpy(rows, model)
    anchor, anchor_p99, smoothed, here, outlier, action, emb_bytes, clamped, p99, smoothed_p99 = made[0]
    if model is None:
        return PathResults(anchor, anchor_p99, smoothed, here, None)
    guest = Guest(made[1], outlier.astype(np.int64), action, emb_bytes, clamped != 0.0, p99, smoothed_p99)
    return PathResults(anchor, anchor_p99, smoothed, here, guest)


def evaluate_one_numpy(emb: Curve, kv: Curve, figures: Sequence[float], model: TrainedModel | None) -> Outcome:
    """Evaluate the path for one instance with numpy.

    Parameters
    ----------
    figures
        One row of `PathRows.figures`.

    Raises
    ------
    ValueError
        If the pool does not hold two granules.
    """
    row = PathRows(
        emb.capacity_bytes[None],
        emb.miss_ratio[None],
        kv.capacity_bytes[None],
        kv.miss_ratio[None],
        np.array([figures], dtype=np.float64),
    )
    found = evaluate_numpy(row, model)
    said = found.guest
    columns: list[NDArray[Any]] = [found.anchor_emb_bytes, found.anchor_p99_ms, found.smoothed_emb_bytes, found.current_p99_ms]
    if said is None:
        columns += [np.array([math.nan])] * (len(Outcome._fields) - len(columns))
    else:
        columns += [said.outlier, said.action, said.emb_bytes, said.clamped, said.p99_ms, said.smoothed_p99_ms]
    return Outcome(*(float(column[0]) for column in columns))


evaluate_one = core.bind(evaluate_one_numpy)
"""As `evaluate_one_numpy`, compiled where it can be, and then without arrays, which would take longer than the rest."""


def evaluate_numpy(rows: PathRows, model: TrainedModel | None) -> PathResults:
    """Evaluate the path for every row with numpy: the reference, and what decides where the core is missing or declines.

    Raises
    ------
    ValueError
        If a pool does not hold two granules.
    """
    f = rows.figures
    usable, current = f[:, Figure.USABLE_BYTES], f[:, Figure.CURRENT_EMB_BYTES]
    grid = _grids(f)
    low, high = np.minimum(grid[:, 0], current), np.maximum(grid[:, -1], current)
    probes = current[:, None] + usable[:, None] * np.array(PROBE_OFFSETS)
    probes = np.minimum(np.maximum(probes, low[:, None]), high[:, None])
    emb_miss, kv_miss, p99 = _predict(rows, np.concatenate((grid, probes), axis=1))
    tried, here = p99[:, :MAX_SPLITS], p99[:, MAX_SPLITS + HERE]
    best = _nearest_good(grid, tried, current)
    each = np.arange(len(f))
    anchor, anchor_p99 = grid[each, best], tried[each, best]
    before = f[:, Figure.SMOOTHED_EMB_BYTES]
    smoothed = np.where(np.isnan(before), anchor, before + (anchor - before) * f[:, Figure.SMOOTHING])
    guest = None
    if model is not None:
        situation = _situation(
            f,
            anchor=anchor,
            smoothed=smoothed,
            anchor_p99_ms=anchor_p99,
            probed=(emb_miss[:, MAX_SPLITS:], kv_miss[:, MAX_SPLITS:], p99[:, MAX_SPLITS:]),
        )
        guest = _ask(model, rows, features(situation), smoothed)
    return PathResults(anchor, anchor_p99, smoothed, here, guest)


def _ask(model: TrainedModel, rows: PathRows, x: NDArray[np.float32], smoothed: NDArray[np.float64]) -> Guest:
    """Let the model answer, and keep its answer inside bounds and clamp."""
    f = rows.figures
    usable = f[:, Figure.USABLE_BYTES]
    points = usable / 100.0
    action = act(model, x)
    origin = f[:, Figure.CURRENT_EMB_BYTES] if model.header.origin is Origin.SPLIT else smoothed
    low, high = f[:, Figure.MIN_EMB_PERCENT] * points, f[:, Figure.MAX_EMB_PERCENT] * points
    wanted = np.minimum(np.maximum(origin + action * model.max_step_percent * points, low), high)
    volatility = np.maximum(f[:, Figure.EMB_VOLATILITY], f[:, Figure.KV_VOLATILITY])
    width = clamp_points(f[:, Figure.CLAMP_PERCENT], volatility) * points
    emb_bytes = np.minimum(np.maximum(wanted, smoothed - width), smoothed + width)
    _, _, p99 = _predict(rows, np.stack((emb_bytes, smoothed), axis=1))
    return Guest(x, out_of_distribution(model, x), action, emb_bytes, emb_bytes != wanted, p99[:, 0], p99[:, 1])


def _predict(
    rows: PathRows, emb_bytes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Miss ratios of both caches and predicted P99 at each of the splits, all float64[n, m]."""
    f = rows.figures
    kv_bytes = f[:, Figure.USABLE_BYTES, None] - emb_bytes
    emb_miss, kv_miss = np.empty_like(emb_bytes), np.empty_like(emb_bytes)
    for i in range(len(f)):
        emb_miss[i] = np.interp(emb_bytes[i], rows.emb_capacity_bytes[i], rows.emb_miss_ratio[i])
        kv_miss[i] = np.interp(kv_bytes[i], rows.kv_capacity_bytes[i], rows.kv_miss_ratio[i])
    costs = CostColumns(*(f[:, column, None] for column in range(Figure.MS_PER_EMB_MISS_ROW, Figure.KV_SIZE_CV2)))
    p99 = predict_p99_ms(emb_miss, kv_miss, costs=costs, kv_size_cv2=f[:, Figure.KV_SIZE_CV2, None])
    return emb_miss, kv_miss, p99


def _grids(f: NDArray[np.float64]) -> NDArray[np.float64]:
    """Splits to try, float64[n, MAX_SPLITS]; where there are fewer, the last one stands repeated."""
    grids = np.empty((len(f), MAX_SPLITS))
    for i, row in enumerate(f):
        bounds = Bounds(min_emb_percent=row[Figure.MIN_EMB_PERCENT], max_emb_percent=row[Figure.MAX_EMB_PERCENT])
        sizes = split_grid(
            usable_bytes=int(row[Figure.USABLE_BYTES]), granule_bytes=int(row[Figure.GRANULE_BYTES]), bounds=bounds
        )
        grids[i, : len(sizes)] = sizes
        grids[i, len(sizes) :] = sizes[-1]
    return grids


def _nearest_good(grid: NDArray[np.float64], p99: NDArray[np.float64], current: NDArray[np.float64]) -> NDArray[np.intp]:
    """Index of the best split; of those whose P99 is equally good, the nearest to the one in force (the lower of two)."""
    good = p99 <= p99.min(axis=1, keepdims=True) * (1.0 + INDIFFERENT)
    return np.asarray(np.where(good, np.abs(grid - current[:, None]), math.inf).argmin(axis=1), dtype=np.intp)


def _situation(
    f: NDArray[np.float64],
    *,
    anchor: NDArray[np.float64],
    smoothed: NDArray[np.float64],
    anchor_p99_ms: NDArray[np.float64],
    probed: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
) -> Situation:
    usable = f[:, Figure.USABLE_BYTES]
    return Situation(
        emb_share=f[:, Figure.CURRENT_EMB_BYTES] / usable,
        anchor_share=anchor / usable,
        smoothed_anchor_share=smoothed / usable,
        anchor_p99_ms=anchor_p99_ms,
        probe_emb_miss=probed[0],
        probe_kv_miss=probed[1],
        probe_p99_ms=probed[2],
        ms_per_emb_miss_row=f[:, Figure.MS_PER_EMB_MISS_ROW],
        ms_per_kv_miss_token=f[:, Figure.MS_PER_KV_MISS_TOKEN],
        emb_rows_per_kv_miss_token=f[:, Figure.EMB_ROWS_PER_KV_MISS_TOKEN],
        base_service_ms=f[:, Figure.BASE_SERVICE_MS],
        service_variance_ms2=f[:, Figure.SERVICE_VARIANCE_MS2],
        arrival_per_s=f[:, Figure.ARRIVAL_PER_S],
        emb_rows_per_request=f[:, Figure.EMB_ROWS_PER_REQUEST],
        kv_tokens_per_request=f[:, Figure.KV_TOKENS_PER_REQUEST],
        kv_size_cv2=f[:, Figure.KV_SIZE_CV2],
        emb_volatility=f[:, Figure.EMB_VOLATILITY],
        kv_volatility=f[:, Figure.KV_VOLATILITY],
        emb_samples=f[:, Figure.EMB_SAMPLES],
        kv_samples=f[:, Figure.KV_SAMPLES],
        observed_p99_ms=f[:, Figure.OBSERVED_P99_MS],
        utilisation=f[:, Figure.UTILISATION],
        utilisation_slow=f[:, Figure.UTILISATION_SLOW],
        refill_blocking=f[:, Figure.REFILL_BLOCKING],
        backlog_share=f[:, Figure.BACKLOG_BYTES] / usable,
        last_action=f[:, Figure.LAST_ACTION],
    )
