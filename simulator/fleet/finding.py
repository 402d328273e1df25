"""What one request finds, compiled: state of its user in HBM and below, and how many of its rows miss.

The rules are those of `simulator.core.instance`; who serves when is the business of `kernel` (one after the other) and of
`batches`.
"""

import math

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet import link, ring
from simulator.fleet import users as kv
from simulator.fleet.randomness import binomial, mix
from simulator.fleet.resize import SHORT_MEMORY
from simulator.fleet.service import compute_ms
from simulator.fleet.state import (
    CELL_ROWS,
    EVERY_ROW,
    FILLED_AT,
    HEAD_MISS,
    KV_ASKED,
    KV_EVICTED,
    KV_HIT,
    LOWER_HIT,
    MODE,
    NO_ROWS,
    PAGE_BYTES,
    PAGES,
    RATIO,
    RECORD_ONE_IN,
    RECORD_SHIFT,
    RELOAD_BYTES,
    REQUESTS,
    ROW_BYTES,
    ROWS_ASKED,
    ROWS_MISSED,
    ROWS_PER_TOKEN,
    SAMPLE_CARRY,
    SAMPLES_TAKEN,
    SHARE,
    TIER,
    TOKENS,
    Laws,
    Requests,
    Rows,
    Users,
)
from simulator.fleet.window import look_at_head, miss_ratio, note_rate

MISS_WINDOW = 800.0  # samples over which the miss ratio is smoothed: shorter is noise in the latencies, longer is lag
MEMORY_GROWTH = 0.25
_NOISE = np.uint64(0x2545_F491_4F6C_DD1D)


@lean
def rows_missed(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    rows: Rows,
    laws: Laws,
    law: int,
    asked: int,
    stream: np.uint64,
    now_ms: float,
) -> int:
    """Look up the rows of one request and return how many missed."""
    if asked == 0:
        return 0
    note_rate(ints, floats, asked, now_ms)
    if fleet[MODE] == NO_ROWS:
        ratio = miss_ratio(fleet, ints, floats, rows, laws, law, asked)
        return binomial(asked, ratio, mix(stream ^ _NOISE))
    share = laws.floats[law, SHARE]
    count = asked
    if fleet[MODE] != EVERY_ROW:
        # As many samples as are expected, with the fraction carried on: their number adds no noise of its own.
        wanted = floats[SAMPLE_CARRY] + asked * share
        count = int(wanted)
        floats[SAMPLE_CARRY] = wanted - count
    missed = ring.look_up(count, stream, now_ms, law, laws, ints, rows, fleet[RECORD_ONE_IN], fleet[RECORD_SHIFT])
    floats[SAMPLES_TAKEN] += count
    passed = floats[SAMPLES_TAKEN] - rows.sampled_at[law]
    rows.sampled_at[law] = floats[SAMPLES_TAKEN]
    keep = math.exp(-passed / rows.memory[law])
    # After a resize, or when a law comes (back), the ratio is new and moves fast: the memory is short, and grows.
    memory = rows.memory[law] + MEMORY_GROWTH * count if passed < rows.memory[law] + count else SHORT_MEMORY
    rows.memory[law] = min(MISS_WINDOW, memory)
    rows.misses[law] = rows.misses[law] * keep + missed
    rows.expected[law] = rows.expected[law] * keep + count
    ratio = rows.misses[law] / rows.expected[law] if rows.expected[law] > 0.0 else 0.0
    if fleet[MODE] == EVERY_ROW:
        floats[RATIO] = ratio
        return missed
    if laws.rows[law, -1] > 0.0:
        look_at_head(ints, floats, law, laws)
    floats[RATIO] = min(1.0, ratio * share * laws.floats[law, CELL_ROWS] + floats[HEAD_MISS])
    return binomial(asked, floats[RATIO], mix(stream ^ _NOISE))


@lean
def ask(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    user: int,
    history: int,
    serving: int,
    now_ms: float,
) -> tuple[int, int, int]:
    """Ask all tiers for a history and leave it in HBM, where it fits, or where it was.

    Returns (tokens hit in HBM, the tier below in which the user was, tokens of it that could be loaded).
    """
    kv.settle_prefix(fleet, ints, users, user, now_ms)
    record = users.record
    below, available = int(record[user, TIER]), 0
    held, pages = record[user, TOKENS], record[user, PAGES]
    if below >= kv.HOST:
        available = min(int(held), history)
        kv.leave_lower_tier(fleet, ints, users, user)
    hit = kv.access(fleet, ints, users, user, history, serving)
    if floats[FILLED_AT] < 0.0 and ints[KV_EVICTED] > 0:
        floats[FILLED_AT] = now_ms
    if available > 0 and record[user, TIER] == kv.NOWHERE:  # no room in HBM: it stays on the host
        record[user, TOKENS], record[user, PAGES] = held, pages
        kv.sink(fleet, ints, users, user)
    return hit, below, available


@lean
def chosen(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    history: int,
    candidates: int,
    available: int,
    from_ssd: bool,
    taken: float,
    left: float,
) -> tuple[int, float]:
    """Load what lies below HBM, when that is not slower than computing it and looking its rows up again.

    Returns (tokens that are loaded, milliseconds of the load); both 0 when it is computed.
    """
    per_token = fleet[ROWS_PER_TOKEN] * floats[RATIO]
    again = link.gather_beside_ms(physics, fleet[ROW_BYTES], int(per_token * available), taken, left)
    shorter = compute_ms(physics, history, candidates, available)
    size = kv.pages_of(fleet, available) * fleet[PAGE_BYTES]
    load = link.load_ms(physics, left, size, from_ssd, taken)
    stall = link.stall_ms(physics, fleet, load, shorter)
    if stall + shorter > compute_ms(physics, history, candidates, 0) + again:
        return 0, 0.0
    ints[RELOAD_BYTES] += size
    return available, load


@lean
def note(
    place: int,
    requests: Requests,
    ints: NDArray[np.int64],
    history: int,
    hit: int,
    loaded: int,
    below: int,
    asked: int,
    missed: int,
) -> None:
    """Note what one request found."""
    requests.kv_hit[place] = hit
    requests.host_hit[place] = loaded if below == kv.HOST else 0
    requests.ssd_hit[place] = loaded if below == kv.SSD else 0
    requests.rows_asked[place] = asked
    requests.rows_missed[place] = missed
    ints[REQUESTS] += 1
    ints[KV_ASKED] += history
    ints[KV_HIT] += hit
    ints[LOWER_HIT] += loaded
    ints[ROWS_ASKED] += asked
    ints[ROWS_MISSED] += missed
