"""Puts the parts of all instances together: a fleet's figures are counts added up, so they do not depend on who counted them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.oracle import lindley
from simulator.oracle.lindley import BINS, HALVES, SUMS
from simulator.oracle.windows import P99, Grid, Part

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """All parts of a log.

    Attributes
    ----------
    count : int64, shape (instances, windows)
    p99_ms : float64, shape (HALVES + 1, instances, windows, splits)
    sums : float64, shape (instances, windows, SUMS, splits)
    fleet_p99_ms : float64, shape (HALVES + 1, windows, splits)
    whole_p99_ms : float64, shape (splits,)
        Over all windows that count.
    oversized_splits : int
    """

    count: NDArray[np.int64]
    p99_ms: NDArray[np.float64]
    sums: NDArray[np.float64]
    fleet_p99_ms: NDArray[np.float64]
    whole_p99_ms: NDArray[np.float64]
    oversized_splits: int


def gather(
    chunks: Iterable[Sequence[Part]],
    grid: Grid,
    *,
    instances: int,
    counted: NDArray[np.bool_],
    lowest_bin: int,
    progress: Progress | None,
) -> Gathered:
    """Take the parts in, chunk by chunk, each with the parts of all groups."""
    shape = (instances, grid.windows)
    count = np.zeros(shape, dtype=np.int64)
    p99 = np.full((HALVES + 1, *shape, grid.splits), np.nan)
    sums = np.zeros((*shape, SUMS, grid.splits))
    fleet = np.full((HALVES + 1, grid.windows, grid.splits), np.nan)
    edges = lindley.bin_edges_ms(lowest_bin)
    whole = np.zeros((HALVES, grid.splits, BINS), dtype=np.uint32)
    whole_counts = np.zeros(HALVES, dtype=np.int64)
    oversized = 0
    for parts in chunks:
        first, width = parts[0].first_window, parts[0].count.shape[1]
        here = slice(first, first + width)
        for part in parts:
            rows = list(part.instances)
            count[rows, here] = part.count
            p99[:, rows, here], sums[rows, here] = part.p99_ms, part.sums
            oversized = max(oversized, part.oversized_splits)
        bottom, pooled = _together(parts)
        by_half = np.sum([part.by_half for part in parts], axis=0)
        for window in range(width):
            counts = (int(by_half[window, 0]), int(by_half[window, 1]))
            fleet[:, first + window] = lindley.quantiles(pooled[window], bottom, counts, edges, P99)
            if counted[first + window]:
                whole[:, :, bottom : bottom + pooled.shape[-1]] += pooled[window]
                whole_counts += by_half[window]
        if progress is not None:
            progress(first + width, grid.windows)
    return Gathered(
        count=count,
        p99_ms=p99,
        sums=sums,
        fleet_p99_ms=fleet,
        whole_p99_ms=lindley.quantiles(whole, 0, (int(whole_counts[0]), int(whole_counts[1])), edges, P99)[HALVES],
        oversized_splits=oversized,
    )


def _together(parts: Sequence[Part]) -> tuple[int, NDArray[np.uint32]]:
    """Return the lowest bin of all histograms, and their sum from there on."""
    if len(parts) == 1:
        return parts[0].bottom, parts[0].histogram
    bottom = min(part.bottom for part in parts)
    top = max(part.bottom + part.histogram.shape[-1] for part in parts)
    pooled = np.zeros((*parts[0].histogram.shape[:-1], top - bottom), dtype=np.uint32)
    for part in parts:
        pooled[..., part.bottom - bottom : part.bottom - bottom + part.histogram.shape[-1]] += part.histogram
    return bottom, pooled
