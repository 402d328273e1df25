"""Calls to the engine that are no part of a round: one at a time and beside the rounds, so that a slow answer never delays the
split. What fails is tried again after a second, then less and less often.
"""

import asyncio
from collections.abc import Coroutine

FIRST_RETRY_MS = 1000.0
LONGEST_RETRY_MS = 600_000.0


class Errand:
    """At most one call under way."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the last call has not ended yet."""
        return self._task is not None and not self._task.done()

    def start(self, call: Coroutine[None, None, None]) -> None:
        """Run a call that handles its own failures; only while not busy."""
        self._task = asyncio.get_running_loop().create_task(call)

    async def ended(self) -> None:
        """Wait for the call under way, if any."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Give up the call under way."""
        if self._task is not None:
            self._task.cancel()


class Backoff:
    """When something that failed may be tried again, in milliseconds of the agent's clock."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before_ms = float("-inf")

    def due(self, now_ms: float) -> bool:
        """Whether it may be tried now."""
        return now_ms >= self._not_before_ms

    def failed(self, now_ms: float) -> None:
        """It failed once more."""
        self._not_before_ms = now_ms + min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2.0 ** min(self._failures, 20))
        self._failures += 1

    def reset(self) -> None:
        """It went well, or there is something new to try."""
        self._failures, self._not_before_ms = 0, float("-inf")
