"""One agent with one fake engine, both on a clock that only the test moves."""

from typing import Any

from dataplane_fakes import FakeClock, FakeEngine

from contract.agent import Intent, IntentStatus
from contract.samples import KIND_EMB, KIND_KV
from dataplane.agent.intent import IntentBook
from dataplane.agent.loop import Agent

FAST = {"maxPercentPerSecond": 20, "deadbandPercent": 1}


class World:
    """An agent, its engine and the time between them."""

    def __init__(self, **engine: Any) -> None:
        self.clock = FakeClock()
        self.engine = FakeEngine(**engine)
        self.generation = 0
        self.agent = self.new_agent()

    def new_agent(self) -> Agent:
        """Start an agent that knows nothing, as after kill -9."""
        return Agent(
            engine=self.engine,
            intents=IntentBook(public_key=None),
            start_id="agent",
            wall_s=self.clock,
            monotonic_s=self.clock,
        )

    def intend(self, *, uid: str = "uid-a", **spec: Any) -> None:
        """Hand the next generation of an intent over; it must be accepted."""
        self.generation += 1
        now = int(self.clock.now_s)
        body = {"step": FAST} | spec
        intent = Intent(uid=uid, generation=self.generation, issued=now, expires=now + 60, spec=body)
        assert self.agent.offer_intent(intent).status is IntentStatus.ACCEPTED

    def static(self, percent: int, **spec: Any) -> None:
        self.intend(strategy="Static", bounds={"fallbackEmbPercent": percent}, **spec)

    async def rounds(self, count: int = 1, *, seconds: float = 1.0, **load: Any) -> None:
        """Let time pass, requests come, and the agent go round."""
        for _ in range(count):
            self.engine.serve(seconds=seconds, **load)
            self.clock.advance(seconds)
            await self.agent.round()
            await self.agent.orders_settled()

    def touch_skewed_users(self, *, keys: int = 400, rows: int = 50) -> None:
        """Sample accesses of the last second: many users come back soon, the rows are few and hot."""
        engine = self.engine
        second = int(self.clock.now_s)  # users go on coming in their order when an engine restarts
        for number in range(keys):
            user = (number * 7919 + second * 13) % 1500
            engine.touch(kind=KIND_KV, key=user * 2**40 + 1, size=1000, time_ms=engine.clock_ms + 900 - 2 * number)
        for number in range(rows):
            engine.touch(kind=KIND_EMB, key=number + 1, size=1, time_ms=engine.clock_ms + 900 - 2 * number)

    @property
    def emb_percent(self) -> float:
        return 100.0 * self.engine.limits[0] / self.engine.pool_bytes

    @property
    def reason(self) -> str:
        return self.agent.status().reason

    @property
    def frozen(self) -> bool:
        return self.agent.status().frozen
