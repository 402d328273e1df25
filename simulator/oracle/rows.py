"""Miss ratios of the EMB cache at every split, from the laws by which rows are drawn: Che's approximation, extended twice.

Under independent draws a row is in an LRU cache when it was drawn within the last T accesses, where T is how far back the cache
reaches: the expected number of rows drawn since fills it (Che et al. 2002). Laws that follow one another are handled by counting
how often each law drew within the last T accesses; a drifting head by the chance that the row at a rank is not the one that was
there before. No sample of rows is drawn, so the curves carry no noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.core.popularity import zipf_norm
from simulator.request_log import RowLaw

EXACT_RANKS = 256
GROWTH = 1.015
GRID = 64
FAR = 1e15
HOUR_MS = 3_600_000.0


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The catalogue cut where popularity changes under any of the laws.

    Attributes
    ----------
    rows : float64, shape (pieces,)
        Rows in each piece.
    probability : float64, shape (pieces, laws)
        Chance that one draw of a law takes one given row of the piece.
    takeover_per_ms : float64, shape (pieces,)
        Rate at which another row takes the rank of one of them.
    """

    rows: NDArray[np.float64]
    probability: NDArray[np.float64]
    takeover_per_ms: NDArray[np.float64]


def pieces_of(laws: Sequence[RowLaw]) -> Pieces:
    """Cut the catalogues of some laws into pieces of nearly equal popularity: single ranks first, then 1.5 % of the rank."""
    cuts = {0}
    for law in laws:
        edges = rank_edges(law.catalog_rows, min(law.head_rows, law.catalog_rows // 2))
        cuts.update(((edges[:-1] + law.offset) % law.catalog_rows).tolist())
        cuts.add(law.catalog_rows)
    edge = np.array(sorted(cuts), dtype=np.int64)
    start, stop = edge[:-1], edge[1:]
    probability = np.zeros((len(start), len(laws)))
    takeover = np.zeros(len(start))
    for column, law in enumerate(laws):
        inside = start < law.catalog_rows
        rank = np.where(inside, (start - law.offset) % law.catalog_rows, 0)
        mass = zipf_mass(rank, rank + (stop - start), law.exponent) / zipf_norm(law.exponent, law.catalog_rows)
        probability[:, column] = np.where(inside, mass / (stop - start), 0.0)
        moving = inside & (rank < min(law.head_rows, law.catalog_rows // 2))
        takeover = np.maximum(takeover, np.where(moving, law.drift_percent_per_hour / 100.0 / HOUR_MS, 0.0))
    return Pieces(rows=(stop - start).astype(np.float64), probability=probability, takeover_per_ms=takeover)


def rank_edges(catalog_rows: int, head_rows: int) -> NDArray[np.int64]:
    """Return rising ranks from 0 to the catalogue's size, with an edge where drift ends."""
    edges = list(range(min(EXACT_RANKS, catalog_rows) + 1))
    while edges[-1] < catalog_rows:
        edges.append(min(catalog_rows, max(edges[-1] + 1, int(edges[-1] * GROWTH))))
    return np.unique(np.array([*edges, min(head_rows, catalog_rows)], dtype=np.int64))


def zipf_mass(first: NDArray[np.int64], last: NDArray[np.int64], exponent: float) -> NDArray[np.float64]:
    """Return the sum of (rank + 1)**-exponent over ranks first..last-1 of each pair: one term exactly, more by the integral."""
    single = (first + 1.0) ** -exponent
    low, high = first + 0.5, last + 0.5
    power = 1.0 - exponent
    binned = np.log(high / low) if power == 0.0 else (high**power - low**power) / power
    out: NDArray[np.float64] = np.where(last - first == 1, single, binned)
    return out


def miss_ratios(
    laws: Sequence[RowLaw],
    *,
    edge_ms: NDArray[np.float64],
    asked: NDArray[np.float64],
    capacity_rows: NDArray[np.float64],
    before: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the chance that a look-up misses, by step of time, law and capacity.

    Parameters
    ----------
    edge_ms : float64, shape (steps + 1,)
        Edges of the steps of time. Drift begins at time 0.
    asked : float64, shape (steps, laws)
        Rows looked up in each step under each law.
    capacity_rows : float64, shape (capacities,)
        Rising.
    before : float64, shape (laws,)
        Share of each law in what was looked up before the first step, at the pace of the first step that has any.

    Returns
    -------
    float64, shape (steps, laws, capacities)
        One for laws that neither draw in a step nor drew within reach of the largest cache.
    """
    steps = len(asked)
    out = np.ones((*asked.shape, len(capacity_rows)))
    used = np.flatnonzero(asked.sum(axis=1) > 0)
    if not len(used):
        return out
    drawn = np.concatenate((np.zeros((1, len(laws))), np.cumsum(asked, axis=0)))
    pace_ms = (edge_ms[used[0] + 1] - edge_ms[used[0]]) / asked[used[0]].sum()
    same = np.count_nonzero(asked.sum(axis=0) + before) == 1 and all(not law.drift_percent_per_hour for law in laws)
    cut: dict[tuple[int, ...], Pieces] = {}
    reach = 2.0 * float(capacity_rows[-1])
    for step in [0] if same else range(steps):
        # In the middle of the step.
        now, now_ms = (drawn[step] + drawn[step + 1]) / 2, (edge_ms[step] + edge_ms[step + 1]) / 2
        clock = _Clock(drawn=drawn, edge_ms=edge_ms, before=before, pace_ms=pace_ms, now=now, now_ms=now_ms)
        while True:
            # Only laws that drew within reach have rows in the cache; the others would cost time and change nothing.
            chosen = np.flatnonzero((clock.back(np.array([reach]))[0][0] > 0) | (asked[step] > 0))
            number = tuple(chosen.tolist())
            if number not in cut:
                cut[number] = pieces_of([laws[place] for place in number])
            ratios, needed = _at(cut[number], clock, chosen, capacity_rows, reach)
            if needed <= reach or reach > FAR:
                break
            reach *= 4.0
        out[step, chosen] = ratios
        reach = max(2.0 * float(capacity_rows[-1]), 2.0 * needed)
    if same:
        out[:] = out[0]
    return out


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """How often each law drew, and how long ago, as a function of the number of accesses looked back."""

    drawn: NDArray[np.float64]
    edge_ms: NDArray[np.float64]
    before: NDArray[np.float64]
    pace_ms: float
    now: NDArray[np.float64]
    now_ms: float

    def back(self, accesses: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return draws by law, shape (grid, laws), and milliseconds, shape (grid,)."""
        position = self.now.sum() - accesses
        inside = np.maximum(position, 0.0)
        early = np.minimum(position, 0.0)
        total = self.drawn.sum(axis=1)
        draws = np.stack([self.now[law] - np.interp(inside, total, self.drawn[:, law]) for law in range(len(self.now))], axis=1)
        age = self.now_ms - np.interp(inside, total, self.edge_ms)
        return draws - early[:, None] * self.before, age - early * self.pace_ms


def _at(
    pieces: Pieces, clock: _Clock, laws: NDArray[np.int64], capacity_rows: NDArray[np.float64], reach: float
) -> tuple[NDArray[np.float64], float]:
    """Return miss ratios, shape (laws, capacities), at one moment, and how far back the largest cache reaches.

    That is above `reach` when not even `reach` accesses fill it; a cache that holds the whole catalogue reaches back for ever.
    """
    low = max(1.0, float(capacity_rows[0]) / 4.0)
    while low > 1.0 and _look(pieces, clock, laws, np.array([low]))[0][0] > capacity_rows[0]:
        low /= 4.0
    grid = np.geomspace(low, reach, GRID)
    held, missed = _look(pieces, clock, laws, grid)
    held = np.maximum.accumulate(held)
    full = int(np.searchsorted(held, capacity_rows[-1]))
    back = np.interp(capacity_rows, held, np.log(grid))
    ratios = np.stack([np.interp(back, np.log(grid), missed[:, law]) for law in range(len(laws))])
    if full < GRID:
        return ratios, float(grid[full])
    return ratios, reach * 2.0


def _look(
    pieces: Pieces, clock: _Clock, laws: NDArray[np.int64], accesses: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    draws, age_ms = clock.back(accesses)
    own = np.ascontiguousarray(draws[:, laws])
    return _survey(pieces.rows, pieces.probability, pieces.takeover_per_ms, own, age_ms, clock.now_ms)


@compiled
def _survey(
    rows: NDArray[np.float64],
    probability: NDArray[np.float64],
    takeover_per_ms: NDArray[np.float64],
    draws: NDArray[np.float64],
    age_ms: NDArray[np.float64],
    now_ms: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rows held, and miss ratio by law, of a cache that reaches back by `draws` and `age_ms` (first axis: the grid)."""
    laws = probability.shape[1]
    held = np.zeros(len(age_ms))
    missed = np.zeros((len(age_ms), laws))
    for place in range(len(age_ms)):
        for piece in range(len(rows)):
            x = 0.0
            for law in range(laws):
                x += probability[piece, law] * draws[place, law]
            found, left = -math.expm1(-x), 0.0
            if takeover_per_ms[piece] > 0.0 and x > 0.0:
                since = min(age_ms[place], now_ms)
                found, left = _drifted(x, takeover_per_ms[piece] * since, since / age_ms[place])
            held[place] += rows[piece] * (found + left)
            for law in range(laws):
                missed[place, law] += rows[piece] * probability[piece, law] * (1.0 - found)
    return held, missed


@compiled
def _drifted(x: float, takeovers: float, share: float) -> tuple[float, float]:
    """Return the chance that the row now at a rank is held, and how many rows that were there before are held besides.

    Ranks change hands at even intervals, each at times of its own; a new row takes over.

    Parameters
    ----------
    x : float
        Draws of the rank that are expected within reach.
    takeovers, share : float
        Takeovers within reach, and the share of that time since drift began.
    """
    if takeovers <= 1.0:
        # Replaced at some moment since drift began, a rank's old row was drawn before that moment and the new one after it.
        part = x * share
        new = takeovers * (1.0 - _mean_exp(part))
        return new - (1.0 - takeovers) * math.expm1(-x), takeovers * (1.0 - math.exp(part - x) * _mean_exp(part))
    life = x * share / takeovers
    partly = 1.0 - _mean_exp(life)
    return partly, partly - (takeovers - 1.0) * math.expm1(-life)


@compiled
def _mean_exp(x: float) -> float:
    """Return the mean of e^-u for u from 0 to x."""
    return -math.expm1(-x) / x if x > 1e-9 else 1.0 - x / 2
