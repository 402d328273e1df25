"""Pre-inference in a rehearsal: the thresholds that a PreInferencePolicy comes to on one instance, for the signals of a log.

In the cluster slots and memory follow the load within the policy's bounds. A rehearsal holds them at what the cluster gave the
instances, where the file has them, else at the upper bounds. As in the cluster, memory for prefixes is not shared by the caches.
"""

from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np

from grfleet.simulate.errors import BadInput
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
    signals : int
        In the log.
    """

    rules: TriggerRules | None
    note: str
    signals: int = 0

    def reserved(self, fleet: Fleet, wanted: Wanted) -> Fleet:
        """Return the fleet without the memory for prefixes, as the intents of the allocation loop have it.

        Raises
        ------
        BadInput
            When nothing is left.
        """
        if self.rules is None:
            return fleet
        left = fleet.config.pool_bytes - self.rules.prefix_bytes
        try:
            return replace(fleet, config=replace(fleet.config, pool_bytes=left))
        except ValueError:
            where = wanted.field("spec.memory.hbmBytes")
            raise BadInput(where, f"{self.rules.prefix_bytes} bytes for prefixes leave {left} to the caches") from None


def ahead_of(wanted: Wanted, fleet: Fleet, log: RequestLog) -> Ahead:
    """Return what the policy that the pool names makes of the signals of a log."""
    policy, config = wanted.pre_inference, fleet.config
    leads = log.signal_lead_ms[log.signal_lead_ms > 0.0]
    if policy is None:
        named = wanted.pool.spec.policies.pre_inference
        told = f"pre-inference: no file has the PreInferencePolicy {named}, so early signals start nothing"
        return Ahead(rules=None, note=told, signals=len(leads))
    if not len(leads):
        return Ahead(rules=None, note="pre-inference: the log has no early signals")
    prefix_bytes = config.pool_bytes * policy.budget.prefix_percent // 100
    slots = min(policy.slots_per_instance.max, -(-policy.budget.max_inflight // config.instances))
    if wanted.capacity:
        prefix_bytes = min(prefix_bytes, int(median_low(each.bytes for each in wanted.capacity)))
        slots = min(slots, int(median_low(each.slots for each in wanted.capacity)))
    if not (prefix_bytes and slots and policy.budget.max_per_second):
        told = "pre-inference: the budgets of its policy leave no instance a slot, memory or a start"
        return Ahead(rules=None, note=told, signals=len(leads))
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
    whence = "what the GRInstances of the file have" if wanted.capacity else "the upper bounds of its policy"
    note = f"pre-inference: {held}, {whence}; the caches do not get that memory"
    return Ahead(rules=rules, note=note, signals=len(leads))
