"""The second half of the allocation loop, keyed by pool: it sums up the conditions of the instances on their pool.

It is a loop of its own because its key is another one; the field manager is the same, so each condition still has one writer.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.agent_book import AgentBook
from controllers.allocation.execute import execute_rollup
from controllers.allocation.observe import observe_pool
from controllers.allocation.rollout_plan import plan_rollout
from controllers.allocation.rollup import decide_rollup
from controllers.allocation.trial import Trial
from controllers.pace import Restraint, WriteTimes
from controllers.parsed import ParsedObjects
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, HBM_POLICIES, INSTANCES, POOLS, Key
from controllers.runtime.store import Store, WatchEvent
from controllers.wake import pool_of, pools_naming, pools_of_model, spec_changed


class AllocationRollupLoop:
    """Keyed by pool; the field manager grfleet-allocation."""

    name = "allocation-rollup"
    keyed_by = POOLS
    watches = (POOLS, INSTANCES, HBM_POLICIES, ALLOCATOR_MODELS)

    def __init__(self, parsed: ParsedObjects, book: AgentBook) -> None:
        self._parsed = parsed
        self._book = book
        self._trials: dict[Key, Trial] = {}
        self._writes = WriteTimes()
        self._restraint = Restraint()

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The pool, the pool of the instance, or the pools that name the policy."""
        if event.resource == POOLS:
            return (event.key,)
        if event.resource == INSTANCES:
            return pool_of(event)
        if event.resource == ALLOCATOR_MODELS:
            return pools_of_model(event, store)
        return tuple(pools_naming(event.key, store, field="hbm")) if spec_changed(event) else ()

    async def start(self, ctx: Context) -> None:
        """Compare anew: what an earlier term remembers may have gaps."""
        self._trials.clear()

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute."""
        began_s = ctx.clock.monotonic()
        if wait := self._restraint.seconds_left(key, now_s=began_s):
            return Result(wait)
        view = observe_pool(ctx, key, self._parsed, write_ages_s=self._writes.ages(key, now_s=began_s))
        if view is None:
            self._writes.forget(key)
            self._restraint.forget(key)
            self._trials.pop(key, None)
            return DONE
        trial = self._trials.setdefault(key, Trial(self._book.windows))
        now = ctx.clock.now()
        plan = decide_rollup(view, now, plan_rollout(view, trial, now=now, now_s=began_s))
        self._restraint.note(key, began_s=began_s, ended_s=ctx.clock.monotonic())
        if await execute_rollup(plan, view.stored, ctx):
            self._writes.note(key, now_s=ctx.clock.monotonic())
        return Result(plan.requeue_after)
