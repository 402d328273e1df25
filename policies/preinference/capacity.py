"""How much pre-inference capacity a pool has: slots per instance first, instances second, memory for prefixes beside them.

The offered load becomes slots (demand); what an instance cannot take becomes instances (instances); the slots that result reserve
memory (memory). Slots do not grow while prefixes are late or wasted, ranking waits, or the budget shared with ranking is used up:
more of them would only harm. All counts go through `policies.scaling`: windows, rates, bounds and doubt mean the same for each.
"""

from __future__ import annotations

import enum

import msgspec

from policies.measurement import Fresh
from policies.preinference.demand import Demand, demand_of
from policies.preinference.instances import by_ranking, instance_proposals
from policies.preinference.memory import reserve, slots_that_fit, steps_of
from policies.preinference.observed import pool_sum
from policies.preinference.rules import CapacityRules, PoolLoad
from policies.preinference.shares import Shares, shares_of
from policies.scaling.decide import ScalingDecision, decide_count
from policies.scaling.types import Bounds, Direction, Doubt, History, ScalingLimited, gravest


class SlotLimit(enum.StrEnum):
    """What keeps slots from growing to the demand."""

    NONE = "None"
    RANGE = "SlotsPerInstanceMax"
    MAX_INFLIGHT = "MaxInflight"
    NO_BUDGET = "NoPrefixBudget"
    MEMORY = "PrefixMemory"
    LATE = "PrefixesLate"
    WASTED = "PrefixesWasted"
    RANKING = "RankingSaturated"
    DOUBT = "MeasurementInDoubt"


class Outcome(enum.StrEnum):
    """The decision in one word; the reasons of the condition PreInferenceScaled that follow from measurements."""

    AT_TARGET = "AtTarget"
    SCALING_UP = "ScalingUp"
    SCALING_DOWN = "ScalingDown"
    STABILIZING = "Stabilizing"
    LIMIT_REACHED = "LimitReached"
    HOLDING_STALE = "HoldingStale"


class CapacityHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What the windows of the three counts look back on."""

    slots: History = History()
    replicas: History = History()
    memory: History = History()

    @classmethod
    def starting_at(cls, load: PoolLoad, rules: CapacityRules, *, now_s: float) -> CapacityHistory:
        """History of a scaler that has just started: what is in force holds for a window."""
        steps = steps_of(load.prefix_bytes or 0, budget_bytes=rules.prefix_budget_bytes)
        return cls(
            slots=History.starting_at(rules.slots.minimum if load.slots is None else load.slots, now_s=now_s),
            replicas=History.starting_at(load.replicas, now_s=now_s),
            memory=History.starting_at(steps, now_s=now_s),
        )


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity from now on, with its reasons.

    Attributes
    ----------
    slots, total_slots
        Slots of an instance and of the pool; `slots_of` says which instance has one less where the pool's limit binds.
    prefix_bytes
        Bytes to reserve on each instance for prefixes.
    replicas
        Instances; the count in force where it is not ours.
    slot_limit
        What kept slots from the demand.
    demand_slots
        Slots wanted on each instance; None in doubt.
    doubt
        The gravest doubt about a measurement that matters.
    """

    outcome: Outcome
    slots: int
    total_slots: int
    prefix_bytes: int
    replicas: int
    slot_limit: SlotLimit
    demand_slots: int | None
    doubt: Doubt | None
    shares: Shares
    slot_decision: ScalingDecision
    replica_decision: ScalingDecision | None
    history: CapacityHistory

    def slots_of(self, position: int, *, instances: int) -> int:
        """Slots of the instance at a position in the order of names; the first ones carry what does not divide evenly."""
        base, rest = divmod(self.total_slots, max(instances, 1))
        return base + (position < rest)


