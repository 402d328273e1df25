"""Train, validation and test: cut by time **and** by users, so that nothing that was learned on one part is in another.

**Rule.** Time is cut at fixed percents of the span. A user belongs to the part in which it first comes; its requests in a later
part are left out. The test part is the last 40 percent: nothing may be tuned on it.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from simulator.request_log import RequestLog

USERS_RULE = "a user belongs to the part in which it first comes; its requests in a later part are left out"


class Part(StrEnum):
    """Which part may be used; ALL is for figures that nothing was tuned for."""

    ALL = "all"
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


PART_PERCENT: dict[Part, tuple[float, float]] = {
    Part.ALL: (0.0, 100.0),
    Part.TRAIN: (0.0, 45.0),
    Part.VALIDATION: (45.0, 60.0),
    Part.TEST: (60.0, 100.0),
}


def inside(times: NDArray[np.float64], part: Part, span: tuple[float, float]) -> NDArray[np.bool_]:
    """Return which times lie in the part of a span; an upper edge belongs to the next part, the end of the span to the last."""
    first, last = span
    low, high = (first + (last - first) * edge / 100.0 for edge in PART_PERCENT[part])
    within: NDArray[np.bool_] = (times >= low) & ((times < high) | (PART_PERCENT[part][1] == 100.0))
    return within


def own_requests(
    times: NDArray[np.float64], user: NDArray[np.unsignedinteger] | NDArray[np.int64], part: Part
) -> tuple[NDArray[np.bool_], int]:
    """Return (which requests belong to the part, how many of its time were left out), of requests sorted by time."""
    span = (float(times[0]), float(times[-1]))
    _, first, number = np.unique(user, return_index=True, return_inverse=True)
    in_time = inside(times, part, span)
    own = in_time & inside(times[first], part, span)[number]
    return own, int(in_time.sum() - own.sum())


def cut(log: RequestLog, part: Part) -> tuple[RequestLog, int]:
    """Return the requests of one part, its time counted from its start and its users numbered anew, and how many were left out.

    Raises
    ------
    ValueError
        When no request is in the part.
    """
    if part is Part.ALL:
        return log, 0
    own, left_out = own_requests(log.arrival_ms, log.user, part)
    if not own.any():
        raise ValueError(f"the log has no request in its part {part}")
    users, user = np.unique(log.user[own], return_inverse=True)
    start_ms = log.arrival_ms[0] + log.duration_ms * PART_PERCENT[part][0] / 100.0
    return RequestLog(
        arrival_ms=log.arrival_ms[own] - start_ms,
        user=user.astype(np.uint32),
        history_tokens=log.history_tokens[own],
        candidates=log.candidates[own],
        signal_lead_ms=log.signal_lead_ms[own],
        law=log.law[own],
        user_slots=log.user_slots[users],
        laws=log.laws,
        rows_per_token=log.rows_per_token,
    ), left_out
