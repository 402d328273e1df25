"""Visits of users as typed events, as the demonstration composes them; of a team's own log, a strict view of the same rows.

The fleet simulator reads logs into columns instead (`event_log.py`), which is faster and hashes users at the door.
"""

from dataclasses import dataclass
from pathlib import Path

from simulator.traces.reading import BadLine, Limits, TraceError
from simulator.traces.rows import RowReader

__all__ = ["TraceError", "TraceEvent", "load_events"]


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
    """Return the rankings of a trace in the documented format, which must be sorted and give every history.

    Raises
    ------
    TraceError
        Names file, line and field of the first bad value; also when there is no event at all.
    """
    events: list[TraceEvent] = []
    for line, row in RowReader(path, Limits()):
        if isinstance(row, BadLine):
            raise TraceError(path, row.problem, line=line, field=row.field)
        if row.signal:
            continue
        if row.history_tokens < 0:
            raise TraceError(path, "missing; this reader counts no histories", line=line, field="history_tokens")
        if events and row.moment_ms < events[-1].time_ms:
            raise TraceError(path, "comes before the line above; sort the trace by time", line=line, field="time")
        events.append(
            TraceEvent(time_ms=row.moment_ms, user=row.user, history_tokens=row.history_tokens, candidates=row.candidates)
        )
    if not events:
        raise TraceError(path, "holds no event")
    return events
