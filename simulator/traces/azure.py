"""Arrivals of the Azure LLM inference trace of 2023: when requests came, to 100 ns, over about an hour.

The files carry TIMESTAMP, ContextTokens and GeneratedTokens and no user; only the arrival process is used here.
"""

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.traces.reading import BadLine, TraceError, lines_of, whole_number

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load_azure(path: Path) -> NDArray[np.float64]:
    """Return the arrival times of the trace.

    Returns
    -------
    NDArray[np.float64]
        Shape (requests,), milliseconds since the first request, never falling.

    Raises
    ------
    TraceError
        Names file, line and field of the first bad value.
    """
    lines = lines_of(path)
    number, header = next(lines, (1, ""))
    names = next(csv.reader([header]), [])
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise TraceError(path, f"the first line must name the columns {', '.join(COLUMNS)}", line=number, field=missing[0])
    arrivals: list[float] = []
    start: datetime | None = None
    for number, text in lines:
        values = next(csv.reader([text]))
        if len(values) != len(names):
            raise TraceError(path, f"{len(values)} columns, the first line names {len(names)}", line=number)
        row = dict(zip(names, values, strict=True))
        for column in COLUMNS[1:]:
            try:
                whole_number(row[column], field=column)
            except BadLine as bad:
                raise TraceError(path, bad.problem, line=number, field=bad.field) from None
        stamp, rest_ms = _timestamp(row["TIMESTAMP"], path, number)
        start = start or stamp
        arrival = (stamp - start) / timedelta(milliseconds=1) + rest_ms
        if arrivals and arrival < arrivals[-1]:
            raise TraceError(path, "comes before the line above; sort the trace by time", line=number, field="TIMESTAMP")
        arrivals.append(arrival)
    if not arrivals:
        raise TraceError(path, "holds no request")
    return np.asarray(arrivals, dtype=np.float64) - arrivals[0]


def _timestamp(text: str, path: Path, line: int) -> tuple[datetime, float]:
    """Return (whole second, milliseconds within it); the trace has seven decimals, datetime only six."""
    whole, _, fraction = text.partition(".")
    try:
        return datetime.fromisoformat(whole), float(f"0.{fraction or '0'}") * 1000.0
    except ValueError as error:
        raise TraceError(path, f"{text[:40]!r} is not YYYY-MM-DD HH:MM:SS.fffffff", line=line, field="TIMESTAMP") from error
