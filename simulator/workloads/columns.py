"""Requests of one part of a workload as columns, and how parts become one RequestLog.

A part numbers its users by itself; parts never share users. Merging sorts by arrival (stable, so that equal times keep the order
of the parts), gives each user a slot at random, which is what hashing does, and announces some requests by early signals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contract.keys import SLOTS
from simulator.request_log import RequestLog, RowLaw
from simulator.workloads.sources import Visits

TABLE_LIMIT = 1 << 26
Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Requests of one part, in any order: see RequestLog; `user` is dense from 0 to `users` - 1."""

    arrival_ms: NDArray[np.float64]
    user: Numbers
    users: int
    history_tokens: Numbers
    candidates: Numbers
    law: Numbers

    def __len__(self) -> int:
        return len(self.arrival_ms)


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Early signals of the cascade: how many requests have one, in percent, and the lognormal time by which it comes earlier."""

    percent: float = 80.0
    median_ms: float = 150.0
    sigma: float = 0.5

    def __post_init__(self) -> None:
        if not (0.0 <= self.percent <= 100.0 and 0.0 < self.median_ms <= 1e6 and 0.0 <= self.sigma <= 4.0):
            raise ValueError(f"signals: {self} lies outside 0..100 percent, 0..1e6 ms, sigma 0..4")


def play(visits: Visits, count: int, streams: int, rng: np.random.Generator) -> tuple[Numbers, int, Numbers]:
    """Return (user, users, history_tokens) of `count` requests that play recorded visits in `streams` copies side by side.

    Each request goes to a stream at random. A stream takes the visits in their order, from a place of its own; at the end it
    starts again with new users. So between two visits of a user lie as many requests of the same stream as were recorded.
    """
    if not len(visits):
        raise ValueError(f"{visits.name}: the recording has no such visit")
    stream = rng.integers(streams, size=count)
    starts = rng.integers(len(visits), size=streams)
    order = np.argsort(stream, kind="stable")
    sizes = np.bincount(stream, minlength=streams)
    turn = np.empty(count, dtype=np.int64)
    turn[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lap, place = np.divmod(starts[stream] + turn, len(visits))
    laps = int(lap.max(initial=0)) + 1
    user, users = dense((stream * laps + lap) * visits.users + visits.user[place], streams * laps * visits.users)
    return user, users, visits.history_tokens[place]


def dense(numbers: Numbers, below: int) -> tuple[Numbers, int]:
    """Return numbers 0..n-1 in the order of the given ones, all of which lie below `below`, and n."""
    if below > TABLE_LIMIT:
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return inverse, len(distinct)
    seen = np.zeros(below, dtype=bool)
    seen[numbers] = True
    place = np.cumsum(seen) - 1
    return place[numbers], int(seen.sum())


def merged(
    parts: Sequence[Columns], *, laws: tuple[RowLaw, ...], rows_per_token: int, signals: Signals, rng: np.random.Generator
) -> RequestLog:
    """Return the requests of all parts, sorted; times are rounded to microseconds so that machines agree on them."""
    parts = [part for part in parts if len(part)]
    if not parts:
        raise ValueError("the workload would have no request; raise duration or rate")
    arrival = np.round(np.concatenate([part.arrival_ms for part in parts]), 3)
    order = np.argsort(arrival, kind="stable")
    offsets = np.cumsum([0, *(part.users for part in parts)])
    user = np.concatenate([part.user + offset for part, offset in zip(parts, offsets[:-1], strict=True)])
    arrival = arrival[order]

    def column(name: str) -> Numbers:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    return RequestLog(
        arrival_ms=arrival,
        user=user[order].astype(np.uint32),
        history_tokens=column("history_tokens").astype(np.int32),
        candidates=column("candidates").astype(np.int32),
        signal_lead_ms=_leads(arrival, signals, rng),
        law=column("law").astype(np.uint8),
        user_slots=rng.integers(SLOTS, size=int(offsets[-1])).astype(np.uint16),
        laws=laws,
        rows_per_token=rows_per_token,
    )


def _leads(arrival_ms: NDArray[np.float64], signals: Signals, rng: np.random.Generator) -> NDArray[np.float32]:
    """Lead of each request in whole tenths of a millisecond; none is earlier than the start."""
    lead = np.exp(rng.normal(np.log(signals.median_ms), signals.sigma, len(arrival_ms)))
    lead[rng.random(len(arrival_ms)) >= signals.percent / 100.0] = 0.0
    tenths: NDArray[np.float32] = (np.floor(np.minimum(lead, arrival_ms) * 10.0) / 10.0).astype(np.float32)
    return tenths
