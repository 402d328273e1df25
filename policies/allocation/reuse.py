"""A decaying histogram of reuse times with what is needed to turn it into rates and shares.

Everything in it fades with one time constant, so a ratio of two of its sums is a weighted mean over the recent past.

A sample of keys weighs more or less than its share, and what it lacks or has too much must go somewhere. Two laws say where.
Ordinary keys: where the keys of the sample have their weight, each counted by its square, which is the regression of a bin on
the whole over all samples that could have been drawn (Cochran, Sampling Techniques, 1977, chapter 7). A key far hotter than all
of the sample: it is asked again at once, so what it weighs goes to the shortest reuse (SHARDS-adj; Waldspurger et al., FAST
2015). A lack of up to `ordinary_spread` standard deviations is laid to ordinary keys, the rest to a hot one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class ReuseHistogram:
    """Sampled bytes by reuse-time bin; the last bin holds what was never seen before, or too long ago.

    Parameters
    ----------
    bins
        Number of reuse-time bins, without the last one.
    decay_ms
        Time constant of forgetting; `math.inf` keeps all.
    """

    def __init__(self, *, bins: int, decay_ms: float) -> None:
        self.decay_ms = decay_ms
        self.weight = np.zeros(bins + 1)
        self.square = np.zeros(bins + 1)  # squares of the keys' weights, shared out to the bins
        self.asked_bytes = 0.0  # of all accesses, sampled or not
        self.elapsed_ms = 0.0  # decayed time, so that asked bytes over it is a rate
        self.samples = 0.0
        self._size_sum = 0.0
        self._size_square = 0.0

    @property
    def rate_bytes_per_ms(self) -> float:
        """Bytes asked per millisecond, all accesses."""
        return self.asked_bytes / self.elapsed_ms if self.elapsed_ms > 0.0 else 0.0

    @property
    def size_cv2(self) -> float:
        """Squared coefficient of variation of the bytes of a sampled access."""
        if self.samples <= 0.0 or self._size_sum <= 0.0:
            return 0.0
        mean = self._size_sum / self.samples
        return max(self._size_square / self.samples / (mean * mean) - 1.0, 0.0)

    def forget(self, dt_ms: float) -> None:
        """Let `dt_ms` pass."""
        keep = math.exp(-dt_ms / self.decay_ms)
        self.weight *= keep
        self.square *= keep * keep
        self.asked_bytes *= keep
        self.samples *= keep
        self._size_sum *= keep
        self._size_square *= keep
        # Time fades as if it had passed evenly: the integral of exp(-t / decay) over dt.
        passed = dt_ms if math.isinf(self.decay_ms) else self.decay_ms * (1.0 - keep)
        self.elapsed_ms = self.elapsed_ms * keep + passed

    def add(self, binned: NDArray[np.float64], squares: NDArray[np.float64], sizes: NDArray[np.float64]) -> None:
        """Count sampled accesses: bytes and squares of weights by bin, and the size of each."""
        self.weight += binned
        self.square += squares
        self.samples += len(sizes)
        self._size_sum += float(sizes.sum())
        self._size_square += float(np.dot(sizes, sizes))

    def survival(self, sample_rate: float, *, ordinary_spread: float = 0.0) -> NDArray[np.float64]:
        """Share of asked bytes whose reuse time exceeds each bin's edge; float64[bins + 1], falling from 1.

        Parameters
        ----------
        sample_rate
            Share of keys in the sample.
        ordinary_spread
            Standard deviations of the sample's weight that ordinary keys answer for; `math.inf` knows no hot keys, and 0 lays all
            that is missing to hot keys and takes a surplus off the shortest reuse too.
        """
        out = np.ones(len(self.weight))
        expected = self.asked_bytes * sample_rate
        if expected <= 0.0:
            return out
        hit = np.cumsum(self.weight[:-1])
        hit += expected - (float(hit[-1]) + float(self.weight[-1]))
        if ordinary_spread > 0.0:
            hit -= self._ordinary(expected, sample_rate, ordinary_spread)
            np.maximum.accumulate(hit, out=hit)
        out[1:] = np.clip(1.0 - hit / expected, 0.0, 1.0)
        return out

    def _ordinary(self, expected: float, sample_rate: float, spread: float) -> NDArray[np.float64]:
        """What the shortest reuse was given too much, by bin: ordinary keys' part of the lack, above each edge."""
        total = float(self.square.sum())
        if total <= 0.0:
            return np.zeros(len(self.square) - 1)
        lack = expected - float(self.weight.sum())
        if math.isfinite(spread):
            lack = min(lack, spread * math.sqrt((1.0 - sample_rate) * total))
        return np.asarray(lack * (1.0 - np.cumsum(self.square[:-1]) / total))

    def clear(self) -> None:
        """Forget everything."""
        self.weight[:] = self.square[:] = 0.0
        self.asked_bytes = self.elapsed_ms = self.samples = self._size_sum = self._size_square = 0.0
