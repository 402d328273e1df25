"""What to do for a pool of pods, as a pure function: instances that follow pods, open gates, victims, Deployment and its scale.

While the pool is paused the instances still follow the pods, because callers have to know who is gone; but nothing is created,
scaled, rolled or let into service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controllers.holder import PREDECESSOR_SECONDS, Holder, holder_of, owner_in_words
from controllers.pool.actions import Action, ApplyDeployment, ApplyInstance, DeleteInstance, MarkPod, OpenGate, ScaleDeployment
from controllers.pool.drains import Leaving, Scene, plan_leaving
from controllers.pool.observe import InstanceSeen, Observation
from controllers.pool.pod_world import PodWorld, digest_of, outcome_of, warm_uids
from controllers.pool.rollout import rollout_of
from controllers.pool.workload import TemplateInvalid, deployment_body
from controllers.runtime.resources import POOL_LABEL, Object
from controllers.runtime.ssa import already_applied
from crds import RoutingPolicySpec
from crds.reasons import FieldManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the Deployment is to be, or why there is nothing to apply.

    Attributes
    ----------
    problem
        (reason of InstancesReady, message) that keeps the body from being made or applied.
    """

    body: Mapping[str, Any] | None = None
    digest: str = ""
    problem: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """Instances first, then what concerns pods and the Deployment, in this order; and when to look again without an event."""

    instances: tuple[Action, ...]
    workload: tuple[Action, ...]
    next_look: float | None


def decide_pods(seen: Observation, world: PodWorld, workload: Workload, now: datetime) -> PodPlan:
    """Choose for what was seen."""
    instances = instances_by_pod(seen, world)
    managed, paused = seen.pool.spec.instances.managed is not None, seen.pool.spec.paused
    leaving = plan_leaving(_scene(seen, world, instances, now), now)
    actions: list[Action] = []
    if not paused:
        actions += _gates(world, instances)
    if managed and not paused:
        actions += [MarkPod(pod=_pod(world, name), deletion_cost=cost) for name, cost in sorted(leaving.costs.items())]
        actions += _deployment(seen, world, workload, leaving)
    waits = [max(0.0, (leaving.next_look - now).total_seconds())] if leaving.next_look is not None else []
    if managed and holder_of(world.deployment, seen.stored) is Holder.PREDECESSOR:
        waits.append(PREDECESSOR_SECONDS)
    return PodPlan(
        instances=tuple(_instances(seen, world, instances, leaving)),
        workload=tuple(actions),
        next_look=min(waits, default=None),
    )


def workload_of(seen: Observation, world: PodWorld) -> Workload:
    """The Deployment that a managed pool asks for."""
    if seen.pool.spec.instances.managed is None:
        return Workload()
    if world.policy is None:
        name = seen.pool.spec.policies.routing
        return Workload(problem=("Progressing", f"the Deployment waits for the RoutingPolicy {name}; see TablePublished"))
    if not world.agent.reference:
        return Workload(
            problem=("AgentImageUnset", "the operator was not told the agent's image; start it with --agent-image (agent.image)")
        )
    holder = holder_of(world.deployment, seen.stored)
    if holder in (Holder.STRANGER, Holder.ORPHAN):
        assert world.deployment is not None
        return Workload(problem=("NameTaken", _taken(world.deployment)))
    try:
        body = deployment_body(seen.pool, seen.stored, agent=world.agent, policy=world.policy)
    except TemplateInvalid as problem:
        return Workload(problem=("TemplateInvalid", str(problem)))
    digest = digest_of(body)
    refusal = world.refusal
    if refusal is not None and refusal.digest == digest:
        return Workload(body=body, digest=digest, problem=(refusal.reason, refusal.message))
    if holder is Holder.PREDECESSOR:
        return Workload(problem=("Progressing", "the Deployment of a deleted pool of this name is still being removed"))
    return Workload(body=body, digest=digest)


def instances_by_pod(seen: Observation, world: PodWorld) -> dict[str, InstanceSeen]:
    """The instance of each pod that has one; an instance of an earlier pod of the same name is not its."""
    uids = {pod.name: pod.uid for pod in world.pods}
    return {
        each.name: each
        for each in seen.instances
        if each.name in uids and (each.stored["spec"].get("source") or {}).get("podUID") == uids[each.name]
    }


