"""Miss-ratio curves from hash-sampled reuse times, in fixed memory and without a stack tree.

Model: average eviction time (AET; Hu et al., USENIX ATC 2016). With P(t) the share of asked bytes whose last access is more
than t ago, an LRU cache of C bytes evicts after the T that solves `C = rate * integral_0^T P(t) dt`, and its miss ratio is
P(T). Keys are sampled by hash, all accesses of a key or none (spatial sampling, as SHARDS does), and the difference between
expected and actual sample weight is shared out as `policies.allocation.reuse` says; docs/estimator.md holds measured errors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from policies.allocation import core
from policies.allocation.reuse import Histograms, ReuseHistogram
from policies.allocation.table import AccessTable, mix64
from policies.allocation.turn import TurnWatch
from policies.allocation.types import Curve

__all__ = ["ROWS_SPREAD", "USERS_SPREAD", "ReuseTimeEstimator", "mix64", "sample_mask"]

QUICK = 4.0  # the quick histogram forgets this many times faster
_QUICKEST = 16.0  # and this one, which only the watch for turns looks at
_CHECK_MS = 1000.0
_MOST_UNITS = np.uint64((1 << 30) - 1)
USERS_SPREAD = math.inf
"""No user is asked for so often that a sample without it would be another sample."""
ROWS_SPREAD = 0.5
"""Row popularity has no upper end: what a sample lacks beyond half a standard deviation is a hot row outside it."""


def sample_mask(keys: NDArray[np.uint64], sample_rate: float) -> NDArray[np.bool_]:
    """Say which keys belong to the hash sample: the same keys always do, whoever asks.

    Parameters
    ----------
    keys
        uint64[n], already hashed (evenly spread over 64 bits), as in the engine contract; else pass them through `mix64`.
    sample_rate
        Share of keys to keep, in (0, 1].
    """
    if sample_rate >= 1.0:
        return np.ones(len(keys), dtype=np.bool_)
    return np.asarray(keys < np.uint64(int(sample_rate * 2.0**64)), dtype=np.bool_)


class ReuseTimeEstimator:
    """Online miss-ratio curve of one LRU cache (users weighted by bytes, or rows of one size).

    Parameters
    ----------
    sample_rate
        Share of keys that reaches `ingest`; the caller (or the engine) filters, for instance with `sample_mask`. The error
        falls with the number of sampled keys that carry the weight: with some thousand it is about one point of miss ratio,
        with a hundred it is three, so sample few users not at all (rate 1).
    ordinary_spread
        Who answers for what the sample lacks: `ROWS_SPREAD` or `USERS_SPREAD`.
    decay_ms
        Time constant with which old accesses are forgotten; `math.inf` keeps all.
    bins
        Number of log-spaced reuse-time bins between `shortest_ms` and `longest_ms`; longer reuse counts as a miss.
    table_entries
        Size of the last-access table, a power of two; 24 bytes each. When it is full the oldest of eight candidates
        goes, and its next access counts as a miss.
    """

    def __init__(
        self,
        *,
        sample_rate: float,
        ordinary_spread: float = ROWS_SPREAD,
        decay_ms: float = 60_000.0,
        bins: int = 96,
        shortest_ms: float = 1.0,
        longest_ms: float = 1.0e7,
        table_entries: int = 1 << 17,
    ) -> None:
        if not 0.0 < sample_rate <= 1.0:
            raise ValueError("sample_rate must be in (0, 1]")
        self.sample_rate = sample_rate
        self._ordinary_spread = ordinary_spread
        log_step = math.log(longest_ms / shortest_ms) / (bins - 1)
        self._edges_ms = np.concatenate(([0.0], np.geomspace(shortest_ms, longest_ms, bins)))
        self._steps_ms = np.diff(self._edges_ms)
        self._bins = bins
        self._table = AccessTable(entries=table_entries, decay_ms=decay_ms, bins=bins, shortest_ms=shortest_ms, log_step=log_step)
        self._histograms = Histograms(bins=bins, decays_ms=(decay_ms, decay_ms / QUICK, decay_ms / _QUICKEST))
        self._slow, self._quick, self._quickest = self._histograms.each
        self._compiled = core.ingester(self._table, sums=self._histograms.sums, keep=self._histograms.keep)
        self._watch = TurnWatch(edges_ms=self._edges_ms, sample_rate=sample_rate)
        self._first_ms: float | None = None
        self._last_ms = 0.0
        self._last_sample_ms = -math.inf
        self._checked_ms = -math.inf
        self._volatility = 0.0

    @property
    def memory_bytes(self) -> int:
        """Bytes held by tables and histograms; does not grow."""
        return self._table.nbytes + self._edges_ms.nbytes + self._steps_ms.nbytes + self._histograms.nbytes

    def ingest(
        self,
        keys: NDArray[np.uint64],
        t_ms: NDArray[np.float64],
        size_bytes: NDArray[np.float64] | float,
        *,
        asked_bytes: float | None = None,
        now_ms: float | None = None,
    ) -> None:
        """Take in one batch of sampled accesses.

        Parameters
        ----------
        keys
            uint64[n], already sampled.
        t_ms
            float64[n], time of each access; need not be sorted. Stamps after `now_ms` count as `now_ms`.
        size_bytes
            Bytes each access asks for: float64[n], or one size for all.
        asked_bytes
            Bytes that all accesses of the batch's time asked for, sampled or not (from the engine's counters). Without
            it the sample is taken at its word, which is much less accurate for skewed streams.
        now_ms
            End of the batch's time; default is its last access. Pass it so that quiet time counts in the rate.
        """
        n = len(keys)
        if n == 0 and now_ms is None:
            return
        if n > 1 and (t_ms[1:] < t_ms[:-1]).any():
            order = np.argsort(t_ms, kind="stable")
            keys, t_ms = keys[order], t_ms[order]
            size_bytes = size_bytes[order] if isinstance(size_bytes, np.ndarray) else size_bytes
        if now_ms is not None and n and t_ms[-1] > now_ms:
            t_ms = np.minimum(t_ms, now_ms)  # a stamp from the future must not age everything else
        end_ms = now_ms if now_ms is not None else float(t_ms[-1])
        if self._first_ms is None:
            self._first_ms = float(t_ms[0]) if n else end_ms
            self._last_ms = self._first_ms
        dt_ms = max(end_ms - self._last_ms, 0.0)
        self._last_ms = max(end_ms, self._last_ms)
        sizes = np.asarray(size_bytes, dtype=np.float64) if isinstance(size_bytes, np.ndarray) else np.full(n, float(size_bytes))
        asked = float(sizes.sum()) / self.sample_rate if asked_bytes is None else asked_bytes
        self._histograms.forget(dt_ms, asked_bytes=asked)
        if n == 0:
            return
        self._last_sample_ms = max(self._last_sample_ms, float(t_ms[-1]))
        binned, squares = self._table.count(keys, t_ms, sizes)
        self._histograms.add(binned, squares, sizes)
        self._look()

    def ingest_records(
        self, records: NDArray[np.uint64], *, kind: int, unit_bytes: float, shift_ms: float, asked_bytes: float, now_ms: float
    ) -> None:
        """Take in those of one kind out of packed sample records; as `ingest`, compiled where it can be.

        Parameters
        ----------
        records
            uint64[n, 3]: kind (two highest bits), size in units (thirty bits) and 32 bits that do not matter; key; microseconds.
        unit_bytes
            Bytes of a unit.
        shift_ms
            What to add to the records' time.
        asked_bytes, now_ms
            As in `ingest`.
        """
        if self._first_ms is not None and self._ingested(records, kind, unit_bytes, shift_ms, asked_bytes, now_ms):
            return
        mine = records[records[:, 0] >> 62 == kind]
        sizes = (mine[:, 0] >> 32 & _MOST_UNITS) * float(unit_bytes)
        self.ingest(mine[:, 1], mine[:, 2] / 1000.0 + shift_ms, sizes, asked_bytes=asked_bytes, now_ms=now_ms)

    def _ingested(
        self, records: NDArray[np.uint64], kind: int, unit_bytes: float, shift_ms: float, asked_bytes: float, now_ms: float
    ) -> bool:
        """Let the core take records in; False, and nothing done, where there is none or their stamps are out of order."""
        dt_ms = max(now_ms - self._last_ms, 0.0)
        self._histograms.set_keep(dt_ms)
        taken = self._compiled(records, kind, unit_bytes, shift_ms, now_ms)
        if taken is None:
            return False
        samples, size_sum, size_square, last_sample_ms = taken
        self._last_ms = max(now_ms, self._last_ms)
        self._histograms.fade(dt_ms, asked_bytes=asked_bytes)
        if samples:
            self._last_sample_ms = max(self._last_sample_ms, last_sample_ms)
            self._histograms.count(samples, size_sum=size_sum, size_square=size_square)
            self._look()
        return True

    def _look(self) -> None:
        """Once a second, see whether traffic has turned and how steady it is."""
        if self._last_ms - self._checked_ms < _CHECK_MS:
            return
        self._checked_ms = self._last_ms
        self._notice_a_turn()
        self._volatility = float(np.abs(self._miss(self._quick) - self._miss(self._slow)).mean())

    def note_gap(self) -> None:
        """Say that accesses since the last batch were not seen; for a while longer reuse is then no sign of a turn."""
        self._watch.begin_anew()

    def curve(self, capacities_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the miss ratio (0..1, weighted by bytes) at each capacity; 1 everywhere before the first access."""
        capacity, miss = self._points()
        return np.interp(capacities_bytes, capacity, miss)

    def view(self, *, now_ms: float) -> Curve | None:
        """Return the curve with its trust figures, or None while it holds no sample (at first, and for a moment after a turn)."""
        if self._first_ms is None or self._slow.samples <= 0.0:
            return None
        capacity, miss = self._points()
        return Curve(
            packed_capacity_bytes=capacity.astype("<f8").tobytes(),
            packed_miss_ratio=miss.astype("<f8").tobytes(),
            samples=self._slow.samples,
            age_ms=max(now_ms - self._last_sample_ms, 0.0),
            window_ms=max(now_ms - self._first_ms, 0.0),
            volatility=self._volatility,
            size_cv2=self._slow.size_cv2,
            memory_ms=min(self._slow.decay_ms, 1.0e12),  # infinity has no JSON form
        )

    def _notice_a_turn(self) -> None:
        """Start counting anew when one of the short memories cannot be the same traffic as the long one.

        A mixture of old and new traffic describes neither: its curve can move the split the wrong way for a minute.
        Last accesses are kept, so the new histogram is right from its first sample on; it only has to grow.
        """
        recent = (self._quickest, self._quick)
        if self._watch.has_turned(recent, self._slow, now_ms=self._last_ms, first_ms=self._first_ms or 0.0):
            self._histograms.clear()

    def _miss(self, histogram: ReuseHistogram) -> NDArray[np.float64]:
        return histogram.survival(self.sample_rate, ordinary_spread=self._ordinary_spread)

    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Curve at the bin edges: capacity in bytes (rising), miss ratio (falling)."""
        miss = self._miss(self._slow)
        capacity = np.empty(self._bins + 1)
        capacity[0] = 0.0
        steps = capacity[1:]
        np.add(miss[1:], miss[:-1], out=steps)
        steps *= self._steps_ms
        steps *= 0.5 * self._slow.rate_bytes_per_ms
        steps.cumsum(out=steps)
        return capacity, miss
