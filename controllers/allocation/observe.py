"""What the allocation loop looks at: one instance, its pool, the policy in force, and what its agent says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from contract.agent import AgentStatus
from contract.table import InstanceState
from controllers.allocation.agents import Agents
from controllers.allocation.memory import Memory, Refusal
from controllers.allocation.sightings import Answered, Garbled, Sighting, problem_of
from controllers.lookup import Lookup, hbm_policy_of
from controllers.model_lookup import ModelLookup, model_of
from controllers.parsed import ParsedObjects
from controllers.runtime.errors import Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, ROUTING_TABLES, Key, Object, key_of, uid_of
from controllers.runtime.store import Store
from crds import GRInstance, GRServingPool, HBMPolicySpec, explain_invalid

BY_UID = "uid"


def uid_index(obj: Object) -> Iterable[str]:
    """Indexer that finds an object by its uid."""
    return (uid_of(obj),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world of one instance.

    Attributes
    ----------
    model
        What became of the allocator model that the policy names; None where it names none.
    sighting
        What the agent said last; None while it has not been asked.
    holder
        Name of another live instance with the same agent whose intent that agent holds, or None.
    refusal
        Set while the agent refuses the intent of the present generation.
    model_refusal
        Why the agent refused the bytes of the model that the intent names; None while it did not.
    model_push_age_s
        Seconds since these bytes were handed over last; None if they were not.
    model_wait_s
        Seconds since that was first tried in vain.
    push_age_s
        Seconds since the intent of the present generation was handed over last; None if it was not.
    unanswered
        How often in a row the intent of the present generation was offered without an answer.
    write_ages_s
        Seconds since the last status writes, newest first.
    still_routed
        Whether the routing table sends users to this instance although others would be there; only told while it drains.
    """

    instance: GRInstance
    stored: Object
    pool: GRServingPool
    policy: Lookup[HBMPolicySpec]
    model: ModelLookup = None
    sighting: Sighting | None = None
    holder: str | None = None
    refusal: Refusal | None = None
    model_refusal: str | None = None
    model_push_age_s: float | None = None
    model_wait_s: float = 0.0
    push_age_s: float | None = None
    unanswered: int = 0
    write_ages_s: tuple[float, ...] = ()
    still_routed: bool = False

    @property
    def stored_intent(self) -> Mapping[str, Any] | None:
        """The intent that stands in the instance."""
        intent: Mapping[str, Any] | None = self.stored["spec"].get("intent")
        return intent


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool, the policy it names, its instances, and the ages of the last status writes of this loop, newest first.

    Instances that leave are not among them, unless all do: their end would else look like trouble of the pool.
    """

    pool: GRServingPool
    stored: Object
    policy: Lookup[HBMPolicySpec]
    instances: tuple[tuple[Object, GRInstance], ...]
    write_ages_s: tuple[float, ...] = ()
    model: ModelLookup = None


async def observe(ctx: Context, key: Key, agents: Agents, memory: Memory, parsed: ParsedObjects) -> Observation | None:
    """Read the world of the instance, asking its agent if it is time; None when there is none to serve.

    Raises
    ------
    Terminal
        When this operator cannot read the instance or its pool.
    """
    store, now_s = ctx.store, ctx.clock.monotonic()
    stored = store.get(INSTANCES, key)
    if stored is None or stored["metadata"].get("deletionTimestamp"):
        return None
    stored_pool = store.get(POOLS, Key(key.namespace, stored["spec"]["poolRef"]))
    if stored_pool is None or stored_pool["metadata"].get("deletionTimestamp") or not _owns(stored_pool, stored):
        return None
    try:
        instance, pool = parsed.read(GRInstance, stored), parsed.read(GRServingPool, stored_pool)
    except ValidationError as error:
        raise Terminal("InvalidSpec", f"instance {key} or its pool cannot be read: {explain_invalid(error)}") from error
    memory.met(key, instance.metadata.uid)
    pushed = memory.last_push(key)
    if pushed is not None and pushed.generation != instance.metadata.generation:
        pushed = None
    given = memory.last_model(key)
    ref = instance.spec.intent.model_ref if instance.spec.intent is not None else None
    if given is not None and (ref is None or given.sha256 != ref.sha256):
        memory.forget_model(key)  # what became of it then says nothing of the day on which it is named again
        given = None
    sighting = await _look(agents, instance)
    holder = _holder(store, agents, instance, sighting)
    if isinstance(sighting, Answered) and holder is None:
        agents.believe(instance.metadata.uid)
    policy = hbm_policy_of(ctx, pool, parsed=parsed)
    return Observation(
        instance=instance,
        stored=stored,
        pool=pool,
        policy=policy,
        model=model_of(store, policy, parsed=parsed),
        sighting=sighting,
        holder=holder,
        refusal=pushed.refusal if pushed is not None else None,
        model_refusal=given.refusal if given is not None else None,
        model_push_age_s=now_s - given.at_s if given is not None else None,
        model_wait_s=now_s - given.since_s if given is not None else 0.0,
        push_age_s=now_s - pushed.at_s if pushed is not None else None,
        unanswered=memory.unanswered(key, generation=instance.metadata.generation),
        write_ages_s=memory.write_ages_s(key, now_s=now_s),
        still_routed=instance.spec.drain is not None and _still_routed(store, stored),
    )


def _still_routed(store: Store, stored: Object) -> bool:
    """Whether users are still sent to a draining instance. A table of draining ones only is kept: no callers are better off."""
    table = store.get(ROUTING_TABLES, Key(stored["metadata"]["namespace"], stored["spec"]["poolRef"])) or {}
    rows = (table.get("status") or {}).get("instances") or ()
    serving = {row["uid"] for row in rows if row.get("state") != InstanceState.DRAINING}
    if uid_of(stored) not in serving:
        return False
    return any(other["spec"].get("drain") is None for uid in serving for other in store.by_index(INSTANCES, BY_UID, uid))


def _owns(pool: Object, instance: Object) -> bool:
    """Only what a pool owns is served: an object made by hand that merely names the pool could hijack an agent."""
    return any(owner.get("uid") == uid_of(pool) for owner in instance["metadata"].get("ownerReferences") or ())


def observe_pool(ctx: Context, key: Key, parsed: ParsedObjects, *, write_ages_s: tuple[float, ...]) -> PoolView | None:
    """Read a pool with its instances; None when it is gone or going.

    Raises
    ------
    Terminal
        When this operator cannot read the pool or an instance.
    """
    stored = ctx.store.get(POOLS, key)
    if stored is None or stored["metadata"].get("deletionTimestamp"):
        return None
    try:
        pool = parsed.read(GRServingPool, stored)
        everybody = tuple((each, parsed.read(GRInstance, each)) for each in ctx.store.owned_by(INSTANCES, stored))
    except ValidationError as error:
        raise Terminal("InvalidSpec", f"pool {key} or an instance of it cannot be read: {explain_invalid(error)}") from error
    policy = hbm_policy_of(ctx, pool, parsed=parsed)
    staying = tuple((each, instance) for each, instance in everybody if instance.spec.drain is None)
    return PoolView(
        pool=pool,
        stored=stored,
        policy=policy,
        instances=staying or everybody,
        write_ages_s=write_ages_s,
        model=model_of(ctx.store, policy, parsed=parsed),
    )


async def _look(agents: Agents, instance: GRInstance) -> Sighting:
    sighting = await agents.look(instance.metadata.uid, instance.spec.source.agent_url)
    if isinstance(sighting, Answered):
        problem = problem_of(sighting.status, usable_bytes=_usable_bytes_held(instance, sighting.status))
        if problem is not None:
            return Garbled(why=problem)
    return sighting


def _usable_bytes_held(instance: GRInstance, status: AgentStatus) -> int | None:
    """Usable bytes of the intent that the agent says it holds, None when that is not the one that stands in the instance."""
    metadata, intent = instance.metadata, instance.spec.intent
    held = intent is not None and (status.uid, status.generation) == (metadata.uid, metadata.generation)
    return intent.usable_bytes if held and intent is not None else None


def _holder(store: Store, agents: Agents, instance: GRInstance, sighting: Sighting | None) -> str | None:
    """An address has many spellings, so what counts besides the same words is the same process behind both."""
    if not isinstance(sighting, Answered) or sighting.status.uid in ("", instance.metadata.uid):
        return None
    for other in store.by_index(INSTANCES, BY_UID, sighting.status.uid):
        same_words = other["spec"]["source"]["agentURL"] == instance.spec.source.agent_url
        if same_words or agents.process_of(uid_of(other)) == sighting.status.agent_start_id:
            return str(key_of(other))
    return None
