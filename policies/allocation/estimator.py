"""Miss-ratio curves from hash-sampled reuse times, in fixed memory and without a stack tree.

Model: average eviction time (AET; Hu et al., USENIX ATC 2016). With P(t) the share of asked bytes whose last access is more
than t ago, an LRU cache of C bytes evicts after the T that solves `C = rate * integral_0^T P(t) dt`, and its miss ratio is
P(T). Keys are sampled by hash, and the difference between expected and actual sample weight goes to the shortest reuse
times (the SHARDS-adj correction; Waldspurger et al., FAST 2015), because a hot key is either in the sample or not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from policies.allocation.reuse import ReuseHistogram
from policies.allocation.turn import TurnWatch
from policies.allocation.types import Curve

_QUICK = 4.0  # the quick histogram forgets this many times faster
_QUICKEST = 16.0  # and this one, which only the watch for turns looks at
_CHECK_MS = 1000.0
_WAYS = 8
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix64(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread 64-bit keys evenly (finaliser of splitmix64; Steele, Lea, Flood 2014)."""
    x = keys ^ (keys >> np.uint64(30))
    x = x * _MIX_1
    x ^= x >> np.uint64(27)
    x = x * _MIX_2
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


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
        falls with the number of sampled keys that fit the cache: with a hundred or more it is about one point of miss
        ratio, with sixteen it is several, so sample few users not at all (rate 1).
    decay_ms
        Time constant with which old accesses are forgotten; `math.inf` keeps all.
    bins
        Number of log-spaced reuse-time bins between `shortest_ms` and `longest_ms`; longer reuse counts as a miss.
    table_entries
        Size of the last-access table, a power of two; 16 bytes each. When it is full the oldest of eight candidates
        goes, and its next access counts as a miss.
    """

    def __init__(
        self,
        *,
        sample_rate: float,
        decay_ms: float = 60_000.0,
        bins: int = 96,
        shortest_ms: float = 1.0,
        longest_ms: float = 1.0e7,
        table_entries: int = 1 << 17,
    ) -> None:
        if not 0.0 < sample_rate <= 1.0:
            raise ValueError("sample_rate must be in (0, 1]")
        if table_entries < _WAYS or table_entries & (table_entries - 1):
            raise ValueError("table_entries must be a power of two, at least 8")
        self.sample_rate = sample_rate
        self._decay_ms = decay_ms
        self._shortest_ms = shortest_ms
        self._log_step = math.log(longest_ms / shortest_ms) / (bins - 1)
        self._edges_ms = np.concatenate(([0.0], np.geomspace(shortest_ms, longest_ms, bins)))
        self._steps_ms = np.diff(self._edges_ms)
        self._bins = bins
        sets = table_entries // _WAYS
        self._set_mask = np.uint64(sets - 1)
        self._table_key = np.zeros((sets, _WAYS), dtype=np.uint64)
        self._table_t = np.full((sets, _WAYS), -np.inf)
        self._slow = ReuseHistogram(bins=bins, decay_ms=decay_ms)
        self._quick = ReuseHistogram(bins=bins, decay_ms=decay_ms / _QUICK)
        self._quickest = ReuseHistogram(bins=bins, decay_ms=decay_ms / _QUICKEST)
        self._histograms = (self._slow, self._quick, self._quickest)
        self._watch = TurnWatch(edges_ms=self._edges_ms, sample_rate=sample_rate)
        self._first_ms: float | None = None
        self._last_ms = 0.0
        self._last_sample_ms = -math.inf
        self._checked_ms = -math.inf

    @property
    def memory_bytes(self) -> int:
        """Bytes held by tables and histograms; does not grow."""
        arrays = (self._table_key, self._table_t, self._edges_ms, self._steps_ms, *(h.weight for h in self._histograms))
        return sum(a.nbytes for a in arrays)

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
        if now_ms is not None:
            t_ms = np.minimum(t_ms, now_ms)  # a stamp from the future must not age everything else
        end_ms = now_ms if now_ms is not None else float(t_ms.max())
        if self._first_ms is None:
            self._first_ms = float(t_ms.min()) if n else end_ms
            self._last_ms = self._first_ms
        dt_ms = max(end_ms - self._last_ms, 0.0)
        self._last_ms = max(end_ms, self._last_ms)
        sizes = np.broadcast_to(np.asarray(size_bytes, dtype=np.float64), (n,))
        asked = float(sizes.sum()) / self.sample_rate if asked_bytes is None else asked_bytes
        for histogram in self._histograms:
            histogram.forget(dt_ms)
            histogram.asked_bytes += asked
        if n == 0:
            return
        self._last_sample_ms = max(self._last_sample_ms, float(t_ms.max()))
        order = np.lexsort((t_ms, keys))
        reuse_ms = self._reuse_times(np.ascontiguousarray(keys[order]), np.ascontiguousarray(t_ms[order]))
        binned = np.bincount(self._bin_of(reuse_ms), weights=sizes[order], minlength=self._bins + 1).astype(np.float64)
        for histogram in self._histograms:
            histogram.add(binned, sizes)
        if self._last_ms - self._checked_ms >= _CHECK_MS:
            self._checked_ms = self._last_ms
            self._notice_a_turn()

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
            volatility=float(np.abs(self._quick.survival(self.sample_rate) - miss).mean()),
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
            for histogram in self._histograms:
                histogram.clear()

    def _reuse_times(self, keys: NDArray[np.uint64], t_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time since each key's previous access (inf if unknown), for a batch sorted by (key, time); updates the table."""
        first = np.empty(len(keys), dtype=np.bool_)
        first[0] = True
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        reuse = np.empty(len(keys))
        reuse[1:] = t_ms[1:] - t_ms[:-1]
        starts = np.flatnonzero(first)
        ends = np.append(starts[1:], len(keys)) - 1
        reuse[starts] = t_ms[starts] - self._swap_last_access(keys[starts], t_ms[ends])
        return np.maximum(reuse, 0.0)

    def _swap_last_access(self, keys: NDArray[np.uint64], t_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the stored last access of each distinct key (-inf if none) and store the new one."""
        rows = (mix64(keys ^ _MIX_1) & self._set_mask).astype(np.intp)
        known = (self._table_key[rows] == keys[:, None]) & (self._table_t[rows] > -np.inf)
        way = known.argmax(axis=1)
        hit = known[np.arange(len(keys)), way]
        previous = np.where(hit, self._table_t[rows, way], -np.inf)
        self._table_t[rows[hit], way[hit]] = t_ms[hit]
        new = np.flatnonzero(~hit)
        if len(new):
            # Several new keys of one batch may share a set: the j-th of them takes the j-th oldest way.
            new = new[np.argsort(rows[new], kind="stable")]
            row = rows[new]
            start = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
            rank = np.arange(len(row)) - np.repeat(start, np.diff(np.append(start, len(row))))
            victims = np.argsort(self._table_t[row], axis=1, kind="stable")
            slot = victims[np.arange(len(row)), rank % _WAYS]
            self._table_key[row, slot] = keys[new]
            self._table_t[row, slot] = t_ms[new]
        return previous

    def _bin_of(self, reuse_ms: NDArray[np.float64]) -> NDArray[np.intp]:
        scaled = np.log(np.maximum(reuse_ms, 1e-9) / self._shortest_ms) / self._log_step
        return np.clip(np.floor(scaled) + 1.0, 0.0, self._bins).astype(np.intp)

    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Curve at the bin edges: capacity in bytes (rising), miss ratio (falling)."""
        miss = self._slow.survival(self.sample_rate)
        capacity = np.zeros(self._bins + 1)
        np.cumsum(self._steps_ms * (miss[1:] + miss[:-1]) * (0.5 * self._slow.rate_bytes_per_ms), out=capacity[1:])
        return capacity, miss
