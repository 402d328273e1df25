"""The loop of the live view: look, show, wait. A look that fails leaves the last one standing, with the problem beside it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from controllers.runtime.clock import Clock
from grfleet.access import Failed
from grfleet.top.render import Seen


class Screen(Protocol):
    """Where looks are shown."""

    def show(self, seen: Seen, *, problem: str) -> None:
        """Show a look; `problem` says why it is not the newest, empty when it is."""


async def follow(look: Callable[[], Awaitable[Seen]], screen: Screen, clock: Clock, *, interval_seconds: float) -> None:
    """Show look after look for ever.

    Raises
    ------
    Failed
        The very first look failed.
    """
    seen = await look()
    problem = ""
    while True:
        screen.show(seen, problem=problem)
        await clock.sleep(interval_seconds)
        try:
            seen, problem = await look(), ""
        except Failed as error:
            problem = str(error)
