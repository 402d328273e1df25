"""The adaptive pool in virtual time: the agents' own loop on the simulator's instances, without sockets, cluster or waiting.

It serves the test that splits move the right way, and the choice of the demonstration's traffic. Nothing of the agent is
replaced except its clock and the wire to its engine.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from contract import samples
from contract.agent import Intent, IntentStatus
from contract.engine import (
    Describe,
    DrainAnswer,
    LimitsAnswer,
    LimitsRequest,
    Observe,
    RankRequest,
    SplitAnswer,
    SplitRequest,
)
from contract.residency import ResidencyReport
from dataplane.agent.intent import IntentBook
from dataplane.agent.loop import Agent
from simulator.core.instance import GRInstanceCore
from simulator.replay import Outcomes, replay


class VirtualClock:
    """Seconds that only `now_ms` moves."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def seconds(self) -> float:
        return self.now_ms / 1000.0


class CoreEngine:
    """An instance of the simulator as the agent's engine port."""

    def __init__(self, core: GRInstanceCore, clock: VirtualClock) -> None:
        self._core = core
        self._clock = clock

    async def describe(self) -> Describe:
        return self._core.describe()

    async def observe(self) -> Observe:
        return self._core.observe(self._clock.now_ms)

    async def put_split(self, request: SplitRequest) -> SplitAnswer:
        return self._core.put_split(request, now_ms=self._clock.now_ms)

    async def put_limits(self, request: LimitsRequest) -> LimitsAnswer:
        return self._core.put_limits(request)

    async def drain(self, *, draining: bool) -> DrainAnswer:
        return self._core.drain(draining=draining)

    async def residency(self, cursor: int, *, most: int) -> ResidencyReport:
        return self._core.residency(cursor, now_ms=self._clock.now_ms, most=most)

    async def samples(self, cursor: int) -> tuple[NDArray[Any], int, int]:
        payload, after, lost = self._core.samples.read(cursor)
        return samples.unpack(payload), after, lost


@dataclass(frozen=True, kw_only=True)
class Step:
    """The split of one instance at one moment."""

    time_ms: float
    instance: int
    emb_percent: float
    reason: str
    goal_emb_percent: float | None


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was served, and how the splits went."""

    outcomes: Outcomes
    steps: tuple[Step, ...]


def rehearse(
    requests: Sequence[RankRequest],
    owners: Sequence[int],
    cores: Sequence[GRInstanceCore],
    *,
    intent_spec: dict[str, Any],
    interval_ms: float = 1000.0,
    memory_ms: float = 60_000.0,
) -> Rehearsal:
    """Serve `requests` with one agent beside each core and return what happened.

    Parameters
    ----------
    intent_spec : dict
        The intent as the operator would push it (`contract.agent.IntentSpec`, camelCase).
    interval_ms : float
        Time between two rounds of an agent.
    memory_ms : float
        Memory of the agents' estimators.

    Raises
    ------
    ValueError
        When the agents refuse the intent.
    """
    clock = VirtualClock()
    agents = [
        _agent(CoreEngine(core, clock), clock, f"rehearsal-{index}", spec=intent_spec, memory_ms=memory_ms)
        for index, core in enumerate(cores)
    ]
    steps: list[Step] = []
    due_ms = [0.0]
    loop = asyncio.new_event_loop()

    def act(now_ms: float) -> None:
        while due_ms[0] <= now_ms:
            clock.now_ms = due_ms[0]
            for index, (agent, core) in enumerate(zip(agents, cores, strict=True)):
                loop.run_until_complete(agent.round())
                steps.append(_step(agent, core, index, clock.now_ms))
            due_ms[0] += interval_ms
        clock.now_ms = now_ms

    try:
        outcomes = replay(requests, owners, cores, before_request=act)
    finally:
        loop.close()
    return Rehearsal(outcomes=outcomes, steps=tuple(steps))


def _agent(engine: CoreEngine, clock: VirtualClock, name: str, *, spec: dict[str, Any], memory_ms: float) -> Agent:
    agent = Agent(
        engine=engine,
        intents=IntentBook(public_key=None),
        start_id=name,
        wall_s=clock.seconds,
        monotonic_s=clock.seconds,
        memory_ms=memory_ms,
    )
    answer = agent.offer_intent(Intent(uid=name, generation=1, issued=0, expires=3600, spec=spec))
    if answer.status is not IntentStatus.ACCEPTED:
        raise ValueError(f"intent: {answer.reason}")
    return agent


def _step(agent: Agent, core: GRInstanceCore, index: int, now_ms: float) -> Step:
    pool = core.config.pool_bytes
    newest = agent.decisions.after(agent.decisions.last_sequence - 1, limit=1).decisions
    goal = newest[0].inputs["round"].get("goalEmbBytes") if newest else None
    return Step(
        time_ms=now_ms,
        instance=index,
        emb_percent=100.0 * core.emb.limit_bytes / pool,
        reason=agent.status().reason,
        goal_emb_percent=None if goal is None else 100.0 * goal / pool,
    )
