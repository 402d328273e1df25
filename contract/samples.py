"""Access samples: packed 24-byte records with which an engine tells which users and rows it touched.

Record layout, little endian: sequence u32, kind and size u32 (kind in the top two bits), key u64, time u64 in microseconds of
the engine's clock. A size is tokens for a user (KV) and 1 for an embedding row. Accesses are sampled by key: a key is either
always or never sampled, at the rates that `describe` states. The same layout serves the memory-mapped ring.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from contract.errors import ProtocolViolation

RECORD_BYTES = 24
KIND_KV = 0
KIND_EMB = 1
MAX_SIZE = (1 << 30) - 1
MAX_BATCH_RECORDS = 65_536

RECORD = np.dtype([("sequence", "<u4"), ("kind_size", "<u4"), ("key", "<u8"), ("time_us", "<u8")])
assert RECORD.itemsize == RECORD_BYTES


def is_sampled(key: int, one_in: int) -> bool:
    """Say whether a 64-bit key belongs to the sample of rate 1/one_in (spatial sampling, as SHARDS does)."""
    return key < (1 << 64) // one_in


class SampleBuffer:
    """Bounded ring of records on the engine's side; a reader that falls behind is told how many it lost."""

    def __init__(self, *, capacity: int = MAX_BATCH_RECORDS) -> None:
        self._records: deque[tuple[int, int, int]] = deque(maxlen=capacity)
        self._next = 0

    def append(self, *, kind: int, size: int, key: int, time_us: int) -> None:
        self._records.append(((kind << 30) | min(size, MAX_SIZE), key, time_us))
        self._next += 1

    def extend(self, *, kind: int, size: int, keys: Iterable[int], time_us: int) -> None:
        """Append one record for each key, all of one kind, size and time."""
        kind_size = (kind << 30) | min(size, MAX_SIZE)
        for key in keys:
            self._records.append((kind_size, key, time_us))
            self._next += 1

    def read(self, cursor: int) -> tuple[bytes, int, int]:
        """Return (packed records after `cursor`, next cursor, records lost between the two)."""
        oldest = self._next - len(self._records)
        if not 0 <= cursor <= self._next:
            cursor = oldest
        lost = max(0, oldest - cursor)
        start = max(cursor, oldest)
        wanted = min(self._next - start, MAX_BATCH_RECORDS)
        out = np.empty(wanted, dtype=RECORD)
        skip = start - oldest
        for row in range(wanted):
            kind_size, key, time_us = self._records[skip + row]
            out[row] = ((start + row) & 0xFFFF_FFFF, kind_size, key, time_us)
        return out.tobytes(), start + wanted, lost


def unpack(payload: bytes) -> NDArray[np.void]:
    """Return the records of a batch as a structured array with fields sequence, kind_size, key, time_us.

    Raises
    ------
    ProtocolViolation
        When the payload is not a whole number of records or larger than a batch may be.
    """
    if len(payload) % RECORD_BYTES or len(payload) > MAX_BATCH_RECORDS * RECORD_BYTES:
        raise ProtocolViolation(
            f"samples: {len(payload)} bytes are not up to {MAX_BATCH_RECORDS} records of {RECORD_BYTES} bytes"
        )
    return np.frombuffer(payload, dtype=RECORD)
