"""The last decisions of an agent, with what they saw and why, in a bounded ring that readers follow by sequence number."""

from collections import deque
from typing import Any

from contract.agent import MAX_DECISIONS, DecisionRecord, DecisionsAnswer


class DecisionRing:
    """Keeps the newest `capacity` records; sequence numbers start at 1 and are never reused in one process."""

    def __init__(self, *, capacity: int = MAX_DECISIONS) -> None:
        self._records: deque[DecisionRecord] = deque(maxlen=capacity)
        self.last_sequence = 0

    def append(
        self,
        *,
        clock_ms: float,
        strategy: str,
        layer: str,
        reason: str,
        clips: list[str],
        from_emb_bytes: int,
        target_emb_bytes: int,
        applied: bool,
        inputs: dict[str, Any],
    ) -> DecisionRecord:
        """Number a decision, keep it and return it; `clock_ms` is the engine's clock at the observation behind it."""
        self.last_sequence += 1
        record = DecisionRecord(
            sequence=self.last_sequence,
            clock_ms=clock_ms,
            strategy=strategy,
            layer=layer,
            reason=reason,
            clips=clips[:16],
            from_emb_bytes=from_emb_bytes,
            target_emb_bytes=target_emb_bytes,
            applied=applied,
            inputs=inputs,
        )
        self._records.append(record)
        return record

    def after(self, sequence: int, *, limit: int = MAX_DECISIONS) -> DecisionsAnswer:
        """Return up to `limit` records above `sequence`, oldest first, and the cursor to ask next.

        A cursor from another process (above everything here) starts over, so that a reader survives an agent restart.
        """
        if sequence > self.last_sequence:
            sequence = 0
        newer = [record for record in self._records if record.sequence > sequence][: max(0, limit)]
        return DecisionsAnswer(decisions=newer, next=newer[-1].sequence if newer else sequence)

    def __len__(self) -> int:
        return len(self._records)
