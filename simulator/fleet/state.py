"""Places in the state vectors of one instance: whole numbers and floats that the compiled loops read and write.

One vector of each kind an instance, and named tuples of arrays, keep the argument lists of the loops short.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Whole numbers.
HEAD, TAIL, ROWS_USED, GHOSTS, ROWS_CAPACITY, GHOST_LIMIT = range(6)
EMB_LIMIT, EMB_TARGET, KV_LIMIT, KV_USED, HOST_LIMIT, HOST_USED, SSD_LIMIT, SSD_USED = range(7, 15)
SERVING = 15
REQUESTS, KV_ASKED, KV_HIT, LOWER_HIT, ROWS_ASKED, ROWS_MISSED = range(16, 22)
REFILL_BYTES, RELOAD_BYTES, OFFLOAD_BYTES, KV_EVICTED, EMB_EVICTED, RESIZE_EVICTED = range(22, 28)
SAMPLES, KNOWN_USED, SINCE_LOOK, KNOWN_LAW, WASTED, USED, LATE, PREFIX_BYTES = range(28, 36)
ROWS_DEFAULTED, OFFLOAD_SEEN, OFFLOAD_ROOM, OFFLOAD_DROPS, OFFLOAD_DROPPED = range(36, 41)
EXPIRED, TOO_STALE, STALE_HITS = range(41, 44)
INTS = 44

# Floats.
FREE_AT, REFILLED_TO, REFILL_CARRY, SAMPLE_CARRY = range(4)
SAMPLES_TAKEN, ACCESSES, RATIO = range(4, 7)
HEAD_ROWS, HEAD_MISS, FULL_WINDOW, ROW_RATE, ASKED_FADED, TIME_FADED, LOOKED_AT = range(7, 14)
SERVICE_MS, SERVICE_SQUARED, EMB_MISS_MS, KV_MISS_MS, FILLED_AT = range(14, 19)
LINK_AT, OFFLOAD_LEFT, EMPTY_AT, BUSY_SINCE, BUSY_TRANSFERS, HIGHER_MS = range(19, 25)
FLOATS = 25

# Constants of a fleet, whole numbers.
PAGE_TOKENS, PAGE_BYTES, ROW_BYTES, ROWS_PER_TOKEN, CELL_BYTES, MODE, RECORD_ONE_IN, LAYERS, POOL_BYTES = range(9)
LOAD_BEHIND, BATCH_MOST, OFFLOAD_MOST, MOST_LAG, RECORD_SHIFT = range(9, 14)
NEVER_BEHIND = 101
UNBOUNDED = 1 << 62
FLEET_INTS = 14
# Modes: every row, some of them, none.
EVERY_ROW, SOME_ROWS, NO_ROWS = range(3)

# Constants of a fleet, floats.
LINK_PER_MS, GATHER_PER_SECOND, GATHER_FIXED_MS, REFILL_PER_SECOND, BLOCKING, SSD_PER_MS, RELOAD_FIXED_MS = range(7)
BASE_MS, TOKEN_FLOPS, PAIR_FLOPS, OUTPUT_FLOPS, FLOOR_FLOPS, FLOPS_PER_SECOND, WEIGHTS_MS, TOKEN_MS, STRETCH, EMPTY_MS = range(
    7, 17
)
TO_HOST_PER_MS, DUPLEX_TO_DEVICE, DUPLEX_TO_HOST, REFILL_YIELDS, BATCH_WINDOW_MS, TTL_MS, EMB_VERSION_MS = range(17, 24)
FLEET_FLOATS = 24

# Constants of a law, by kind.
CELLS, OFFSET, DRIFT_CELLS, BINS, GROUP, NEW_FROM = range(6)
LAW_INTS = 6
SHARE, DRIFT_PER_MS, CELL_ROWS = range(3)
LAW_FLOATS = 3

# Columns of a user's record.
OLDER, YOUNGER, TOKENS, PAGES, TIER, PREFIX, PINNED, EMB_VERSION = range(8)
RECORD = 8


class Users(NamedTuple):
    """Users of one instance by their number there.

    `record`, shape (users + one sentinel a tier, RECORD): neighbours in the list of a tier, tokens and pages of the state, the
    tier it is in, whether it is a prefix computed ahead, how many requests of a running batch need it, and the version of the
    embeddings it began with; `ready_ms` is when such a prefix is finished, `used_ms` when the user last asked.
    """

    record: NDArray[np.int32]
    ready_ms: NDArray[np.float64]
    used_ms: NDArray[np.float64]


class Batches(NamedTuple):
    """Requests of one instance that wait to run together, by bucket of length, and those that run; empty where nobody waits so.

    By bucket: upper edge in new tokens (the last bucket has none), first and last request that waits, how many there are, and
    when they may start. By request: who comes next in its bucket or batch (NOBODY for none), and the rows to fetch for it.
    `running` has the first request of the batch that runs.
    """

    edge: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    waiting: NDArray[np.int64]
    ready_ms: NDArray[np.float64]
    following: NDArray[np.int32]
    fetch: NDArray[np.int32]
    running: NDArray[np.int64]


class Rows(NamedTuple):
    """Row cache of one instance: last access by cell, the ring, and the accesses that were sampled for a policy.

    By law: sampled misses and accesses, both fading, how many samples had been taken at the law's last request, and over how
    many samples they fade. Where rows are left to the formula, by group of laws with the same popular rows: the window in
    accesses of the group, its law that was asked last (negative for none), and between which accesses of all groups it reaches.
    """

    last: NDArray[np.int32]
    ring: NDArray[np.int32]
    misses: NDArray[np.float64]
    expected: NDArray[np.float64]
    sampled_at: NDArray[np.float64]
    memory: NDArray[np.float64]
    window: NDArray[np.float64]
    window_law: NDArray[np.int64]
    oldest: NDArray[np.float64]
    youngest: NDArray[np.float64]
    sampled: NDArray[np.int32]
    sampled_ms: NDArray[np.float64]


class Laws(NamedTuple):
    """Popularity laws, the first index being the law: constants, alias tables of what is drawn, curves of what is not.

    `cut`, `other`, `low`, `width` say for each bin when another bin takes its place, which cells it covers. The curves are known
    at `window` accesses: cells and rows that a window of that length touches, the rest of the miss ratio, and rows in it that
    drift can replace, with the integral of these.
    """

    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    cut: NDArray[np.uint32]
    other: NDArray[np.int32]
    low: NDArray[np.int32]
    width: NDArray[np.int32]
    window: NDArray[np.float64]
    cells: NDArray[np.float64]
    rows: NDArray[np.float64]
    miss: NDArray[np.float64]
    loss: NDArray[np.float64]
    lost: NDArray[np.float64]


class Requests(NamedTuple):
    """Requests of one instance in order of arrival: what the log says, the user's number on its instance, and the outcome."""

    arrival_ms: NDArray[np.float64]
    user: NDArray[np.int32]
    history: NDArray[np.int32]
    candidates: NDArray[np.int32]
    law: NDArray[np.uint8]
    latency_ms: NDArray[np.float64]
    service_ms: NDArray[np.float64]
    kv_hit: NDArray[np.int32]
    host_hit: NDArray[np.int32]
    ssd_hit: NDArray[np.int32]
    rows_asked: NDArray[np.int32]
    rows_missed: NDArray[np.int32]
