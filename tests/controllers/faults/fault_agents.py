"""Agents of the test: they accept intents exactly as the real one does and remember everything that they were told.

Behind the same port stand the engines, which nobody but an agent may talk to: here any call to one is a violation.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from contract import agent as wire
from contract import signing
from contract.agent import AgentStatus, EngineReport, Intent, IntentSpec, IntentStatus, ModelStatus, SplitReport, Strategy
from dataplane.agent.intent import IntentBook
from dataplane.agent.models import ModelShelf

GIB = 1 << 30
USABLE = 2 * GIB
_CODES = {IntentStatus.STALE: 409, IntentStatus.FORGED: 403, IntentStatus.INVALID: 400, IntentStatus.EXPIRED: 400}


@dataclass(frozen=True, slots=True)
class Offer:
    """One intent that came in, and what became of it."""

    at_s: float
    intent: Intent
    status: IntentStatus
    reason: str = ""


@dataclass(slots=True)
class Agent:
    """One agent: its book of intents, its models and its log."""

    name: str
    book: IntentBook = field(default_factory=lambda: IntentBook(public_key=None))
    offers: list[Offer] = field(default_factory=list)
    models: ModelShelf = field(default_factory=ModelShelf)
    pushed: list[tuple[str, ModelStatus]] = field(default_factory=list)

    @property
    def spec(self) -> IntentSpec | None:
        """What the intent in force orders."""
        return self.book.current.spec if self.book.current is not None else None

    @property
    def holds(self) -> tuple[str, int] | None:
        """(uid, generation) of the intent in force."""
        held = self.book.current
        return None if held is None else (held.uid, held.generation)

    def status(self) -> AgentStatus:
        """A healthy agent whose split has settled in the middle."""
        held, model = self.book.current, self.models.wanted_by(self.spec)
        lacks = held is not None and held.spec.strategy is Strategy.LEARNED and model is None
        split = SplitReport(
            usable_bytes=USABLE,
            target_emb_bytes=USABLE // 2,
            accepted_emb_bytes=USABLE // 2,
            accepted_kv_bytes=USABLE // 2,
            used_emb_bytes=USABLE // 2,
            used_kv_bytes=USABLE // 4,
            revision=3,
            settled=True,
            overage_bytes=0,
            refill_backlog_bytes=0,
        )
        return AgentStatus(
            agent_start_id=f"start-{self.name}",
            uid=held.uid if held else "",
            generation=held.generation if held else 0,
            engine=EngineReport(reachable=True, start_id=f"engine-{self.name}"),
            strategy_in_force=held.spec.strategy if held and not lacks else "MissRatioCurve",
            reason="ModelMissing" if lacks else "AnchorTarget",
            message="",
            frozen=False,
            decisions=7,
            split=split,
            emb_hit_percent=91.0,
            kv_hit_percent=60.0,
            p99_ms=41.0,
            slo_percent=99.6,
            models=self.models.digests,
            model_in_force=model.sha256 if model is not None else None,
        )


class AgentFarm:
    """All agents and engines of a test, in a thread, on one port of loopback."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.engine_calls: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-farm", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def entry(self, name: str) -> dict[str, str]:
        """The entry of instances.external, with an agent behind it."""
        self.agents.setdefault(name, Agent(name))
        base = f"http://127.0.0.1:{self.port}"
        return {"name": name, "serviceURL": f"{base}/engine/{name}", "agentURL": f"{base}/agents/{name}"}

    def offers(self) -> list[tuple[str, Offer]]:
        """Everything that came in, in order, with the name of the agent."""
        found = [(each.name, offer) for each in self.agents.values() for offer in list(each.offers)]
        return sorted(found, key=lambda item: item[1].at_s)

    def forged(self, public_key: bytes) -> list[tuple[str, Offer]]:
        """Intents that the operator's key did not sign."""
        return [(name, offer) for name, offer in self.offers() if not signing.is_authentic(offer.intent, public_key)]

    async def _start(self) -> int:
        app = web.Application()
        app.router.add_get(f"/agents/{{name}}{wire.PREFIX}/status", self._status)
        app.router.add_put(f"/agents/{{name}}{wire.PREFIX}/intent", self._intent)
        app.router.add_put(f"/agents/{{name}}{wire.PREFIX}/model/{{sha256}}", self._model)
        app.router.add_route("*", "/{tail:.*}", self._violation)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _status(self, request: web.Request) -> web.Response:
        return _json(self.agents[request.match_info["name"]].status())

    async def _intent(self, request: web.Request) -> web.Response:
        agent = self.agents[request.match_info["name"]]
        intent = msgspec.json.decode(await request.read(), type=Intent)
        answer = agent.book.offer(intent, now_s=time.time())
        agent.offers.append(Offer(time.monotonic(), intent, answer.status, answer.reason))
        return _json(answer, status=_CODES.get(answer.status, 200))

    async def _model(self, request: web.Request) -> web.Response:
        agent, digest = self.agents[request.match_info["name"]], request.match_info["sha256"]
        answer = agent.models.offer(digest, await request.read(), agent.spec)
        agent.pushed.append((digest, answer.status))
        codes = {ModelStatus.REFUSED: 400, ModelStatus.NOT_WANTED: 409}
        return _json(answer, status=codes.get(answer.status, 200))

    async def _violation(self, request: web.Request) -> web.Response:
        self.engine_calls.append(f"{request.method} {request.path}")
        return web.Response(status=404)


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", status=status)
