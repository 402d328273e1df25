"""Fixtures of the gateway's tests: a real HAProxy, unpacked from Debian's package and never installed."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from gateway_world import Gateway, make_gateway
from residents_world import Fleet

from testbed.debian import DebianError, Tree, ensure_debian_tree


@pytest.fixture(scope="session")
def haproxy(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """HAProxy of Debian's package, or the program that the environment variable GRFLEET_HAPROXY names."""
    if other := os.environ.get("GRFLEET_HAPROXY"):
        folder = tmp_path_factory.mktemp("haproxy") / "usr" / "sbin"
        folder.mkdir(parents=True)
        (folder / "haproxy").symlink_to(other)
        return Tree(folder.parent.parent)
    try:
        return ensure_debian_tree(["haproxy"])
    except DebianError as error:
        pytest.skip(f"no HAProxy here, so the gateway is NOT tested: {error}")


@pytest.fixture
def fleet() -> Fleet:
    """Agents of three instances that have told once of nobody, and the residents that heard them."""
    fleet = Fleet()
    fleet.all_tell()
    return fleet


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        yield Path(folder)


@pytest_asyncio.fixture
async def make(haproxy: Tree, short_folder: Path) -> AsyncIterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def one(name: str = "one", **changes: object) -> Gateway:
        made.append(make_gateway(haproxy, short_folder / name, **changes))
        return made[-1]

    yield one
    for gateway in made:
        await gateway.stop()


@pytest_asyncio.fixture
async def gateway(make: Callable[..., Gateway]) -> Gateway:
    """A started gateway with its agent and three toys a, b and c, without a table."""
    gateway = make()
    for name in ("a", "b", "c"):
        await gateway.toy(name)
    await gateway.start_haproxy()
    gateway.start_agent()
    return gateway
