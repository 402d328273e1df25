"""The models loop as the runtime sees it: which events concern which model, and one reconcile."""

from __future__ import annotations

from collections.abc import Iterable

from controllers.model_bytes import ModelBytes
from controllers.models.decide import decide
from controllers.models.execute import execute
from controllers.models.observe import BY_MODEL, Looked, model_index, observe, recheck_seconds
from controllers.pace import WriteTimes
from controllers.parsed import ParsedObjects
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, INSTANCES, Key
from controllers.runtime.store import EventType, Store, WatchEvent

JITTER = 0.1


class ModelsLoop:
    """Keyed by AllocatorModel; the field manager grfleet-models."""

    name = "models"
    keyed_by = ALLOCATOR_MODELS
    watches = (ALLOCATOR_MODELS, INSTANCES)

    def __init__(self, parsed: ParsedObjects, held: ModelBytes) -> None:
        self._parsed, self._held = parsed, held
        self._looked: dict[Key, Looked] = {}
        self._writes = WriteTimes()

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The model itself; of an instance the models that its intent names from now on, or named before."""
        if event.resource == ALLOCATOR_MODELS:
            return (event.key,)
        now, before = set(model_index(event.obj)), set(model_index(event.old or {}))
        changed = now ^ before if event.type is EventType.MODIFIED else now
        return () if event.type is EventType.RESYNC else {key for key, _ in changed}

    async def start(self, ctx: Context) -> None:
        """Begin a term of leadership by reading every source anew."""
        ctx.store.add_index(INSTANCES, BY_MODEL, model_index)
        self._looked.clear()

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute; come back when the source is to be read again."""
        now_s = ctx.clock.monotonic()
        seen = await observe(ctx, key, self._looked.get(key), self._parsed, write_ages_s=self._writes.ages(key, now_s=now_s))
        if seen is None:
            self._looked.pop(key, None)
            self._writes.forget(key)
            return DONE
        looked, self._looked[key] = seen.looked, seen.looked.to_remember()
        if looked.verdict.data is not None and seen.instances:
            self._held.keep(seen.model.spec.sha256, looked.verdict.data)
        if await execute(plan := decide(seen, ctx.clock.now()), seen, ctx):
            self._writes.note(key, now_s=ctx.clock.monotonic())
        left_s = max(0.0, looked.at_s + recheck_seconds(looked.verdict) - ctx.clock.monotonic())
        return Result(min(plan.requeue_after or left_s, left_s) * ctx.rng.uniform(1.0, 1.0 + JITTER))
