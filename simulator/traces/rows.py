"""One line of an event log, CSV or JSON, as a checked row: the documented trace format (docs/traces.md).

| field | | |
|---|---|---|
| `user` | required | text or whole number |
| `time_ms`, `time_s`, `time` | exactly one, the same in all lines | milliseconds, seconds, or ISO-8601 with a zone |
| `candidates` or `items` | one of them for a ranking | how many items were ranked, or which (they say how popular items are) |
| `history_tokens` | optional | length of the user's history at that moment |
| `stage` | optional | `rank` (default), or `signal`: the cascade says that a ranking will come |

A CSV names its columns in the first line, in any order. In JSON a line is one object. Other columns are ignored, and listed once.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simulator.request_log import MAX_CANDIDATES
from simulator.traces.reading import MAX_TOKENS, BadLine, Limits, Lines, TraceError, finite_number, text_of, whole_number

TIME_FIELDS = ("time_ms", "time_s", "time")
FIELDS = ("user", *TIME_FIELDS, "candidates", "items", "history_tokens", "stage")
MAX_USER_CHARACTERS = 256
MAX_MOMENT_MS = 1e14
MAX_UNKNOWN = 20
ITEM_SEPARATOR = ";"

RawRow = tuple[Any, ...]  # the values of FIELDS, None or "" where there is none


class Stage(StrEnum):
    RANK = "rank"
    SIGNAL = "signal"


class Row(NamedTuple):
    """A checked line: moment in ms (of any origin), raw user id, history (-1: not known), candidates, early signal or not, items.

    `items` are those that the line names to rank: text or whole numbers, none where it only counts them.
    """

    moment_ms: float
    user: str
    history_tokens: int
    candidates: int
    signal: bool
    items: Sequence[object] = ()


class RowReader:
    """Reads rows one by one, and remembers what concerns the whole file.

    Attributes
    ----------
    unknown : dict of str
        Names of columns that nobody reads, in the order of their appearance; at most MAX_UNKNOWN.
    lines : Lines
        The file, for its size and position.
    """

    def __init__(self, path: Path, limits: Limits, *, candidates_when_missing: int | None = None) -> None:
        self.path = path
        self.lines = Lines(path, limits)
        self.unknown: dict[str, None] = {}
        self._limits = limits
        self._candidates = candidates_when_missing
        self._time_place = 0  # of the field that gives the time, in TIME_FIELDS
        self._time_is_known = False
        self._split: Callable[[str], RawRow] | None = None

    def __iter__(self) -> Iterator[tuple[int, Row | BadLine]]:
        """Yield (line number, row, or what is wrong with the line).

        Raises
        ------
        TraceError
            When the file cannot be read on, or its first line is no header and no object.
        """
        for number, raw in self.lines:
            try:
                text = text_of(raw, number, self._limits)
                if self._split is None:
                    begun = self._begin(text, number)
                    if begun:
                        continue
                assert self._split is not None
                row: Row | BadLine = self._row(self._split(text))
            except BadLine as bad:
                if self._split is None:
                    raise TraceError(self.path, bad.problem, line=number, field=bad.field) from None
                row = bad
            yield number, row

    def _begin(self, text: str, number: int) -> bool:
        """Decide by the first line what the file is; return whether that line was only a header."""
        if text.startswith("{"):
            self._split = self._json_splitter()
            return False
        if text.startswith("["):
            raise BadLine("a JSON array; write one object a line")
        names = [name.strip() for name in _cells(text)]
        if missing := _missing(names, counts=self._candidates is None):
            wanted = "user; time_ms, time_s or time; candidates or items"
            otherwise = ", unless --candidates N says how many" if missing == "candidates" else ""
            raise BadLine(f"the first line must name the columns, separated by commas: {wanted}{otherwise}", missing)
        for name in names:
            if name in FIELDS and names.count(name) > 1:
                raise BadLine("named twice in the first line", name)
        if len(times := [name for name in TIME_FIELDS if name in names]) > 1:
            raise BadLine(f"the first line names {' and '.join(times)}; keep one", times[1])
        self._note_unknown(names)
        self._split = _csv_splitter(names)
        return True

    def _json_splitter(self) -> Callable[[str], RawRow]:
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        known = frozenset(FIELDS)

        def split(text: str) -> RawRow:
            try:
                found = decode(text)
            except (msgspec.DecodeError, RecursionError):
                raise BadLine("not a JSON object") from None
            if not found.keys() <= known:
                self._note_unknown(name for name in found if name not in known)
            get = found.get
            return tuple([get(name) for name in FIELDS])

        return split

    def _note_unknown(self, names: Any) -> None:
        for name in names:
            if name not in FIELDS and len(self.unknown) < MAX_UNKNOWN:
                self.unknown.setdefault(name[:40])

    def _row(self, raw: RawRow) -> Row:
        user, in_ms, in_s, iso, candidates, items, history, stage = raw
        if stage is None or stage == "" or stage == "rank":
            signal = False
        elif stage == "signal":
            signal = True
        else:
            raise BadLine("neither rank nor signal", "stage")
        moment, name = self._moment(in_ms, in_s, iso), _user(user)
        tokens = -1 if history is None or history == "" else whole_number(history, field="history_tokens", most=MAX_TOKENS)
        if items is None or items == "":
            return Row(moment, name, tokens, self._count(candidates, signal), signal)
        if candidates is not None and candidates != "":
            raise BadLine("candidates and items are both given; keep one", "items")
        listed = _listed(items)
        return Row(moment, name, tokens, 0, True) if signal else Row(moment, name, tokens, len(listed), False, listed)

    def _moment(self, in_ms: Any, in_s: Any, iso: Any) -> float:
        if in_s is None and iso is None and self._time_place == 0 and in_ms is not None and in_ms != "":
            moment = finite_number(in_ms, field="time_ms", most=MAX_MOMENT_MS)
            self._time_is_known = True
            return moment
        values = (in_ms, in_s, iso)
        usual = self._time_place
        if values[usual] is None or values[usual] == "" or values.count(None) != 2:  # not just the one that all lines had so far
            given = [place for place, value in enumerate(values) if value is not None and value != ""]
            if len(given) != 1:
                which = TIME_FIELDS[given[1] if given else usual]
                raise BadLine(f"{len(given) or 'none'} of {', '.join(TIME_FIELDS)} is given; one is needed", which)
            if self._time_is_known and given[0] != usual:
                raise BadLine(f"the lines above give {TIME_FIELDS[usual]}; keep to one", TIME_FIELDS[given[0]])
            self._time_place = usual = given[0]
        if usual == 0:
            moment = finite_number(in_ms, field="time_ms", most=MAX_MOMENT_MS)
        elif usual == 1:
            moment = finite_number(in_s, field="time_s", most=MAX_MOMENT_MS / 1000.0) * 1000.0
        else:
            moment = _iso_ms(iso)
        self._time_is_known = True
        return moment

    def _count(self, candidates: Any, signal: bool) -> int:
        """Number of items to rank where none are named, 0 for a signal."""
        if candidates is not None and candidates != "":
            count = whole_number(candidates, field="candidates", least=1, most=MAX_CANDIDATES)
        elif signal:
            count = 0
        elif self._candidates:
            count = self._candidates
        else:
            raise BadLine(f"missing; a whole number from 1 to {MAX_CANDIDATES} is needed, or items", "candidates")
        return 0 if signal else count


def _missing(names: list[str], *, counts: bool) -> str | None:
    """Return a column that a CSV must have and has not; `counts`: every ranking must say how many items it ranks."""
    if "user" not in names:
        return "user"
    if not set(names) & set(TIME_FIELDS):
        return "time_ms"
    return "candidates" if counts and not {"candidates", "items"} & set(names) else None


def _cells(text: str) -> list[str]:
    """The cells of one CSV line; a cell never holds a line break here."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error:
        raise BadLine("quotes do not match") from None


