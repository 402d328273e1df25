"""Bounded line reading and field checks that all trace loaders share."""

from collections.abc import Iterator
from pathlib import Path

MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024
MAX_EVENTS = 5_000_000
MAX_TOKENS = 1 << 24
MAX_TIME_MS = 1e12


class TraceError(ValueError):
    """A trace cannot be used; the message names file, line and field, and what was expected."""

    def __init__(self, path: Path, problem: str, *, line: int | None = None, field: str | None = None) -> None:
        where = f"{path}" + (f", line {line}" if line is not None else "") + (f", field {field}" if field else "")
        super().__init__(f"{where}: {problem}")
        self.path = path
        self.line = line
        self.field = field


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of the lines that are not blank.

    Raises
    ------
    TraceError
        When the file is missing, too large, not UTF-8, or has a line that is too long.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error.strerror})") from error
    if size > MAX_FILE_BYTES:
        raise TraceError(path, f"{size} bytes are more than the {MAX_FILE_BYTES} that are read; cut the trace")
    with path.open("rb") as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(raw) > MAX_LINE_BYTES:
                raise TraceError(path, f"longer than {MAX_LINE_BYTES} bytes", line=number)
            if number > MAX_EVENTS + 1:
                raise TraceError(path, f"more than {MAX_EVENTS} events; cut the trace", line=number)
            try:
                text = raw.decode().strip()
            except UnicodeDecodeError as error:
                raise TraceError(path, "not UTF-8", line=number) from error
            if text:
                yield number, text


def whole_number(value: object, path: Path, *, line: int, field: str, least: int = 0, most: int = MAX_TOKENS) -> int:
    """Return `value` as an integer within [least, most]; text from a CSV is converted, a float or a boolean is refused."""
    if value is None:
        raise TraceError(path, f"missing; a whole number from {least} to {most} is needed", line=line, field=field)
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool):
        raise TraceError(path, f"{str(value)[:40]!r} is not a whole number", line=line, field=field)
    if not least <= number <= most:
        raise TraceError(path, f"{number} lies outside {least}..{most}", line=line, field=field)
    return number


def time_ms(value: object, path: Path, *, line: int, field: str, not_before: float = 0.0) -> float:
    """Return `value` as finite milliseconds, at least `not_before` (traces are sorted by time)."""
    if value is None:
        raise TraceError(path, "missing; milliseconds since the start of the trace are needed", line=line, field=field)
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None:
        raise TraceError(path, f"{str(value)[:40]!r} is not a number of milliseconds", line=line, field=field)
    if not 0.0 <= number <= MAX_TIME_MS:  # also refuses NaN and infinity
        raise TraceError(path, f"{number} lies outside 0..{MAX_TIME_MS:g}", line=line, field=field)
    if number < not_before:
        raise TraceError(path, f"{number} comes after {not_before}; sort the trace by time", line=line, field=field)
    return number
