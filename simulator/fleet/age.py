"""Whether state may still be used, compiled: it expires, and ages with the embeddings; the rules of `simulator.tiers.freshness`.

Age is looked at when a user asks. Until then what has expired takes room, as in caches that keep no clock for each entry.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet import users as kv
from simulator.fleet.state import (
    EMB_VERSION,
    EMB_VERSION_MS,
    EXPIRED,
    MOST_LAG,
    PINNED,
    STALE_HITS,
    TIER,
    TOO_STALE,
    TTL_MS,
    Users,
)


@lean
def drop_aged(
    physics: NDArray[np.float64],
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    user: int,
    serving: int,
    now_ms: float,
) -> None:
    """Forget the state of a user who asks where it may not be used any more, unless it is in use; count what is stale."""
    record = users.record
    if record[user, TIER] == kv.NOWHERE or user == serving or record[user, PINNED] > 0:
        return
    if physics[TTL_MS] > 0.0 and now_ms - users.used_ms[user] > physics[TTL_MS]:
        ints[EXPIRED] += 1
        kv.forget(fleet, ints, users, user)
    elif physics[EMB_VERSION_MS] > 0.0:
        lag = _version(physics, now_ms) - record[user, EMB_VERSION]
        if lag > fleet[MOST_LAG]:
            ints[TOO_STALE] += 1
            kv.forget(fleet, ints, users, user)
        elif lag > 0:
            ints[STALE_HITS] += 1


@lean
def stamp(physics: NDArray[np.float64], users: Users, user: int, anew: bool, now_ms: float) -> None:
    """Note that a user asked now, and the version of state that was computed from its first token on."""
    users.used_ms[user] = now_ms
    if anew and physics[EMB_VERSION_MS] > 0.0:
        users.record[user, EMB_VERSION] = _version(physics, now_ms)


@lean
def _version(physics: NDArray[np.float64], now_ms: float) -> int:
    return int(now_ms / physics[EMB_VERSION_MS])
