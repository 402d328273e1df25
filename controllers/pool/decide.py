"""What to do for a pool, as a pure function: which instances to apply or delete, and what its status says.

External entries become one GRInstance each; what pods need stands in `pod_decide`. While the pool is paused the set of external
instances is left alone and only status follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.announce import Announcement, announcements, moved_on
from controllers.pace import wait_before_write
from controllers.pool.actions import Action, ApplyInstance, DeleteInstance, WriteReadiness
from controllers.pool.observe import LABEL_LIMIT, NAME_LIMIT, InstanceSeen, Observation, instance_name
from controllers.pool.pod_decide import PodPlan, Workload, decide_pods, workload_of
from controllers.pool.pod_readiness import pods_condition
from controllers.pool.readiness import instance_condition, instances_condition, paused_condition, ready_condition
from controllers.pool.summary import summary
from controllers.pool.workload import disruption_budget_body
from controllers.runtime.conditions import (
    Condition,
    conditions_of,
    find_condition,
    in_order,
    set_conditions,
    standing_items,
)
from controllers.runtime.resources import POOL_LABEL, Object
from crds.instance import SourceKind

TAKEN_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to carry out. `status` is None when there is nothing new, or nothing yet; then `requeue_after` says when.

    `budget` is the PodDisruptionBudget that has to stand; nobody watches those, so it may stand already.
    """

    actions: tuple[Action, ...] = ()
    budget: Mapping[str, Any] | None = None
    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None


def decide(seen: Observation, now: datetime) -> Plan:
    """Choose the actions and the status for what was seen."""
    if seen.pool.metadata.deletion_timestamp is not None:
        return Plan()  # owner references do the rest
    wanted, workload = _wanted(seen), Workload()
    changes: tuple[Action, ...] = ()
    pods = PodPlan(instances=(), workload=(), next_look=None)
    waits = [TAKEN_RETRY_SECONDS] if seen.strangers else []
    if seen.world is None:
        changes = () if seen.pool.spec.paused else _changes(seen, wanted)
    elif name_problem(seen) is None:
        workload = workload_of(seen, seen.world)
        pods = decide_pods(seen, seen.world, workload, now)
        waits += [pods.next_look] if pods.next_look is not None else []
    status, conditions = _status(seen, wanted, workload, now)
    before = conditions_of(seen.stored)
    wait, changed = _pace(seen, status)
    if changed and wait:
        waits.append(wait)
    return Plan(
        actions=(*changes, *pods.instances, *_readiness(seen.instances, now), *pods.workload),
        budget=disruption_budget_body(seen.pool, seen.stored) if _keeps_budget(seen, workload) else None,
        status=status if changed and not wait else None,
        announce=announcements(before, conditions) if changed and not wait else (),
        requeue_after=min(waits, default=None),
    )


def _keeps_budget(seen: Observation, workload: Workload) -> bool:
    """Whether the pool has a Deployment, or gets one now."""
    return not seen.pool.spec.paused and seen.world is not None and workload.body is not None and workload.problem is None


def _wanted(seen: Observation) -> dict[str, dict[str, Any]]:
    """The source of each instance that the pool asks for, by instance name."""
    pool = seen.pool
    if name_problem(seen) is not None:
        return {}
    return {
        instance_name(pool.metadata.name, entry.name): {
            "kind": SourceKind.EXTERNAL.value,
            "serviceURL": entry.service_url,
            "agentURL": entry.agent_url,
        }
        for entry in pool.spec.instances.external or ()
    }


def name_problem(seen: Observation) -> str | None:
    """Why no legal names can be made for the instances, or None."""
    pool = seen.pool
    if len(pool.metadata.name) > LABEL_LIMIT:
        return f"the pool's name has {len(pool.metadata.name)} characters; the label {POOL_LABEL} holds {LABEL_LIMIT}"
    longest = max((len(entry.name) for entry in pool.spec.instances.external or ()), default=0)
    if len(pool.metadata.name) + 1 + longest > NAME_LIMIT:
        return f"pool and entry name together have more than {NAME_LIMIT} characters"
    return None


