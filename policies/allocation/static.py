"""The static split: the fallback share of the policy, inside its bounds, whatever the load does."""

from __future__ import annotations

from policies.allocation.types import Bounds


def static_goal_bytes(*, usable_bytes: int, bounds: Bounds) -> float:
    """Return the EMB bytes of the fallback share, inside the bounds, not yet rounded to granules."""
    percent = min(max(bounds.fallback_emb_percent, bounds.min_emb_percent), bounds.max_emb_percent)
    return usable_bytes * percent / 100.0
