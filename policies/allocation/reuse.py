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
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Histograms:
    """Several memories of one stream that fade at different paces, faded and filled together.

    Parameters
    ----------
    bins
        Number of reuse-time bins, without the last one.
    decays_ms
        Time constants of forgetting; `math.inf` keeps all.

    Attributes
    ----------
    sums
        float64[2, memories, bins + 1]: bytes, and squares of weights. The same array for good, as is `keep`.
    keep
        float64[2, memories, 1]: what is left of them after the time given last.
    """

    def __init__(self, *, bins: int, decays_ms: Sequence[float]) -> None:
        self.sums = np.zeros((2, len(decays_ms), bins + 1))
        self.keep = np.ones((2, len(decays_ms), 1))
        self.each = tuple(
            ReuseHistogram(decay_ms=decay_ms, weight=self.sums[0, row], square=self.sums[1, row])
            for row, decay_ms in enumerate(decays_ms)
        )

    @property
    def nbytes(self) -> int:
        """Bytes held; does not grow."""
        return self.sums.nbytes

    def forget(self, dt_ms: float, *, asked_bytes: float) -> None:
        """Let `dt_ms` pass, in which so much was asked for by all accesses."""
        self.set_keep(dt_ms)
        self.fade(dt_ms, asked_bytes=asked_bytes)
        self.sums *= self.keep

    def set_keep(self, dt_ms: float) -> None:
        """Let `keep` be what is left of the sums by bin after this time."""
        for row, histogram in enumerate(self.each):
            keep = math.exp(-dt_ms / histogram.decay_ms)
            self.keep[0, row, 0], self.keep[1, row, 0] = keep, keep * keep

    def fade(self, dt_ms: float, *, asked_bytes: float) -> None:
        """Do what `forget` does to all sums but those by bin, by the `keep` of this time."""
        for keep, histogram in zip(self.keep[0, :, 0].tolist(), self.each, strict=True):
            histogram.fade(keep, dt_ms=dt_ms)
            histogram.asked_bytes += asked_bytes

    def add(self, binned: NDArray[np.float64], squares: NDArray[np.float64], sizes: NDArray[np.float64]) -> None:
        """Count sampled accesses: bytes and squares of weights by bin, and the size of each."""
        self.sums[0] += binned
        self.sums[1] += squares
        self.count(len(sizes), size_sum=float(sizes.sum()), size_square=float(sizes.dot(sizes)))

    def count(self, samples: int, *, size_sum: float, size_square: float) -> None:
        """Do what `add` does to all sums but those by bin."""
        for histogram in self.each:
            histogram.count(samples, size_sum=size_sum, size_square=size_square)

    def clear(self) -> None:
        """Forget everything."""
        self.sums[:] = 0.0
        for histogram in self.each:
            histogram.clear()


class ReuseHistogram:
    """Sampled bytes by reuse-time bin; the last bin holds what was never seen before, or too long ago.

    Parameters
    ----------
    decay_ms
        Time constant of forgetting; `math.inf` keeps all.
    weight, square
        float64[bins + 1], bytes by bin, and squares of the keys' weights shared out to the bins; rows of `Histograms`.
    """

    def __init__(self, *, decay_ms: float, weight: NDArray[np.float64], square: NDArray[np.float64]) -> None:
        self.decay_ms = decay_ms
        self.weight = weight
        self.square = square
        self.asked_bytes = 0.0  # of all accesses, sampled or not
        self.elapsed_ms = 0.0  # decayed time, so that asked bytes over it is a rate
        self.samples = 0.0
        self._size_sum = self._size_square = 0.0

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
        square = mean * mean  # 0 where sizes are, but for the last digit of what has faded
        return max(self._size_square / self.samples / square - 1.0, 0.0) if square > 0.0 else 0.0

    def fade(self, keep: float, *, dt_ms: float) -> None:
        """Keep this share of all sums but those by bin."""
        self.asked_bytes *= keep
        self.samples *= keep
        self._size_sum *= keep
        self._size_square *= keep
        # Time fades as if it had passed evenly: the integral of exp(-t / decay) over dt.
        passed = dt_ms if math.isinf(self.decay_ms) else self.decay_ms * (1.0 - keep)
        self.elapsed_ms = self.elapsed_ms * keep + passed

    def count(self, samples: int, *, size_sum: float, size_square: float) -> None:
        """Add to all sums but those by bin."""
        self.samples += samples
        self._size_sum += size_sum
        self._size_square += size_square

    def clear(self) -> None:
        """Forget all sums but those by bin."""
        self.asked_bytes = self.elapsed_ms = self.samples = self._size_sum = self._size_square = 0.0

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
        expected = self.asked_bytes * sample_rate
        if expected <= 0.0:
            return np.ones(len(self.weight))
        out = self.weight.cumsum()
        lack = expected - float(out[-1])
        out[1:] = out[:-1]
        out[0] = 0.0
        hit = out[1:]
        hit += lack
        if ordinary_spread > 0.0 and lack != 0.0:
            hit -= self._ordinary(lack, sample_rate, ordinary_spread)
            np.maximum.accumulate(hit, out=hit)
        hit /= -expected
        out += 1.0
        np.minimum(out, 1.0, out=out)
        np.maximum(out, 0.0, out=out)
        return out

    def _ordinary(self, lack: float, sample_rate: float, spread: float) -> NDArray[np.float64]:
        """What the shortest reuse was given too much, by bin: ordinary keys' part of the lack, above each edge."""
        above = self.square.cumsum()
        total = float(above[-1])
        if total <= 0.0:
            return np.zeros(len(self.square) - 1)
        if math.isfinite(spread):
            lack = min(lack, spread * math.sqrt((1.0 - sample_rate) * total))
        out = above[:-1]
        out *= -lack / total
        out += lack
        return out
