"""Deployment, ReplicaSets and kubelet in virtual time: what Kubernetes does with the pods of a managed pool, step by step.

The rules are those of the Deployment and ReplicaSet controllers of Kubernetes 1.34 for rolling updates: proportional scaling,
the annotations by which a scaling event is told, a status that lags behind by a step, and the order in which pods are taken. The
rank by shared nodes and restarts is left out, since every pod here has a node to itself. One step of one controller is one call,
so that a test can let anybody act between any two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

FOREVER = 10**9


@dataclass
class ModelPod:
    """A pod, with the times in seconds at which it gets its address, its containers get ready, and it is gone."""

    name: str
    template: str
    created: int
    address_at: int
    running_at: int
    gate: bool = False
    cost: str | None = None
    ready_since: int = FOREVER
    deleted: bool = False
    gone_at: int = FOREVER

    @property
    def version(self) -> str:
        """The model version."""
        return self.template.partition(".")[0]

    def has_address(self, now: int) -> bool:
        return now >= self.address_at

    def running(self, now: int) -> bool:
        return now >= self.running_at

    def ready(self, now: int) -> bool:
        return self.gate and self.running(now)


@dataclass
class ReplicaSet:
    """`desired` and `most` are the annotations desired-replicas and max-replicas; `actual` and `available` its status."""

    template: str
    born: int
    replicas: int
    desired: int
    most: int
    actual: int = 0
    available: int = 0

    def scale(self, replicas: int, spec: Spec) -> bool:
        changed = (self.replicas, self.desired, self.most) != (replicas, spec.replicas, spec.replicas + spec.max_surge)
        self.replicas, self.desired, self.most = replicas, spec.replicas, spec.replicas + spec.max_surge
        return changed


@dataclass
class Spec:
    """What a Deployment asks for."""

    replicas: int
    version: str
    max_surge: int
    max_unavailable: int
    generation: int = 1
    restarts: int = 0

    @property
    def template(self) -> str:
        """What tells one pod template from another."""
        return f"{self.version}.{self.restarts}"

    @property
    def least(self) -> int:
        """Pods that must be available."""
        return self.replicas - min(self.max_unavailable, self.replicas)


@dataclass(frozen=True)
class Taken:
    """A pod that a ReplicaSet deleted, and what was true then."""

    pod: ModelPod
    at: int
    ready: bool
    rolling: bool
    wanted: str


@dataclass
class Cluster:
    """One Deployment and its pods. `slow` is by how many seconds later than usual the pods of a version start."""

    spec: Spec
    now: int = 0
    sets: dict[str, ReplicaSet] = field(default_factory=dict)
    pods: dict[str, ModelPod] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)
    slow: int = 0
    ending: int = 3
    made: int = 0

    # -- the Deployment controller -----------------------------------------------------------------------------------------

    def sync_deployment(self) -> bool:
        """One sync; whether anything changed."""
        scaling = any(each.desired != self.spec.replicas for each in self._active())
        changed = self._scale() if scaling else self._roll()
        return self._write_status() or changed

    def _active(self) -> list[ReplicaSet]:
        return [each for each in self._by_age() if each.replicas > 0]

    def _by_age(self) -> list[ReplicaSet]:
        return sorted(self.sets.values(), key=lambda each: each.born)

    def _total(self) -> int:
        return sum(each.replicas for each in self.sets.values())

    def _scale(self) -> bool:
        """A scaling event: proportionally, over all active ReplicaSets."""
        spec, active, new = self.spec, self._active(), self.sets.get(self.spec.template)
        if len(active) <= 1:
            newest = active[0] if active else new or self._by_age()[-1]
            # The annotation stays as it is where the size is right already: a known fault of the controller, which then takes
            # every later sync for a scaling event too.
            return newest.replicas != spec.replicas and newest.scale(spec.replicas, spec)
        if new is not None and new.replicas == new.desired == new.available == spec.replicas:
            return sum(each.scale(0, spec) for each in active if each is not new) > 0
        to_add = (spec.replicas + spec.max_surge if spec.replicas else 0) - self._total()
        sign = -1 if to_add > 0 else 1
        active.sort(key=lambda each: (-each.replicas, sign * each.born))
        sizes, added = [], 0
        for each in active:
            part = self._part(each, to_add, added)
            sizes.append(each.replicas + part)
            added += part
        sizes[0] = max(0, sizes[0] + to_add - added)
        return sum(each.scale(size, spec) for each, size in zip(active, sizes, strict=True)) > 0

    def _part(self, each: ReplicaSet, to_add: int, added: int) -> int:
        if to_add == added:
            return 0
        if self.spec.replicas == 0:
            fraction = -each.replicas
        else:
            grown = each.replicas * (self.spec.replicas + self.spec.max_surge) / (each.most or self.status["replicas"])
            fraction = int(grown + 0.5) - each.replicas
        return min(fraction, to_add - added) if to_add > 0 else max(fraction, to_add - added)

    def _roll(self) -> bool:
        spec, new = self.spec, self.sets.get(self.spec.template)
        if new is None:
            room = max(0, min(spec.replicas + spec.max_surge - self._total(), spec.replicas))
            self.made += 1
            self.sets[spec.template] = ReplicaSet(spec.template, self.made, room, spec.replicas, spec.replicas + spec.max_surge)
            return True
        if new.replicas > spec.replicas:
            return new.scale(spec.replicas, spec)
        room = min(spec.replicas + spec.max_surge - self._total(), spec.replicas - new.replicas)
        if room > 0:
            return new.scale(new.replicas + room, spec)
        return self._shrink_old(new)

    def _shrink_old(self, new: ReplicaSet) -> bool:
        spec, old = self.spec, [each for each in self._active() if each.template != self.spec.template]
        room = self._total() - spec.least - (new.replicas - new.available)
        if not old or room <= 0:
            return False
        changed = False
        for each in old:  # those that are not available first
            less = min(room, max(0, each.replicas - each.available))
            if less:
                room, changed = room - less, each.scale(each.replicas - less, spec)
        spare = sum(each.available for each in self.sets.values()) - spec.least
        for each in old:
            less = min(each.replicas, spare)
            if less > 0:
                spare, changed = spare - less, each.scale(each.replicas - less, spec)
        return changed

    def _write_status(self) -> bool:
        new = self.sets.get(self.spec.template)
        available = sum(each.available for each in self.sets.values())
        status = {
            "observedGeneration": self.spec.generation,
            "replicas": sum(each.actual for each in self.sets.values()),
            "updatedReplicas": new.actual if new else 0,
            "availableReplicas": available,
            "unavailableReplicas": max(0, self._total() - available),
        }
        changed = status != self.status
        self.status = status
        return changed

    # -- the ReplicaSet controller -----------------------------------------------------------------------------------------

    def sync_replica_sets(self) -> bool:
        """One sync of each; whether anything changed."""
        return sum(self._sync(each) for each in self._by_age()) > 0

    def _sync(self, owner: ReplicaSet) -> bool:
        pods = [pod for pod in self.pods.values() if pod.template == owner.template and not pod.deleted]
        for _ in range(owner.replicas - len(pods)):
            self._create(owner.template)
        surplus = sorted(pods, key=self._rank)[: max(0, len(pods) - owner.replicas)]
        for pod in surplus:
            rolling = len({each.template for each in self.pods.values() if not each.deleted}) > 1
            self.taken.append(Taken(pod, self.now, pod.ready(self.now), rolling, self.spec.template))
            self.delete(pod)
        status = len(pods), sum(pod.ready(self.now) for pod in pods)  # of before, as the controller counts
        changed = bool(surplus) or owner.replicas > len(pods) or status != (owner.actual, owner.available)
        owner.actual, owner.available = status
        return changed

    def _rank(self, pod: ModelPod) -> tuple[bool, bool, int, int, int, str]:
        running, ready = pod.has_address(self.now), pod.ready(self.now)
        return running, ready, int(pod.cost or 0), -pod.ready_since if ready else 0, -pod.created, pod.name

    def _create(self, template: str) -> None:
        self.made += 1
        address = self.now + 1 + self.slow // 2
        name = f"pod-{template}-{self.made:03d}"
        self.pods[name] = ModelPod(name, template, self.now, address, address + 1 + self.slow // 2)

    def crash(self, pod: ModelPod) -> None:
        """A container ends and is started again."""
        pod.running_at = max(pod.running_at, self.now + 10)

    def delete(self, pod: ModelPod) -> None:
        """Somebody deletes a pod; it is gone after a while."""
        if not pod.deleted:
            pod.deleted, pod.gone_at = True, self.now + self.ending

    # -- the kubelet -------------------------------------------------------------------------------------------------------

    def sync_pods(self) -> bool:
        """What has come about by now; whether anything changed."""
        gone = [name for name, pod in self.pods.items() if pod.gone_at <= self.now]
        for name in gone:
            del self.pods[name]
        changed = bool(gone)
        for pod in self.pods.values():
            since = FOREVER if not pod.ready(self.now) else min(pod.ready_since, self.now)
            if since != pod.ready_since:
                pod.ready_since, changed = since, True
        return changed

    def next_times(self) -> Iterable[int]:
        """When something comes about by itself."""
        for pod in self.pods.values():
            yield from (time for time in (pod.address_at, pod.running_at, pod.gone_at) if self.now < time < FOREVER)
