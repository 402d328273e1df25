"""A pool, its instances and what was measured of them, for the tests of the pre-inference loop."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from loop_objects import at, instance_object, pool_object

from controllers.lookup import Found, Lookup
from controllers.metrics_source.port import InstanceName, PoolMetrics, PoolName, summarise
from controllers.parsed import ParsedObjects
from controllers.preinference.controller import PreInferenceLoop
from controllers.preinference.decide import Plan, decide
from controllers.preinference.observe import InstanceSeen, Memory, Observation
from controllers.runtime.clock import FakeClock
from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.controller import Result
from controllers.runtime.errors import Conflict
from controllers.runtime.loop import Context
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import INSTANCES, POOLS, PRE_INFERENCE_POLICIES, Key, Object, ResourceType, key_of
from controllers.runtime.settings import Settings
from controllers.runtime.store import Store
from crds import GRInstance, GRServingPool, PreInferencePolicySpec
from crds.instance import PolicySource
from policies.measurement import Fresh
from policies.preinference.observed import InstanceLoad, Rates

GIB, MIB = 1 << 30, 1 << 20
MODEL = {"name": "m", "version": "1", "kvBytesPerToken": 16384, "embRowBytes": 1, "maxHistoryTokens": 8192}  # prefixes of 128 MiB
BUDGET = 12 * GIB  # 20 percent of 60 GiB
STEP = BUDGET // 8
READY = {"type": "Ready", "status": "True", "reason": "InstanceReady", "lastTransitionTime": "2026-05-01T12:00:00Z"}


def pool(mode: str = "PreInference", *, replicas: int = 2, **spec: Any) -> dict[str, Any]:
    """A managed pool; mode External stands for a pool of external entries."""
    if mode == "External":
        return pool_object(entries=tuple("ab"[:replicas]), model=MODEL, **spec)
    scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
    return pool_object(instances={"managed": {"template": {}}}, model=MODEL, replicas=replicas, **{"scaling": scaling, **spec})


def instance(name: str, of: dict[str, Any], *, ready: bool = True, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A stored instance of the pool."""
    made = instance_object(f"pool-{name}", of, conditions=[READY] if ready else [])
    made["spec"] |= spec or {}
    return made


def load(name: str, *, offered: float = 0.0, refused: float = 0.0, ready: bool = True, **changes: Any) -> InstanceLoad:
    """An instance that serves 100 requests a second at 20 ms; each busy slot has a prefix of 64 MiB behind it."""
    accepted = 20.0 * offered
    return msgspec.structs.replace(
        InstanceLoad(
            name=f"pool-{name}",
            ready=ready,
            rates=Rates(
                requests=Fresh(value=100.0),
                accepted=Fresh(value=accepted),
                rejected=Fresh(value=refused),
                used=Fresh(value=accepted),
                late=Fresh(value=0.0),
                wasted=Fresh(value=0.0),
            ),
            busy_slots=Fresh(value=offered),
            live_prefix_bytes=Fresh(value=offered * 64.0 * MIB),
            queue=Fresh(value=0.0),
            p99_ms=Fresh(value=38.0),
        ),
        **changes,
    )


def metrics(*loads: InstanceLoad) -> PoolMetrics:
    """What a source that can be reached says of these instances."""
    return summarise(loads, window_s=60.0)


def policy(**spec: Any) -> Found[PreInferencePolicySpec]:
    """A policy of the pool's namespace."""
    return Found(
        spec=PreInferencePolicySpec.model_validate(spec), name="mine", namespace="team", generation=3, source=PolicySource.POOL
    )


def observation(
    stored: dict[str, Any],
    instances: Sequence[dict[str, Any]],
    measured: PoolMetrics,
    *,
    found: Lookup[PreInferencePolicySpec] | None = None,
    memory: Memory | None = None,
    now_s: float = 1000.0,
    write_ages_s: tuple[float, ...] = (),
) -> Observation:
    """What the loop sees; without a memory one that is old enough to take missing measurements seriously."""
    return Observation(
        pool=GRServingPool.parse(stored),
        stored=stored,
        policy=found or policy(),
        instances=tuple(
            InstanceSeen(
                stored=each,
                model=GRInstance.parse(each),
                ready=find_condition(conditions_of(each), "Ready") is not None,
                leaving="drain" in each["spec"],
            )
            for each in instances
        ),
        metrics=measured,
        memory=memory or Memory(since_s=0.0, asked_s=now_s),
        now_s=now_s,
        write_ages_s=write_ages_s,
    )


