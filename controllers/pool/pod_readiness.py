"""InstancesReady of a pool of pods: what the template, the Deployment, the pods and their instances say together.

What a person has to mend comes first: the template, the API server's refusal, pods that cannot start. Then what goes on by
itself: pods that start, warm up, are replaced or leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controllers.pool.observe import Observation
from controllers.pool.pod_decide import Workload, instances_by_pod
from controllers.pool.pod_world import PodWorld
from controllers.pool.pods import Pod
from controllers.pool.readiness import instance_condition
from controllers.runtime.conditions import Condition, conditions_of, find_condition
from controllers.runtime.resources import AGENT_PORT, SERVING_PORT
from controllers.words import few

KIND = "InstancesReady"


def pods_condition(seen: Observation, world: PodWorld, workload: Workload) -> tuple[Condition, bool]:
    """InstancesReady of a pool of pods, and whether as many instances serve as the pool wants, whatever else goes on."""
    counts = Counts(seen, world)
    return _condition_of(seen, world, workload, counts), counts.wanted > 0 and counts.ready >= counts.wanted


def _condition_of(seen: Observation, world: PodWorld, workload: Workload, counts: Counts) -> Condition:
    if workload.problem is not None and not (workload.problem[0] == "Progressing" and world.pods):
        reason, message = workload.problem
        return Condition(KIND, "False", reason, f"{message}{_still(counts)}")
    if seen.strangers:
        name = min(seen.strangers)
        return Condition(
            KIND,
            "False",
            "NameTaken",
            f"GRInstance {name} belongs to {seen.strangers[name]}; delete it, or rename that pool's entry",
        )
    problem = next(_problems(world), None)
    if problem is not None:
        reason, message = problem
        return Condition(KIND, "False", reason, f"{counts.share()}; {message}")
    return _progress(seen, world, counts)


class Counts:
    """Pods and instances by state."""

    def __init__(self, seen: Observation, world: PodWorld) -> None:
        self.instances = instances_by_pod(seen, world)
        self.live = [pod for pod in world.pods if not pod.terminating]
        leaving = {name for name, each in self.instances.items() if each.stored["spec"].get("drain")}
        self.draining = sorted(leaving | {pod.name for pod in world.pods if pod.terminating})
        self.staying = [pod for pod in self.live if pod.name not in leaving]
        self.conditions = {name: instance_condition(each) for name, each in self.instances.items()}
        self.ready = sum(self.is_ready(pod) for pod in self.staying)
        managed = seen.pool.spec.instances.managed is not None
        self.wanted = seen.pool.spec.replicas if managed else len(self.staying)
        version = seen.pool.spec.model.version
        self.old = [pod.name for pod in self.staying if managed and pod.model_version != version]

    def is_ready(self, pod: Pod) -> bool:
        """Whether engine and agent of the pod answer."""
        condition = self.conditions.get(pod.name)
        return condition is not None and condition.status == "True"

    def share(self) -> str:
        """How many are ready, in words."""
        return f"{min(self.ready, self.wanted)} of {self.wanted} instances are ready"


def _still(counts: Counts) -> str:
    return f"; {counts.share()}, from before" if counts.live else ""


def _problems(world: PodWorld) -> Iterator[tuple[str, str]]:
    """(reason, message) of what a person has to mend."""
    yield from _adoption(world)
    yield from _refused_pods(world.deployment)
    for pod in world.pods:
        if not pod.terminating and (why := pod.failure()) is not None:
            yield "PodsFailing", f"pod {pod.name}: {why}"
    stuck = _condition(world.deployment, "Progressing")
    if stuck.get("status") == "False":
        yield "PodsFailing", f"the rolling update does not get on: {stuck.get('message') or stuck.get('reason')}"


def _adoption(world: PodWorld) -> Iterator[tuple[str, str]]:
    if world.elsewhere or world.shared:
        pairs = sorted({**world.elsewhere, **world.shared}.items())
        named = [f"{pod} ({pool})" for pod, pool in pairs]
        whose = "that pool has them" if world.elsewhere else "this pool has them"
        yield "LabelsOverlap", f"pods that another pool asks for too: {few(named)}; {whose}; make matchLabels narrower"
    for reason, port, remedy in (
        ("SidecarMissing", AGENT_PORT, "add the agent as a sidecar, as docs/pools.md shows"),
        ("PortMissing", SERVING_PORT, "name the engine's container port so"),
    ):
        lacking = [pod.name for pod in world.pods if not pod.terminating and pod.port(port) is None]
        if lacking:
            yield reason, f"no container port is named {port} in: {few(lacking)}; {remedy}"


def _refused_pods(deployment: Mapping[str, object] | None) -> Iterator[tuple[str, str]]:
    """The API server refuses the pods of the Deployment."""
    failure = _condition(deployment, "ReplicaFailure")
    if failure.get("status") == "True":
        message = str(failure.get("message", ""))
        yield ("QuotaExceeded" if "exceeded quota" in message else "PodsFailing"), f"pods are refused: {message}"


def _condition(deployment: Mapping[str, object] | None, type_: str) -> Mapping[str, object]:
    return find_condition(conditions_of(deployment), type_) or {} if deployment is not None else {}


def _progress(seen: Observation, world: PodWorld, counts: Counts) -> Condition:
    managed = seen.pool.spec.instances.managed is not None
    if not counts.wanted and not counts.draining:
        why = "spec.replicas is 0" if managed else "no pod carries instances.adopted.matchLabels"
        return Condition(KIND, "False", "NoneFound", why)
    failing = [f"{pod.name} ({counts.conditions[pod.name].reason})" for pod in counts.staying if _fails(pod, counts)]
    if failing:
        return Condition(KIND, "False", "SomeNotReady", f"{counts.share()}; not ready: {few(failing)}")
    parts = [counts.share()]
    if seen.pool.spec.paused and managed and world.deployment is None:
        parts.append("the Deployment is created when spec.paused is unset")
    if counts.old:
        done = len(counts.staying) - len(counts.old)
        parts.append(f"{done} run model version {seen.pool.spec.model.version}; still to be replaced: {few(counts.old)}")
    starting = [pod.name for pod in counts.staying if not counts.is_ready(pod)]
    if starting:
        parts.append(f"starting: {few(starting)}")
    elif len(counts.staying) < counts.wanted:
        until = " when spec.paused is unset" if seen.pool.spec.paused else ""
        parts.append(f"pods to be created{until}: {counts.wanted - len(counts.staying)}")
    warming = [pod.name for pod in counts.staying if counts.is_ready(pod) and pod.gate_closed]
    if warming:
        parts.append(f"warming up: {few(warming)}")
    if counts.draining:
        parts.append(f"draining: {few(counts.draining)}")
    if len(counts.staying) > counts.wanted:
        parts.append(f"{len(counts.staying) - counts.wanted} more than wanted")
    if len(parts) > 1 or counts.ready < counts.wanted:
        return Condition(KIND, "False", "Progressing", "; ".join(parts))
    return Condition(KIND, "True", "AllReady", counts.share())


def _fails(pod: Pod, counts: Counts) -> bool:
    """Whether the pod is up and its instance is not: a pod that is still starting is given its time."""
    condition = counts.conditions.get(pod.name)
    return pod.running and condition is not None and condition.status == "False"
