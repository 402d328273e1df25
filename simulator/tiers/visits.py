"""A trace as a cache of user state sees it: who came, when, and how many bytes of state the user has afterwards.

The unit is a user's whole state. A visit hits when the state that the user's last visit left is still there; only returning
visits can hit, so hit ratios are among those.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.request_log import RequestLog
from simulator.traces import TraceEvent

NEVER = np.int64(1 << 60)


@dataclass(frozen=True, kw_only=True, eq=False)
class Visits:
    """Visits of users in order of arrival.

    Attributes
    ----------
    user : int64, shape (visits,)
        Dense numbers from 0.
    state_bytes : int64, shape (visits,)
        Bytes of the user's state after the visit.
    time_ms : float64, shape (visits,)
    users : int

    Raises
    ------
    ValueError
        For no visits, columns of different lengths, numbers out of range or time that runs backwards.
    """

    user: NDArray[np.int64]
    state_bytes: NDArray[np.int64]
    time_ms: NDArray[np.float64]
    users: int

    def __post_init__(self) -> None:
        if not len(self.user) == len(self.state_bytes) == len(self.time_ms):
            raise ValueError("user, state_bytes, time_ms: columns of different lengths")
        if not len(self.user):
            raise ValueError("user: there is no visit")
        if self.user.min() < 0 or self.user.max() >= self.users:
            raise ValueError(f"user: numbers lie outside 0..{self.users - 1}")
        if self.state_bytes.min() < 0:
            raise ValueError("state_bytes: must not be negative")
        if not (np.isfinite(self.time_ms).all() and (np.diff(self.time_ms) >= 0).all()):
            raise ValueError("time_ms: not finite and sorted")

    def __len__(self) -> int:
        return len(self.user)

    @cached_property
    def next_visit(self) -> NDArray[np.int64]:
        """Shape (visits,): number of the same user's next visit, NEVER when there is none."""
        following = np.full(len(self), NEVER)
        order = np.argsort(self.user, kind="stable")
        same = self.user[order[1:]] == self.user[order[:-1]]
        following[order[:-1][same]] = order[1:][same]
        return following

    @cached_property
    def returning(self) -> NDArray[np.bool_]:
        """Shape (visits,): whether the user was there before."""
        mask = np.zeros(len(self), dtype=np.bool_)
        later = self.next_visit[self.next_visit < NEVER]
        mask[later] = True
        return mask

    @cached_property
    def final_bytes(self) -> int:
        """Bytes of the state that all users have in the end: what capacities are shares of."""
        return int(self.state_bytes[self.next_visit == NEVER].sum())


def visits_of_events(events: Sequence[TraceEvent], *, bytes_per_token: int) -> Visits:
    """Return the visits of trace events; users are numbered in order of appearance."""
    numbers: dict[str, int] = {}
    return Visits(
        user=np.array([numbers.setdefault(event.user, len(numbers)) for event in events], dtype=np.int64),
        state_bytes=np.array([event.history_tokens for event in events], dtype=np.int64) * bytes_per_token,
        time_ms=np.array([event.time_ms for event in events], dtype=np.float64),
        users=len(numbers),
    )


def visits_of_log(log: RequestLog, *, bytes_per_token: int) -> Visits:
    """Return the visits of a request log."""
    return Visits(
        user=log.user.astype(np.int64),
        state_bytes=log.history_tokens.astype(np.int64) * bytes_per_token,
        time_ms=log.arrival_ms,
        users=log.users,
    )


def spread_ticks(visits: Visits) -> Visits:
    """Spread visits with equal times evenly up to the next time: some traces only know ticks of seconds.

    The last tick is taken to be as long as the one before it.
    """
    stamps, first, counts = np.unique(visits.time_ms, return_index=True, return_counts=True)
    if len(stamps) < 2:
        return visits
    lengths = np.append(np.diff(stamps), stamps[-1] - stamps[-2])
    place = np.arange(len(visits)) - np.repeat(first, counts)
    spread = np.repeat(stamps, counts) + place / np.repeat(counts, counts) * np.repeat(lengths, counts)
    return replace(visits, time_ms=spread)
