"""Weighted rendezvous hashing over 4096 slots: each slot goes to the member with the best score for it.

Model: highest random weight (Thaler and Ravishankar 1998) with the logarithmic weighting `-w / ln(u)` (Schindelhauer and
Schomaker 2005): a member's share follows its weight, and when a member comes, goes or changes weight, slots move only to or
from that member. The random number u of a (slot, member) pair is a 64-bit hash, the same in every process and machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

SLOTS = 4096
_BLOCK = 8

_PRIME_2 = np.uint64(14029467366897019727)
_PRIME_3 = np.uint64(1609587929392839161)
_SLOT_STEP = np.uint64(0x9E3779B97F4A7C15)


def _avalanche(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of XXH64, in place."""
    x ^= x >> np.uint64(33)
    x *= _PRIME_2
    x ^= x >> np.uint64(29)
    x *= _PRIME_3
    x ^= x >> np.uint64(32)
    return x


def scores(names: Sequence[str], weights: Sequence[float]) -> NDArray[np.float64]:
    """Return the score of each member for each slot.

    Parameters
    ----------
    names
        Member names, distinct. The name alone places a member, so a successor of the same name takes over the same slots.
    weights
        Positive weights, one for each name.

    Returns
    -------
    float64[members, 4096]
        The highest score of a column owns the slot.

    Raises
    ------
    ValueError
        If the lengths differ, a name repeats or a weight is not positive.
    """
    if len(names) != len(weights):
        raise ValueError("names and weights must have the same length")
    if len(set(names)) != len(names):
        raise ValueError("names must be distinct")
    if any(not w > 0.0 for w in weights):
        raise ValueError("weights must be positive")
    seeds = np.array([xxhash.xxh64_intdigest(name.encode()) for name in names], dtype=np.uint64)
    slots = _avalanche(np.arange(1, SLOTS + 1, dtype=np.uint64) * _SLOT_STEP)
    out = np.empty((len(names), SLOTS))
    for start in range(0, len(names), _BLOCK):  # blocks that stay in the processor's cache
        part = slice(start, start + _BLOCK)
        mixed = _avalanche(seeds[part, None] ^ slots[None, :])
        mixed >>= np.uint64(11)
        # 53 bits and a half, so that u lies strictly between 0 and 1.
        u = mixed.astype(np.float64)
        u += 0.5
        u *= 2.0**-53
        np.log(u, out=u)
        np.divide(-np.asarray(weights[part], dtype=np.float64)[:, None], u, out=out[part])
    return out


def place(names: Sequence[str], weights: Sequence[float]) -> NDArray[np.intp]:
    """Return the index of the owner of each slot, intp[4096]; ties go to the first name.

    Raises
    ------
    ValueError
        As `scores`, and if there is no member at all.
    """
    if not names:
        raise ValueError("a table needs at least one member")
    return np.asarray(scores(names, weights).argmax(axis=0), dtype=np.intp)