def planned(seen: Observation) -> Plan:
    """The plan for what was seen, at a wall time that goes with it."""
    return decide(seen, at(seen.now_s))


def words(plan: Plan) -> dict[str, tuple[str, str]]:
    """Status and reason by condition type."""
    assert plan.status is not None
    return {item["type"]: (item["status"], item["reason"]) for item in plan.status["conditions"]}


def message(plan: Plan, type_: str = "PreInferenceScaled") -> str:
    """The message of a condition."""
    assert plan.status is not None
    return str(next(item["message"] for item in plan.status["conditions"] if item["type"] == type_))


def capacities(plan: Plan) -> dict[str, tuple[int, int]]:
    """Slots and bytes to write, by the short name of the instance."""
    return {key_of(w.current).name.removeprefix("pool-"): (w.slots, w.prefix_bytes) for w in plan.capacities}


class FakeSource:
    """Answers what the test says at the moment."""

    def __init__(self, loads: Sequence[InstanceLoad] = ()) -> None:
        self.loads = {each.name: each for each in loads}
        self.broken: PoolMetrics | None = None
        self.reads = 0
        self.forgotten: list[PoolName] = []

    def set(self, *loads: InstanceLoad) -> None:
        self.loads = {each.name: each for each in loads}

    async def read(self, pool: PoolName, instances: Sequence[InstanceName]) -> PoolMetrics:
        self.reads += 1
        if self.broken is not None:
            return self.broken
        found = [self.loads.get(each.name, InstanceLoad(name=each.name, ready=each.ready)) for each in instances]
        return summarise(
            [msgspec.structs.replace(each, ready=name.ready) for each, name in zip(found, instances, strict=True)], window_s=60.0
        )

    def forget(self, pool: PoolName) -> None:
        self.forgotten.append(pool)

    async def aclose(self) -> None:
        return


class FakeKube:
    """Applies into the store, counts generations and versions as the API server does, and refuses what was read too early."""

    def __init__(self, store: Store) -> None:
        self.store, self.version = store, 1000
        self.applied: list[tuple[str, Any]] = []
        self.scaled: list[int] = []
        self.refused: list[str] = []
        self.moved: set[str] = set()  # names whose next write meets a newer object

    async def apply(self, resource: ResourceType, desired: Object, *, field_manager: str, **guards: Any) -> Object:
        assert field_manager == "grfleet-preinference"
        assert guards["uid"]
        assert guards["resource_version"]
        current = self._current(resource, desired, guards["resource_version"])
        self.applied.append((key_of(desired).name, desired["spec"]["preInfer"]))
        return self._answer(current, spec={**current["spec"], **desired["spec"]})

    async def apply_status(self, resource: ResourceType, desired: Object, *, field_manager: str, **guards: Any) -> Object:
        assert field_manager == "grfleet-preinference"
        current = self._current(resource, desired, guards["resource_version"])
        self.applied.append((key_of(desired).name, desired["status"]))
        others = [item for item in conditions_of(current) if item["type"] not in ("MetricsFresh", "PreInferenceScaled")]
        merged = {**(current.get("status") or {}), **desired["status"]}
        merged["conditions"] = [*others, *desired["status"]["conditions"]]
        if "preInference" not in desired["status"]:
            merged.pop("preInference", None)
        return self._answer(current, status=merged)

    async def apply_scale(self, resource: ResourceType, key: Key, replicas: int, *, field_manager: str, **guards: Any) -> Object:
        assert field_manager == "grfleet-preinference"
        current = self._current(
            resource, {"metadata": {"name": key.name, "namespace": key.namespace}}, guards["resource_version"]
        )
        self.scaled.append(replicas)
        self.store.upsert(resource, self._answer(current, spec={**current["spec"], "replicas": replicas}))
        return {"spec": {"replicas": replicas}}

    def edit(self, resource: ResourceType, key: Key, **spec: Any) -> None:
        """What somebody else does to an object."""
        current = self.store.get(resource, key)
        assert current is not None
        self.store.upsert(resource, self._answer(current, spec={**current["spec"], **spec}))

    def report(self, resource: ResourceType, key: Key, **status: Any) -> None:
        """What another loop says of an object."""
        current = self.store.get(resource, key)
        assert current is not None
        self.store.upsert(resource, self._answer(current, status={**(current.get("status") or {}), **status}))

    def _current(self, resource: ResourceType, desired: Object, version: str) -> Object:
        key = key_of(desired)
        current = self.store.get(resource, key)
        assert current is not None
        if key.name in self.moved or current["metadata"]["resourceVersion"] != version:
            self.moved.discard(key.name)
            self.refused.append(key.name)
            raise Conflict("Conflict", f"{key} has moved")
        return current

    def _answer(self, current: Object, **parts: Any) -> dict[str, Any]:
        self.version += 1
        grown = "spec" in parts and parts["spec"] != current["spec"]
        metadata = {**current["metadata"], "resourceVersion": str(self.version)}
        metadata["generation"] = metadata["generation"] + grown
        return {**current, **parts, "metadata": metadata}


