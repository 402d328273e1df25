"""Last access of each sampled key, in fixed memory: what turns a stream of accesses into reuse times.

A set-associative table of (key, last access, weight), eight ways a set; when a set is full its oldest key goes, and the next
access to that key counts as one never seen. The weight of a key is the sum of the bytes it asked for, each faded with the time
constant of the estimator: it says how much of the stream hangs on that one key.

The rule is one loop over the accesses in order of time, which `AccessTable.count` takes in whole arrays:

    find the way of the key; before = weight * exp(-(t - last) / decay), or nothing and never when it is new
    bin of (t - last): bytes += size, squares += size * (2 * before + size)
    last = max(last, t); weight = before + size

Summed over the accesses of a key, `size * (2 * before + size)` is its weight squared, shared out to the reuse times that made it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.allocation import core

WAYS = 8
_LONG = 16.0  # a batch that spans more time constants than this is taken access by access: its sums would lose their digits
_DEEPEST = -600.0  # an exponent whose power is a number, as is the inverse
_FEW = 12  # accesses that are quicker taken one by one than in arrays
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix64(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread 64-bit keys evenly (finaliser of splitmix64; Steele, Lea, Flood 2014)."""
    x = keys ^ (keys >> np.uint64(30))
    x = x * _MIX_1
    x ^= x >> np.uint64(27)
    x = x * _MIX_2
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


class _Accesses(NamedTuple):
    """A batch in order of time, and what is found for each: time since the last access, and faded weight before."""

    keys: NDArray[np.uint64]
    t_ms: NDArray[np.float64]
    sizes: NDArray[np.float64]
    reuse_ms: NDArray[np.float64]
    before: NDArray[np.float64]


