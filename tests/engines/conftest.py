"""Fixtures of the engine tests."""

from collections.abc import AsyncIterator, Callable

import pytest
from engine_process import EngineProcess


@pytest.fixture
async def new_engine() -> AsyncIterator[Callable[..., EngineProcess]]:
    """Makes engine processes that do not outlive the test, however it ends."""
    made: list[EngineProcess] = []

    def make(*options: str) -> EngineProcess:
        made.append(EngineProcess(*options))
        return made[-1]

    yield make
    for process in made:
        await process.stop()
