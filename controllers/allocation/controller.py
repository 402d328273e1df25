"""The allocation loop as the runtime sees it: which events concern which instance, and one reconcile."""

from __future__ import annotations

from collections.abc import Iterable

from controllers.agent_book import AgentBook
from controllers.allocation.agent_calls import new_agents
from controllers.allocation.agents import Agents
from controllers.allocation.decide import decide
from controllers.allocation.execute import execute
from controllers.allocation.memory import Memory
from controllers.allocation.observe import BY_UID, observe, uid_index
from controllers.allocation.rollout import permit_of
from controllers.model_bytes import ModelBytes
from controllers.parsed import ParsedObjects
from controllers.runtime.controller import DONE, Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, HBM_POLICIES, INSTANCES, POOLS, ROUTING_TABLES, Key, key_of
from controllers.runtime.store import Store, WatchEvent
from controllers.signing_key import SigningKey
from controllers.wake import instances_for


class AllocationLoop:
    """Keyed by instance; the field manager grfleet-allocation."""

    name = "allocation"
    keyed_by = INSTANCES
    watches = (INSTANCES, POOLS, HBM_POLICIES, ALLOCATOR_MODELS, ROUTING_TABLES)

    def __init__(self, key: SigningKey, parsed: ParsedObjects, book: AgentBook, models: ModelBytes) -> None:
        self._parsed = parsed
        self._key = key
        self._book = book
        self._models = models
        self._memory = Memory()
        self._agents: Agents | None = None

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """See `wake.instances_for`; a new table concerns who drains, as Drained waits for it; a step of a rollout everybody."""
        if event.resource == ROUTING_TABLES:
            return [key_of(each) for each in store.of_pool(INSTANCES, event.key) if each["spec"].get("drain") is not None]
        if event.resource == POOLS and permit_of(event.old) != permit_of(event.obj):
            return [key_of(each) for each in store.of_pool(INSTANCES, event.key)]
        return instances_for(event, store)

    async def start(self, ctx: Context) -> None:
        """Begin a term of leadership without memories of an earlier one."""
        ctx.store.add_index(INSTANCES, BY_UID, uid_index)
        self._key.forget()
        self._memory = Memory()
        self._agents = self._agents or new_agents(ctx, self._book)
        self._agents.forget_all()

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Observe, decide, execute; come back when the agent is to be asked again."""
        assert self._agents is not None, "the runtime calls start first"
        agents, memory = self._agents, self._memory
        seen = await observe(ctx, key, agents, memory, self._parsed)
        if seen is None:
            for uid in memory.forget(key):
                agents.forget(uid)
            return DONE
        plan, uid = decide(seen, ctx.clock.now()), seen.instance.metadata.uid
        await execute(plan, seen, agents, memory, self._key, self._models, ctx)
        return Result(min(agents.seconds_to_next(uid), plan.requeue_after or 60.0))
