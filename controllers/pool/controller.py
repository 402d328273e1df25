"""The pool loop as the runtime sees it: which events concern which pool, and one reconcile."""

from __future__ import annotations

from collections.abc import Iterable

from controllers.pace import Restraint, WriteTimes
from controllers.parsed import ParsedObjects
from controllers.pool.decide import decide
from controllers.pool.execute import execute
from controllers.pool.observe import observe, pools_that_may_want
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, Key
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.signing_key import KeyPublisher


class PoolLoop:
    """Keyed by pool; the field manager grfleet-pool."""

    name = "pool"
    keyed_by = POOLS
    watches = (POOLS, INSTANCES)

    def __init__(self, publisher: KeyPublisher, parsed: ParsedObjects) -> None:
        self._parsed, self._publisher = parsed, publisher
        self._writes = WriteTimes()
        self._restraint = Restraint()

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The pool itself; for an instance the pool that it names, and once it is gone those that may want its name."""
        if event.resource == POOLS:
            return (event.key,)
        named = {str(event.obj["spec"]["poolRef"])} if event.obj.get("spec") else set()
        if event.type is EventType.DELETED:
            named |= set(pools_that_may_want(event.key.name))
        return [key for key in (Key(event.key.namespace, name) for name in named) if store.get(POOLS, key) is not None]

    async def start(self, ctx: Context) -> None:
        """Nothing that an earlier term of leadership remembered holds."""
        self._publisher.forget()

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute."""
        began_s = ctx.clock.monotonic()
        if wait := self._restraint.seconds_left(key, now_s=began_s):
            return Result(wait)
        seen = observe(ctx.store, key, parsed=self._parsed, write_ages=self._writes.ages(key, now_s=began_s))
        if seen is None:
            self._writes.forget(key)
            self._restraint.forget(key)
            return DONE
        plan = decide(seen, ctx.clock.now())
        self._restraint.note(key, began_s=began_s, ended_s=ctx.clock.monotonic())
        if await execute(plan, seen.stored, ctx):
            self._writes.note(key, now_s=ctx.clock.monotonic())
        await self._publisher.ensure(ctx, key.namespace)
        return Result(plan.requeue_after)
