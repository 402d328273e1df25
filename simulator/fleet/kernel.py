"""The loop of the fleet: one instance serves its requests in order of arrival.

Per request: what time has done since the last one (jobs ended, a split settled, rows refilled), the KV cache and the tiers below
it, the rows of what was not cached, the service law, and Lindley's recursion (start = max(arrival, server free)). The order and
the rules are those of `simulator.core.instance`, which a test compares request by request.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet import age, link, resize
from simulator.fleet import finding as find
from simulator.fleet import users as kv
from simulator.fleet.randomness import stream_of
from simulator.fleet.service import compute_ms
from simulator.fleet.state import (
    EMB_MISS_MS,
    FREE_AT,
    GATHER_FIXED_MS,
    HOST_LIMIT,
    KV_MISS_MS,
    LOAD_BEHIND,
    OFFLOAD_LEFT,
    RECORD_ONE_IN,
    REFILL_YIELDS,
    ROW_BYTES,
    ROWS_DEFAULTED,
    ROWS_PER_TOKEN,
    SERVICE_MS,
    SERVICE_SQUARED,
    SERVING,
    Laws,
    Requests,
    Rows,
    Users,
)


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
    age.drop_aged(physics, fleet, ints, users, user, serving, now)
    hit, below, available = find.ask(fleet, ints, floats, users, user, history, serving, now)
    tiers, left = ints[HOST_LIMIT] > 0, 0.0
    if tiers:
        link.hand_over(physics, ints, floats, now)
        start = max(now, floats[FREE_AT])
        link.offload_until(physics, ints, floats, resize.refilling(physics, fleet, ints, floats, rows, laws), start)
        left = floats[OFFLOAD_LEFT]
    loaded, load = 0, 0.0
    if available > 0:
        taken = resize.share_taken(physics, fleet, ints, floats, rows, laws)
        loaded, load = find.chosen(
            physics, fleet, ints, floats, history, candidates, available, below == kv.SSD, taken=taken, left=left
        )
        left = link.left_after(physics, left, load)
    age.stamp(physics, users, user, hit + loaded == 0, now)

    asked = (history + candidates - hit - loaded) * fleet[ROWS_PER_TOKEN]
    missed = find.rows_missed(fleet, ints, floats, rows, laws, law, asked, stream_of(seed, place), now)
    compute = compute_ms(physics, history, candidates, hit + loaded)
    stall = link.stall_ms(physics, fleet, load, compute) if loaded > 0 else 0.0
    gather, transfers = 0.0, load
    if missed > 0 and 100 * (asked - missed) >= fleet[LOAD_BEHIND] * asked:
        ints[ROWS_DEFAULTED] += missed
    elif missed > 0:
        taken = resize.share_taken(physics, fleet, ints, floats, rows, laws)
        gather = link.gather_beside_ms(physics, fleet[ROW_BYTES], missed, taken, left)
        transfers += gather - physics[GATHER_FIXED_MS]
    if tiers or physics[REFILL_YIELDS] > 0.0:
        link.took(physics, floats, transfers)
    service = compute + stall + gather
    start = max(now, floats[FREE_AT])
    floats[FREE_AT] = start + service

    requests.latency_ms[place] = (start - now) + service
    requests.service_ms[place] = service
    find.note(place, requests, ints, history, hit, loaded, below, asked, missed)
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
