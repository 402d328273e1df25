"""The pre-inference loop as the runtime sees it: which events concern which pool, and one reconcile."""

from __future__ import annotations

from collections.abc import Iterable

from controllers.agent_book import Statuses
from controllers.metrics_source.choose import source_for
from controllers.metrics_source.port import MetricsSource, PoolName, SourceState
from controllers.pace import WriteTimes
from controllers.parsed import ParsedObjects
from controllers.preinference.decide import decide, rest_left
from controllers.preinference.execute import execute
from controllers.preinference.observe import Memory, Observation, PoolSeen, measure, see
from controllers.preinference.wake import keys_for
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, PRE_INFERENCE_POLICIES, Key
from controllers.runtime.store import Store, WatchEvent

JITTER = 0.1


class PreInferenceLoop:
    """Keyed by pool; the field manager grfleet-preinference."""

    name = "preinference"
    keyed_by = POOLS
    watches = (POOLS, INSTANCES, PRE_INFERENCE_POLICIES)

    def __init__(self, parsed: ParsedObjects, statuses: Statuses, *, source: MetricsSource | None = None) -> None:
        self._parsed, self._statuses, self._source = parsed, statuses, source
        self._writes = WriteTimes()
        self._memories: dict[Key, Memory] = {}
        self._looked: dict[Key, float] = {}
        self._uids: dict[Key, str] = {}

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """See `wake.keys_for`."""
        return keys_for(event, store)

    async def start(self, ctx: Context) -> None:
        """Begin a term of leadership with what is in force, and without memories of an earlier one."""
        for remembered in (self._memories, self._looked, self._uids):
            remembered.clear()
        for state in SourceState:  # known from the start, so that rates are right from the first doubt on
            ctx.metrics.measure_seconds.labels(state.value)
        self._source = self._source or source_for(ctx.settings, statuses=self._statuses, clock=ctx.clock)

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute."""
        now_s = ctx.clock.monotonic()
        if ctx.store.get(POOLS, key) is not None and (rest_s := rest_left(self._looked.get(key), now_s=now_s)):
            return Result(rest_s)  # before the look: every event of an instance comes here, and a look reads all of them
        seen = see(ctx, key, parsed=self._parsed)
        if seen is None:
            self._forget(key)
            return DONE
        if self._uids.get(key, seen.uid) != seen.uid:  # deleted and made anew since: what was decided for the other is not for it
            self._forget(key)
        self._looked[key], self._uids[key] = now_s, seen.uid
        observation = await self._observe(seen, key, ctx)
        plan = decide(observation, ctx.clock.now())
        self._memories[key] = plan.memory
        written, scaled = await execute(plan, observation, ctx)
        now_s = ctx.clock.monotonic()
        if written:
            self._writes.note(key, now_s=now_s)
        if scaled and plan.memory_once_scaled is not None:
            self._memories[key] = plan.memory_once_scaled
        return Result(plan.requeue_after * ctx.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    async def _observe(self, seen: PoolSeen, key: Key, ctx: Context) -> Observation:
        assert self._source is not None, "the runtime calls start first"
        began_s = ctx.clock.monotonic()
        metrics = await measure(seen, self._source)
        now_s = ctx.clock.monotonic()
        if metrics.instances:
            ctx.metrics.measure_seconds.labels(metrics.state.value).observe(now_s - began_s)
        return Observation(
            pool=seen.pool,
            stored=seen.stored,
            policy=seen.policy,
            instances=seen.instances,
            metrics=metrics,
            memory=self._memories.get(key) or Memory(since_s=now_s, asked_s=now_s),
            now_s=now_s,
            write_ages_s=self._writes.ages(key, now_s=now_s),
        )

    def _forget(self, key: Key) -> None:
        if self._source is not None:
            self._source.forget(PoolName(namespace=key.namespace, name=key.name))
        self._writes.forget(key)
        for remembered in (self._memories, self._looked, self._uids):
            remembered.pop(key, None)
