"""Access samples: packed 24-byte records with which an engine tells which users and rows it touched.

Record layout, little endian: sequence u32, kind and size u32 (kind in the top two bits), key u64, time u64 in microseconds of
the engine's clock. A size is tokens for a user (KV) and 1 for an embedding row. Accesses are sampled by key: a key is either
always or never sampled, at the rates that `describe` states. The same layout serves the memory-mapped ring.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from contract.errors import ProtocolViolation

RECORD_BYTES = 24
KIND_KV = 0
KIND_EMB = 1
MAX_SIZE = (1 << 30) - 1
MAX_BATCH_RECORDS = 65_536
WANTED_KEYS = 4096

RECORD = np.dtype([("sequence", "<u4"), ("kind_size", "<u4"), ("key", "<u8"), ("time_us", "<u8")])
assert RECORD.itemsize == RECORD_BYTES


def is_sampled(key: int, one_in: int) -> bool:
    """Say whether a 64-bit key belongs to the sample of rate 1/one_in (spatial sampling, as SHARDS does)."""
    return key < (1 << 64) // one_in


def sampling_of(keys: int) -> int:
    """One in how many keys an engine should report, when it serves so many between two turns of its caches.

    A power of two that leaves at least `WANTED_KEYS` of them in the sample, and all of them when they are few: a curve is as good
    as the number of sampled keys that carry its weight, however many there are outside. docs/estimator.md has the measurement.
    """
    return 1 << max(0, (keys // WANTED_KEYS).bit_length() - 1)


class SampleBuffer:
    """Bounded ring of records on the engine's side; a reader that falls behind is told how many it lost."""

    def __init__(self, *, capacity: int = MAX_BATCH_RECORDS) -> None:
        self._records = np.zeros(capacity, dtype=RECORD)
        self._kind_sizes, self._keys = self._records["kind_size"], self._records["key"]
        self._times = self._records["time_us"]
        self._next = 0

    def append(self, *, kind: int, size: int, key: int, time_us: int) -> None:
        place = self._next % len(self._records)
        self._kind_sizes[place] = (kind << 30) | min(size, MAX_SIZE)
        self._keys[place] = key
        self._times[place] = time_us
        self._next += 1

    def extend(self, *, kind: int, size: int, keys: Sequence[int] | NDArray[np.uint64], time_us: int) -> None:
        """Append one record for each key, all of one kind, size and time."""
        array = np.asarray(keys, dtype=np.uint64)
        capacity = len(self._records)
        skipped = max(0, len(array) - capacity)
        self._next += skipped
        array = array[skipped:]
        while len(array):
            place = self._next % capacity
            run = min(len(array), capacity - place)
            self._kind_sizes[place : place + run] = (kind << 30) | min(size, MAX_SIZE)
            self._keys[place : place + run] = array[:run]
            self._times[place : place + run] = time_us
            self._next += run
            array = array[run:]

    def read(self, cursor: int) -> tuple[bytes, int, int]:
        """Return (packed records after `cursor`, next cursor, records lost between the two)."""
        capacity = len(self._records)
        oldest = max(0, self._next - capacity)
        if not 0 <= cursor <= self._next:
            cursor = oldest
        lost = max(0, oldest - cursor)
        start = max(cursor, oldest)
        stop = min(self._next, start + MAX_BATCH_RECORDS)
        sequence = np.arange(start, stop, dtype=np.int64)
        out = self._records[sequence % capacity]
        out["sequence"] = sequence & 0xFFFF_FFFF
        return out.tobytes(), stop, lost


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
