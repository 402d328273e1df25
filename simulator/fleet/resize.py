"""What time does to one instance between requests, compiled: a split that settles, and rows that are refilled.

A new split counts from when it is wanted: what shrinks, shrinks first; what grows, grows when nothing is above a limit any more.
So the sum of the limits never exceeds the pool, also while a shrink of the KV cache waits for the user in service.
"""

import math

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet import link, ring
from simulator.fleet import users as kv
from simulator.fleet.state import (
    BLOCKING,
    CELL_BYTES,
    EMB_LIMIT,
    EMB_TARGET,
    FREE_AT,
    HEAD_ROWS,
    HIGHER_MS,
    HOST_LIMIT,
    KNOWN_LAW,
    KNOWN_USED,
    KV_LIMIT,
    KV_USED,
    LINK_PER_MS,
    MODE,
    NO_ROWS,
    OFFLOAD_LEFT,
    OFFLOAD_MOST,
    OFFLOAD_ROOM,
    POOL_BYTES,
    REFILL_BYTES,
    REFILL_CARRY,
    REFILL_PER_SECOND,
    REFILL_YIELDS,
    REFILLED_TO,
    RESIZE_EVICTED,
    ROW_BYTES,
    ROWS_CAPACITY,
    ROWS_USED,
    Laws,
    Rows,
    Users,
)
from simulator.fleet.window import cells_for, fit, free_rows, held_rows, look_at_head, reload_rows

MOST_REFILL_SHARE = 0.9
SHORT_MEMORY = 50.0  # samples over which a miss ratio is smoothed just after it has changed


@lean
def emb_used_bytes(fleet: NDArray[np.int64], ints: NDArray[np.int64], floats: NDArray[np.float64], rows: Rows, laws: Laws) -> int:
    """Return the bytes of the rows that are held."""
    if fleet[MODE] == NO_ROWS:
        return min(int(held_rows(floats, rows, laws) * fleet[ROW_BYTES]), int(ints[EMB_LIMIT]))
    head = 0.0
    if laws.rows[0, -1] > 0.0:
        look_at_head(ints, floats, 0, laws)
        head = floats[HEAD_ROWS]
    used = ints[ROWS_USED] * fleet[CELL_BYTES] + int(head * fleet[ROW_BYTES])
    return int(used if ints[ROWS_USED] > ints[ROWS_CAPACITY] else min(used, ints[EMB_LIMIT]))


