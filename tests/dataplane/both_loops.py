"""What tests of waiting share: each scenario runs on the loop that waits without a turn, and on an ordinary one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dataplane.quiet_loop import QuietLoop

FAR_S = 3600.0


class Counting(QuietLoop):
    """Counts its turns."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]  # every loop of asyncio has it


def on_both_loops(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[type[asyncio.AbstractEventLoop]], None]:
    """Return a test that runs a scenario on either loop, for 20 seconds at most."""

    @pytest.mark.parametrize("loop", [Counting, asyncio.SelectorEventLoop])
    def test(loop: type[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(asyncio.wait_for(scenario(), 20.0))

    return test