class World:
    """The loop over a store, with a clock and a source that the test moves."""

    def __init__(self, stored: dict[str, Any], *instances: dict[str, Any]) -> None:
        self.store = Store((POOLS, INSTANCES, PRE_INFERENCE_POLICIES))
        self.clock, self.source = FakeClock(), FakeSource()
        self.kube, self.metrics = FakeKube(self.store), Metrics()
        self.posted: list[str] = []
        self.key = key_of(stored)
        self.store.upsert(POOLS, stored)
        for each in instances:
            self.store.upsert(INSTANCES, each)
        self.loop = self.new_loop()

    @property
    def ctx(self) -> Context:
        events = SimpleNamespace(emit=lambda regarding, level, reason, note, **rest: self.posted.append(f"{level} {reason}"))
        return cast(
            Context,
            SimpleNamespace(
                store=self.store,
                kube=self.kube,
                clock=self.clock,
                events=events,
                rng=random.Random(7),
                metrics=self.metrics,
                settings=Settings(operator_namespace="grfleet-system"),
            ),
        )

    def new_loop(self) -> PreInferenceLoop:
        """A process that has yet to lead."""
        return PreInferenceLoop(ParsedObjects(), cast(Any, None), source=self.source)

    async def lead(self) -> None:
        """A new leader, without any memory of the one before."""
        self.loop = self.new_loop()
        await self.loop.start(self.ctx)

    async def look(self, *, after: float = 15.0) -> Result | None:
        """One reconcile after so many seconds; a conflict is met as the controller meets it."""
        await self.clock.advance(after)
        try:
            return await self.loop.reconcile(self.key, self.ctx)
        except Conflict:
            return None

    async def looks(self, count: int, *, after: float = 15.0) -> None:
        for _ in range(count):
            await self.look(after=after)

    @property
    def pool(self) -> Object:
        found = self.store.get(POOLS, self.key)
        assert found is not None
        return found

    @property
    def summary(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], (self.pool.get("status") or {}).get("preInference") or {})

    def condition(self, type_: str) -> tuple[str, str]:
        item = find_condition(conditions_of(self.pool), type_) or {}
        return str(item.get("status", "")), str(item.get("reason", ""))

    def message(self, type_: str) -> str:
        return str((find_condition(conditions_of(self.pool), type_) or {}).get("message", ""))

    def capacity(self, name: str) -> dict[str, int] | None:
        found = self.store.get(INSTANCES, Key(self.key.namespace, f"pool-{name}"))
        assert found is not None
        return cast("dict[str, int] | None", found["spec"].get("preInfer"))

    @property
    def writes(self) -> int:
        return len(self.kube.applied) + len(self.kube.scaled)


def world(mode: str = "PreInference", *names: str, replicas: int | None = None, **spec: Any) -> World:
    """A pool of two instances, unless others are named, and the loop that sizes it."""
    names = names or ("a", "b")
    stored = pool(mode, replicas=len(names) if replicas is None else replicas, **spec)
    return World(stored, *(instance(name, stored) for name in names))


def busy(*names: str, offered: float = 2.0, refused: float = 0.0, **changes: Any) -> list[Any]:
    """What instances say of a load: so many slots busy, and so many prefixes a second refused, on each."""
    return [load(name, offered=offered, refused=refused, **changes) for name in names]
