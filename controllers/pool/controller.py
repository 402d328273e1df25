"""The pool loop as the runtime sees it: one reconcile over observe, decide and execute."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from controllers.agent_book import Statuses
from controllers.pace import Restraint, WriteTimes
from controllers.parsed import ParsedObjects
from controllers.pool.decide import decide
from controllers.pool.execute import execute
from controllers.pool.fronts import InferencePools
from controllers.pool.observe import Observation, observe
from controllers.pool.pod_world import look_at_pods
from controllers.pool.resident import resident_bytes
from controllers.pool.wake import pools_for
from controllers.pool.workload_execute import Refused, WorkloadMemory
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import DEPLOYMENTS, INSTANCES, PODS, POOLS, ROUTING_POLICIES, ROUTING_TABLES, Key
from controllers.runtime.store import Store, WatchEvent
from controllers.signing_key import KeyPublisher


class PoolLoop:
    """Keyed by pool; the field manager grfleet-pool.

    Parameters
    ----------
    statuses
        What agents said last, from which the value of an instance is read when a pool gets smaller; None: nobody knows.
    """

    name = "pool"
    keyed_by = POOLS
    watches = (POOLS, INSTANCES, PODS, DEPLOYMENTS, ROUTING_TABLES, ROUTING_POLICIES)

    def __init__(self, publisher: KeyPublisher, parsed: ParsedObjects, statuses: Statuses | None = None) -> None:
        self._parsed, self._publisher, self._statuses = parsed, publisher, statuses
        self._writes = WriteTimes()
        self._restraint = Restraint()
        self._memory = WorkloadMemory()
        self._inference_pools = InferencePools()

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The pools that an event concerns, as far as they exist."""
        return [key for key in pools_for(event, store) if event.resource == POOLS or store.get(POOLS, key) is not None]

    async def start(self, ctx: Context) -> None:
        """Nothing that an earlier term of leadership remembered holds."""
        self._publisher.forget()
        self._memory.clear()

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute."""
        began_s = ctx.clock.monotonic()
        if wait := self._restraint.seconds_left(key, now_s=began_s):
            return Result(wait)
        await self._inference_pools.refresh(ctx, ctx.store.get(POOLS, key))
        began_s = ctx.clock.monotonic()  # waiting for an answer is no work
        seen = self._observe(key, ctx)
        if seen is None:
            for memory in (self._writes, self._restraint, self._memory):
                memory.forget(key)
            return DONE
        plan = decide(seen, ctx.clock.now())
        self._restraint.note(key, began_s=began_s, ended_s=ctx.clock.monotonic())
        try:
            written = await execute(plan, seen.stored, ctx, self._memory)
        except Refused:
            return Result(0.0)  # the next look knows of it and says so
        if written:
            self._writes.note(key, now_s=ctx.clock.monotonic())
        await self._publisher.ensure(ctx, key.namespace)
        now_s = ctx.clock.monotonic()
        fronts = self._inference_pools.seconds_to_look(key.namespace, now_s=now_s) if seen.world is not None else None
        waits = (plan.requeue_after, self._memory.seconds_to_retry(key, now_s=now_s), fronts)
        return Result(min((wait for wait in waits if wait is not None), default=None))

    def _observe(self, key: Key, ctx: Context) -> Observation | None:
        now_s = ctx.clock.monotonic()
        return observe(
            ctx.store,
            key,
            parsed=self._parsed,
            write_ages_s=self._writes.ages(key, now_s=now_s),
            look_at_pods=partial(
                look_at_pods,
                ctx,
                key,
                parsed=self._parsed,
                resident_bytes=partial(resident_bytes, statuses=self._statuses, now_s=now_s),
                refusal=self._memory.refusal(key, now_s=now_s),
                applied=self._memory.applied(key),
                quiet_seconds=partial(self._memory.quiet_seconds, key, now_s=now_s),
                inference_pools=self._inference_pools.of(key.namespace),
            ),
        )
