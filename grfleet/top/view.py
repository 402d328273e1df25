"""Pools and instances as values to show, made from the plain objects of the API.

Fields are read one by one and defensively: an older or newer operator may leave any of them out. What is missing is None, never
0; what an unreachable agent said last is kept and marked stale. Pure: the moment is passed in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

Object = Mapping[str, Any]


class Drain(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An instance on its way out."""

    reason: str | None
    seconds_left: float | None
    """Until the deadline; negative when it has passed."""
    done: bool
    """Nothing is in flight any more."""


class InstanceView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One instance. Percents of a split are points of usable HBM, latencies milliseconds."""

    namespace: str
    pool: str
    name: str
    ready: bool | None
    ready_reason: str | None
    reason: str | None
    """Why it is not ready; else why the split is what it is."""
    message: str | None
    stale: bool
    """The agent does not answer: the split is the last that is known."""
    emb_target_percent: int | None
    emb_accepted_percent: int | None
    emb_settled_percent: int | None
    settled: bool | None
    kv_hit_percent: int | None
    emb_hit_percent: int | None
    p99_ms: float | None
    slo_percent: float | None
    strategy: str | None
    shadow: bool
    policy_healthy: bool | None
    policy_reason: str | None
    drain: Drain | None
    slots_wanted: int | None
    slots_enforced: int | None
    in_table: bool | None
    """Whether the published table names this very instance; None when there is no table to look at."""
    table_weight_percent: int | None
    table_state: str | None
    model_version: str | None
    service_url: str | None
    age_seconds: float | None


class PoolView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One pool. EMB and hits are means over the instances that have a value; P99 is that of the worst instance."""

    namespace: str
    name: str
    ready: bool | None
    reason: str | None
    message: str | None
    stale: bool
    """The operator has not answered to the newest spec: everything here is about an older one."""
    paused: bool
    instances_ready: int | None
    instances_total: int | None
    instances_wanted: int | None
    """spec.replicas of a managed pool."""
    unreachable: int | None
    emb_target_percent: int | None
    emb_accepted_percent: int | None
    emb_settled_percent: int | None
    instances_settled: int | None
    kv_hit_percent: int | None
    emb_hit_percent: int | None
    p99_ms: float | None
    p99_goal_ms: float | None
    slo_percent: float | None
    slo_goal_percent: float | None
    strategy: str | None
    shadow: bool
    policy_healthy: bool | None
    draining: int | None
    updated: int | None
    slots: int | None
    demand_slots: int | None
    """Slots that the measured load wants on each instance."""
    desired_replicas: int | None
    hit_before_rank_percent: int | None
    capacity_reason: str | None
    """Reason of PreInferenceScaled."""
    metrics_reason: str | None
    """Reason of MetricsFresh."""
    table_generation: int | None
    table_current: bool | None
    moved_percent: float | None
    """Share of the slots that the last generation moved."""
    model: str | None
    model_version: str | None
    age_seconds: float | None
    instances: tuple[InstanceView, ...] | None
    """None when they could not be read."""


def pools_of(
    pools: Iterable[Object], instances: Sequence[Object] | None, tables: Sequence[Object] | None, *, now: datetime
) -> list[PoolView]:
    """The views of all pools; `instances` and `tables` are None when they could not be read.

    The table that is followed has the name of its pool; another one that names the pool is a copy of somebody's.
    """
    by_pool: dict[tuple[str, str], list[Object]] = {}
    for item in instances or ():
        by_pool.setdefault(_pool_key(item), []).append(item)
    table_of = {_pool_key(item): item for item in tables or () if at(item, "metadata", "name") == at(item, "spec", "poolRef")}
    views = []
    for pool in pools:
        key = (_text(pool, "metadata", "namespace") or "", _text(pool, "metadata", "name") or "")
        table = table_of.get(key)
        members = None
        if instances is not None:
            members = tuple(_instance(item, table, now) for item in by_pool.get(key, ()))
        views.append(_pool(pool, members, table, now))
    return views


def _pool_key(item: Object) -> tuple[str, str]:
    return _text(item, "metadata", "namespace") or "", _text(item, "spec", "poolRef") or ""


