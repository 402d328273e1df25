"""A RequestLog as one file: a header of JSON and the columns as they lie in memory. No pickles, nothing compressed.

Layout: 8 bytes `GRFLOG` + version + newline; length of the header (8 bytes, little-endian); SHA-256 of the header (32 bytes); the
header; then each column of little-endian numbers, starting at the next multiple of 64. A reader knows the size of the whole file
from the header, and refuses every other size before it reserves memory. The header holds the digest of the requests and their
manifest.
"""

import hashlib
import os
import stat
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta

from simulator.request_log import RequestLog, RowLaw
from simulator.traces.reading import TraceError

MAGIC = b"GRFLOG\x01\n"
ALIGNMENT = 64
MAX_HEADER_BYTES = 1 << 20
MAX_COUNT = 1 << 31
COLUMNS = {
    "arrival_ms": "<f8",
    "user": "<u4",
    "history_tokens": "<i4",
    "candidates": "<i4",
    "signal_lead_ms": "<f4",
    "law": "|u1",
    "user_slots": "<u2",
}

_Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]


class _Law(msgspec.Struct, forbid_unknown_fields=True):
    exponent: float
    catalog_rows: int
    drift_percent_per_hour: float
    head_rows: int
    offset: int


class _Header(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    columns: list[tuple[str, str, _Count]]
    laws: Annotated[list[_Law], Meta(min_length=1, max_length=256)]
    rows_per_token: _Count
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    manifest: dict[str, Any]


def save_request_log(path: Path, log: RequestLog, manifest: dict[str, Any]) -> None:
    """Write the requests to `path`, whole or not at all; a file that is there is replaced.

    Parameters
    ----------
    manifest : dict
        JSON values that say what the requests are made of.

    Raises
    ------
    OSError
        When it cannot be written.
    ValueError
        When the manifest is no JSON, or longer than a header may be.
    """
    header = _Header(
        columns=[(name, dtype, len(getattr(log, name))) for name, dtype in COLUMNS.items()],
        laws=[_Law(**asdict(law)) for law in log.laws],
        rows_per_token=log.rows_per_token,
        digest=log.digest,
        manifest=manifest,
    )
    encoded = msgspec.json.encode(header)
    if len(encoded) > MAX_HEADER_BYTES:
        raise ValueError(f"manifest: the header would have {len(encoded)} bytes, {MAX_HEADER_BYTES} is the most")
    try:
        _replace(path, log, encoded)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, log: RequestLog, encoded: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + len(encoded).to_bytes(8, "little") + hashlib.sha256(encoded).digest() + encoded)
            for column, dtype in COLUMNS.items():
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                np.ascontiguousarray(getattr(log, column), dtype=dtype).tofile(file)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def load_request_log(path: Path) -> tuple[RequestLog, dict[str, Any]]:
    """Return the requests of a file and their manifest.

    Raises
    ------
    TraceError
        When it cannot be read, is no such file, was cut or changed, or holds what a RequestLog may not.
    """
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TraceError(path, "is not a file")
            header = _header(path, file)
            columns = _columns(path, file, header)
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error.strerror})") from error
    try:
        laws = tuple(RowLaw(**msgspec.structs.asdict(law)) for law in header.laws)
        log = RequestLog(laws=laws, rows_per_token=header.rows_per_token, **columns)
    except ValueError as error:
        raise TraceError(path, str(error)) from error
    if log.digest != header.digest:
        raise TraceError(path, "the requests are not those of its digest; it was changed or damaged")
    return log, header.manifest


def is_request_log(path: Path) -> bool:
    """Whether a file begins as one of these."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _header(path: Path, file: BinaryIO) -> _Header:
    if file.read(len(MAGIC)) != MAGIC:
        raise TraceError(path, "is no file of requests; `grfleet trace convert` makes one of an event log")
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise TraceError(path, f"header of {length} bytes, at most {MAX_HEADER_BYTES} is read")
    digest = file.read(32)
    encoded = file.read(length)
    if hashlib.sha256(encoded).digest() != digest:
        raise TraceError(path, "the header was changed, damaged or cut")
    try:
        header = msgspec.json.decode(encoded, type=_Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(path, f"header: {error}") from error
    if [(name, dtype) for name, dtype, _ in header.columns] != list(COLUMNS.items()):
        raise TraceError(path, "header: other columns or types than this version writes")
    counts = {count for name, _, count in header.columns if name != "user_slots"}
    if len(counts) != 1:
        raise TraceError(path, "header: columns of different length")
    return header


def _columns(path: Path, file: BinaryIO, header: _Header) -> dict[str, Any]:
    places: dict[str, int] = {}
    end = file.tell()
    for name, dtype, count in header.columns:
        places[name] = end + -end % ALIGNMENT
        end = places[name] + count * np.dtype(dtype).itemsize
    size = os.fstat(file.fileno()).st_size
    if size != end:
        raise TraceError(path, f"has {size} bytes, its header asks for {end}; it was cut or damaged")
    columns = {}
    for name, dtype, count in header.columns:
        file.seek(places[name])
        column = np.fromfile(file, dtype=dtype, count=count)
        columns[name] = column.astype(column.dtype.newbyteorder("="), copy=False)
    return columns
