"""Whether room between two splits is worth what refilling it costs, on an engine that serves nothing meanwhile.

Model: a refill stands still for its bytes at the rate at which missed rows arrive on this very engine, and the queue that has
formed is gone after that time over the idle share (busy period; Kleinrock 1975). For so long a P99 counts as lost twice over,
against what the other split promises for as long as the curves that promise it are worth.
"""

from __future__ import annotations

import math

import msgspec

from policies.allocation.types import Costs, Observation
from policies.measurement import Fresh

HELD_S = 60.0
"""How long a prediction counts: curves remember about a minute, and say nothing of what comes later."""
_MOST_BUSY = 0.95  # beyond it a queue goes on to grow whatever stands still


def refill_ms_per_byte(observation: Observation, costs: Costs) -> float:
    """Return what a byte of rows takes over the link, in ms; infinite while no row was missed, since nobody knows then.

    A gather of single rows is slower than a refill in one piece, so the price is on the safe side.
    """
    asked, hit, moved = observation.emb_rows_asked, observation.emb_rows_hit, observation.demand_bytes
    if not (isinstance(asked, Fresh) and isinstance(hit, Fresh) and isinstance(moved, Fresh)):
        return math.inf
    missed_ms = (asked.value - hit.value) * costs.ms_per_emb_miss_row
    return missed_ms / moved.value if missed_ms > 0.0 and moved.value > 0.0 else math.inf


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What room costs that must be refilled.

    Attributes
    ----------
    ms_per_byte
        Result of `refill_ms_per_byte`.
    utilisation
        Serving time over time.
    """

    ms_per_byte: float
    utilisation: float

    def share(self, moved_bytes: float) -> float:
        """Return by how much a P99 must be lower for `HELD_S`, as a share of it, to make up for refilling so many bytes."""
        idle = 1.0 - min(self.utilisation, _MOST_BUSY)
        return abs(moved_bytes) * self.ms_per_byte / (1000.0 * idle * HELD_S)

    def is_worth(self, moved_bytes: float, p99_ms: float, other_p99_ms: float) -> bool:
        """Say whether a split promises so much less P99 than another one that the room between them is paid for.

        The room is refilled once, on the way there or on the way back. False for whatever is not a number.
        """
        return p99_ms * (1.0 + self.share(moved_bytes)) < other_p99_ms
