"""The last decisions of an agent, with what they saw and why, in a bounded ring that readers follow by sequence number.

The inputs stay typed until somebody asks: they hold whole miss-ratio curves, and most records are never read.
"""

from collections import deque
from typing import Any

import msgspec

from contract.agent import MAX_DECISIONS, DecisionRecord, DecisionsAnswer

PAGE = 400
"""Most records of one answer, so that it stays below the size that clients accept."""


class DecisionRing:
    """Keeps the newest `capacity` records; sequence numbers start at 1 and are never reused in one process."""

    def __init__(self, *, capacity: int = MAX_DECISIONS) -> None:
        self._records: deque[tuple[DecisionRecord, msgspec.Struct | None]] = deque(maxlen=capacity)
        self.last_sequence = 0

    def append(self, record: DecisionRecord, inputs: msgspec.Struct | None = None) -> DecisionRecord:
        """Number a record, keep it with its typed inputs, and return it without them."""
        self.last_sequence += 1
        numbered = msgspec.structs.replace(record, sequence=self.last_sequence)
        self._records.append((numbered, inputs))
        return numbered

    def after(self, sequence: int, *, limit: int = PAGE) -> DecisionsAnswer:
        """Return up to `limit` (at most PAGE) records above `sequence`, oldest first, and the cursor to ask next.

        A cursor from another process (above everything here) starts over, so that a reader survives an agent restart.
        """
        if sequence > self.last_sequence:
            sequence = 0
        page: list[DecisionRecord] = []
        for record, inputs in self._records:
            if len(page) >= min(limit, PAGE):
                break
            if record.sequence > sequence:
                page.append(_with_inputs(record, inputs))
        return DecisionsAnswer(decisions=page, next=page[-1].sequence if page else sequence)

    def __len__(self) -> int:
        return len(self._records)


def _with_inputs(record: DecisionRecord, inputs: msgspec.Struct | None) -> DecisionRecord:
    if inputs is None:
        return record
    typed: dict[str, Any] = msgspec.to_builtins(inputs)
    return msgspec.structs.replace(record, inputs=record.inputs | typed)
