"""When an instance and a pool count as ready, as small rules that each return a condition with a documented reason.

Ready of a pool answers one question: does it serve as wanted? It needs every instance, policies that can be found, and a
published table. Splits on their way, warming instances and a spent churn budget are normal life and do not take it away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controllers.pool.observe import InstanceSeen, Observation
from controllers.runtime.conditions import Condition, conditions_of, find_condition
from controllers.words import few
from crds import GRServingPool

_UNUSABLE_POLICY = frozenset({"PolicyNotFound", "PolicyInvalid"})
_BESIDE = frozenset({"Progressing", "LabelsOverlap"})
_HELD = frozenset({"TemplateInvalid", "DeploymentRefused", "AgentImageUnset"})
"""Reasons for which the pods that run are not those that the pool asks for."""


def instance_condition(instance: InstanceSeen) -> Condition:
    """Ready of one instance, from what the allocation loop heard of its agent."""
    if instance.stored["metadata"].get("deletionTimestamp"):
        return Condition("Ready", "False", "Terminating", "the instance is being deleted")
    model = instance.model
    if model is not None and model.spec.drain is not None:
        return Condition(
            "Ready", "False", "Draining", f"the instance leaves ({model.spec.drain.reason.value}) and finishes its requests"
        )
    if model is None:
        return Condition(
            "Ready", "False", "InvalidSpec", "this operator cannot read the object; compare the versions of CRDs and operator"
        )
    agent, url = model.status.agent, model.spec.source.agent_url
    if agent is None:
        return Condition("Ready", "Unknown", "Pending", f"the agent at {url} has not answered yet")
    if not agent.reachable:
        return Condition(
            "Ready", "False", "AgentUnreachable", f"the agent at {url} does not answer; check that it runs and can be reached"
        )
    policy = find_condition(conditions_of(instance.stored), "PolicyHealthy") or {}
    if policy.get("reason") == "AgentMisbehaves":
        return Condition(
            "Ready", "False", "InvalidAnswer", f"the agent at {url} breaks the contract; see the condition PolicyHealthy"
        )
    if agent.engine_start_id is None:
        return Condition(
            "Ready", "False", "EngineUnreachable", f"the agent at {url} answers and its engine does not; check --engine"
        )
    return Condition("Ready", "True", "InstanceReady", "engine and agent answer")


def paused_condition(pool: GRServingPool) -> Condition:
    """Paused of a pool."""
    if pool.spec.paused:
        return Condition("Paused", "True", "PausedByUser", "held as it is; set spec.paused to false to continue")
    return Condition("Paused", "False", "NotPaused")


def instances_condition(seen: Observation, wanted: Sequence[str], *, problem: str | None) -> Condition:
    """InstancesReady of a pool."""
    kind = "InstancesReady"
    if problem is not None:
        return Condition(kind, "False", "NameTooLong", f"{problem}; shorten the name")
    if not wanted:
        return Condition(kind, "False", "NoneFound", "instances.external is empty; add an entry")
    if seen.strangers:
        return _name_taken(seen.strangers)
    states = {each.name: instance_condition(each) for each in seen.instances}
    if seen.pool.spec.paused and any(name not in states for name in wanted):
        return Condition(kind, "False", "Progressing", f"{_share(wanted, states)}; the rest is created when spec.paused is unset")
    waiting = [name for name in wanted if name not in states or states[name].status == "Unknown"]
    failing = [f"{name} ({states[name].reason})" for name in wanted if name in states and states[name].status == "False"]
    if failing:
        return Condition(kind, "False", "SomeNotReady", f"{_share(wanted, states)}; not ready: {few(failing)}")
    extra = [name for name in states if name not in wanted]
    if waiting or extra:
        parts = [f"waiting for: {few(waiting)}"] if waiting else []
        parts += [f"leaving: {few(extra)}"] if extra else []
        return Condition(kind, "False", "Progressing", "; ".join([_share(wanted, states), *parts]))
    return Condition(kind, "True", "AllReady", _share(wanted, states))


def ready_condition(seen: Observation, instances: Condition, *, serving_enough: bool = False) -> Condition | None:
    """Ready of a pool; None while another loop has yet to see this generation and the old word can stand.

    While as many instances serve as are wanted, a rolling update or a drain that goes on beside does not take Ready away.
    """
    before = conditions_of(seen.stored)
    if instances.status != "True" and not (serving_enough and instances.reason in _BESIDE):
        return _not_ready(seen, instances)
    policy, table = find_condition(before, "PolicyHealthy"), find_condition(before, "TablePublished")
    for part in (policy, table):
        if part is not None and part.get("reason") in _UNUSABLE_POLICY and _is_current(part, seen):
            return Condition("Ready", "False", "PolicyUnusable", f"{part['type']}: {part.get('message', '')}")
    lagging = not (policy and table and _is_current(policy, seen) and _is_current(table, seen))
    if lagging and find_condition(before, "Ready") is not None and seen.pool.status.table_generation is not None:
        return None
    if seen.pool.status.table_generation is None or table is None:
        why = f": {table['reason']}, {table.get('message', '')}" if table else ""
        return Condition("Ready", "False", "NoRoutingTable", f"no routing table has been published yet{why}")
    if policy is None:
        return Condition(
            "Ready", "False", "SomeInstancesNotReady", "no intent has been made yet; see the condition PolicyHealthy"
        )
    return Condition("Ready", "True", "AllInstancesReady", instances.message)


def _not_ready(seen: Observation, instances: Condition) -> Condition:
    message = f"InstancesReady: {instances.message}"
    if instances.reason in _HELD:
        return Condition("Ready", "False", "WorkloadHeld", message)
    if instances.reason == "NoneFound":
        return Condition("Ready", "False", "NoInstances", message)
    some = any(instance_condition(each).status == "True" for each in seen.instances)
    return Condition("Ready", "False", "SomeInstancesNotReady" if some else "NoInstanceReady", message)


def _is_current(condition: Mapping[str, Any], seen: Observation) -> bool:
    return int(condition.get("observedGeneration") or 0) >= seen.pool.metadata.generation


def _name_taken(strangers: Mapping[str, str]) -> Condition:
    name = min(strangers)
    owner = strangers[name]
    whose = "exists and belongs to nobody" if owner == "nobody" else f"belongs to {owner}"
    more = f" ({len(strangers) - 1} more)" if len(strangers) > 1 else ""
    return Condition(
        "InstancesReady",
        "False",
        "NameTaken",
        f"GRInstance {name} {whose}{more}; rename the entry of instances.external, or delete that GRInstance",
    )


def _share(wanted: Sequence[str], states: Mapping[str, Condition]) -> str:
    ready = sum(name in states and states[name].status == "True" for name in wanted)
    return f"{ready} of {len(wanted)} instances are ready"
