"""Popularity laws as tables: what the compiled loops draw rows from, and the curves of the rows that are not drawn.

A level cuts the ranks of a law into cells: one rank each where every row is simulated, else `one_in` ranks of which one stands
for all, behind a head of the most popular ranks that is left to a formula. Cells are drawn from an alias table (Walker 1977) over
bins one percent wide behind an exact head; within a bin all are alike.

The formula is Che's approximation (2002): an LRU cache holds what a window of the last W accesses touched, so a rank of
probability p is held with 1 - exp(-p W), and W follows from the capacity. A growing cache is a growing window, which makes resize
and refill exact in the same terms. Where drift replaces each rank q times an access, a rank is held with p / (p + q) times
(1 - exp(-(p + q) W)); to first order in q its misses are q ((1 - exp(-x)) - x exp(-x)) more per access of all, with x = p W.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.fleet import state
from simulator.fleet.config import Level
from simulator.fleet.ring import NEW_ROWS
from simulator.fleet.state import Laws
from simulator.request_log import RowLaw

SAMPLED_ONE_IN = {Level.EXACT: 1, Level.SAMPLED: 256, Level.SAMPLED_64: 64, Level.REDUCED: 1}
HEAD_RANKS = 4096
MOST_CELLS = 64_000_000
_EXACT_RANKS = 1 << 17
_MS_PER_HOUR = 3_600_000.0
_GRID = 384


@dataclass(frozen=True, kw_only=True)
class LawTables:
    """Laws of one log at one level.

    Attributes
    ----------
    laws : Laws
        What the loops read.
    one_in, head_ranks, cells : int
        Ranks of a cell, ranks left to the formula, cells of the largest catalogue and of the rows that drift brings in.
    bin_mass : tuple of float64[bins]
        Share of all accesses of a law that falls to each bin's simulated cells, counted at full weight (one in `one_in` of it
        is drawn).
    """

    laws: Laws
    one_in: int
    head_ranks: int
    cells: int
    bin_mass: tuple[NDArray[np.float64], ...]

    def cell_mass(self, law: int) -> NDArray[np.float64]:
        """Return the mass of each cell at its place in the cache (offset applied), float64[cells]."""
        bins = len(self.bin_mass[law])
        width = self.laws.width[law, :bins].astype(np.int64)
        spread = np.repeat(self.bin_mass[law] / width, width)
        out = np.zeros(self.cells)
        out[: len(spread)] = np.roll(spread, int(self.laws.ints[law, state.OFFSET]))
        return out


def law_tables(laws: Sequence[RowLaw], level: Level, *, head: bool) -> LawTables:
    """Return the tables of some laws.

    Parameters
    ----------
    head : bool
        Whether the level may leave the most popular ranks to the formula (SAMPLED, a single law, nobody wants samples).

    Raises
    ------
    ValueError
        When the catalogue has more rows than the level can hold in memory.
    """
    one_in = SAMPLED_ONE_IN[level]
    head_ranks = HEAD_RANKS if head and level is Level.SAMPLED and len(laws) == 1 else 0
    head_ranks = min(head_ranks, min(law.catalog_rows for law in laws) // 2)
    if level is Level.REDUCED:
        head_ranks = 0
    elif max(law.catalog_rows for law in laws) // one_in > MOST_CELLS:
        raise ValueError(f"level: {level} keeps {max(law.catalog_rows for law in laws)} rows in memory; take a sampled one")
    cut = [_cells_of(law, one_in=one_in, head_ranks=head_ranks) for law in laws]
    most = max(len(bins.low) for bins in cut)
    shape = (len(laws), most)
    columns: dict[str, NDArray[Any]] = {name: np.zeros(shape, dtype=kind) for name, kind in _COLUMNS.items()}
    ints, floats = np.zeros((len(laws), state.LAW_INTS), dtype=np.int64), np.zeros((len(laws), state.LAW_FLOATS))
    window = _windows(laws)
    curves = {name: np.zeros((len(laws), _GRID)) for name in ("cells", "rows", "miss", "loss", "lost")}
    groups: dict[tuple[int, int], int] = {}
    for number, (law, bins) in enumerate(zip(laws, cut, strict=True)):
        used = len(bins.low)
        alias_cut, alias_other = _alias(bins.mass)
        columns["cut"][number, :used], columns["other"][number, :used] = alias_cut, alias_other
        columns["low"][number, :used], columns["width"][number, :used] = bins.low, bins.width
        drifting = min(law.head_rows, law.catalog_rows // 2) if law.drift_percent_per_hour > 0.0 else 0
        ints[number, state.CELLS] = bins.cells
        ints[number, state.OFFSET] = law.offset % law.catalog_rows // one_in % bins.cells
        ints[number, state.DRIFT_CELLS] = max(0, min(drifting - head_ranks, law.catalog_rows // 2)) // one_in
        ints[number, state.BINS] = used
        ints[number, state.GROUP] = groups.setdefault((law.offset % law.catalog_rows, law.catalog_rows), len(groups))
        floats[number, state.SHARE] = float(bins.mass.sum()) / one_in
        floats[number, state.CELL_ROWS] = one_in
        floats[number, state.DRIFT_PER_MS] = law.drift_percent_per_hour / 100.0 / _MS_PER_HOUR
        for name, curve in _curves(law, bins, window, head_ranks=head_ranks, drifting=drifting, level=level).items():
            curves[name][number] = curve
    cells = int(ints[:, state.CELLS].max())
    for number in np.flatnonzero(ints[:, state.DRIFT_CELLS]).tolist():
        ints[number, state.NEW_FROM] = cells
        cells += NEW_ROWS * int(ints[number, state.DRIFT_CELLS])
    return LawTables(
        laws=Laws(
            ints=ints,
            floats=floats,
            cut=columns["cut"],
            other=columns["other"],
            low=columns["low"],
            width=columns["width"],
            window=window,
            cells=curves["cells"],
            rows=curves["rows"],
            miss=curves["miss"],
            loss=curves["loss"],
            lost=curves["lost"],
        ),
        one_in=one_in,
        head_ranks=head_ranks,
        cells=cells,
        bin_mass=tuple(bins.mass for bins in cut),
    )


_COLUMNS: dict[str, type[np.generic]] = {"cut": np.uint32, "other": np.int32, "low": np.int32, "width": np.int32}


@dataclass(frozen=True)
class _Bins:
    """Cells of a law in bins: first cell, number of cells, share of accesses at full weight; ranks of the bins."""

    cells: int
    low: NDArray[np.int64]
    width: NDArray[np.int64]
    mass: NDArray[np.float64]
    ranks: NDArray[np.float64]


def _cells_of(law: RowLaw, *, one_in: int, head_ranks: int) -> _Bins:
    cells = -(-(law.catalog_rows - head_ranks) // one_in)
    edges = _edges(min(cells, 4096 if one_in == 1 else 1024), cells)
    ranks = np.minimum(head_ranks + edges * one_in, law.catalog_rows)
    mass = np.diff(cumulative_share(law, ranks))
    return _Bins(cells=cells, low=edges[:-1], width=np.diff(edges), mass=mass, ranks=np.diff(ranks).astype(np.float64))


def _edges(singles: int, last: int) -> NDArray[np.int64]:
    """Return bin edges: one cell each at first, then each at most one percent above the one before."""
    edges = list(range(singles + 1))
    while edges[-1] < last:
        edges.append(min(last, edges[-1] + max(1, edges[-1] // 100)))
    return np.array(edges, dtype=np.int64)


def cumulative_share(law: RowLaw, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of accesses that falls to the most popular ranks, for each number of them; exact for the first 2**17."""
    exact = min(law.catalog_rows, _EXACT_RANKS)
    sums = np.concatenate(([0.0], np.cumsum(np.arange(1, exact + 1, dtype=np.float64) ** -law.exponent)))

    def primitive(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(x) if law.exponent == 1.0 else x ** (1.0 - law.exponent) / (1.0 - law.exponent)

    def total(n: NDArray[np.int64]) -> NDArray[np.float64]:
        # Beyond the exact ranks by the integral between half ranks, whose error there is far below 1e-9.
        beyond = np.maximum(n, exact).astype(np.float64) + 0.5
        return sums[np.minimum(n, exact)] + primitive(beyond) - primitive(np.array([exact + 0.5]))

    out: NDArray[np.float64] = total(np.asarray(ranks, dtype=np.int64)) / total(np.array([law.catalog_rows]))
    return out


def _alias(mass: NDArray[np.float64]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """Return thresholds (of 2**32) and alternatives of Walker's method."""
    count = len(mass)
    scaled = (mass / mass.sum() * count).tolist()
    cut, other = np.full(count, 0xFFFF_FFFF, dtype=np.uint32), np.arange(count, dtype=np.int32)
    small = [place for place in range(count) if scaled[place] < 1.0]
    large = [place for place in range(count) if scaled[place] >= 1.0]
    while small and large:
        less, more = small.pop(), large[-1]
        cut[less], other[less] = int(scaled[less] * 2.0**32), more
        scaled[more] -= 1.0 - scaled[less]
        if scaled[more] < 1.0:
            small.append(large.pop())
    return cut, other


def _windows(laws: Sequence[RowLaw]) -> NDArray[np.float64]:
    """Return window lengths in accesses from one to where even the least popular row has certainly been touched."""
    least = min(float(1.0 - cumulative_share(law, np.array([law.catalog_rows - 1]))[0]) for law in laws)
    longest = min(1e16, 30.0 / max(least, 1e-15))
    return np.concatenate(([0.0], np.geomspace(0.25, max(longest, 1e3), _GRID - 1)))


def _curves(
    law: RowLaw, bins: _Bins, window: NDArray[np.float64], *, head_ranks: int, drifting: int, level: Level
) -> dict[str, NDArray[np.float64]]:
    """Return the curves over window lengths: cells held, and what the formula says of the rows that it stands for."""
    if level is Level.EXACT:
        return {}
    cells = bins.width.astype(np.float64)
    out = {"cells": _held(bins.mass / bins.ranks, cells, window)}
    least, most = (0, law.catalog_rows) if level is Level.REDUCED else (0, head_ranks)
    if most == 0:
        return out
    edges = _edges(min(most, 4096), most) + least
    counts = np.diff(edges).astype(np.float64)
    each = np.diff(cumulative_share(law, edges)) / counts
    out["rows"] = _held(each, counts, window)
    out["miss"] = np.array([float((each * counts * np.exp(-each * w)).sum()) for w in window])
    inside = np.clip(drifting - edges[:-1], 0, counts)
    x = each[None, :] * window[:, None]
    out["loss"] = (inside * (-np.expm1(-x) - x * np.exp(-x))).sum(axis=1)
    out["lost"] = np.concatenate(([0.0], np.cumsum(np.diff(window) * (out["loss"][1:] + out["loss"][:-1]) / 2)))
    return out


def _held(each: NDArray[np.float64], counts: NDArray[np.float64], window: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([float((counts * -np.expm1(-each * w)).sum()) for w in window])
