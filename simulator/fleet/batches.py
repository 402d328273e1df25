"""Requests that run together, compiled: buckets of length, a window that waits for more, padding to the bucket's edge.

The rules are those of `simulator.physics.batching`, which a test compares batch by batch: a batch may start when it is full or
when its first request has waited for the window; one server takes batches in the order in which they became ready. Caches are
asked at arrival. What a batch loads and gathers crosses the link when it starts.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet import age, link, resize
from simulator.fleet import finding as find
from simulator.fleet import users as kv
from simulator.fleet.randomness import stream_of
from simulator.fleet.service import batch_ms
from simulator.fleet.state import (
    BATCH_MOST,
    BATCH_WINDOW_MS,
    EMB_MISS_MS,
    FREE_AT,
    GATHER_FIXED_MS,
    HOST_LIMIT,
    KV_MISS_MS,
    LOAD_BEHIND,
    OFFLOAD_LEFT,
    PAGE_BYTES,
    PINNED,
    RECORD_ONE_IN,
    ROW_BYTES,
    ROWS_DEFAULTED,
    ROWS_PER_TOKEN,
    SERVICE_MS,
    SERVICE_SQUARED,
    Batches,
    Laws,
    Requests,
    Rows,
    Users,
)


@lean
def serve_together(
    first: int,
    stop: int,
    until_ms: float,
    requests: Requests,
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    batches: Batches,
    laws: Laws,
    seed: np.uint64,
) -> None:
    """Let the requests at the places first..stop-1 of the instance's order arrive, and start what can start before `until_ms`."""
    for place in range(first, stop):
        now_ms = requests.arrival_ms[place]
        run_until(now_ms, requests, physics, fleet, ints, floats, users, rows, batches, laws)
        resize.advance(physics, fleet, ints, floats, users, rows, laws, kv.NOBODY, now_ms)
        _arrive(place, requests, physics, fleet, ints, floats, users, rows, batches, laws, seed)
    run_until(until_ms, requests, physics, fleet, ints, floats, users, rows, batches, laws)


@lean
def _arrive(
    place: int,
    requests: Requests,
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    batches: Batches,
    laws: Laws,
    seed: np.uint64,
) -> None:
    """Ask the caches for one request and let it wait in its bucket."""
    now_ms, user = requests.arrival_ms[place], int(requests.user[place])
    history, candidates, law = int(requests.history[place]), int(requests.candidates[place]), int(requests.law[place])
    age.drop_aged(physics, fleet, ints, users, user, kv.NOBODY, now_ms)
    hit, below, available = find.ask(fleet, ints, floats, users, user, history, kv.NOBODY, now_ms)
    left = 0.0
    if ints[HOST_LIMIT] > 0:
        link.hand_over(physics, ints, floats, now_ms)
        left = floats[OFFLOAD_LEFT]
    loaded = 0
    if available > 0:
        taken = resize.share_taken(physics, fleet, ints, floats, rows, laws)
        loaded, _ = find.chosen(physics, fleet, ints, floats, history, candidates, available, below == kv.SSD, taken, left)
    age.stamp(physics, users, user, hit + loaded == 0, now_ms)
    asked = (history + candidates - hit - loaded) * fleet[ROWS_PER_TOKEN]
    missed = find.rows_missed(fleet, ints, floats, rows, laws, law, asked, stream_of(seed, place), now_ms)
    find.note(place, requests, ints, history, hit, loaded, below, asked, missed)
    batches.fetch[place] = missed
    if missed > 0 and 100 * (asked - missed) >= fleet[LOAD_BEHIND] * asked:
        ints[ROWS_DEFAULTED] += missed
        batches.fetch[place] = 0
    bucket, new_tokens = 0, history - hit - loaded + candidates
    while bucket < len(batches.edge) and new_tokens > batches.edge[bucket]:
        bucket += 1
    batches.following[place] = kv.NOBODY
    if batches.waiting[bucket] == 0:
        batches.first[bucket] = place
        batches.ready_ms[bucket] = now_ms + physics[BATCH_WINDOW_MS]
    else:
        batches.following[batches.last[bucket]] = place
    batches.last[bucket] = place
    batches.waiting[bucket] += 1
    if batches.waiting[bucket] == fleet[BATCH_MOST]:
        batches.ready_ms[bucket] = min(batches.ready_ms[bucket], now_ms)


