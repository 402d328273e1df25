"""How much KV cache each request would have needed to find its user: LRU stack distances in bytes, for all capacities at once.

A whole-user LRU holds the longest prefix of the recency stack that has always fitted. So a user is still there at the next
visit exactly when the bytes of the users seen since, at their largest, and the user's own have fitted (Mattson et al. 1970,
with sizes). Where that breaks - a user larger than the cache is not admitted, which is no stack algorithm - the cache is
replayed at that capacity (`lru_hits`).
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled

NEVER = np.int64(1) << 62


@compiled
def stack_bytes(user: NDArray[np.int64], size: NDArray[np.int64], users: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of cache with which each access finds its user, for users whose size never falls.

    Parameters
    ----------
    user : int64, shape (accesses,)
        Numbers below `users`.
    size : int64, shape (accesses,)
        Bytes that the user takes from this access on.

    Returns
    -------
    need, previous : int64, shape (accesses,)
        Bytes (NEVER at a user's first access), and index of the user's access before (-1).
    """
    count = len(user)
    tree = np.zeros(count + 1, dtype=np.int64)
    last = np.full(users, -1, dtype=np.int64)
    need = np.full(count, NEVER, dtype=np.int64)
    previous = np.full(count, -1, dtype=np.int64)
    total = np.int64(0)
    for now in range(count):
        who = user[now]
        before = last[who]
        if before >= 0:
            below = np.int64(0)
            node = before + 1
            while node > 0:
                below += tree[node]
                node -= node & -node
            need[now] = total - below + size[before]
            previous[now] = before
            node = before + 1
            while node <= count:
                tree[node] -= size[before]
                node += node & -node
            total -= size[before]
        node = now + 1
        while node <= count:
            tree[node] += size[now]
            node += node & -node
        total += size[now]
        last[who] = now
    return need, previous


@compiled
def shrinking_stack_bytes(
    user: NDArray[np.int64], size: NDArray[np.int64], users: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `stack_bytes`, for users whose size may also fall: then the most that was needed at any time since counts.

    A segment tree over access positions holds the bytes seen since each, and the largest value these ever had. A node keeps
    additions that its children have not seen yet: their sum, and the largest sum of a leading part of them.
    """
    count = len(user)
    levels = 1
    while 1 << levels < count:
        levels += 1
    add = np.zeros(2 << levels, dtype=np.int64)
    peak = np.zeros(2 << levels, dtype=np.int64)
    last = np.full(users, -1, dtype=np.int64)
    need = np.full(count, NEVER, dtype=np.int64)
    previous = np.full(count, -1, dtype=np.int64)
    for now in range(count):
        who = user[now]
        before = last[who]
        if before >= 0:
            node = before + (1 << levels)
            value, most = add[node], peak[node]
            node >>= 1
            while node >= 1:  # additions further up are younger
                most = max(most, value + peak[node])
                value += add[node]
                node >>= 1
            need[now] = most + size[before]
            previous[now] = before
            if size[now] != size[before]:
                _add(add, peak, levels, 0, before, size[now] - size[before])
        _add(add, peak, levels, before + 1, now, size[now])
        last[who] = now
    return need, previous


@compiled
def _note(add: NDArray[np.int64], peak: NDArray[np.int64], node: int, added: int, highest: int) -> None:
    peak[node] = max(peak[node], add[node] + highest)
    add[node] += added


@compiled
def _add(add: NDArray[np.int64], peak: NDArray[np.int64], levels: int, start: int, stop: int, value: int) -> None:
    """Add to the positions start..stop-1."""
    if start >= stop:
        return
    low, high = start + (1 << levels), stop - 1 + (1 << levels)
    for leaf in (low, high):
        for level in range(levels, 0, -1):
            node = leaf >> level
            if add[node] != 0 or peak[node] != 0:
                _note(add, peak, 2 * node, add[node], peak[node])
                _note(add, peak, 2 * node + 1, add[node], peak[node])
                add[node] = 0
                peak[node] = 0
    high += 1
    while low < high:
        if low & 1:
            _note(add, peak, low, value, max(value, 0))
            low += 1
        if high & 1:
            high -= 1
            _note(add, peak, high, value, max(value, 0))
        low >>= 1
        high >>= 1


@compiled
def lru_hits(
    user: NDArray[np.int64], tokens: NDArray[np.int64], size: NDArray[np.int64], users: int, capacity: int
) -> NDArray[np.int64]:
    """Return the tokens that each access finds cached in a whole-user LRU of `capacity` bytes, replayed.

    As `simulator.core.kv_cache` does it: a shorter history cuts the entry, a user larger than the cache is not admitted and an
    entry that outgrows the cache keeps its old prefix.
    """
    newer = np.full(users + 1, users, dtype=np.int64)  # a ring with the number `users` as its head: newest before, oldest after
    older = np.full(users + 1, users, dtype=np.int64)
    kept = np.zeros(users, dtype=np.int64)
    held = np.full(users, -1, dtype=np.int64)
    hit = np.zeros(len(user), dtype=np.int64)
    used = np.int64(0)
    for now in range(len(user)):
        who, need = user[now], size[now]
        cached = held[who] >= 0
        if cached:
            hit[now] = min(kept[who], tokens[now])
            newer[older[who]] = newer[who]
            older[newer[who]] = older[who]
        elif tokens[now] == 0 or need > capacity:
            continue
        own = held[who] if cached else 0
        if need <= capacity:
            while used - own + need > capacity and need > own:
                oldest = newer[users]
                newer[older[oldest]] = newer[oldest]
                older[newer[oldest]] = older[oldest]
                used -= held[oldest]
                held[oldest] = -1
            used += need - own
            kept[who], held[who] = tokens[now], need
        elif need <= own:
            used += need - own
            kept[who], held[who] = tokens[now], need
        newest = older[users]
        older[who], newer[who] = newest, users
        newer[newest] = who
        older[users] = who
    return hit


def needed_bytes(
    user: NDArray[np.int64], size: NDArray[np.int64], *, users: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Return `need` and `previous` of `stack_bytes` by the cheaper way, and whether any user's size falls."""
    need, previous = stack_bytes(user, size, users)
    back = previous >= 0
    shrinks = bool(np.any(size[back] < size[previous[back]]))
    if shrinks:
        need, previous = shrinking_stack_bytes(user, size, users)
    return need, previous, shrinks
