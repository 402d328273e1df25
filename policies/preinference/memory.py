"""Memory set aside for prefixes on each instance, and how many slots it can feed.

The reservation is cut from what the two caches share, so it moves in eighths of its budget, shrinks only after the scale-down
window and never below what lives: noise must not move the split.
"""

from __future__ import annotations

import math

from policies.measurement import Fresh
from policies.preinference.littles_law import slots_within
from policies.preinference.observed import pool_sum
from policies.preinference.rules import CapacityRules, PoolLoad
from policies.scaling.decide import decide_count
from policies.scaling.proposals import Proposal
from policies.scaling.types import Bounds, Doubt, History, doubt_of

STEPS = 8


def slots_that_fit(load: PoolLoad, rules: CapacityRules) -> int | Doubt:
    """Return how many slots the budget of one instance can feed, or why that is not known."""
    live = pool_sum(load.instances, lambda i: i.live_prefix_bytes)
    busy = pool_sum(load.instances, lambda i: i.busy_slots)
    if not isinstance(live, Fresh) or not isinstance(busy, Fresh):
        return doubt_of(live) or doubt_of(busy) or Doubt.MISSING
    measured = slots_within(budget_bytes=rules.prefix_budget_bytes, live_bytes=live.value, busy_slots=busy.value)
    return measured if measured is not None else rules.prefix_budget_bytes // max(rules.largest_prefix_bytes, 1)


def steps_of(prefix_bytes: int, *, budget_bytes: int) -> int:
    """Eighths of the budget, rounded up, that hold so many bytes."""
    return min(STEPS, -(-prefix_bytes * STEPS // budget_bytes)) if budget_bytes > 0 else 0


def bytes_of(steps: int, *, budget_bytes: int) -> int:
    """Bytes of so many eighths of the budget."""
    return budget_bytes * steps // STEPS


def reserve(load: PoolLoad, rules: CapacityRules, *, slots: int, history: History, now_s: float) -> tuple[int, History]:
    """Return the bytes to reserve on each instance, and the history for the next time.

    The first reservation holds the longest prefix in every slot. Later ones hold what the slots fill when all are busy (Little's
    law), and the longest prefix in each where that is more.
    """
    budget = rules.prefix_budget_bytes
    if load.prefix_bytes is None or budget <= 0:
        steps = steps_of(slots * rules.largest_prefix_bytes, budget_bytes=budget)
        return bytes_of(steps, budget_bytes=budget), History.starting_at(steps, now_s=now_s)
    current = steps_of(load.prefix_bytes, budget_bytes=budget)
    decision = decide_count(
        [_proposal(load, rules, slots=slots)],
        current=current,
        bounds=Bounds(minimum=0, maximum=STEPS),
        behavior=rules.behavior,
        history=history,
        now_s=now_s,
    )
    noted = decision.history.changed(before=current, after=decision.count, now_s=now_s, behavior=rules.behavior)
    return bytes_of(decision.count, budget_bytes=budget), noted


def _proposal(load: PoolLoad, rules: CapacityRules, *, slots: int) -> Proposal:
    live = pool_sum(load.instances, lambda i: i.live_prefix_bytes)
    busy = pool_sum(load.instances, lambda i: i.busy_slots)
    if not isinstance(live, Fresh) or not isinstance(busy, Fresh):
        return Proposal(metric="prefixMemory", count=None, doubt=doubt_of(live) or doubt_of(busy))
    fullest = max(i.live_prefix_bytes.value for i in load.instances if i.ready and isinstance(i.live_prefix_bytes, Fresh))
    behind_a_slot = live.value / busy.value if busy.value >= 1.0 else 0.0
    need = max(slots * max(behind_a_slot, float(rules.largest_prefix_bytes)), fullest)
    need = min(need, float(rules.prefix_budget_bytes))  # more is not to be had, and could overflow
    return Proposal(metric="prefixMemory", count=steps_of(math.ceil(need), budget_bytes=rules.prefix_budget_bytes))
