"""PreInferenceScaled and MetricsFresh of a pool, as small rules that each return a condition with a documented reason.

Their words carry what was decided, never what was measured: a measurement is different each time, and noise must write nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from controllers.lookup import Found, NotFound, Unreadable
from controllers.metrics_source.port import SourceState
from controllers.preinference.observe import Observation
from controllers.runtime.conditions import Condition, Status
from controllers.words import few
from crds.instance import PolicySource
from policies.preinference.capacity import CapacityPlan, Outcome, SlotLimit
from policies.preinference.rules import CapacityRules
from policies.scaling.types import Direction, ScalingLimited

LIMITS = {
    SlotLimit.RANGE: "slotsPerInstance.max of the policy is reached",
    SlotLimit.MAX_INFLIGHT: "budget.maxInflight of the policy is reached",
    SlotLimit.NO_BUDGET: "budget.prefixPercent of the policy is 0",
    SlotLimit.MEMORY: "budget.prefixPercent of the policy holds no more prefixes",
    SlotLimit.LATE: "prefixes come too late for their requests, which more slots would make worse",
    SlotLimit.WASTED: "prefixes are evicted before their requests come, which more slots would make worse",
    SlotLimit.RANKING: "ranking is behind, and more slots would take what it lacks",
}
_CALM = frozenset({Outcome.AT_TARGET, Outcome.STABILIZING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A capacity plan and what it means for the pool.

    Attributes
    ----------
    in_use
        Whether slots and memory are set; a pool that nobody has asked for a prefix yet keeps what its engines have.
    asked_s
        Monotonic second at which a prefix was last asked for.
    """

    rules: CapacityRules
    plan: CapacityPlan
    in_use: bool
    asked_s: float


def hold(seen: Observation) -> Condition | None:
    """PreInferenceScaled of a pool whose capacity must not be touched, or None to go on."""
    policy = seen.policy
    if seen.pool.spec.paused:
        return _scaled("False", "PausedByUser", "capacity is held; set spec.paused to false to continue")
    if isinstance(policy, NotFound):
        where = f"no PreInferencePolicy {policy.name} in namespace {policy.namespace}"
        return _scaled("False", "PolicyNotFound", f"{where}; create it or correct spec.policies.preInference of the pool")
    if isinstance(policy, Unreadable):
        where = f"PreInferencePolicy {policy.namespace}/{policy.name}"
        return _scaled("False", "PolicyInvalid", f"{where} cannot be read: {policy.why}")
    return None


def scaled(seen: Observation, decided: Decided) -> Condition:
    """PreInferenceScaled of a pool that is not held."""
    plan, ours = decided.plan, decided.rules.scale_replicas
    wanted, present = seen.pool.spec.replicas, len(seen.staying)
    if ours and wanted == 0:
        return _scaled("False", "ScalingDisabled", "spec.replicas is 0; the scaler stays off until it is at least 1")
    if plan.outcome is Outcome.SCALING_UP:
        return _scaled("False", "ScalingUp", f"grows to {_capacity(decided)}{_whose(seen)}")
    if plan.outcome is Outcome.SCALING_DOWN:
        return _scaled("False", "ScalingDown", f"shrinks to {_capacity(decided)}{_whose(seen)}")
    if not present:
        return _scaled("Unknown", "NoInstances", _nobody(seen))
    if ours and present < wanted:
        return _scaled("False", "ScalingUp", f"{_capacity(decided)} wanted; {present} there")
    if plan.outcome is Outcome.HOLDING_STALE or (seen.metrics.doubt is not None and plan.outcome in _CALM):
        return _scaled("Unknown", "HoldingStale", f"{_capacity(decided)} held; see the condition MetricsFresh")
    if plan.outcome is Outcome.LIMIT_REACHED:
        return _scaled("False", "LimitReached", f"{_capacity(decided)}; {_limit(plan)}{_whose(seen)}")
    if lagging := _not_enforced(seen) if decided.in_use else []:
        have = f"{len(lagging)} of {present} engines do not have them: {few(lagging)}"
        return _scaled("False", "NotEnforced", f"{_capacity(decided)}; {have}")
    if not ours:
        mode = seen.pool.spec.scaling.mode.value
        return _scaled("True", "NotManaged", f"{_capacity(decided)}; replicas are not ours in mode {mode}{_whose(seen)}")
    reason = "Stabilizing" if plan.outcome is Outcome.STABILIZING else "AtTarget"
    return _scaled("True", reason, f"{_capacity(decided)}{_whose(seen)}")


def fresh(seen: Observation) -> Condition:
    """MetricsFresh of a pool."""
    metrics = seen.metrics
    if not seen.staying:
        return _fresh("Unknown", "NoInstances", _nobody(seen))
    if metrics.state is SourceState.FRESH:
        return _fresh("True", "Fresh", "every ready instance is measured")
    return _fresh("False", metrics.condition_reason, metrics.message)


def _capacity(decided: Decided) -> str:
    """What was decided, in words."""
    plan = decided.plan
    slots = "no prefix has been asked for, so engines keep the limits that they have"
    if decided.in_use:
        slots = f"{plan.slots} slot{'s' * (plan.slots != 1)} an instance"
    if not decided.rules.scale_replicas:
        return slots
    return f"{plan.replicas} instance{'s' * (plan.replicas != 1)}, {slots}"


def _not_enforced(seen: Observation) -> list[str]:
    """Ready instances whose agent holds the present intent and whose engine says that it enforces another capacity."""
    names = []
    for each in seen.staying:
        spec, status, metadata = each.model.spec, each.model.status, each.model.metadata
        told = status.agent is not None and status.agent.intent_generation == metadata.generation
        if each.ready and told and spec.pre_infer is not None and status.pre_infer != spec.pre_infer:
            names.append(each.name)
    return names


def _limit(plan: CapacityPlan) -> str:
    replicas = plan.replica_decision
    if replicas is not None and replicas.limited is ScalingLimited.TOO_MANY_REPLICAS and replicas.direction is Direction.NONE:
        return "scaling.maxReplicas of the pool is reached"
    return LIMITS.get(plan.slot_limit, "a limit is reached")


def _nobody(seen: Observation) -> str:
    leaving = len(seen.instances)
    if leaving:
        return f"the {leaving} instances that there are leave"
    return "the pool has no instance"


def _whose(seen: Observation) -> str:
    assert isinstance(seen.policy, Found), "without a policy capacity is held"
    return "; the built-in defaults hold" if seen.policy.source is PolicySource.DEFAULTS else ""


def _scaled(status: Status, reason: str, message: str) -> Condition:
    return Condition("PreInferenceScaled", status, reason, message)


def _fresh(status: Status, reason: str, message: str) -> Condition:
    return Condition("MetricsFresh", status, reason, message)
