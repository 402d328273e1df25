"""What people allow, as the capacity arithmetic takes it: from a GRServingPool and the PreInferencePolicy in force. Pure."""

from __future__ import annotations

import msgspec

from crds import GRServingPool, PreInferencePolicySpec
from crds.preinference_policy import ScaleDown, ScaleUp
from crds.serving_pool import ScalingMode
from policies.preinference.rules import CapacityRules
from policies.scaling.types import Behavior, Bounds, PolicyType, RatePolicy, Rules, SelectPolicy


def rules_of(pool: GRServingPool, policy: PreInferencePolicySpec) -> CapacityRules:
    """The limits and targets of a pool under a policy."""
    spec = pool.spec
    return CapacityRules(
        slots=Bounds(minimum=policy.slots_per_instance.min, maximum=policy.slots_per_instance.max),
        replicas=Bounds(
            minimum=spec.scaling.min_replicas, maximum=max(spec.scaling.max_replicas or 0, spec.scaling.min_replicas)
        ),
        scale_replicas=scales_replicas(pool),
        hit_before_rank_percent=float(policy.targets.hit_before_rank_percent),
        utilization_percent=float(policy.targets.utilization_percent),
        max_inflight=policy.budget.max_inflight,
        prefix_budget_bytes=spec.memory.usable_bytes() * policy.budget.prefix_percent // 100,
        largest_prefix_bytes=spec.model.kv_bytes_per_token * spec.model.max_history_tokens,
        p99_goal_ms=float(spec.slo.p99_ms),
        behavior=Behavior(up=_direction(policy.behavior.scale_up), down=_direction(policy.behavior.scale_down)),
    )


def scales_replicas(pool: GRServingPool) -> bool:
    """Whether spec.replicas is ours to write: the mode names us, and the instances are pods that grfleet runs."""
    return pool.spec.scaling.mode is ScalingMode.PRE_INFERENCE and pool.spec.instances.managed is not None


def turned_off(rules: CapacityRules) -> bool:
    """Whether people have forbidden pre-inference: no slot, no memory, or none at once."""
    return min(rules.slots.maximum, rules.max_inflight, rules.prefix_budget_bytes) <= 0


def for_a_quiet_pool(rules: CapacityRules) -> CapacityRules:
    """The same rules for a pool that nobody asks for prefixes any more: no slot, and so no memory, has to be kept ready."""
    return msgspec.structs.replace(rules, slots=Bounds(minimum=0, maximum=rules.slots.maximum))


def without_shrinking(rules: CapacityRules) -> CapacityRules:
    """The same rules for a pool in doubt: what is known may ask for more, nothing but people's own limits takes away."""
    down = msgspec.structs.replace(rules.behavior.down, select=SelectPolicy.DISABLED)
    return msgspec.structs.replace(rules, behavior=msgspec.structs.replace(rules.behavior, down=down))


def _direction(rules: ScaleUp | ScaleDown) -> Rules:
    return Rules(
        stabilization_s=float(rules.stabilization_window_seconds),
        policies=tuple(
            RatePolicy(type=PolicyType(each.type.value), value=each.value, period_s=float(each.period_seconds))
            for each in rules.policies
        ),
        select=SelectPolicy(rules.select_policy.value),
        tolerance=float(rules.tolerance),
    )
