"""Who leaves a managed pool, and how far its Deployment may shrink by now: scale-down in two phases, as a pure function.

First the victims are marked: spec.drain on their instance, a deletion cost on their pod. The routing table drops them and they
finish their requests. Only when a victim is drained, or its deadline has passed, the Deployment gets smaller by it. Victims carry
a deletion cost that grows with the second in which they were chosen, so that the ReplicaSet takes them in that order, and the
target is absolute (wanted + victims that are still waited for), so that a repeated or late look never shrinks twice.

In the middle of a rolling update the Deployment has several ReplicaSets and chooses itself which of them loses a pod. A victim of
another one is left over: the Deployment has its size, and nobody will delete it. It is called back, because a victim's gate stays
closed, and a new pod behind a closed gate holds the update up for ever.

And a Deployment whose size changes between two steps of an update may take it for a scaling event for ever (a fault of its
controller: the ReplicaSet has the new size already and keeps the note of the old one). Nothing but another size ends that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from controllers.pool.observe import InstanceSeen
from controllers.pool.pods import Pod
from controllers.pool.rollout import Rollout
from controllers.runtime.clock import CLOCKS_DIFFER_SECONDS
from controllers.runtime.conditions import conditions_of, find_condition, timestamp
from crds.instance import DrainReason
from policies.scaling.victims import Candidate, choose_victims, order_of_leaving

_COST_ORIGIN = 3_900_000_000
_LOWEST_COST = -(1 << 31)
_OUR_COSTS_BELOW = -1_000_000_000
"""Deletion costs of ours are the second of the choice minus an origin: within 32 bits, and below what people use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What a look at the pods gives.

    Attributes
    ----------
    drains
        spec.drain by name of the pod, for each that leaves.
    costs
        Deletion costs to be written, by name of the pod; None takes it away.
    replicas
        What the Deployment is to be scaled to; None: leave it alone.
    next_look
        When the next deadline passes.
    """

    drains: Mapping[str, Mapping[str, Any]]
    costs: Mapping[str, str | None]
    replicas: int | None
    next_look: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is needed to judge: pods, their instances by pod name, the numbers, and what the instances are worth.

    Attributes
    ----------
    scale
        spec.replicas of the Deployment; None while there is none, or while it must not be touched.
    resident
        Bytes of cached state by uid of the instance, where known.
    unserving
        Names of pods that no caller has been sent to yet.
    rollout
        How the rolling update of the Deployment stands.
    """

    pods: Sequence[Pod]
    instances: Mapping[str, InstanceSeen]
    wanted: int
    wanted_version: str
    scale: int | None
    deadline_seconds: int
    resident: Mapping[str, int]
    unserving: frozenset[str]
    rollout: Rollout = field(default_factory=Rollout)


def plan_leaving(scene: Scene, now: datetime) -> Leaving:
    """Choose who leaves and how far the Deployment may shrink."""
    live = [pod for pod in scene.pods if not pod.terminating]
    marked = [pod for pod in live if _marked(pod, scene)]
    leaving = marked if scene.scale is None else _chosen(scene, live, marked, scene.scale, now)
    drains = {pod.name: _scale_down(pod, scene, now) for pod in leaving}
    drains |= {pod.name: _terminating(pod, scene, now) for pod in scene.pods if pod.terminating}
    wanted_costs = {pod.name: _cost(drains[pod.name]) for pod in leaving}
    costs: dict[str, str | None] = {
        pod.name: wanted_costs.get(pod.name)
        for pod in live
        if (pod.name in wanted_costs or _our_cost(pod)) and pod.deletion_cost != wanted_costs.get(pod.name)
    }
    waiting = _waiting(scene, leaving, drains, now)
    replicas, again = _target(scene, len(waiting), now)
    # One that has passed stays waited for behind another victim with more time, and would have us look again at once for ever.
    looks = [deadline for pod in waiting if (deadline := _deadline(drains[pod.name])) > now]
    looks += [moment for moment in (again, _left_over_at(scene, now) if leaving else None) if moment is not None]
    return Leaving(
        drains=drains,
        costs={} if scene.scale is None else costs,
        replicas=replicas,
        next_look=min(looks, default=None),
    )


def _chosen(scene: Scene, live: Sequence[Pod], marked: Sequence[Pod], scale: int, now: datetime) -> list[Pod]:
    """The victims: those marked before, less the ones that are needed again, or plus as many as are still too many."""
    left_over_at = _left_over_at(scene, now)
    if left_over_at is not None and now >= left_over_at:
        return []
    names = {pod.name for pod in marked}
    staying = [pod for pod in live if pod.name not in names]
    needed_again = min(len(marked), max(0, scene.wanted - len(staying)))
    if needed_again:
        order = [each.name for each in order_of_leaving(_candidate(pod, scene, now) for pod in marked)]
        leave = set(order[: len(order) - needed_again])
        return [pod for pod in marked if pod.name in leave]
    too_many = min(scale - scene.wanted - len(marked), len(staying) - scene.wanted)
    if scale > scene.wanted == 0:
        too_many = len(staying)  # a Deployment of size 0 keeps no surge
    if too_many <= 0:
        return list(marked)
    more = {each.name for each in choose_victims([_candidate(pod, scene, now) for pod in staying], too_many)}
    return [pod for pod in live if pod.name in names or pod.name in more]


