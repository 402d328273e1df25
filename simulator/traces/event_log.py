"""A team's own event log, read as a stream into the columns of a RequestLog; any size, in bounded memory.

Rows are checked one by one and kept as columns in chunks. A user id lives only until it is hashed with the pool key at the door;
what is kept is the slot and 64 bits of the key, which number the users in the order in which they come. Rules for order,
histories and early signals are those of `assembling.py`.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from contract.keys import slot_of, user_key
from simulator.request_log import MAX_HISTORY_TOKENS, RequestLog, RowLaw
from simulator.traces.assembling import RawRow, Rows, assembled
from simulator.traces.item_law import ASSUMED_DRIFT_PERCENT_PER_HOUR, fit_items
from simulator.traces.item_sample import ItemSample
from simulator.traces.reading import MAX_TIME_MS, BadLine, Limits, TraceError
from simulator.traces.report import LoadReport, Skipped
from simulator.traces.rows import Row, RowReader

CHUNK_LINES = 1 << 16
MOST_KNOWN_USERS = 1 << 18
SHOWN_SKIPPED = 10
DEFAULT_LAW = RowLaw(exponent=0.95, catalog_rows=40_000_000, drift_percent_per_hour=ASSUMED_DRIFT_PERCENT_PER_HOUR)

Progress = Callable[[int, int], None]


class OnBad(StrEnum):
    """What a bad line does: end the reading, or be left out and counted."""

    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Rules by which an event log becomes requests.

    Attributes
    ----------
    pool_key : bytes or None
        Key under which user ids are hashed, at least 16 bytes: that of the pool, if users shall get the slots they have there.
        None takes a random one.
    on_bad : OnBad
        What a bad line does.
    max_skipped : int
        More bad lines than this end the reading in any case.
    disorder_ms : float
        A line may come this much after one that is later than it.
    signal_window_ms : float
        A signal that is older announces nothing.
    merge_ms : float
        Rankings of a user that follow each other within this time are one; 0 merges none.
    tokens_per_event : int
        What each earlier ranking of a user adds to a history that is not given.
    max_history_tokens : int
        Context of the model; longer histories are cut.
    candidates_when_missing : int or None
        For logs that say neither candidates nor items; None makes that a bad line.
    law : RowLaw or None
        Popularity of embedding rows. None fits one to the items of the log (`item_law.py`), and takes DEFAULT_LAW where it
        names none, or too few.
    rows_per_token : int
        Embedding rows looked up per new token and per candidate.
    limits : Limits
        The most that is read.
    """

    pool_key: bytes | None = None
    on_bad: OnBad = OnBad.STOP
    max_skipped: int = 1000
    disorder_ms: float = 5_000.0
    signal_window_ms: float = 10_000.0
    merge_ms: float = 0.0
    tokens_per_event: int = 12
    max_history_tokens: int = MAX_HISTORY_TOKENS
    candidates_when_missing: int | None = None
    law: RowLaw | None = None
    rows_per_token: int = 2
    limits: Limits = field(default_factory=lambda: Limits(lines=200_000_000, text_bytes=64 << 30))

    def __post_init__(self) -> None:
        bounds = {
            "max_skipped": (self.max_skipped, 0, 1 << 40),
            "disorder_ms": (self.disorder_ms, 0.0, MAX_TIME_MS),
            "signal_window_ms": (self.signal_window_ms, 0.0, 1e9),
            "merge_ms": (self.merge_ms, 0.0, 1e9),
            "tokens_per_event": (self.tokens_per_event, 0, 1 << 16),
            "max_history_tokens": (self.max_history_tokens, 1, MAX_HISTORY_TOKENS),
            "candidates_when_missing": (self.candidates_when_missing or 1, 1, 1 << 20),
            "rows_per_token": (self.rows_per_token, 0, 1024),
        }
        for name, (value, least, most) in bounds.items():
            if not least <= value <= most:  # refuses NaN as well
                raise ValueError(f"{name}: {value} lies outside {least}..{most}")
        if self.pool_key is not None and len(self.pool_key) < 16:
            raise ValueError("pool_key: at least 16 bytes are needed")


