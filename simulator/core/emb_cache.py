"""The EMB cache: exact LRU over the hash-sampled embedding rows, standing for one in N of the real rows.

A lazy ring keeps the order: each access stamps its row with the next virtual time and appends it; a slot whose row has a later
stamp is stale. Rows between `tail` and `head` are cached; rows behind the tail are the ghost list in exact LRU order, so that a
shrink is an advance of the tail, and an ordered refill after growth walks it back.
"""

import math
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class EmbCache:
    """LRU of sampled rows under a byte limit that may change at any time.

    Parameters
    ----------
    one_in : int
        Each sampled row stands for this many rows; capacity and bytes are scaled by it.
    row_bytes, limit_bytes : int
    max_bytes : int
        The most that a limit will ever be; sizes the ring and the ghost list.
    """

    def __init__(self, *, one_in: int, row_bytes: int, limit_bytes: int, max_bytes: int) -> None:
        self._unit = one_in * row_bytes
        self._ghost_limit = max(1, max_bytes // self._unit)
        size = 1 << max(10, math.ceil(math.log2(4 * self._ghost_limit + 4)))
        self._mask = size - 1
        self._ring = array("q", bytes(8 * size))
        self._last = array("q")
        self._head = self._tail = self._floor = 0
        self._used = self._ghosts = 0
        self.limit_bytes = limit_bytes
        self._capacity = limit_bytes // self._unit
        self.evicted_capacity_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used * self._unit

    @property
    def holds_rows(self) -> bool:
        """Whether a row is cached, or there is room for one."""
        return self._used > 0 or self._capacity > 0

    @property
    def overage_bytes(self) -> int:
        return max(0, self.used_bytes - self.limit_bytes)

    @property
    def backlog_bytes(self) -> int:
        """Bytes that an ordered refill could load: free room, as far as rows evicted earlier can fill it."""
        return min(max(0, self._capacity - self._used), self._ghosts) * self._unit

    def access(self, rows: Iterable[int]) -> int:
        """Touch sampled rows in order and return how many missed; a miss loads the row and, when full, evicts the oldest."""
        # The hot loop of the model: state lives in locals and is written back at its end and before the ring is compacted.
        last, ring, mask, capacity = self._last, self._ring, self._mask, self._capacity
        head, tail, used, ghosts, full_at = self._head, self._tail, self._used, self._ghosts, self._floor + mask
        misses = evicted = 0
        for row in rows:
            try:
                seen = last[row]
            except IndexError:
                last.extend(array("q", [-1]) * (row + row // 4 + 64 - len(last)))
                seen = -1
            last[row] = head
            ring[head & mask] = row
            head += 1
            if seen < tail:
                misses += 1
                if seen >= self._floor:
                    ghosts -= 1
                if used < capacity:
                    used += 1
                else:
                    # Full, or above the limit: one goes for the one that came (which itself goes when there is no room at all).
                    while last[ring[tail & mask]] != tail:
                        tail += 1
                    tail += 1
                    ghosts += 1
                    evicted += used > 0
            if head > full_at:
                self._head, self._tail, self._used, self._ghosts = head, tail, used, ghosts
                self._compact()
                head, tail, ghosts, full_at = self._head, self._tail, self._ghosts, self._floor + mask
        self._head, self._tail, self._used, self._ghosts = head, tail, used, ghosts
        self.evicted_capacity_bytes += evicted * self._unit
        return misses

    def set_limit(self, limit_bytes: int) -> None:
        """Change the limit; nothing is evicted before `trim`, and while above the limit a miss replaces instead of adding."""
        self.limit_bytes = limit_bytes
        self._capacity = limit_bytes // self._unit

    def trim(self) -> int:
        """Evict the oldest rows until the limit holds; return the bytes evicted."""
        before = self._used
        while self._used > self._capacity:
            self._drop_oldest()
        return (before - self._used) * self._unit

    def refill(self, budget_bytes: int) -> int:
        """Load the youngest rows of the ghost list into free room, up to a budget; return the bytes loaded."""
        left = min(budget_bytes, self.backlog_bytes) // self._unit
        loaded = left * self._unit
        last, ring, mask = self._last, self._ring, self._mask
        while left:
            self._tail -= 1
            if last[ring[self._tail & mask]] == self._tail:
                left -= 1
                self._used += 1
                self._ghosts -= 1
        return loaded

    def fill(self, rows: Sequence[int]) -> None:
        """Forget everything, then hold these rows (oldest first); those that do not fit become the ghost list."""
        self.clear()
        counted = self.evicted_capacity_bytes
        self.access(rows[-2 * self._ghost_limit :])
        self.evicted_capacity_bytes = counted

    def clear(self) -> int:
        """Drop all rows and the ghost list; return the bytes that were cached."""
        dropped = self.used_bytes
        self._tail = self._floor = self._head
        self._used = self._ghosts = 0
        return dropped

    def rows_oldest_first(self) -> list[int]:
        """Return the cached sampled rows in LRU order."""
        return [int(row) for row in self._live(self._tail, self._head)]

    def _drop_oldest(self) -> None:
        last, ring, mask, tail = self._last, self._ring, self._mask, self._tail
        while last[ring[tail & mask]] != tail:
            tail += 1
        self._tail = tail + 1
        self._used -= 1
        self._ghosts += 1

    def _live(self, start: int, stop: int) -> NDArray[np.int64]:
        times = np.arange(start, stop, dtype=np.int64)
        rows = np.frombuffer(self._ring, dtype=np.int64)[times & self._mask]
        found: NDArray[np.int64] = rows[np.frombuffer(self._last, dtype=np.int64)[rows] == times] if len(rows) else rows
        return found

    def _compact(self) -> None:
        """Rewrite the ring without stale slots, keeping the cached rows and the youngest ghosts."""
        cached = self._live(self._tail, self._head)
        ghosts = self._live(self._floor, self._tail)[-self._ghost_limit :]
        rows = np.concatenate((ghosts, cached))
        times = np.arange(self._head, self._head + len(rows), dtype=np.int64)
        np.frombuffer(self._ring, dtype=np.int64)[times & self._mask] = rows
        np.frombuffer(self._last, dtype=np.int64)[rows] = times
        self._floor = self._head
        self._tail = self._head + len(ghosts)
        self._head += len(rows)
        self._ghosts = len(ghosts)


class MissRatio:
    """Smoothed miss ratio of the sampled cache: misses over *expected* samples, in a window of about 400 of them.

    Dividing by the expected number (rows asked / N), not by the accesses that were sampled, keeps the estimate free of whether a
    hot row happens to be in the sample; smoothing keeps the noise of multiplying few misses by N out of the latencies.
    """

    def __init__(self, *, window: float = 400.0) -> None:
        self._window = window
        self._misses = 0.0
        self._expected = 0.0

    def update(self, *, misses: int, expected: float) -> float:
        """Take one request's sampled misses in and return the ratio, between 0 and 1."""
        keep = math.exp(-expected / self._window)
        self._misses = self._misses * keep + misses
        self._expected = self._expected * keep + expected
        return min(1.0, self._misses / self._expected) if self._expected > 0 else 0.0

    def prime(self, ratio: float) -> None:
        """Start from a known ratio, as after a warm start."""
        self._misses, self._expected = ratio * self._window, self._window
