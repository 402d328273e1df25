"""Likelihood of a Zipf law, given how often the sampled items of a log were seen.

A rank of probability p is drawn a Poisson number of times with mean p times the occurrences, so a law says how many items
should be seen once, twice, ... in a sample of the items; those numbers are compared with what was counted, in bins of the
count. Items that were never seen are part of it: that is how the size of the catalogue shows. Where the head drifts, an item
has its rank for a part of the log only, and the expected numbers are taken over these parts.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.core.popularity import zipf_between
from simulator.request_log import MOST_ROWS

HEAD_ITEMS = 65_536
_EXACT_RANKS = 256
_LIVES = 6
_RANK_STEP = 0.04
_LEAST_ABOVE = 30
Numbers = NDArray[np.float64]


class SeenItems:
    """Numbers of items by how often they were seen, and what a law expects of them."""

    def __init__(self, counts: NDArray[np.int64], *, item_share: float, occurrences: int, replaced: float) -> None:
        self._share, self._occurrences, self._replaced = item_share, occurrences, replaced
        edges = [1]
        while edges[-1] <= counts.max():
            edges.append(max(edges[-1] + 1, int(edges[-1] * 1.25)))
        self._edges = np.array(edges, dtype=np.int64)
        place = np.searchsorted(self._edges, counts, side="right") - 1
        self._seen = np.bincount(place, minlength=len(edges)).astype(float)  # the last bin, of more than any count, is empty
        self._mass = np.bincount(place, weights=counts, minlength=len(edges))
        self._distinct = len(counts) / item_share
        self._fewest = self._distinct / (1.0 + replaced)

    def expected(self, exponent: float, log_catalog: float) -> Numbers:
        """Return how many items of the sample a law lets be seen so often, by bin."""
        catalog = float(np.exp(log_catalog))
        edges, mass = _ranks(exponent, catalog)
        width = np.diff(edges)
        often = self._occurrences * mass / mass.sum() / width
        inside = np.clip((min(HEAD_ITEMS, catalog / 2.0) - edges[:-1]) / width, 0.0, 1.0)
        total = np.zeros(len(self._edges))
        if self._replaced > 0.0:
            for life, each in _lives(self._replaced):
                total += (inside * width * each) @ _between(often * life, self._edges)
        else:
            inside = np.zeros(len(width))
        total += ((1.0 - inside) * width) @ _between(often, self._edges)
        return np.asarray(self._share * total)

    def fitted(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return (exponent, log of the catalogue) of the greatest likelihood, and their standard errors."""
        best = max(
            (self._climbed(exponent, np.log(self._distinct * wider)) for exponent in (0.4, 0.8, 1.1) for wider in (1.2, 10.0)),
            key=lambda each: each[0],
        )
        _, place, information = best
        spread = np.linalg.pinv(information)
        errors = np.sqrt(np.maximum(np.diag(spread), 0.0))
        # a direction in which nothing changes has no error to speak of: it is not known at all
        flat = np.diag(information) < 1e-3
        errors[flat] = 50.0
        return (float(place[0]), float(place[1])), (float(errors[0]), float(errors[1]))

    def misfit(self, exponent: float, log_catalog: float) -> float:
        """Return the largest distance between expected and seen shares of items, and of occurrences."""
        expected = self.expected(exponent, log_catalog)
        rarely = np.cumsum(expected) / expected.sum() - np.cumsum(self._seen) / self._seen.sum()
        # Of few items in the top bins a sample says little: occurrences are compared up to where thirty are left.
        above = np.cumsum(self._seen[::-1])[::-1]
        upto = len(above) if self._share == 1.0 else max(2, int((above >= _LEAST_ABOVE).sum()))
        mean = np.sqrt(self._edges * np.append(self._edges[1:] - 1, self._edges[-1] * 1.25))
        mass = np.where(self._seen > 0, self._mass / np.maximum(self._seen, 1.0), mean) * expected
        often = np.cumsum(mass[:upto]) / mass[:upto].sum() - np.cumsum(self._mass[:upto]) / self._mass[:upto].sum()
        return float(max(np.abs(rarely).max(), np.abs(often).max()))

    def _likelihood(self, expected: Numbers) -> float:
        return float(np.sum(self._seen * np.log(expected + 1e-12) - expected))

    def _climbed(self, exponent: float, log_catalog: float) -> tuple[float, Numbers, Numbers]:
        """Fisher scoring from a start: return likelihood, place, information."""
        low = np.array([0.0, np.log(self._fewest)])
        high = np.array([3.0, np.log(MOST_ROWS)])
        place = np.clip(np.array([exponent, log_catalog]), low, high)
        expected, information = self.expected(*place), np.zeros((2, 2))
        best = self._likelihood(expected)
        for _ in range(40):
            steps = np.where(place + 1e-3 <= high, 1e-3, -1e-3)
            slopes = [(self.expected(*(place + step)) - expected) / step.sum() for step in np.diag(steps)]
            gradient = np.array([float(np.sum((self._seen / (expected + 1e-12) - 1.0) * slope)) for slope in slopes])
            information = np.array([[float(np.sum(a * b / (expected + 1e-9))) for a in slopes] for b in slopes])
            move = np.linalg.pinv(information + 1e-6 * np.eye(2)) @ gradient
            move *= min(1.0, 0.5 / max(abs(move[0]), abs(move[1]) / 4.0, 1e-12))
            gained = False
            for scale in (1.0, 0.5, 0.2, 0.05, 0.01):
                tried = np.clip(place + scale * move, low, high)
                there = self.expected(*tried)
                if (likelihood := self._likelihood(there)) > best + 1e-9:
                    gained = likelihood > best + 1e-4
                    place, expected, best = tried, there, likelihood
                    break
            if not gained:
                break
        return best, place, information


