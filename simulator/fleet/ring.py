"""The EMB cache of one instance, compiled: exact LRU over numbered cells, as in `simulator.core.emb_cache`.

A cell is one row, or one sampled row that stands for many. Each access writes its cell at the head of a log and stamps the cell
with that place; older places of it are stale. Cells between tail and head are cached, those behind the tail are the ghost list.
So a shrink advances the tail and an ordered refill walks it back. A full log is rewritten without stale places. A test compares
it with the model's own cache.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet.randomness import GOLDEN, mix
from simulator.fleet.state import (
    BINS,
    CELLS,
    DRIFT_CELLS,
    DRIFT_PER_MS,
    EMB_EVICTED,
    GHOST_LIMIT,
    GHOSTS,
    HEAD,
    NEW_FROM,
    OFFSET,
    ROWS_CAPACITY,
    ROWS_USED,
    SAMPLES,
    TAIL,
    Laws,
    Rows,
)

_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_PHASE = np.uint64(0x9FB2_1C65_1E98_DF25)
_TO_UNIT = 2.0**-32
NEVER = -1
NEW_ROWS = 8  # cells of a drifting rank, used in turn


@lean
def cell_of(
    value: np.uint64,
    now_ms: float,
    law: int,
    laws: Laws,
) -> int:
    """Return the cell that one access touches: its popularity from 64 random bits, who holds that rank now from the time."""
    scaled = (value >> _S32) * np.uint64(laws.ints[law, BINS])
    place = np.int64(scaled >> _S32)
    if (scaled & _LOW) >= np.uint64(laws.cut[law, place]):
        place = np.int64(laws.other[law, place])
    rank = laws.low[law, place] + np.int64(((value & _LOW) * np.uint64(laws.width[law, place])) >> _S32)
    drifting = laws.ints[law, DRIFT_CELLS]
    if rank < drifting:
        # Each rank changes hands at even intervals that begin at a time of its own; a new row takes it over.
        phase = np.float64(mix(np.uint64(rank) * GOLDEN + _PHASE) >> _S32) * _TO_UNIT
        epoch = np.int64(now_ms * laws.floats[law, DRIFT_PER_MS] + phase)
        if epoch > 0:
            return int(laws.ints[law, NEW_FROM] + (epoch - 1) % NEW_ROWS * drifting + rank)
    rank += laws.ints[law, OFFSET]
    return int(rank - laws.ints[law, CELLS] if rank >= laws.ints[law, CELLS] else rank)


@lean
def compact(ints: NDArray[np.int64], rows: Rows) -> None:
    """Rewrite the ring from virtual time 0 without stale slots, keeping the cached cells and the youngest ghosts."""
    last, ring = rows.last, rows.ring
    tail = ints[TAIL]
    drop = max(0, ints[GHOSTS] - ints[GHOST_LIMIT])
    count = ghosts = 0
    for time in range(ints[HEAD]):
        cell = ring[time]
        if last[cell] == time:
            if drop > 0:
                drop -= 1
                last[cell] = NEVER
                continue
            # In place: never ahead of where it reads, and a cell's live slot is its last one.
            ring[count] = cell
            last[cell] = count
            count += 1
            ghosts += time < tail
    ints[TAIL], ints[HEAD], ints[GHOSTS] = ghosts, count, ghosts


@lean
def touch(ints: NDArray[np.int64], rows: Rows, cells: NDArray[np.int64]) -> int:
    """Touch cells in order and return how many missed; a miss loads the cell and, when full, evicts the oldest."""
    misses = 0
    for cell in cells:
        misses += touch_one(ints, rows, cell)
    return misses


@lean
def touch_one(ints: NDArray[np.int64], rows: Rows, cell: int) -> bool:
    """Touch one cell; say whether it missed."""
    last, ring = rows.last, rows.ring
    size = len(ring)
    head, tail = ints[HEAD], ints[TAIL]
    seen = last[cell]
    last[cell] = head
    ring[head] = cell
    ints[HEAD] = head + 1
    missed = seen < tail
    if missed:
        ints[GHOSTS] -= seen != NEVER
        if ints[ROWS_USED] < ints[ROWS_CAPACITY]:
            ints[ROWS_USED] += 1
        else:
            while last[ring[tail]] != tail:
                tail += 1
            ints[TAIL] = tail + 1
            ints[GHOSTS] += 1
            ints[EMB_EVICTED] += ints[ROWS_USED] > 0
    if head + 1 == size:
        compact(ints, rows)
    return bool(missed)


@lean
def _noted(cell: int, one_in: int, shift: int) -> bool:
    if one_in > 1 and mix(np.uint64(cell)) % np.uint64(one_in) != np.uint64(0):
        return False
    return bool(shift == 0 or mix(np.uint64(cell + 1)) >> np.uint64(shift) == np.uint64(0))


@lean
def look_up(
    count: int,
    stream: np.uint64,
    now_ms: float,
    law: int,
    laws: Laws,
    ints: NDArray[np.int64],
    rows: Rows,
    record_one_in: int,
    record_shift: int,
) -> int:
    """Draw and touch the rows of one request and return the misses.

    One cell in `record_one_in` is noted (none below 1), and of these, unless the shift is 0, those whose spread number has no
    bits from `record_shift` on.
    """
    misses = 0
    for _ in range(count):
        stream += GOLDEN
        cell = cell_of(mix(stream), now_ms, law, laws)
        misses += touch_one(ints, rows, cell)
        if record_one_in > 0 and _noted(cell, record_one_in, record_shift):
            place = ints[SAMPLES]
            if place < len(rows.sampled):
                rows.sampled[place] = cell
                rows.sampled_ms[place] = now_ms
            ints[SAMPLES] = place + 1
    return misses


@lean
def trim(ints: NDArray[np.int64], rows: Rows) -> int:
    """Evict the oldest cells until the capacity holds; return how many."""
    last, ring = rows.last, rows.ring
    tail, dropped = ints[TAIL], 0
    while ints[ROWS_USED] > ints[ROWS_CAPACITY]:
        while last[ring[tail]] != tail:
            tail += 1
        tail += 1
        dropped += 1
        ints[ROWS_USED] -= 1
    ints[TAIL] = tail
    ints[GHOSTS] += dropped
    return dropped


@lean
def backlog(ints: NDArray[np.int64]) -> int:
    """Return the cells that an ordered refill could load."""
    return int(min(max(0, ints[ROWS_CAPACITY] - ints[ROWS_USED]), ints[GHOSTS]))


@lean
def refill(ints: NDArray[np.int64], rows: Rows, cells: int) -> int:
    """Load the youngest ghosts, up to so many; return how many were loaded."""
    loaded = min(cells, backlog(ints))
    last, ring = rows.last, rows.ring
    tail, left = ints[TAIL], loaded
    while left > 0:
        tail -= 1
        if last[ring[tail]] == tail:
            left -= 1
    ints[TAIL] = tail
    ints[ROWS_USED] += loaded
    ints[GHOSTS] -= loaded
    return loaded
