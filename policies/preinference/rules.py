"""What people allow and what is in force: the inputs of the capacity decision that are not measured."""

from __future__ import annotations

import msgspec

from policies.preinference.observed import InstanceLoad
from policies.scaling.types import Behavior, Bounds


class CapacityRules(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and targets; from PreInferencePolicy and GRServingPool.

    Attributes
    ----------
    slots, replicas
        Ranges of slots per instance and of instances.
    scale_replicas
        Whether the number of instances is ours to change (scaling.mode PreInference).
    max_inflight
        Most pre-inferences at once in the pool.
    prefix_budget_bytes
        budget.prefixPercent of hbmBytes - hbmReservedBytes, of one instance; 0 turns pre-inference off.
    largest_prefix_bytes
        Memory of the longest history: every slot must be able to hold one.
    p99_goal_ms
        slo.p99Ms of ranking.
    max_wasted_percent
        Share of settled prefixes that may be wasted before slots stop growing.
    queue_saturated
        Ranking requests waiting on an instance, on average, at which slots stop growing.
    """

    slots: Bounds
    replicas: Bounds
    scale_replicas: bool
    hit_before_rank_percent: float
    utilization_percent: float
    max_inflight: int
    prefix_budget_bytes: int
    largest_prefix_bytes: int
    p99_goal_ms: float
    behavior: Behavior = Behavior()
    max_wasted_percent: float = 50.0
    queue_saturated: float = 5.0


class PoolLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force and what was measured.

    Attributes
    ----------
    replicas
        Instances asked for.
    slots, prefix_bytes
        Slots and bytes reserved for prefixes on each instance; None before the first decision.
    instances
        Those that exist and do not leave.
    window_s
        Seconds that the rates cover: it decides what chance alone explains.
    """

    replicas: int
    slots: int | None
    prefix_bytes: int | None
    instances: tuple[InstanceLoad, ...]
    window_s: float = 60.0

    @property
    def ready(self) -> int:
        """Instances that serve."""
        return sum(instance.ready for instance in self.instances)
