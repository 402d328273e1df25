"""The KV cache of one instance and the tiers below it, compiled: whole users in LRU order, counted in bytes of whole pages.

Each tier is a circular list through the users' records whose sentinel stands behind them; a user is in one tier at most. What HBM
evicts goes to the host, what the host evicts to the SSD, where there are any. The user in service is never evicted, and a user
that does not fit keeps what it had: the rules of `simulator.core.kv_cache`, which a test compares request by request.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet.state import (
    HOST_LIMIT,
    HOST_USED,
    KV_EVICTED,
    KV_LIMIT,
    KV_USED,
    LATE,
    OFFLOAD_BYTES,
    OFFLOAD_DROPPED,
    OFFLOAD_DROPS,
    OFFLOAD_ROOM,
    OLDER,
    PAGE_BYTES,
    PAGE_TOKENS,
    PAGES,
    PINNED,
    PREFIX,
    PREFIX_BYTES,
    RESIZE_EVICTED,
    SSD_LIMIT,
    SSD_USED,
    TIER,
    TOKENS,
    USED,
    WASTED,
    YOUNGER,
    Users,
)

NOWHERE, HBM, HOST, SSD = range(4)
TIERS = 3
NOBODY = -1
COUNTERS = (KV_EVICTED, OFFLOAD_BYTES, RESIZE_EVICTED, WASTED)


@lean
def pages_of(fleet: NDArray[np.int64], tokens: int) -> int:
    """Return the pages that a history of this many tokens takes."""
    return int(np.int64((np.uint32(tokens) + np.uint32(fleet[PAGE_TOKENS] - 1)) // np.uint32(fleet[PAGE_TOKENS])))


@lean
def _unlink(record: NDArray[np.int32], user: int) -> None:
    before, after = record[user, OLDER], record[user, YOUNGER]
    record[before, YOUNGER] = after
    record[after, OLDER] = before


@lean
def _append(record: NDArray[np.int32], user: int, sentinel: int) -> None:
    """Make a user the youngest of a list."""
    youngest = record[sentinel, OLDER]
    record[youngest, YOUNGER] = user
    record[user, OLDER] = youngest
    record[user, YOUNGER] = sentinel
    record[sentinel, OLDER] = user


@lean
def sentinel_of(record: NDArray[np.int32], tier: int) -> int:
    """Return the record that begins and ends the list of a tier."""
    return len(record) - TIERS + tier - 1


@lean
def leave_lower_tier(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int) -> None:
    """Take a user out of the host or SSD tier."""
    record = users.record
    ints[HOST_USED if record[user, TIER] == HOST else SSD_USED] -= record[user, PAGES] * fleet[PAGE_BYTES]
    _unlink(record, user)
    record[user, TIER] = NOWHERE


@lean
def sink(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int) -> bool:
    """Put a user that is nowhere into the host tier and push older ones down; say whether it found room."""
    record = users.record
    size = record[user, PAGES] * fleet[PAGE_BYTES]
    if size > ints[HOST_LIMIT]:
        return False
    host, ssd = sentinel_of(record, HOST), sentinel_of(record, SSD)
    while ints[HOST_USED] + size > ints[HOST_LIMIT]:
        oldest = record[host, YOUNGER]
        leave_lower_tier(fleet, ints, users, oldest)
        bulk = record[oldest, PAGES] * fleet[PAGE_BYTES]
        if bulk <= ints[SSD_LIMIT]:
            while ints[SSD_USED] + bulk > ints[SSD_LIMIT]:
                leave_lower_tier(fleet, ints, users, record[ssd, YOUNGER])
            _append(record, oldest, ssd)
            record[oldest, TIER] = SSD
            ints[SSD_USED] += bulk
    _append(record, user, host)
    record[user, TIER] = HOST
    ints[HOST_USED] += size
    return True


@lean
def _off_load(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int, size: int) -> None:
    """Hand a user that has left HBM to the host tier, or drop it where no more may wait for the link."""
    if ints[OFFLOAD_ROOM] < size <= ints[HOST_LIMIT]:
        ints[OFFLOAD_DROPS] += 1
        ints[OFFLOAD_DROPPED] += size
    elif sink(fleet, ints, users, user):
        ints[OFFLOAD_BYTES] += size
        ints[OFFLOAD_ROOM] -= size


@lean
def _leave_hbm(fleet: NDArray[np.int64], ints: NDArray[np.int64], record: NDArray[np.int32], user: int) -> int:
    """Take a user out of HBM; return its bytes."""
    size = record[user, PAGES] * fleet[PAGE_BYTES]
    _unlink(record, user)
    record[user, TIER] = NOWHERE
    ints[KV_USED] -= size
    if record[user, PREFIX]:
        record[user, PREFIX] = 0
        ints[PREFIX_BYTES] -= size
        ints[WASTED] += 1
    return int(size)


@lean
def forget(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int) -> None:
    """Drop the state of a user from whatever tier it is in."""
    if users.record[user, TIER] == HBM:
        _leave_hbm(fleet, ints, users.record, user)
    elif users.record[user, TIER] >= HOST:
        leave_lower_tier(fleet, ints, users, user)


@lean
def evict(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, excess: int, keep: int, serving: int) -> int:
    """Evict the oldest users of HBM, but not `keep` and `serving`, until `excess` bytes are free; return the bytes freed."""
    record = users.record
    sentinel = sentinel_of(record, HBM)
    freed = 0
    user = record[sentinel, YOUNGER]
    while freed < excess and user != sentinel:
        following = record[user, YOUNGER]
        if user != keep and user != serving and not record[user, PINNED]:
            size = _leave_hbm(fleet, ints, record, user)
            freed += size
            if ints[HOST_LIMIT] > 0:
                _off_load(fleet, ints, users, user, size)
        user = following
    return freed


@lean
def trim(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, serving: int) -> None:
    """Evict until the limit of HBM holds, as far as it may be."""
    if ints[KV_USED] > ints[KV_LIMIT]:
        ints[RESIZE_EVICTED] += evict(fleet, ints, users, ints[KV_USED] - ints[KV_LIMIT], NOBODY, serving)


@lean
def _make_room(
    fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, need: int, kept: int, keep: int, serving: int
) -> bool:
    """Make room for `need` more bytes in HBM; `keep` is the user who grows beyond `kept` bytes, or NOBODY."""
    if need <= 0:
        return True
    excess = ints[KV_USED] + need - ints[KV_LIMIT]
    if excess <= 0:
        return True
    if need + kept > ints[KV_LIMIT]:
        return False
    ints[KV_EVICTED] += evict(fleet, ints, users, excess, keep, serving)
    fits: bool = ints[KV_USED] + need <= ints[KV_LIMIT]
    return fits


@lean
def access(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int, history: int, serving: int) -> int:
    """Ask for a history, leave it in HBM where it fits, and return how many of its tokens HBM held before.

    A user of a lower tier must have left it (`leave_lower_tier`), with its tokens noted by the caller.
    """
    record = users.record
    pages = pages_of(fleet, history)
    sentinel = sentinel_of(record, HBM)
    if record[user, TIER] == HBM:
        hit = min(int(record[user, TOKENS]), history)
        _unlink(record, user)
        _append(record, user, sentinel)
        kept = record[user, PAGES] * fleet[PAGE_BYTES]
        more = pages * fleet[PAGE_BYTES] - kept
        if _make_room(fleet, ints, users, more, kept, user, serving):
            ints[KV_USED] += more
            record[user, TOKENS], record[user, PAGES] = history, pages
            if record[user, PREFIX]:
                ints[PREFIX_BYTES] += more
        return hit
    need = pages * fleet[PAGE_BYTES]
    if history > 0 and _make_room(fleet, ints, users, need, 0, NOBODY, serving):
        _append(record, user, sentinel)
        record[user, TIER], record[user, TOKENS], record[user, PAGES] = HBM, history, pages
        ints[KV_USED] += need
    return 0


@lean
def mark_prefix(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int, ready_ms: float) -> None:
    """Note that a resident user's state was computed ahead of its ranking request, and when it is finished."""
    record = users.record
    if record[user, TIER] == HBM and not record[user, PREFIX]:
        record[user, PREFIX] = 1
        users.ready_ms[user] = ready_ms
        ints[PREFIX_BYTES] += record[user, PAGES] * fleet[PAGE_BYTES]


@lean
def settle_prefix(fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, user: int, now_ms: float) -> None:
    """Count the prefix of a user whose ranking request arrives: used when it is finished, else late."""
    record = users.record
    if record[user, PREFIX]:
        record[user, PREFIX] = 0
        ints[PREFIX_BYTES] -= record[user, PAGES] * fleet[PAGE_BYTES]
        ints[USED if users.ready_ms[user] <= now_ms else LATE] += 1