def _ranks(exponent: float, catalog: float) -> tuple[Numbers, Numbers]:
    """Return bin edges over the ranks, counted from 0, and the unnormalised mass of each bin."""
    exact = int(min(_EXACT_RANKS, catalog))
    edges = [*range(exact + 1)]
    wide = np.array(edges, dtype=float)
    if catalog > exact:
        bins = max(2, int(np.log(catalog / exact) / _RANK_STEP))
        wide = np.concatenate([wide, np.geomspace(exact, catalog, bins + 1)[1:]])
    mass = np.arange(1, exact + 1, dtype=float) ** -exponent
    if catalog > exact:
        mass = np.concatenate([mass, zipf_between(wide[exact:], exponent)])
    return wide, mass


def _lives(replaced: float) -> list[tuple[float, float]]:
    """Return (share of the log that an item has a rank, items a rank) where a rank changes hands `replaced` times in the log."""
    whole = (1.0, 1.0 - replaced) if replaced < 1.0 else (1.0 / replaced, replaced - 1.0)
    longest, parts = (1.0, 2.0 * replaced) if replaced < 1.0 else (1.0 / replaced, 2.0)
    cut = [(longest * (place + 0.5) / _LIVES, parts / _LIVES) for place in range(_LIVES)]
    return [whole, *cut]


def _between(means: Numbers, edges: NDArray[np.int64]) -> Numbers:
    """Return the chance of a Poisson count in each bin, shape (means, edges); the last bin is open."""
    below = np.stack([_poisson_below(means, int(edge)) for edge in edges], axis=1)
    return np.diff(np.concatenate([below, np.ones((len(means), 1))], axis=1), axis=1)


def _poisson_below(means: Numbers, count: int) -> Numbers:
    """Return the chance of less than `count`: exact for small counts, else by Wilson and Hilferty (1931)."""
    if count <= 12:
        term = np.exp(-means)
        total = term.copy()
        for each in range(1, count):
            term = term * means / each
            total += term
        return total
    z = ((means / count) ** (1.0 / 3.0) - (1.0 - 1.0 / (9.0 * count))) * 3.0 * np.sqrt(count)
    return _above(z)


def _above(z: Numbers) -> Numbers:
    """Return the chance that a normal number is above z (Abramowitz and Stegun 26.2.17, within 1e-7)."""
    t = 1.0 / (1.0 + 0.231_641_9 * np.abs(z))
    poly = t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))))
    tail = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * poly
    above: Numbers = np.where(z >= 0.0, tail, 1.0 - tail)
    return above
