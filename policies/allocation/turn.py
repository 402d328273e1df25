"""Whether traffic has turned: does the recent past tell another story than chance, load and slow drift would explain?

Two decaying histograms of one stream are compared bin by bin. A difference counts by the Chernoff bound: of n independent
accesses, the chance to see a share q where x is expected is at most exp(-n D(q, x)), with D the relative entropy. That
holds for few accesses as for many, so a stream of users with twenty accesses a second is judged by the same rule as one of
rows with thousands, and the largest difference of any bin counts: a mean over bins would hide a stream that fills few of them.

Measured in virtual time, with memories of 20 and 60 s. Twenty users a second stop returning: noticed after 1 to 3 s (eight
seeds each); users return again: 5 to 10 s. Four users a second: 25 to 40 s at 60 s memory, never at 20 s, which is too few
to tell. False alarms in steady traffic: none in 33 hours of even load and of a tide of half the load, one in 21 hours of
bursts of three times the pace (three streams of users, two sampled streams of rows, up to six seeds each).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policies.allocation.reuse import ReuseHistogram

_DRIFT = 0.03  # difference in miss ratio that is drift, not a turn
_SURPRISE = 14.0  # nats; chance alone goes beyond in one look of a million, at one bin
_WATCHED = 0.25  # reuse times beyond this share of the time watched are not compared yet
_PACES = 256  # looks whose pace of accesses is remembered, at most
_TINY = 1e-12


class TurnWatch:
    """Looks at the histograms of one stream about once a second.

    Three things may differ without a turn. When accesses come `a` times as fast as on average, reuse times shrink by up to
    `a`; the paces of the last while are remembered, since a reuse reaches back over them. Reuse longer than the first
    accesses were watched for looks like no reuse. And `_DRIFT`.

    Parameters
    ----------
    edges_ms
        float64[bins + 1], edges of the reuse-time bins, log-spaced from the second on.
    sample_rate
        Share of keys in the histograms; below 1 the number of sampled accesses is itself left to chance.
    """

    def __init__(self, *, edges_ms: NDArray[np.float64], sample_rate: float) -> None:
        self._edges_ms = edges_ms
        self._log_step = math.log(edges_ms[-1] / edges_ms[-2])
        self._sampled = sample_rate < 1.0
        self._sample_rate = sample_rate
        self._since_ms: float | None = None
        self._gap = False
        self._paces: deque[tuple[float, float]] = deque(maxlen=_PACES)

    def begin_anew(self) -> None:
        """Watch from the next look on, because accesses went unseen: a reuse across the gap looks longer than it was."""
        self._gap = True

    def has_turned(self, recent: Sequence[ReuseHistogram], past: ReuseHistogram, *, now_ms: float, first_ms: float) -> bool:
        """Say whether one of `recent` cannot be the same traffic as `past`; if so, the watching begins anew.

        Parameters
        ----------
        recent, past
            Histograms of the stream; those in `recent` forget faster, the first of them fastest.
        now_ms, first_ms
            Time, and when the stream was first seen.
        """
        if self._gap:
            self._since_ms, self._gap = now_ms, False
        if not all(h.samples > 0.0 and h.elapsed_ms > 0.0 and h.decay_ms < past.decay_ms for h in recent):
            return False
        watched_ms = now_ms - (first_ms if self._since_ms is None else self._since_ms)
        self._remember_pace(recent[0], now_ms=now_ms, memory_ms=past.decay_ms)
        compared = slice(1, int(np.searchsorted(self._edges_ms, _WATCHED * watched_ms, side="right")))
        if compared.stop <= compared.start:
            return False
        low, high = self._explained(past, watched_ms=watched_ms)
        for histogram in recent:
            seen = histogram.survival(self._sample_rate)[compared]
            entropy = _relative_entropy(seen, np.clip(seen, low[compared], high[compared]), sampled=self._sampled)
            if _independent_accesses(histogram, past) * float(entropy.max()) > _SURPRISE:
                self._since_ms = now_ms
                return True
        return False

    def _remember_pace(self, youngest: ReuseHistogram, *, now_ms: float, memory_ms: float) -> None:
        self._paces.append((now_ms, youngest.samples / youngest.elapsed_ms))
        while self._paces[0][0] < now_ms - memory_ms:
            self._paces.popleft()

    def _explained(self, past: ReuseHistogram, *, watched_ms: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least and greatest survival at each edge that needs no turn to explain it."""
        usual = past.samples / past.elapsed_ms
        shifts = [0.0, *(math.log(pace / usual) / self._log_step for _, pace in self._paces)]
        survival = past.survival(self._sample_rate)
        places = np.arange(len(survival))
        outer = (math.ceil(max(shifts)), math.floor(min(shifts)))
        faster, slower = (survival[np.clip(places + shift, 1, len(survival) - 1)] for shift in outer)
        low = faster - _unseen(self._edges_ms, memory_ms=past.decay_ms, watched_ms=watched_ms) - _DRIFT
        return np.maximum(low, 0.0), np.minimum(slower + _DRIFT, 1.0)


def _independent_accesses(recent: ReuseHistogram, past: ReuseHistogram) -> float:
    """Number of equal, independent accesses that would scatter as much as the difference of the two weighted means does."""
    ratio = past.decay_ms / recent.decay_ms
    # Integral of (r exp(-r t) - exp(-t))^2, over the accesses that `recent` holds: both share the youngest ones.
    scatter = 0.5 - 2.0 / (ratio + 1.0) + 0.5 / ratio
    return recent.samples / (1.0 + recent.size_cv2) / scatter


def _unseen(edges_ms: NDArray[np.float64], *, memory_ms: float, watched_ms: float) -> NDArray[np.float64]:
    """Share of the past that lies in the first T of the watching: there, reuse after T or more could not be seen."""
    age = np.maximum(watched_ms - edges_ms, 0.0)
    return np.asarray(np.exp(-age / memory_ms) * np.expm1(-edges_ms / memory_ms) / math.expm1(-watched_ms / memory_ms))


def _relative_entropy(seen: NDArray[np.float64], expected: NDArray[np.float64], *, sampled: bool) -> NDArray[np.float64]:
    """Relative entropy in nats: of two shares, or, when the number of accesses is left to chance too, of two Poisson rates."""
    rest = expected - seen
    if not sampled:
        rest = (1.0 - seen) * np.log(np.maximum(1.0 - seen, _TINY) / np.maximum(1.0 - expected, _TINY))
    return np.asarray(seen * np.log(np.maximum(seen, _TINY) / np.maximum(expected, _TINY)) + rest, dtype=np.float64)
