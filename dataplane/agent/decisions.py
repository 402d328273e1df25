"""The last decisions of an agent, with what they saw and why, in a bounded ring that readers follow by sequence number.

Records are kept packed: they hold whole miss-ratio curves, and most are never read.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from contract.agent import MAX_DECISIONS, DecisionRecord, DecisionsAnswer

PAGE = 400
"""Most records of one answer, so that it stays below the size that clients accept."""
MAX_BYTES = 1024 * 1024
"""Records with two whole curves take five kilobytes: about 200 of them, three minutes at one decision a second."""
TOGETHER = 8
"""Records that are packed in one go: what a single one takes from cold caches would be several times as much."""
_PACK = msgspec.msgpack.Encoder()


class DecisionRing:
    """Keeps the newest records, up to `capacity` and MAX_BYTES; sequence numbers start at 1 and are never used again."""

    def __init__(self, *, capacity: int = MAX_DECISIONS) -> None:
        self._unpacked: list[tuple[int, Callable[[], DecisionRecord], msgspec.Struct | None]] = []
        self._records: deque[tuple[bytes, type[msgspec.Struct] | None, bytes]] = deque()
        self._capacity = capacity
        self._bytes = 0
        self.last_sequence = 0

    def append(self, record: Callable[[], DecisionRecord], inputs: msgspec.Struct | None = None) -> None:
        """Number what `record` will make, and keep it with its typed inputs; it is made and packed with those that follow it."""
        self.last_sequence += 1
        self._unpacked.append((self.last_sequence, record, inputs))
        if len(self._unpacked) >= TOGETHER:
            self._pack()

    def _pack(self) -> None:
        waiting, self._unpacked = self._unpacked, []
        for sequence, make, inputs in waiting:
            kind = type(inputs) if inputs is not None else None
            packed = _PACK.encode(msgspec.structs.replace(make(), sequence=sequence))
            typed = _PACK.encode(inputs) if inputs is not None else b""
            self._records.append((packed, kind, typed))
            self._bytes += len(packed) + len(typed)
        while len(self._records) > self._capacity or (self._bytes > MAX_BYTES and len(self._records) > 1):
            packed, _, typed = self._records.popleft()
            self._bytes -= len(packed) + len(typed)

    def after(self, sequence: int, *, limit: int = PAGE) -> DecisionsAnswer:
        """Return up to `limit` (at most PAGE) records above `sequence`, oldest first, and the cursor to ask next.

        A cursor from another process (above everything here) starts over, so that a reader survives an agent restart.
        """
        self._pack()
        if sequence > self.last_sequence:
            sequence = 0
        oldest = self.last_sequence - len(self._records) + 1
        first = max(sequence + 1 - oldest, 0)
        page = [_read(*kept) for kept in islice(self._records, first, first + min(limit, PAGE))]
        return DecisionsAnswer(decisions=page, next=page[-1].sequence if page else sequence)

    def __len__(self) -> int:
        self._pack()
        return len(self._records)


def _read(packed: bytes, kind: type[msgspec.Struct] | None, inputs: bytes) -> DecisionRecord:
    record = msgspec.msgpack.decode(packed, type=DecisionRecord)
    if kind is None:
        return record
    typed: dict[str, Any] = msgspec.to_builtins(msgspec.msgpack.decode(inputs, type=kind))
    return msgspec.structs.replace(record, inputs=record.inputs | typed)
