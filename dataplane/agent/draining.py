"""Tells the engine to drain, and that it need not any more, as the intent says: once per engine process.

A drain that this agent did not ask for is left alone, so that a person may drain an engine by hand. The exception is the first
intent after the agent has started: what the engine says then may be the word of the agent before, so it is taken back.
"""

from collections.abc import Callable, Coroutine

from contract.engine import Observe
from contract.errors import ProtocolViolation, Unreachable
from dataplane.agent.errand import Backoff
from dataplane.agent.ports import EnginePort


class Drainer:
    """The word to drain of one engine.

    Parameters
    ----------
    began
        Called when the engine has taken the word to drain.
    """

    def __init__(self, engine: EnginePort, *, began: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._began = began
        self._start_id = ""
        self._told: bool | None = None
        self._unable = False
        self._backoff = Backoff()
        self.note = ""

    @property
    def draining(self) -> bool:
        """Whether this engine process was told to drain, and not the contrary since."""
        return self._told is True

    def next_call(self, wanted: bool | None, now: Observe, *, now_ms: float) -> Coroutine[None, None, None] | None:
        """Return the call that is due now, not started yet, or None.

        Parameters
        ----------
        wanted
            What the intent in force says; None without an intent, which changes nothing.
        """
        if now.start_id != self._start_id:
            self._start_id, self._told, self._unable, self.note = now.start_id, None, False, ""
            self._backoff.reset()
        if wanted is None or wanted is self._told or (self._unable and not wanted):
            return None
        if self._told is None and now.draining is wanted:
            self._told = wanted  # as the agent before has left it
            return None
        if self._told is None and not wanted and now.draining is None:
            self._told = False  # it does not say; one that was never told must not be told the contrary
            return None
        return self._send(wanted, self._start_id, now_ms) if self._backoff.due(now_ms) else None

    async def _send(self, wanted: bool, start_id: str, now_ms: float) -> None:
        try:
            answer = await self._engine.drain(draining=wanted)
        except (Unreachable, ProtocolViolation) as error:
            if start_id == self._start_id:
                self.note = f"drain: {error}"[:256]
                self._backoff.failed(now_ms)
            return
        if start_id != self._start_id:
            return
        self._backoff.reset()
        self._told, self.note = answer.draining, ""
        if wanted and answer.draining:
            self._began()
        elif answer.draining:
            self._unable, self.note = True, "drain: the engine cannot take it back; restart it"
        elif wanted:
            self.note = "drain: the engine says that it does not drain"
            self._backoff.failed(now_ms)