class AccessTable:
    """Finds and renews the last access of keys.

    Parameters
    ----------
    entries
        Number of keys it can hold, a power of two, at least 8; 24 bytes each.
    decay_ms
        Time constant with which the weight of a key fades; `math.inf` keeps all.
    bins
        Number of log-spaced bins of reuse time from `shortest_ms` on; one more holds longer reuse and new keys.
    shortest_ms, log_step
        Upper edge of the first bin, and the width of the others in natural logarithms.
    """

    def __init__(self, *, entries: int, decay_ms: float, bins: int, shortest_ms: float, log_step: float) -> None:
        if entries < WAYS or entries & (entries - 1):
            raise ValueError("table_entries must be a power of two, at least 8")
        self.sets = entries // WAYS
        self.decay_ms = decay_ms
        self.bins = bins
        self.shortest_ms = shortest_ms
        self.log_step = log_step
        self.key = np.zeros((self.sets, WAYS), dtype=np.uint64)
        self.last_ms = np.full((self.sets, WAYS), -np.inf)
        self.weight = np.zeros((self.sets, WAYS))

    @property
    def nbytes(self) -> int:
        """Bytes held; does not grow."""
        return self.key.nbytes + self.last_ms.nbytes + self.weight.nbytes

    def count(
        self, keys: NDArray[np.uint64], t_ms: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Take in accesses and return their bytes and their squares by bin of reuse time, float64[bins + 1] each.

        Parameters
        ----------
        keys, t_ms, sizes
            uint64[n], float64[n] rising, float64[n] in bytes.
        """
        made = core.count(self, keys, t_ms, sizes)
        return self.count_numpy(keys, t_ms, sizes) if made is None else made

    def count_numpy(
        self, keys: NDArray[np.uint64], t_ms: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Do what `count` does with numpy: the reference, and what counts where the core is not compiled."""
        reuse_ms, before = self._renew(keys, t_ms, sizes)
        scaled = np.log(np.maximum(reuse_ms, 1e-9) / self.shortest_ms) / self.log_step
        place = np.clip(np.floor(scaled) + 1.0, 0.0, self.bins).astype(np.intp)
        binned = np.bincount(place, weights=sizes, minlength=self.bins + 1)
        squares = np.bincount(place, weights=sizes * (2.0 * before + sizes), minlength=self.bins + 1)
        return binned.astype(np.float64), squares.astype(np.float64)

    def _renew(
        self, keys: NDArray[np.uint64], t_ms: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Reuse time (inf where new) and faded weight before each access, in the given order."""
        n = len(keys)
        out = _Accesses(keys, t_ms, sizes, np.empty(n), np.empty(n))
        if n == 0:
            return out.reuse_ms, out.before
        if t_ms[-1] - t_ms[0] > _LONG * self.decay_ms:
            self._one_by_one(np.arange(n), out)
            return out.reuse_ms, out.before
        order = np.argsort(keys, kind="stable")  # by key, and by time within a key
        lengths = _run_lengths(keys[order])
        firsts = keys[order[np.cumsum(lengths) - lengths]]
        contested = self._contested(firsts)
        self._each_in_its_set(order[np.repeat(~contested, lengths)], lengths[~contested], out)
        self._in_turns(np.sort(order[np.repeat(contested, lengths)]), out)
        return out.reuse_ms, out.before

    def _row_of(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        return (mix64(keys ^ _MIX_1) & np.uint64(self.sets - 1)).astype(np.intp)

    def _contested(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which keys share their set with another of these, one of them new: who goes depends on the order."""
        row = self._row_of(keys)
        new = ~((self.key[row] == keys[:, None]) & (self.last_ms[row] > -np.inf)).any(axis=1)
        touched = np.bincount(row, minlength=self.sets)[row] > 1
        return np.asarray(touched & (np.bincount(row[new], minlength=self.sets)[row] > 0))

    def _in_turns(self, places: NDArray[np.intp], out: _Accesses) -> None:
        """Take in accesses that contend for ways, each set in order of time: the first run of one key in each, then the next."""
        if len(places) > _FEW:
            by_set = places[np.argsort(self._row_of(out.keys[places]), kind="stable")]
            lengths = _run_lengths(out.keys[by_set])
            row = self._row_of(out.keys[by_set[np.cumsum(lengths) - lengths]])
            runs = _run_lengths(row)
            turn = np.arange(len(row)) - np.repeat(np.cumsum(runs) - runs, runs)
            wide = int((np.bincount(turn) > _FEW).sum())  # later turns are those of a few sets
            for now in range(wide):
                mine = turn == now
                self._each_in_its_set(by_set[np.repeat(mine, lengths)], lengths[mine], out)
            places = np.sort(by_set[np.repeat(turn >= wide, lengths)])
        self._one_by_one(places, out)

    def _each_in_its_set(self, places: NDArray[np.intp], lengths: NDArray[np.intp], out: _Accesses) -> None:
        """Take in runs of accesses to one key each, no two of which contend for a way; `places` run by run, in order of time."""
        if len(places) == 0:
            return
        ends = np.cumsum(lengths) - 1
        starts = ends - lengths + 1
        keys = out.keys[places[starts]]
        row = self._row_of(keys)
        last_ms = self.last_ms[row]
        known = (self.key[row] == keys[:, None]) & (last_ms > -np.inf)
        hit = known.any(axis=1)
        way = np.where(hit, known.argmax(axis=1), last_ms.argmin(axis=1))
        stored_ms = np.where(hit, self.last_ms[row, way], -np.inf)
        at_ms = np.maximum(out.t_ms[places], np.repeat(stored_ms, lengths))  # a stamp before the stored one is reuse at once
        asked = out.sizes[places]
        gaps = np.empty(len(places))
        gaps[1:] = at_ms[1:] - at_ms[:-1]
        gaps[starts] = at_ms[starts] - stored_ms
        # Weights fade: bring those of a key to the moment of its last access, sum, and bring the sums back to their own moments.
        # One moment for all keys would lie far from some when stamps go back, and what is summed there is lost to rounding.
        fade = np.exp(np.maximum((at_ms - np.repeat(at_ms[ends], lengths)) / self.decay_ms, _DEEPEST))
        carried = asked * fade
        stored = np.where(hit, self.weight[row, way], 0.0) * np.exp(-np.where(hit, gaps[starts], 0.0) / self.decay_ms)
        sums = np.cumsum(carried) - carried
        before = np.maximum((sums + np.repeat(stored * fade[starts] - sums[starts], lengths)) / fade, 0.0)
        out.reuse_ms[places], out.before[places] = gaps, before
        self.key[row, way] = keys
        self.last_ms[row, way] = at_ms[ends]
        self.weight[row, way] = before[ends] + asked[ends]

    def _one_by_one(self, places: NDArray[np.intp], out: _Accesses) -> None:
        """Take in accesses strictly in order: the rule of the module, word for word."""
        for place, row in zip(places.tolist(), self._row_of(out.keys[places]).tolist(), strict=True):
            key, now_ms, size = out.keys[place], float(out.t_ms[place]), float(out.sizes[place])
            last_ms = self.last_ms[row]
            found = np.flatnonzero((self.key[row] == key) & (last_ms > -np.inf))
            if len(found):
                way = int(found[0])
                reuse_ms = max(now_ms - float(last_ms[way]), 0.0)
                before = float(self.weight[row, way]) * math.exp(-reuse_ms / self.decay_ms)
                last_ms[way] = max(now_ms, float(last_ms[way]))
            else:
                way, reuse_ms, before = int(last_ms.argmin()), math.inf, 0.0
                self.key[row, way], last_ms[way] = key, now_ms
            self.weight[row, way] = before + size
            out.reuse_ms[place], out.before[place] = reuse_ms, before


def _run_lengths(values: NDArray[Any]) -> NDArray[np.intp]:
    """Lengths of the runs of equal neighbours."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return np.diff(np.append(starts, len(values)))
