"""An agent that tells its status and gives no answer to intents: what lies between lets only some calls through. Nobody may think
that it follows, least of all who has just pressed the kill switch."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import NOW, agent_status, instance_object, pool_object

from contract.agent import AgentStatus, Intent, IntentAnswer, IntentStatus
from contract.errors import ProtocolViolation, Unreachable
from controllers.agent_book import AgentBook
from controllers.allocation.agents import AgentPort, Agents
from controllers.allocation.controller import AllocationLoop
from controllers.allocation.memory import ModelPushed
from controllers.allocation.observe import BY_UID, uid_index
from controllers.model_bytes import ModelBytes
from controllers.parsed import ParsedObjects
from controllers.runtime.clock import FakeClock
from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, HBM_POLICIES, INSTANCES, POOLS, ROUTING_TABLES, Key
from controllers.runtime.store import Store
from controllers.signing_key import SigningKey

WHERE = Key("team", "pool-a")


class OwnKey(SigningKey):
    """A key without a Secret."""

    async def private(self, ctx: Context) -> bytes:
        return bytes(range(32))


class Agent:
    """Holds an older intent and answers what it is asked; `trouble` is what becomes of intents."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.generation = 1
        self.offered = 0

    async def status(self) -> AgentStatus:
        return agent_status(generation=self.generation)

    async def put_intent(self, intent: Intent) -> IntentAnswer:
        self.offered += 1
        if self.trouble is not None:
            raise self.trouble
        self.generation = intent.generation
        return IntentAnswer(status=IntentStatus.ACCEPTED, uid=intent.uid, generation=intent.generation)


class Server:
    """An API server that takes every write."""

    def __init__(self, store: Store) -> None:
        self.store, self.version, self.writes = store, 10, 0

    def _answer(self, key: Key, change: dict[str, Any], *, generation: int) -> dict[str, Any]:
        stored = self.store.get(INSTANCES, key)
        assert stored is not None
        self.version += 1
        metadata = {**stored["metadata"], "resourceVersion": str(self.version)}
        metadata["generation"] += generation
        return {**stored, **change, "metadata": metadata}

    async def apply(self, resource: Any, desired: Any, **_: Any) -> dict[str, Any]:
        stored = self.store.get(resource, WHERE)
        assert stored is not None
        return self._answer(WHERE, {"spec": {**stored["spec"], **desired["spec"]}}, generation=1)

    async def apply_status(self, resource: Any, desired: Any, **_: Any) -> dict[str, Any]:
        self.writes += 1
        return self._answer(WHERE, {"status": desired["status"]}, generation=0)


class World:
    """The loop with one instance, and time between its looks."""

    def __init__(self) -> None:
        self.agent, self.clock = Agent(), FakeClock()
        store = Store((POOLS, INSTANCES, HBM_POLICIES, ALLOCATOR_MODELS, ROUTING_TABLES))
        store.add_index(INSTANCES, BY_UID, uid_index)
        pool = pool_object(entries=("a",))
        pool["metadata"] |= {"resourceVersion": "1"}
        instance = instance_object("pool-a", pool)
        instance["metadata"] |= {"resourceVersion": "2"}
        store.upsert(POOLS, pool)
        store.upsert(INSTANCES, instance)
        self.store, self.server = store, Server(store)
        clock = SimpleNamespace(now=lambda: NOW, monotonic=self.clock.monotonic)
        self.ctx = cast(
            Context,
            SimpleNamespace(
                store=store,
                kube=self.server,
                clock=clock,
                settings=SimpleNamespace(operator_namespace="grfleet"),
                fence=SimpleNamespace(check=lambda: None),
                events=SimpleNamespace(emit=lambda *words, **more: None),
            ),
        )
        book = AgentBook()
        self.loop = AllocationLoop(OwnKey(), ParsedObjects(), book, ModelBytes())
        self.loop._agents = Agents(
            clock=self.clock, rng=random.Random(1), connect=lambda url: cast(AgentPort, self.agent), book=book
        )

    async def looks(self, count: int) -> None:
        """Look so many times, a second apart, or when the loop wants to come back."""
        for _ in range(count):
            await self.loop.reconcile(WHERE, self.ctx)
            await self.clock.advance(1.0)

    def orders(self, **spec: Any) -> None:
        """The pool asks for something else."""
        pool = self.store.get(POOLS, Key("team", "pool"))
        assert pool is not None
        metadata = {**pool["metadata"], "resourceVersion": "999", "generation": pool["metadata"]["generation"] + 1}
        self.store.upsert(POOLS, {**pool, "metadata": metadata, "spec": {**pool["spec"], **spec}})

    @property
    def healthy(self) -> tuple[str, str]:
        instance = self.store.get(INSTANCES, WHERE)
        item = find_condition(conditions_of(instance or {}), "PolicyHealthy") or {}
        return str(item.get("status")), str(item.get("reason"))


@pytest.mark.parametrize("trouble", [Unreachable("PUT /intent: TimeoutError"), ProtocolViolation("PUT /intent: status 405")])
async def test_an_order_that_gets_no_answer_is_not_said_to_be_followed(trouble: Exception) -> None:
    world = World()
    await world.looks(30)
    assert world.healthy[0] == "True"
    world.agent.trouble = trouble
    world.orders(paused=True)
    await world.looks(40)
    assert world.healthy == ("False", "IntentNotAccepted")
    writes = world.server.writes
    await world.looks(120)
    assert world.server.writes <= writes + 1, "what goes on is said once"
    world.agent.trouble = None
    await world.looks(30)
    assert world.healthy == ("True", "PausedByUser")


async def test_one_answer_that_is_lost_is_no_trouble() -> None:
    world = World()
    await world.looks(30)
    world.agent.trouble = Unreachable("PUT /intent: TimeoutError")
    world.orders(paused=True)
    await world.looks(2)  # the intent is written, and offered once
    assert world.agent.offered == 2
    world.agent.trouble = None
    for _ in range(30):
        await world.looks(1)
        assert world.healthy[0] == "True"
    assert world.healthy == ("True", "PausedByUser")


async def test_a_refused_model_that_no_intent_names_any_more_begins_anew_when_one_names_it_again() -> None:
    world = World()
    await world.looks(1)
    refused = ModelPushed(sha256="a" * 64, at_s=1.0, since_s=1.0, taken=False, refusal="NotWanted: the intent names another")
    world.loop._memory.pushed_model(WHERE, refused)
    await world.looks(1)
    assert world.loop._memory.last_model(WHERE) is None
