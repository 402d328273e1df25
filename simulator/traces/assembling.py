"""Checked rows become requests: sorted, users numbered, missing histories counted, early signals matched. Arrays throughout.

**Rules.** Rows are sorted by time; of equal times the one that stands first in the file comes first. Time counts from the first
row, to the microsecond. A history that is not given is the last one that was given for the user, or 0, plus `tokens_per_event`
for each ranking of the user since then. A ranking is announced by the row of the same user just before it, if that is a signal
and not older than the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.request_log import RequestLog, RowLaw
from simulator.traces.reading import MAX_TIME_MS

RawRow = tuple[float, int, int, int, int, bool]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows as columns: moments in ms of any origin, 64 bits of the user's key, slot, history or -1, candidates, early signal."""

    moment_ms: NDArray[np.float64]
    key: NDArray[np.uint64]
    slot: NDArray[np.uint16]
    history_tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    signal: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[RawRow]) -> "Rows":
        columns = zip(*rows, strict=True)
        return cls(**{name: np.array(next(columns), dtype=dtype) for name, dtype in _COLUMNS.items()})

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS})

    def at(self, index: NDArray[np.int64]) -> "Rows":
        return Rows(**{name: getattr(self, name)[index] for name in _COLUMNS})


_COLUMNS: dict[str, type[np.generic]] = {
    "moment_ms": np.float64,
    "key": np.uint64,
    "slot": np.uint16,
    "history_tokens": np.int32,
    "candidates": np.int32,
    "signal": np.bool_,
}


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """Requests, and counts of what the rules did: see LoadReport."""

    log: RequestLog
    signals: int
    signals_used: int
    histories_counted: int
    histories_cut: int


def assembled(
    rows: Rows,
    *,
    signal_window_ms: float,
    tokens_per_event: int,
    max_history_tokens: int,
    law: RowLaw,
    rows_per_token: int,
) -> Assembled:
    """Return the requests of rows in the order of the file, by the rules above.

    Raises
    ------
    ValueError
        When there is no ranking, or time spans more than a RequestLog holds.
    """
    if rows.signal.all():
        raise ValueError("holds no ranking")
    rows = rows.at(np.argsort(rows.moment_ms, kind="stable"))
    moments = np.round(rows.moment_ms - rows.moment_ms[0], 3)
    if moments[-1] > MAX_TIME_MS:
        raise ValueError(f"time spans more than {MAX_TIME_MS:g} ms; is one moment in another unit?")
    user, first = _numbered(rows.key)
    by_user = np.argsort(user, kind="stable")
    lead = _leads(moments, user, rows.signal, by_user, signal_window_ms)
    ranked = ~rows.signal
    whole = _histories(rows.history_tokens, user, by_user[ranked[by_user]], tokens_per_event)[ranked]
    comes = np.unique(user[ranked])
    log = RequestLog(
        arrival_ms=moments[ranked],
        user=np.searchsorted(comes, user[ranked]).astype(np.uint32),
        history_tokens=np.minimum(whole, max_history_tokens).astype(np.int32),
        candidates=rows.candidates[ranked],
        signal_lead_ms=lead[ranked],
        law=np.zeros(len(whole), dtype=np.uint8),
        user_slots=rows.slot[first[comes]],
        laws=(law,),
        rows_per_token=rows_per_token,
    )
    return Assembled(
        log=log,
        signals=int(rows.signal.sum()),
        signals_used=int((log.signal_lead_ms > 0).sum()),
        histories_counted=int((rows.history_tokens[ranked] < 0).sum()),
        histories_cut=int((whole > max_history_tokens).sum()),
    )


def _numbered(key: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (user of each row, first row of each user): users are numbered in the order in which they first come."""
    _, first, sorted_number = np.unique(key, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    number = np.empty(len(first), dtype=np.int64)
    number[by_first] = np.arange(len(first))
    return number[sorted_number], first[by_first]


def _leads(
    moments: NDArray[np.float64],
    user: NDArray[np.int64],
    signal: NDArray[np.bool_],
    by_user: NDArray[np.int64],
    window_ms: float,
) -> NDArray[np.float32]:
    """Return how long before each row the signal came that announces it; 0 where there is none."""
    before, row = by_user[:-1], by_user[1:]
    since = moments[row] - moments[before]
    announced = (user[before] == user[row]) & signal[before] & ~signal[row] & (since <= window_ms)
    lead = np.zeros(len(moments), dtype=np.float32)
    lead[row[announced]] = since[announced]
    return lead


def _histories(
    given: NDArray[np.int32], user: NDArray[np.int64], by_user: NDArray[np.int64], tokens_per_event: int
) -> NDArray[np.int64]:
    """Return the history of each ranking; `by_user` lists the rankings user by user, each in order of time."""
    place = np.arange(len(by_user))
    whose = user[by_user]
    start = np.maximum.accumulate(np.where(np.diff(whose, prepend=-1) != 0, place, 0))
    known = given[by_user] >= 0
    latest = np.maximum.accumulate(np.where(known, place, -1))
    has = latest >= start
    base = np.where(has, given[by_user][np.maximum(latest, 0)], 0)
    out = np.zeros(len(given), dtype=np.int64)
    out[by_user] = base + tokens_per_event * (place - np.where(has, latest, start))
    return out
