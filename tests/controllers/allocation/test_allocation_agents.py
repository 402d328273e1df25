"""The rhythm of asking agents: every ten seconds, sooner with reason, less and less often in silence."""

from __future__ import annotations

import itertools
import random
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from loop_objects import agent_status, instance_object, pool_object

from contract.agent import AgentStatus, EngineReport, Intent, IntentAnswer, IntentStatus
from contract.errors import ProtocolViolation, Unreachable
from controllers.agent_book import AgentBook, Heard
from controllers.allocation.agent_calls import SessionAgent
from controllers.allocation.agents import Agents
from controllers.allocation.observe import BY_UID, _holder, uid_index
from controllers.allocation.sightings import Answered, Garbled, Silent
from controllers.runtime.clock import FakeClock
from controllers.runtime.resources import INSTANCES
from controllers.runtime.store import Store
from crds import GRInstance

INTENT = Intent(uid="u", generation=1, issued=1, expires=2, spec={})


class ScriptedAgent:
    """Answers what it is told to, and counts."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.engine_answers = True
        self.asked = 0
        self.closed = False

    async def status(self) -> AgentStatus:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return agent_status(engine=EngineReport(reachable=self.engine_answers, start_id="engine-1"))

    async def put_intent(self, intent: Intent) -> IntentAnswer:
        if self.trouble is not None:
            raise self.trouble
        return IntentAnswer(status=IntentStatus.ACCEPTED, uid=intent.uid, generation=intent.generation)

    async def aclose(self) -> None:
        self.closed = True


def build() -> tuple[Agents, ScriptedAgent, FakeClock]:
    clock, agent = FakeClock(), ScriptedAgent()
    return Agents(clock=clock, rng=random.Random(1), connect=lambda url: agent, book=AgentBook()), agent, clock


async def test_an_agent_is_asked_once_in_ten_seconds_however_often_one_looks() -> None:
    agents, agent, clock = build()
    for _ in range(5):
        assert isinstance(await agents.look("u", "http://a"), Answered)
    assert agent.asked == 1
    assert 9.0 <= agents.seconds_to_next("u") <= 11.0
    await clock.advance(11.1)
    await agents.look("u", "http://a")
    assert agent.asked == 2


async def test_an_agent_without_its_engine_is_asked_again_soon_and_then_in_the_usual_rhythm() -> None:
    agents, agent, clock = build()
    agent.engine_answers = False
    waits = []
    for _ in range(7):
        assert isinstance(await agents.look("u", "http://a"), Answered)
        waits.append(agents.seconds_to_next("u"))
        await clock.advance(waits[-1])
    assert waits[0] <= 1.1
    assert waits[1] <= 2.2
    assert all(9.0 <= wait <= 11.0 for wait in waits[4:])
    agent.engine_answers = True
    await agents.look("u", "http://a")
    assert 9.0 <= agents.seconds_to_next("u") <= 11.0


async def test_a_silent_agent_is_asked_again_soon_and_then_less_and_less_often_but_at_least_each_minute() -> None:
    agents, agent, clock = build()
    agent.trouble = Unreachable("refused")
    waits = []
    for failures in range(1, 10):
        assert await agents.look("u", "http://a") == Silent(why="refused", failures=failures)
        waits.append(agents.seconds_to_next("u"))
        await clock.advance(waits[-1])
    assert 0.9 <= waits[0] <= 1.1
    assert all(later > sooner for sooner, later in itertools.pairwise(waits[:6]))
    assert max(waits) <= 66.0
    agent.trouble = None
    assert isinstance(await agents.look("u", "http://a"), Answered)
    agent.trouble = Unreachable("refused")
    await clock.advance(12)
    assert await agents.look("u", "http://a") == Silent(why="refused", failures=1)


async def test_after_an_intent_was_handed_over_the_agent_is_asked_at_once() -> None:
    agents, agent, _ = build()
    await agents.look("u", "http://a")
    answer = await agents.push("u", "http://a", INTENT)
    assert answer is not None
    assert answer.status is IntentStatus.ACCEPTED
    assert agents.seconds_to_next("u") == 0.0
    await agents.look("u", "http://a")
    assert agent.asked == 2


async def test_an_intent_that_meets_silence_or_nonsense_gives_no_answer_and_changes_the_sighting() -> None:
    agents, agent, _ = build()
    await agents.look("u", "http://a")
    agent.trouble = Unreachable("reset")
    assert await agents.push("u", "http://a", INTENT) is None
    assert isinstance(await agents.look("u", "http://a"), Silent)
    agent.trouble = ProtocolViolation("no JSON")
    assert await agents.push("u", "http://a", INTENT) is None
    assert await agents.look("u", "http://a") == Garbled(why="no JSON")


async def test_nonsense_in_answer_to_an_intent_makes_no_nonsense_of_the_status_before() -> None:
    agents, agent, _ = build()
    before = await agents.look("u", "http://a")
    agent.trouble = ProtocolViolation("PUT /intent: status 405 is none of an agent")
    assert await agents.push("u", "http://a", INTENT) is None
    assert await agents.look("u", "http://a") is before
    assert agent.asked == 1
    assert agents.seconds_to_next("u") > 5.0, "and it is not offered again and again"


async def test_another_address_is_another_agent_and_a_new_term_trusts_no_old_sighting() -> None:
    agents, agent, _ = build()
    await agents.look("u", "http://a")
    await agents.look("u", "http://b")
    agents.forget_all()
    await agents.look("u", "http://b")
    assert agent.asked == 3


async def test_only_what_was_believed_stands_in_the_book_with_the_second_at_which_it_came() -> None:
    clock, agent, book = FakeClock(), ScriptedAgent(), AgentBook()
    agents = Agents(clock=clock, rng=random.Random(1), connect=lambda url: agent, book=book)
    agents.believe("u")
    await agents.look("u", "http://a")
    assert book.last("u") is None
    heard_s = clock.monotonic()
    await clock.advance(5)
    agents.believe("u")
    await agents.look("u", "http://a")  # not asked again yet
    agents.believe("u")
    assert book.last("u") == Heard(status=agent_status(), at_s=heard_s)
    await clock.advance(10)
    agent.trouble = Unreachable("refused")
    await agents.look("u", "http://a")
    agents.believe("u")
    assert book.last("u") == Heard(status=agent_status(), at_s=heard_s)  # silence enters nothing; readers judge by age


@pytest.mark.parametrize("how", ["the instance is gone", "a new term of leadership"])
async def test_the_book_forgets_together_with_the_agents(how: str) -> None:
    agent, book = ScriptedAgent(), AgentBook()
    agents = Agents(clock=FakeClock(), rng=random.Random(1), connect=lambda url: agent, book=book)
    await agents.look("u", "http://a")
    agents.believe("u")
    if how == "the instance is gone":
        agents.forget("u")
    else:
        agents.forget_all()
    assert book.last("u") is None


async def test_the_number_of_clients_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr("controllers.allocation.agents.CLIENTS_KEPT", 2)
    made: list[ScriptedAgent] = []

    def connect(url: str) -> ScriptedAgent:
        made.append(ScriptedAgent())
        return made[-1]

    agents = Agents(clock=FakeClock(), rng=random.Random(1), connect=connect, book=AgentBook())
    for number in range(4):
        await agents.look(f"u{number}", f"http://{number}")
    assert [agent.closed for agent in made] == [True, True, False, False]


async def test_the_session_reads_answers_within_bounds_and_calls_everything_else_by_its_name(
    monkeypatch: Any, unused_tcp_port: int
) -> None:
    monkeypatch.setattr("controllers.allocation.agent_calls.MAX_ANSWER_BYTES", 4096)
    bodies = {
        "good": (200, msgspec.json.encode(agent_status())),
        "refused": (403, msgspec.json.encode(IntentAnswer(status=IntentStatus.FORGED, uid="u", generation=1))),
        "broken": (200, b'{"agentStartId": 1e999'),
        "nan": (200, msgspec.json.encode(agent_status()).replace(b"41.7", b"NaN")),
        "large": (200, b"x" * 8192),
        "angry": (500, b"no"),
        "moved": (302, b""),
    }

    async def answer(request: web.Request) -> web.Response:
        status, body = bodies[request.match_info["which"]]
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_route("*", "/{which}/agent/v1/{call}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    try:
        async with aiohttp.ClientSession() as session:

            def at(which: str, port: int = unused_tcp_port) -> SessionAgent:
                return SessionAgent(session, f"http://127.0.0.1:{port}/{which}")

            assert await at("good").status() == agent_status()
            assert (await at("refused").put_intent(INTENT)).status is IntentStatus.FORGED
            for which in ("broken", "nan", "large", "angry", "moved"):
                with pytest.raises(ProtocolViolation):
                    await at(which).status()
            with pytest.raises(Unreachable):
                await at("good", port=1).status()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("spelling", ["http://b:81", "http://10.0.0.7:81", "http://a:81/.", "https://a:81"])
@pytest.mark.parametrize("same_process", [True, False])
async def test_an_agent_that_two_instances_name_is_one_agent_however_they_spell_its_address(
    spelling: str, same_process: bool
) -> None:
    """Orders for both would take turns in its engine; but entries whose addresses were exchanged find their own agents again."""

    class Speaking(ScriptedAgent):
        def __init__(self, uid: str, process: str) -> None:
            super().__init__()
            self.said = agent_status(uid, agent_start_id=process)

        async def status(self) -> AgentStatus:
            return self.said

    ports = {"http://a:81": Speaking("uid-pool-a", "one"), spelling: Speaking("uid-pool-a", "one" if same_process else "two")}
    agents = Agents(clock=FakeClock(), rng=random.Random(1), connect=ports.__getitem__, book=AgentBook())
    store, pool = Store([INSTANCES]), pool_object()
    store.add_index(INSTANCES, BY_UID, uid_index)
    first, second = instance_object("pool-a", pool), instance_object("pool-b", pool)
    second["spec"]["source"]["agentURL"] = spelling
    for stored in (first, second):
        store.upsert(INSTANCES, stored)
    own = await agents.look("uid-pool-a", "http://a:81")
    other = await agents.look("uid-pool-b", spelling)
    assert _holder(store, agents, GRInstance.parse(first), own) is None
    assert (_holder(store, agents, GRInstance.parse(second), other) is not None) == same_process
