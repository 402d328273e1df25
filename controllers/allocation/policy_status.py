"""The third part of the allocation loop, keyed by HBMPolicy: where a policy is in force, and how far its rollouts have come.

It only counts what stands in pools and instances, so it decides nothing and may be late; the pool has the details.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contract.agent import Strategy
from controllers.allocation.rollout import permit_of
from controllers.lookup import DEFAULT
from controllers.pace import Restraint, WriteTimes, wait_before_write
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import HBM_POLICIES, INSTANCES, POOLS, Key, Object
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.status import write_status
from controllers.wake import pool_of, spec_changed
from crds.hbm_policy import RolloutPhase
from crds.reasons import FieldManager

WORST_FIRST = (
    RolloutPhase.ROLLED_BACK,
    RolloutPhase.INCONCLUSIVE,
    RolloutPhase.WITHDRAWN,
    RolloutPhase.EXTENDED,
    RolloutPhase.CANARY,
    RolloutPhase.MEASURING,
    RolloutPhase.COMPLETE,
)
"""Of several pools the one that needs a look most is told."""


class PolicyStatusLoop:
    """Keyed by HBMPolicy; the field manager grfleet-allocation."""

    name = "allocation-policies"
    keyed_by = HBM_POLICIES
    watches = (HBM_POLICIES, POOLS, INSTANCES)

    def __init__(self) -> None:
        self._writes = WriteTimes()
        self._restraint = Restraint()
        self._operator_namespace = ""

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The policy; those that the pool may name, now or before; for an instance those of its pool."""
        if event.resource == HBM_POLICIES:
            return self._of_policy(event)
        if event.resource == POOLS:
            if not spec_changed(event) and permit_of(event.old) == permit_of(event.obj):
                return ()
            return {key for pool in (event.old, event.obj) if pool is not None for key in _policies_of(pool, store)}
        if not _counts_anew(event):
            return ()
        pools = (store.get(POOLS, key) for key in pool_of(event))
        return [key for pool in pools if pool is not None for key in _policies_of(pool, store)]

    def _of_policy(self, event: WatchEvent) -> Iterable[Key]:
        """The policy itself, at a resync too: what changed while nobody led was counted by nobody. With a `default` that comes
        or goes that of the operator, which pools of its namespace resolved to until now, or do from now on."""
        if event.type is EventType.RESYNC:
            return (event.key,)
        if not spec_changed(event):
            return ()
        shadows = event.key.name == DEFAULT and event.type is not EventType.MODIFIED
        return {event.key, Key(self._operator_namespace, DEFAULT)} if shadows else (event.key,)

    async def start(self, ctx: Context) -> None:
        """Learn where the operator's own policies are."""
        self._operator_namespace = ctx.settings.operator_namespace

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Count and, when the counts are new, write."""
        began_s = ctx.clock.monotonic()
        if wait := self._restraint.seconds_left(key, now_s=began_s):
            return Result(wait)
        policy = ctx.store.get(HBM_POLICIES, key)
        if policy is None or policy["metadata"].get("deletionTimestamp"):
            self._writes.forget(key)
            self._restraint.forget(key)
            return DONE
        status = status_of(policy, ctx.store, operator_namespace=ctx.settings.operator_namespace)
        self._restraint.note(key, began_s=began_s, ended_s=ctx.clock.monotonic())
        old = policy.get("status") or {}
        if old == status:
            return DONE
        transition = any(old.get(name) != status.get(name) for name in ("rollout", "model"))
        wait = wait_before_write(self._writes.ages(key, now_s=began_s), transition=transition)
        if wait:
            return Result(wait)
        await write_status(ctx, HBM_POLICIES, policy, status, field_manager=FieldManager.ALLOCATION)
        self._writes.note(key, now_s=ctx.clock.monotonic())
        return DONE


def status_of(policy: Object, store: Store, *, operator_namespace: str) -> dict[str, Any]:
    """The counts of a policy over all pools that resolve to it."""
    metadata = policy["metadata"]
    generation, where = int(metadata.get("generation", 0)), Key(metadata["namespace"], metadata["name"])
    asked = {"namespace": where.namespace, "name": where.name, "generation": generation}
    pools = [pool for pool in _pools_of(where, store) if _resolves(pool, where, store, operator_namespace=operator_namespace)]
    staying = [each for pool in pools for each in store.owned_by(INSTANCES, pool) if each["spec"].get("drain") is None]
    phases = {
        RolloutPhase(rollout["phase"])
        for pool in pools
        if (rollout := (pool.get("status") or {}).get("rollout")) and _is_made_from(rollout.get("policyRef"), asked)
    }
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "pools": len(pools),
        "instances": len(staying),
        "current": sum(_is_made_from((each["spec"].get("intent") or {}).get("policyRef"), asked) for each in staying),
    }
    worst = next((phase for phase in WORST_FIRST if phase in phases), None)
    if worst is not None:
        status["rollout"] = worst.value
    model = _model_of(policy.get("spec") or {})
    return status if model is None else {**status, "model": model}


def _model_of(spec: Mapping[str, Any]) -> str | None:
    """The model that the strategy runs; one that is only named beside another strategy is none."""
    return (spec.get("learned") or {}).get("model") if spec.get("strategy") == Strategy.LEARNED else None


def _pools_of(policy: Key, store: Store) -> Iterator[Object]:
    for pool in store.all(POOLS, None if policy.name == DEFAULT else policy.namespace):
        if _name_in(pool) == policy.name:
            yield pool


def _resolves(pool: Object, policy: Key, store: Store, *, operator_namespace: str) -> bool:
    """Whether the name that the pool gives leads to this very policy; see `controllers.lookup`."""
    namespace = pool["metadata"]["namespace"]
    if namespace == policy.namespace:
        return True
    theirs = policy.name == DEFAULT and policy.namespace == operator_namespace
    return theirs and store.get(HBM_POLICIES, Key(namespace, DEFAULT)) is None


def _policies_of(pool: Object, store: Store) -> list[Key]:
    """Policies that the pool may resolve to: that of its namespace and, for the name default, every one of that name."""
    name, namespace = _name_in(pool), pool["metadata"]["namespace"]
    if name != DEFAULT or store.get(HBM_POLICIES, Key(namespace, name)) is not None:
        return [Key(namespace, name)]
    return [key for key in store.keys(HBM_POLICIES) if key.name == DEFAULT]


def _name_in(pool: Object) -> str:
    return str((pool["spec"].get("policies") or {}).get("hbm") or DEFAULT)


def _counts_anew(event: WatchEvent) -> bool:
    """Whether an instance comes, goes, begins to drain, or gets an intent of another policy."""
    if event.type is not EventType.MODIFIED or event.old is None:
        return event.type is not EventType.RESYNC
    old, new = event.old.get("spec") or {}, event.obj.get("spec") or {}
    return _policy_in(old) != _policy_in(new) or old.get("drain") != new.get("drain")


def _policy_in(spec: Mapping[str, Any]) -> object:
    return (spec.get("intent") or {}).get("policyRef")


def _is_made_from(ref: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> bool:
    return ref is not None and all(ref.get(name) == value for name, value in asked.items())
