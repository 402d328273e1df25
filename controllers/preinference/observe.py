"""What the pre-inference loop looks at: one pool, its PreInferencePolicy, its instances, and what was measured of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from msgspec import structs
from pydantic import ValidationError

from controllers.lookup import Lookup, pre_inference_policy_of
from controllers.metrics_source.port import InstanceName, MetricsSource, PoolMetrics, PoolName, SourceState, lacks, summarise
from controllers.parsed import ParsedObjects
from controllers.preinference.steady import Steady
from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.errors import Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, Key, Object, key_of, uid_of
from crds import GRInstance, GRServingPool, PreInferencePolicySpec, explain_invalid
from policies.preinference.capacity import CapacityHistory

NEW_SECONDS = 60.0
"""So long after it became ready an instance is new: agents are asked each ten seconds, targets scraped each fifteen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSeen:
    """An instance as it stands.

    Attributes
    ----------
    ready
        Engine and agent answer.
    new
        It became ready a moment ago: that its rates are missing says nothing yet.
    leaving
        It drains or is being deleted: its load is about to be the others'.
    """

    stored: Object
    model: GRInstance
    ready: bool
    leaving: bool
    new: bool = False

    @property
    def name(self) -> str:
        """Its name, which gives its place among the others."""
        return self.model.metadata.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the loop remembers of a pool from look to look; a new leader starts without.

    Attributes
    ----------
    since_s
        Monotonic second of the first look.
    history
        What the windows look back on; None before the first decision and after a hold.
    slots, prefix_bytes
        What was decided last; None before a decision was made.
    scaling
        Whether spec.replicas was ours at the last decision.
    asked_s
        Monotonic second at which a prefix was last asked for, or it was not known whether one was.
    """

    since_s: float
    asked_s: float
    history: CapacityHistory | None = None
    slots: int | None = None
    prefix_bytes: int | None = None
    scaling: bool = False
    steady: Steady = field(default_factory=Steady)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world of one pool's capacity.

    Attributes
    ----------
    instances
        In the order of their names, those that leave included.
    metrics
        What was measured of those that stay.
    now_s
        Monotonic second of the look.
    write_ages_s
        Seconds since the last writes of the loop to the pool's status, newest first.
    """

    pool: GRServingPool
    stored: Object
    policy: Lookup[PreInferencePolicySpec]
    instances: tuple[InstanceSeen, ...]
    metrics: PoolMetrics
    memory: Memory
    now_s: float
    write_ages_s: tuple[float, ...] = ()

    @property
    def staying(self) -> tuple[InstanceSeen, ...]:
        """Instances that do not leave."""
        return tuple(each for each in self.instances if not each.leaving)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeen:
    """A pool and its instances before anything was measured."""

    pool: GRServingPool
    stored: Object
    policy: Lookup[PreInferencePolicySpec]
    instances: tuple[InstanceSeen, ...]

    @property
    def uid(self) -> str:
        """Its uid; another one under the name is another pool."""
        return uid_of(self.stored)


def see(ctx: Context, key: Key, *, parsed: ParsedObjects) -> PoolSeen | None:
    """Read the pool from the store; None when it is gone or going.

    Raises
    ------
    Terminal
        When this operator cannot read the pool or an instance of it.
    """
    stored = ctx.store.get(POOLS, key)
    if stored is None or stored["metadata"].get("deletionTimestamp"):
        return None
    try:
        pool = parsed.read(GRServingPool, stored)
        instances = tuple(_instance(each, parsed, ctx.clock.now()) for each in ctx.store.owned_by(INSTANCES, stored))
    except ValidationError as error:
        raise Terminal("InvalidSpec", f"pool {key} or an instance of it cannot be read: {explain_invalid(error)}") from error
    return PoolSeen(pool=pool, stored=stored, policy=pre_inference_policy_of(ctx, pool, parsed=parsed), instances=instances)


async def measure(seen: PoolSeen, source: MetricsSource) -> PoolMetrics:
    """Ask the source for the instances that stay; a pool without any asks nobody.

    A rate needs two samples, so an instance that has just become ready and lacks one counts as not ready yet: it neither puts the
    pool in doubt nor is a reason to shrink.
    """
    names = [
        InstanceName(name=each.name, uid=each.model.metadata.uid, ready=each.ready) for each in seen.instances if not each.leaving
    ]
    where = key_of(seen.stored)
    if not names:
        return summarise([], window_s=0.0)
    found = await source.read(PoolName(namespace=where.namespace, name=where.name), names)
    new = {each.name for each in seen.instances if each.new}
    if not new or found.doubt is None or found.state is SourceState.UNREACHABLE:
        return found
    loads = [structs.replace(load, ready=load.ready and not (load.name in new and lacks(load))) for load in found.instances]
    return summarise(loads, window_s=found.window_s)


def _instance(stored: Object, parsed: ParsedObjects, now: datetime) -> InstanceSeen:
    model = parsed.read(GRInstance, stored)
    ready = find_condition(conditions_of(stored), "Ready") or {}
    return InstanceSeen(
        stored=stored,
        model=model,
        ready=ready.get("status") == "True",
        new=abs((now - _moment(ready.get("lastTransitionTime"), now)).total_seconds()) < NEW_SECONDS,
        leaving=model.spec.drain is not None or bool(stored["metadata"].get("deletionTimestamp")),
    )


def _moment(text: str | None, now: datetime) -> datetime:
    """A stamp of the API; one that cannot be read counts as now."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return now
