"""Translates what an agent said into the status of its instance, rounded and sticky, so that noise writes nothing.

When there is no fresh word, the last split stays as the best that is known, and measurements are left out: missing is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contract.agent import AgentStatus, Enforcement, SplitReport
from contract.engine import MAX_PRE_INFER_SLOTS
from controllers.allocation.drained import drained
from controllers.allocation.observe import Observation
from controllers.allocation.sightings import Answered, Garbled, Silent
from controllers.allocation.verdicts import policy_healthy, proving_failures, split_settled
from controllers.rounding import steady_latency, steady_points, steady_share
from controllers.runtime.conditions import Condition, conditions_of, set_conditions, timestamp
from crds.types import COUNT_MAX

KEPT_WITHOUT_WORD = ("split", "preInfer", "strategyInForce", "reason", "message", "lastObservedTime")


def status_of(seen: Observation, now: datetime) -> tuple[dict[str, Any], tuple[Condition, ...]]:
    """The whole status that the loop wants to stand, and its conditions without times."""
    fields: dict[str, Any]
    if isinstance(seen.sighting, Answered):
        fields = _fresh(seen, seen.sighting.status)
        fields["lastObservedTime"] = timestamp(now)
    else:
        old = seen.stored.get("status") or {}
        fields = {name: old[name] for name in KEPT_WITHOUT_WORD if name in old}
        agent = _agent_without_word(seen)
        if agent is not None:
            fields["agent"] = agent
    split = fields.get("split") or {}
    leaving = drained(seen)
    conditions = (
        *([leaving] if leaving is not None else []),
        policy_healthy(seen),
        split_settled(
            seen,
            emb_percent=(split.get("accepted") or {}).get("embPercent"),
            target_percent=(split.get("target") or {}).get("embPercent"),
        ),
    )
    generation = seen.instance.metadata.generation
    fields["conditions"] = set_conditions(_of_this_drain(seen), conditions, observed_generation=generation, now=now)
    return fields, conditions


def _of_this_drain(seen: Observation) -> list[Mapping[str, Any]]:
    """The conditions that stand, less a Drained of an earlier drain: by its time this one would have ended before it began."""
    drain, before = seen.instance.spec.drain, conditions_of(seen.stored)
    if drain is None:
        return list(before)
    began, generation = timestamp(drain.started_at), seen.instance.metadata.generation

    def earlier(item: Mapping[str, Any]) -> bool:
        older = int(item.get("observedGeneration") or 0) < generation  # else a clock that is ahead would renew it for ever
        return item.get("type") == "Drained" and older and str(item.get("lastTransitionTime")) < began

    return [item for item in before if not earlier(item)]


def _fresh(seen: Observation, status: AgentStatus) -> dict[str, Any]:
    published = seen.instance.status
    fields: dict[str, Any] = {
        "strategyInForce": status.strategy_in_force,
        "reason": status.reason,
        "message": status.message,
        "agent": _agent(seen, status),
        "split": _split(seen, status.split) if status.split is not None else None,
        "preInfer": _pre_infer(status),
        "p99Ms": steady_latency(status.p99_ms, published.p99_ms),
        "sloPercent": steady_share(status.slo_percent, published.slo_percent),
        "forecast": _forecast(seen, status),
    }
    old = published.caches
    caches = {
        "embHitPercent": steady_points(status.emb_hit_percent, old.emb_hit_percent if old else None),
        "kvHitPercent": steady_points(status.kv_hit_percent, old.kv_hit_percent if old else None),
    }
    fields["caches"] = _present(caches) or None
    return _present(fields)


def _agent(seen: Observation, status: AgentStatus) -> dict[str, Any]:
    mine = status.uid == seen.instance.metadata.uid and status.generation > 0
    return _present(
        {
            "reachable": True,
            "startId": status.agent_start_id,
            "engineStartId": status.engine.start_id if status.engine.reachable else None,
            "intentGeneration": status.generation if mine else None,
        }
    )


def _pre_infer(status: AgentStatus) -> dict[str, Any] | None:
    """Capacity in force; None where nobody knows, or where an engine of its own settings enforces more than the API can say."""
    limits = status.limits
    if limits is None or limits.pre_infer_slots > MAX_PRE_INFER_SLOTS or limits.pre_infer_bytes > COUNT_MAX:
        return None
    return {"slots": limits.pre_infer_slots, "bytes": limits.pre_infer_bytes}


def _forecast(seen: Observation, status: AgentStatus) -> dict[str, str] | None:
    """What the strategy would change; only told in Shadow, where nothing else shows what it is worth."""
    intent, old = seen.instance.spec.intent, seen.instance.status.forecast
    if intent is None or intent.enforcement is not Enforcement.SHADOW:
        return None
    in_force = steady_latency(status.predicted_p99_ms, old.in_force_p99_ms if old else None)
    goal = steady_latency(status.goal_p99_ms, old.goal_p99_ms if old else None)
    return {"inForceP99Ms": in_force, "goalP99Ms": goal} if in_force is not None and goal is not None else None


def _agent_without_word(seen: Observation) -> dict[str, Any] | None:
    """The agent's state while it is silent, garbled or not asked yet; a single missed call changes nothing."""
    old: dict[str, Any] = dict((seen.stored.get("status") or {}).get("agent") or {})
    if isinstance(seen.sighting, Garbled):
        return {**old, "reachable": True}
    if isinstance(seen.sighting, Silent) and seen.sighting.failures >= proving_failures(seen):
        return {**old, "reachable": False}
    return old or None


def _split(seen: Observation, report: SplitReport) -> dict[str, Any]:
    old = (seen.stored.get("status") or {}).get("split") or {}
    usable = report.usable_bytes
    arrived = report.settled and old.get("settled", {}).get("embBytes") != report.accepted_emb_bytes
    # A split that has just arrived is published to the byte; on the way, and in noise, a point is enough.
    point = 1 if arrived or old.get("usableBytes") != usable else max(1, usable // 100)
    old_accepted = old.get("accepted") or {}
    accepted = _value(report.accepted_emb_bytes, report.accepted_kv_bytes, usable, old_accepted, point)
    target = _value(report.target_emb_bytes, max(0, usable - report.target_emb_bytes), usable, old.get("target") or {}, point)
    same = accepted == old_accepted and "revision" in old
    return _present(
        {
            "target": target,
            "accepted": accepted,
            "settled": accepted if report.settled else old.get("settled"),
            "revision": old["revision"] if same else report.revision,
            "usableBytes": usable,
        }
    )


def _value(emb: int, kv: int, usable: int, old: dict[str, Any], resolution: int) -> dict[str, Any]:
    if old and _near(emb, old["embBytes"], resolution) and _near(kv, old["kvBytes"], resolution):
        return old
    percent = steady_points(100.0 * emb / usable, old.get("embPercent") if resolution > 1 else None)
    return {"embBytes": emb, "kvBytes": kv, "embPercent": percent}


def _near(value: int, published: int, resolution: int) -> bool:
    return abs(value - published) < resolution


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
