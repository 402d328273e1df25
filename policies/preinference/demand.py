"""How many slots the offered load needs: the target utilisation and Erlang's loss formula, whichever asks for more.

Utilisation follows the usage ratio of `policies.scaling`, tolerance and doubt included. The loss formula adds what a mean cannot
see: with few slots, arrivals that come together are refused although slots are idle on average.
"""

from __future__ import annotations

import msgspec

from policies.measurement import Fresh, Measurement
from policies.preinference.erlang import fewest_slots
from policies.preinference.observed import InstanceLoad, offered_slots
from policies.preinference.rules import CapacityRules, PoolLoad
from policies.scaling.proposals import Proposal
from policies.scaling.ratio import Reading, UsageRatio, round_up, usage_ratio

LEAST_REFUSED_PERCENT = 0.1  # no number of slots refuses nothing at all, so a goal of 100 percent means this


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Offered load of a pool.

    Attributes
    ----------
    ratio
        Offered over available slots, over the target; corrected for instances that are not ready, not there or in doubt.
    slots
        Slots of one instance that the ratio is about.
    instances
        Instances among which the load is shared: those that exist and those on their way.
    offered
        Offered load of each measured instance in slots, as it will be when the others have taken their share.
    refused_percent, most
        Share of pre-inferences that may be refused; most slots worth computing.
    """

    ratio: UsageRatio
    slots: int
    instances: int
    offered: tuple[float, ...]
    refused_percent: float
    most: int

    def slots_each(self, instances: int | None = None) -> int:
        """Slots needed on each instance if the load were spread over so many; without a number, over all."""
        share = self.instances / instances if instances else 1.0
        # A ratio that asks for nothing is exactly 1: what is there is right.
        by_utilization = round_up(min(self.slots * self.ratio.value * share, float(self.most)))
        by_losses = fewest_slots([load * share for load in self.offered], refused_percent=self.refused_percent, most=self.most)
        return min(max(by_utilization, by_losses), self.most)

    def proposal(self, *, instances: int | None = None) -> Proposal:
        """The same as a proposal for slots, in doubt where the load is."""
        count = self.slots_each(instances) if self.ratio.doubt is None else None
        return Proposal(metric="offeredSlots", count=count, doubt=self.ratio.doubt)


def demand_of(load: PoolLoad, rules: CapacityRules, *, slots: int) -> Demand:
    """Measure the offered load of a pool with so many slots on each instance."""
    slots = max(slots, 1)
    offered = [(each.ready, offered_slots(each, slots=_slots_of(each, load))) for each in load.instances]
    absent = max(0, load.replicas - len(load.instances)) if rules.scale_replicas else 0
    instances = max(len(load.instances) + absent, 1)
    measured = [value.value for ready, value in offered if ready and isinstance(value, Fresh)]
    return Demand(
        ratio=usage_ratio(
            [Reading(usage=_per_slot(value, slots), ready=ready) for ready, value in offered],
            target=rules.utilization_percent / 100.0,
            up_tolerance=rules.behavior.up.tolerance,
            down_tolerance=rules.behavior.down.tolerance,
            absent=absent,
        ),
        slots=slots,
        instances=instances,
        offered=tuple(value * len(measured) / instances for value in measured),
        refused_percent=max(100.0 - rules.hit_before_rank_percent, LEAST_REFUSED_PERCENT),
        most=max(16 * rules.slots.maximum, 1),
    )


def _slots_of(instance: InstanceLoad, load: PoolLoad) -> int:
    return instance.slots if instance.slots is not None else load.slots or 0


def _per_slot(value: Measurement, slots: int) -> Measurement:
    return Fresh(value=value.value / slots, age_ms=value.age_ms) if isinstance(value, Fresh) else value
