"""Which instances may own users, and how much of their share: the safe reading of what is known about each.

Not knowing is not gone: an instance that is in the table and has not been asked yet, or has been silent for less than the
grace time, keeps its users. It loses them when it is known to be unreachable for longer, or when its object is gone. And when
more than half of the table seems unreachable, the fault is more likely with the observer than with the fleet.

One that drains owns nothing from the next table on. When its drain is taken back it stays out until it is ready again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from controllers.routing.observe import Observation
from controllers.runtime.clock import CLOCKS_DIFFER_SECONDS
from crds import GRInstance, RoutingPolicySpec
from crds.types import ConditionStatus, find_condition
from policies.measurement import Fresh, Measurement, Missing
from policies.routing.table import Member, MemberState, Table
from policies.routing.warmup import FULL_WEIGHT_PERCENT, ramp_weight_percent

GRACE_SECONDS = 30.0
FIRST_TABLE_SECONDS = 30.0
UNREACHABLE = frozenset({"AgentUnreachable", "EngineUnreachable"})


def members_of(seen: Observation, policy: RoutingPolicySpec, previous: Table | None, now: datetime) -> list[Member]:
    """The instances as the table plan takes them."""
    rows = previous.owners if previous is not None else ()
    weights = {(o.name, o.uid): o.weight_percent for o in rows}
    serving = {(o.name, o.uid) for o in rows if not o.draining}
    mean_hit = _mean_hit_percent(seen, weights)
    members = []
    for instance in seen.instances:
        identity = (instance.metadata.name, instance.metadata.uid)
        if instance.spec.drain is not None:
            members.append(Member(name=identity[0], uid=identity[1], state=MemberState.DRAINING))
            continue
        if not _may_own(instance, in_table=identity in serving, started=seen.started, now=now):
            back = identity in weights and identity not in serving  # from a drain, and not ready yet: its row stays
            state = MemberState.DRAINING if back else MemberState.NOT_READY
            members.append(Member(name=identity[0], uid=identity[1], state=state))
            continue
        weight = FULL_WEIGHT_PERCENT
        if previous is not None and weights.get(identity, 0) < FULL_WEIGHT_PERCENT:
            weight = ramp_weight_percent(
                age_ms=_ready_for_seconds(instance, started=seen.started, now=now) * 1000.0,
                hit_percent=_relative_hit(instance, mean_hit),
                target_hit_percent=float(policy.warmup.hit_percent),
                max_ms=policy.warmup.max_seconds * 1000.0,
                previous_percent=weights.get(identity, 0),
            )
        state = MemberState.READY if weight == FULL_WEIGHT_PERCENT else MemberState.WARMING
        members.append(Member(name=identity[0], uid=identity[1], state=state, weight_percent=weight))
    return members


def view_in_doubt(seen: Observation, previous: Table | None) -> str | None:
    """Why what was seen is not to be acted on, or None."""
    if previous is None:
        return None
    leaving = {
        (i.metadata.name, i.metadata.uid) for i in seen.instances if i.spec.drain is not None
    }  # their silence is no wonder
    staying = [o for o in previous.owners if not o.draining and (o.name, o.uid) not in leaving]
    silent = {(i.metadata.name, i.metadata.uid) for i in seen.instances if unreachable_since(i) is not None}
    lost = sum((owner.name, owner.uid) in silent for owner in staying)
    if len(staying) > 1 and 2 * lost > len(staying):
        return f"{lost} of {len(staying)} instances of the table seem unreachable at once; check the operator's network"
    return None


def not_observed_yet(seen: Observation, now: datetime) -> int:
    """How many instances of a young pool nobody has heard of yet, in either way; 0 once the pool is old enough not to wait.

    The first table moves nobody, so it is worth a moment: later comers are let in by the churn budget only.
    """
    born = max(_past(seen.pool.metadata.creation_timestamp or seen.started, started=seen.started, now=now), seen.started)
    if (now - born).total_seconds() >= FIRST_TABLE_SECONDS:
        return 0
    heard = 0
    for instance in seen.instances:
        ready = find_condition(instance.status.conditions, "Ready")
        heard += ready is not None and ready.status is not ConditionStatus.UNKNOWN
    instances = seen.pool.spec.instances
    wanted = seen.pool.spec.replicas if instances.managed is not None else len(instances.external or ())
    return max(wanted, len(seen.instances)) - heard


def unreachable_since(instance: GRInstance) -> datetime | None:
    """Since when the agent or the engine is known not to answer; None when it answers or nothing is known."""
    ready = find_condition(instance.status.conditions, "Ready")
    if ready is None or ready.status is not ConditionStatus.FALSE or ready.reason not in UNREACHABLE:
        return None
    return ready.last_transition_time


def seconds_of_grace_left(instance: GRInstance, *, started: datetime, now: datetime) -> float | None:
    """Seconds until a silent instance loses its users, 0 when it has; None when it is not known to be silent."""
    since = unreachable_since(instance)
    if since is None:
        return None
    return max(0.0, GRACE_SECONDS - (now - max(_past(since, started=started, now=now), started)).total_seconds())


def _may_own(instance: GRInstance, *, in_table: bool, started: datetime, now: datetime) -> bool:
    ready = find_condition(instance.status.conditions, "Ready")
    if ready is not None and ready.status is ConditionStatus.TRUE:
        return True
    left = seconds_of_grace_left(instance, started=started, now=now)
    return in_table and (left is None or left > 0)


def _ready_for_seconds(instance: GRInstance, *, started: datetime, now: datetime) -> float:
    ready = find_condition(instance.status.conditions, "Ready")
    if ready is None or ready.status is not ConditionStatus.TRUE:
        return 0.0
    return max(0.0, (now - _past(ready.last_transition_time, started=started, now=now)).total_seconds())


def _past(stamp: datetime, *, started: datetime, now: datetime) -> datetime:
    """The stamp; one from the future is that of another clock, perhaps a former leader's: what counts is since when we lead."""
    return stamp if (stamp - now).total_seconds() <= CLOCKS_DIFFER_SECONDS else started


def _mean_hit_percent(seen: Observation, weights: Mapping[tuple[str, str], int]) -> float | None:
    """Mean KV hit rate of the instances that carry their full share."""
    hits = [
        instance.status.caches.kv_hit_percent
        for instance in seen.instances
        if weights.get((instance.metadata.name, instance.metadata.uid)) == FULL_WEIGHT_PERCENT
        and instance.status.caches is not None
        and instance.status.caches.kv_hit_percent is not None
    ]
    return sum(hits) / len(hits) if hits else None


def _relative_hit(instance: GRInstance, mean_hit: float | None) -> Measurement:
    caches = instance.status.caches
    if not mean_hit or caches is None or caches.kv_hit_percent is None:
        return Missing()
    return Fresh(100.0 * caches.kv_hit_percent / mean_hit)