_ON_TRIAL = ("Measuring", "CanarySoaking", "SoakExtended", "Inconclusive")
"""Reasons of RolloutProgressing while some instances have yet to run what the policy asks for."""


def _pool(pool: Object, members: tuple[InstanceView, ...] | None, table: Object | None, now: datetime) -> PoolView:
    ready, ready_reason, ready_message = condition(pool, "Ready")
    policy, policy_reason, policy_message = condition(pool, "PolicyHealthy")
    paused = at(pool, "spec", "paused") is True
    reason, message = ready_reason, ready_message
    if ready is True and policy is False:
        reason, message = policy_reason, policy_message
    elif ready is True and paused:
        reason, message = "Paused", None
    elif ready is True:
        _, step, words = condition(pool, "RolloutProgressing")
        if step in _ON_TRIAL:
            reason, message = step, words
    seen = members or ()
    published, _, _ = condition(table or {}, "TablePublished")
    draining = _integer(pool, "status", "instances", "draining")
    if draining is None and members is not None:
        draining = sum(member.drain is not None for member in seen)
    slots = _integer(pool, "status", "preInference", "slots")
    return PoolView(
        namespace=_text(pool, "metadata", "namespace") or "",
        name=_text(pool, "metadata", "name") or "",
        ready=ready,
        reason=reason,
        message=message,
        stale=_behind(pool),
        paused=paused,
        instances_ready=_integer(pool, "status", "instances", "ready"),
        instances_total=_integer(pool, "status", "instances", "total"),
        instances_wanted=_integer(pool, "spec", "replicas") if at(pool, "spec", "instances", "managed") else None,
        unreachable=_integer(pool, "status", "instances", "unreachable"),
        emb_target_percent=_mean(member.emb_target_percent for member in seen),
        emb_accepted_percent=_mean(member.emb_accepted_percent for member in seen)
        if members
        else _integer(pool, "status", "embPercent", "mean"),
        emb_settled_percent=_mean(member.emb_settled_percent for member in seen),
        instances_settled=_integer(pool, "status", "instances", "settled"),
        kv_hit_percent=_mean(member.kv_hit_percent for member in seen),
        emb_hit_percent=_mean(member.emb_hit_percent for member in seen),
        p99_ms=_number(pool, "status", "p99Ms"),
        p99_goal_ms=_number(pool, "spec", "slo", "p99Ms"),
        slo_percent=_number(pool, "status", "sloPercent"),
        slo_goal_percent=_number(pool, "spec", "slo", "goodPercent"),
        strategy=_text(pool, "status", "strategyInForce"),
        shadow=bool(_integer(pool, "status", "instances", "shadow")),
        policy_healthy=policy,
        draining=draining,
        updated=_integer(pool, "status", "instances", "updated"),
        slots=slots if slots is not None else _sum(member.slots_wanted for member in seen),
        demand_slots=_integer(pool, "status", "preInference", "demandSlots"),
        desired_replicas=_integer(pool, "status", "preInference", "desiredReplicas"),
        hit_before_rank_percent=_integer(pool, "status", "preInference", "hitBeforeRankPercent"),
        capacity_reason=condition(pool, "PreInferenceScaled")[1],
        metrics_reason=condition(pool, "MetricsFresh")[1],
        table_generation=_integer(table or {}, "status", "generation"),
        table_current=published,
        moved_percent=_number(table or {}, "status", "movedPercent"),
        model=_text(pool, "spec", "model", "name"),
        model_version=_text(pool, "spec", "model", "version"),
        age_seconds=_age(pool, now),
        instances=members,
    )


