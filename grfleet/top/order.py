"""Worst first: a rank for what is wrong, then how wrong it is, then the name, so that rows do not jump about.

What was not measured stands between what misses its objective and what meets it: missing is neither.
"""

from enum import IntEnum

from grfleet.top.view import InstanceView, PoolView


class Urgency(IntEnum):
    """How bad it is; a smaller number is worse."""

    DOWN = 0
    """Serves nobody, or is not ready and not leaving."""
    DEGRADED = 1
    """Part of it is not ready, its state is unknown, or what is known of it is not the newest."""
    POLICY = 2
    """Another strategy decides than the one that is wanted."""
    OBJECTIVE = 3
    """The latency objective is missed."""
    LEAVING = 4
    """Finishes its requests."""
    UNMEASURED = 5
    """No fresh measurement."""
    MOVING = 6
    """The split is on its way."""
    WELL = 7
    """Nothing to do."""


def pool_urgency(pool: PoolView) -> Urgency:
    """What is wrong with a pool."""
    if pool.ready is False and not pool.instances_ready:
        return Urgency.DOWN
    if pool.ready is not True or pool.stale or pool.unreachable or any(each.stale for each in pool.instances or ()):
        return Urgency.DEGRADED
    if pool.policy_healthy is False:
        return Urgency.POLICY
    if misses_objective(pool, pool):
        return Urgency.OBJECTIVE
    if pool.draining:
        return Urgency.LEAVING
    if pool.slo_percent is None and pool.p99_ms is None:
        return Urgency.UNMEASURED
    if pool.instances_settled is not None and pool.instances_total is not None and pool.instances_settled < pool.instances_total:
        return Urgency.MOVING
    return Urgency.WELL


def instance_urgency(instance: InstanceView, pool: PoolView) -> Urgency:
    """What is wrong with an instance of a pool, measured by the objective of that pool."""
    if instance.drain is not None:
        return Urgency.LEAVING
    if instance.ready is False:
        return Urgency.DOWN
    if instance.ready is None or instance.stale:
        return Urgency.DEGRADED
    if instance.policy_healthy is False:
        return Urgency.POLICY
    if misses_objective(instance, pool):
        return Urgency.OBJECTIVE
    if instance.slo_percent is None and instance.p99_ms is None:
        return Urgency.UNMEASURED
    if instance.settled is not True:
        return Urgency.MOVING
    return Urgency.WELL


def worst_first(pools: list[PoolView]) -> list[PoolView]:
    """Pools by urgency, then by share of instances that are not ready, then by objective, then by name."""
    return sorted(
        pools,
        key=lambda pool: (
            pool_urgency(pool),
            -_missing_share(pool),
            *_distance(pool.slo_percent, pool.p99_ms),
            pool.namespace,
            pool.name,
        ),
    )


def worst_instances_first(pool: PoolView) -> list[InstanceView]:
    """The instances of a pool by urgency, then by objective, then by name."""
    return sorted(
        pool.instances or (),
        key=lambda each: (instance_urgency(each, pool), *_distance(each.slo_percent, each.p99_ms), each.name),
    )


def _missing_share(pool: PoolView) -> float:
    if not pool.instances_total or pool.instances_ready is None:
        return 0.0
    return 1.0 - pool.instances_ready / pool.instances_total


def _distance(slo_percent: float | None, p99_ms: float | None) -> tuple[float, float]:
    """The fewer good requests and the longer P99, the worse; whole points of the first, so that noise moves no row."""
    return (
        float("inf") if slo_percent is None else float(int(slo_percent)),
        float("inf") if p99_ms is None else -p99_ms,
    )


def misses_objective(seen: PoolView | InstanceView, pool: PoolView) -> bool:
    """Whether too few requests are good; where their share is not known, whether P99 is above the objective."""
    if seen.slo_percent is not None and pool.slo_goal_percent is not None:
        return seen.slo_percent < pool.slo_goal_percent
    return seen.p99_ms is not None and pool.p99_goal_ms is not None and seen.p99_ms > pool.p99_goal_ms
