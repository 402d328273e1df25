"""How much memory waiting prefixes need: Little's law, live = rate x lifetime, in the three directions it can be solved.

A prefix lives from the moment its computation starts until its ranking request has used it. As that is one pass through the
cascade, a small part of the accelerator's memory is enough: 100 prefixes a second of 32 MiB living 0.3 s are 30 at a time, 1 GiB.
"""

from __future__ import annotations

import math


def live_prefix_bytes(*, admitted_per_s: float, life_ms: float, bytes_per_prefix: float) -> float:
    """Return the mean number of bytes that prefixes occupy."""
    return admitted_per_s * life_ms / 1000.0 * bytes_per_prefix


def sustainable_per_s(*, budget_bytes: float, life_ms: float, bytes_per_prefix: float) -> float:
    """Return the rate of admission at which the mean occupancy reaches the budget; infinite where a prefix costs nothing."""
    cost = life_ms / 1000.0 * bytes_per_prefix
    return budget_bytes / cost if cost > 0.0 else math.inf


def mean_life_ms(*, live_bytes: float, admitted_per_s: float, bytes_per_prefix: float) -> float | None:
    """Return the mean lifetime of a prefix in ms, measured without a stopwatch; None without traffic."""
    flow = admitted_per_s * bytes_per_prefix
    return 1000.0 * live_bytes / flow if flow > 0.0 else None


def slots_within(*, budget_bytes: float, live_bytes: float, busy_slots: float) -> int | None:
    """Return how many busy slots the budget can feed; None where nothing is computed or lives, which tells nothing.

    A busy slot finishes ``1 / computing time`` prefixes a second and each occupies memory for its lifetime, so by Little's law
    the bytes behind one busy slot are ``live_bytes / busy_slots``, whatever the sizes and times are.
    """
    if busy_slots <= 0.0 or live_bytes <= 0.0:
        return None
    # A count beyond any real one is as good, and does not overflow what holds it.
    return math.floor(min(budget_bytes * busy_slots / live_bytes * (1.0 + 1e-9), 1e9))
