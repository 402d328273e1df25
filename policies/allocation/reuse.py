"""A decaying histogram of reuse times with what is needed to turn it into rates and shares.

Everything in it fades with one time constant, so a ratio of two of its sums is a weighted mean over the recent past.
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
        self.asked_bytes *= keep
        self.samples *= keep
        self._size_sum *= keep
        self._size_square *= keep
        # Time fades as if it had passed evenly: the integral of exp(-t / decay) over dt.
        passed = dt_ms if math.isinf(self.decay_ms) else self.decay_ms * (1.0 - keep)
        self.elapsed_ms = self.elapsed_ms * keep + passed

    def add(self, binned: NDArray[np.float64], sizes: NDArray[np.float64]) -> None:
        """Count sampled accesses: bytes by bin, and the size of each."""
        self.weight += binned
        self.samples += len(sizes)
        self._size_sum += float(sizes.sum())
        self._size_square += float(np.dot(sizes, sizes))

    def survival(self, sample_rate: float) -> NDArray[np.float64]:
        """Share of asked bytes whose reuse time exceeds each bin's edge; float64[bins + 1], falling from 1.

        Expected minus actual sample weight goes to the shortest reuse times (SHARDS-adj), a surplus comes off them.
        """
        out = np.ones(len(self.weight))
        expected = self.asked_bytes * sample_rate
        if expected <= 0.0:
            return out
        correction = expected - float(self.weight.sum())
        hit = np.maximum(np.cumsum(self.weight[:-1]) + correction, 0.0) / expected
        out[1:] = np.clip(1.0 - hit, 0.0, 1.0)
        return out

    def clear(self) -> None:
        """Forget everything."""
        self.weight[:] = 0.0
        self.asked_bytes = self.elapsed_ms = self.samples = self._size_sum = self._size_square = 0.0