def read_event_log(path: Path, options: LogOptions, *, progress: Progress | None = None) -> tuple[RequestLog, LoadReport]:
    """Return the requests of an event log in the documented format, and what was left out or filled in.

    Parameters
    ----------
    progress : callable
        Called with (bytes of the file read, bytes of the file) now and then.

    Raises
    ------
    TraceError
        Names file, line and field of the first bad line under OnBad.STOP, of the one too many under OnBad.SKIP; also when the
        file cannot be read on, or holds no ranking.
    """
    reader = RowReader(path, options.limits, candidates_when_missing=options.candidates_when_missing)
    skipped = _SkippedLines(path, options)
    gate = _Gate(options)
    items = ItemSample() if options.law is None else None
    rows, lines = _read(reader, gate, skipped, items, progress or (lambda done, all: None))
    counted = items.taken() if items is not None else None
    fitted = fit_items(counted) if counted is not None else None
    law = options.law or (fitted.rows(options.rows_per_token) if fitted is not None else DEFAULT_LAW)
    try:
        made = assembled(
            rows,
            signal_window_ms=options.signal_window_ms,
            merge_ms=options.merge_ms,
            tokens_per_event=options.tokens_per_event,
            max_history_tokens=options.max_history_tokens,
            law=law,
            rows_per_token=options.rows_per_token,
        )
    except ValueError as error:
        raise TraceError(path, str(error)) from None
    report = LoadReport(
        lines=lines,
        requests=len(made.log),
        signals=made.signals,
        signals_used=made.signals_used,
        users=made.log.users,
        span_ms=made.log.duration_ms,
        reordered=gate.reordered,
        histories_counted=made.histories_counted,
        histories_cut=made.histories_cut,
        merged=made.merged,
        skipped=skipped.count,
        skipped_by=dict(skipped.by.most_common()),
        skipped_first=tuple(skipped.first),
        unknown_columns=tuple(reader.unknown),
        random_key=options.pool_key is None,
        items_named=counted is not None,
        item_law=fitted,
    )
    return made.log, report


def _read(
    reader: RowReader, gate: "_Gate", skipped: "_SkippedLines", items: ItemSample | None, progress: Progress
) -> tuple[Rows, int]:
    """Return the rows that may be used, in the order of the file, and how many lines there were."""
    rows = Rows()
    open_rows: list[RawRow] = []
    lines = 0
    for number, row in reader:
        lines += 1
        try:
            if isinstance(row, BadLine):
                raise row
            open_rows.append(gate.passed(row))
            if items is not None and row.items:
                items.add(number, row.moment_ms, row.items)
        except BadLine as bad:
            skipped.add(number, bad)
        if len(open_rows) == CHUNK_LINES:
            rows.add(open_rows)
            open_rows.clear()
            progress(reader.lines.position, reader.lines.size)
    progress(reader.lines.size, reader.lines.size)
    if open_rows:
        rows.add(open_rows)
    if not rows:
        raise TraceError(reader.path, "holds no event")
    return rows, lines


class _Gate:
    """The door: lets rows pass in about the right order and hashes user ids; remembers hashes of users seen lately, bounded."""

    def __init__(self, options: LogOptions) -> None:
        self.reordered = 0
        self._pool_key = options.pool_key or secrets.token_bytes(32)
        self._disorder_ms = options.disorder_ms
        self._latest_ms = -math.inf
        self._known: dict[str, tuple[int, int]] = {}

    def passed(self, row: Row) -> RawRow:
        moment_ms, user, history_tokens, candidates, signal, _ = row
        known = self._known.get(user) or self._admit(user)
        if moment_ms >= self._latest_ms:
            self._latest_ms = moment_ms
        elif moment_ms >= self._latest_ms - self._disorder_ms:
            self.reordered += 1
        else:
            late = f"comes more than {self._disorder_ms:g} ms after a later line; sort the trace by time, or allow more disorder"
            raise BadLine(late, "time")
        return (moment_ms, known[0], known[1], history_tokens, candidates, signal)

    def _admit(self, user: str) -> tuple[int, int]:
        """Return (64 bits of the user's key, slot)."""
        try:
            key = user_key(self._pool_key, user)
        except UnicodeEncodeError:
            raise BadLine("not text", "user") from None
        if len(self._known) >= MOST_KNOWN_USERS:
            self._known.clear()
        entry = self._known[user] = (int(key[:16], 16), slot_of(key))
        return entry


class _SkippedLines:
    """Counts the lines that are left out, and ends the reading when it must."""

    def __init__(self, path: Path, options: LogOptions) -> None:
        self._path = path
        self._options = options
        self.count = 0
        self.by: Counter[str] = Counter()
        self.first: list[Skipped] = []

    def add(self, line: int, bad: BadLine) -> None:
        if self._options.on_bad is OnBad.STOP:
            raise TraceError(self._path, bad.problem, line=line, field=bad.field)
        self.count += 1
        self.by[f"{bad.field}: {bad.problem}" if bad.field else bad.problem] += 1
        if len(self.first) < SHOWN_SKIPPED:
            self.first.append(Skipped(line=line, field=bad.field, problem=bad.problem))
        if self.count > self._options.max_skipped:
            problem = f"{bad.problem}; this is one bad line more than the {self._options.max_skipped} that may be skipped"
            raise TraceError(self._path, problem, line=line, field=bad.field)
