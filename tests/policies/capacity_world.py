"""Instances that behave as the loss formula says, the pools that they make, and what is planned for them."""

from __future__ import annotations

from typing import Any

import msgspec

from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale
from policies.preinference.capacity import CapacityHistory, CapacityPlan, plan_capacity
from policies.preinference.erlang import refused_share
from policies.preinference.observed import InstanceLoad, Rates
from policies.preinference.rules import CapacityRules, PoolLoad
from policies.scaling.types import Bounds

MIB = 1 << 20
RULES = CapacityRules(
    slots=Bounds(minimum=1, maximum=8),
    replicas=Bounds(minimum=1, maximum=20),
    scale_replicas=True,
    hit_before_rank_percent=95.0,
    utilization_percent=70.0,
    max_inflight=1000,
    prefix_budget_bytes=8192 * MIB,
    largest_prefix_bytes=128 * MIB,
    p99_goal_ms=50.0,
)
DOUBTFUL: list[Measurement] = [Missing(), NotANumber(), Stale(age_ms=90_000.0)]
FIELDS = ["busy_slots", "live_prefix_bytes", "queue", "p99_ms"]


def instance(
    name: str = "a",
    *,
    offered: float = 1.0,
    slots: int = 4,
    p99_ms: float = 40.0,
    compute_s: float = 0.05,
    live_each: float = 64.0 * MIB,
    late_share: float = 0.0,
    wasted_share: float = 0.0,
    **more: Any,
) -> InstanceLoad:
    """An instance that behaves as the loss formula says."""
    refused = refused_share(offered, slots=slots)
    arrivals = offered / compute_s
    accepted = arrivals * (1.0 - refused)
    settled = accepted * (1.0 - wasted_share)
    busy = offered * (1.0 - refused)
    load = InstanceLoad(
        name=name,
        ready=True,
        rates=Rates(
            requests=Fresh(value=100.0),
            accepted=Fresh(value=accepted),
            rejected=Fresh(value=arrivals * refused),
            used=Fresh(value=settled * (1.0 - late_share)),
            late=Fresh(value=settled * late_share),
            wasted=Fresh(value=accepted * wasted_share),
        ),
        busy_slots=Fresh(value=busy),
        live_prefix_bytes=Fresh(value=busy * live_each),
        queue=Fresh(value=0.0),
        p99_ms=Fresh(value=p99_ms),
    )
    return msgspec.structs.replace(load, **more)


def pool(
    *instances: InstanceLoad, slots: int | None = 4, replicas: int | None = None, memory: int | None = 1024 * MIB
) -> PoolLoad:
    return PoolLoad(
        replicas=len(instances) if replicas is None else replicas, slots=slots, prefix_bytes=memory, instances=instances
    )


def plan(load: PoolLoad, *, history: CapacityHistory | None = None, now_s: float = 10_000.0, **rules: Any) -> CapacityPlan:
    return plan_capacity(load, rules=msgspec.structs.replace(RULES, **rules), history=history or CapacityHistory(), now_s=now_s)


def settle(load: PoolLoad, ticks: int, *, start_s: float = 0.0, **rules: Any) -> list[CapacityPlan]:
    """The same measurements again and again, no plan carried out."""
    history, out = CapacityHistory.starting_at(load, RULES, now_s=start_s), []
    for tick in range(ticks):
        out.append(plan(load, history=history, now_s=start_s + 15.0 * (tick + 1), **rules))
        history = out[-1].history
    return out
