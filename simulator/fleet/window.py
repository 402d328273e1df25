"""Che's window of one instance, compiled: how far back its EMB cache reaches, and what the formula says of rows not simulated.

With every row left to the formula the window is the state of the cache: it grows by each access until the cache is full, a refill
moves it back faster, a shrink cuts it. Laws with other popular rows have windows of their own, spread evenly between the oldest
and the youngest access they hold; the one that reaches furthest back yields. With some rows simulated, the window is read off
their number.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet.state import (
    ACCESSES,
    ASKED_FADED,
    CELL_ROWS,
    DRIFT_PER_MS,
    EMB_LIMIT,
    FULL_WINDOW,
    GROUP,
    HEAD_MISS,
    HEAD_ROWS,
    KNOWN_LAW,
    KNOWN_USED,
    LOOKED_AT,
    RATIO,
    REQUESTS,
    ROW_BYTES,
    ROW_RATE,
    ROWS_USED,
    SINCE_LOOK,
    TIME_FADED,
    Laws,
    Rows,
)

LOOK_EVERY = 1024
MOST_STEPS = 2000
_KEEP = 0.8
_NONE = -1


@lean
def at(grid: NDArray[np.float64], values: NDArray[np.float64], x: float) -> float:
    """Return a curve at x: linear between points, flat beyond the ends."""
    last = len(grid) - 1
    if x <= grid[0]:
        return float(values[0])
    if x >= grid[last]:
        return float(values[last])
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) >> 1
        if grid[middle] <= x:
            low = middle
        else:
            high = middle
    share = (x - grid[low]) / (grid[high] - grid[low])
    return float(values[low] + share * (values[high] - values[low]))


@lean
def inverse(grid: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64], weight: float, y: float) -> float:
    """Return where first + weight * second, which rises over the grid, reaches y; the last point when it never does."""
    last = len(grid) - 1
    if first[last] + weight * second[last] <= y:
        return float(grid[last])
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) >> 1
        if first[middle] + weight * second[middle] <= y:
            low = middle
        else:
            high = middle
    below, above = first[low] + weight * second[low], first[high] + weight * second[high]
    share = (y - below) / (above - below) if above > below else 0.0
    return float(grid[low] + max(0.0, share) * (grid[high] - grid[low]))


@lean
def note_rate(ints: NDArray[np.int64], floats: NDArray[np.float64], asked: int, now_ms: float) -> None:
    """Count the rows asked; about every thousand requests renew the rate at which they come, and what rests on it."""
    floats[ASKED_FADED] += asked
    floats[ACCESSES] += asked
    ints[SINCE_LOOK] += 1
    # At first more often: the rate is not known before the first look.
    if ints[SINCE_LOOK] >= min(LOOK_EVERY, 16 + ints[REQUESTS] // 4):
        ints[SINCE_LOOK] = 0
        floats[TIME_FADED] += now_ms - floats[LOOKED_AT]
        floats[LOOKED_AT] = now_ms
        if floats[TIME_FADED] > 0.0:
            floats[ROW_RATE] = floats[ASKED_FADED] / floats[TIME_FADED]
        floats[ASKED_FADED] *= _KEEP
        floats[TIME_FADED] *= _KEEP
        ints[KNOWN_LAW] = ints[KNOWN_USED] = _NONE


@lean
def replaced(floats: NDArray[np.float64], law: int, laws: Laws) -> float:
    """Return how often each drifting rank is replaced, per access."""
    rate = floats[ROW_RATE]
    return float(laws.floats[law, DRIFT_PER_MS] / rate) if rate > 0.0 else 0.0


@lean
def look_at_head(ints: NDArray[np.int64], floats: NDArray[np.float64], law: int, laws: Laws) -> None:
    """Renew what the formula says of the head, if the number of simulated cells that are held has changed."""
    if ints[KNOWN_USED] == ints[ROWS_USED]:
        return
    ints[KNOWN_USED] = ints[ROWS_USED]
    window = inverse(laws.window, laws.cells[law], laws.cells[law], 0.0, float(ints[ROWS_USED]))
    floats[HEAD_ROWS] = at(laws.window, laws.rows[law], window)
    floats[HEAD_MISS] = _ratio_at(floats, laws, law, window)


@lean
def cells_for(limit_rows: float, law: int, laws: Laws) -> int:
    """Return how many cells fit beside the head's share of a limit."""
    one_in = laws.floats[law, CELL_ROWS]
    window = inverse(laws.window, laws.rows[law], laws.cells[law], one_in, limit_rows)
    return int(max(0.0, limit_rows - at(laws.window, laws.rows[law], window)) / one_in)


@lean
def held_rows(floats: NDArray[np.float64], rows: Rows, laws: Laws) -> float:
    """Return the rows that all windows together hold, rows that drift has replaced meanwhile included."""
    total = 0.0
    for group in range(len(rows.window)):
        law = rows.window_law[group]
        if law >= 0:
            total += at(laws.window, laws.rows[law], rows.window[group])
            total += replaced(floats, law, laws) * at(laws.window, laws.lost[law], rows.window[group])
    return total