def _changes(seen: Observation, wanted: Mapping[str, Mapping[str, Any]]) -> tuple[Action, ...]:
    if seen.pool.spec.instances.external is None or name_problem(seen) is not None:
        return ()
    present = {each.name: each for each in seen.instances}
    gone = [DeleteInstance(name=name, uid=each.uid) for name, each in present.items() if name not in wanted]
    kept = [
        ApplyInstance(name=name, source=source, current=present[name].stored if name in present else None)
        for name, source in wanted.items()
        if name not in seen.strangers and name not in seen.predecessors and not _stands(present.get(name), source, seen)
    ]
    return (*gone, *kept)


def _stands(instance: InstanceSeen | None, source: Mapping[str, Any], seen: Observation) -> bool:
    """Whether the instance is as wanted, or on its way out and must be gone before it can be made again."""
    if instance is None:
        return False
    labels = instance.stored["metadata"].get("labels") or {}
    as_wanted = instance.stored["spec"].get("source") == source and labels.get(POOL_LABEL) == seen.pool.metadata.name
    return as_wanted or _is_leaving(instance)


def _is_leaving(instance: InstanceSeen) -> bool:
    return bool(instance.stored["metadata"].get("deletionTimestamp"))


def _readiness(instances: Iterable[InstanceSeen], now: datetime) -> Iterable[WriteReadiness]:
    for each in instances:
        if _is_leaving(each):
            continue
        generation = int(each.stored["metadata"].get("generation", 0))
        condition, before = instance_condition(each), conditions_of(each.stored)
        items = set_conditions(before, (condition,), observed_generation=generation, now=now)
        old = find_condition(before, condition.type)
        if old is None and condition.status == "Unknown":
            continue  # nobody has looked yet; no condition says the same, and costs neither a write nor an Event a second later
        if old is None or dict(old) != items[0] or _observed_generation(each.stored) != generation:
            status = {"observedGeneration": generation, "conditions": items}
            yield WriteReadiness(current=each.stored, status=status, announce=announcements(before, (condition,)))


def _status(
    seen: Observation, wanted: Mapping[str, Mapping[str, Any]], workload: Workload, now: datetime
) -> tuple[dict[str, Any], tuple[Condition, ...]]:
    generation, before, problem = seen.pool.metadata.generation, conditions_of(seen.stored), name_problem(seen)
    if seen.world is None or problem is not None:
        instances, enough = instances_condition(seen, tuple(wanted), problem=problem), False
    else:
        instances, enough = pods_condition(seen, seen.world, workload)
    own = (instances, paused_condition(seen.pool))
    ready = ready_condition(seen, instances, serving_enough=enough)
    items = set_conditions(before, own if ready is None else (*own, ready), observed_generation=generation, now=now)
    observed: int | None = generation
    if ready is None:  # another loop has not seen this generation yet: the old word stands until it has
        items = in_order([*items, dict(find_condition(before, "Ready") or {})])
        observed = _observed_generation(seen.stored)
    status: dict[str, Any] = {"conditions": items, **summary(seen)}
    if observed is not None:
        status["observedGeneration"] = observed
    return status, own if ready is None else (*own, ready)


def _pace(seen: Observation, status: Mapping[str, Any]) -> tuple[float, bool]:
    """Seconds to wait before `status` may be written, and whether it differs from what stands there."""
    old: Mapping[str, Any] = seen.stored.get("status") or {}
    old_items = standing_items(conditions_of(seen.stored), {str(item["type"]) for item in status["conditions"]})
    fields = set(status) | OWN_FIELDS
    same = all(old.get(name) == status.get(name) for name in fields - {"conditions"})
    if same and old_items == list(status["conditions"]):
        return 0.0, False
    return wait_before_write(seen.write_ages_s, transition=moved_on(old_items, status["conditions"])), True


OWN_FIELDS = frozenset(
    {
        "observedGeneration",
        "replicas",
        "selector",
        "instances",
        "embPercent",
        "p99Ms",
        "sloPercent",
        "strategyInForce",
        "inferencePools",
    }
)


def _observed_generation(stored: Object) -> int | None:
    value = (stored.get("status") or {}).get("observedGeneration")
    return int(value) if value is not None else None
