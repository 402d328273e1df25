"""A bounded sample of the items in an event log: for each sampled item how often it was ranked, by stretch of time.

Items are chosen by their hash, all or none of an item's occurrences (SHARDS with a fixed size, Waldspurger et al. 2015), so
that popular and rare ones are in the sample in their true proportion. Where a log has more occurrences than are looked at,
lines are chosen as well, and what was counted before is thinned at random to the same share. Time is cut into at most 64
stretches, which double in length as the log goes on. Names of items are hashed at once and not kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

STRETCHES = 64
MOST_ITEMS = 1 << 15
MOST_OCCURRENCES = 1 << 22
FIRST_STRETCH_MS = 1_000.0
_HASHES = 1 << 64
_LINES = 1 << 32
_SEED = 0x6772_666C


@dataclass(frozen=True, kw_only=True)
class ItemCounts:
    """What was counted.

    Attributes
    ----------
    counts : int32, shape (items, stretches)
        Occurrences of each sampled item that was seen, by stretch of time; items in the order of their hashes.
    stretch_ms : float
        Length of a stretch.
    span_ms : float
        From the first occurrence to the last.
    item_share, line_share : float
        Share of the items, and of the lines, that the sample has.
    occurrences : int
        Of all items in the chosen lines, sampled or not.
    """

    counts: NDArray[np.int32]
    stretch_ms: float
    span_ms: float
    item_share: float
    line_share: float
    occurrences: int


class ItemSample:
    """Counts items as lines are read; memory does not grow with the log.

    Parameters
    ----------
    most_items, most_occurrences : int
        More of them halve the share of items, or of lines.
    """

    def __init__(self, *, most_items: int = MOST_ITEMS, most_occurrences: int = MOST_OCCURRENCES) -> None:
        self._most_items = most_items
        self._most_occurrences = most_occurrences
        self._below = _HASHES
        self._lines_below = _LINES
        self._occurrences = 0
        self._counts: dict[int, list[int]] = {}
        self._first_ms = self._start_ms = self._latest_ms = 0.0
        self._stretch_ms = FIRST_STRETCH_MS
        self._began = False
        self._rng = np.random.default_rng(_SEED)

    def add(self, line: int, moment_ms: float, items: Sequence[object]) -> None:
        """Count the items of a line, which are text or whole numbers; lines may come a little out of order."""
        if line * 2_654_435_761 % _LINES >= self._lines_below:
            return
        place = self._place(moment_ms)
        self._occurrences += len(items)
        for item in items:
            # a text that is no Unicode is counted all the same
            key = xxhash.xxh3_64_intdigest(str(item).encode(errors="surrogatepass"))
            if key < self._below:
                counts = self._counts.get(key)
                if counts is None:
                    counts = self._counts[key] = [0] * STRETCHES
                    if len(self._counts) > self._most_items:
                        self._fewer_items()
                counts[place] += 1
        if self._occurrences > self._most_occurrences:
            self._fewer_lines()

    def taken(self) -> ItemCounts | None:
        """Return what was counted, None where no line had items."""
        if not self._counts:
            return None
        return ItemCounts(
            counts=np.array([self._counts[key] for key in sorted(self._counts)], dtype=np.int32),
            stretch_ms=self._stretch_ms,
            span_ms=self._latest_ms - self._first_ms,
            item_share=self._below / _HASHES,
            line_share=self._lines_below / _LINES,
            occurrences=self._occurrences,
        )

    def _place(self, moment_ms: float) -> int:
        if not self._began:
            self._began = True
            self._start_ms = self._first_ms = self._latest_ms = moment_ms
        self._first_ms, self._latest_ms = min(self._first_ms, moment_ms), max(self._latest_ms, moment_ms)
        while moment_ms - self._start_ms >= STRETCHES * self._stretch_ms:
            self._stretch_ms *= 2.0
            for counts in self._counts.values():
                half = [counts[place] + counts[place + 1] for place in range(0, STRETCHES, 2)]
                counts[:] = half + [0] * (STRETCHES - len(half))
        return max(0, int((moment_ms - self._start_ms) / self._stretch_ms))

    def _fewer_items(self) -> None:
        """Halve the share of items."""
        self._below //= 2
        self._counts = {key: counts for key, counts in self._counts.items() if key < self._below}

    def _fewer_lines(self) -> None:
        """Halve the share of lines, and thin what was counted to match."""
        self._lines_below //= 2
        self._occurrences //= 2
        keys = list(self._counts)
        kept = self._rng.binomial(np.array([self._counts[key] for key in keys]), 0.5) if keys else np.zeros((0, STRETCHES))
        self._counts = {key: row for key, row in zip(keys, kept.tolist(), strict=True) if any(row)}
