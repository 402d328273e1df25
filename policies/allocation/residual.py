"""The residual: a correction on top of the frozen base, pulled towards the anchor where the base predicts worse than it.

It explores nothing: online exploration on a good base costs more than it finds. What it adds comes from the anchor, whose costs
are measured on this very engine, so it makes up for an accelerator or a link that the base was not trained for. The correction
is bounded, moves slowly, and fades when it does not pay.
"""

from __future__ import annotations

import math

import msgspec

_PULL_MS = 2804.0  # time constant at which a step a second goes 0.3 of the way


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's words on the correction (points of usable; percent of P99)."""

    enabled: bool = False
    max_percent: float = 20.0
    min_gain_percent: float = 1.0


def corrected_points(
    points: float,
    *,
    base_percent: float,
    anchor_percent: float,
    base_p99_ms: float,
    anchor_p99_ms: float,
    widening: float,
    dt_ms: float,
    residual: Residual,
) -> float:
    """Return the correction after this decision, in points of usable to be added to the base's split.

    Parameters
    ----------
    points
        The correction before.
    base_percent, anchor_percent
        Where the base and the smoothed anchor want the split, in points of usable.
    base_p99_ms, anchor_p99_ms
        Predicted P99 at either.
    widening
        How many times wider than usual the clamp is because the curves are restless: a prediction from such curves must promise
        as many times more before it is followed.
    dt_ms
        Time since the last decision.
    """
    gain_percent = 100.0 * (1.0 - anchor_p99_ms / base_p99_ms) if base_p99_ms > 0.0 else 0.0
    pays = gain_percent > residual.min_gain_percent * widening  # also False for what is not a number
    way = min(max(anchor_percent - base_percent, -residual.max_percent), residual.max_percent)
    moved = points + ((way if pays else 0.0) - points) * (1.0 - math.exp(-max(dt_ms, 0.0) / _PULL_MS))
    # What was right for another answer of the base must not lead past the anchor now.
    return min(max(moved, min(way, 0.0)), max(way, 0.0))
