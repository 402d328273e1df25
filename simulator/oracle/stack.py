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
def previous_access(user: NDArray[np.int64], users: int) -> NDArray[np.int64]:
    """Return the index of each access's last one by the same user, -1 for the first; users are numbered below `users`."""
    last = np.full(users, -1, dtype=np.int64)
    previous = np.empty(len(user), dtype=np.int64)
    for now in range(len(user)):
        previous[now] = last[user[now]]
        last[user[now]] = now
    return previous


@compiled
def stack_bytes(previous: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of cache with which each access finds its user (NEVER the first), for users whose size never falls.

    Parameters
    ----------
    previous : int64, shape (accesses,)
        As `previous_access`.
    size : int64, shape (accesses,)
        Bytes that the user takes from this access on.
    """
    count = len(previous)
    tree = np.zeros(count + 1, dtype=np.int64)
    need = np.full(count, NEVER, dtype=np.int64)
    total = np.int64(0)
    for now in range(count):
        before = previous[now]
        if before >= 0:
            below = np.int64(0)
            node = before + 1
            while node > 0:
                below += tree[node]
                node -= node & -node
            need[now] = total - below + size[before]
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
    return need


@compiled
def shrinking_stack_bytes(previous: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `stack_bytes`, for users whose size may also fall: then the most that was needed at any time since counts.

    A segment tree over access positions holds the bytes seen since each, and the largest value these ever had. A node keeps
    additions that its children have not seen yet: their sum, and the largest sum of a leading part of them.
    """
    count = len(previous)
    levels = 0
    while 1 << levels < count:
        levels += 1
    tree = np.zeros((2 << levels, 2), dtype=np.int64)
    need = np.full(count, NEVER, dtype=np.int64)
    for now in range(count):
        before = previous[now]
        if before < 0:
            _note(tree, 1, size[now], size[now])
        else:
            # Positions before the user's last access have seen the old size already, those after it have not.
            grown = size[now] - size[before]
            node = 1
            for level in range(levels - 1, -1, -1):
                _hand_down(tree, node)
                node *= 2
                if before >> level & 1:
                    _note(tree, node, grown, max(grown, 0))
                    node += 1
                else:
                    _note(tree, node + 1, size[now], size[now])
            need[now] = tree[node, 1] + size[before]
        node = 1
        for level in range(levels - 1, -1, -1):
            _hand_down(tree, node)
            node = 2 * node + (now >> level & 1)
        tree[node, 0] = 0
        tree[node, 1] = 0
    return need


@compiled
def _note(tree: NDArray[np.int64], node: int, added: int, highest: int) -> None:
    tree[node, 1] = max(tree[node, 1], tree[node, 0] + highest)
    tree[node, 0] += added


@compiled
def _hand_down(tree: NDArray[np.int64], node: int) -> None:
    added, highest = tree[node, 0], tree[node, 1]
    if added != 0 or highest != 0:
        _note(tree, 2 * node, added, highest)
        _note(tree, 2 * node + 1, added, highest)
        tree[node, 0] = 0
        tree[node, 1] = 0


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


def needed_bytes(user: NDArray[np.int64], size: NDArray[np.int64], *, users: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes with which each access finds its user, and the index of the access before, by the cheaper way."""
    previous = previous_access(user, users)
    back = previous >= 0
    shrinks = bool(np.any(size[back] < size[previous[back]]))
    return (shrinking_stack_bytes if shrinks else stack_bytes)(previous, size), previous
