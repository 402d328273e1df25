"""Replay of visits on a tiered store: in which tier each returning visit finds its user's state."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.tiers.store import TieredStore
from simulator.tiers.visits import Visits

TIERS = ("hbm", "dram", "ssd", "none")
SERVE, ANNOUNCE, WITHDRAW = range(3)


@dataclass(frozen=True, kw_only=True)
class FalseSignals:
    """Announcements of users who then do not come: the cascade dropped them on the way.

    Parameters
    ----------
    per_visit : float
        How many there are for each visit, on average.
    withdrawn_after_ms : float
        When the store learns it.
    seed : int
        Of whom they name and when they come.
    """

    per_visit: float
    withdrawn_after_ms: float
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StoreReplayed:
    """Outcome of one replay.

    Attributes
    ----------
    tokens : int64, shape (visits, 4)
        Of each visit's history, by where it came from (`TIERS`); "none" was computed.
    wait_ms : float64, shape (visits,)
        Wait for the SSD.
    visits : Visits
    """

    tokens: NDArray[np.int64]
    wait_ms: NDArray[np.float64]
    visits: Visits

    def found(self, *tiers: str, start: float = 0.0) -> float:
        """Share of returning visits whose stored state lay in these tiers when they came, in the lowest of several.

        `start` leaves the first share of visits out, in which tiers fill.
        """
        first = round(start * len(self.tokens))
        place = np.full(len(self.tokens), 3)
        for tier in range(3):  # the lowest tier that was needed decides
            place[self.tokens[:, tier] > 0] = tier
        returning = self.visits.returning.copy()
        returning[:first] = False
        hits = np.isin(place[returning], [TIERS.index(tier) for tier in tiers])
        return float(hits.mean()) if len(hits) else 0.0

    def token_share(self, *tiers: str, start: float = 0.0) -> float:
        """Share of returning visits' history tokens that came from these tiers."""
        first = round(start * len(self.tokens))
        returning = self.visits.returning.copy()
        returning[:first] = False
        of_returning = self.tokens[returning]
        total = int(of_returning.sum())
        return float(of_returning[:, [TIERS.index(tier) for tier in tiers]].sum() / total) if total else 0.0


def replay_on_store(
    store: TieredStore,
    visits: Visits,
    *,
    window: int | None = None,
    lead_ms: float | None = None,
    false_signals: FalseSignals | None = None,
    emb_every_ms: float | None = None,
) -> StoreReplayed:
    """Replay all visits.

    Parameters
    ----------
    store : TieredStore
        Empty, at time 0.
    window : int, optional
        Each visit is announced when it is so many requests away: a queue of that length.
    lead_ms : float, optional
        Each visit is announced so long before it comes: an early signal of the cascade.
    false_signals : FalseSignals, optional
        Announcements beside those of visits.
    emb_every_ms : float, optional
        A new version of the embeddings is published so often.

    Raises
    ------
    ValueError
        When both ways to announce are asked for.
    """
    if window is not None and lead_ms is not None:
        raise ValueError("window, lead_ms: choose one way to announce")
    size = store.config.bytes_per_token
    tokens = np.zeros((len(visits), len(TIERS)), dtype=np.int64)
    wait_ms = np.zeros(len(visits))
    users, lengths, times = visits.user.tolist(), (visits.state_bytes // size).tolist(), visits.time_ms.tolist()
    steps = _steps(users, times, window, lead_ms)
    if false_signals is not None:
        steps = heapq.merge(steps, _false_steps(visits, false_signals), key=lambda step: step[0])
    for at_ms, kind, user, index in steps:
        if emb_every_ms is not None:
            store.publish(emb=int(at_ms // emb_every_ms))
        if kind == ANNOUNCE:
            store.announce(user, now_ms=at_ms)
        elif kind == WITHDRAW:
            store.withdraw(user, now_ms=at_ms)
        else:
            served = store.serve(user, lengths[index], now_ms=at_ms)
            tokens[index] = (served.hbm_tokens, served.dram_tokens, served.ssd_tokens, served.computed_tokens)
            wait_ms[index] = served.wait_ms
    return StoreReplayed(tokens=tokens, wait_ms=wait_ms, visits=visits)


Step = tuple[float, int, int, int]
"""Time, what happens, to which user, at which visit."""


def _steps(users: list[int], times: list[float], window: int | None, lead_ms: float | None) -> Iterator[Step]:
    """Yield announcements and visits in order of time."""
    serves = ((at, SERVE, users[index], index) for index, at in enumerate(times))
    if lead_ms is not None:
        announcements = ((max(0.0, at - lead_ms), ANNOUNCE, users[index], index) for index, at in enumerate(times))
        yield from heapq.merge(announcements, serves, key=lambda step: step[0])
        return
    announced = 0
    for at, kind, user, index in serves:
        while window is not None and announced < min(len(times), index + window):
            # What comes `window` requests later enters the queue when the request before this one has been served.
            yield (times[max(0, index - 1)], ANNOUNCE, users[announced], announced)
            announced += 1
        yield (at, kind, user, index)


def _false_steps(visits: Visits, signals: FalseSignals) -> Iterator[Step]:
    """Yield announcements of users drawn from the visits, in proportion, and their withdrawals, in order of time."""
    rng = np.random.default_rng(signals.seed)
    count = rng.poisson(signals.per_visit * len(visits))
    at = np.sort(rng.uniform(visits.time_ms[0], visits.time_ms[-1], count)).tolist()
    named = visits.user[rng.integers(0, len(visits), count)].tolist()
    announced = ((when, ANNOUNCE, user, -1) for when, user in zip(at, named, strict=True))
    withdrawn = ((when + signals.withdrawn_after_ms, WITHDRAW, user, -1) for when, user in zip(at, named, strict=True))
    yield from heapq.merge(announced, withdrawn, key=lambda step: step[0])
