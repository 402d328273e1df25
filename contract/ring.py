"""The ring file: access samples of one engine process in shared memory, so that an agent reads them without a request.

One producer maps the file and writes; one consumer reads it and writes nothing. Whoever falls behind loses records and can tell
how many: positions count from the start of the process, as the cursor of GET /samples does, so that a reader may change between
the two.

Layout, little endian. Bytes 0-63: magic `grsmpl01`, u32 version 1, u32 record bytes (24), u64 capacity in records (a power of
two), SHA-256 of the engine's startId. Byte 64: u64 *head*, records published. Byte 128: u64 *claim*, records published or just
being written. From byte 4096: record i at place i modulo capacity, with the low 32 bits of i as its sequence.

The producer stores claim, then the records, then head, each counter as one aligned 8-byte store. The consumer copies up to head
and then reads claim: what lies before `claim - capacity` may have been overwritten under the copy and counts as lost. That needs
stores and loads to stay in program order, which x86 does and Arm does not: there the file is not offered (`SUPPORTED`).
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import platform
import stat
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from contract.samples import MAX_BATCH_RECORDS, RECORD, RECORD_BYTES

SUPPORTED: Final = platform.machine().lower() in ("x86_64", "amd64") and struct.pack("=H", 1) == struct.pack("<H", 1)
"""Whether this machine keeps stores and loads in order, so that the ring may be used."""
DEFAULT_CAPACITY: Final = 65_536
MAX_CAPACITY: Final = 1 << 21
VERSION: Final = 1
RECORDS_AT: Final = 4096
HEAD_AT: Final = 64
CLAIM_AT: Final = 128
_MAGIC: Final = b"grsmpl01"
_IDENTITY = struct.Struct("<8sIIQ32s")
_COUNTER = struct.Struct("<Q")
_STEADY_TRIES = 8
_FAR = 4  # rings that a claim may be ahead: a batch is at most one, unless a burst left records out


class RingBroken(Exception):
    """The file is not the ring of this engine process, or no longer; the message says what is wrong with it."""


class RingWriter:
    """The producer's side; use one per engine process.

    Parameters
    ----------
    path : Path
        Replaced in one step, so that a reader of another process's ring keeps what it has open.
    start_id : str
        Of the engine process.
    capacity : int
        Records, a power of two.

    Raises
    ------
    OSError
        When the file cannot be made.
    ValueError
        When the capacity is not a power of two, or too large.
    """

    def __init__(self, path: Path, *, start_id: str, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity & (capacity - 1) or not 2 <= capacity <= MAX_CAPACITY:
            raise ValueError(f"capacity: {capacity} is not a power of two up to {MAX_CAPACITY}")
        self._path = path
        self._capacity = capacity
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        size = RECORDS_AT + capacity * RECORD_BYTES
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size)
            self._map = mmap.mmap(handle, size)
            self._identity = (os.fstat(handle).st_dev, os.fstat(handle).st_ino)
        finally:
            os.close(handle)
        self._map[: _IDENTITY.size] = _IDENTITY.pack(_MAGIC, VERSION, RECORD_BYTES, capacity, _digest(start_id))
        self._counters = memoryview(self._map).cast("Q")
        self._records = np.frombuffer(self._map, dtype=RECORD, offset=RECORDS_AT)
        self._head = 0
        try:
            draft.rename(path)
        except OSError:
            draft.unlink()
            raise

    def write(self, payload: bytes, following: int) -> None:
        """Add packed records, the last of which has the position `following - 1`.

        Raises
        ------
        ValueError
            When records are left out that the ring would have room for, or records are written twice.
        """
        records = np.frombuffer(payload, dtype=RECORD)
        more = following - self._head
        if not len(records) <= more or len(records) < min(more, self._capacity):
            raise ValueError(f"ring: {len(records)} records between {self._head} and {following}")
        self._head = following
        records = records[-self._capacity :]
        self._counters[CLAIM_AT // 8] = following
        place = (following - len(records)) % self._capacity
        first = min(len(records), self._capacity - place)
        self._records[place : place + first] = records[:first]
        self._records[: len(records) - first] = records[first:]
        self._counters[HEAD_AT // 8] = following

    def close(self) -> None:
        """Remove the file, unless another process has put its own in this place."""
        with contextlib.suppress(OSError):
            found = self._path.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                self._path.unlink()


class RingReader:
    """The consumer's side. It reads by `pread`, because a mapped file that somebody cuts short kills its reader.

    Parameters
    ----------
    path : Path
        Opened once; never through a symbolic link, and only if it is a plain file.
    start_id : str
        The engine process whose ring is wanted.

    Raises
    ------
    RingBroken
        When there is no such ring.
    """

    def __init__(self, path: Path, *, start_id: str) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RingBroken(f"ring: {error.strerror}") from error
        try:
            self._capacity = self._checked(start_id)
        except BaseException:
            self.close()
            raise
        self._head = 0

    def close(self) -> None:
        """Let go of the file; closing again changes nothing."""
        handle, self._file = self._file, -1
        if handle >= 0:
            os.close(handle)

    def read(self, cursor: int) -> tuple[NDArray[Any], int, int]:
        """Return (records from position `cursor` on, next cursor, records lost between the two), like GET /samples.

        A reader that was lapped goes on half a ring behind the producer, to have time for the copy. A cursor that was never given
        starts over in the same place, with nothing lost.

        Raises
        ------
        RingBroken
            When the file breaks a rule of the layout; it must not be read again then.
        """
        head = self._counter(HEAD_AT)
        if head < self._head:
            raise RingBroken(f"ring: head fell from {self._head} to {head}")
        self._head = head
        start = cursor
        if not 0 <= cursor <= head:
            cursor = start = max(0, head - self._capacity // 2)
        elif head - cursor > self._capacity:
            start = head - self._capacity // 2
        count = min(head - start, MAX_BATCH_RECORDS)
        if count == 0:
            return np.empty(0, dtype=RECORD), start, start - cursor
        records = self._copy(start, count)
        claim = self._counter(CLAIM_AT)
        far = _FAR * self._capacity
        if claim < head or (claim - head > far and claim - self._counter(HEAD_AT) > far):
            raise RingBroken(f"ring: claim {claim} with head {head}")
        overwritten = min(max(0, claim - self._capacity - start), count)
        records = records[overwritten:]
        places = np.arange(start + overwritten, start + count, dtype=np.uint64)
        if (records["sequence"] ^ places.astype(np.uint32)).any():
            raise RingBroken("ring: a record is not at its place")
        return records, start + count, start + overwritten - cursor

    def _copy(self, start: int, count: int) -> NDArray[Any]:
        place = start & (self._capacity - 1)
        first = min(count, self._capacity - place)
        payload = self._bytes(RECORDS_AT + place * RECORD_BYTES, first * RECORD_BYTES)
        if first < count:
            payload += self._bytes(RECORDS_AT, (count - first) * RECORD_BYTES)
        return np.frombuffer(payload, dtype=RECORD)

    def _counter(self, at: int) -> int:
        """A counter that reads the same twice: a read of the file need not be one load."""
        value = self._bytes(at, 8)
        for _ in range(_STEADY_TRIES):
            again = self._bytes(at, 8)
            if again == value:
                break
            value = again
        number: int = _COUNTER.unpack(value)[0]
        return number

    def _bytes(self, at: int, size: int) -> bytes:
        try:
            found = os.pread(self._file, size, at)
        except OSError as error:
            raise RingBroken(f"ring: {error.strerror}") from error
        if len(found) != size:
            raise RingBroken("ring: the file is cut short")
        return found

    def _checked(self, start_id: str) -> int:
        """Capacity of a ring that is what it should be."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise RingBroken("ring: not a plain file")
        magic, version, record_bytes, capacity, owner = _IDENTITY.unpack(self._bytes(0, _IDENTITY.size))
        if (magic, version, record_bytes) != (_MAGIC, VERSION, RECORD_BYTES):
            raise RingBroken("ring: not a ring of this version")
        if capacity & (capacity - 1) or not 2 <= capacity <= MAX_CAPACITY:
            raise RingBroken(f"ring: capacity {capacity} is not a power of two up to {MAX_CAPACITY}")
        if status.st_size != RECORDS_AT + capacity * RECORD_BYTES:
            raise RingBroken(f"ring: {status.st_size} bytes for {capacity} records")
        if owner != _digest(start_id):
            raise RingBroken("ring: of another engine process")
        return int(capacity)


def _digest(start_id: str) -> bytes:
    return hashlib.sha256(start_id.encode()).digest()
