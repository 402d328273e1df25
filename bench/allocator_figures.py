"""Statistics of the allocation study: means over episodes beside their bootstrap intervals, and the goals.

P99 of an episode is the mean of its windows' P99s, weighted by requests, which is what the oracle minimises; that of its requests
all together stands beside it. Everything is paired: an interval is of the differences within episodes, resampled over episodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.allocator_runs import Figures
from bench.allocator_site import START_UP_S, WINDOW_S

RESAMPLED = 10_000
LEVEL = 95.0
Floats = NDArray[np.float64]
#: Figures of every row of one episode.
Episode = Mapping[str, Figures]


@dataclass(frozen=True)
class Interval:
    """A mean over episodes, and where it lies with 95 percent by resampling them."""

    value: float
    low: float
    high: float

    def plain(self) -> list[float]:
        return [_round(self.value), _round(self.low), _round(self.high)]


def interval(values: Floats, *, seed: int = 0) -> Interval:
    """Return mean and bootstrap interval of one figure an episode."""
    means = values[_chosen(len(values), seed)].mean(axis=1)
    return Interval(float(values.mean()), *_ends(means))


def share(gains: Floats, possible: Floats, *, seed: int = 0) -> Interval | None:
    """Return what share of the possible gain was had, in percent: a ratio of means, resampled together.

    None where the possible gain cannot be told from nothing: then a share of it says nothing either.
    """
    if interval(possible, seed=seed).low <= 0.0:
        return None
    chosen = _chosen(len(gains), seed)
    means, most = gains[chosen].mean(axis=1), possible[chosen].mean(axis=1)
    ratios = 100.0 * np.divide(means, most, out=np.full_like(means, np.nan), where=most != 0.0)
    return Interval(100.0 * float(gains.mean() / possible.mean()), *_ends(ratios))


def _chosen(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(count, size=(RESAMPLED, count))


def _ends(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values[np.isfinite(values)], [50.0 - LEVEL / 2, 50.0 + LEVEL / 2])
    return float(low), float(high)


def column(episodes: Sequence[Episode], key: str, figure: str) -> Floats:
    """Return one figure of one row in every episode."""
    return np.array([episode[key][figure] for episode in episodes], dtype=np.float64)


def above(episodes: Sequence[Episode], key: str, other: str, figure: str = "p99Ms") -> Floats:
    """Return by how many percent a row's figure is above another row's, by episode."""
    return 100.0 * (column(episodes, key, figure) / column(episodes, other, figure) - 1.0)


def table(episodes: Sequence[Episode], keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the row of every key: figures of P50, P99, SLO, regret, gain, share, distance, bytes and worst episode."""
    possible = -above(episodes, "oracle", "static-best")
    out: dict[str, dict[str, Any]] = {}
    for key in keys:
        regret, gain = above(episodes, key, "oracle"), -above(episodes, key, "static-best")
        pooled = -above(episodes, key, "static-best", "pooledP99Ms")
        had = share(gain, possible)
        out[key] = {
            "p50Ms": _middle(episodes, key, "p50Ms"),
            "p99Ms": _middle(episodes, key, "p99Ms"),
            "pooledP99Ms": _middle(episodes, key, "pooledP99Ms"),
            "sloPercent": _round(float(column(episodes, key, "sloPercent").mean())),
            "regretPercent": interval(regret).plain(),
            "gainPercent": interval(gain).plain(),
            "pooledGainPercent": interval(pooled).plain(),
            "gainOver50Percent": interval(-above(episodes, key, "static-50")).plain() if "static-50" in episodes[0] else None,
            "sharePercent": None if had is None else had.plain(),
            "apartPoints": _round(float(column(episodes, key, "apartPoints").mean())),
            "gibMoved": _round(float(column(episodes, key, "gibMoved").mean())),
            "worstPercent": _round(float(regret.max())),
            "startUpP99Ms": _middle(episodes, key, "startUpP99Ms"),
        }
    return out


def oracle_words(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return what the oracle says of itself: gains that it computes and that were replayed, its noise floor, busyness, clones."""
    hindsight = [episode["hindsight"] for episode in episodes]
    clones = [visits for each in hindsight for visits in each["cloning"]]

    def mean(name: str) -> float:
        return _round(float(np.mean([each[name] for each in hindsight])))

    return {
        "episodes": len(episodes),
        "freeGainPercent": mean("gainPercent"),
        "plannedGainPercent": mean("plannedGainPercent"),
        "noiseFloorPercent": mean("noiseFloorPercent"),
        "confirmedGainPercent": mean("confirmedGainPercent"),
        "replayedGainPercent": interval(-above(episodes, "oracle", "static-best")).plain(),
        "staticPercent": [int(value) for value in np.percentile([each["staticPercent"] for each in hindsight], [0, 50, 100])],
        "movesPoints": _round(
            float(np.mean([np.ptp(each["plannedPercents"][int(START_UP_S // WINDOW_S) :]) for each in hindsight]))
        ),
        "busyPercent": _round(float(column(episodes, "static-best", "busyPercent").mean())),
        "requests": int(np.mean(column(episodes, "oracle", "requests"))),
        "clones": {
            name: _round(float(np.mean([each["plays_per_visit"] for each in clones if each["visits"] == name])))
            for name in sorted({each["visits"] for each in clones})
        },
    }


def _middle(episodes: Sequence[Episode], key: str, figure: str) -> float:
    """Return the geometric mean over episodes."""
    return _round(float(np.exp(np.log(np.maximum(column(episodes, key, figure), 1e-9)).mean())))


def _round(value: float) -> float:
    return float(f"{value:.5g}")