def plan_capacity(load: PoolLoad, *, rules: CapacityRules, history: CapacityHistory, now_s: float) -> CapacityPlan:
    """Decide slots, memory and instances of one pool.

    Parameters
    ----------
    history
        `CapacityPlan.history` of the decision before, `CapacityHistory.starting_at` at the first. Changes of slots and memory are
        in it; once the number of instances was really written, the executor adds that with `replicas.changed`.
    now_s
        Seconds of the clock that the whole history uses.
    """
    current = max(rules.slots.minimum, load.slots or 0)
    demand, shares = demand_of(load, rules, slots=current), shares_of(load, rules)
    replica_decision = _decide_replicas(load, rules, demand=demand, shares=shares, history=history.replicas, now_s=now_s)
    replicas = load.replicas if replica_decision is None else replica_decision.count
    cap, cap_reason = _slot_cap(load, rules, current=current, shares=shares)
    slot_decision = decide_count(
        # Those that leave give their load to the rest now; those that come take theirs once they are ready.
        [demand.proposal(instances=max(1, min(replicas, load.ready)))],
        current=current,
        bounds=Bounds(minimum=min(rules.slots.minimum, cap), maximum=cap),
        behavior=rules.behavior,
        history=history.slots,
        now_s=now_s,
    )
    slots = slot_decision.count
    prefix_bytes, memory_history = reserve(load, rules, slots=slots, history=history.memory, now_s=now_s)
    limit = cap_reason if slot_decision.limited is ScalingLimited.TOO_MANY_REPLICAS else SlotLimit.NONE
    return CapacityPlan(
        outcome=_outcome(slot_decision, replica_decision, limit=limit, rules=rules),
        slots=slots,
        total_slots=min(slots * len(load.instances), rules.max_inflight),
        prefix_bytes=prefix_bytes,
        replicas=replicas,
        slot_limit=limit,
        demand_slots=demand.slots_each() if demand.ratio.doubt is None else None,
        doubt=_gravest_of(slot_decision, replica_decision),
        shares=shares,
        slot_decision=slot_decision,
        replica_decision=replica_decision,
        history=CapacityHistory(
            slots=slot_decision.history.changed(before=current, after=slots, now_s=now_s, behavior=rules.behavior),
            replicas=history.replicas if replica_decision is None else replica_decision.history,
            memory=memory_history,
        ),
    )


def _decide_replicas(
    load: PoolLoad, rules: CapacityRules, *, demand: Demand, shares: Shares, history: History, now_s: float
) -> ScalingDecision | None:
    if not rules.scale_replicas:
        return None
    return decide_count(
        instance_proposals(load, rules, demand=demand, shares=shares),
        current=load.replicas,
        bounds=rules.replicas,
        behavior=rules.behavior,
        history=history,
        now_s=now_s,
    )


def _slot_cap(load: PoolLoad, rules: CapacityRules, *, current: int, shares: Shares) -> tuple[int, SlotLimit]:
    """Most slots of one instance now. Only what people wrote can take slots away; everything measured just stops growth."""
    caps = {
        SlotLimit.RANGE: rules.slots.maximum,
        SlotLimit.MAX_INFLIGHT: -(-rules.max_inflight // max(len(load.instances), 1)),
    }
    if rules.prefix_budget_bytes <= 0:
        caps[SlotLimit.NO_BUDGET] = 0
    fitting = slots_that_fit(load, rules)
    if isinstance(fitting, Doubt):
        caps[SlotLimit.DOUBT] = current
    else:
        caps[SlotLimit.MEMORY] = max(fitting, current)
    if shares.too_late:
        caps[SlotLimit.LATE] = current
    if shares.too_wasted:
        caps[SlotLimit.WASTED] = current
    if (behind := _ranking_behind(load, rules)) is not None:
        caps[behind] = min(current, caps.get(behind, current))
    reason = min(caps, key=lambda limit: caps[limit])
    return caps[reason], reason


def _ranking_behind(load: PoolLoad, rules: CapacityRules) -> SlotLimit | None:
    """Whether ranking is behind, or not known to keep up: computing prefixes would take what ranking lacks."""
    queue, wish = pool_sum(load.instances, lambda i: i.queue), by_ranking(load, rules)
    if not isinstance(queue, Fresh) or wish.count is None:
        return SlotLimit.DOUBT
    if queue.value >= rules.queue_saturated * load.ready or wish.count > load.replicas:
        return SlotLimit.RANKING
    return None


def _outcome(slots: ScalingDecision, replicas: ScalingDecision | None, *, limit: SlotLimit, rules: CapacityRules) -> Outcome:
    decisions = [slots] if replicas is None else [slots, replicas]
    directions = {decision.direction for decision in decisions}
    if Direction.UP in directions:
        return Outcome.SCALING_UP
    if Direction.DOWN in directions:
        return Outcome.SCALING_DOWN
    if limit is SlotLimit.DOUBT or any(decision.wish.held for decision in decisions):
        return Outcome.HOLDING_STALE
    if limit is not SlotLimit.NONE or (replicas is not None and replicas.limited is ScalingLimited.TOO_MANY_REPLICAS):
        return Outcome.LIMIT_REACHED
    if not _arrived(slots, rules.slots.minimum) or (replicas is not None and not _arrived(replicas, rules.replicas.minimum)):
        return Outcome.STABILIZING
    return Outcome.AT_TARGET


def _arrived(decision: ScalingDecision, minimum: int) -> bool:
    """Whether the count is what the metrics want, or the minimum where they want less than that."""
    return decision.count == max(decision.wish.count, min(minimum, decision.count))


def _gravest_of(slots: ScalingDecision, replicas: ScalingDecision | None) -> Doubt | None:
    wishes = [slots.wish] if replicas is None else [slots.wish, replicas.wish]
    return gravest([wish.doubt for wish in wishes if wish.doubt is not None])
