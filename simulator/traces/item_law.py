"""The popularity law behind the items of an event log: Zipf exponent, size of the catalogue, drift of its head, and their errors.

Exponent and catalogue come from a likelihood (`item_likelihood.py`), drift from survival: ranks change hands at even intervals,
so of items that were frequent at one time a share that falls linearly is still there later, and its slope is the drift. Replays
draw the occurrences of an item independently; whether they were shows in the time between the first and the last of one that
came a few times.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.request_log import MOST_ROWS, RowLaw
from simulator.traces.item_likelihood import HEAD_ITEMS, SeenItems
from simulator.traces.item_sample import ItemCounts

ASSUMED_DRIFT_PERCENT_PER_HOUR = 2.0
LEAST_ITEMS = 200
LEAST_OCCURRENCES = 2_000
POOR_MISFIT = 0.06
POOR_CATALOG_FACTOR = 2.0
POOR_DRIFT_POINTS = 10.0
POOR_DRIFT_SHARE = 0.25
POOR_HEAD_PERCENT = 5.0
POOR_CLUSTERING = 0.1
_FREQUENT = 8
_LEAST_FREQUENT_ITEMS = 50
_MOST_REPLACED = 0.1
_GROUPS = 20
_MS_PER_HOUR = 3_600_000.0
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Share of the head that changes hands.

    Attributes
    ----------
    percent_per_hour, error : float
        Estimate (0 where none shows) and its standard error; infinite where the log cannot tell.
    bend : float
        How far survival is from a straight line, as a share.
    """

    percent_per_hour: float
    error: float
    bend: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ItemLaw:
    """A law that was fitted to items.

    Attributes
    ----------
    exponent, exponent_error : float
        Of the Zipf law, with its standard error.
    catalog_items, catalog_factor : float
        Size of the catalogue; the error is a factor: half and twice are one standard error away at 2.
    drift : Drift
    misfit : float
        Largest distance between expected and seen shares, 0..1.
    clustering : float or None
        How much nearer to each other the occurrences of a rare item are than by chance, 0..1; None where drift or a short log
        hides it.
    items, occurrences : int
        That were looked at: items in the sample, occurrences of all items.
    item_share, line_share : float
        Share of the items and of the lines that were looked at.
    hours : float
        From the first occurrence to the last.
    """

    exponent: float
    exponent_error: float
    catalog_items: float
    catalog_factor: float
    drift: Drift
    misfit: float
    clustering: float | None
    items: int
    occurrences: int
    item_share: float
    line_share: float
    hours: float

    def rows(self, rows_per_token: int) -> RowLaw:
        """Return the law of embedding rows, where an item has a row of its own in each of so many tables."""
        each = max(1, rows_per_token)
        known = np.isfinite(self.drift.error)
        return RowLaw(
            exponent=round(self.exponent, 4),
            catalog_rows=min(MOST_ROWS, max(1, round(self.catalog_items)) * each),
            drift_percent_per_hour=round(self.drift.percent_per_hour, 4) if known else ASSUMED_DRIFT_PERCENT_PER_HOUR,
            head_rows=HEAD_ITEMS * each,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values; null is an error that cannot be told."""
        known = np.isfinite(self.drift.error)
        return {
            "exponent": round(self.exponent, 4),
            "exponent_error": round(self.exponent_error, 4),
            "catalog_items": round(self.catalog_items),
            "catalog_factor": round(self.catalog_factor, 4),
            "drift_percent_per_hour": round(self.drift.percent_per_hour, 4) if known else None,
            "drift_error": round(self.drift.error, 4) if known else None,
            "misfit": round(self.misfit, 4),
            "clustering": round(self.clustering, 4) if self.clustering is not None else None,
            "items": self.items,
            "occurrences": self.occurrences,
            "item_share": self.item_share,
            "line_share": self.line_share,
            "words": self.words,
            "doubts": list(self.doubts),
        }

    @property
    def words(self) -> str:
        """The law in one line, for people."""
        drift = (
            f"{self.drift.percent_per_hour:.3g} +- {self.drift.error:.2g} % of the head replaced an hour"
            if np.isfinite(self.drift.error)
            else f"drift cannot be told, {ASSUMED_DRIFT_PERCENT_PER_HOUR:g} % an hour is assumed"
        )
        return (
            f"Zipf {self.exponent:.3f} +- {self.exponent_error:.2g} over {self.catalog_items:,.0f} items "
            f"({self._within}), {drift}; off by {self.misfit:.3f} at most"
        )

    @property
    def _drift_is_vague(self) -> bool:
        """Whether the error of the drift is large, and changes some of the head within the log."""
        large = max(POOR_DRIFT_POINTS, POOR_DRIFT_SHARE * self.drift.percent_per_hour)
        return self.drift.error > large and self.drift.error * self.hours > POOR_HEAD_PERCENT

    @property
    def _within(self) -> str:
        return f"within a factor of {self.catalog_factor:.3g}" if self.catalog_factor < 100.0 else "or any other number"

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the law may mislead."""
        out = []
        if self.misfit > POOR_MISFIT:
            out.append(
                f"popularity of the items is no Zipf law: shares are off by up to {self.misfit:.2f}, and EMB hits may be, too"
            )
        if self.clustering is not None and self.clustering > POOR_CLUSTERING:
            out.append(
                f"rare items come back sooner than by chance: within {100.0 - 100.0 * self.clustering:.0f} % of the time; replays"
                " draw them by chance, so your EMB caches hit more than these"
            )
        if self.catalog_factor > POOR_CATALOG_FACTOR:
            out.append(f"size of the catalogue: {self.catalog_items:,.0f} items, known {self._within} only; take a longer log")
        if not np.isfinite(self.drift.error):
            if self.hours >= 1.0:  # in less, no drift that one would assume matters
                assumed = f"{ASSUMED_DRIFT_PERCENT_PER_HOUR:g} % an hour is assumed"
                out.append(f"drift of the items cannot be told, because few of them are frequent: {assumed}")
        elif self._drift_is_vague:
            out.append(
                f"drift of the items: {self.drift.percent_per_hour:.3g} % an hour, known within {self.drift.error:.2g} points"
                " only; take a longer log"
            )
        elif self.drift.bend > POOR_MISFIT:
            out.append(f"items do not leave at an even pace: survival is off a line by {self.drift.bend:.2f}")
        return tuple(out)


def fit_items(sample: ItemCounts) -> ItemLaw | None:
    """Return the law behind a sample, None where there are too few items to fit one."""
    counts = sample.counts.sum(axis=1)
    counts = counts[counts > 0]
    if len(counts) < LEAST_ITEMS or counts.sum() < LEAST_OCCURRENCES:
        return None
    drift = drift_of(sample)
    replaced = drift.percent_per_hour / 100.0 * sample.span_ms / _MS_PER_HOUR
    seen = SeenItems(counts, item_share=sample.item_share, occurrences=sample.occurrences, replaced=replaced)
    (exponent, log_catalog), errors = seen.fitted()
    return ItemLaw(
        exponent=exponent,
        exponent_error=errors[0],
        catalog_items=float(np.exp(log_catalog)),
        catalog_factor=float(np.exp(min(errors[1], 50.0))),
        drift=drift,
        misfit=seen.misfit(exponent, log_catalog),
        clustering=clustering_of(sample) if replaced < _MOST_REPLACED else None,
        items=len(counts),
        occurrences=sample.occurrences,
        item_share=sample.item_share,
        line_share=sample.line_share,
        hours=sample.span_ms / _MS_PER_HOUR,
    )


def clustering_of(sample: ItemCounts) -> float | None:
    """Return how much nearer to each other than by chance items were seen that came two to seven times; None for a short log."""
    used = int(sample.span_ms // sample.stretch_ms) + 1
    counts = sample.counts[:, :used]
    often = counts.sum(axis=1)
    rare = (often >= 2) & (often < _FREQUENT)
    if used < 8 or rare.sum() < LEAST_ITEMS:
        return None
    before = np.cumsum(counts.sum(axis=0)) / counts.sum()
    by_chance = np.array([float(np.sum(1.0 - before**n - (1.0 - before) ** n)) for n in range(_FREQUENT)])
    there = counts[rare] > 0
    first, last = there.argmax(axis=1), used - 1 - there[:, ::-1].argmax(axis=1)
    return max(0.0, 1.0 - float((last - first).sum()) / float(by_chance[often[rare]].sum()))


def drift_of(sample: ItemCounts) -> Drift:
    """Return how fast the head changes hands; the error is that of a jackknife over items."""
    used = int(sample.span_ms // sample.stretch_ms) + 1
    counts = sample.counts[:, :used].astype(np.int64)
    stretch_ms = sample.stretch_ms
    while counts.shape[1] >= 8:
        frequent = counts >= _FREQUENT
        if frequent[:, : counts.shape[1] // 2].any(axis=1).sum() >= _LEAST_FREQUENT_ITEMS:
            return _survival(counts, frequent, stretch_ms)
        even = counts.shape[1] // 2 * 2
        counts, stretch_ms = counts[:, 0:even:2] + counts[:, 1:even:2], stretch_ms * 2.0
    return Drift(percent_per_hour=0.0, error=float("inf"))


def _survival(counts: NDArray[np.int64], frequent: NDArray[np.bool_], stretch_ms: float) -> Drift:
    """Slope of the share of frequent items that are seen again so many stretches later."""
    stretches = counts.shape[1]
    lags = np.arange(1, stretches // 2 + 1)
    group = np.arange(len(counts)) % _GROUPS
    asked, found = np.zeros((_GROUPS, len(lags))), np.zeros((_GROUPS, len(lags)))
    for place, lag in enumerate(lags):
        early, later = frequent[:, :-lag], counts[:, lag:] > 0
        asked[:, place] = np.bincount(group, weights=early.sum(axis=1), minlength=_GROUPS)
        found[:, place] = np.bincount(group, weights=(early & later).sum(axis=1), minlength=_GROUPS)
    whole, bend = _slope(lags, asked.sum(axis=0), found.sum(axis=0))
    without = [_slope(lags, asked.sum(axis=0) - asked[g], found.sum(axis=0) - found[g])[0] for g in range(_GROUPS)]
    error = float(np.sqrt((_GROUPS - 1) / _GROUPS * np.sum((np.array(without) - np.mean(without)) ** 2)))
    # nobody left: the error of a rate is that of one item leaving
    error = max(error, 1.0 / max(1.0, float(asked.max(axis=1).sum()) * len(lags)))
    per_hour = 100.0 * _MS_PER_HOUR / stretch_ms
    shown = whole if whole > 2.0 * error else 0.0
    return Drift(percent_per_hour=min(shown * per_hour, 100_000.0), error=error * per_hour, bend=bend)


def _slope(lags: NDArray[np.int64], asked: Numbers, found: Numbers) -> tuple[float, float]:
    """Return the fall of survival a stretch and how far it is from the line, over the lags at which a third is left."""
    share = found / np.maximum(asked, 1.0)
    gone = np.flatnonzero(share < 1.0 / 3.0)
    last = max(2, int(gone[0]) if len(gone) else len(lags))
    x, y, weight = lags[:last].astype(float), share[:last], np.maximum(asked[:last], 1.0)
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = float(np.sum(weight * (x - mean_x) ** 2))
    slope = float(np.sum(weight * (x - mean_x) * (y - mean_y))) / spread if spread > 0.0 else 0.0
    return -slope, float(np.max(np.abs(y - (mean_y + slope * (x - mean_x)))))
