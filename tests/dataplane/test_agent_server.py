"""The agent contract over a real socket: verdicts as HTTP codes, bounded bodies, paging, health."""

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from contract import agent
from contract.agent import AgentStatus, DecisionRecord, DecisionsAnswer, EngineReport, Intent, IntentAnswer, IntentStatus
from contract.agent_client import AgentClient
from contract.residency import ResidencyReport, UserState
from dataplane.agent.decisions import MAX_BYTES, PAGE, DecisionRing
from dataplane.agent.server import MAX_INTENT_BYTES, route_of
from dataplane.http.server import serving


class CannedFace:
    """Answers what the test put there."""

    def __init__(self) -> None:
        self.verdict = IntentStatus.ACCEPTED
        self.ring = DecisionRing()
        self.sick: list[str] = []
        self.offered: list[Intent] = []
        self.report: ResidencyReport | None = None
        self.cursors: list[int] = []

    async def residency(self, cursor: int) -> ResidencyReport | None:
        self.cursors.append(cursor)
        return self.report

    def offer_intent(self, intent: Intent) -> IntentAnswer:
        self.offered.append(intent)
        return IntentAnswer(status=self.verdict, uid=intent.uid, generation=intent.generation)

    def invalid_intent(self, reason: str) -> IntentAnswer:
        return IntentAnswer(status=IntentStatus.INVALID, uid="", generation=0, reason=reason[:1024])

    def status(self) -> AgentStatus:
        return AgentStatus(
            agent_start_id="a", uid="u", generation=1, engine=EngineReport(reachable=False), strategy_in_force="Static",
            reason="NoIntent", message="", frozen=False, decisions=0,
        )  # fmt: skip

    def decisions_after(self, sequence: int, *, limit: int) -> DecisionsAnswer:
        return self.ring.after(sequence, limit=limit)

    def metrics_text(self) -> bytes:
        return b"grfleet_agent_frozen 0.0\n"

    def unhealthy(self) -> list[str]:
        return self.sick

    def unready(self) -> list[str]:
        return []


def record() -> DecisionRecord:
    return DecisionRecord(
        sequence=0, clock_ms=1.0, strategy="Static", layer="Static", reason="StaticTarget", clips=[], from_emb_bytes=1,
        target_emb_bytes=2, applied=False, inputs={},
    )  # fmt: skip


@pytest.fixture
async def served() -> AsyncIterator[tuple[CannedFace, str]]:
    face = CannedFace()
    async with serving(route_of(face), "http://127.0.0.1:0") as url:
        yield face, url


@pytest.mark.parametrize("verdict", list(IntentStatus))
async def test_the_client_of_the_contract_reads_every_verdict(served: tuple[CannedFace, str], verdict: IntentStatus) -> None:
    face, url = served
    face.verdict = verdict
    async with AgentClient(url) as client:
        answer = await client.put_intent(Intent(uid="u", generation=7, issued=1, expires=2, spec={}))
    assert (answer.status, answer.generation) == (verdict, 7)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"uid":"u"}',
        b'{"uid":"u","generation":0,"issued":1,"expires":2,"spec":{}}',
        b"\xff\xfe",
        b"[" * 60_000,
    ],
)
async def test_a_malformed_intent_is_invalid_and_never_reaches_the_agent(served: tuple[CannedFace, str], body: bytes) -> None:
    face, url = served
    async with httpx.AsyncClient() as http:
        response = await http.put(f"{url}{agent.PREFIX}/intent", content=body)
    assert response.status_code == 400
    assert msgspec.json.decode(response.content, type=IntentAnswer).status is IntentStatus.INVALID
    assert face.offered == []


async def test_a_body_above_the_limit_is_refused_before_it_is_parsed(served: tuple[CannedFace, str]) -> None:
    face, url = served
    async with httpx.AsyncClient() as http:
        response = await http.put(f"{url}{agent.PREFIX}/intent", content=b" " * (MAX_INTENT_BYTES + 1))
    assert response.status_code == 400
    assert b"larger than" in response.content
    assert face.offered == []


async def test_a_reader_follows_the_decisions_page_by_page(served: tuple[CannedFace, str]) -> None:
    face, url = served
    for _ in range(1500):
        face.ring.append(record)
    seen: list[int] = []
    cursor = 0
    async with AgentClient(url) as client:
        while (page := await client.decisions(after=cursor)).decisions:
            assert len(page.decisions) <= PAGE
            seen += [item.sequence for item in page.decisions]
            cursor = page.next
    assert seen == list(range(501, 1501))


async def test_a_cursor_of_an_earlier_process_starts_over(served: tuple[CannedFace, str]) -> None:
    face, url = served
    face.ring.append(record)
    async with AgentClient(url) as client:
        assert [item.sequence for item in (await client.decisions(after=900)).decisions] == [1]


@pytest.mark.parametrize("query", ["after=x", "after=-1", "limit=0", "limit=1001", "after=1e3"])
async def test_a_bad_cursor_is_answered_with_400(served: tuple[CannedFace, str], query: str) -> None:
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{served[1]}{agent.PREFIX}/decisions?{query}")).status_code == 400


async def test_health_names_what_is_wrong(served: tuple[CannedFace, str]) -> None:
    face, url = served
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{url}/healthz")).status_code == 200
        face.sick = ["loop: no round for 9 s"]
        sick = await http.get(f"{url}{agent.PREFIX}/healthz")
    assert sick.status_code == 503
    assert sick.json()["reasons"] == ["loop: no round for 9 s"]


async def test_metrics_are_served_on_both_paths(served: tuple[CannedFace, str]) -> None:
    async with httpx.AsyncClient() as http:
        for path in ("/metrics", f"{agent.PREFIX}/metrics"):
            assert (await http.get(served[1] + path)).text.startswith("grfleet_agent_frozen")


async def test_the_client_of_the_contract_reads_residency_and_none_where_there_is_none(served: tuple[CannedFace, str]) -> None:
    face, url = served
    async with AgentClient(url) as client:
        assert await client.residency() is None
        state = UserState(key="0" * 32, tokens_hbm=5)
        face.report = ResidencyReport(uid="u", start_id="s", generation=0, since=0, cursor=7, users=[state])
        assert await client.residency(cursor=6) == face.report
    assert face.cursors == [0, 6]


def test_the_records_of_an_agent_are_bounded_in_bytes_and_the_newest_stay() -> None:
    ring = DecisionRing()
    long = msgspec.structs.replace(record(), inputs={"round": {"message": "x" * 10_000}})
    for _ in range(1000):
        ring.append(lambda: long)
    assert len(ring) * 10_000 <= MAX_BYTES
    seen = [item.sequence for item in ring.after(0).decisions]
    assert seen == list(range(1001 - len(ring), 1001))
    assert [item.sequence for item in ring.after(998).decisions] == [999, 1000]
