"""Asks agents and hands them intents: a short memory of what each said, and a polite rhythm.

An agent is asked every ten seconds, at once when there is reason to, and less and less often while it does not answer. One whose
engine does not answer is asked again after a second, two, four and so on up to ten: most likely the engine is about to start. How
many are asked at the same time is bounded by the workers of the loop. Looking is cheap in between: the last sighting is
returned.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from contract.agent import AgentStatus, Intent, IntentAnswer, ModelAnswer, ModelStatus
from contract.errors import ProtocolViolation, Unreachable
from controllers.agent_book import AgentBook
from controllers.allocation.sightings import Answered, Garbled, Sighting, Silent
from controllers.runtime.clock import Clock

POLL_SECONDS = 10.0
SECOND_ATTEMPT_SECONDS = 1.0
LONGEST_SECONDS = 60.0
JITTER = 0.1
TIMEOUT_SECONDS = 2.0
CLIENTS_KEPT = 2048


class AgentPort(Protocol):
    """The three calls of the agent contract that the loop makes; `agent_calls` has the real one."""

    async def status(self) -> AgentStatus: ...

    async def put_intent(self, intent: Intent) -> IntentAnswer: ...

    async def put_model(self, sha256: str, data: bytes) -> ModelAnswer: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class _Record:
    url: str
    sighting: Sighting | None = None
    failures: int = 0
    blind: int = 0  # answers in a row that said: my engine does not answer
    heard_s: float = 0.0
    next_s: float = float("-inf")


class Agents:
    """All agents that this process talks to, by GRInstance uid.

    Parameters
    ----------
    connect
        Makes the port to an address.
    book
        Where other loops read what was believed.
    count
        Called with (call, outcome) after each call, for a metric: `status`, `intent` or `model`; `silent`, `garbled`,
        `answered` or the agent's word on the intent or model.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        connect: Callable[[str], AgentPort],
        book: AgentBook,
        count: Callable[[str, str], None] = lambda call, outcome: None,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._connect = connect
        self._book = book
        self._count = count
        self._clients: OrderedDict[str, AgentPort] = OrderedDict()
        self._records: dict[str, _Record] = {}

    async def look(self, uid: str, url: str) -> Sighting:
        """The last sighting, renewed if it is time; never raises for what an agent does."""
        record = self._record(uid, url)
        if record.sighting is None or self._clock.monotonic() >= record.next_s:
            await self._ask(record)
        assert record.sighting is not None
        return record.sighting

    def believe(self, uid: str) -> None:
        """Enter the last answer in the book: whoever knows the instance has found nothing wrong with it."""
        record = self._records.get(uid)
        if record is not None and isinstance(record.sighting, Answered):
            self._book.note(uid, record.sighting.status, now_s=record.heard_s)

    async def push(self, uid: str, url: str, intent: Intent) -> IntentAnswer | None:
        """Hand over an intent and have the agent asked again at once; None when it did not answer as it should."""
        record = self._record(uid, url)
        try:
            client = await self._client(url)
            answer = await client.put_intent(intent)
        except Unreachable as error:
            self._count("intent", "silent")
            self._missed(record, str(error))
            return None
        except ProtocolViolation as error:
            self._count("intent", "garbled")
            if isinstance(record.sighting, Answered):  # its status is to be believed as before, and asked for in its own time
                self._note(record, record.sighting, POLL_SECONDS)
            else:
                self._note(record, Garbled(why=str(error)), POLL_SECONDS)
            return None
        self._count("intent", answer.status.value)
        record.next_s = self._clock.monotonic()
        return answer

    async def push_model(self, uid: str, url: str, sha256: str, data: bytes) -> ModelAnswer | None:
        """Hand over the bytes of a model and have the agent asked again at once; None when it did not answer.

        An agent that does not know this call, because it is older, counts as one that refuses the model.
        """
        record = self._record(uid, url)
        try:
            client = await self._client(url)
            answer = await client.put_model(sha256, data)
        except Unreachable as error:
            self._count("model", "silent")
            self._missed(record, str(error))
            return None
        except ProtocolViolation as error:
            self._count("model", "garbled")
            return ModelAnswer(status=ModelStatus.REFUSED, models=[], reason="NoAnswer", message=f"{error}; update the agent")
        self._count("model", answer.status.value)
        record.next_s = self._clock.monotonic()
        return answer

    def process_of(self, uid: str) -> str | None:
        """Which agent process answered for an instance last; None when none did."""
        record = self._records.get(uid)
        sighting = None if record is None else record.sighting
        return sighting.status.agent_start_id if isinstance(sighting, Answered) else None

    def seconds_to_next(self, uid: str) -> float:
        """Seconds until the agent should be looked at again."""
        record = self._records.get(uid)
        return 0.0 if record is None else max(0.0, record.next_s - self._clock.monotonic())

    def hurry(self, uid: str, *, seconds: float) -> None:
        """Look again no later than in so many seconds, for instance to see where a new intent leads."""
        record = self._records.get(uid)
        if record is not None:
            record.next_s = min(record.next_s, self._clock.monotonic() + seconds)

    def forget(self, uid: str) -> None:
        """The instance is gone."""
        self._records.pop(uid, None)
        self._book.forget(uid)

    def forget_all(self) -> None:
        """Trust no earlier sighting: this process leads anew."""
        self._records.clear()
        self._book.forget_all()

    def _record(self, uid: str, url: str) -> _Record:
        record = self._records.get(uid)
        if record is None or record.url != url:
            record = self._records[uid] = _Record(url)
        return record

    async def _ask(self, record: _Record) -> None:
        try:
            client = await self._client(record.url)
            status = await client.status()
        except Unreachable as error:
            self._count("status", "silent")
            self._missed(record, str(error))
        except ProtocolViolation as error:
            self._count("status", "garbled")
            self._note(record, Garbled(why=str(error)), POLL_SECONDS)
        else:
            self._count("status", "answered")
            record.heard_s = self._clock.monotonic()
            record.blind = 0 if status.engine.reachable else record.blind + 1
            self._note(record, Answered(status=status), min(POLL_SECONDS, _attempt_after(record.blind)))

    def _missed(self, record: _Record, why: str) -> None:
        failures = record.failures + 1
        self._note(record, Silent(why=why, failures=failures), min(LONGEST_SECONDS, _attempt_after(failures)))
        record.failures = failures

    def _note(self, record: _Record, sighting: Sighting, wait_seconds: float) -> None:
        record.sighting, record.failures = sighting, 0
        record.next_s = self._clock.monotonic() + wait_seconds * self._rng.uniform(1.0 - JITTER, 1.0 + JITTER)

    async def _client(self, url: str) -> AgentPort:
        client = self._clients.get(url)
        if client is None:
            client = self._clients[url] = self._connect(url)
        self._clients.move_to_end(url)
        while len(self._clients) > CLIENTS_KEPT:
            _, oldest = self._clients.popitem(last=False)
            await oldest.aclose()
        return client


def _attempt_after(attempts: int) -> float:
    """Seconds to wait after so many attempts in vain; no limit without any."""
    return SECOND_ATTEMPT_SECONDS * 2.0 ** min(attempts - 1, 10) if attempts else float("inf")
