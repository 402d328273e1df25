"""SplitSettled and PolicyHealthy of a pool, what its instances say taken together, and the state of its rollout. Pure.

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
from controllers.allocation.rollout import permitted_intent
from controllers.allocation.rollout_plan import Step
from controllers.allocation.rollout_words import policy_rolled_back
from controllers.allocation.verdicts import policy_problem
from controllers.announce import Announcement, announcements, moved_on
from controllers.lookup import Found
from controllers.model_lookup import ModelUnusable
from controllers.pace import wait_before_write
from controllers.rounding import steady_latency
from controllers.runtime.conditions import (
    Condition,
    conditions_of,
    find_condition,
    in_order,
    set_conditions,
    standing_items,
)
from controllers.runtime.resources import key_of
from controllers.words import few
from crds.hbm_policy import RolloutPhase
from crds.pool_rollout import PoolRollout

NO_ROLLOUT = Step()
OWN_CONDITIONS = ("PolicyHealthy", "RolloutProgressing", "SplitSettled")
_ON_TRIAL = (RolloutPhase.MEASURING, RolloutPhase.CANARY, RolloutPhase.EXTENDED, RolloutPhase.INCONCLUSIVE)
"""Phases in which not every instance runs what the policy asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupPlan:
    """The loop's whole status of the pool, or None; then `requeue_after` says when to look again, if at all."""

    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None


def decide_rollup(view: PoolView, now: datetime, step: Step = NO_ROLLOUT) -> RollupPlan:
    """Choose what to write for the pool.

    Parameters
    ----------
    step
        The next step of its rollout, see `rollout_plan`. It never waits for instances that have yet to report.
    """
    before, generation = conditions_of(view.stored), view.pool.metadata.generation
    old = standing_items(before, OWN_CONDITIONS)
    known = find_condition(before, "PolicyHealthy") is not None
    if isinstance(view.policy, Found) and known and _any_lags(view):
        summed: tuple[Condition, ...] = ()
        items = standing_items(old, ("PolicyHealthy", "SplitSettled"))
    else:
        summed = (pool_policy_healthy(view, step.rollout), pool_split_settled(view))
        items = set_conditions(before, summed, observed_generation=generation, now=now)
    if step.condition is not None:
        progress = set_conditions(before, (step.condition,), observed_generation=generation, now=now)
        items = in_order([*items, *progress])
    rollout = step.rollout.to_wire() if step.rollout is not None else None
    status = {"rollout": rollout, "forecast": forecast_of(view)}
    stored = view.stored.get("status") or {}
    if old == items and all(stored.get(name) == value for name, value in status.items()):
        return RollupPlan(requeue_after=step.requeue_after)
    opened = rollout is not None and _place(rollout) != _place(stored.get("rollout") or {})
    wait = wait_before_write(view.write_ages_s, transition=opened or moved_on(old, items))
    if wait:
        return RollupPlan(requeue_after=wait)
    written = {"conditions": items, **{name: value for name, value in status.items() if value is not None}}
    announced = (*announcements(before, summed), *step.announce)
    return RollupPlan(status=written, announce=announced, requeue_after=step.requeue_after)


def forecast_of(view: PoolView) -> dict[str, str] | None:
    """What the strategy in Shadow would change: means over the instances that say it, sticky; None where none does."""
    told = [model.status.forecast for _, model in view.instances if model.status.forecast is not None]
    if not told:
        return None
    old = view.pool.status.forecast
    in_force, goal = (
        steady_latency(sum(float(value) for value in values) / len(told), published)
        for values, published in (
            ([each.in_force_p99_ms for each in told], old.in_force_p99_ms if old else None),
            ([each.goal_p99_ms for each in told], old.goal_p99_ms if old else None),
        )
    )
    return {"inForceP99Ms": str(in_force), "goalP99Ms": str(goal)}


def pool_policy_healthy(view: PoolView, rollout: PoolRollout | None = None) -> Condition:
    """PolicyHealthy of the pool, given the state of its rollout."""
    problem = policy_problem(view.policy, pool_policy=view.pool.spec.policies.hbm)
    if problem is not None:
        return problem
    if rollout is not None and rollout.phase is RolloutPhase.ROLLED_BACK:
        return policy_rolled_back(rollout)
    words = _words_of(view, "PolicyHealthy")
    for status, default in (("False", ""), ("Unknown", "Pending")):
        bad = {name: reason or default for name, (state, reason) in words.items() if state == status}
        if bad:
            reason = Counter(bad.values()).most_common(1)[0][0]
            listed = few([f"{name} ({why})" for name, why in sorted(bad.items())])
            message = f"{len(bad)} of {len(words)} instances: {listed}"
            if isinstance(view.model, ModelUnusable) and view.model.reason == reason:
                message += f"; {view.model.why}"
            return Condition("PolicyHealthy", "False" if status == "False" else "Unknown", reason, message)
    if not words:
        return Condition("PolicyHealthy", "Unknown", "Pending", "the pool has no instance yet")
    reason = Counter(reason for _, reason in words.values()).most_common(1)[0][0]
    assert isinstance(view.policy, Found)
    where = f"HBMPolicy {view.policy.namespace}/{view.policy.name}" if view.policy.namespace else "the built-in defaults"
    if rollout is not None and rollout.phase in _ON_TRIAL:
        return Condition("PolicyHealthy", "True", reason, f"{_strategies(view)}; {where} is on trial, see RolloutProgressing")
    return Condition("PolicyHealthy", "True", reason, f"{view.policy.spec.strategy} of {where} on {len(words)} instances")


def _strategies(view: PoolView) -> str:
    """How many instances are told to run which strategy, the most frequent first."""
    told = Counter(str(each.spec.intent.strategy) for _, each in view.instances if each.spec.intent is not None)
    return ", ".join(f"{strategy} on {count} of {len(view.instances)} instances" for strategy, count in told.most_common())


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
        wanted = permitted_intent(view.pool, stored, wanted_intent(view.pool, instance, intent, view.policy, view.model))
        if wanted is not None and wanted != intent:
            return True
    return False


def _place(rollout: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where a rollout on the wire is: a step from here is a transition."""
    return (rollout.get("revision"), rollout.get("phase"), "since" in rollout)
