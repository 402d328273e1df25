"""The loop of the fleet: one instance serves its requests in order of arrival.

Per request: what time has done since the last one (jobs ended, a split settled, rows refilled), the KV cache and the tiers below
it, the rows of what was not cached, the service law, and Lindley's recursion (start = max(arrival, server free)). The order and
the rules are those of `simulator.core.instance`, which a test compares request by request.
"""

import math

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet import link, resize, ring
from simulator.fleet import users as kv
from simulator.fleet.randomness import binomial, mix, stream_of
from simulator.fleet.resize import SHORT_MEMORY, refill_backlog
from simulator.fleet.service import compute_ms, gather_ms
from simulator.fleet.state import (
    CELL_ROWS,
    DUPLEX_TO_DEVICE,
    EMB_MISS_MS,
    EVERY_ROW,
    FILLED_AT,
    FREE_AT,
    GATHER_FIXED_MS,
    GATHER_PER_SECOND,
    HEAD_MISS,
    HOST_LIMIT,
    KV_ASKED,
    KV_EVICTED,
    KV_HIT,
    KV_MISS_MS,
    LAYERS,
    LINK_PER_MS,
    LOAD_BEHIND,
    LOWER_HIT,
    MODE,
    NO_ROWS,
    OFFLOAD_LEFT,
    PAGE_BYTES,
    PAGES,
    RATIO,
    RECORD_ONE_IN,
    REFILL_PER_SECOND,
    REFILL_YIELDS,
    RELOAD_BYTES,
    RELOAD_FIXED_MS,
    REQUESTS,
    ROW_BYTES,
    ROWS_ASKED,
    ROWS_DEFAULTED,
    ROWS_MISSED,
    ROWS_PER_TOKEN,
    SAMPLE_CARRY,
    SAMPLES_TAKEN,
    SERVICE_MS,
    SERVICE_SQUARED,
    SERVING,
    SHARE,
    SSD_PER_MS,
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
MOST_REFILL_SHARE = 0.9
_NOISE = np.uint64(0x2545_F491_4F6C_DD1D)


@lean
def user_in_service(ints: NDArray[np.int64], place: int, requests: Requests, now_ms: float) -> int:
    """Return the user whose job the server works on; jobs before `place` are known."""
    serving = ints[SERVING]
    found = kv.NOBODY
    while serving < place:
        arrival, latency, service = requests.arrival_ms[serving], requests.latency_ms[serving], requests.service_ms[serving]
        done = arrival + latency
        if done > now_ms:
            start = arrival if latency == service else done - service
            if start <= now_ms:
                found = requests.user[serving]
            break
        serving += 1
    ints[SERVING] = serving
    return found


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
    missed = ring.look_up(count, stream, now_ms, law, laws, ints, rows, fleet[RECORD_ONE_IN])
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
def load_ms(physics: NDArray[np.float64], left: float, size: int, from_ssd: bool, taken: float) -> float:
    """Return milliseconds to load so many bytes of state while `left` bytes wait to go to the host."""
    alone = physics[LINK_PER_MS] * (1.0 - taken)
    both = alone * physics[DUPLEX_TO_DEVICE]
    if from_ssd:
        alone, both = min(alone, physics[SSD_PER_MS]), min(both, physics[SSD_PER_MS])
    return float(link.transfer_ms(physics, left, float(size), alone, both))


@lean
def stall_ms(physics: NDArray[np.float64], fleet: NDArray[np.int64], load: float, compute: float) -> float:
    """Return what such a load adds to a request that then computes for `compute` ms: layer by layer, overlapped."""
    layers = fleet[LAYERS]
    return float(physics[RELOAD_FIXED_MS] + load / layers + max(0.0, load - compute) * (layers - 1) / layers)


@lean
def gather_beside_ms(physics: NDArray[np.float64], row_bytes: int, missed: int, taken: float, left: float) -> float:
    """Return milliseconds to fetch missed rows while `left` bytes wait to go to the host."""
    if left <= 0.0 or missed == 0:
        return float(gather_ms(physics, row_bytes, missed, taken))
    alone = physics[GATHER_PER_SECOND] * (1.0 - taken) / 1e3
    taking = link.transfer_ms(physics, left, float(missed * row_bytes), alone, alone * physics[DUPLEX_TO_DEVICE])
    return float(physics[GATHER_FIXED_MS] + taking)


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
def serve_one(
    place: int,
    requests: Requests,
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    laws: Laws,
    seed: np.uint64,
) -> None:
    """Serve the request at one place of the instance's order; `seed` is that of the instance."""
    now, user = requests.arrival_ms[place], int(requests.user[place])
    history, candidates = int(requests.history[place]), int(requests.candidates[place])
    law = int(requests.law[place])
    serving = user_in_service(ints, place, requests, now)
    resize.advance(physics, fleet, ints, floats, users, rows, laws, serving, now)
    kv.settle_prefix(fleet, ints, users, user, now)

    record = users.record
    below, available = int(record[user, TIER]), 0
    held, pages = record[user, TOKENS], record[user, PAGES]
    if below >= kv.HOST:
        available = min(int(held), history)
        kv.leave_lower_tier(fleet, ints, users, user)
    hit = kv.access(fleet, ints, users, user, history, serving)
    if floats[FILLED_AT] < 0.0 and ints[KV_EVICTED] > 0:
        floats[FILLED_AT] = now
    tiers, left = ints[HOST_LIMIT] > 0, 0.0
    if tiers:
        link.hand_over(physics, ints, floats, now)
        start = max(now, floats[FREE_AT])
        link.offload_until(physics, ints, floats, resize.refilling(physics, fleet, ints, floats, rows, laws), start)
        left = floats[OFFLOAD_LEFT]
    loaded, stall, transfers = 0, 0.0, 0.0
    if available > 0:
        taken = share_taken(physics, fleet, ints, floats, rows, laws)
        per_token = fleet[ROWS_PER_TOKEN] * floats[RATIO]
        again = gather_beside_ms(physics, fleet[ROW_BYTES], int(per_token * available), taken, left)
        shorter = compute_ms(physics, history, candidates, available)
        size = kv.pages_of(fleet, available) * fleet[PAGE_BYTES]
        load = load_ms(physics, left, size, below == kv.SSD, taken)
        stall = stall_ms(physics, fleet, load, shorter)
        if stall + shorter <= compute_ms(physics, history, candidates, 0) + again:
            loaded, transfers = available, load
            ints[RELOAD_BYTES] += size
            left = link.left_after(physics, left, load)
        else:
            stall = 0.0
        if record[user, TIER] == kv.NOWHERE:  # no room in HBM: it stays on the host
            record[user, TOKENS], record[user, PAGES] = held, pages
            kv.sink(fleet, ints, users, user)

    asked = (history + candidates - hit - loaded) * fleet[ROWS_PER_TOKEN]
    missed = rows_missed(fleet, ints, floats, rows, laws, law, asked, stream_of(seed, place), now)
    compute = compute_ms(physics, history, candidates, hit + loaded)
    gather = 0.0
    if missed > 0 and 100 * (asked - missed) >= fleet[LOAD_BEHIND] * asked:
        ints[ROWS_DEFAULTED] += missed
    elif missed > 0:
        taken = share_taken(physics, fleet, ints, floats, rows, laws)
        gather = gather_beside_ms(physics, fleet[ROW_BYTES], missed, taken, left)
        transfers += gather - physics[GATHER_FIXED_MS]
    if tiers or physics[REFILL_YIELDS] > 0.0:
        link.took(physics, floats, transfers)
    service = compute + stall + gather
    start = max(now, floats[FREE_AT])
    floats[FREE_AT] = start + service

    requests.latency_ms[place] = (start - now) + service
    requests.service_ms[place] = service
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
    floats[SERVICE_MS] += service
    floats[SERVICE_SQUARED] += service * service
    floats[EMB_MISS_MS] += gather
    if fleet[RECORD_ONE_IN] >= 0:
        floats[KV_MISS_MS] += compute + stall - compute_ms(physics, history, candidates, history)


@lean
def serve(
    first: int,
    stop: int,
    requests: Requests,
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    laws: Laws,
    seed: np.uint64,
) -> None:
    """Serve the requests at the places first..stop-1 of the instance's order."""
    for place in range(first, stop):
        serve_one(place, requests, physics, fleet, ints, floats, users, rows, laws, seed)
