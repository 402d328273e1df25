"""The KV cache of one instance and the tiers below it, compiled: whole users in LRU order, counted in bytes of whole pages.

Each tier is a circular list through the users' numbers whose sentinel stands behind them; a user is in one tier at most. What HBM
evicts goes to the host, what the host evicts to the SSD, where there are any. The user in service is never evicted, and a user
that does not fit keeps what it had: the rules of `simulator.core.kv_cache`, which a test compares request by request.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.fleet.state import (
    HOST_LIMIT,
    HOST_USED,
    KV_EVICTED,
    KV_LIMIT,
    KV_USED,
    LATE,
    OFFLOAD_BYTES,
    PAGE_BYTES,
    PAGE_TOKENS,
    PREFIX_BYTES,
    RESIZE_EVICTED,
    SSD_LIMIT,
    SSD_USED,
    USED,
    WASTED,
    Users,
)

NOWHERE, HBM, HOST, SSD = range(4)
TIERS = 3
NOBODY = -1
NO_PREFIX = -1.0
COUNTERS = (KV_EVICTED, OFFLOAD_BYTES, RESIZE_EVICTED, WASTED)


@compiled
def bytes_of(fleet: NDArray[np.int64], tokens: int) -> int:
    """Return the bytes that a history of this many tokens takes."""
    return -(-tokens // fleet[PAGE_TOKENS]) * fleet[PAGE_BYTES]


@compiled
def unlink(users: Users, user: int) -> None:
    before, after = users.older[user], users.younger[user]
    users.younger[before] = after
    users.older[after] = before


@compiled
def append(users: Users, user: int, sentinel: int) -> None:
    """Make a user the youngest of a list."""
    older, younger = users.older, users.younger
    youngest = older[sentinel]
    younger[youngest] = user
    older[user] = youngest
    younger[user] = sentinel
    older[sentinel] = user


@compiled
def leave_lower_tier(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    user: int,
) -> None:
    """Take a user out of the host or SSD tier."""
    ints[HOST_USED if users.tier[user] == HOST else SSD_USED] -= bytes_of(fleet, users.tokens[user])
    unlink(users, user)
    users.tier[user] = NOWHERE


@compiled
def sink(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    user: int,
    into: int,
) -> bool:
    """Put a user that is nowhere into a lower tier and push older ones down; say whether it found room."""
    size = bytes_of(fleet, users.tokens[user])
    used, limit = (HOST_USED, HOST_LIMIT) if into == HOST else (SSD_USED, SSD_LIMIT)
    if size > ints[limit]:
        return False
    sentinel = len(users.tier) + into - 1
    while ints[used] + size > ints[limit]:
        oldest = users.younger[sentinel]
        leave_lower_tier(fleet, ints, users, oldest)
        if into == HOST and ints[SSD_LIMIT] > 0:
            # One level down only, so that this stays a loop: the SSD drops what it has no room for.
            ssd = len(users.tier) + SSD - 1
            bulk = bytes_of(fleet, users.tokens[oldest])
            while bulk <= ints[SSD_LIMIT] < ints[SSD_USED] + bulk:
                dropped = users.younger[ssd]
                leave_lower_tier(fleet, ints, users, dropped)
                users.tokens[dropped] = 0
            if bulk <= ints[SSD_LIMIT]:
                append(users, oldest, ssd)
                users.tier[oldest] = SSD
                ints[SSD_USED] += bulk
                continue
        users.tokens[oldest] = 0
    append(users, user, sentinel)
    users.tier[user] = into
    ints[used] += size
    return True


@compiled
def evict(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    excess: int,
    keep: int,
    serving: int,
) -> int:
    """Evict the oldest users of HBM, but not `keep` and `serving`, until `excess` bytes are free; return the bytes freed."""
    sentinel = len(users.tier)
    freed = 0
    user = users.younger[sentinel]
    while freed < excess and user != sentinel:
        following = users.younger[user]
        if user != keep and user != serving:
            size = bytes_of(fleet, users.tokens[user])
            unlink(users, user)
            users.tier[user] = NOWHERE
            ints[KV_USED] -= size
            if users.ready_ms[user] >= 0.0:
                users.ready_ms[user] = NO_PREFIX
                ints[PREFIX_BYTES] -= size
                ints[WASTED] += 1
            freed += size
            if ints[HOST_LIMIT] > 0 and sink(fleet, ints, users, user, HOST):
                ints[OFFLOAD_BYTES] += size
            else:
                users.tokens[user] = 0
        user = following
    return freed


@compiled
def trim(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    serving: int,
) -> None:
    """Evict until the limit of HBM holds, as far as it may be."""
    if ints[KV_USED] > ints[KV_LIMIT]:
        excess = ints[KV_USED] - ints[KV_LIMIT]
        ints[RESIZE_EVICTED] += evict(fleet, ints, users, excess, NOBODY, serving)


@compiled
def make_room(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    need: int,
    keep: int,
    serving: int,
) -> bool:
    """Make room for `need` more bytes in HBM; `keep` is the user who grows, or NOBODY."""
    if need <= 0:
        return True
    excess = ints[KV_USED] + need - ints[KV_LIMIT]
    if excess <= 0:
        return True
    kept = bytes_of(fleet, users.tokens[keep]) if keep != NOBODY else 0
    if need + kept > ints[KV_LIMIT]:
        return False
    ints[KV_EVICTED] += evict(fleet, ints, users, excess, keep, serving)
    return ints[KV_USED] + need <= ints[KV_LIMIT]


@compiled
def access(
    fleet: NDArray[np.int64],
    ints: NDArray[np.int64],
    users: Users,
    user: int,
    history: int,
    serving: int,
) -> int:
    """Ask for a history, leave it in HBM where it fits, and return how many of its tokens HBM held before.

    A user of a lower tier must have left it (`leave_lower_tier`), with its tokens noted by the caller.
    """
    need = bytes_of(fleet, history)
    if users.tier[user] == HBM:
        hit = min(np.int64(users.tokens[user]), history)
        unlink(users, user)
        append(users, user, len(users.tier))
        more = need - bytes_of(fleet, users.tokens[user])
        if make_room(fleet, ints, users, more, user, serving):
            ints[KV_USED] += more
            if users.ready_ms[user] >= 0.0:
                ints[PREFIX_BYTES] += more
            users.tokens[user] = history
        return hit
    if history > 0 and make_room(fleet, ints, users, need, NOBODY, serving):
        append(users, user, len(users.tier))
        users.tier[user] = HBM
        users.tokens[user] = history
        ints[KV_USED] += need
    return 0


@compiled
def settle_prefix(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int, now_ms: float) -> None:
    """Count the prefix of a user whose ranking request arrives: used when it is finished, else late."""
    ready = users.ready_ms[user]
    if ready >= 0.0:
        users.ready_ms[user] = NO_PREFIX
        ints[PREFIX_BYTES] -= bytes_of(fleet, users.tokens[user])
        ints[USED if ready <= now_ms else LATE] += 1
