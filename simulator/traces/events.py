"""The documented trace format with which a team brings its own traffic: one event per line, CSV or JSON lines.

Fields: `time_ms` (milliseconds since the start, sorted), `user` (any text; it is hashed before it leaves the loader's caller),
`history_tokens` (length of the user's history at that moment), `candidates` (items to rank). A CSV names them in its first line,
in any order; other columns are ignored. JSON lines hold one object per line with the same names.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from simulator.traces.reading import TraceError, lines_of, time_ms, whole_number

FIELDS = ("time_ms", "user", "history_tokens", "candidates")
MAX_USER_CHARACTERS = 256
MAX_CANDIDATES = 1 << 20

__all__ = ["FIELDS", "TraceError", "TraceEvent", "load_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One visit of one user.

    Attributes
    ----------
    time_ms : float
        Milliseconds since the start of the trace.
    user : str
        Identity as the trace knows it; never sent to an engine as it is.
    history_tokens : int
        Length of the user's history when the visit happens, in tokens.
    candidates : int
        Items to rank; 0 where the trace does not know it.
    """

    time_ms: float
    user: str
    history_tokens: int
    candidates: int


def load_events(path: Path) -> list[TraceEvent]:
    """Return the events of a trace in the documented format (`.csv`, or JSON lines for any other ending).

    Raises
    ------
    TraceError
        Names file, line and field of the first bad value; also when there is no event at all.
    """
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _json_rows(path)
    events: list[TraceEvent] = []
    latest = 0.0
    for line, row in rows:
        latest = time_ms(row.get("time_ms"), path, line=line, field="time_ms", not_before=latest)
        events.append(
            TraceEvent(
                time_ms=latest,
                user=_user(row.get("user"), path, line),
                history_tokens=whole_number(row.get("history_tokens"), path, line=line, field="history_tokens"),
                candidates=whole_number(row.get("candidates"), path, line=line, field="candidates", least=1, most=MAX_CANDIDATES),
            )
        )
    if not events:
        raise TraceError(path, "holds no event")
    return events


def _user(value: object, path: Path, line: int) -> str:
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if not 0 < len(text) <= MAX_USER_CHARACTERS:
        raise TraceError(path, f"text of 1 to {MAX_USER_CHARACTERS} characters is needed", line=line, field="user")
    return text


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    lines = lines_of(path)
    number, header = next(lines, (1, ""))
    names = [name.strip() for name in next(csv.reader([header]), [])]
    missing = [field for field in FIELDS if field not in names]
    if missing:
        raise TraceError(path, f"the first line must name the columns {', '.join(FIELDS)}", line=number, field=missing[0])
    for number, text in lines:
        values = next(csv.reader([text]))
        if len(values) != len(names):
            raise TraceError(path, f"{len(values)} columns, the first line names {len(names)}", line=number)
        yield number, dict(zip(names, values, strict=True))


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    decoder = msgspec.json.Decoder(dict[str, object])
    for number, text in lines_of(path):
        try:
            yield number, decoder.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(path, f"not a JSON object ({error})", line=number) from error