def _csv_splitter(names: list[str]) -> Callable[[str], RawRow]:
    columns = len(names)
    pick = itemgetter(*(names.index(field) if field in names else columns for field in FIELDS))

    def split(text: str) -> RawRow:
        cells: list[Any] = text.split(",") if '"' not in text else _cells(text)
        if len(cells) != columns:
            raise BadLine(f"{len(cells)} columns, the first line names {columns}")
        cells.append(None)
        picked: RawRow = pick(cells)
        return picked

    return split


def _user(value: Any) -> str:
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_USER_CHARACTERS or value.isspace():
        raise BadLine(f"text of 1 to {MAX_USER_CHARACTERS} characters is needed", "user")
    return value


def _iso_ms(value: Any) -> float:
    if not isinstance(value, str):
        raise BadLine("a bare number; name the column time_ms or time_s", "time")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise BadLine(
            "not ISO-8601, like 2026-01-31T23:59:59.123Z; a bare number belongs into time_ms or time_s", "time"
        ) from None
    if moment.tzinfo is None:
        raise BadLine("has no zone; end it with Z or +02:00", "time")
    milliseconds = moment.timestamp() * 1000.0
    if not 0.0 <= milliseconds <= MAX_MOMENT_MS:
        raise BadLine("lies before 1970", "time")
    return milliseconds


def _listed(items: Any) -> Sequence[object]:
    """The items that a cell or a JSON value names."""
    listed: Sequence[object]
    if isinstance(items, str):
        listed = items.split(ITEM_SEPARATOR)
        if len(listed) > 1 and not all(listed):
            raise BadLine("an item is empty", "items")
    elif isinstance(items, list):
        listed = items
        if not all(isinstance(item, (str, int)) and not isinstance(item, bool) and item != "" for item in items):
            raise BadLine("items are texts or whole numbers", "items")
    elif isinstance(items, int) and not isinstance(items, bool):
        listed = (items,)
    else:
        raise BadLine("a list of items is needed", "items")
    if not 1 <= len(listed) <= MAX_CANDIDATES:
        raise BadLine(f"{len(listed)} items lie outside 1..{MAX_CANDIDATES}", "items")
    return listed
