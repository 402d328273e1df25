"""Since when the engine has had nothing to do, and who waits for it: a pod's preStop hook holds termination until then.

Judged by the counters and gauges of the rounds that go on anyway, so a request that came and went between two rounds counts. An
engine that does not answer ends a wait as well, or a dead one would hold its pod until the deadline.
"""

import asyncio
import contextlib
from collections.abc import Callable

from contract.agent import IdleAnswer, IdleReason
from contract.engine import Observe

MAX_WAITERS = 64
_LOOK_SECONDS = 1.0


class Idleness:
    """Watches one engine; times in seconds of the agent's monotone clock."""

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._seen: tuple[str, int] | None = None
        self._seen_at_s = monotonic_s()
        self._quiet_since_s: float | None = None
        self._silent_since_s: float | None = monotonic_s()
        self._in_flight: int | None = None
        self._turn = asyncio.Event()
        self.waiters = 0

    def saw(self, now: Observe) -> None:
        """A reading that can be trusted; only readings make time pass."""
        counts = now.counters
        seen = (now.start_id, counts.requests + counts.pre_infer.accepted + counts.pre_infer.rejected)
        busy = now.gauges.in_flight > 0 or now.gauges.queue > 0
        if busy:
            self._quiet_since_s = None
        elif seen != self._seen or self._quiet_since_s is None:
            self._quiet_since_s = self._monotonic_s()
        self._seen, self._in_flight, self._silent_since_s = seen, now.gauges.in_flight, None
        self._seen_at_s = self._monotonic_s()
        self._next_turn()

    def heard_nothing(self, *, unreachable: bool) -> None:
        """A round without figures: nothing is known until the next one, and silence may end a wait."""
        self._quiet_since_s, self._in_flight = None, None
        if not unreachable:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = self._monotonic_s()
        self._next_turn()

    def begin_anew(self) -> None:
        """Count from now on: what was quiet before a drain says nothing about callers that have yet to follow the table."""
        if self._quiet_since_s is not None:
            self._quiet_since_s = self._monotonic_s()

    @property
    def seconds(self) -> float | None:
        """How long nothing was seen in flight and nothing new came; 0 while something is, None when that is not known."""
        if self._in_flight is None:
            return None
        return 0.0 if self._quiet_since_s is None else max(0.0, self._seen_at_s - self._quiet_since_s)

    async def wait(self, *, after_s: float, deadline_s: float) -> IdleAnswer | None:
        """Return once the engine has been idle or silent for `after_s`, or `deadline_s` have passed.

        None at once when MAX_WAITERS wait already. A cancelled wait leaves nothing behind.
        """
        if self.waiters >= MAX_WAITERS:
            return None
        self.waiters += 1
        try:
            began_s = self._monotonic_s()
            while True:
                waited_s = self._monotonic_s() - began_s
                reason = self._verdict(after_s) or (IdleReason.DEADLINE if waited_s >= deadline_s else None)
                if reason is not None:
                    idle = reason is IdleReason.IDLE
                    return IdleAnswer(idle=idle, reason=reason, waited_seconds=round(waited_s, 3), in_flight=self._in_flight)
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: until Python 3.12 it swallows a cancellation that comes together with the event.
                    async with asyncio.timeout(min(_LOOK_SECONDS, deadline_s - waited_s)):
                        await self._turn.wait()
        finally:
            self.waiters -= 1

    def _verdict(self, after_s: float) -> IdleReason | None:
        quiet_s = self.seconds
        if quiet_s is not None and self._quiet_since_s is not None and quiet_s >= after_s:
            return IdleReason.IDLE
        if self._silent_since_s is not None and self._monotonic_s() - self._silent_since_s >= after_s:
            return IdleReason.ENGINE_UNREACHABLE
        return None

    def _next_turn(self) -> None:
        """Wake who waits; whoever waits next waits for the round after."""
        if self.waiters:
            self._turn.set()
            self._turn = asyncio.Event()
