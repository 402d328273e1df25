"""Bursts on top of a steady workload: what comes suddenly, for some tens of seconds, and goes.

| kind | what happens | cache |
|---|---|---|
| flash crowd | 1.25 to 1.5 times the rate, by users that were never seen, 1.5 requests each | KV is cold |
| hot item | 1.2 to 1.5 times the rate, by users that are there already, for a few items that half of the others want too | EMB |
| long histories | 6 to 12 percent more requests, by the recorded visits with the longest tenth of histories | KV |
| catalogue churn | all requests go over, linearly, to rows that nobody wanted before, and stay with them | EMB is cold |

The rate of a burst rises for a fifth of its time and falls for a fifth. Factors are drawn and the manifest states the requests.
They are small enough for a fleet that is two thirds busy; `strength` multiplies what a burst adds: at 8, a flash crowd comes at
3 to 6 times the rate, which only a fleet that is mostly idle can serve.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from simulator.request_log import RowLaw
from simulator.workloads.arrivals import Times, burst_arrivals, trapezoid
from simulator.workloads.columns import Columns, play
from simulator.workloads.manifest import Event
from simulator.workloads.sources import Visits
from simulator.workloads.traffic import BASE_CANDIDATES, Traffic

HOT_EXPONENT = 1.6
HOT_SHARE = 0.5
REQUESTS_PER_COLD_USER = 1.5
TOKENS_PER_VISIT = 12


class BurstKind(StrEnum):
    FLASH_CROWD = "flash-crowd"
    HOT_ITEM = "hot-item"
    LONG_HISTORIES = "long-histories"
    CATALOGUE_CHURN = "catalogue-churn"


BURST_KINDS = tuple(BurstKind)
_EXTRA = {
    BurstKind.FLASH_CROWD: (0.25, 0.5),
    BurstKind.HOT_ITEM: (0.2, 0.5),
    BurstKind.LONG_HISTORIES: (0.06, 0.12),
    BurstKind.CATALOGUE_CHURN: (0.0, 0.0),
}


@dataclass(frozen=True, kw_only=True)
class Burst:
    """One burst: at its height it adds `extra` times the base rate; `offset` says which rows it makes popular."""

    kind: BurstKind
    start_ms: float
    end_ms: float
    extra: float
    offset: int


def plan_bursts(
    kinds: Sequence[BurstKind],
    *,
    duration_s: float,
    every_s: float,
    lasts_s: tuple[float, float],
    strength: float,
    rng: np.random.Generator,
) -> tuple[Burst, ...]:
    """Return bursts in order of time, one in each of equal stretches of about `every_s`, every kind equally often.

    Raises
    ------
    ValueError
        Without kinds, or when no burst fits.
    """
    shortest, longest = lasts_s
    if not kinds:
        raise ValueError("kinds: at least one kind of burst is needed")
    if not 0.0 <= strength <= 100.0:
        raise ValueError(f"strength: {strength} lies outside 0..100")
    if not 0.0 < shortest <= longest <= every_s:
        raise ValueError(f"lasts_s: {lasts_s} must rise, be above 0, and end at most at every_s = {every_s}")
    count = max(1, int(duration_s / every_s))
    stretch_s = duration_s / count
    order: list[BurstKind] = []
    while len(order) < count:
        order += [kinds[place] for place in rng.permutation(len(kinds))]
    bursts = []
    for number, kind in enumerate(order[:count]):
        length_s = min(float(rng.uniform(shortest, longest)), stretch_s)
        start_s = number * stretch_s + float(rng.uniform(0.0, stretch_s - length_s))
        low, high = _EXTRA[kind]
        bursts.append(
            Burst(
                kind=kind,
                start_ms=start_s * 1000.0,
                end_ms=(start_s + length_s) * 1000.0,
                extra=strength * float(rng.uniform(low, high)),
                offset=int(rng.integers(1, 1 << 22)),
            )
        )
    return tuple(bursts)


def burst_law(base: RowLaw, burst: Burst, number: int) -> RowLaw:
    """Return the popularity that burst `number` (from 1) brings; no two bursts make the same rows popular."""
    offset = (number * (1 << 22) + burst.offset) % base.catalog_rows
    if burst.kind is BurstKind.HOT_ITEM:
        return replace(base, exponent=HOT_EXPONENT, offset=offset)
    if burst.kind is BurstKind.CATALOGUE_CHURN:
        return replace(base, offset=offset)
    return base


def play_bursts(
    base: Columns, bursts: Sequence[Burst], *, traffic: Traffic, visits: Visits, rng: np.random.Generator
) -> tuple[Columns, list[Columns], tuple[Event, ...]]:
    """Return (base with its laws changed and its users joined by hot visits, requests of new users, events of the manifest).

    `base` must be sorted by arrival; laws are numbered as bursts are, from 1, and 0 is that of the base.
    """
    law = base.law.copy()
    again: list[Columns] = []
    new: list[Columns] = []
    events = []
    current = 0
    for number, burst in enumerate(bursts, start=1):
        count = round(burst.extra * traffic.requests_per_second * (burst.end_ms - burst.start_ms) / 1000.0 * 0.8)
        arrival = burst_arrivals(count, burst.start_ms, burst.end_ms, rng)
        first, last = np.searchsorted(base.arrival_ms, [burst.start_ms, burst.end_ms])
        inside = base.arrival_ms[first:last]
        touched = count
        if burst.kind is BurstKind.CATALOGUE_CHURN:
            through = (inside - burst.start_ms) / (burst.end_ms - burst.start_ms)
            moved = rng.random(len(inside)) < through
            law[first:last][moved] = number
            law[last:] = number
            current = number
            touched = int(moved.sum())
        elif burst.kind is BurstKind.HOT_ITEM:
            hot = rng.random(len(inside)) < HOT_SHARE * trapezoid(inside, burst.start_ms, burst.end_ms)
            law[first:last][hot] = number
            again.append(_again(base, arrival, law=number, traffic=traffic, rng=rng))
            touched += int(hot.sum())
        else:
            new.append(_strangers(burst, arrival, law=current, traffic=traffic, visits=visits, rng=rng))
        events.append(Event(kind=str(burst.kind), start_ms=burst.start_ms, end_ms=burst.end_ms, requests=touched))
    return _joined(replace(base, law=law), again), new, tuple(events)


def _strangers(burst: Burst, arrival: Times, *, law: int, traffic: Traffic, visits: Visits, rng: np.random.Generator) -> Columns:
    """Requests of users that were not there before: a cold crowd, or the longest recorded histories."""
    count = len(arrival)
    if burst.kind is BurstKind.FLASH_CROWD:
        newcomers = visits.newcomers()
        users = max(1, round(count / REQUESTS_PER_COLD_USER))
        user = rng.integers(users, size=count)
        first_tokens = newcomers.history_tokens[rng.integers(len(newcomers), size=users)]
        history = first_tokens[user]
    else:
        user, users, history = play(visits.longest(10.0), count, traffic.instances, rng)
    return Columns(
        arrival_ms=arrival,
        user=user,
        users=users,
        history_tokens=np.minimum(history, traffic.max_history_tokens),
        candidates=rng.integers(BASE_CANDIDATES[0], BASE_CANDIDATES[1] + 1, size=count),
        law=np.full(count, law),
    )


def _again(base: Columns, arrival: Times, *, law: int, traffic: Traffic, rng: np.random.Generator) -> Columns:
    """More requests by the users of the base: each repeats one of the last 4096 requests, its history a little longer."""
    newest = np.maximum(np.searchsorted(base.arrival_ms, arrival, side="right"), 1)
    chosen = newest - 1 - (rng.random(len(arrival)) * np.minimum(newest, 4096)).astype(np.int64)
    return Columns(
        arrival_ms=arrival,
        user=base.user[chosen],
        users=base.users,
        history_tokens=np.minimum(base.history_tokens[chosen] + TOKENS_PER_VISIT, traffic.max_history_tokens),
        candidates=rng.integers(BASE_CANDIDATES[0], BASE_CANDIDATES[1] + 1, size=len(arrival)),
        law=np.full(len(arrival), law),
    )


def _joined(base: Columns, more: Sequence[Columns]) -> Columns:
    """One part of several that number the same users."""
    parts = [base, *more]
    names = ("arrival_ms", "user", "history_tokens", "candidates", "law")
    return Columns(users=base.users, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