def _target(scene: Scene, waiting: int, now: datetime) -> tuple[int | None, datetime | None]:
    """(size of the Deployment, None to leave it; when to judge again)"""
    if scene.scale is None:
        return None, None
    if scene.scale == scene.wanted:
        stuck_at = scene.rollout.stuck_at(now) if scene.wanted else None
        if stuck_at is None or now < stuck_at:
            return None, stuck_at
        return scene.wanted + 1, None  # taken back as soon as it was taken in
    target = scene.wanted if scene.wanted > scene.scale else min(scene.scale, scene.wanted + waiting)
    if target == scene.scale:
        return None, None
    settled_at = scene.rollout.settled_at(now)
    if target < scene.scale and not scene.rollout.taken_in and now < settled_at:
        return None, settled_at
    return target, None


def _waiting(scene: Scene, leaving: Sequence[Pod], drains: Mapping[str, Mapping[str, Any]], now: datetime) -> list[Pod]:
    """Victims that are still waited for: all that were chosen in the same second as, or after, one that is not drained yet."""
    ordered = sorted(leaving, key=lambda pod: str(drains[pod.name]["startedAt"]))
    gone = 0
    for _, group in groupby(ordered, key=lambda pod: str(drains[pod.name]["startedAt"])):
        together = list(group)
        if not all(_is_drained(pod, scene, drains[pod.name], now) for pod in together):
            break
        gone += len(together)
    return ordered[gone:]


def _is_drained(pod: Pod, scene: Scene, drain: Mapping[str, Any], now: datetime) -> bool:
    """Whether nothing is left to wait for."""
    instance = scene.instances.get(pod.name)
    if instance is None or pod.name in scene.unserving:
        return True
    said = find_condition(conditions_of(instance.stored), "Drained")
    # An older word belongs to an earlier drain that was called off.
    if said is not None and said["status"] == "True" and str(said["lastTransitionTime"]) >= timestamp(_started(drain)):
        return True
    return now >= _deadline(drain)


def _left_over_at(scene: Scene, now: datetime) -> datetime | None:
    """When the victims of a Deployment that is no larger than wanted, in a rolling update, are ones that it passed over."""
    if not scene.rollout.under_way or scene.scale is None or scene.scale > scene.wanted:
        return None
    return scene.rollout.settled_at(now)


def _candidate(pod: Pod, scene: Scene, now: datetime) -> Candidate:
    instance = scene.instances.get(pod.name)
    return Candidate(
        name=pod.name,
        ready=pod.ready,
        wanted_version=pod.model_version == scene.wanted_version,
        resident_bytes=None if instance is None else scene.resident.get(instance.uid),
        age_seconds=max(0.0, (now - pod.created).total_seconds()),
    )


def _marked(pod: Pod, scene: Scene) -> bool:
    """Whether it was chosen before; a pod without an address has no instance, and there the cost alone says so."""
    return _written(pod, scene) is not None


def _scale_down(pod: Pod, scene: Scene, now: datetime) -> Mapping[str, Any]:
    return _stands(pod, scene, now) or _drain(DrainReason.SCALE_DOWN, scene, now)


def _terminating(pod: Pod, scene: Scene, now: datetime) -> Mapping[str, Any]:
    return _stands(pod, scene, now) or _drain(DrainReason.TERMINATING, scene, now)


def _stands(pod: Pod, scene: Scene, now: datetime) -> Mapping[str, Any] | None:
    """The drain that goes on. One that begins in the future is that of a leader whose clock was wrong, and begins anew: it would
    take that much longer, and no word of the agent would count for it."""
    drain = _written(pod, scene)
    return None if drain is None or (_started(drain) - now).total_seconds() > CLOCKS_DIFFER_SECONDS else drain


def _written(pod: Pod, scene: Scene) -> Mapping[str, Any] | None:
    """The drain that was begun; without an instance there is the cost alone, which says when."""
    instance = scene.instances.get(pod.name)
    if instance is not None:
        return _drain_of(instance)
    if not _our_cost(pod):
        return None
    return _drain(DrainReason.SCALE_DOWN, scene, datetime.fromtimestamp(int(pod.deletion_cost or 0) + _COST_ORIGIN, UTC))


def _drain(reason: DrainReason, scene: Scene, now: datetime) -> dict[str, Any]:
    return {"reason": reason.value, "startedAt": timestamp(now), "deadlineSeconds": scene.deadline_seconds}


def _drain_of(instance: InstanceSeen) -> Mapping[str, Any] | None:
    drain: Mapping[str, Any] | None = instance.stored["spec"].get("drain")
    return drain


def _started(drain: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(drain["startedAt"]))


def _deadline(drain: Mapping[str, Any]) -> datetime:
    return _started(drain) + timedelta(seconds=int(drain["deadlineSeconds"]))


def _cost(drain: Mapping[str, Any]) -> str:
    return str(max(_LOWEST_COST, int(_started(drain).timestamp()) - _COST_ORIGIN))


def _our_cost(pod: Pod) -> bool:
    try:
        return _LOWEST_COST <= int(pod.deletion_cost or 0) < _OUR_COSTS_BELOW
    except ValueError:
        return False
