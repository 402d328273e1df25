"""A KV cache shrinks under a gateway's eyes: a real engine core, its agent, and the hot users of a gateway, in virtual time."""

import msgspec
import pytest
from dataplane_fakes import MIB
from withdrawing import SLOW, wanting

from contract.agent import Intent, IntentStatus
from contract.engine import RankRequest
from contract.keys import slot_of
from contract.table import InstanceState, TableInstance
from dataplane.agent.intent import IntentBook
from dataplane.agent.loop import Agent
from dataplane.hot_users.residents import Residents
from grfleet.demo.rehearsal import CoreEngine, VirtualClock
from policies.routing.types import Limits
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore

TOKENS = 330
"""Of whose last page a good part is empty."""
OWNERS = [slot % 2 for slot in range(4096)]
EVERYBODY = [key for key in (f"{number:032x}" for number in range(400)) if OWNERS[slot_of(key)] == 0]
"""Users whose slots belong to instance a."""


class Watched:
    """Instance b with the state of users of a, and a gateway that asks its agent every two seconds."""

    def __init__(self, *, users: int) -> None:
        self.clock = VirtualClock()
        self.core = GRInstanceCore(InstanceConfig(pool_bytes=640 * MIB, granule_bytes=10 * MIB), seed=1)
        self.users = EVERYBODY[:users]
        self.agent = Agent(
            engine=CoreEngine(self.core, self.clock),
            intents=IntentBook(public_key=None),
            start_id="agent",
            wall_s=self.clock.seconds,
            monotonic_s=self.clock.seconds,
        )
        self.residents = Residents(Limits(ttl_ms=1e9))
        rows = [
            TableInstance(name=n, uid=f"uid-{n}", address=f"http://{n}:1", weight_percent=100, state=InstanceState.READY)
            for n in "ab"
        ]
        self.residents.follow(rows, OWNERS)
        self.sent: set[str] = set()
        self.evicted: set[str] = set()
        self.surprised: set[str] = set()
        self.generation = self.served = 0

    def static(self, percent: int) -> None:
        self.generation += 1
        spec = {"strategy": "Static", "step": SLOW, "bounds": {"fallbackEmbPercent": percent}}
        intent = Intent(uid="uid-b", generation=self.generation, issued=0, expires=3600, spec=spec)
        assert self.agent.offer_intent(intent).status is IntentStatus.ACCEPTED

    def rank(self, key: str) -> None:
        self.served += 1
        request = RankRequest(request_id=f"r{self.served}", user_key=key, model_version="1", history_tokens=TOKENS, candidates=10)
        self.core.rank(request, self.clock.now_ms)

    @property
    def held(self) -> set[str]:
        return {key for key, _ in self.core.kv.keys_oldest_first()}

    async def live(self, seconds: int, *, hot: int = 5) -> None:
        """Let time pass: the hottest users go on, the agent goes round, and the gateway asks and chooses."""
        for _ in range(seconds):
            self.clock.now_ms += 1000.0
            for key in self.users[-hot:]:
                self.rank(key)
            before = self.held
            await self.agent.round()
            lost = before - self.held
            self.evicted |= lost
            self.surprised |= lost & self.sent
            if self.clock.now_ms % 2000.0 == 0.0:
                await self.ask()

    async def ask(self) -> None:
        report = await self.agent.residency(self.residents.cursor_of("uid-b"))
        assert report is not None
        self.residents.heard("uid-b", report, now_ms=self.clock.now_ms)
        nothing = msgspec.structs.replace(report, uid="uid-a", start_id="a", since=0, users=[])
        self.residents.heard("uid-a", nothing, now_ms=self.clock.now_ms)
        self.sent = set(self.residents.choose(now_ms=self.clock.now_ms).users)


async def filled(*, users: int) -> Watched:
    watched = Watched(users=users)
    watched.static(50)
    await watched.live(1, hot=0)
    for key in watched.users:
        watched.clock.now_ms += 20.0
        watched.rank(key)
    watched.clock.now_ms = -(-watched.clock.now_ms // 2000.0) * 2000.0
    await watched.live(10)
    assert watched.sent == watched.held == set(watched.users)
    return watched


async def test_no_user_is_sent_to_a_cache_that_has_just_been_made_too_small_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    watched = await filled(users=110)
    watched.static(80)
    await watched.live(40)
    assert len(watched.evicted) > 60
    assert watched.surprised == set()
    # Whoever is left is known again, and is sent there.
    await watched.live(6)
    assert watched.sent == watched.held


async def test_without_a_word_ahead_users_would_be_sent_to_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    watched = await filled(users=110)
    monkeypatch.setattr(watched.agent._residency, "bound_to", lambda tokens: None)
    watched.static(80)
    await watched.live(40)
    assert len(watched.surprised) > 60
    await watched.live(6)
    assert watched.sent == watched.held


async def test_users_of_a_move_that_is_given_up_are_sent_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    watched = await filled(users=110)
    watched.static(80)
    await watched.live(2)
    assert len(watched.sent) < 110
    watched.static(50)
    await watched.live(6)
    assert watched.evicted == set()
    assert watched.sent == set(watched.users)
