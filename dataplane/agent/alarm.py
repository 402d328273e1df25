"""The alarm clock of the one task that sleeps most of the time: it wakes in time, or at a word before that."""

import asyncio

from dataplane.quiet_loop import Wait


class Alarm:
    """An alarm clock for one sleeper."""

    def __init__(self) -> None:
        self._rung = False
        self._sleep: Wait | None = None

    def ring(self) -> None:
        """Wake the sleeper now, or keep it from falling asleep next time."""
        self._rung = True
        if self._sleep is not None:
            self._sleep.end_soon()

    async def sleep(self, delay_s: float) -> bool:
        """Sleep for so many seconds and return False, or True when it was rung before that."""
        if not self._rung:
            self._sleep = sleep = Wait(asyncio.get_running_loop())
            sleep.begin(delay_s)
            try:
                await sleep
            finally:
                sleep.forget()
                self._sleep = None
        rung, self._rung = self._rung, False
        return rung
