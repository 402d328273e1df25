"""Checked rows become requests: sorted, users numbered, missing histories counted, early signals matched. Arrays throughout.

**Rules.** Rows are sorted by time; of equal times the one that stands first in the file comes first. Time counts from the first
row, to the microsecond. A history that is not given is the last one that was given for the user, or 0, plus `tokens_per_event`
for each ranking of the user since then. A ranking is announced by the row of the same user just before it, if that is a signal
and not older than the window. Rankings that follow the one before of the same user within `merge_ms` are part of it (clicks on
one page): the first one stays, with its history and the most candidates of them; each still counts for later histories.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.request_log import RequestLog, RowLaw
from simulator.traces.reading import MAX_TIME_MS

RawRow = tuple[float, int, int, int, int, bool]
Index = NDArray[np.uint32]
SLICE = 1 << 18

_COLUMNS: dict[str, type[np.generic]] = {
    "moment_ms": np.float64,
    "key": np.uint64,
    "slot": np.uint16,
    "history_tokens": np.int32,
    "candidates": np.int32,
    "signal": np.bool_,
}


class Rows:
    """Rows as columns, which grow by chunks and are taken one by one, so that none lies in memory twice for long.

    They are `moment_ms` (of any origin), `key` (64 bits of the user's), `slot`, `history_tokens` (-1 where it is not given),
    `candidates` and `signal`.
    """

    def __init__(self) -> None:
        self._chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}

    def add(self, rows: Sequence[RawRow]) -> None:
        for (name, dtype), values in zip(_COLUMNS.items(), zip(*rows, strict=True), strict=False):
            self._chunks[name].append(np.array(values, dtype=dtype))

    def __bool__(self) -> bool:
        return bool(self._chunks["moment_ms"])

    def take(self, name: str) -> NDArray[Any]:
        """Return a column and keep it no more."""
        return np.concatenate(self._chunks.pop(name))


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """Requests, and counts of what the rules did: see LoadReport."""

    log: RequestLog
    signals: int
    signals_used: int
    histories_counted: int
    histories_cut: int
    merged: int


def assembled(
    rows: Rows,
    *,
    signal_window_ms: float,
    merge_ms: float,
    tokens_per_event: int,
    max_history_tokens: int,
    law: RowLaw,
    rows_per_token: int,
) -> Assembled:
    """Return the requests of rows in the order of the file, by the rules above; `rows` is used up.

    Raises
    ------
    ValueError
        When there is no ranking, or time spans more than a RequestLog holds.
    """
    signal = rows.take("signal")
    if signal.all():
        raise ValueError("holds no ranking")
    moments = rows.take("moment_ms")
    order = np.argsort(moments, kind="stable").astype(np.uint32)
    moments = moments[order]
    moments -= moments[0]
    if moments[-1] > MAX_TIME_MS:
        raise ValueError(f"time spans more than {MAX_TIME_MS:g} ms; is one moment in another unit?")
    np.round(moments, 3, out=moments)
    signal = signal[order]
    ranked = ~signal
    user, first, by_user = _numbered(rows.take("key")[order])
    lead = _leads(moments, user, signal, by_user, signal_window_ms)
    given = rows.take("history_tokens")[order]
    by_user = by_user[ranked[by_user]]
    history, cut = _histories(given, user, by_user, tokens_per_event, max_history_tokens)
    counted = int((given[ranked] < 0).sum())
    del given
    candidates = rows.take("candidates")[order]
    merged = _merge(moments, user, candidates, by_user, merge_ms)
    del by_user
    ranked &= ~merged
    requests = slice(None) if ranked.all() else ranked  # a view, where nothing has to go
    comes = np.zeros(len(first), dtype=bool)
    comes[user[requests]] = True
    slots = rows.take("slot")[order[first[comes]]]
    log = RequestLog(
        arrival_ms=moments[requests],
        user=(np.cumsum(comes, dtype=np.uint32) - np.uint32(1))[user[requests]],
        history_tokens=history[requests],
        candidates=candidates[requests],
        signal_lead_ms=lead[requests],
        law=np.zeros(int(ranked.sum()), dtype=np.uint8),
        user_slots=slots,
        laws=(law,),
        rows_per_token=rows_per_token,
    )
    return Assembled(
        log=log,
        signals=int(signal.sum()),
        signals_used=int((log.signal_lead_ms > 0).sum()),
        histories_counted=counted,
        histories_cut=cut,
        merged=int(merged.sum()),
    )


def _numbered(key: NDArray[np.uint64]) -> tuple[Index, Index, Index]:
    """Return (user of each row, first row of each user, rows user by user, each user's in order).

    Users are numbered in the order in which they first come.
    """
    by_user = np.argsort(key, kind="stable").astype(np.uint32)
    begins = np.ones(len(key), dtype=bool)
    begins[1:] = np.diff(key[by_user]) != 0
    first = by_user[begins]
    by_first = np.argsort(first)
    number = np.empty(len(first), dtype=np.uint32)
    number[by_first] = np.arange(len(first), dtype=np.uint32)
    user = np.empty(len(key), dtype=np.uint32)
    user[by_user] = number[np.cumsum(begins, dtype=np.uint32) - np.uint32(1)]
    return user, first[by_first], by_user


def _leads(
    moments: NDArray[np.float64], user: Index, signal: NDArray[np.bool_], by_user: Index, window_ms: float
) -> NDArray[np.float32]:
    """Return how long before each row the signal came that announces it; 0 where there is none."""
    lead = np.zeros(len(moments), dtype=np.float32)
    place = np.flatnonzero(signal[by_user[:-1]])
    before, row = by_user[place], by_user[place + 1]
    since = moments[row] - moments[before]
    announced = (user[before] == user[row]) & ~signal[row] & (since <= window_ms)
    lead[row[announced]] = since[announced]
    return lead


def _merge(
    moments: NDArray[np.float64], user: Index, candidates: NDArray[np.int32], by_user: Index, merge_ms: float
) -> NDArray[np.bool_]:
    """Return which rankings are part of an earlier one; that one gets the most candidates of them, in `candidates` itself."""
    merged = np.zeros(len(moments), dtype=bool)
    if merge_ms > 0:
        follows = np.zeros(len(by_user), dtype=bool)
        follows[1:] = (np.diff(user[by_user]) == 0) & (np.diff(moments[by_user]) <= merge_ms)
        firsts = np.flatnonzero(~follows)
        candidates[by_user[firsts]] = np.maximum.reduceat(candidates[by_user], firsts)
        merged[by_user[follows]] = True
    return merged


def _histories(
    given: NDArray[np.int32], user: Index, by_user: Index, tokens_per_event: int, most: int
) -> tuple[NDArray[np.int32], int]:
    """Return (history of each ranking, at most `most`; how many were longer).

    `by_user` lists the rankings user by user, each in order of time; rows that are no ranking get 0.
    """
    place = np.arange(len(by_user), dtype=np.int32)
    begins = np.ones(len(by_user), dtype=bool)
    begins[1:] = np.diff(user[by_user]) != 0
    start = np.maximum.accumulate(np.where(begins, place, np.int32(0)))
    latest = np.maximum.accumulate(np.where(given[by_user] >= 0, place, np.int32(-1)))
    del begins, place
    history = np.zeros(len(given), dtype=np.int32)
    cut = 0
    for low in range(0, len(by_user), SLICE):  # whole columns of wide numbers would be most of the memory
        rows = by_user[low : low + SLICE]
        begun, known = start[low : low + SLICE], latest[low : low + SLICE]
        has = known >= begun
        since = np.arange(low, low + len(rows)) - np.where(has, known, begun)
        tokens = np.where(has, given[by_user[np.maximum(known, 0)]], 0) + tokens_per_event * since
        cut += int((tokens > most).sum())
        history[rows] = np.minimum(tokens, most)
    return history, cut
