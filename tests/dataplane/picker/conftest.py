"""Fixtures of the picker's tests: a real Envoy, unpacked into the cache, with a picker and three toy instances behind it."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from picker_world import World

from testbed.envoy import ensure_envoy
from testbed.wheels import WheelError


@pytest.fixture(scope="session")
def envoy() -> Path:
    try:
        return ensure_envoy()
    except WheelError as error:
        pytest.skip(f"no Envoy here, so the picker is NOT tested behind one: {error}")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="picker-") as name:
        yield Path(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(envoy: Path, folder: Path) -> AsyncIterator[World]:
    world = World(envoy, folder)
    try:
        await world.start()
        yield world
    finally:
        await world.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def world(started: World) -> World:
    """Three toys a, b and c that serve, a table of them, a picker that has it and an Envoy that asks the picker."""
    await started.whole()
    return started
