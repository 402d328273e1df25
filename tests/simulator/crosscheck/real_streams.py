"""The accesses of the public conversation trace: blocks of one size, and users whose state grows from visit to visit."""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.tiers.visits import Visits, visits_of_events
from simulator.traces import load_mooncake, user_events

TRACE = Path(__file__).parents[3] / "traces" / "mooncake_conversation.jsonl"
TICK_MS = 3000.0


@cache
def blocks() -> tuple[list[int], NDArray[np.float64]]:
    """All 288 500 accesses to 182 790 blocks, and their times spread over the trace's ticks of three seconds."""
    records = load_mooncake(TRACE)
    ids = [block for record in records for block in record.blocks]
    return ids, spread(np.array([record.time_ms for record in records for _ in record.blocks]))


@cache
def visits() -> Visits:
    """12 031 visits of 7 373 users; one byte a token."""
    return visits_of_events(user_events(load_mooncake(TRACE)), bytes_per_token=1)


def last_sizes(seen: Visits) -> NDArray[np.int64]:
    """Give every visit the size that its user's state has in the end, so that nothing grows."""
    final = np.zeros(seen.users, dtype=np.int64)
    final[seen.user] = seen.state_bytes  # the last one stays
    return final[seen.user]


def spread(ticks_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread what shares a tick evenly over it, in order."""
    _, first, count = np.unique(ticks_ms, return_index=True, return_counts=True)
    place = np.arange(len(ticks_ms)) - np.repeat(first, count)
    return np.asarray(ticks_ms + TICK_MS * place / np.repeat(count, count), dtype=np.float64)
