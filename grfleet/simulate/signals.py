"""Pre-inference in a rehearsal: the thresholds that a PreInferencePolicy comes to on one instance, for the signals of a log.

In the cluster slots and memory follow the load within the policy's bounds; a rehearsal holds them at the upper ones.
"""

from dataclasses import dataclass

import numpy as np

from grfleet.simulate.translate import Fleet
from grfleet.simulate.wanted import Wanted
from policies.preinference.trigger import TriggerRules, thresholds
from simulator.request_log import RequestLog

LIFE_PERCENTILE = 99.0


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """Whether prefixes are computed ahead of their requests.

    Attributes
    ----------
    rules : TriggerRules or None
        Thresholds in force on every instance; None: signals start nothing.
    note : str
        Why, for people.
    """

    rules: TriggerRules | None
    note: str


def ahead_of(wanted: Wanted, fleet: Fleet, log: RequestLog) -> Ahead:
    """Return what the policy that the pool names makes of the signals of a log."""
    policy, config = wanted.pre_inference, fleet.config
    if policy is None:
        named = wanted.pool.spec.policies.pre_inference
        return Ahead(
            rules=None, note=f"pre-inference: no file has the PreInferencePolicy {named}, so early signals start nothing"
        )
    leads = log.signal_lead_ms[log.signal_lead_ms > 0.0]
    if not len(leads):
        return Ahead(rules=None, note="pre-inference: the log has no early signals")
    memory = wanted.pool.spec.memory
    prefix_bytes = memory.usable_bytes() * policy.budget.prefix_percent // 100
    slots = min(policy.slots_per_instance.max, -(-policy.budget.max_inflight // config.instances))
    if not (prefix_bytes and slots and policy.budget.max_per_second):
        return Ahead(rules=None, note="pre-inference: the budgets of its policy leave no instance a slot, memory or a start")
    rules = thresholds(
        min_prefix_tokens=policy.trigger.min_prefix_tokens,
        budget_ms=float(policy.trigger.risk_budget_ms or wanted.pool.spec.slo.p99_ms),
        safety_percent=float(policy.trigger.safety_percent),
        prefix_bytes=prefix_bytes,
        slots=slots,
        max_per_second=float(policy.budget.max_per_second),
        instances=config.instances,
        life_ms=round(float(np.percentile(leads, LIFE_PERCENTILE)) + config.slo_ms, 3),
        mean_prefix_bytes=None,
    )
    held = f"{slots} slots and {prefix_bytes / (1 << 30):.3g} GiB an instance all the time"
    note = f"pre-inference: {held}; prefixes lie in the KV cache, of which nothing is set aside for them"
    return Ahead(rules=rules, note=note)