@lean
def fit(fleet: NDArray[np.int64], ints: NDArray[np.int64], floats: NDArray[np.float64], rows: Rows, laws: Laws) -> None:
    """Shorten the windows, the one that reaches furthest back first, until what they hold fits the limit."""
    limit = float(ints[EMB_LIMIT] // fleet[ROW_BYTES])
    for _ in range(MOST_STEPS):
        over = held_rows(floats, rows, laws) - limit
        if over <= 0.0:
            return
        oldest = -1
        for group in range(len(rows.window)):
            if rows.window[group] > 0.0 and (oldest < 0 or rows.oldest[group] < rows.oldest[oldest]):
                oldest = group
        if oldest < 0:
            return
        law = rows.window_law[oldest]
        if len(rows.window) == 1:
            full = inverse(laws.window, laws.rows[law], laws.lost[law], replaced(floats, law, laws), limit)
            _set_window(rows, 0, min(full, float(rows.window[0])))
            return
        # A window gains rows at its miss ratio: its slope is known, and a step never cuts more than a twentieth.
        slope = at(laws.window, laws.miss[law], rows.window[oldest])
        shorter = rows.window[oldest] - max(1.0, over / slope if slope > 0.0 else rows.window[oldest])
        _set_window(rows, oldest, max(shorter, 0.95 * rows.window[oldest] if rows.window[oldest] > 1000.0 else 0.0))


@lean
def _set_window(rows: Rows, group: int, window: float) -> None:
    """Move the old end of a window, which is spread evenly up to its youngest access."""
    if rows.window[group] > 0.0:
        rows.oldest[group] = rows.youngest[group] - (rows.youngest[group] - rows.oldest[group]) * window / rows.window[group]
    rows.window[group] = window


@lean
def free_rows(fleet: NDArray[np.int64], ints: NDArray[np.int64], floats: NDArray[np.float64], rows: Rows, laws: Laws) -> int:
    """Return the rows that an ordered refill could load."""
    if len(rows.window) == 1 and ints[KNOWN_LAW] >= 0 and rows.window[0] >= floats[FULL_WINDOW]:
        return 0
    limit = float(ints[EMB_LIMIT] // fleet[ROW_BYTES])
    free = limit - held_rows(floats, rows, laws)
    return int(free) if free > 1e-3 * limit and _youngest_end(rows, laws) >= 0 else 0


@lean
def _youngest_end(rows: Rows, laws: Laws) -> int:
    """Return the group whose old end is the youngest and not yet at the end of its curve; -1 for none."""
    found = -1
    for group in range(len(rows.window)):
        open_end = 0.0 < rows.window[group] < laws.window[-1]
        if open_end and (found < 0 or rows.oldest[group] > rows.oldest[found]):
            found = group
    return found


@lean
def reload_rows(floats: NDArray[np.float64], ints: NDArray[np.int64], rows: Rows, laws: Laws, loaded: int) -> None:
    """Lengthen the windows by rows that were loaded, the one that reaches back least first."""
    goal = held_rows(floats, rows, laws) + loaded
    ints[KNOWN_LAW] = _NONE
    for _ in range(MOST_STEPS):
        group = _youngest_end(rows, laws)
        missing = goal - held_rows(floats, rows, laws)
        if missing < 0.5 or group < 0:
            return
        # The curve bends down, so steps along its slope come from below.
        law = rows.window_law[group]
        slope = max(at(laws.window, laws.miss[law], rows.window[group]), 1e-9)
        longer = min(rows.window[group] + max(1.0, missing / slope), 2.0 * rows.window[group] + 1.0)
        if len(rows.window) > 1:
            longer = min(longer, 1.05 * rows.window[group] + 1000.0)
        _set_window(rows, group, min(longer, float(laws.window[-1])))


@lean
def miss_ratio(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    rows: Rows,
    laws: Laws,
    law: int,
    asked: int,
) -> float:
    """Return the miss ratio of one request's rows and let them lengthen the window."""
    group = laws.ints[law, GROUP]
    window = rows.window[group]
    if ints[KNOWN_LAW] != law:
        # A new limit, rate or law: where the window ends, and what it says now.
        ints[KNOWN_LAW] = law
        rows.window_law[group] = law
        limit = float(ints[EMB_LIMIT] // fleet[ROW_BYTES])
        floats[FULL_WINDOW] = inverse(laws.window, laws.rows[law], laws.lost[law], replaced(floats, law, laws), limit)
        floats[RATIO] = _ratio_at(floats, laws, law, window)
    ratio = float(floats[RATIO])
    rows.youngest[group] = floats[ACCESSES]
    if len(rows.window) == 1:
        longer = min(window + asked, floats[FULL_WINDOW])
        rows.oldest[0] += asked - (longer - window)
        if longer != window:
            rows.window[0] = longer
            floats[RATIO] = _ratio_at(floats, laws, law, longer)
    else:
        ratio = _ratio_at(floats, laws, law, window)
        if window == 0.0:
            rows.oldest[group] = floats[ACCESSES] - asked
        rows.window[group] = window + asked
        fit(fleet, ints, floats, rows, laws)
        ints[KNOWN_LAW] = law
    return ratio


@lean
def _ratio_at(floats: NDArray[np.float64], laws: Laws, law: int, window: float) -> float:
    # Drift began with the log, when all was as if there had never been any.
    since = min(window, float(floats[ACCESSES]))
    ratio = at(laws.window, laws.miss[law], window)
    return min(1.0, ratio + replaced(floats, law, laws) * at(laws.window, laws.loss[law], since))
