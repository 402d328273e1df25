"""Bounded reading of lines, plain or gzip, and the error that all trace loaders raise.

A file is hostile until read: a line has a most length, a file a most number of lines and of bytes, and both are counted **after**
decompression, so a small file cannot become an endless one. Messages name the place and what was expected there, never what was
found: a user id that slipped into another column must not end up in a log.
"""

import gzip
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

MAX_TOKENS = 1 << 24
MAX_TIME_MS = 1e12
GZIP_MAGIC = b"\x1f\x8b"


class TraceError(ValueError):
    """A trace cannot be used; the message names file, line and field, and what was expected."""

    def __init__(self, path: Path, problem: str, *, line: int | None = None, field: str | None = None) -> None:
        where = f"{path}" + (f", line {line}" if line is not None else "") + (f", field {field}" if field else "")
        super().__init__(f"{where}: {problem}")
        self.path = path
        self.line = line
        self.field = field


class BadLine(Exception):
    """One line cannot be used; whoever reads decides whether that ends the reading."""

    def __init__(self, problem: str, field: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that is read of one file, after decompression."""

    line_bytes: int = 1024 * 1024
    lines: int = 5_000_000
    text_bytes: int = 512 * 1024 * 1024


class Lines:
    """The lines of a file with their numbers from 1, without blank ones; the content tells gzip from plain, the name does not.

    Attributes
    ----------
    size : int
        Bytes of the file as it lies on disk.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._file: BinaryIO | None = None
        try:
            status = path.stat()
        except OSError as error:
            raise TraceError(path, f"cannot be read ({error.strerror})") from error
        if not stat.S_ISREG(status.st_mode):
            raise TraceError(path, "is not a file")
        self.size = status.st_size

    @property
    def position(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._file.tell() if self._file is not None and not self._file.closed else self.size

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield (number, bytes of the line), None for a line that is too long.

        Raises
        ------
        TraceError
            When the file cannot be read, is damaged, or passes a limit.
        """
        number = 0
        try:
            with self.path.open("rb") as file:
                self._file = file
                zipped = file.read(2) == GZIP_MAGIC
                file.seek(0)
                for number, raw in self._of(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file):
                    yield number, raw
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged or cut gzip"
            raise TraceError(self.path, f"cannot be read on ({reason})", line=number + 1) from error

    def _of(self, text: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
        most, most_lines, most_bytes = self.limits.line_bytes + 1, self.limits.lines, self.limits.text_bytes
        read = number = 0
        while raw := text.readline(most):
            number += 1
            read += len(raw)
            cut = len(raw) == most and not raw.endswith(b"\n")
            if cut:
                read += self._rest_of_line(text, most_bytes - read)
            if read > most_bytes:
                raise TraceError(self.path, f"more than {most_bytes} bytes of text; cut the trace", line=number)
            if number > most_lines:
                raise TraceError(self.path, f"more than {most_lines} lines; cut the trace", line=number)
            if cut:
                yield number, None
            elif not raw.isspace():
                yield number, raw

    def _rest_of_line(self, text: BinaryIO, most_bytes: int) -> int:
        """Read on to the end of a line that is too long, or past `most_bytes`; return how many bytes that were."""
        read = 0
        while read <= most_bytes and (part := text.readline(self.limits.line_bytes)):
            read += len(part)
            if part.endswith(b"\n"):
                break
        return read


def text_of(raw: bytes | None, number: int, limits: Limits) -> str:
    """Return the text of a line, without the byte order mark that some programs put before the first.

    Raises
    ------
    BadLine
        When it is too long, not UTF-8, or holds a NUL.
    """
    if raw is None:
        raise BadLine(f"longer than {limits.line_bytes} bytes")
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        raise BadLine("not UTF-8") from None
    if b"\0" in raw:
        raise BadLine("holds a NUL byte; is it a text file?")
    return text


def lines_of(path: Path, limits: Limits | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of the lines that are not blank.

    Raises
    ------
    TraceError
        When the file is missing, too large or damaged, or at the first line that is too long or no text.
    """
    limits = limits or Limits()
    for number, raw in Lines(path, limits):
        try:
            text = text_of(raw, number, limits)
        except BadLine as bad:
            raise TraceError(path, bad.problem, line=number) from None
        yield number, text


def whole_number(value: object, *, field: str, least: int = 0, most: int = MAX_TOKENS) -> int:
    """Return `value` as an integer within [least, most]; text is converted, a float or a boolean is refused.

    Raises
    ------
    BadLine
        Otherwise, with the field.
    """
    if value is None:
        raise BadLine(f"missing; a whole number from {least} to {most} is needed", field)
    if isinstance(value, str):
        try:
            value = int(value) if value.isascii() and "_" not in value else None
        except ValueError:
            value = None
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadLine(f"not a whole number from {least} to {most}", field)
    if not least <= value <= most:
        raise BadLine(f"lies outside {least}..{most}", field)
    return value


def finite_number(value: object, *, field: str, most: float) -> float:
    """Return `value` as a finite float within [0, most]; text is converted, a boolean is refused.

    Raises
    ------
    BadLine
        Otherwise, with the field.
    """
    if value is None:
        raise BadLine(f"missing; a number from 0 to {most:g} is needed", field)
    try:
        if isinstance(value, str):
            number = float(value) if value.isascii() and "_" not in value else None
        else:
            number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise BadLine(f"not a number from 0 to {most:g}", field)
    if not 0.0 <= number <= most:  # also refuses NaN and infinity
        raise BadLine(f"lies outside 0..{most:g}", field)
    return number
