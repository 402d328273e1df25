"""How much of its full share a new instance gets: a ramp by its measured hit rate, bounded by its age.

A cold instance that gets its full share at once turns every one of those users into a miss. So its weight follows the hit
rate it has reached, in coarse steps (each step moves users), never falls while it warms, and is full when the time is up.
"""

from __future__ import annotations

from policies.measurement import Fresh, Measurement

FULL_WEIGHT_PERCENT = 100
"""The weight of an instance that is warm."""
_STEPS = (25, 50, 75, FULL_WEIGHT_PERCENT)


def ramp_weight_percent(
    *,
    age_ms: float,
    hit_percent: Measurement,
    target_hit_percent: float,
    max_ms: float,
    previous_percent: int = 0,
) -> int:
    """Return the weight of a warming instance: 25, 50, 75 or 100 percent.

    Parameters
    ----------
    age_ms
        Time since this instance (this uid) became ready.
    hit_percent
        Its measured KV hit rate, in percent of what a warm instance has. Where it is not fresh, age alone counts.
    target_hit_percent
        Hit rate at which it counts as warm (`warmup.hitPercent`).
    max_ms
        Age at which it counts as warm anyway (`warmup.maxSeconds`).
    previous_percent
        Weight it has now; the ramp does not go back.
    """
    if age_ms >= max_ms or previous_percent >= FULL_WEIGHT_PERCENT:
        return FULL_WEIGHT_PERCENT
    if isinstance(hit_percent, Fresh):
        progress = hit_percent.value / target_hit_percent if target_hit_percent > 0.0 else 1.0
    else:
        progress = age_ms / max_ms
    reached = max((step for step in _STEPS if step <= 100.0 * progress + 1e-9), default=_STEPS[0])
    return max(reached, previous_percent)