@lean
def run_until(
    before_ms: float,
    requests: Requests,
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    batches: Batches,
    laws: Laws,
) -> None:
    """Start every batch that can start before a time; release the users of what has finished by then."""
    while True:
        bucket = 0
        for other in range(1, len(batches.ready_ms)):
            if batches.ready_ms[other] < batches.ready_ms[bucket]:
                bucket = other
        start_ms = max(batches.ready_ms[bucket], floats[FREE_AT])
        if not start_ms < before_ms:
            break
        _release(requests, users, batches)
        place = _taken(bucket, requests, physics, fleet, batches)
        _run(bucket, place, start_ms, requests, physics, fleet, ints, floats, users, rows, batches, laws)
    if floats[FREE_AT] <= before_ms:
        _release(requests, users, batches)


@lean
def _release(requests: Requests, users: Users, batches: Batches) -> None:
    place = batches.running[0]
    while place != kv.NOBODY:
        users.record[requests.user[place], PINNED] -= 1
        place = batches.following[place]
    batches.running[0] = kv.NOBODY


@lean
def _taken(bucket: int, requests: Requests, physics: NDArray[np.float64], fleet: NDArray[np.int64], batches: Batches) -> int:
    """Take as many as may run together out of a bucket; return the first of them."""
    most, first = fleet[BATCH_MOST], batches.first[bucket]
    size, last = 1, first
    while size < most and batches.following[last] != kv.NOBODY:
        last = batches.following[last]
        size += 1
    begin = batches.following[last]
    batches.following[last] = kv.NOBODY
    batches.waiting[bucket] -= size
    batches.first[bucket] = begin
    batches.ready_ms[bucket] = np.inf
    if begin != kv.NOBODY:
        batches.ready_ms[bucket] = requests.arrival_ms[begin] + physics[BATCH_WINDOW_MS]
        if batches.waiting[bucket] >= most:
            fills = begin
            for _ in range(most - 1):
                fills = batches.following[fills]
            batches.ready_ms[bucket] = min(batches.ready_ms[bucket], requests.arrival_ms[fills])
    return int(first)


@lean
def _run(
    bucket: int,
    first: int,
    start_ms: float,
    requests: Requests,
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    users: Users,
    rows: Rows,
    batches: Batches,
    laws: Laws,
) -> None:
    """Run one batch."""
    size = tokens = longest_new = outputs = attended = longest = fetch = host = ssd = candidates = 0
    pairs = warm_pairs = 0.0
    place = first
    while place != kv.NOBODY:
        history, ranked = int(requests.history[place]), int(requests.candidates[place])
        cached = requests.kv_hit[place] + requests.host_hit[place] + requests.ssd_hit[place]
        new = history - cached
        size += 1
        tokens += new + ranked
        longest_new = max(longest_new, new + ranked)
        pairs += new * (cached + new / 2) + float(ranked) * history
        candidates += ranked
        warm_pairs += float(ranked) * history
        if new + ranked > 0:
            outputs += 1
            attended += history
            longest = max(longest, history)
        fetch += batches.fetch[place]
        host += kv.pages_of(fleet, requests.host_hit[place])
        ssd += kv.pages_of(fleet, requests.ssd_hit[place])
        users.record[requests.user[place], PINNED] += 1
        place = batches.following[place]
    batches.running[0] = first
    padded = float(size * (batches.edge[bucket] if bucket < len(batches.edge) else longest_new))
    compute = batch_ms(physics, padded, pairs, outputs, float(attended), longest)
    left = 0.0
    if ints[HOST_LIMIT] > 0:
        link.offload_until(physics, ints, floats, resize.refilling(physics, fleet, ints, floats, rows, laws), start_ms)
        left = floats[OFFLOAD_LEFT]
    taken, load = resize.share_taken(physics, fleet, ints, floats, rows, laws), 0.0
    if host > 0:
        load = link.load_ms(physics, left, host * fleet[PAGE_BYTES], False, taken)
    if ssd > 0:
        load += link.load_ms(physics, link.left_after(physics, left, load), ssd * fleet[PAGE_BYTES], True, taken)
    stall = link.stall_ms(physics, fleet, load, compute) if load > 0.0 else 0.0
    gather = link.gather_beside_ms(physics, fleet[ROW_BYTES], fetch, taken, link.left_after(physics, left, load))
    link.took(physics, floats, load + (gather - physics[GATHER_FIXED_MS] if fetch > 0 else 0.0))
    service = compute + stall + gather
    floats[FREE_AT] = start_ms + service
    place = first
    while place != kv.NOBODY:
        requests.latency_ms[place] = start_ms - requests.arrival_ms[place] + service
        requests.service_ms[place] = service / size
        place = batches.following[place]
    floats[SERVICE_MS] += service
    floats[SERVICE_SQUARED] += service * service / size
    floats[EMB_MISS_MS] += gather
    if fleet[RECORD_ONE_IN] >= 0:
        warm = batch_ms(physics, float(candidates), warm_pairs, outputs if candidates > 0 else 0, float(attended), longest)
        floats[KV_MISS_MS] += compute + stall - warm
