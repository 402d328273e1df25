"""The second half of the allocation loop, keyed by pool: it sums up the conditions of the instances on their pool.

It is a loop of its own because its key is another one; the field manager is the same, so each condition still has one writer.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from controllers.allocation.observe import policy_of
from controllers.allocation.rollup import PoolView, decide_rollup
from controllers.pace import Restraint, WriteTimes
from controllers.runtime.controller import DONE, Result
from controllers.runtime.errors import Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import HBM_POLICIES, INSTANCES, POOLS, Key, identity
from controllers.runtime.store import Store, WatchEvent
from controllers.wake import pools_naming, spec_changed
from crds import GRInstance, GRServingPool, explain_invalid
from crds.reasons import FieldManager


class AllocationRollupLoop:
    """Keyed by pool; the field manager grfleet-allocation."""

    name = "allocation-rollup"
    keyed_by = POOLS
    watches = (POOLS, INSTANCES, HBM_POLICIES)

    def __init__(self) -> None:
        self._writes = WriteTimes()
        self._restraint = Restraint()

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The pool, the pool of the instance, or the pools that name the policy."""
        if event.resource == POOLS:
            return (event.key,)
        if event.resource == INSTANCES:
            return (Key(event.key.namespace, str(event.obj["spec"]["poolRef"])),) if event.obj.get("spec") else ()
        return tuple(pools_naming(event.key, store, field="hbm")) if spec_changed(event) else ()

    async def start(self, ctx: Context) -> None:
        """Nothing to prepare."""

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, write."""
        stored = ctx.store.get(POOLS, key)
        if stored is None or stored["metadata"].get("deletionTimestamp"):
            self._writes.forget(key)
            return DONE
        now_s = ctx.clock.monotonic()
        if wait := self._restraint.seconds_left(key, now_s=now_s):
            return Result(wait)
        try:
            pool = GRServingPool.parse(stored)
            view = PoolView(
                pool=pool,
                stored=stored,
                policy=policy_of(ctx.store, pool, operator_namespace=ctx.settings.operator_namespace),
                instances=tuple((each, GRInstance.parse(each)) for each in ctx.store.owned_by(INSTANCES, stored)),
                write_ages=self._writes.ages(key, now_s=now_s),
            )
        except ValidationError as error:
            raise Terminal("InvalidSpec", f"pool {key} or an instance of it cannot be read: {explain_invalid(error)}") from error
        plan = decide_rollup(view, ctx.clock.now())
        self._restraint.note(key, began_s=now_s, ended_s=ctx.clock.monotonic())
        if plan.status is not None:
            answer = await ctx.kube.apply_status(
                POOLS,
                {**identity(POOLS, key), "status": dict(plan.status)},
                field_manager=FieldManager.ALLOCATION,
                current=stored,
                resource_version=stored["metadata"]["resourceVersion"],
            )
            ctx.store.upsert(POOLS, answer)
            self._writes.note(key, now_s=now_s)
            for word in plan.announce:
                ctx.events.emit(stored, word.level, word.reason, word.note, action="Report", controller=self.name)
        return Result(plan.requeue_after)
