"""A managed pool in virtual time: the decisions of the pool loop, carried out on the model of Kubernetes in `deployment_model`.

Routing and allocation are here what the pool loop sees of them: a weight that is full after the warm-up, and the word Drained.
Every write is guarded by the state that was looked at, as in the executor, so a look at an older state does a part of its plan at
most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from deployment_model import FOREVER, Cluster, ModelPod, Spec, Taken
from loop_objects import at, condition_item
from pod_objects import deployment, managed_pool, pod_instance, raw_pod

from controllers.parsed import ParsedObjects
from controllers.pool.actions import (
    Action,
    ApplyDeployment,
    ApplyInstance,
    DeleteInstance,
    MarkPod,
    OpenGate,
    ScaleDeployment,
)
from controllers.pool.observe import InstanceSeen, Observation, read_instance
from controllers.pool.pod_decide import decide_pods, workload_of
from controllers.pool.pod_world import Applied, PodWorld, outcome_of
from controllers.pool.pods import Pod
from controllers.pool.workload import AgentImage
from controllers.pool.workload_execute import WorkloadMemory
from controllers.runtime.conditions import find_condition
from controllers.runtime.projection import project_pod
from controllers.runtime.resources import MODEL_VERSION_LABEL, Key
from crds import GRServingPool, RoutingPolicySpec

DEADLINE = 60
WARM_AFTER = 20
KEY = Key("team", "pool")
AGENT = AgentImage(reference="agent:1")
POLICY = RoutingPolicySpec.model_validate({"drain": {"deadlineSeconds": DEADLINE}})


class StaleError(Exception):
    """The API server refuses a write: the object is not any more what was looked at."""


@dataclass
class Wanted:
    """spec of the pool, as far as it changes."""

    replicas: int = 3
    version: str = "1"
    max_surge: int = 1
    max_unavailable: int = 0
    paused: bool = False


@dataclass
class Instance:
    """A GRInstance; `weight` is that of its row in the table, 0 without one."""

    name: str
    version: str
    drain: dict[str, Any] | None = None
    drained: int | None = None
    weight: int = 0
    routed: bool = False


@dataclass(frozen=True)
class View:
    """What a look finds: objects as they are stored, and by what each is guarded."""

    pods: tuple[Pod, ...]
    instances: tuple[InstanceSeen, ...]
    weights: dict[str, int]
    deployment: dict[str, Any] | None
    guards: dict[str, Any]


@dataclass
class Managed:
    """The pool, its cluster and what happened.

    `busy` tells of whom requests do not end before the deadline, `skew` by how many seconds the leader's clock is ahead, `frozen`
    whether the watch of Deployments brings nothing, and `cut_off` lists the ready pods that a ReplicaSet took before their drain
    was over.
    """

    wanted: Wanted = field(default_factory=Wanted)
    cluster: Cluster | None = None
    instances: dict[str, Instance] = field(default_factory=dict)
    busy: Callable[[str], bool] = lambda name: False
    away: bool = False
    memory: WorkloadMemory = field(default_factory=WorkloadMemory)
    seen: View | None = None
    body: dict[str, Any] | None = None
    outcome: Applied | None = None
    next_look: int | None = None
    now: int = 0
    looks: int = 0
    skew: int = 0
    frozen: bool = False
    cut_off: list[Taken] = field(default_factory=list)

    # -- time ----------------------------------------------------------------------------------------------------------------

    def wait(self, seconds: int, order: Sequence[str]) -> None:
        """Everybody acts, in this order, until nothing changes; then time goes on to when something does."""
        end = self.now + seconds
        while True:
            for _ in range(300):
                if not [name for name in order if self.act(name)]:
                    break
            else:
                raise AssertionError("it never stops at one moment")
            upcoming = min((time for time in self._times() if time > self.now), default=FOREVER)
            if upcoming > end:
                break
            self._set_time(upcoming)
        if seconds < FOREVER:
            self._set_time(end)

    def act(self, name: str) -> bool:
        """One step of one of them; whether anything changed."""
        if name == "look":
            return not self.away and self.look()
        if name in ("route", "agents"):
            return not self.away and bool(self._route() if name == "route" else self._agents())
        if self.cluster is None:
            return False
        if name == "sets":
            return self._replica_sets(self.cluster)
        return self.cluster.sync_deployment() if name == "deployment" else self.cluster.sync_pods()

    def _replica_sets(self, cluster: Cluster) -> bool:
        """Let them act, and note whom they took from under its requests."""
        known = len(cluster.taken)
        changed = cluster.sync_replica_sets()
        self.cut_off += [each for each in cluster.taken[known:] if each.ready and not self._drain_is_over(each.pod.name)]
        return changed

    def _drain_is_over(self, name: str) -> bool:
        each = self.instances.get(name)
        if each is None or each.drain is None:
            return each is None
        late = at(self.now + self.skew) >= datetime.fromisoformat(each.drain["startedAt"]) + timedelta(seconds=DEADLINE)
        return late or each.drained is not None or not each.weight

    def _set_time(self, now: int) -> None:
        self.now = now
        if self.cluster is not None:
            self.cluster.now = now

    def _times(self) -> Iterator[int]:
        if self.cluster is not None:
            yield from self.cluster.next_times()
        if self.away:
            return
        if self.next_look is not None:
            yield self.next_look
        for each in self.instances.values():
            found = self._pod(each.name)
            if found is not None and 0 < each.weight < 100 and each.drain is None:
                yield found.running_at + WARM_AFTER

    # -- the other loops -----------------------------------------------------------------------------------------------------

    def _route(self) -> bool:
        """The routing loop: who drains owns nothing and keeps its row; when nobody is left, the last table stays."""
        if self.wanted.paused:
            return False
        before = [(each.weight, each.routed) for each in self.instances.values()]
        serving = {
            each.name: found
            for each in self.instances.values()
            if each.drain is None and (found := self._pod(each.name)) is not None and found.running(self.now)
        }
        for each in self.instances.values() if serving else ():
            each.routed = each.name in serving
            if each.routed and each.weight < 100:
                each.weight = 100 if self.now >= serving[each.name].running_at + WARM_AFTER else 50
        return before != [(each.weight, each.routed) for each in self.instances.values()]

    def _agents(self) -> bool:
        """The allocation loop: Drained once nobody is sent there any more, unless requests go on."""
        drained = [
            each
            for each in self.instances.values()
            if each.drain and each.drained is None and not each.routed and not self.busy(each.name)
        ]
        for each in drained:
            each.drained = self.now + self.skew
        return bool(drained)

    def _pod(self, name: str) -> ModelPod | None:
        return self.cluster.pods.get(name) if self.cluster is not None else None

    # -- the pool loop -------------------------------------------------------------------------------------------------------

    def look(self, *, stale: bool = False, only: int | None = None) -> bool:
        """Observe, decide, execute; `only`: the process dies after so many actions."""
        view = self.seen if stale and self.seen is not None else self.view()
        self.seen = self.view()
        self.looks += 1
        seen, serving = self.observation(view), len(self._in_service())
        assert seen.world is not None
        plan = decide_pods(seen, seen.world, workload_of(seen, seen.world), at(self.now + self.skew))
        self.next_look = None if plan.next_look is None else self.now + max(1, math.ceil(plan.next_look))
        changed = False
        try:
            for action in (*plan.instances, *plan.workload)[:only]:
                changed = self._carry_out(action, view) or changed
        except StaleError:
            self.next_look = self.now + 1
        if not stale and only is None and self.wanted.replicas:
            assert len(self._in_service()) >= min(serving, self.wanted.replicas), "more leave than have to"
        return changed

    def _in_service(self) -> list[str]:
        return [each.name for each in self._pods() if each.ready(self.now) and self._stays(each)]

    def _stays(self, each: ModelPod) -> bool:
        found = self.instances.get(each.name)
        return not each.deleted and (found is None or found.drain is None)

    def view(self) -> View:
        """What stands now."""
        pods = tuple(_stored_pod(*self._state_of(each)) for each in self._pods())
        instances = tuple(
            _stored_instance(each.name, each.version, None if each.drain is None else tuple(each.drain.values()), each.drained)
            for each in self.instances.values()
        )
        guards: dict[str, Any] = {each.name: self._state_of(each) for each in self._pods()}
        guards |= {f"instance {each.name}": str(each.drain) for each in self.instances.values()}
        stored = self.seen.deployment if self.frozen and self.seen is not None else self._deployment()
        guards["deployment"] = None if stored is None else (stored["metadata"]["generation"], stored["status"])
        weights = {f"uid-{each.name}": each.weight for each in self.instances.values() if each.weight}
        return View(pods, instances, weights, stored, guards)

    def _pods(self) -> list[ModelPod]:
        return [] if self.cluster is None else sorted(self.cluster.pods.values(), key=lambda each: each.name)

    def _state_of(self, each: ModelPod) -> tuple[Any, ...]:
        address, running = each.has_address(self.now), each.running(self.now)
        return each.name, each.version, each.created, address, running, each.gate, each.cost, each.deleted

    def _deployment(self) -> dict[str, Any] | None:
        if self.cluster is None:
            return None
        assert self.body is not None
        spec, body = self.cluster.spec, self.body
        stored = deployment()
        stored["status"] = dict(self.cluster.status)
        stored["metadata"]["generation"] = spec.generation
        stored["spec"] = {**body["spec"], "replicas": spec.replicas}
        return stored

    def observation(self, view: View) -> Observation:
        wanted = self.wanted
        pool, stored = _stored_pool(
            wanted.replicas, wanted.version, wanted.max_surge, wanted.max_unavailable, paused=wanted.paused
        )
        world = PodWorld(
            pods=view.pods,
            deployment=view.deployment,
            weights=view.weights,
            policy=POLICY,
            agent=AGENT,
            applied=self.outcome,
            quiet_seconds=self.memory.quiet_seconds(KEY, view.deployment, now_s=self.now),
        )
        return Observation(pool=pool, stored=stored, instances=view.instances, strangers={}, world=world)

    def _carry_out(self, action: Action, view: View) -> bool:
        if isinstance(action, ApplyInstance):
            return self._apply_instance(action, view)
        if isinstance(action, DeleteInstance):
            return self.instances.pop(action.name, None) is not None
        if isinstance(action, OpenGate | MarkPod):
            found = self._pod(action.pod["metadata"]["name"])
            if found is None or self._state_of(found) != view.guards[found.name]:
                raise StaleError
            if isinstance(action, OpenGate):
                found.gate = True
            else:
                found.cost = action.deletion_cost
            return True
        if isinstance(action, ApplyDeployment | ScaleDeployment):
            return self._write_deployment(action, view)
        return False

    def _apply_instance(self, action: ApplyInstance, view: View) -> bool:
        current = self.instances.get(action.name)
        known = None if current is None else str(current.drain)
        if (action.current is None) != (current is None) or known != view.guards.get(f"instance {action.name}"):
            raise StaleError
        if current is None:
            current = self.instances[action.name] = Instance(action.name, str(action.source["modelVersion"]))
        current.drain, current.drained = None if action.drain is None else dict(action.drain), None
        return True

    def _write_deployment(self, action: ApplyDeployment | ScaleDeployment, view: View) -> bool:
        now = self._deployment()
        if view.guards["deployment"] != (None if now is None else (now["metadata"]["generation"], now["status"])):
            raise StaleError
        if isinstance(action, ScaleDeployment):
            assert self.cluster is not None
            self.cluster.spec.replicas, self.cluster.spec.generation = action.replicas, self.cluster.spec.generation + 1
        else:
            self._apply(action)
        now = self._deployment()
        assert now is not None
        view.guards["deployment"] = (now["metadata"]["generation"], now["status"])  # as this plan has left it
        return True

    def _apply(self, action: ApplyDeployment) -> None:
        spec = action.body["spec"]
        rolling, version = spec["strategy"]["rollingUpdate"], spec["template"]["metadata"]["labels"][MODEL_VERSION_LABEL]
        generation = 1 if self.cluster is None else self.cluster.spec.generation + 1
        restarts = 0 if self.cluster is None else self.cluster.spec.restarts  # of others' fields nothing is taken away
        made = Spec(action.replicas, version, rolling["maxSurge"], rolling["maxUnavailable"], generation, restarts)
        if self.cluster is None:
            self.cluster = Cluster(made, now=self.now)
        self.cluster.spec = made
        self.body = dict(action.body)
        stored = self._deployment()
        assert stored is not None
        self.outcome = Applied(body=action.digest, outcome=outcome_of(stored))


_PARSED = ParsedObjects()
_PLAIN = managed_pool()


@lru_cache(maxsize=20_000)
def _stored_pod(
    name: str, version: str, created: int, address: bool, running: bool, gate: bool, cost: str | None, deleted: bool
) -> Pod:
    raw = raw_pod(
        name,
        version=version,
        created=at(created),
        address="10.0.0.1" if address else None,
        ready=running,
        warm=gate,
        cost=cost,
        terminating=deleted,
    )
    up = find_condition(raw["status"]["conditions"], "ContainersReady")
    assert up is not None
    up["status"] = str(running)
    return Pod(project_pod(raw))


@lru_cache(maxsize=20_000)
def _stored_instance(name: str, version: str, drain: tuple[Any, ...] | None, drained: int | None) -> InstanceSeen:
    named = None if drain is None else dict(zip(("reason", "startedAt", "deadlineSeconds"), drain, strict=True))
    said = [] if drained is None else [condition_item("Drained", "True", "NothingInFlight", since=at(drained))]
    return read_instance(pod_instance(name, _PLAIN, drain=named, version=version, conditions=said), _PARSED)


@lru_cache(maxsize=1000)
def _stored_pool(
    replicas: int, version: str, max_surge: int, max_unavailable: int, *, paused: bool
) -> tuple[GRServingPool, dict[str, Any]]:
    stored = managed_pool(replicas, version=version, paused=paused)
    stored["spec"]["instances"]["managed"]["rollout"] = {"maxSurge": max_surge, "maxUnavailable": max_unavailable}
    return GRServingPool.parse(stored), stored