def _instance(item: Object, table: Object | None, now: datetime) -> InstanceView:
    ready, ready_reason, ready_message = condition(item, "Ready")
    policy, policy_reason, _ = condition(item, "PolicyHealthy")
    settled, _, _ = condition(item, "SplitSettled")
    decided, decided_message = _text(item, "status", "reason"), _text(item, "status", "message")
    member = _member(item, table)
    return InstanceView(
        namespace=_text(item, "metadata", "namespace") or "",
        pool=_text(item, "spec", "poolRef") or "",
        name=_text(item, "metadata", "name") or "",
        ready=ready,
        ready_reason=ready_reason,
        reason=decided if ready is True else ready_reason or decided,
        message=decided_message if ready is True else ready_message or decided_message,
        stale=at(item, "status", "agent", "reachable") is False,
        emb_target_percent=_integer(item, "status", "split", "target", "embPercent"),
        emb_accepted_percent=_integer(item, "status", "split", "accepted", "embPercent"),
        emb_settled_percent=_integer(item, "status", "split", "settled", "embPercent"),
        settled=settled,
        kv_hit_percent=_integer(item, "status", "caches", "kvHitPercent"),
        emb_hit_percent=_integer(item, "status", "caches", "embHitPercent"),
        p99_ms=_number(item, "status", "p99Ms"),
        slo_percent=_number(item, "status", "sloPercent"),
        strategy=_text(item, "status", "strategyInForce"),
        shadow=_text(item, "spec", "intent", "enforcement") == "Shadow",
        policy_healthy=policy,
        policy_reason=policy_reason,
        drain=_drain(item, now),
        slots_wanted=_integer(item, "spec", "preInfer", "slots"),
        slots_enforced=_integer(item, "status", "preInfer", "slots"),
        in_table=None if _integer(table or {}, "status", "generation") is None else member is not None,
        table_weight_percent=_integer(member or {}, "weightPercent"),
        table_state=_text(member or {}, "state"),
        model_version=_text(item, "spec", "source", "modelVersion"),
        service_url=_text(item, "spec", "source", "serviceURL"),
        age_seconds=_age(item, now),
    )


def _behind(pool: Object) -> bool:
    """Whether a status was written for an older spec than the one that stands."""
    newest, observed = _integer(pool, "metadata", "generation"), _integer(pool, "status", "observedGeneration")
    return newest is not None and observed is not None and observed < newest


def _member(item: Object, table: Object | None) -> Object | None:
    """The entry of the table with the uid of this instance; one of its name only is a predecessor."""
    uid = _text(item, "metadata", "uid")
    entries = at(table or {}, "status", "instances")
    for entry in entries if isinstance(entries, list) else ():
        if uid is not None and _text(entry, "uid") == uid:
            found: Object = entry
            return found
    return None


def _drain(item: Object, now: datetime) -> Drain | None:
    if not isinstance(at(item, "spec", "drain"), Mapping):
        return None
    started, deadline = _moment(item, "spec", "drain", "startedAt"), _number(item, "spec", "drain", "deadlineSeconds")
    left = None
    if started is not None and deadline is not None:
        left = deadline - (now - started).total_seconds()
    return Drain(reason=_text(item, "spec", "drain", "reason"), seconds_left=left, done=condition(item, "Drained")[0] is True)


def condition(item: Object, kind: str) -> tuple[bool | None, str | None, str | None]:
    """Whether a condition holds, None when it is Unknown or absent, its reason and its message."""
    conditions = at(item, "status", "conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if _text(each, "type") == kind:
            status = {"True": True, "False": False}.get(_text(each, "status") or "")
            return status, _text(each, "reason"), _text(each, "message")
    return None, None, None


def at(item: Any, *path: str) -> Any:
    """The value at a path of an object, None where any step is missing or no object."""
    for step in path:
        if not isinstance(item, Mapping):
            return None
        item = item.get(step)
    return item


def _text(item: Any, *path: str) -> str | None:
    value = at(item, *path)
    return value if isinstance(value, str) and value else None


def _integer(item: Any, *path: str) -> int | None:
    value = at(item, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(item: Any, *path: str) -> float | None:
    """A number, also one that is written as a string; None for anything that is not finite."""
    value = at(item, *path)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _moment(item: Any, *path: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(_text(item, *path) or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _age(item: Object, now: datetime) -> float | None:
    created = _moment(item, "metadata", "creationTimestamp")
    return None if created is None else max(0.0, (now - created).total_seconds())


def _mean(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return math.floor(sum(known) / len(known) + 0.5) if known else None


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum if every part is known."""
    parts = list(values)
    known = [value for value in parts if value is not None]
    return sum(known) if parts and len(known) == len(parts) else None
