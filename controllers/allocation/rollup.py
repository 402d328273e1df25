"""SplitSettled and PolicyHealthy of a pool: what its instances say, taken together. Pure.

The pool is as unwell as its worst instance, and the message counts. While an instance has not caught up with a new spec the
old word stands, so that the conditions do not flicker with every edit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.allocation.intent import wanted_intent
from controllers.allocation.observe import PoolView
from controllers.allocation.verdicts import policy_problem
from controllers.announce import Announcement, announcements, moved_on
from controllers.lookup import Found
from controllers.pace import wait_before_write
from controllers.runtime.conditions import Condition, conditions_of, find_condition, set_conditions, standing_items
from controllers.runtime.resources import key_of
from controllers.words import few


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupPlan:
    """The loop's whole status of the pool, or None; then `requeue_after` says when to look again, if at all."""

    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None


def decide_rollup(view: PoolView, now: datetime) -> RollupPlan:
    """Choose what to write for the pool."""
    before, generation = conditions_of(view.stored), view.pool.metadata.generation
    known = find_condition(before, "PolicyHealthy") is not None
    if isinstance(view.policy, Found) and known and _any_lags(view):
        return RollupPlan()
    conditions = (pool_policy_healthy(view), pool_split_settled(view))
    items = set_conditions(before, conditions, observed_generation=generation, now=now)
    old = standing_items(before, ("PolicyHealthy", "SplitSettled"))
    if old == items:
        return RollupPlan()
    wait = wait_before_write(view.write_ages_s, transition=moved_on(old, items))
    if wait:
        return RollupPlan(requeue_after=wait)
    return RollupPlan(status={"conditions": items}, announce=announcements(before, conditions))


def pool_policy_healthy(view: PoolView) -> Condition:
    """PolicyHealthy of the pool."""
    problem = policy_problem(view.policy, pool_policy=view.pool.spec.policies.hbm)
    if problem is not None:
        return problem
    words = _words_of(view, "PolicyHealthy")
    for status, default in (("False", ""), ("Unknown", "Pending")):
        bad = {name: reason or default for name, (state, reason) in words.items() if state == status}
        if bad:
            reason = Counter(bad.values()).most_common(1)[0][0]
            listed = few([f"{name} ({why})" for name, why in sorted(bad.items())])
            message = f"{len(bad)} of {len(words)} instances: {listed}"
            return Condition("PolicyHealthy", "False" if status == "False" else "Unknown", reason, message)
    if not words:
        return Condition("PolicyHealthy", "Unknown", "Pending", "the pool has no instance yet")
    reason = Counter(reason for _, reason in words.values()).most_common(1)[0][0]
    assert isinstance(view.policy, Found)
    where = f"HBMPolicy {view.policy.namespace}/{view.policy.name}" if view.policy.namespace else "the built-in defaults"
    return Condition("PolicyHealthy", "True", reason, f"{view.policy.spec.strategy} of {where} on {len(words)} instances")


def pool_split_settled(view: PoolView) -> Condition:
    """SplitSettled of the pool."""
    words = _words_of(view, "SplitSettled")
    settled = sum(state == "True" for state, _ in words.values())
    moving = sum(state == "False" for state, _ in words.values())
    counts = f"{settled} of {len(words)} instances are settled"
    if moving:
        return Condition("SplitSettled", "False", "SomeMoving", counts)
    if settled < len(words) or not words:
        return Condition("SplitSettled", "Unknown", "NotObserved", f"{counts}; there is no fresh report of the others")
    held = all(reason == "Held" for _, reason in words.values())
    return Condition("SplitSettled", "True", "Held" if held else "Settled", counts)


def _words_of(view: PoolView, type_: str) -> dict[str, tuple[str, str]]:
    """Status and reason of a condition type by instance name; an instance without it is Unknown for no reason."""
    found = {}
    for stored, _ in view.instances:
        item = find_condition(conditions_of(stored), type_) or {}
        found[key_of(stored).name] = (str(item.get("status", "Unknown")), str(item.get("reason", "")))
    return found


def _any_lags(view: PoolView) -> bool:
    """Whether an instance has yet to take up the present spec of pool and policy, or to report on it."""
    for stored, instance in view.instances:
        item = find_condition(conditions_of(stored), "PolicyHealthy")
        if item is None or int(item.get("observedGeneration") or 0) < instance.metadata.generation:
            return True
        intent = stored["spec"].get("intent")
        wanted = wanted_intent(view.pool, instance, intent, view.policy, view.model)
        if wanted is not None and wanted != intent:
            return True
    return False
