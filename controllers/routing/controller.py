"""The routing loop as the runtime sees it: which events concern which pool, and one reconcile."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from controllers.pace import Restraint, WriteTimes
from controllers.parsed import ParsedObjects
from controllers.routing.decide import decide
from controllers.routing.execute import execute
from controllers.routing.observe import observe
from controllers.routing.tombstone import LastGenerations, bury_pool, generation_of
from controllers.runtime.controller import Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, ROUTING_POLICIES, ROUTING_TABLES, Key
from controllers.runtime.store import Store, WatchEvent
from controllers.wake import pool_of, pools_naming, spec_changed


class RoutingLoop:
    """Keyed by pool; the field manager grfleet-routing."""

    name = "routing"
    keyed_by = POOLS
    watches = (POOLS, INSTANCES, ROUTING_POLICIES, ROUTING_TABLES)

    def __init__(self, parsed: ParsedObjects) -> None:
        self._parsed = parsed
        self._writes = WriteTimes()
        self._restraint = Restraint()
        self._started = datetime.min.replace(tzinfo=UTC)
        self._generations = LastGenerations()

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The pool; the pool of the instance or table; or the pools that name the policy."""
        if event.resource in (POOLS, ROUTING_TABLES):  # a table has the name of its pool
            return (event.key,)
        if event.resource == INSTANCES:
            return pool_of(event)
        return tuple(pools_naming(event.key, store, field="routing")) if spec_changed(event) else ()

    async def start(self, ctx: Context) -> None:
        """Remember since when we lead: silence seen by an earlier leader is judged anew."""
        self._started = ctx.clock.now()
        self._generations = LastGenerations()

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute."""
        began_s = ctx.clock.monotonic()
        if wait := self._restraint.seconds_left(key, now_s=began_s):
            return Result(wait)
        seen = observe(ctx, key, parsed=self._parsed, started=self._started, write_ages_s=self._writes.ages(key, now_s=began_s))
        if seen is None:
            self._writes.forget(key)
            self._restraint.forget(key)
            return Result(await bury_pool(key, ctx, self._generations))
        plan = decide(seen, ctx.clock.now())
        self._restraint.note(key, began_s=began_s, ended_s=ctx.clock.monotonic())
        try:
            if await execute(plan, seen, ctx):
                self._writes.note(key, now_s=ctx.clock.monotonic())
        finally:  # what was written before something failed is in the store, and need not come as an event
            self._generations.note(key, generation_of(key, ctx.store))
        return Result(plan.requeue_after)