def _taken(deployment: Object) -> str:
    whose = owner_in_words(deployment)
    return f"Deployment {deployment['metadata']['name']} exists and belongs to {whose}; delete it, or rename the pool"


def _scene(seen: Observation, world: PodWorld, instances: Mapping[str, InstanceSeen], now: datetime) -> Scene:
    pool, scale = seen.pool, None
    may_scale = pool.spec.instances.managed is not None and not pool.spec.paused
    if may_scale and world.deployment is not None and holder_of(world.deployment, seen.stored) is Holder.POOL:
        scale = int(world.deployment["spec"].get("replicas", 1))
    return Scene(
        pods=world.pods,
        instances=instances,
        wanted=pool.spec.replicas,
        wanted_version=pool.spec.model.version,
        scale=scale,
        deadline_seconds=(world.policy or RoutingPolicySpec()).drain.deadline_seconds,
        resident=world.resident,
        unserving=frozenset(
            pod.name
            for pod in world.pods
            if pod.gate_closed and pod.name in instances and instances[pod.name].uid not in world.weights
        ),
        rollout=rollout_of(world.deployment, quiet_since=now - timedelta(seconds=world.quiet_seconds)),
    )


def _instances(seen: Observation, world: PodWorld, instances: Mapping[str, InstanceSeen], leaving: Leaving) -> Iterator[Action]:
    """Delete what has no pod any more; make or correct the rest."""
    for each in seen.instances:
        if each.name not in instances:
            yield DeleteInstance(name=each.name, uid=each.uid)
    held = {each.name for each in seen.instances} | set(seen.strangers) | seen.predecessors
    for pod in world.pods:
        instance, source, drain = instances.get(pod.name), pod.source(), leaving.drains.get(pod.name)
        if instance is None:
            # Before its containers are ready nobody answers at its addresses, and asking would only raise alarms.
            if source is not None and pod.running and pod.name not in held and not pod.terminating:
                yield ApplyInstance(name=pod.name, source=source, current=None, drain=drain)
        elif not _stands(instance, source, drain, seen):
            kept = dict(instance.stored["spec"]["source"]) if source is None else source
            yield ApplyInstance(name=pod.name, source=kept, current=instance.stored, drain=drain)


def _stands(instance: InstanceSeen, source: Mapping[str, Any] | None, drain: Mapping[str, Any] | None, seen: Observation) -> bool:
    metadata, spec = instance.stored["metadata"], instance.stored["spec"]
    if metadata.get("deletionTimestamp"):
        return True
    same = source is None or spec.get("source") == source
    return same and spec.get("drain") == drain and (metadata.get("labels") or {}).get(POOL_LABEL) == seen.pool.metadata.name


def _gates(world: PodWorld, instances: Mapping[str, InstanceSeen]) -> Iterator[Action]:
    warm = warm_uids(world)
    for pod in world.pods:
        if pod.gate_closed and not pod.terminating and pod.name in instances and instances[pod.name].uid in warm:
            yield OpenGate(pod=pod.stored)


def _deployment(seen: Observation, world: PodWorld, workload: Workload, leaving: Leaving) -> Iterator[Action]:
    current = world.deployment
    if workload.body is not None and workload.problem is None and not _as_applied(workload, world):
        replicas = seen.pool.spec.replicas if current is None else int(current["spec"].get("replicas", 1))
        yield ApplyDeployment(body=workload.body, digest=workload.digest, current=current, replicas=replicas)
    if current is not None and leaving.replicas is not None:
        yield ScaleDeployment(current=current, replicas=leaving.replicas)


def _as_applied(workload: Workload, world: PodWorld) -> bool:
    """Whether the Deployment is what was applied: field by field, or unchanged since the API server normalised this very body."""
    if world.deployment is None:
        return False
    assert workload.body is not None
    if already_applied(workload.body, world.deployment, field_manager=FieldManager.POOL):
        return True
    applied = world.applied
    return applied is not None and (applied.body, applied.outcome) == (workload.digest, outcome_of(world.deployment))


def _pod(world: PodWorld, name: str) -> Object:
    return next(pod.stored for pod in world.pods if pod.name == name)
