"""How many instances pre-inference and ranking need together: three metrics, each a proposal for `policies.scaling`.

Slots that one instance cannot have become instances; late prefixes and a ranking P99 above its goal ask for more. Instances leave
only one at a time, and only while ranking would stay below 80 percent of its goal on the rest.
"""

from __future__ import annotations

from policies.measurement import Fresh
from policies.preinference.demand import Demand
from policies.preinference.memory import slots_that_fit
from policies.preinference.observed import ranking_usage
from policies.preinference.rules import CapacityRules, PoolLoad
from policies.preinference.shares import Shares
from policies.scaling.proposals import Proposal, per_instance, plain
from policies.scaling.ratio import Reading, round_up
from policies.scaling.types import Doubt

DOWN_P99_PERCENT = 80.0


def instance_proposals(load: PoolLoad, rules: CapacityRules, *, demand: Demand, shares: Shares) -> list[Proposal]:
    """Return the proposals of the three metrics."""
    return [by_slots(load, rules, demand), by_ranking(load, rules), by_lateness(load, rules, shares)]


def by_slots(load: PoolLoad, rules: CapacityRules, demand: Demand) -> Proposal:
    """Slots wanted on each instance over slots that one can have; the pool's limit bounds the wish."""
    metric = "preInferSlots"
    if demand.ratio.doubt is not None:
        return Proposal(metric=metric, count=None, doubt=demand.ratio.doubt)
    fitting = slots_that_fit(load, rules)
    if isinstance(fitting, Doubt):
        return Proposal(metric=metric, count=None, doubt=fitting)
    room = min(rules.slots.maximum, fitting)
    if room <= 0:
        return Proposal(metric=metric, count=None)  # an instance that can have no slot is no remedy
    wanted = min(float(demand.slots_each()), rules.max_inflight / max(load.replicas, 1))
    return plain(metric, Fresh(value=wanted), target=float(room), current=load.replicas, behavior=rules.behavior)


def by_ranking(load: PoolLoad, rules: CapacityRules) -> Proposal:
    """Mean P99 of ranking over its goal asks for more; for less only if the fullest instance can take its part of the rest."""
    readings = [Reading(usage=ranking_usage(i, goal_ms=rules.p99_goal_ms), ready=i.ready) for i in load.instances]
    wish = per_instance("rankingP99", readings, target=1.0, current=load.replicas, behavior=rules.behavior)
    if wish.count is None or wish.count >= load.replicas:
        return wish
    worst = max(r.usage.value for r in readings if r.ready and isinstance(r.usage, Fresh))
    rest = max(load.replicas - 1, 1)
    fits = 100.0 * worst * load.replicas / rest <= DOWN_P99_PERCENT
    return Proposal(metric=wish.metric, count=load.replicas - 1 if fits else load.replicas)


def by_lateness(load: PoolLoad, rules: CapacityRules, shares: Shares) -> Proposal:
    """Late prefixes ask for more, in proportion to the goal over the share in time, and one at least.

    Up to halfway between the goal and all in time it asks to stay, so that shrinking does not bring lateness back.
    """
    metric, goal = "hitBeforeRank", rules.hit_before_rank_percent
    if shares.doubt is not None:
        return Proposal(metric=metric, count=None, doubt=shares.doubt)
    if not isinstance(shares.hit_percent, Fresh):
        return Proposal(metric=metric, count=None)
    hit = shares.hit_percent.value
    if shares.too_late and load.ready >= load.replicas:  # those on their way may be the remedy
        wanted = round_up(load.replicas * goal / max(hit, goal / 2.0))
        return Proposal(metric=metric, count=max(load.replicas + 1, wanted))
    return Proposal(metric=metric, count=load.replicas if hit < (goal + 100.0) / 2.0 else None)
