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

from policies.allocation.types import Curve

_QUICK = 4.0  # the quick histogram forgets this many times faster; it only serves the volatility
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
        self._weight = np.zeros(bins + 1)  # sampled bytes by reuse bin; the last one: never seen, or too long ago
        self._quick = np.zeros(bins + 1)
        self._asked_bytes = 0.0  # all asked bytes, sampled or not, decayed
        self._quick_asked_bytes = 0.0
        self._elapsed_ms = 0.0  # decayed time, so that asked bytes over it is a rate
        self._samples = 0.0
        self._sum_size = 0.0
        self._sum_size2 = 0.0
        self._first_ms: float | None = None
        self._last_ms = 0.0
        self._last_sample_ms = -math.inf

    @property
    def memory_bytes(self) -> int:
        """Bytes held by tables and histograms; does not grow."""
        arrays = (self._table_key, self._table_t, self._weight, self._quick, self._edges_ms, self._steps_ms)
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
        self._forget(max(end_ms - self._last_ms, 0.0))
        self._last_ms = max(end_ms, self._last_ms)
        sizes = np.broadcast_to(np.asarray(size_bytes, dtype=np.float64), (n,))
        sampled_bytes = float(sizes.sum())
        asked = sampled_bytes / self.sample_rate if asked_bytes is None else asked_bytes
        self._asked_bytes += asked
        self._quick_asked_bytes += asked
        if n == 0:
            return
        self._samples += n
        self._sum_size += sampled_bytes
        self._sum_size2 += float(np.dot(sizes, sizes))
        self._last_sample_ms = max(self._last_sample_ms, float(t_ms.max()))
        order = np.lexsort((t_ms, keys))
        reuse_ms = self._reuse_times(np.ascontiguousarray(keys[order]), np.ascontiguousarray(t_ms[order]))
        added = np.bincount(self._bin_of(reuse_ms), weights=sizes[order], minlength=self._bins + 1)
        self._weight += added
        self._quick += added

    def curve(self, capacities_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the miss ratio (0..1, weighted by bytes) at each capacity; 1 everywhere before the first access."""
        capacity, miss = self._points()
        return np.interp(capacities_bytes, capacity, miss)

    def view(self, *, now_ms: float) -> Curve | None:
        """Return the curve with its trust figures, or None before the first sampled access."""
        if self._first_ms is None or self._samples <= 0.0:
            return None
        capacity, miss = self._points()
        quick = self._survival(self._quick, self._quick_asked_bytes)
        mean = self._sum_size / self._samples
        cv2 = max(self._sum_size2 / self._samples / (mean * mean) - 1.0, 0.0) if mean > 0.0 else 0.0
        return Curve(
            packed_capacity_bytes=capacity.astype("<f8").tobytes(),
            packed_miss_ratio=miss.astype("<f8").tobytes(),
            samples=self._samples,
            age_ms=max(now_ms - self._last_sample_ms, 0.0),
            window_ms=max(now_ms - self._first_ms, 0.0),
            volatility=float(np.abs(quick - miss).mean()),
            size_cv2=cv2,
            memory_ms=min(self._decay_ms, 1.0e12),  # infinity has no JSON form
        )

    def _forget(self, dt_ms: float) -> None:
        keep = math.exp(-dt_ms / self._decay_ms)
        quick_keep = math.exp(-_QUICK * dt_ms / self._decay_ms)
        self._weight *= keep
        self._quick *= quick_keep
        self._asked_bytes *= keep
        self._quick_asked_bytes *= quick_keep
        self._samples *= keep
        self._sum_size *= keep
        self._sum_size2 *= keep
        # Time decays as if it had passed evenly: integral of exp(-(t)/decay) over dt.
        passed = dt_ms if math.isinf(self._decay_ms) else self._decay_ms * (1.0 - keep)
        self._elapsed_ms = self._elapsed_ms * keep + passed

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

    def _survival(self, weight: NDArray[np.float64], asked_bytes: float) -> NDArray[np.float64]:
        """Share of asked bytes whose reuse time exceeds each edge; float64[bins + 1], falling from 1."""
        expected = asked_bytes * self.sample_rate
        out = np.ones(self._bins + 1)
        if expected <= 0.0:
            return out
        correction = expected - float(weight.sum())
        hit = np.maximum(np.cumsum(weight[:-1]) + correction, 0.0) / expected
        out[1:] = np.clip(1.0 - hit, 0.0, 1.0)
        return out

    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Curve at the bin edges: capacity in bytes (rising), miss ratio (falling)."""
        miss = self._survival(self._weight, self._asked_bytes)
        rate = self._asked_bytes / self._elapsed_ms if self._elapsed_ms > 0.0 else 0.0
        capacity = np.zeros(self._bins + 1)
        np.cumsum(self._steps_ms * (miss[1:] + miss[:-1]) * (0.5 * rate), out=capacity[1:])
        return capacity, miss