@lean
def set_emb_limit(
    fleet: NDArray[np.int64], ints: NDArray[np.int64], floats: NDArray[np.float64], rows: Rows, laws: Laws, limit: int
) -> None:
    """Set the EMB limit and evict what is above it."""
    before = emb_used_bytes(fleet, ints, floats, rows, laws)
    ints[EMB_LIMIT] = limit
    if fleet[MODE] == NO_ROWS:
        fit(fleet, ints, floats, rows, laws)
        ints[KNOWN_LAW] = -1
    else:
        if laws.rows[0, -1] > 0.0:
            ints[ROWS_CAPACITY] = cells_for(float(limit // fleet[ROW_BYTES]), 0, laws)
        else:
            ints[ROWS_CAPACITY] = limit // fleet[CELL_BYTES]
        ring.trim(ints, rows)
        ints[KNOWN_USED] = -1
        for law in range(len(rows.expected)):  # what was measured at another size says little
            rows.memory[law] = SHORT_MEMORY
            if rows.expected[law] > SHORT_MEMORY:
                rows.misses[law] *= SHORT_MEMORY / rows.expected[law]
                rows.expected[law] = SHORT_MEMORY
    ints[RESIZE_EVICTED] += max(0, before - emb_used_bytes(fleet, ints, floats, rows, laws))


@lean
def refill_backlog(fleet: NDArray[np.int64], ints: NDArray[np.int64], floats: NDArray[np.float64], rows: Rows, laws: Laws) -> int:
    """Return the bytes that an ordered refill could load: free room, as far as rows evicted earlier can fill it."""
    if fleet[MODE] == NO_ROWS:
        return int(free_rows(fleet, ints, floats, rows, laws) * fleet[ROW_BYTES])
    return int(ring.backlog(ints) * fleet[CELL_BYTES])


@lean
def refilling(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    rows: Rows,
    laws: Laws,
) -> bool:
    """Say whether an ordered refill is under way."""
    return bool(physics[REFILL_PER_SECOND] > 0.0 and refill_backlog(fleet, ints, floats, rows, laws) > 0)


@lean
def share_taken(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    rows: Rows,
    laws: Laws,
) -> float:
    """Return the share of the link that is set aside for a refill now."""
    if physics[REFILL_YIELDS] > 0.0:
        return 0.0
    if physics[REFILL_PER_SECOND] <= 0.0 or refill_backlog(fleet, ints, floats, rows, laws) == 0:
        return 0.0
    share: float = min(MOST_REFILL_SHARE, physics[REFILL_PER_SECOND] / (physics[LINK_PER_MS] * 1e3))
    return share


@lean
def load_rows(
    fleet: NDArray[np.int64], ints: NDArray[np.int64], floats: NDArray[np.float64], rows: Rows, laws: Laws, budget_bytes: int
) -> int:
    """Load the rows evicted last, up to a budget; return the bytes loaded."""
    if fleet[MODE] == NO_ROWS:
        loaded = min(budget_bytes, refill_backlog(fleet, ints, floats, rows, laws)) // fleet[ROW_BYTES]
        reload_rows(floats, ints, rows, laws, loaded)
        return int(loaded * fleet[ROW_BYTES])
    return int(ring.refill(ints, rows, budget_bytes // fleet[CELL_BYTES]) * fleet[CELL_BYTES])


@lean
def refill_until(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    rows: Rows,
    laws: Laws,
    now_ms: float,
) -> None:
    """Spend the refill budget of the time passed; what is below one row is carried on."""
    elapsed = now_ms - floats[REFILLED_TO]
    if elapsed <= 0.0:
        return
    floats[REFILLED_TO] = now_ms
    if physics[REFILL_YIELDS] > 0.0:
        used = min(floats[HIGHER_MS], elapsed)
        floats[HIGHER_MS] -= used
        elapsed -= used
    if refill_backlog(fleet, ints, floats, rows, laws) == 0:
        floats[REFILL_CARRY] = 0.0
        return
    budget = floats[REFILL_CARRY] + physics[REFILL_PER_SECOND] * elapsed / 1e3
    loaded = load_rows(fleet, ints, floats, rows, laws, int(budget))
    ints[REFILL_BYTES] += loaded
    floats[REFILL_CARRY] = budget - loaded if refill_backlog(fleet, ints, floats, rows, laws) > 0 else 0.0


@lean
def settle(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    laws: Laws,
    serving: int,
    now_ms: float,
) -> None:
    """Shrink what must and, when nothing is above a limit, let the other side grow."""
    target, pool_bytes = ints[EMB_TARGET], fleet[POOL_BYTES]
    if target < ints[EMB_LIMIT]:
        set_emb_limit(fleet, ints, floats, rows, laws, target)
    ints[KV_LIMIT] = min(ints[KV_LIMIT], pool_bytes - target)
    kv.trim(fleet, ints, users, serving)
    if ints[KV_USED] > ints[KV_LIMIT]:
        return
    ints[KV_LIMIT] = pool_bytes - target
    if target > ints[EMB_LIMIT]:
        set_emb_limit(fleet, ints, floats, rows, laws, target)
        if physics[BLOCKING] > 0.0:
            loaded = load_rows(fleet, ints, floats, rows, laws, refill_backlog(fleet, ints, floats, rows, laws))
            ints[REFILL_BYTES] += loaded
            floats[FREE_AT] = max(floats[FREE_AT], now_ms) + loaded / physics[LINK_PER_MS]


@lean
def advance(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    laws: Laws,
    serving: int,
    now_ms: float,
) -> None:
    """Move time forward: off-load what waits, refill under the cap, then settle a split that waits."""
    if ints[HOST_LIMIT] > 0:
        link.offload_until(physics, ints, floats, refilling(physics, fleet, ints, floats, rows, laws), now_ms)
        ints[OFFLOAD_ROOM] = fleet[OFFLOAD_MOST] - math.ceil(floats[OFFLOAD_LEFT])
    if physics[REFILL_PER_SECOND] > 0.0:
        refill_until(physics, fleet, ints, floats, rows, laws, now_ms)
    if ints[EMB_TARGET] != ints[EMB_LIMIT]:
        settle(physics, fleet, ints, floats, users, rows, laws, serving, now_ms)
